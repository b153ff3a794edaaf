"""Which of a thousand predictions can be what came: all in one calculation. Chapter: :doc:`/chapters/08_checking`.

:func:`attnbook.diagnose._match.explains` looks at what is left.
"""

import math

import numpy as np

from attnbook.diagnose._match import allowed, keep, predicted

LARGE = 1024
"""A result of more entries is not looked at here."""


def near(run, name, steps, level=""):
    """A bool for each of these: False where what it predicts is too far from what came to explain it.

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
