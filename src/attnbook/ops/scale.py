"""Scale the scores: S ↦ c S."""

import math
from dataclasses import dataclass
from numbers import Real

from attnbook.arrays import expected
from attnbook.ops.op import Op


@dataclass(frozen=True, eq=False)
class Scale(Op):
    """Multiply every score by ``factor``. A spine multiplies the queries by the scale instead, which are fewer.

    .. math:: S' = c\\,S \\qquad dS = c\\,dS' \\qquad \\dot S' = c\\,\\dot S

    Equation :eq:`eq-op-scale`. The factor is a Python float: a NumPy float64 would widen float32 scores.
    It keeps nothing for the backward. Chapter: :doc:`/chapters/03_single_head`.
    """

    factor: float

    def __post_init__(self):
        if not isinstance(self.factor, Real) or isinstance(self.factor, bool) or not math.isfinite(self.factor):
            raise ValueError(expected("factor", "a finite number", repr(self.factor)))
        object.__setattr__(self, "factor", float(self.factor))

    def forward(self, S, tile):
        return S * self.factor, None

    def vjp(self, dS, saved, tile):
        return dS * self.factor, None

    def jvp(self, tS, saved, tile, tparam=None):
        return tS * self.factor
