"""Add a learned number for each distance between query and key: S ↦ S + table[distance]."""

from dataclasses import dataclass
from typing import Any

from attnbook.arguments import check_flags
from attnbook.arrays import array_namespace, clip, device, expected, unbroadcast, whole
from attnbook.ops.op import Op, Placed, Tile, check_corner
from attnbook.types import Corner


@dataclass(frozen=True)
class T5Buckets:
    """The buckets of T5: near distances have one each, far ones share, the farther the more; the last begins at
    ``max_distance``.

    With ``bidirectional`` half of them are for later keys; else these share the bucket of distance 0.
    """

    num_buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True

    def __post_init__(self) -> None:
        least = 4 if self.bidirectional else 2
        for name, low in (("num_buckets", least), ("max_distance", 1)):
            n = whole(name, getattr(self, name), low, f"a whole number, at least {low}")
            object.__setattr__(self, name, n)
        check_flags(bidirectional=self.bidirectional)
        if self.bidirectional and self.num_buckets % 2:
            raise ValueError(expected("num_buckets", "an even number, half of it a direction", self.num_buckets))
        if self.max_distance <= self._exact:
            wanted = f"more than the {self._exact} distances that have a bucket each"
            raise ValueError(expected("max_distance", wanted, self.max_distance))

    def __call__(self, distances: Any) -> Any:
        """The bucket of each distance j − i."""
        xp = array_namespace(distances)
        far = xp.abs(distances) if self.bidirectional else xp.where(distances < 0, -distances, xp.zeros_like(distances))
        found = xp.zeros_like(distances)
        for limit in self._limits():  # numbers of Python's: an array of them would be copied to the device each time
            found = found + xp.astype(far >= limit, distances.dtype)
        return xp.where(distances > 0, found + self._one_way, found) if self.bidirectional else found

    @property
    def _one_way(self) -> Any:
        """The buckets of one direction."""
        return self.num_buckets // 2 if self.bidirectional else self.num_buckets

    @property
    def _exact(self) -> Any:
        """How many of these have one distance each."""
        return self._one_way // 2

    def _limits(self) -> Any:
        """Where the buckets of a direction begin, but for the first: one after the other, then evenly in log n."""
        exact, shared = self._exact, self._one_way - self._exact
        limits = list(range(1, exact + 1))
        for k in range(1, shared):  # the first n with (n / exact)^shared ≥ (max_distance / exact)^k, in whole numbers
            n = int(exact * (self.max_distance / exact) ** (k / shared))
            limits.append(n + (n**shared < exact ** (shared - k) * self.max_distance**k))
        return limits


@dataclass(frozen=True, eq=False)
class RelativeBias(Placed):
    """Add to each score the entry of ``table``, (h, n) or (n,) for all heads, that belongs to its distance.

    .. math:: S'_{ij} = S_{ij} + \\hat B_{b(j - i - \\text{shift})} \\qquad dS = dS' \\qquad
       d\\hat B_k = \\sum_{b(j - i - \\text{shift}) = k} dS'_{ij}

    Equations :eq:`def-var-table` and :eq:`eq-var-table-vjp`. Without ``buckets`` the table has 2R + 1 entries for the
    distances −R, …, R, and those beyond share the last on their side; with :class:`T5Buckets` one for each. The shift
    lines up a corner, as in :class:`~attnbook.ops.alibi.ALiBi`. T5 itself has no scale, ``scale=1.0``, and keeps its
    table as (buckets, heads): here it is transposed. It keeps nothing for the backward. The fused spine
    refuses it, as it has no sums along diagonals. Sources: Shaw et al., 2018; Raffel et al., 2020. Chapter:
    :doc:`/chapters/09_variants`.
    """

    table: Any
    buckets: T5Buckets | None = None
    corner: Corner | None = None
    arrays, learns, own_axes, affine = ("table",), "table", 1, True

    def __post_init__(self) -> None:
        check_corner(self.corner)
        if self.buckets is not None and not isinstance(self.buckets, T5Buckets):
            raise TypeError(expected("buckets", "T5Buckets or None", type(self.buckets).__name__))

    without_gradient = Op.not_learning

    def check(self, name: str, like: Any, like_name: str, shape: tuple[int, ...]) -> None:
        super().check(name, like, like_name, shape)
        n, b = self.table.shape[-1], self.buckets
        if n % 2 == 0 if b is None else n != b.num_buckets:
            wanted = "an odd number of entries, 2R + 1" if b is None else f"{b.num_buckets} entries, one a bucket"
            raise ValueError(expected(name, wanted, f"shape {tuple(self.table.shape)}"))

    def forward(self, S: Any, tile: Tile) -> tuple[Any, Any]:
        return S + self._spread(self.here(tile, self.table), tile), None  # def-var-table

    def vjp(self, dS: Any, saved: Any, tile: Tile) -> tuple[Any, Any]:
        """First the sum along each diagonal, which has one distance, then that of the diagonals of a bucket."""
        if self.learns is None:
            return dS, None
        xp, table = array_namespace(dS), self.here(tile)
        diagonals = _sum_diagonals(xp, dS)
        buckets = self._of_diagonals(xp, dS, tile)
        hits = xp.astype(buckets[:, None] == xp.arange(table.shape[-1], device=device(dS)), dS.dtype)
        return dS, unbroadcast(diagonals @ hits, table.shape)  # eq-var-table-vjp

    def jvp(self, tS: Any, saved: Any, tile: Tile, tparam: Any = None) -> Any:
        return tS if tparam is None else tS + self._spread(self.here(tile, tparam), tile)

    def _of_diagonals(self, xp: Any, like: Any, tile: Tile) -> Any:
        """The bucket of each diagonal of the tile, from its lower left corner to the upper right one."""
        first, n = tile.cols.start - tile.rows.stop + 1 - tile.shift(self.corner), len(tile.rows) + len(tile.cols) - 1
        distances = xp.arange(first, first + max(n, 0), device=device(like))
        if self.buckets is not None:
            return self.buckets(distances)
        R = self.table.shape[-1] // 2
        return clip(distances, -R, R) + R

    def _spread(self, T: Any, tile: Tile) -> Any:
        xp, r, c = array_namespace(T), len(tile.rows), len(tile.cols)
        T = xp.take(T, self._of_diagonals(xp, T, tile), axis=-1)
        at = xp.arange(c, device=device(T)) - xp.arange(r, device=device(T))[:, None] + (r - 1)
        return xp.reshape(xp.take(T, xp.reshape(at, (-1,)), axis=-1), (*T.shape[:-1], r, c))


def _sum_diagonals(xp: Any, T: Any) -> Any:
    """The sums along the diagonals of (..., r, c), from the lower left corner to the upper right one: row i is moved by
    i to the left, when zeros stand behind each row and a row is then said to be shorter by one.
    """
    *lead, r, c = T.shape
    n = max(r + c - 1, 0)
    zeros = xp.zeros((*lead, r, r), dtype=T.dtype, device=device(T))
    rows = xp.reshape(xp.concat([xp.flip(T, axis=-2), zeros], axis=-1), (*lead, r * (r + c)))
    return xp.sum(xp.reshape(rows[..., : r * n], (*lead, r, n)), axis=-2)
