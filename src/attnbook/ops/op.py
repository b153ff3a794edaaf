"""What an op is, and the tile of the score table that it is given."""

from typing import Any, ClassVar, NamedTuple, Self

from attnbook.arguments import check_broadcasts
from attnbook.arrays import agree, agree_on_place, expected, widen
from attnbook.types import AnyArray, Corner


class Tile(NamedTuple):
    """A block of the score table: which queries and which keys, out of how many.

    An op that depends on positions reads them here and nowhere else, so the same op serves a spine that holds
    the whole table and one that never does. ``lead`` says which part of the leading axes (batch, heads) the tile
    has, one range an axis; None is all of them. Rows or columns that are dealt out over ranks have a
    step between.
    """

    rows: range
    cols: range
    n_q: int
    n_k: int
    lead: tuple[Any, ...] | None = None

    @classmethod
    def whole(cls, n_q: int, n_k: int) -> Self:
        """The tile that is the whole table."""
        return cls(range(n_q), range(n_k), n_q, n_k)

    def cut(self, T: Any, own_axes: int | None = None) -> Any:
        """The part of T that lies on this tile; axes of length 1 stay. T broadcasts to (..., n_q, n_k), or has after
        its leading axes only ``own_axes`` of its own.
        """
        return T[self.index(T.shape, own_axes)] if T.ndim else T

    def index(self, shape: tuple[int, ...], own_axes: int | None = None) -> tuple[slice, ...]:  # type: ignore[override]
        """Where the part that lies on this tile stands in an array of ``shape``: a slice for each of its axes."""
        axes = (self.rows, self.cols) if own_axes is None else (None,) * own_axes
        axes = (*(self.lead or ()), *axes)[-len(shape) :] if shape else ()
        picked = [slice(None)] * (len(shape) - len(axes))
        for n, r in zip(shape[-len(axes) :] if axes else (), axes, strict=True):
            picked.append(slice(None) if n == 1 or r is None else slice(r.start, r.stop, r.step))
        return tuple(picked)

    def shape(self, shape: tuple[int, ...], own_axes: int | None = None) -> tuple[int, ...]:
        """The shape of the part of an array of ``shape`` that lies on this tile."""
        return tuple(
            n if at == slice(None) else len(range(at.start, at.stop, at.step))
            for n, at in zip(shape, self.index(shape, own_axes), strict=True)
        )

    def shift(self, corner: Corner | None, name: str = "corner") -> int:
        """How much later than its own number the key beside a query is: "bottom-right" lines up the last with the last,
        "top-left" the first with the first. None will do where these are the same.
        """
        if corner is None and self.n_q != self.n_k:
            wanted = f"'top-left' or 'bottom-right', as {self.n_q} queries meet {self.n_k} keys without causal"
            raise ValueError(expected(name, wanted, None))
        return self.n_k - self.n_q if corner == "bottom-right" else 0

    def within(self, block: "Tile") -> "Tile":
        """This tile as the block that it lies in counts its places."""
        moved = [
            range(r.start - b.start, r.stop - b.start) for r, b in zip(self.lead or (), block.lead or (), strict=True)
        ]
        rows, cols = (
            range(r.start - b.start, r.stop - b.start) for r, b in ((self.rows, block.rows), (self.cols, block.cols))
        )
        return Tile(rows, cols, len(block.rows), len(block.cols), tuple(moved) or None)

    def __bool__(self) -> bool:
        """Whether any pair is on the tile."""
        return len(self.rows) > 0 and len(self.cols) > 0


def end(places: range) -> int:
    """The place after the last."""
    return places.stop if places.step == 1 else places[-1] + 1


def between(places: range, first: int | None = None, last: int | None = None) -> range:
    """Those of the places from ``first`` to ``last``; None is no limit."""
    start, stop, step = places.start, places.stop, places.step
    if first is not None and first > start:
        start -= (start - first) // step * step
    return range(start, stop if last is None else min(stop, last + 1), step)


