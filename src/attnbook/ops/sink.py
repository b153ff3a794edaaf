"""One more column of scores, with no key and the value 0: what a row does not want to give to any key."""

from dataclasses import dataclass

from attnbook.ops.of_heads import OfHeads


@dataclass(frozen=True, eq=False)
class Sink(OfHeads):
    """Let a query attend to nothing: one more column, of the score ``sigma`` and the value 0, as GPT-OSS has it.

    .. math:: P_{ij} = e^{S_{ij} - L_i} \\qquad L_i = \\log\\bigl(e^{\\sigma} + \\textstyle\\sum_k e^{S_{ik}}\\bigr)
       \\qquad d\\sigma = \\textstyle\\sum_i e^{\\sigma - L_i}\\,(dL_i - D_i)

    Equations :eq:`def-var-sink` and :eq:`eq-var-sink-vjp`. ``sigma`` is one number a head, as in
    :class:`~attnbook.ops.of_heads.OfHeads`; 0 is "softmax off by one", −∞ no sink. No mask forbids it, and no scale is
    for it: a row with no allowed key has L = σ and O = 0. It is in ``res.P`` and ``res.L``, so a row of P sums to
    1 − exp(σ − L). Every spine has it, the fused one too. Chapter: :doc:`/chapters/08_variants`.
    """

    sigma: object
    arrays, learns, on = ("sigma",), "sigma", "column"

    def forward(self, S, tile):
        return S + self.spread(tile), None

    def vjp(self, dS, saved, tile):
        return dS, self.summed(dS, tile)

    def jvp(self, tS, saved, tile, tparam=None):
        return tS if tparam is None else tS + self.spread(tile, tparam)

    def in_kernel(self, kernel, table):
        return kernel
