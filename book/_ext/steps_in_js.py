"""The steps of attention and the catalogue of mistakes as JavaScript, translated from the package's own Python lines.

What the live head computes is so written once, in ``attnbook.diagnose``. The translation knows the few expressions that
occur there. Of conditions it keeps the branch of a plain head: two axes, a mask, no causal corner, window, bias, cap,
sink, dropout. What it cannot translate is an error where a step needs it, and leaves out a mistake.
"""

import ast
import json
import re
from functools import cache
from inspect import getsource

from attnbook.diagnose import steps
from attnbook.diagnose.causes import mistakes

ABSENT = {"bias", "softcap", "sink", "slopes", "cos", "dL", "kept", "kept_backward", "window"}
CONSTANTS = {"causal_allows": True, "window_allows": True, "h": 1, "h_kv": 1, "memory": None}
RESULTS = ("O", "D", "dQ", "dK", "dV")  # and all that they need
HELPERS = ("rowsum", "softmax", "exponentials", "normalized")
OPERATORS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.MatMult: "matmul", ast.Pow: "pow",
    ast.FloorDiv: "floordiv", ast.BitAnd: "and", ast.BitXor: "xor", ast.Eq: "equal",
}  # fmt: skip
NUMPY = {"where", "exp", "log", "isneginf", "isinf", "broadcast_to", "concatenate"}
METHODS = {"sum", "max", "reshape"}


class CannotTranslateError(Exception):
    """An expression that is not one of a plain head."""


@cache
def tree(module):
    return ast.parse(getsource(module))


@cache
def methods():
    """The steps and methods of Steps by name, as trees; steps take nothing but ``a``."""
    (found,) = (node for node in tree(steps).body if isinstance(node, ast.ClassDef) and node.name == "Steps")
    return {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)}


def is_step(name):
    return isinstance(getattr(steps.Steps, name, None), steps.step)


class Translator(ast.NodeVisitor):
    """One expression. ``names`` are the parameters of a method whose body stands in the place of its call."""

    def __init__(self, names=None):
        self.names = names or {}

    def generic_visit(self, node):
        raise CannotTranslateError(ast.unparse(node))

    def visit_Constant(self, node):
        return json.dumps(node.value)

    def visit_Name(self, node):
        return self.names.get(node.id, node.id)

    def visit_Attribute(self, node):
        if ast.unparse(node) == "np.inf":
            return "Infinity"
        if ast.unparse(node) == "np.finfo(np.float64).min":
            return "-Number.MAX_VALUE"
        if isinstance(node.value, ast.Name) and node.value.id == "a":
            if node.attr in ABSENT:
                return "null"
            return json.dumps(CONSTANTS[node.attr]) if node.attr in CONSTANTS else f"a.{node.attr}"
        if node.attr in ("shape", "size"):
            return f"{node.attr}({self.visit(node.value)})"
        return self.generic_visit(node)

    def visit_BinOp(self, node):
        return f"{OPERATORS[type(node.op)]}({self.visit(node.left)}, {self.visit(node.right)})"

    def visit_UnaryOp(self, node):
        if not isinstance(node.op, ast.USub):
            return self.generic_visit(node)
        if isinstance(node.operand, ast.Constant) or ast.unparse(node.operand) == "np.inf":
            return f"-{self.visit(node.operand)}"
        return f"mul(-1, {self.visit(node.operand)})"

    def visit_Compare(self, node):
        (op,), left, right = node.ops, self.visit(node.left), self.visit(node.comparators[0])
        if isinstance(op, (ast.Is, ast.IsNot)):
            same = {"null": "true", "a.given_scale": "a.given_scale === null"}.get(left, "false")
            return same if isinstance(op, ast.Is) else {"true": "false", "false": "true"}[same]
        if isinstance(op, (ast.Eq, ast.NotEq)) and left.isdigit() and right.isdigit():
            return json.dumps((left == right) == isinstance(op, ast.Eq))
        return f"equal({left}, {right})" if isinstance(op, ast.Eq) else self.generic_visit(node)

    def visit_IfExp(self, node):
        test = self.visit(node.test)
        if test in ("true", "false"):
            return self.visit(node.body if test == "true" else node.orelse)
        return f"({test} ? {self.visit(node.body)} : {self.visit(node.orelse)})"

    def visit_Subscript(self, node):
        """Some columns, ``T[..., part]``, or an axis of a shape."""
        if isinstance(node.slice, ast.Tuple) and isinstance(node.slice.elts[-1], (ast.Slice, ast.Name)):
            return f"columns({self.visit(node.value)}, {self.visit(node.slice.elts[-1])})"
        if isinstance(node.slice, ast.Slice):
            return f"{self.visit(node.value)}.slice({self.visit(node.slice).strip('[]')})"
        return self.generic_visit(node)

    def visit_Slice(self, node):
        return f"[{', '.join(self.visit(end) if end else 'null' for end in (node.lower, node.upper))}]"

    def visit_Tuple(self, node):
        return f"[{', '.join(map(self.visit, node.elts))}]"

    visit_List = visit_Tuple

    def visit_Starred(self, node):
        return f"...{self.visit(node.value)}"

    def visit_ListComp(self, node):
        (loop,) = node.generators
        return f"{self.visit(loop.iter)}.map(({loop.target.id}) => {self.visit(node.elt)})"

    def visit_Call(self, node):
        given = [self.visit(x) for x in node.args]
        axis = [self.visit(word.value) for word in node.keywords if word.arg == "axis"]
        of = node.func
        if isinstance(of, ast.Name):
            if of.id == "slice":
                return f"[{', '.join(given)}]"
            return f"{of.id}({', '.join([*given, *axis])})"
        if not isinstance(of, ast.Attribute):
            return self.generic_visit(node)
        whole = ast.unparse(of)
        if whole.startswith("np.") and of.attr in NUMPY:
            return f"{of.attr}({', '.join(given)})"
        if whole == "np.swapaxes":
            return f"mT({given[0]})"
        if whole.startswith("Steps.") and of.attr == "func":
            return f"STEPS.{of.value.attr}(a)"
        if isinstance(of.value, ast.Name) and of.value.id == "a":
            return body_of(methods()[of.attr], given)
        if of.attr in METHODS:
            return f"{of.attr}({', '.join([self.visit(of.value), *given, *axis])})"
        return self.generic_visit(node)


