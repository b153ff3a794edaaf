"""Forbid keys: S ↦ −∞ where a query may not attend. All masks are here, and differ only in which pairs they allow."""

from dataclasses import dataclass
from typing import Any

from attnbook.arguments import check_broadcasts, check_mask
from attnbook.arrays import array_namespace, device, on_host, scalar, whole
from attnbook.ops.op import Kernel, Op, Placed, Tile, between, check_corner, end
from attnbook.types import Corner


class Masking(Op):
    """The three passes that all masks share (:eq:`eq-op-mask`); a mask adds ``allowed(S, tile)``, bool, True = may
    attend.

    Which pairs these are must not depend on S, given for its library and device: in a backward it is a gradient.

    −∞ before the softmax, never 0 after it: a zeroed weight has already taken part in its row's sum. And ``where``,
    never a product: 0 · ∞ and 0 · NaN are NaN.
    """

    forbids = True

    def allowed(self, S: Any, tile: Tile) -> Any:
        """Which pairs of the tile are allowed."""
        raise NotImplementedError

    def forward(self, S: Any, tile: Tile) -> tuple[Any, Any]:
        return self._keep(S, tile, elsewhere=float("-inf")), None

    def vjp(self, dS: Any, saved: Any, tile: Tile) -> tuple[Any, Any]:
        return self._keep(dS, tile, elsewhere=0.0), None

    def jvp(self, tS: Any, saved: Any, tile: Tile, tparam: Any = None) -> Any:
        return self._keep(tS, tile, elsewhere=0.0)

    def allows_all(self, tile: Tile) -> bool:
        """Whether every pair of the tile is allowed, where that is known without looking at each."""
        return False

    def pattern(self, tile: Tile) -> Any:
        """One tile for all with the same allowed pairs, counted from their corners; None where that is not known."""
        return

    def _keep(self, T: Any, tile: Tile, elsewhere: Any) -> Any:
        if self.allows_all(tile):
            return T
        return array_namespace(T).where(self.allowed(T, tile), T, scalar(elsewhere, like=T))  # eq-op-mask


@dataclass(frozen=True, eq=False)
class Mask(Masking):
    """Allow the pairs where the bool array ``M``, which broadcasts to the scores, is True.

    .. math:: S'_{ij} = \\begin{cases} S_{ij} & M_{ij} \\\\ -\\infty & \\text{otherwise} \\end{cases}
       \\qquad dS_{ij} = \\begin{cases} dS'_{ij} & M_{ij} \\\\ 0 & \\text{otherwise} \\end{cases}

    Equation :eq:`eq-op-mask`. It keeps nothing for the backward but M. Where M lies on a GPU, no tile is skipped: to
    look at M, Python would wait for all the work before. Chapter: :doc:`/chapters/04_single_head`.
    """

    M: Any
    arrays, strides = ("M",), True

    @property
    def heads_alike(self) -> bool:
        return self.M.ndim < 3

    def allowed(self, S: Any, tile: Tile) -> Any:
        return tile.cut(self.M)

    def check(self, name: str, like: Any, like_name: str, shape: tuple[int, ...]) -> None:
        check_mask(self.M, like, like_name, name)
        check_broadcasts(name, tuple(self.M.shape), shape, "the scores")

    def in_kernel(self, kernel: Kernel, table: Tile) -> Kernel | None:
        return kernel._replace(mask=self.M) if kernel.mask is None else None

    def live(self, tile: Tile) -> Tile:
        return live_part(tile.cut(self.M), tile) if on_host(self.M) else tile


