"""One more column of scores, with no key and the value 0: what a row does not want to give to any key."""

from dataclasses import dataclass
from typing import Any

from attnbook.ops.of_heads import OfHeads
from attnbook.ops.op import Kernel, Tile


@dataclass(frozen=True, eq=False)
class Sink(OfHeads):
    """Let a query attend to nothing: one more column, of the score ``sigma`` and the value 0, as GPT-OSS's ``sinks``.

    .. math:: P_{ij} = e^{S_{ij} - L_i} \\qquad L_i = \\log\\bigl(e^{\\sigma} + \\textstyle\\sum_k e^{S_{ik}}\\bigr)
       \\qquad d\\sigma = \\textstyle\\sum_i e^{\\sigma - L_i}\\,(dL_i - D_i)

    Equations :eq:`def-var-sink` and :eq:`eq-var-sink-vjp`. ``sigma`` is one number a head, as in
    :class:`~attnbook.ops.of_heads.OfHeads`, an array always, as ``np.array(0.0)``; 0 is "softmax off by one", −∞ no
    sink. Its gradient, which kernels call ``dsink``, is ``dops[i]`` of the vjp, where it is op i. No mask forbids it,
    and no scale is for it: a row with no allowed key has L = σ and O = 0. It is in ``res.P`` and ``res.L``, so a row of
    P sums to 1 − exp(σ − L). Every spine has it, the fused one too. Chapter: :doc:`/chapters/09_variants`.

    Examples
    --------
    >>> import numpy as np
    >>> import attnbook as ab
    >>> ones = np.ones((2, 1))
    >>> O, res = ab.attention(ones, ones, ones, ops=[ab.ops.Sink(np.array(1.0))])
    >>> O.round(3).tolist(), ab.attention_vjp(ones, res).dops[0].round(3).item()
    ([[0.667], [0.667]], -0.444)
    """

    sigma: Any
    arrays, learns, on, affine = ("sigma",), "sigma", "column", True

    def forward(self, S: Any, tile: Tile) -> tuple[Any, Any]:
        return S + self.spread(tile), None

    def vjp(self, dS: Any, saved: Any, tile: Tile) -> tuple[Any, Any]:
        return dS, self.summed(dS, tile)

    def jvp(self, tS: Any, saved: Any, tile: Tile, tparam: Any = None) -> Any:
        return tS if tparam is None else tS + self.spread(tile, tparam)

    def in_kernel(self, kernel: Kernel, table: Tile) -> Kernel | None:
        return kernel
