"""The answer on one page: every gradient of the Transformer's three attention units, written once as code.

``FORWARD`` and ``BACKWARD`` are Python expressions. The page prints each in every notation, by walking its syntax tree;
tests/book/test_answer.py runs the same expressions. So what the page says and what is checked cannot drift apart.

All heads are computed at once, on an axis of their own: arrays are (batch, heads, tokens, width), with 1 head for what
the heads share, and a weight is (heads, rows, columns).
"""

import ast
from dataclasses import dataclass, field
from typing import NamedTuple

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective


class Row(NamedTuple):
    """One formula: the name of what it computes, its expression, its shape, the labels of where chapters derive it."""

    name: str
    expression: str
    shape: tuple = ()
    labels: tuple = ()


# X_q is what the queries are made from, X_k and X_v what the keys and values are made from.
FORWARD = (
    Row("Q", "X_q @ W_Q + b_Q"),
    Row("K", "X_k @ W_K + b_K"),
    Row("V", "X_v @ W_V + b_V"),
    Row("S", "scale * Q @ T(K)"),
    Row("P", "softmax(S)"),
    Row("O", "P @ V"),
    Row("C", "concat(O)"),
    Row("Y", "C @ W_O + b_O"),
)
MASKED_SCORES = Row("S", "mask(scale * Q @ T(K))")

BACKWARD = (
    Row("dW_O", "T(C) @ dY", ("h d_v", "d_out"), ("eq-multi-head-vjp",)),
    Row("db_O", "tokens(dY)", ("d_out",), ("eq-linear-vjp",)),
    Row("dO", "dY @ T(block(W_O))", ("n_q", "d_v"), ("eq-multi-head-vjp",)),
    Row("dV", "T(P) @ dO", ("n_k", "d_v"), ("eq-dV",)),
    Row("dP", "dO @ T(V)", ("n_q", "n_k"), ("eq-dP",)),
    Row("dS", "P * (dP - rowsum(P * dP))", ("n_q", "n_k"), ("eq-dS",)),
    Row("dQ", "scale * dS @ K", ("n_q", "d_k"), ("eq-dQ",)),
    Row("dK", "scale * T(dS) @ Q", ("n_k", "d_k"), ("eq-dK",)),
    Row("dW_Q", "T(X_q) @ dQ", ("d_model", "d_k"), ("eq-dW",)),
    Row("db_Q", "tokens(dQ)", ("d_k",), ("eq-dW",)),
    Row("dW_K", "T(X_k) @ dK", ("d_mem", "d_k"), ("eq-dW",)),
    Row("db_K", "tokens(dK)", ("d_k",), ("eq-db-K",)),
    Row("dW_V", "T(X_v) @ dV", ("d_mem", "d_v"), ("eq-dW",)),
    Row("db_V", "tokens(dV)", ("d_v",), ("eq-dW",)),
)
INTO_X = (Row("dX", "heads(dQ @ T(W_Q) + dK @ T(W_K) + dV @ T(W_V))", ("n_q", "d_model"), ("eq-dX",)),)
INTO_BOTH = (
    Row("dX", "heads(dQ @ T(W_Q))", ("n_q", "d_model"), ("eq-dX-cross",)),
    Row("dmemory", "heads(dK @ T(W_K) + dV @ T(W_V))", ("n_k", "d_mem"), ("eq-dmemory",)),
)
OF_A_ROW = {  # FlashAttention's way to dS, from one number a query
    "dS": (
        Row("D", "rowsum(dO * O)", ("n_q",), ("eq-D",)),
        Row("dS", "P * (dP - D)", ("n_q", "n_k"), ("eq-dS-D",)),
    )
}
_RAW = (  # the answer's way to the input, from one gradient for each of its three raw inputs
    Row("dX_q", "heads(dQ @ T(W_Q))", ("n_q", "d_model"), ("eq-dX-cross",)),
    Row("dX_k", "heads(dK @ T(W_K))", ("n_k", "d_mem"), ("eq-dmemory",)),
    Row("dX_v", "heads(dV @ T(W_V))", ("n_k", "d_mem"), ("eq-dmemory",)),
)
OF_RAW_INPUTS = {
    "dX": (*_RAW, Row("dX", "dX_q + dX_k + dX_v", ("n_q", "d_model"), ("eq-dX",))),
    ("cross", "dX"): (*_RAW, Row("dX", "dX_q", ("n_q", "d_model"), ("eq-dX-cross",))),
    ("cross", "dmemory"): (Row("dmemory", "dX_k + dX_v", ("n_k", "d_mem"), ("eq-dmemory",)),),
}
IN_ONE = (  # what the answer to the question prints; A are the scores of all heads side by side, select picks a head
    Row("dW_K", "scale * T(X_k) @ select @ T(dA) @ X_q @ W_Q"),
    Row("dW_Q", "scale * T(X_q) @ dA @ T(select) @ X_k @ W_K"),
    Row("dW_V", "T(P @ X_v) @ dY @ T(block(W_O))"),
    Row("dW_O", "T(C) @ dY"),
)


