"""Scale the scores: S ↦ scale · S."""

import math
import reprlib
from dataclasses import dataclass
from numbers import Real
from typing import Any

from attnbook.arguments import as_float, is_real
from attnbook.arrays import expected, is_array
from attnbook.ops.of_heads import OfHeads
from attnbook.ops.op import Tile
from attnbook.types import AnyArray


@dataclass(frozen=True, eq=False)
class Scale(OfHeads):
    """Multiply every score by ``factor``. A spine multiplies the queries by the scale instead, which are fewer.

    .. math:: S' = \\text{scale}\\cdot S \\qquad dS = \\text{scale}\\cdot dS' \\qquad
       d\\,\\text{scale} = \\textstyle\\sum dS' \\circ S

    Equations :eq:`eq-op-scale` and :eq:`eq-dscale`. The factor is a Python float, as a NumPy float64 would widen
    float32 scores; or an array of no axis, which learns, and then S is kept for the backward. Chapter:
    :doc:`/chapters/04_single_head`.
    """

    factor: Any

    def __post_init__(self) -> None:
        if is_real(self.factor) and math.isfinite(as_float(self.factor)):
            object.__setattr__(self, "factor", float(self.factor))
        elif isinstance(self.factor, Real) or not is_array(self.factor):
            raise ValueError(expected("factor", "a finite number, or an array", reprlib.repr(self.factor)))
        else:
            self._learn()

    def _learn(self) -> None:
        vars(self).update(arrays=("factor",), learns="factor")
        super().__post_init__()

    def forward(self, S: Any, tile: Tile) -> tuple[Any, Any]:
        scaled = S * self._factor(tile)  # eq-op-scale, eq-var-logit-scale
        return scaled, S if self.learns else None

    def vjp(self, dS: Any, S: Any, tile: Tile) -> tuple[Any, Any]:
        return dS * self._factor(tile), self.summed(dS * S, tile) if self.learns else None  # eq-op-scale, eq-dscale

    def jvp(self, tS: Any, S: Any, tile: Tile, tparam: Any = None) -> Any:
        tS = tS * self._factor(tile)
        return tS if tparam is None else tS + self.spread(tile, tparam) * S

    def vjp_jvp(self, tdS: Any, dS: Any, tS: Any, S: Any, tile: Tile, tparam: Any = None) -> tuple[Any, Any]:
        """The product rule: both factors of dS ∘ S move."""
        found = tdS * self._factor(tile)
        if tparam is not None:
            found = found + self.spread(tile, tparam) * dS
        return found, self.summed(tdS * S + dS * tS, tile) if self.learns else None

    def _factor(self, tile: Tile) -> Any:
        return self.spread(tile) if self.arrays else self.factor


class LogitScale(Scale):
    """Multiply the scores of each head by its number in ``t``, (h,), which learns.

    .. math:: S'_h = t_h\\,S_h \\qquad dS_h = t_h\\,dS'_h \\qquad dt_h = \\textstyle\\sum_{ij} (dS'_h)_{ij} (S_h)_{ij}

    Equation :eq:`eq-var-logit-scale`. It is an inverse temperature: it multiplies, so 0 makes all weights of a row
    equal. Exponentials and limits, as of models that learn log t, are the caller's. It keeps S. Chapter:
    :doc:`/chapters/09_variants`.
    """

    def __init__(self, t: AnyArray) -> None:
        if not is_array(t):
            raise TypeError(expected("t", "an array, a number a head", repr(t)))
        object.__setattr__(self, "factor", t)  # also a number of NumPy's, which is an array of no axis
        self._learn()
