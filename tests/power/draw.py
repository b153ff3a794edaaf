"""Mutants: one node of the syntax tree of a function is changed, drawn by a seed, evenly over the lines of a room.

Only bodies of functions are changed: a function that everybody has imported can be given other code in place.
"""

import ast
import copy
import gc
import inspect
import linecache
import random
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import FunctionType

SRC = Path(__file__).resolve().parents[2] / "src" / "attnbook"
ROOMS = (
    "core", "ops", "spines", "kernels", "torch", "parallel", "diagnose", "checks", "layers", "recurrent", "command",
)  # fmt: skip

SWAPPED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
TWIN = {}
for pair in ("min max", "maximum minimum", "any all", "zeros_like ones_like", "sum mean", "floor ceil", "argmin argmax",
             "add subtract", "multiply divide", "exp exp2", "zeros ones"):  # fmt: skip
    a, b = pair.split()
    TWIN |= {a: b, b: a}


@dataclass(frozen=True)
class Mutant:
    """In ``function`` of ``file``, the bytes from ``start`` to ``stop``, ``before``, are ``after`` instead."""

    file: str
    function: str
    line: int
    last: int
    start: int
    stop: int
    before: str
    after: str
    kind: str

    @property
    def room(self):
        return room_of(self.file)

    def __str__(self):
        return f"{self.file}:{self.line} {self.function}: {self.before} -> {self.after}"

    @cached_property
    def key(self):
        return f"{self.file}:{self.start}:{self.stop}:{self.after}"

    def source(self):
        """The file with it, line by line where they were."""
        right = (SRC / self.file).read_bytes()
        end = ")" * self.after.endswith(")")
        lines = right[self.start : self.stop].count(b"\n") - self.after.count("\n")
        after = self.after.removesuffix(end) + "\n" * max(lines, 0) + end
        return right[: self.start] + after.encode() + right[self.stop :]

    def row(self):
        return asdict(self)


def room_of(file):
    first, _, rest = file.partition("/")
    if not rest:
        return "command" if file in ("__main__.py", "loading.py") else "core"
    return "kernels" if file.startswith("spines/fused") else first


def changes(node, parent):
    """(kind, another node or text) for every change of this one node."""

    def but(**fields):
        twin = copy.copy(node)
        for name, value in fields.items():
            setattr(twin, name, value)
        return twin

    match node:
        case ast.BinOp(left, op, right):
            if type(op) in SWAPPED:
                yield "operator", but(op=SWAPPED[type(op)]())
            if isinstance(op, ast.MatMult):
                yield "swapped", but(left=right, right=left)
            else:
                yield "term", left
                yield "term", right
        case ast.UnaryOp(ast.USub() | ast.Not() | ast.Invert(), operand):
            yield "sign", operand
        case ast.Compare(_, [op], _):
            yield "edge", but(ops=[SWAPPED[type(op)]()])
        case ast.BoolOp(op, values):
            yield "boolean", but(op=SWAPPED[type(op)]())
            for i in range(len(values)):
                rest = values[:i] + values[i + 1 :]
                yield "term", rest[0] if len(rest) == 1 else but(values=rest)
        case ast.Constant(bool(value)):
            yield "boolean", ast.Constant(not value)
        case ast.Constant(int(value)):
            kind = "axis" if isinstance(parent, ast.keyword) and parent.arg in ("axis", "axes") else "constant"
            yield kind, ast.Constant(value + 1)
            yield kind, ast.Constant(value - 1)
        case ast.Constant(float(value)):
            yield "constant", ast.Constant(2 * value + 1)
        case ast.IfExp(test, body, orelse):
            yield "branch", body
            yield "branch", orelse
        case ast.If(test) | ast.While(test):
            yield "branch", (test, ast.Constant(False))
            if isinstance(node, ast.If):
                yield "branch", (test, ast.Constant(True))
        case ast.Expr(ast.Call()):
            yield "statement", "pass"
        case ast.AugAssign(target, op, value):
            yield "statement", "pass"
            yield "operator", ast.Assign([target], value, lineno=0)
        case ast.Assign([ast.Subscript() | ast.Attribute()]):
            yield "statement", "pass"
        case ast.Attribute(value, "mT" | "T"):
            yield "transpose", value
        case ast.Call(function, args, keywords):
            name = getattr(function, "attr", getattr(function, "id", ""))
            if len(args) == 1 and not keywords and not isinstance(args[0], ast.Starred | ast.GeneratorExp):
                yield "call", args[0]
            if len(args) > 1 and not any(isinstance(a, ast.Starred) for a in args):
                for i in range(len(args) - 1):
                    yield "swapped", but(args=[*args[:i], args[i + 1], args[i], *args[i + 2 :]])
            for keyword in keywords:
                if keyword.arg:
                    yield "keyword", but(keywords=[k for k in keywords if k is not keyword])
            if name in TWIN:
                other = copy.copy(function)
                setattr(other, "attr" if hasattr(function, "attr") else "id", TWIN[name])
                yield "twin", but(func=other)