class Unit(NamedTuple):
    """One of the three units: its formulas, and which of the book's letters its inputs have."""

    forward: tuple
    backward: tuple
    inputs: dict
    sizes: dict


_SELF = {"X_q": "X", "X_k": "X", "X_v": "X"}
_ONE_LENGTH = {"n_q": "n", "n_k": "n", "d_mem": "d_model"}
UNITS = {
    "self": Unit(FORWARD, BACKWARD + INTO_X, _SELF, _ONE_LENGTH),
    "masked": Unit(
        tuple(MASKED_SCORES if row.name == "S" else row for row in FORWARD),
        tuple(
            row._replace(labels=("eq-dS", "eq-softmax-masked")) if row.name == "dS" else row
            for row in BACKWARD + INTO_X
        ),
        _SELF,
        _ONE_LENGTH,
    ),
    "cross": Unit(
        FORWARD,
        tuple(
            row._replace(labels=("eq-dX-cross",)) if row.name.startswith("dW") and "eq-dW" in row.labels else row
            for row in BACKWARD
        )
        + INTO_BOTH,
        {"X_q": "X", "X_k": "memory", "X_v": "memory"},
        {},
    ),
}


# --- notations ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Notation:
    """How one source writes our names. A value that starts with "=" is an expression, printed in its turn.

    ``letters`` are theirs by our names, ``gradient`` is the gradient of the letter @, ``inputs`` a sentence for a unit,
    and ``rows`` the formulas that the source writes in a way of its own.
    """

    title: str
    note: str
    letters: dict
    gradient: str
    inputs: dict = field(default_factory=dict)
    sizes: dict = field(default_factory=dict)
    rows: dict = field(default_factory=dict)
    over_heads: str = r"\sum_r"
    concat: str = r"\operatorname{Concat}(O_0, \dots, O_{h-1})"

    def letter(self, name, unit):
        """This notation's letter for one of our names."""
        name = UNITS[unit].inputs.get(name, name) if name not in self.letters else name
        if name in self.letters:
            return self.letters[name]
        if name.startswith("d") and name != "d":
            return self.gradient_of(self.letter(name[1:], unit), unit)
        raise KeyError(name)

    def gradient_of(self, letter, unit):
        """∂ℓ/∂letter, or dletter."""
        inner = latex(parse(letter[1:]), self, unit)[0] if letter.startswith("=") else letter
        inner = f"({inner})" if letter.startswith("=") and "frac" in self.gradient else inner
        return self.gradient.replace("@", inner)

    def backward(self, unit):
        """The rows of a unit, in this notation's way where it has one of its own."""
        return tuple(
            r for row in UNITS[unit].backward for r in self.rows.get((unit, row.name), self.rows.get(row.name, (row,)))
        )

    def shape(self, row, unit):
        """The shape of a row, in words: (n_q, d_k)."""
        sizes = [UNITS[unit].sizes.get(size, size) for size in row.shape]
        sizes = [self.sizes.get((unit, size), self.sizes.get(size, size)) for size in sizes]
        return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


_OURS = {
    **{name: f"{name}_r" for name in "QKVSPOD"},
    **{f"{kind}_{name}": f"{kind}^{name}_r" for kind in "Wb" for name in "QKV"},
    "W_O": "W_O", "b_O": "b_O", "block_W_O": "W^O_r",
    "X": "X", "memory": r"X_{\mathrm{mem}}", "C": "C", "Y": "Y", "scale": r"\text{scale}",
}  # fmt: skip
_ONE_HEAD = {
    **_OURS,
    **{name: name for name in "QKVSPOD"},
    **{f"{kind}_{name}": f"{kind}^{name}" for kind in "Wb" for name in "QKVO"},
    "block_W_O": r"W^O_{\mathrm{head}}",
}