@dataclass(frozen=True)
class Window(Masking, Placed):
    """Allow key j for query i where −``left`` ≤ j − i ≤ ``right``; None is no limit on that side.

    .. math:: M_{ij} = \\bigl(-\\text{left} \\le j - i - \\text{shift} \\le \\text{right}\\bigr)

    Equations :eq:`eq-op-window` and :eq:`eq-var-global`. The shift lines up a corner of the table, as in
    :class:`Causal`: 0 for "top-left", n_k − n_q for "bottom-right", and by default that of the argument causal (see
    :class:`~attnbook.ops.op.Placed`); i + shift is the place of query i. flash-attn's (left, right) is this pair;
    Hugging Face's ``sliding_window=w`` counts the query itself, so left is w − 1. A window of a few keys leaves few
    tiles to visit, and a tiled spine visits no others. The tokens at the first ``global_tokens`` places are seen by all
    and see all, as in Longformer; beside causal, all that comes before. It keeps nothing for the backward. Chapter:
    :doc:`/chapters/09_variants`.
    """

    left: int | None = None
    right: int | None = None
    corner: Corner | None = None
    global_tokens: int = 0
    heads_alike = strides = True

    def __post_init__(self) -> None:
        for name, none in (("left", ", or None"), ("right", ", or None"), ("global_tokens", "")):
            size = getattr(self, name)
            if size is not None or not none:
                wanted = f"a whole number of keys, at least 0{none}"
                object.__setattr__(self, name, whole(name, size, 0, wanted))
        check_corner(self.corner)

    def allowed(self, S: Any, tile: Tile) -> Any:
        xp = array_namespace(S)
        i, j = (xp.arange(r.start, r.stop, r.step, device=device(S)) for r in (tile.rows, tile.cols))
        i, j = i[:, None] + tile.shift(self.corner), j[None, :]
        far = (
            tile.rows.stop + tile.cols.stop + abs(tile.shift(self.corner))
        )  # beyond all keys; and i + far cannot overflow
        sides = []
        if self.right is not None:
            sides.append(j <= i + min(self.right, far))  # eq-op-causal, eq-op-window
        if self.left is not None:
            sides.append(j >= i - min(self.left, far))  # eq-op-window, def-mask-window
        if not sides:
            return xp.ones((len(tile.rows), len(tile.cols)), dtype=xp.bool, device=device(S))
        near = sides[0] if len(sides) == 1 else sides[0] & sides[1]
        g = min(self.global_tokens, far)
        return near | (j < g) | ((i >= 0) & (i < g)) if g else near  # eq-var-global

    def allows_all(self, tile: Tile) -> bool:
        if not tile:
            return True
        first, last = tile.rows.start + tile.shift(self.corner), end(tile.rows) - 1 + tile.shift(self.corner)
        right = self.right is None or end(tile.cols) - 1 <= first + self.right
        near = right and (self.left is None or tile.cols.start >= last - self.left)
        return near or tile in self._global(tile)

    def pattern(self, tile: Tile) -> Any:
        if self._global(tile):
            return None
        shift = tile.shift(self.corner)
        first = min(tile.rows.start, tile.cols.start) - self.global_tokens + min(shift, 0)  # no place becomes global
        rows, cols = (range(places.start - first, places.stop - first) for places in (tile.rows, tile.cols))
        return Tile(rows, cols, 0, shift)

    def live(self, tile: Tile) -> Tile:
        rows, cols, shift = tile.rows, tile.cols, tile.shift(self.corner)
        if self.right is not None:  # j ≤ i + shift + right
            rows = between(rows, first=cols.start - shift - self.right)
            cols = between(cols, last=end(rows) - 1 + shift + self.right) if rows else cols
        if self.left is not None:  # j ≥ i + shift − left
            rows = between(rows, last=end(cols) - 1 - shift + self.left) if cols else rows
            cols = between(cols, first=rows.start + shift - self.left)
        near = tile._replace(rows=rows, cols=cols)
        if not (parts := self._global(tile)):
            return near
        all_rows, all_cols = zip(*(part[:2] for part in (near, *parts) if part), strict=True)
        return tile._replace(rows=_hull(all_rows), cols=_hull(all_cols))

    def in_kernel(self, kernel: Kernel, table: Tile) -> Kernel | None:
        if self.global_tokens:
            return None
        low, high = kernel.low, kernel.high
        if self.left is not None:
            low = max(table.shift(self.corner) - self.left, -table.n_q if low is None else low)
        if self.right is not None:
            high = min(table.shift(self.corner) + self.right, table.n_k if high is None else high)
        return kernel._replace(low=low, high=high)

    def _global(self, tile: Tile) -> list[Any]:
        """The parts of the tile with global keys, and with global queries, where it has some."""
        g, shift = self.global_tokens, tile.shift(self.corner)
        if not g:
            return []
        keys = tile._replace(cols=between(tile.cols, last=g - 1))
        queries = tile._replace(rows=between(tile.rows, first=-shift, last=g - shift - 1))
        return [part for part in (keys, queries) if part]


class Causal(Window):
    """Allow key j for query i where j ≤ i, counted from the ``corner`` "top-left" or "bottom-right" of the table.

    "top-left" lines up the first query with the first key, as torch and JAX do; "bottom-right" the last with the last,
    as flash-attn does, and as a query that reads a cache of earlier keys needs. They agree where n_q = n_k.
    It is the :class:`Window` with no limit to the left and nothing to the right.
    Equation :eq:`eq-op-causal`. It keeps nothing for the backward. Chapter: :doc:`/chapters/04_single_head`.
    """

    def __init__(self, corner: Corner = "top-left") -> None:
        super().__init__(None, 0, corner)


def _hull(ranges: Any) -> range:
    """The smallest range with all of these."""
    return range(min(r.start for r in ranges), max(r.stop for r in ranges), ranges[0].step)


def live_part(M: Any, tile: Tile) -> Tile:
    """The smallest tile with all pairs that are True in M, which broadcasts to those of the tile."""
    if M.ndim < 2:
        M = M[(*(None,) * (2 - M.ndim), ...)]
    xp, lead = array_namespace(M), tuple(range(M.ndim - 2))
    M = xp.any(M, axis=lead) if lead else M
    rows, cols = (around(xp.any(M, axis=1), tile.rows, xp), around(xp.any(M, axis=0), tile.cols, xp))
    return tile._replace(rows=rows, cols=cols)


def around(live: Any, where: range, xp: Any) -> range:
    """The smallest range inside ``where`` that holds all its live places; ``live`` of one place speaks for all."""
    if live.shape[0] == 1:
        return where if bool(live[0]) else where[:0]
    if not bool(xp.any(live)):
        return where[:0]
    live = xp.astype(live, xp.uint8)
    first, last = int(xp.argmax(live)), live.shape[0] - int(xp.argmax(xp.flip(live)))
    return where[first:last]