def _nodes(tree):
    """Each node of a function's body with its parent and the name of the outermost function: not what is only said."""

    def walk(node, parent, function):
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert | ast.AnnAssign | ast.Import | ast.ImportFrom):
            return
        yield node, parent, function
        children = ast.iter_child_nodes(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            children = node.body
        elif isinstance(node, ast.Lambda):
            children = [node.body]
        for child in children:
            yield from walk(child, node, function)

    def outer(body, prefix):
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from outer(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef):
                for child in node.body:
                    yield from walk(child, node, prefix + node.name)

    yield from outer(tree.body, "")


def of_file(path):
    """Every mutant of a file."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    file = path.relative_to(SRC).as_posix()
    for node, parent, function in _nodes(ast.parse(source)):
        for kind, other in changes(node, parent):
            at, other = other if isinstance(other, tuple) else (node, other)
            text = other if isinstance(other, str) else ast.unparse(ast.fix_missing_locations(other))
            if isinstance(at, ast.expr):
                text = f"({text})"
            start, stop = starts[at.lineno - 1] + at.col_offset, starts[at.end_lineno - 1] + at.end_col_offset
            before = " ".join(source[start:stop].decode().split())
            yield Mutant(file, function, at.lineno, at.end_lineno, start, stop, before, text, kind)


def differs(mutant):
    """Whether it is Python, and not the same bytecode."""
    path = SRC / mutant.file
    try:
        wrong = compile(mutant.source(), str(path), "exec")
    except (SyntaxError, ValueError):
        return False
    right = compile(path.read_bytes(), str(path), "exec")
    return said(code_of(wrong, mutant.function)) != said(code_of(right, mutant.function))


def said(code):
    """What a code does, without the places of its lines."""
    consts = tuple(said(c) if inspect.iscode(c) else (type(c), repr(c)) for c in code.co_consts)
    return code.co_code, consts, code.co_names, code.co_varnames, code.co_freevars


def code_of(of, qualname):
    """The code of the function of that name, somewhere in compiled code: the last, where a name is defined twice."""
    found = None
    for each in of.co_consts:
        if inspect.iscode(each):
            found = each if each.co_qualname == qualname else code_of(each, qualname) or found
    return found


def drawn(room, n, seed):
    """n mutants of a room, as many of each kind as there are, no two of them on one line; and of how many."""
    files = [p for p in sorted(SRC.rglob("*.py")) if room_of(p.relative_to(SRC).as_posix()) == room]
    left = [m for path in files for m in of_file(path)]
    random.Random(f"{seed} {room}").shuffle(left)
    taken, kinds, of = {}, Counter(m.kind for m in left), len(left)
    count = dict.fromkeys(kinds, 0)
    while len(taken) < n and left:
        kind = min(count, key=count.get)
        one = next((m for m in left if m.kind == kind and (m.file, m.line) not in taken), None)
        if one is None:
            del count[kind]
            if not count:
                break
            continue
        left.remove(one)
        if differs(one):
            taken[one.file, one.line] = one
            count[kind] += 1
    return list(taken.values()), of


def planted(table):
    """The rows of a table of test_mutations, {file: [(function, mistake, right, wrong, *tests)]}, as mutants."""
    for file, rows in table.items():
        source = (SRC / file).read_bytes()
        tree = ast.parse(source)
        lines = source.splitlines(keepends=True)
        for function, mistake, right, wrong, *_ in rows:
            node = tree
            for name in function.split("."):
                node = [n for n in node.body if getattr(n, "name", None) == name][-1]
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
            start = source.index(right.encode(), sum(map(len, lines[:first])))
            line = source[:start].count(b"\n") + 1
            last = line + right.rstrip("\n").count("\n")
            stop = start + len(right.encode())
            yield Mutant(file, function, line, last, start, stop, right, wrong, f"planted: {mistake}")


def functions():
    """Every function of the package that lives, by file and name."""
    table = {}
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename.startswith(str(SRC)):
            file = Path(each.__code__.co_filename).relative_to(SRC).as_posix()
            table.setdefault((file, each.__code__.co_qualname), []).append(each)
    return table


def plant(mutant, living):
    """Give the function its other code, wherever it lives; False where it lives nowhere or cannot take it."""
    source, path = mutant.source(), str(SRC / mutant.file)
    code = code_of(compile(source, path, "exec"), mutant.function)
    if (interpreter := sys.modules.get("triton.runtime.interpreter")) is not None:  # which reads the lines again
        lines = source.decode().splitlines(keepends=True)
        linecache.cache[path] = len(source), None, lines, path
        interpreter.InterpretedFunction.rewritten_fn.clear()
    found = living.get((mutant.file, mutant.function), [])
    try:
        for function in found:
            function.__code__ = code
    except ValueError:  # of another closure
        return False
    return bool(found)
