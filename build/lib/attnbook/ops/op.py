"""What an op is, the tile of the score table that it is given, and the step that records it."""

from typing import NamedTuple, Protocol


class Tile(NamedTuple):
    """A block of the score table: which queries and which keys, out of how many.

    An op that depends on positions reads them here and nowhere else, so the same op serves a spine that holds
    the whole table and one that never does. ``lead`` says which part of the leading axes (batch, heads) the tile
    has, one range an axis; None is all of them.
    """

    rows: range
    cols: range
    n_q: int
    n_k: int
    lead: tuple | None = None

    @classmethod
    def whole(cls, n_q, n_k):
        """The tile that is the whole table."""
        return cls(range(n_q), range(n_k), n_q, n_k)

    def cut(self, T):
        """The part of T, which broadcasts to (..., n_q, n_k), that lies on this tile. Axes of length 1 stay."""
        return T[self.index(T.shape)] if T.ndim else T

    def index(self, shape):
        """Where the part that lies on this tile stands in an array of ``shape``: a slice for each of its axes."""
        axes = (*(self.lead or ()), self.rows, self.cols)[-len(shape) :] if shape else ()
        picked = [
            slice(None) if n == 1 else slice(r.start, r.stop) for n, r in zip(shape[-len(axes) :], axes, strict=True)
        ]
        return (*(slice(None),) * (len(shape) - len(axes)), *picked)

    def shape(self, shape):
        """The shape of the part of an array of ``shape`` that lies on this tile."""
        return tuple(
            n if at == slice(None) else at.stop - at.start for n, at in zip(shape, self.index(shape), strict=True)
        )

    def within(self, block):
        """This tile as the block that it lies in counts its places."""
        moved = [
            range(r.start - b.start, r.stop - b.start) for r, b in zip(self.lead or (), block.lead or (), strict=True)
        ]
        rows, cols = (
            range(r.start - b.start, r.stop - b.start) for r, b in ((self.rows, block.rows), (self.cols, block.cols))
        )
        return Tile(rows, cols, len(block.rows), len(block.cols), tuple(moved) or None)

    def __bool__(self):
        """Whether any pair is on the tile."""
        return len(self.rows) > 0 and len(self.cols) > 0


class Op(Protocol):
    """One step of the scores, S ↦ op(S), and its derivatives (:eq:`def-op`). Write a class with these three methods.

    ``S``, ``dS`` and ``tS`` are tiles (..., rows, cols), in the accumulation dtype.

    An op may say more of itself.

    ``parameter``
        The array whose gradient ``vjp`` returns.
    ``on = "weights"``
        It acts on P after the softmax, not on S before it. It must then multiply each weight by a number of its own,
        so that rowsum(dP ∘ P) stays rowsum(dO ∘ O).
    ``live(tile)``
        The smallest tile with all pairs that the op does not forbid: a tiled spine does not look beyond it.
    """

    def forward(self, S, tile):
        """Return the new scores and what the derivatives need of the old ones (None, if nothing)."""

    def vjp(self, dS, saved, tile):
        """Return the gradient of the old scores, and that of the parameter (None, if there is none).

        A parameter that lies over the table gets it cut to the tile; any other, such as a table of distances, whole.
        """

    def jvp(self, tS, saved, tile, tparam=None):
        """Return the tangent of the new scores; ``tparam`` is the tangent of the op's parameter, None for zero."""


class Step(NamedTuple):
    """An op in one run of attention: the argument that asked for it, the op, and what it saved for the backward."""

    asked_by: str
    op: Op
    saved: object = None

    @property
    def on(self):
        """What the op acts on, "scores" or "weights"."""
        return getattr(self.op, "on", "scores")