def body_of(function, given=()):
    """What a method returns to a plain head, with the arguments of its call in place."""
    names = dict(zip((arg.arg for arg in function.args.args[1:]), given, strict=False))
    for line in function.body:
        if isinstance(line, ast.If) and Translator(names).visit(line.test) == "true":
            line = line.body[0]
        if isinstance(line, ast.Return):
            return Translator(names).visit(line.value)
    raise CannotTranslateError(function.name)


def block(lines, names=None):
    """The lines of a function, but for its docstring."""
    for line in lines:
        if isinstance(line, ast.Assign):
            (target,) = line.targets
            known = f"var {target.id}" if isinstance(target, ast.Name) else Translator().visit(target)
            yield f"{known} = {Translator(names).visit(line.value)};"
        elif isinstance(line, ast.Return):
            yield f"return {Translator(names).visit(line.value)};"
        elif not isinstance(line, ast.Expr):
            raise CannotTranslateError(ast.unparse(line))


def function(node):
    """A function with its defaults, as a declaration."""
    names = [arg.arg for arg in node.args.args]
    defaults = dict(zip(reversed(names), map(Translator().visit, reversed(node.args.defaults)), strict=False))
    of = ", ".join(f"{name} = {defaults[name]}" if name in defaults else name for name in names)
    return f"function {node.name}({of}) {{ {' '.join(block(node.body))} }}"


def functions_of(module, names):
    found = {node.name: node for node in tree(module).body if isinstance(node, ast.FunctionDef)}
    return [function(found[name]) for name in names]


def all_steps():
    """Every step that the results need, by name."""
    known, wanted = {}, list(RESULTS)
    while wanted:
        name = wanted.pop()
        if name not in known and is_step(name):
            known[name] = " ".join(block(methods()[name].body))
            wanted += re.findall(r"\ba\.(\w+)", known[name])
    return known


def all_mistakes():
    """The wrong steps of each mistake that can be translated, by slug, and the helpers of all."""
    assigned = (node for node in tree(mistakes).body if isinstance(node, ast.Assign))
    (catalogue,) = (node.value for node in assigned if ast.unparse(node.targets[0]) == "MISTAKES")
    steps_by_slug = {}
    for call in catalogue.elts:
        try:
            known = {}
            for name, value in zip(call.args[-1].keys, call.args[-1].values, strict=True):
                if not is_step(name.value):
                    raise CannotTranslateError(name.value)
                if isinstance(value, ast.Name):
                    known[name.value] = value.id
                else:
                    known[name.value] = f"(a) => {Translator().visit(value.body)}"
            steps_by_slug[call.args[0].value] = known
        except CannotTranslateError:
            continue
    wanted = set(re.findall(r"\b_\w+", repr(steps_by_slug)))
    return steps_by_slug, functions_of(mistakes, sorted(wanted))


def script(slugs):
    """STEPS, and MISTAKES of these slugs: functions of ``a``, as Python's are."""
    wrong, helpers = all_mistakes()
    lines = [*functions_of(steps, HELPERS), *helpers, "const STEPS = {"]
    lines += [f"{name}(a) {{ {body} }}," for name, body in all_steps().items()]
    lines += ["};", "const MISTAKES = {"]
    for slug in slugs:
        lines.append(f"{json.dumps(slug)}: {{ {', '.join(f'{name}: {of}' for name, of in wrong[slug].items())} }},")
    return "\n".join([*lines, "};\n"])
