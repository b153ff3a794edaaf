"""Whether gradients are those of the function's own O, whatever that is. Chapter: :doc:`/chapters/08_checking`.

A layer with projections of its own, linear attention, or one that normalizes Q and K, is no softmax attention of what
it is given; a difference quotient of its own O still tells whether its backward is right.
"""

from dataclasses import replace

import numpy as np

STEPS = {"float64": (1e-5, 1e-5), "float32": (1e-2, 2e-2)}
"""How far a difference reaches, and how near the gradient must be to it."""


def of_its_own(call, run):
    """(the gradients that are those of its own O, what to say of them), in this case."""
    if run.case.dtype not in STEPS or run.case.options.keys() & {"dropout", "dL"}:
        return set(), ""
    fits = {f"d{T}" for i, T in enumerate("QKV") if _fits(call, run, i, *STEPS[run.case.dtype])}
    wrong = sorted({"dQ", "dK", "dV"} - fits)
    words = f"by differences of its own O, {', '.join(sorted(fits))} {'is' if len(fits) == 1 else 'are'} right"
    return fits, words + f" and {', '.join(wrong)} wrong" * bool(wrong) + _parameters(call)


def _fits(call, run, i, h, near):
    """Whether the gradient of input i is that of O, in one random direction."""
    Ts, dT, dO = run.case.inputs, run.came.values[("dQ", "dK", "dV")[i]], run.came.inputs[3]
    U = np.random.default_rng(i).standard_normal(Ts[i].shape)
    there, back = (call(replace(run.case, inputs=(*Ts[:i], Ts[i] + step * U, *Ts[i + 1 :]))) for step in (h, -h))
    if there.kind != "values" or back.kind != "values" or dT.size != U.size:
        return False
    slope = (there.values["O"] - back.values["O"]) / (2 * h)
    if slope.shape != dO.shape:
        return False
    size = np.linalg.norm(dT) + np.linalg.norm(slope) * np.linalg.norm(dO) / np.linalg.norm(U)
    return abs(np.vdot(slope, dO) - np.vdot(dT, U)) <= near * size


def _parameters(call):
    """What it has of its own, that its inputs are multiplied with."""
    named = getattr(call.given, "named_parameters", None)
    names = [name for name, _ in named()] if callable(named) else []
    few = ", ".join(names[:4]) + " …" * (len(names) > 4)
    return f"; it has parameters ({few}), so O is no attention of these Q, K, V alone" if names else ""
