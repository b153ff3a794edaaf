"""What an op is, the tile of the score table that it is given, and the step that records it."""

from typing import NamedTuple, Protocol


class Tile(NamedTuple):
    """A block of the score table: which queries and which keys, out of how many.

    An op that depends on positions reads them here and nowhere else, so the same op serves a spine that holds
    the whole table and one that never does.
    """

    rows: range
    cols: range
    n_q: int
    n_k: int

    @classmethod
    def whole(cls, n_q, n_k):
        """The tile that is the whole table."""
        return cls(range(n_q), range(n_k), n_q, n_k)

    def cut(self, T):
        """The part of T, which broadcasts to (..., n_q, n_k), that lies on this tile. Axes of length 1 stay."""
        if T.ndim >= 1 and T.shape[-1] != 1:
            T = T[..., self.cols.start : self.cols.stop]
        if T.ndim >= 2 and T.shape[-2] != 1:
            T = T[..., self.rows.start : self.rows.stop, :]
        return T


class Op(Protocol):
    """One step of the scores, S ↦ op(S), and its derivatives (:eq:`def-op`). Write a class with these three methods.

    ``S``, ``dS`` and ``tS`` are tiles (..., rows, cols), in the accumulation dtype.
    """

    def forward(self, S, tile):
        """Return the new scores and what the derivatives need of the old ones (None, if nothing)."""

    def vjp(self, dS, saved, tile):
        """Return the gradient of the old scores and that of the op's parameter, cut to the tile (None, if none)."""

    def jvp(self, tS, saved, tile, tparam=None):
        """Return the tangent of the new scores; ``tparam`` is the tangent of the op's parameter, None for zero."""


class Step(NamedTuple):
    """An op in one run of attention: the argument that asked for it, the op, and what it saved for the backward."""

    asked_by: str
    op: Op
    saved: object = None
