"""Cap the scores smoothly: S ↦ c tanh(S / c)."""

import math
import reprlib
from dataclasses import dataclass
from typing import Any

from attnbook.arguments import as_float, is_real
from attnbook.arrays import array_namespace, expected
from attnbook.ops.op import Kernel, Op, Tile


@dataclass(frozen=True)
class Softcap(Op):
    """Keep every score between −``cap`` and ``cap``, and leave small ones as they are.

    .. math:: S' = c\\,\\tanh(S / c) \\qquad dS = \\bigl(1 - (S'/c)^2\\bigr) \\circ dS'

    Equation :eq:`eq-op-softcap`. It keeps tanh(S/c), taken before any mask: cap first, mask after, or −∞ becomes −c
    and the forbidden key gets weight. Chapter: :doc:`/chapters/09_variants`.
    """

    cap: float
    strides = True

    def __post_init__(self) -> None:
        if not is_real(self.cap) or not 0 < as_float(self.cap) < math.inf:
            raise ValueError(expected("cap", "a positive number", reprlib.repr(self.cap)))

    def forward(self, S: Any, tile: Tile) -> tuple[Any, Any]:
        y = array_namespace(S).tanh(S / float(self.cap))
        return float(self.cap) * y, y  # eq-op-softcap

    def vjp(self, dS: Any, saved: Any, tile: Tile) -> tuple[Any, Any]:
        return (1 - saved * saved) * dS, None  # eq-op-softcap

    def jvp(self, tS: Any, saved: Any, tile: Tile, tparam: Any = None) -> Any:
        return (1 - saved * saved) * tS  # eq-op-softcap

    def vjp_jvp(self, tdS: Any, dS: Any, tS: Any, saved: Any, tile: Tile, tparam: Any = None) -> tuple[Any, Any]:
        """The slope 1 − y² moves along −2yẏ, and y = tanh(S/c) along the slope · Ṡ/c."""
        return (1 - saved * saved) * (tdS - (2 / float(self.cap)) * saved * tS * dS), None

    def in_kernel(self, kernel: Kernel, table: Tile) -> Kernel | None:
        first = all(done is None for done in kernel)
        return kernel._replace(cap=float(self.cap)) if first else None