NOTATIONS = {
    "ours": Notation(
        "This book",
        "$r$ is a head. $Q_r$, $K_r$, $V_r$ are *projected*.",
        _OURS,
        "d@",
    ),
    "question": Notation(
        "The question",
        "$Q$, $K$, $V$ are *projected*, $Q = xW^Q$, of one head. The question has no letter for $S$, $P$, $C$, $Y$, "
        "$b$, the encoder's output and the loss; these are ours.",
        {**_ONE_HEAD, "X": "x", "memory": r"x_{\mathrm{enc}}", "scale": r"\tfrac{1}{\sqrt{d_k}}"},
        r"\frac{\partial \ell}{\partial @}",
        over_heads=r"\sum_{\mathrm{heads}}",
    ),
    "answer": Notation(
        "Its answer",
        "$Q$, $K$, $V$ are the *raw inputs*; $X$ is the *output*, $f$ the loss, $A_h$ the scores of head $h$ and $S_h$ "
        r"its weights: $\frac{\partial f}{\partial A_h} = \frac{\partial f}{\partial A}\mathbb P_h^\top$. The answer "
        "has no biases; with them, read $QW^Q_h + b^Q_h$ for $QW^Q_h$.",
        {
            "X_q": "Q", "X_k": "K", "X_v": "V",
            "Q": "=X_q @ W_Q", "K": "=X_k @ W_K", "V": "=X_v @ W_V",
            **{f"{kind}_{name}": f"{kind}^{name}_h" for kind in "Wb" for name in "QKV"},
            "W_O": "W^O", "b_O": "b^O", "block_W_O": "W^O_h",
            "S": "A_h", "P": "S_h", "O": r"\mathrm{head}_h", "C": "=concat(O)", "Y": "X",
            "A": "A", "select": r"\mathbb P_h",
            "X": "x", "memory": r"x_{\mathrm{enc}}", "scale": r"\gamma",
        },
        r"\frac{\partial f}{\partial @}",
        inputs={
            "self": "Here $Q = K = V = x$.",
            "masked": "Here $Q = K = V = x$.",
            "cross": r"Here $Q = x$, and $K = V = x_{\mathrm{enc}}$ is the encoder's output.",
        },
        rows=OF_RAW_INPUTS,
        over_heads=r"\sum_{h=1}^{H}",
        concat=r"\mathrm{Concat}(\mathrm{head}_1, \dots, \mathrm{head}_H)",
        sizes={"h d_v": "H d_v"},
    ),
    "flash": Notation(
        "FlashAttention",
        r"One head; $Q$, $K$, $V$ are *projected*. $D$ is one number a query. The papers stop at $dQ$, $dK$, $dV$: the "
        r"letters outside of the head are ours. $\tau$ is the first paper's scale.",
        {**_ONE_HEAD, "scale": r"\tau"},
        "d@",
        rows=OF_A_ROW,
        over_heads=r"\sum_{\mathrm{heads}}",
        sizes={"n": "N", "d_k": "d", "d_v": "d", "h d_v": "h d"},
    ),
}  # fmt: skip

TORCH_NOTE = (
    "`torch.nn.MultiheadAttention(E, h)`, one sequence, head r, d = E / h. `q`, `k`, `v` are *projected*; `query`, "
    "`key`, `value` are the raw inputs. Weights are stored *transposed*: `q_r`, `k_r`, `v_r` slice the rows r·d to "
    "(r + 1)·d of each third, and `o_r` those columns. `scores`, `weights`, `head` are our $S_r$, $P_r$, "
    "$O_r$, and `heads` is our $C$. "
)
TORCH_INPUTS = "Here `key` and `value` are `query` itself. "
TORCH_MEMORY = "Here `key` and `value` are `memory`, of width E too. "
TORCH_MASK = "In `attn_mask` True = may *not* attend. "
TORCH = {  # our name: theirs, as an expression
    "X_q": "query", "X_k": "key", "X_v": "value", "X": "query", "memory": "memory",
    **{f"W_{n.upper()}": f"T(in_proj_weight[{n}_r])" for n in "qkv"},
    **{f"b_{n.upper()}": f"in_proj_bias[{n}_r]" for n in "qkv"},
    **{f"dW_{n.upper()}": f"T(in_proj_weight.grad[{n}_r])" for n in "qkv"},
    **{f"db_{n.upper()}": f"in_proj_bias.grad[{n}_r]" for n in "qkv"},
    "W_O": "T(out_proj.weight)", "b_O": "out_proj.bias", "block_W_O": "T(out_proj.weight[:, o_r])",
    "dW_O": "T(out_proj.weight.grad)", "db_O": "out_proj.bias.grad", "dX": "query.grad", "dmemory": "memory.grad",
    "Q": "q", "K": "k", "V": "v", "S": "scores", "P": "weights", "O": "head", "C": "heads", "Y": "output",
    "scale": "scale",
    **{f"d{ours}": f"d_{theirs}" for ours, theirs in
       zip("QKVSPOY", ("q", "k", "v", "scores", "weights", "head", "output"), strict=True)},
}  # fmt: skip
TORCH_SIZES = {"n": "L", "n_q": "L", "n_k": "S", "d_k": "d", "d_v": "d", "h d_v": "E", "d_out": "E"} | {
    "d_model": "E",
    "d_mem": "E",
}


