"""Forbid keys: S ↦ −∞ where a query may not attend. All masks are here, and differ only in which pairs they allow."""

from dataclasses import dataclass

from attnbook.arrays import array_namespace, device


class _Masking:
    """The three passes that all masks share; a mask adds ``allowed(S, tile)``, bool, True = may attend.

    −∞ before the softmax, never 0 after it: a zeroed weight has already taken part in its row's sum. And ``where``,
    never a product: 0 · ∞ and 0 · NaN are NaN.
    """

    def forward(self, S, tile):
        return self._keep(S, tile, elsewhere=float("-inf")), None

    def vjp(self, dS, saved, tile):
        return self._keep(dS, tile, elsewhere=0.0), None

    def jvp(self, tS, saved, tile, tparam=None):
        return self._keep(tS, tile, elsewhere=0.0)

    def _keep(self, T, tile, elsewhere):
        xp = array_namespace(T)
        return xp.where(self.allowed(T, tile), T, xp.asarray(elsewhere, dtype=T.dtype, device=device(T)))


@dataclass(frozen=True, eq=False)
class Mask(_Masking):
    """Allow the pairs where the bool array ``M``, which broadcasts to the scores, is True.

    .. math:: S'_{ij} = \\begin{cases} S_{ij} & M_{ij} \\\\ -\\infty & \\text{otherwise} \\end{cases}
       \\qquad dS_{ij} = \\begin{cases} dS'_{ij} & M_{ij} \\\\ 0 & \\text{otherwise} \\end{cases}

    Equation :eq:`eq-op-mask`. It keeps nothing for the backward but M. Chapter: :doc:`/chapters/03_single_head`.
    """

    M: object

    def allowed(self, S, tile):
        return tile.cut(self.M)


@dataclass(frozen=True, eq=False)
class Causal(_Masking):
    """Allow key j for query i where j ≤ i, counted from the ``corner`` "top-left" or "bottom-right" of the table.

    "top-left" lines up the first query with the first key, as torch and JAX do; "bottom-right" the last with the last,
    as flash-attn does, and as a query that reads a cache of earlier keys needs. They agree where n_q = n_k.
    Equation :eq:`eq-op-causal`. It keeps nothing for the backward. Chapter: :doc:`/chapters/03_single_head`.
    """

    corner: str = "top-left"

    def allowed(self, S, tile):
        xp = array_namespace(S)
        shift = tile.n_k - tile.n_q if self.corner == "bottom-right" else 0
        i = xp.arange(tile.rows.start, tile.rows.stop, device=device(S))
        j = xp.arange(tile.cols.start, tile.cols.stop, device=device(S))
        return j[None, :] <= i[:, None] + shift
