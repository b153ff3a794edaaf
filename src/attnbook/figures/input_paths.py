"""The three paths on which the gradient of the loss comes back to the input, and how they part in cross-attention."""

import numpy as np

from attnbook.attention import attention, attention_vjp
from attnbook.figures.interactive import Control, State, interactive
from attnbook.figures.pieces import CELL_H, CELL_W, added, arrow, cells, frame, shown
from attnbook.figures.svg import PALETTE, document, text
from attnbook.linear import linear_vjp

COLOURS = {"Q": "blue", "K": "green", "V": "purple"}
CENTRES = {"Q": 54, "K": 178, "V": 302}  # of the paths, from left to right
WIDTH, BOX_W, BOX_H, ROOM = 358, 50, 26, 42
dO_AT, dS_AT, BOXES, TABLES = (240, 15), (116, 73), 131, 186  # where boxes and tables stand
TOKEN, COLUMN = 1, 0  # the entry that is added up in words


def input_paths(X, memory, dO, *, self_weights, cross_weights, alt):
    """Draw the way from dO back to the input, with each path's matrix and their sum; choose a path, and self or cross.

    Parameters
    ----------
    X, memory, dO : array (n_q, d_model), (n_k, d_mem), (n_q, d_v)
        In self-attention queries, keys and values are made from X; in cross-attention keys and values from the memory.
    self_weights, cross_weights : three arrays
        W_Q, W_K and W_V, of as many rows as what they are multiplied with has columns.
    alt : str
        What the picture shows and what can be changed, in a sentence or two.

    Returns
    -------
    Figure

    See :doc:`/chapters/04_single_head`.
    """
    kinds = {
        "self": _gradients(X, X, dO, self_weights),
        "cross": _gradients(X, memory, dO, cross_weights),
    }
    tallest = max(len(T) for paths in kinds.values() for T in paths.values())
    sums = TABLES + tallest * CELL_H + ROOM
    body = _flow() + "".join(_tables(kind, paths, sums) for kind, paths in kinds.items())
    controls = [
        Control("Attention", tuple(kinds), "radio"),
        Control("Path", ("all", *COLOURS), "radio"),
    ]
    states = [_state(kind, paths, chosen) for kind, paths in kinds.items() for chosen in ("", *COLOURS)]
    return interactive(document(WIDTH, sums + tallest * CELL_H + 4, body), controls, states, alt=alt)


def _gradients(X, memory, dO, weights):
    """What each path brings to its input."""
    inputs = dict(zip("QKV", (X, memory, memory), strict=True))
    made = [inputs[name] @ W for name, W in zip("QKV", weights, strict=True)]
    grads = attention_vjp(dO, attention(*made)[1])[:3]
    return {name: linear_vjp(g, inputs[name], W).dX for name, g, W in zip("QKV", grads, weights, strict=True)}


def _sums(kind, paths):
    """Each sum: its name, what adds up in it, and where it stands."""
    if kind == "self":
        return [("dX", sum(paths.values()), "QKV", CENTRES["K"])]
    between = (CENTRES["K"] + CENTRES["V"]) / 2
    return [("dX", paths["Q"], "Q", CENTRES["Q"]), ("dX_mem", paths["K"] + paths["V"], "KV", between)]


def _flow():
    """From dO to dQ, dK and dV. The parts are "path Q", "path K", "path V", and "scores" for what two of them share."""
    into = {
        "Q": (dS_AT, "K", (-14, -2, "end")),
        "K": (dS_AT, "Q", (14, -2, "start")),
        "V": (dO_AT, "Pᵀ", (12, -2, "start")),
    }
    body = [_box(dO_AT, "dO", "grey")]
    shared = _line(dO_AT, dS_AT) + text(160, 37, "Vᵀ, softmax", anchor="end", size=12)
    body.append(f'<g data-part="scores">{shared}{_box(dS_AT, "dS", "orange")}</g>')
    for name, (start, label, (right, down, anchor)) in into.items():
        end = (CENTRES[name], BOXES)
        x, y = (start[0] + end[0]) / 2 + right, (start[1] + end[1]) / 2 + down
        below = arrow([(end[0], BOXES + BOX_H / 2), (end[0], TABLES - 18)])
        body.append(
            f'<g data-part="path {name}">{_line(start, end)}{below}<g data-choose="Path:{_place(name)}">'
            f"{_box(end, f'd{name}', COLOURS[name])}</g>{text(x, y, label, anchor=anchor, size=12)}</g>"
        )
    return "".join(body)