# --- from code to what stands on the page -------------------------------------------------------------------------

SUM, PRODUCT, FRACTION, ATOM = range(4)  # what binds tighter is larger


def parse(expression):
    """The syntax tree of an expression."""
    return ast.parse(expression, mode="eval").body


def latex(node, notation, unit):
    """LaTeX for a syntax tree in a notation, and how tightly it binds."""
    if isinstance(node, ast.Name):
        letter = notation.letter(node.id, unit)
        if letter.startswith("="):
            return latex(parse(letter[1:]), notation, unit)
        return letter, FRACTION if "frac" in letter else ATOM
    if isinstance(node, ast.BinOp):
        return _operation(node, notation, unit)
    name, (argument,) = node.func.id, node.args
    if name == "block":
        return notation.letter(f"block_{argument.id}", unit), ATOM
    if name == "concat":
        return notation.concat, ATOM
    text, binds = latex(argument, notation, unit)
    if name == "T":
        wrapped = binds < ATOM or "^" in text
        text = rf"\bigl({text}\bigr)" if binds == FRACTION else f"({text})" if wrapped else text
        return rf"{text}^\top", ATOM
    if name == "tokens":
        return rf"\mathbf 1^\top {_within(text, binds, PRODUCT)}", PRODUCT
    if name == "heads":
        return rf"{notation.over_heads} {_within(text, binds, PRODUCT)}", PRODUCT
    return rf"\operatorname{{{name}}}({text})", ATOM


def _operation(node, notation, unit):
    (left, of_left), (right, of_right) = (latex(side, notation, unit) for side in (node.left, node.right))
    if isinstance(node.op, ast.Add):
        return f"{left} + {right}", SUM
    if isinstance(node.op, ast.Sub):
        return f"{left} - {_within(right, of_right, PRODUCT)}", SUM
    left, right = _within(left, of_left, PRODUCT), _within(right, of_right, PRODUCT)
    by_entry = isinstance(node.op, ast.Mult) and not _is_scale(node.left)
    return (rf"{left} \circ {right}" if by_entry else rf"{left}\,{right}"), PRODUCT


def _is_call_of(name, node):
    return isinstance(node, ast.Call) and node.func.id == name


def _is_scale(node):
    return isinstance(node, ast.Name) and node.id == "scale"


def _within(text, binds, needed):
    return text if binds >= needed else rf"\bigl({text}\bigr)"


def formula(row, notation, unit):
    """``name = expression`` in LaTeX."""
    name = notation.letter(row.name, unit)
    if name.startswith("="):
        name = latex(parse(name[1:]), notation, unit)[0]
    zero = " = 0" if row.name == "db_K" else ""
    return f"{name} = {latex(parse(row.expression), notation, unit)[0]}{zero}"


def torch_lines(row):
    """The same as lines of torch, which run as they stand. What .grad collects is one line for each path."""
    target, value = parse(TORCH[row.name]), parse(row.expression)
    collects = ".grad" in TORCH[row.name]
    transposed = isinstance(target, ast.Call)
    for term in _terms(value.args[0]) if collects and _is_call_of("heads", value) else (value,):
        term = _Torch().visit(term)
        term = ast.unparse(_Methods().visit(_transposed(term) if transposed else term))
        yield f"{ast.unparse(target.args[0] if transposed else target)} {'+=' if collects else '='} {term}"


def _terms(node):
    """The summands of a sum."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (*_terms(node.left), *_terms(node.right))
    return (node,)


class _Torch(ast.NodeTransformer):
    """Our names by torch's."""

    def visit_Name(self, node):
        return parse(TORCH.get(node.id, node.id))

    def visit_Call(self, node):
        if node.func.id == "block":
            return parse(TORCH[f"block_{node.args[0].id}"])
        (argument,) = (self.visit(argument) for argument in node.args)
        if node.func.id == "T":
            return _transposed(argument)
        return ast.Call(node.func, [argument], [])


