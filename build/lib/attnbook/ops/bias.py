"""Add a bias to the scores: S ↦ S + B."""

from dataclasses import dataclass

from attnbook.arrays import unbroadcast, widen


@dataclass(frozen=True, eq=False)
class Bias:
    """Add ``B``, which broadcasts to the scores. −∞ in B forbids a key, as a mask does.

    .. math:: S' = S + B \\qquad dS = dS' \\qquad dB = \\textstyle\\sum_{\\text{broadcast axes}} dS'

    Equation :eq:`eq-op-bias`. No scale in dB: the bias is added after scaling.
    It keeps nothing for the backward but the shape of B. Chapter: :doc:`/chapters/03_single_head`.
    """

    B: object

    @property
    def parameter(self):
        return self.B

    def forward(self, S, tile):
        return S + widen(tile.cut(self.B)), None

    def vjp(self, dS, saved, tile):
        return dS, unbroadcast(dS, tile.cut(self.B).shape)

    def jvp(self, tS, saved, tile, tparam=None):
        return tS if tparam is None else tS + widen(tile.cut(tparam))
