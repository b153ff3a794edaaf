"""Where there is no name: what the arrays make likely, solved for a step before. Chapter: :doc:`/chapters/08_checking`.

dQ = scale · dS K gives dS back where K has as many independent rows as keys; dK gives it where Q has, dV and O give P.
"""

from itertools import product

import numpy as np

from attnbook.diagnose.causes._infer import along, wrong_entries
from attnbook.diagnose.causes.match import cost, right_in, size
from attnbook.diagnose.steps import Steps, mT

NEAR = 1e-6
"""Of the size of what is compared: what is nearer is taken to be equal."""


def likely(name, where, runs):
    """A sentence on what is wrong before this result, from the simplest case that it can be solved in; or ""."""
    said = [in_common(name, runs), _where(name, where)]
    shapely = all(run.came.values[name].shape == run.right[name].shape for run in where)
    for run in sorted(where, key=cost) if shapely else ():
        Q, K = run.came.inputs[:2]
        plain = Q.shape[:-2] == K.shape[:-2] and not {"cos", "dropout", "softcap", "dL", "sink"} & run.options.keys()
        came = run.came.values[name]
        solvable = plain and Q.size and K.size and np.isfinite(came).all()
        if solvable and (name == "O" or right_in(run, "O")):
            with np.errstate(all="ignore"):
                said.append(_solved(name, run, Steps(*run.came.inputs, **run.options)))
            if said[-1]:
                break
    return "; ".join(filter(None, said))


def _solved(name, run, a):
    came = run.came.values[name]
    if name == "dQ":
        return _of_dS(_back(came / a.scale, a.k), a, run, "dK")
    if name == "dK":
        dS = _back(came / a.scale, a.Q)
        return _of_dS(None if dS is None else mT(dS), a, run, "dQ")
    if name == "dV":
        P = _back(came, a.dO)
        return _of_P(None if P is None else mT(P), a)
    return _of_P(_back(came, a.v), a) if name == "O" else ""


def _back(product, T):
    """X where X T is the product; None where T does not tell it, or where no X gives that product."""
    if T.shape[-2] >= T.shape[-1]:
        return None  # nor where any product has one
    X = product @ np.linalg.pinv(T)
    return X if size(X @ T - product) <= NEAR * size(product) else None


def _of_dS(dS, a, run, other):
    if other in run.came.values and right_in(run, other):
        return f"{other} is right, so dS is: the product with it, its factor or its sum is the likeliest"
    if dS is None or not right_in(run, "dV"):
        return ""  # where P is wrong, D need not be
    off = dS - a.dS
    c = (off * a.P).sum(-1, keepdims=True) / (a.P * a.P).sum(-1, keepdims=True)
    if size(off - c * a.P) <= NEAR * size(off):
        return "D is the likeliest: each row of dS is off by a multiple of that of P"
    if size(dS.sum(axis=-1)) <= NEAR * size(dS):
        return "the rows of dS sum to 0, as with the D of its dP: dP is the likeliest"
    return ""


def _of_P(P, a):
    if P is None:
        return ""
    if size(P.sum(axis=-1) - 1) <= NEAR and (P > -NEAR).all():
        return "the rows of its P are weights, and sum to 1: the scores are the likeliest"
    c = (P * a.P).sum(-1, keepdims=True) / (a.P * a.P).sum(-1, keepdims=True)
    if size(P - c * a.P) <= NEAR * size(P):
        return "each row of its P is a multiple of the right one: L, or the sum of the exponentials, is the likeliest"
    return ""


def _where(name, where):
    """Where in the array it is wrong, if only in a part of it wherever it is wrong."""
    entries = {run: wrong_entries(run, name) for run in sorted(where, key=cost)}
    if any(W is None for W in entries.values()):
        return ""
    for axis, thing in ((-3, "head"), (-4, "batch"), (-2, "row"), (-1, "column")):
        lines = {run: along(W, axis) for run, W in entries.items() if W.ndim >= -axis and W.shape[axis] > 1}
        if len(lines) == len(where) and not any(line.all() for line in lines.values()):
            run, line = next((run, line) for run, line in lines.items() if line.any())
            found = np.flatnonzero(line)
            return f'in "{run.name}" wrong from {thing} {found[0]} of {len(line)} on, in {len(found)} of them'
    return ""


def _size(run, i, axis):
    """A size of Q (0), K (1) or V (2); 1 for an axis that is not there."""
    T = run.came.inputs[i]
    return T.shape[axis] if T.ndim >= -axis else 1


FEATURES = {
    "with a batch above 1": lambda run: _size(run, 0, -4) > 1,
    "with several heads": lambda run: _size(run, 0, -3) > 1,
    "where query heads share a key head": lambda run: _size(run, 0, -3) != _size(run, 1, -3),
    "where an input lies otherwise in memory": lambda run: bool(run.case.memory),
    "where dO lies otherwise in memory": lambda run: "dO" in run.case.memory,
    "where Q, K or V lies otherwise in memory": lambda run: bool({"Q", "K", "V"} & run.case.memory.keys()),
    "where n_q and n_k differ": lambda run: _size(run, 0, -2) != _size(run, 1, -2),
    "with more queries than keys": lambda run: _size(run, 0, -2) > _size(run, 1, -2),
    "with more keys than queries": lambda run: _size(run, 0, -2) < _size(run, 1, -2),
    "where d_k and d_v differ": lambda run: _size(run, 0, -1) != _size(run, 2, -1),
    "with a length of 0": lambda run: 0 in (_size(run, 0, -2), _size(run, 1, -2)),
    "in 16 bits": lambda run: "16" in run.case.dtype,
} | {
    f"with {name}": lambda run, name=name: not (run.came.options.get(name) is None or run.came.options[name] is False)
    for name in ("mask", "bias", "causal", "scale", "window", "softcap", "sink", "slopes", "dropout", "dL")
} | {
    f"with {things} {size}{tail}": lambda run, i=i, axis=axis, size=size, tail=tail: (
        _size(run, i, axis) > size and not (tail and _size(run, i, axis) % size == 0)
    )
    for (i, axis, things), size, tail in product(
        ((0, -2, "more queries than"), (1, -2, "more keys than"), (0, -1, "a width d above")),
        (16, 32, 64, 128),
        ("", ", no multiple of it"),
    )
}  # fmt: skip
"""What cases may have in common, in words, and whether one has it."""


def in_common(name, runs, features=FEATURES):
    """What all cases have, and no other has, in which this result is wrong; or what all have, and few others; or ""."""
    runs = [run for run in runs if name in run.came.values]
    wrong = {run for run in runs if not right_in(run, name)}
    if len(wrong) < 2 or len(wrong) == len(runs):
        return ""
    having = {words: {run for run in runs if has(run)} for words, has in features.items()}
    having = {words: which for words, which in having.items() if wrong <= which and len(which) < len(runs)}
    if not having:
        return ""
    words = min(having, key=lambda each: len(having[each]))
    if having[words] == wrong:
        return f"wrong in all cases {words}, and in no other that was asked"
    return f"wrong only {words}" if 2 * len(having[words]) <= len(runs) else ""
