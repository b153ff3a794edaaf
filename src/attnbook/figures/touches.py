"""What touches what in one head: the terms of each entry of dS, and all that changes with one query, key or value."""

import numpy as np

from attnbook.figures.head import Head
from attnbook.figures.interactive import Control, State, interactive
from attnbook.figures.pieces import TIMES, factor, shown
from attnbook.figures.svg import PALETTE

LEGEND = (("blue", None, "used"), ("purple", "", "moves"), ("orange", None, "made, or changes with it"))
# What can move, whose row of which table that is, and why it changes what it changes.
MOVES = {
    "query": (
        "Q",
        "A query has a row of its own in every table that has rows for queries. Only dK and dV, which collect from all "
        "queries, change as a whole.",
    ),
    "key": (
        "K",
        "The keys of a row compete. One score changes all weights of its row, and this in every row: all that is made "
        "from P changes. dP is made from dO and V alone.",
    ),
    "value": (
        "V",
        "Scores and weights do not know the values. But D is the mean of a row of dP: a better value lifts it, "
        "and the other keys fall behind. So all of dS changes. dV is made from P and dO alone.",
    ),
    "dO": (
        "dO",
        "The forward pass stays, but for the loss. On the way back one row of dO reaches its own query, and every key "
        "and value.",
    ),
}


def touches(Q, K, V, dO, *, alt):
    """Draw one head with all its numbers; choose an entry of dS, and what is shown of it.

    Either its terms, or what changes when its query, its key, its value or its row of dO moves. What changes is found
    by moving it and computing everything again.

    Parameters
    ----------
    Q, K, V, dO : array (n_q, d_k), (n_k, d_k), (n_k, d_v), (n_q, d_v)
        A tiny example, so that everything can be printed. The scale is 1/√d_k; ``dO`` does not depend on the output.
    alt : str
        What the picture shows and what can be changed, in a sentence or two.

    Returns
    -------
    Figure

    See :doc:`/chapters/04_single_head`.
    """
    head = Head(Q, K, V, dO)
    entries = list(np.ndindex(head.tables["dS"].shape))
    controls = [
        Control("Move", ("nothing", *MOVES), "radio"),
        Control("Entry", tuple(f"query {i}, key {j}" for i, j in entries)),
    ]
    states = [_terms(head, i, j) for i, j in entries]
    for name, why in MOVES.values():
        states += [_moved(head, name, j if name in "KV" else i, why) for i, j in entries]
    return interactive(head.draw(LEGEND, _choose(K.shape[0])), controls, states, alt=alt)


def _choose(n_k):
    """Pointing at an entry of dS shows its terms; at a row of an input, what changes when it moves."""
    shows = {"dS": 0} | {name: i for i, (name, _) in enumerate(MOVES.values(), 1)}

    def choose(name, i, j):
        if name not in shows:
            return ""
        entry = {"dS": n_k * i + j, "Q": n_k * i, "dO": n_k * i}.get(name, i)  # K and V: query 0, key i
        return f"Move:{shows[name]}, Entry:{entry}"

    return choose


def _terms(head, i, j):
    P, dP, dS = (head.tables[name][i, j] for name in ("P", "dP", "dS"))
    D = head.tables["D"][i, 0]
    parts = _mark([("P", i, j), ("dP", i, j), ("D", i, 0)], "blue") | _mark([("dS", i, j)], "orange", outlined=True)
    how = "no better and no worse than" if np.isclose(dP, D) else "better than" if dP > D else "worse than"
    return State(
        parts,
        f"Query {i}, key {j}: the weight P is {shown(P)}, its gradient dP is {shown(dP)}, and D, the mean of the row, "
        f"is {shown(D)}. So dS = {shown(P)}{TIMES}({shown(dP)} − {factor(D)}) = {shown(dS)}: this key does {how} the "
        f"mean. The entry goes on into row {i} of dQ, times the key, and into row {j} of dK, times the query.",
    )


def _moved(head, name, row, why):
    inputs = {key: head.tables[key].copy() for key in ("Q", "K", "V", "dO")}
    inputs[name][row] += 0.1 * np.cos(np.arange(1.0, inputs[name].shape[1] + 1))  # along no axis
    moved = head.compute(**inputs)
    changed = {
        key: ~np.isclose(moved[key], T, rtol=1e-9, atol=1e-12) for key, T in head.tables.items() if key not in inputs
    }
    parts = _mark([(name, row, k) for k in range(inputs[name].shape[1])], "purple", outlined=True)
    parts |= _mark([(key, *at) for key, mask in changed.items() for at in np.argwhere(mask)], "orange")
    extents = {}
    for key in ("S", "P", "O", "dP", "D", "dS", "dQ", "dK", "dV"):
        extents.setdefault(_extent(changed[key]), []).append(key)
    said = "; ".join(f"{extent} {_listed(keys)}" for extent, keys in extents.items() if extent)
    still = f" Unchanged: {_listed(extents[''])}." if "" in extents else ""
    return State(parts, f"Row {row} of {name} moves. With it change {said}.{still} {why}")


def _extent(mask):
    """What is marked of a table: nothing (the empty string), one row, one column, or all of it."""
    n, m = mask.shape
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not mask.any():
        return ""
    if len(rows) == 1 < n and mask[rows].all():
        return f"row {rows[0]} of"
    if len(columns) == 1 < m and mask[:, columns].all():
        return f"column {columns[0]} of"
    return "all of" if mask.all() else "some of"


def _listed(names):
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _mark(cells, colour, outlined=False):
    look = {"fill": PALETTE[colour], "fill-opacity": 0.3}
    if outlined:
        look |= {"stroke": PALETTE[colour], "stroke-opacity": 1, "stroke-width": 2.5}
    return {f"{name} {i} {j}": look for name, i, j in cells}
