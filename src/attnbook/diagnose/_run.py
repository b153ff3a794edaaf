"""One case that a function was run in: what came, what is right, and how far apart they are."""

from functools import cached_property

import numpy as np

from attnbook.checks.tolerances import DIAGNOSE
from attnbook.diagnose.calling import NAMES
from attnbook.diagnose.steps import Steps, mT, rowsum

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


class Run:
    """A case, what came, and what is right."""

    def __init__(self, case, came):
        self.case, self.came, self.name = case, came, case.name

    @property
    def compared(self):
        return self.came.kind == "values"

    @cached_property
    def right(self):
        """The right results."""
        return self.predicted(Steps)

    def predicted(self, steps):
        """What someone gets who goes through these steps: arrays by name, or None where the shapes do not fit."""
        try:
            return dict(zip(NAMES, steps(*self.came.inputs, **self.came.options).run(), strict=True))
        except ValueError:
            return None

    @cached_property
    def sizes(self):
        """The size of the terms that each result adds up, by name: rounding can make errors of some EPS of it."""
        a = Steps(*self.came.inputs, **self.came.options)
        Q, k, v, dO = (np.abs(T) for T in (a.Q, a.k, a.v, a.dO))
        scale = abs(a.scale)
        dP = dO @ mT(v)
        dS = a.P * (dP + rowsum(a.P * dP))
        terms = {
            "O": a.P @ v,
            "dQ": scale * (dS @ k),
            "dK": a.gather(scale * (mT(dS) @ Q)),
            "dV": a.gather(mT(a.P) @ dO),
        }
        scores = scale * np.max(Q @ mT(k)) + np.max(np.abs(self.came.options.get("bias", 0.0)))
        return {name: (1 + scores) * _largest(size) for name, size in terms.items()}

    def _is(self, name, wanted, dtype, ease=1):
        """Whether ``name`` came as ``wanted``, up to roundings of ``dtype``; NaN and ∞ meet only their like."""
        came = self.came.values[name]
        if came.shape != wanted.shape:
            return False
        finite = np.isfinite(wanted) & np.isfinite(came)
        if np.isfinite(wanted).all() != np.isfinite(came).all():
            return False
        size = max(self.sizes[name], _largest(wanted[finite]) if ease > 1 else 0.0)
        return _largest(came[finite] - wanted[finite]) <= ease * DIAGNOSE[dtype] * EPS[dtype] * size

    def _precision(self, name):
        """The lower one of the dtypes that went in and that came out."""
        return max((self.case.dtype, self.came.dtypes[name]), key=lambda dtype: EPS.get(dtype, 0.0))

    def right_in(self, name):
        """ "exactly", "float32" where only a lower precision explains the error, or "" for wrong."""
        if self._is(name, self.right[name], self._precision(name)):
            return "exactly"
        lower = self._precision(name) == "float64" and self._is(name, self.right[name], "float32")
        return "float32" if lower else ""

    def matches(self, name, prediction):
        """Whether the mistake that predicts this would give what came."""
        return prediction is not None and self._is(name, prediction[name], self._precision(name), ease=10)

    def harmless(self, name, prediction):
        """Whether the mistake that predicts this leaves ``name`` right."""
        if prediction is None or prediction[name].shape != self.right[name].shape:
            return False
        off = np.abs(prediction[name] - self.right[name])
        return bool(np.all(off <= EPS["float32"] * self.sizes[name]))

    def error(self, name):
        """(how far off, relative to the largest right entry; the same in words)."""
        came, right = self.came.values[name], self.right[name]
        if came.shape != right.shape:
            return None, f"shape {came.shape}, expected {right.shape}"
        if not np.isfinite(came).all():
            return None, "NaN" if np.isnan(came).any() else "infinite entries"
        off, size = _largest(came - right), _largest(right)
        if size <= self.sizes[name] * EPS["float32"]:
            return None, f"off by {off:.1g} where 0 is right"
        return float(f"{off / size:.1g}"), f"relative error {off / size:.1g}"


def _largest(T):
    return float(np.max(np.abs(T), initial=0.0))