def _transposed(node):
    """The transpose of a tree: of a product, the transposes in the other order; of a transpose, what it is of."""
    if isinstance(node, ast.Call) and node.func.id == "T":
        return node.args[0]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return ast.BinOp(_transposed(node.right), node.op, _transposed(node.left))
    return ast.Call(ast.Name("T"), [node], [])


METHODS = {
    "T": "{}.mT",
    "rowsum": "{}.sum(-1, True)",
    "tokens": "{}.sum(0)",
    "heads": "{}",
    "softmax": "{}.softmax(-1)",
    "mask": "{}.masked_fill(attn_mask, -inf)",
}


class _Methods(ast.NodeTransformer):
    """T(x) as x.mT, and so on."""

    def visit_Call(self, node):
        (argument,) = (self.visit(argument) for argument in node.args)
        return parse(METHODS[node.func.id].format(f"({ast.unparse(argument)})"))


# --- the page -----------------------------------------------------------------------------------------------------


class Answer(SphinxDirective):
    """``{answer} self``, ``masked`` or ``cross``: the formulas of a unit in every notation, one tab each."""

    required_arguments = 1

    def run(self):
        unit = self.arguments[0]
        self.env.note_dependency(__file__)
        lines = [":::::{tab-set}", ":sync-group: notation", ""]
        for key, notation in NOTATIONS.items():
            lines += _tab(notation.title, key)
            lines += [
                f"{notation.note} {notation.inputs.get(unit, '')}",
                "",
                self._forward(unit, notation),
                "",
                "| From | Gradient | Shape |",
                "|---|---|---|",
            ]
            for row in notation.backward(unit):
                lines.append(f"| {_labels(row)} | ${formula(row, notation, unit)}$ | {notation.shape(row, unit)} |")
            lines += ["::::", ""]
        lines += [*_tab("torch", "torch"), *_torch_tab(unit), "::::", "", ":::::"]
        box = nodes.container(classes=["answer"])
        self.state.nested_parse(StringList(lines, "answer"), self.content_offset, box)
        return [box]

    def _forward(self, unit, notation):
        shown = (row for row in UNITS[unit].forward if not notation.letter(row.name, unit).startswith("="))
        return "Forward: " + ", ".join(f"${formula(row, notation, unit)}$" for row in shown) + "."


def _tab(title, key):
    return [f"::::{{tab-item}} {title}", f":sync: {key}", ""]


def _torch_tab(unit):
    yield TORCH_NOTE + (TORCH_MEMORY if unit == "cross" else TORCH_INPUTS) + (TORCH_MASK if unit == "masked" else "")
    yield ""
    yield "| From | Gradient | Shape |"
    yield "|---|---|---|"
    for row in UNITS[unit].backward:
        for line in torch_lines(row):
            yield f"| {_labels(row)} | `{line}` | {torch_shape(row, unit)} |"


def torch_shape(row, unit):
    """The shape of what a line of torch computes."""
    stored_transposed = TORCH[row.name].startswith("T(")
    sizes = [TORCH_SIZES[UNITS[unit].sizes.get(size, size)] for size in row.shape]
    sizes = sizes[::-1] if stored_transposed else sizes
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def _labels(row):
    return " ".join(f"{{eq}}`{label}`" for label in row.labels)


class AnswerInOne(SphinxDirective):
    """``{answer-in-one}``: the four formulas that the answer to the question prints, from the code that is checked."""

    def run(self):
        lines = [f"- ${formula(row, NOTATIONS['answer'], 'self')}$" for row in IN_ONE]
        box = nodes.container(classes=["answer"])
        self.state.nested_parse(StringList(lines, "answer-in-one"), self.content_offset, box)
        return [box]


def set_closed_tabs_aside(app, doctree, docname):
    """Closed tabs are four fifths of the page: with a script, they are no part of it until tabs.js puts them there."""
    for tabs in doctree.findall(lambda node: "sd-tab-set" in getattr(node, "attributes", {}).get("classes", ())):
        if "answer" in tabs.parent["classes"]:
            _open, *closed = (node for node in tabs if "sd-tab-content" in node.get("classes", ()))
            for tab in closed:
                tab.insert(0, nodes.raw("", "<noscript>", format="html"))
                tab.append(nodes.raw("", "</noscript>", format="html"))


def setup(app):
    app.add_directive("answer", Answer)
    app.add_directive("answer-in-one", AnswerInOne)
    app.connect("doctree-resolved", set_closed_tabs_aside)
    return {"parallel_read_safe": True}
