"""Whether a prediction is what came, or only near it. Chapter: :doc:`/chapters/08_checking`.

A mistake that changes little is near everything. It explains an error only where it leaves a tenth of it at most.
"""

import math
from weakref import WeakKeyDictionary

import numpy as np

from attnbook.checks.tolerances import DIAGNOSE
from attnbook.diagnose.cases.run import EPS, largest
from attnbook.diagnose.causes._shared import Shared

LEVELS = {"": 0.0, "float32": 1e-5, "float16": 8e-3, "bfloat16": 6e-2}
"""How far off all may be, relative to what is right, where fn computes in less precision than it returns."""

SMALL = 4096
"""So many scores at most has a case whose predictions are kept for the next function."""

KEPT = 2048
"""So many predictions of a case, at most, are kept."""

LARGE = 1024
"""A result of more entries is not looked at here."""

_KEPT = WeakKeyDictionary()


def cost(run):
    """The number of products that the scores of a case take."""
    Q, K = run.came.inputs[:2]
    return Q.size * K.shape[-2]


def predicted(run, steps, often=True):
    """What someone gets who goes through these steps; kept where the case is small, if it will be asked ``often``."""
    if cost(run) > 16 * SMALL:
        return run.predicted(steps)
    shared = keep(run, (), lambda: Shared(run.came.inputs, run.options))
    if not often:
        return shared.predicted(steps)
    return keep(run, steps, lambda: shared.predicted(steps))


def keep(run, what, compute):
    """``compute()``, kept for this case and its inputs; all that is kept goes where it has become too much."""
    kept, key = _KEPT.setdefault(run.case, {}), (run._key, what)
    if key not in kept:
        made = compute()
        if len(kept) >= KEPT:
            kept.clear()
        kept[key] = made
    return kept[key]


def untouched(run, name, prediction):
    """Whether the steps of a prediction leave this result as it is, which needs no comparing."""
    shared = _KEPT.get(run.case, {}).get((run._key, ()))
    return shared is not None and prediction[name] is shared.results.get(name)


def right_in(run, name):
    """:meth:`attnbook.diagnose.cases.run.Run.right_in`, asked once."""
    known = vars(run).setdefault("known", {})
    if name not in known:
        known[name] = run.right_in(name)
    return known[name] if known[name] in ("exactly", "float32") else ""


def size(T):
    """The root of the mean square of the finite entries."""
    square = np.vdot(T, T)
    if not np.isfinite(square):
        T = T[np.isfinite(T)]
        square = np.vdot(T, T)
    return float(square / max(T.size, 1)) ** 0.5


def explains(run, name, wanted, level=""):
    """Whether this prediction is what came: "yes", "harmless" where it is also right, or "" for no.

    At the level of another precision what came may be off by its roundings, but by far less than it is wrong.
    """
    came, right = run.came.values[name], run.right[name]
    if wanted is None and 0 in (*run.came.inputs[0].shape, *run.came.inputs[1].shape):
        return "harmless" if right_in(run, name) else ""  # a step that does not run on nothing
    if wanted is None or came.shape != wanted.shape:
        return ""
    finite = np.isfinite(wanted) & np.isfinite(came)
    if not _overflows_alike(run, np.isfinite(wanted), np.isfinite(came)):
        return ""
    at_right = came.shape == right.shape and np.array_equal(finite, np.isfinite(right))
    off = came[finite] - wanted[finite]
    measure = size if level else largest
    if not measure(off) <= allowed(run, name, size(wanted) if level else largest(wanted[finite]), level):
        return ""
    if not at_right:
        return "yes"
    gap, error = measure(wanted[finite] - right[finite]), measure(came[finite] - right[finite])
    if 0 < gap >= 10 * measure(off):
        return "yes"
    if level:
        return "harmless" if error <= LEVELS[level] * _growth(run) * size(right) and gap <= 3 * error else ""
    return "harmless" if right_in(run, name) and (gap <= 3 * error or run.harmless(name, {name: wanted})) else ""


def allowed(run, name, measured, level=""):
    """How far what came may be from a prediction that measures so much: the largest of it, or at a level the mean."""
    if level:
        return LEVELS[level] * _growth(run) * measured
    dtype = precision(run, name)
    return 10 * DIAGNOSE[dtype] * EPS[dtype] * np.maximum(run.sizes.get(name, 0.0), measured)


def apart(mistakes):
    """Whether they can be made at once: no two in the same step."""
    steps = [step for mistake in mistakes for step in mistake.steps]
    return len(steps) == len(set(steps))


def _overflows_alike(run, wanted, came):
    """Whether NaN and ∞ came in the rows where they should; in fewer bits exponentials overflow earlier."""
    if run.case.dtype == "float64":
        return np.array_equal(wanted.all(axis=-1), came.all(axis=-1))
    return wanted.all() == came.all() and not np.any(came & ~wanted)


def precision(run, name):
    """The lowest of the dtypes that went in, that came out, and that what is right came in."""
    seen = [run.case.dtype, run.came.dtypes[name]]
    seen += ["float32"] if right_in(run, name) == "float32" else []
    return max((dtype for dtype in seen if dtype in EPS), key=EPS.get)


def _growth(run):
    """How much larger scores make the roundings of their exponentials."""
    known = vars(run).setdefault("known", {})
    if "growth" not in known:
        known["growth"] = _growth_of(run)
    return known["growth"]


def _growth_of(run):
    Q, K = run.came.inputs[:2]
    if not Q.size or not K.size:
        return 1.0
    return 1 + np.sqrt(np.mean(Q * Q) * np.mean(K * K)) * float(run.came.options.get("scale") or Q.shape[-1] ** -0.5)


def near(run, name, steps, level=""):
    """A bool for each of these, in one calculation: False where what it predicts is too far from what came to explain
    it; :func:`explains` looks at what is left.

    ``steps`` is a tuple that lives on: what it predicts of a case is kept for the next function.
    """
    came = run.came.values[name]
    if came.size > LARGE or not all(map(np.size, run.came.inputs)):
        return np.full(len(steps), True)
    wanted, which, sizes = keep(run, (name, came.shape, id(steps)), lambda: _stacked(run, name, came.shape, steps))
    with np.errstate(all="ignore"):
        off = wanted - came.ravel()
        off = np.where(np.isfinite(off), np.abs(off), 0.0)
        maybe = np.full(len(steps), False)
        maybe[which] = off.max(axis=1, initial=0.0) <= allowed(run, name, sizes[0])
        if level:
            many = np.maximum(np.isfinite(wanted).sum(axis=1), 1)
            maybe[which] |= (off * off).sum(axis=1) <= allowed(run, name, sizes[1], level) ** 2 * many
    return maybe


def _stacked(run, name, shape, steps):
    """(the predictions of this shape, a row each; which these are; the largest and the mean size of each)."""
    predictions = [predicted(run, each) for each in steps]
    fits = [p is not None and p.get(name) is not None and p[name].shape == shape for p in predictions]
    rows = [p[name].ravel() for p, fit in zip(predictions, fits, strict=True) if fit]
    wanted = np.array(rows).reshape(len(rows), math.prod(shape))
    finite = np.where(np.isfinite(wanted), wanted, 0.0)
    many = np.maximum(np.isfinite(wanted).sum(axis=1), 1)
    mean = np.sqrt((finite * finite).sum(axis=1) / many)
    return wanted, np.array(fits, dtype=bool), (np.abs(finite).max(axis=1, initial=0.0), mean)