def _tables(kind, paths, sums):
    """The matrices of one kind of attention. The parts are all of it ("self"), each path ("self Q") and its cells."""
    body = []
    for total, T, names, centre in _sums(kind, paths):
        for name in names:
            x, part = CENTRES[name], f"{kind} {name}"
            start, end = (x, TABLES + len(T) * CELL_H + 2), (centre + 0.2 * (x - centre), sums - 18)
            title = f"d{name} W_{name}ᵀ"
            body.append(
                f'<g data-part="{part}"><g data-choose="Path:{_place(name)}">'
                f"{_table(part, title, paths[name], x, TABLES, COLOURS[name])}</g>{arrow([start, end])}</g>"
            )
        part = f"{kind} {total}"
        body.append(f'<g data-part="{part}">{_table(part, total, T, centre, sums, "orange")}</g>')
    signs = [(CENTRES["Q"] + CENTRES["K"]) / 2] * (kind == "self") + [(CENTRES["K"] + CENTRES["V"]) / 2]
    body += [text(x, TABLES + 2 * CELL_H, "+", size=16) for x in signs]
    hidden = ' display="none"' if kind == "cross" else ""
    return f'<g data-part="{kind}"{hidden}>{"".join(body)}</g>'


def _table(part, title, T, centre, y, colour):
    n, m = T.shape
    x = centre - m * CELL_W / 2
    return (
        text(centre, y - 9, f"{title}  {n}×{m}", weight="bold")
        + cells(part, T, x, y)
        + frame(x, y, m * CELL_W, n * CELL_H, "", colour)
    )


def _place(name):
    """The position of a path among the radio buttons."""
    return "QKV".index(name) + 1


def _box(centre, name, colour):
    x, y = centre[0] - BOX_W / 2, centre[1] - BOX_H / 2
    look = f'fill="{PALETTE[colour]}" fill-opacity="0.14"'
    return frame(x, y, BOX_W, BOX_H, look, colour) + text(*centre, name, weight="bold")


def _line(start, end):
    """An arrow from the lower edge of one box to the upper edge of another."""
    return arrow([(start[0], start[1] + BOX_H / 2), (end[0], end[1] - BOX_H / 2)])


def _state(kind, paths, chosen):
    parts = {"self": {"display": "none"}, "cross": {"display": "inline"}} if kind == "cross" else {}
    for name in COLOURS:
        if chosen and name != chosen:
            parts[f"path {name}"] = parts[f"{kind} {name}"] = {"opacity": 0.3}
    if chosen == "V":
        parts["scores"] = {"opacity": 0.3}
    for total, _, names, _ in _sums(kind, paths):
        if chosen and chosen not in names:
            parts[f"{kind} {total}"] = {"opacity": 0.3}
    if not chosen:
        total, _, names, _ = _sums(kind, paths)[-1]
        for name in names:
            parts[f"{kind} {name} {TOKEN} {COLUMN}"] = {"fill": PALETTE[COLOURS[name]], "fill-opacity": 0.3}
        parts[f"{kind} {total} {TOKEN} {COLUMN}"] = {"fill": PALETTE["orange"], "fill-opacity": 0.3}
    return State(parts, _say(kind, paths, chosen))


def _say(kind, paths, chosen):
    total, whole, names, _ = next(s for s in reversed(_sums(kind, paths)) if not chosen or chosen in s[2])
    terms = added([paths[name][TOKEN, COLUMN] for name in names])
    entry = f"Token {TOKEN}, column {COLUMN}: {terms} = {shown(whole[TOKEN, COLUMN])}."
    if not chosen and kind == "self":
        return f"X was used three times, so three gradients come back to it, and they add. {entry}"
    if not chosen:
        return (
            "X made only the queries; the memory made the keys and the values. So the three paths do not meet: the "
            f"first is all of dX, and the other two add up in the memory. {entry}"
        )
    token = "token" if total == "dX" else "token of the memory"
    meaning = {
        "Q": f"a {token} asks for something else. Row i needs only row i of dS: the scores of its own question.",
        "K": f"a {token} is found more easily. Row j needs column j of dS: its scores with all queries.",
        "V": f"a {token} hands over something else. Row j needs column j of P: the weight that each query gave it. No "
        "softmax lies on this way.",
    }
    others = {"QKV": "the other two", "KV": "the other one"}.get(names)
    lost = np.max(np.abs(whole - paths[chosen])) / np.max(np.abs(whole))
    rest = (
        f"Without {others}, {total} would be wrong by up to {lost:.0%} of its largest entry."
        if others
        else "Nothing else here was made from X, so this is all of dX."
    )
    return f"Through {chosen}: how the loss changes when {meaning[chosen]} {rest}"