def check_corner(corner: Any) -> None:
    if corner not in ("top-left", "bottom-right", None):
        raise ValueError(expected("corner", "'top-left', 'bottom-right' or None", repr(corner)))


class UndeclaredError(TypeError):
    """An op does not say what its second derivatives are."""


class Op:
    """One step of the scores, S ↦ op(S), and its derivatives (:eq:`def-op`). Derive a class with the three passes, and
    ``vjp_jvp``, where the vjp moves with the scores.

    ``S``, ``dS`` and ``tS`` are tiles (..., rows, cols), in the accumulation dtype. What else an op is, it declares;
    each default is right for the simplest op.

    ``arrays``
        The names of its fields that hold arrays.
    ``learns``
        The name of the one whose gradient ``vjp`` returns, ``parameter``.
    ``own_axes``
        How the arrays lie. None: the last two axes are queries and keys, or broadcast to them. A number: so many last
        axes are their own, none for a number a head, one for a table of distances; those before are batch and heads.
        An op whose arrays lie in another way has a ``check`` of its own.
    ``on``
        "scores", where it acts on S. "weights": on P, after the softmax. It must then multiply each weight by a number
        of its own, so that rowsum(dP ∘ P) stays rowsum(dO ∘ O). "column": on zeros (..., rows, 1), from which it makes
        the scores of one more column, which has no key and the value 0.
    ``forbids``
        It writes −∞ where a key is forbidden, and does nothing else; see :class:`~attnbook.ops.masks.Masking`. It runs
        after all that does not, wherever it is given.
    ``grid``
        Rows and columns of the blocks that it forbids as a whole, where it does: a tiled spine cuts there.
    ``stacks``
        Many calls are one with one more leading axis: it asks for no places on these but those of its arrays.
    ``strides``
        It takes tiles whose places have a step between, as those that :func:`~attnbook.parallel.placement.split` deals
        out "striped".
    ``affine``
        The new scores are a sum of the old ones and of what the parameter gives, each in proportion: S + B, not t S.
        Second derivatives of such an op are 0.
    """

    arrays: ClassVar[tuple[str, ...]] = ()
    learns: ClassVar[str | None] = None
    own_axes: ClassVar[int | None] = None
    on: ClassVar[str] = "scores"
    forbids: ClassVar[bool] = False
    grid: ClassVar[tuple[Any, ...] | None] = None
    stacks: ClassVar[bool] = True
    strides: ClassVar[bool] = False
    affine: ClassVar[bool] = False

    def forward(self, S: Any, tile: Tile) -> tuple[Any, Any]:
        """Return the new scores and what the derivatives need of the old ones (None, if nothing)."""
        raise NotImplementedError

    def vjp(self, dS: Any, saved: Any, tile: Tile) -> tuple[Any, Any]:
        """Return the gradient of the old scores, and that of the parameter (None, if there is none), of the shape that
        :meth:`~attnbook.ops.op.Op.here` gives it.
        """
        raise NotImplementedError

    def jvp(self, tS: Any, saved: Any, tile: Tile, tparam: Any = None) -> Any:
        """Return the tangent of the new scores; ``tparam`` is the tangent of the op's parameter, None for zero."""
        raise NotImplementedError

    def vjp_jvp(self, tdS: Any, dS: Any, tS: Any, saved: Any, tile: Tile, tparam: Any = None) -> tuple[Any, Any]:
        """Return the tangents of what ``vjp`` returns, where dS moves along ``tdS``, the old scores along ``tS``, and
        the parameter along ``tparam``. Of an op that saves nothing, vjp depends on dS alone, unless the parameter is in
        it; others than these say it themselves, or say that they are ``affine``.
        """
        if not self.affine and (saved is not None or tparam is not None):
            raise UndeclaredError(
                expected(f"ops, {type(self).__name__}.vjp_jvp", "the tangents of its vjp, or affine = True", "neither")
            )
        return self.vjp(tdS, saved, tile)

    def live(self, tile: Tile) -> Tile:
        """The smallest tile with all pairs that a mask does not forbid: a tiled spine does not look beyond it."""
        return tile

    @property
    def heads_alike(self) -> bool:
        """Whether :meth:`~attnbook.ops.op.Op.live` says the same of every head."""
        return type(self).live is Op.live

    def at_corner(self, corner: Corner | None) -> Self:
        """The same op where causal counts from that corner of the table."""
        return self

    def in_kernel(self, kernel: "Kernel", table: Tile) -> "Kernel | None":
        """The fused kernels' :class:`~attnbook.ops.op.Kernel` with this op after what it does already, or None."""
        return None

    @property
    def parameter(self) -> Any:
        """The array that learns, or None."""
        return None if self.learns is None else getattr(self, self.learns)

    def here(self, tile: Tile, T: Any = None) -> Any:
        """What of the parameter, or of its tangent T, lies on this tile, in the accumulation dtype."""
        if T is None and self.parameter is None:
            raise TypeError(
                expected(f"{type(self).__name__}.learns", "the name of the field that is asked for", "None")
            )
        return widen(tile.cut(self.parameter if T is None else T, self.own_axes))

    def with_arrays(self, arrays: dict[str, Any]) -> Self:
        """The same op with other arrays, by the names of their fields."""
        twin = object.__new__(type(self))
        vars(twin).update(vars(self), **arrays)
        return twin

    def without_gradient(self) -> "Op":
        """An op that does the same, where nobody asks for its parameter's gradient: so that none need be found."""
        return self

    def not_learning(self) -> Self:
        """The same op with ``learns = None``: what ``without_gradient`` is, where the passes look at ``learns``."""
        twin = self.with_arrays({})
        vars(twin)["learns"] = None
        return twin

    def stacked(self, name: str, T: Any, rank: int) -> Any:
        """The array ``name`` of many calls, on a new first axis, for one call whose scores have it too, of ``rank``."""
        own = 2 if self.own_axes is None else self.own_axes
        return T[(slice(None), *(None,) * (rank - 2 + own - T.ndim))]

    def check(self, name: str, like: Any, like_name: str, shape: tuple[int, ...]) -> None:
        """An error, where its arrays do not fit scores of ``shape`` and arrays like ``like``."""
        for field in self.arrays:
            if (T := getattr(self, field)) is None and field != self.learns:
                continue
            if field == self.learns:
                agree(**{like_name: like, name: T})
            else:
                agree_on_place(name, T, like_name, like)
            came = tuple(T.shape)
            if self.own_axes is None:
                check_broadcasts(name, came, shape, "the scores")
            elif len(came) < self.own_axes:
                raise ValueError(expected(name, f"{self.own_axes} or more axes", f"shape {came}"))
            else:
                lead = came[: len(came) - self.own_axes]
                found = f"{lead}, of shape {came}" if self.own_axes else f"shape {came}"
                check_broadcasts(name, lead, shape[:-2], "the leading axes of the scores", found)


class Placed(Op):
    """An op that counts places from its ``corner`` of the table; None is that of causal. Without causal it must be said
    where n_q ≠ n_k: nothing else tells whether the queries stand beside the first keys or the last.
    """

    corner: Corner | None

    def at_corner(self, corner: Corner | None) -> Self:
        return self if self.corner is not None else self.with_arrays({"corner": corner})

    def check(self, name: str, like: Any, like_name: str, shape: tuple[int, ...]) -> None:
        super().check(name, like, like_name, shape)
        Tile.whole(*shape[-2:]).shift(self.corner, f"{name}, corner")


class Kernel(NamedTuple):
    """What the fused kernels do to a score, in this order: the scale, cap, bias or slopes (..., h, 1, 1) times the
    distance of j from i + shift, and what is forbidden, by a mask or outside of the band low ≤ j − i ≤ high; each None
    for none.
    """

    cap: float | None = None
    bias: AnyArray | None = None
    slopes: AnyArray | None = None
    shift: int | None = None
    mask: AnyArray | None = None
    low: int | None = None
    high: int | None = None

    @property
    def biased(self) -> bool:
        """Whether something is added to the scores."""
        return self.bias is not None or self.slopes is not None
