"""Many documents in one row of tokens: a query sees the keys of its own, and of these perhaps only the earlier."""

from dataclasses import dataclass
from typing import Any, Self

from attnbook.arguments import check_broadcasts, choose
from attnbook.arrays import agree_on_place, array_namespace, device, expected, is_array, is_numpy, on_host
from attnbook.ops.masks import Masking, live_part
from attnbook.ops.op import Kernel, Tile

ENDS = {False: None, True: 0, "top-left": 0, "bottom-right": 1}


@dataclass(frozen=True, eq=False)
class Segments(Masking):
    """Allow key j for query i where both have the same number; with places, only where the key's is not the later one.

    .. math:: M_{ij} = \\bigl(\\text{q\\_ids}_i = \\text{k\\_ids}_j\\bigr) \\wedge
       \\bigl(\\text{k\\_places}_j \\le \\text{q\\_places}_i\\bigr)

    Equation :eq:`eq-op-segments`. Integer arrays (..., n_q) and (..., n_k), whose leading axes broadcast to those of
    the scores. :meth:`~attnbook.ops.segments.Segments.packed` makes them from cumulative lengths. ``causal=True`` and
    Window count across the table, which is right within documents too where queries and keys are packed alike.
    A tiled spine visits no tile without a pair, if the arrays are on the host; the fused kernels are given all pairs as
    a mask, a byte each. It keeps nothing for the backward. Chapter: :doc:`/chapters/09_variants`.

    Examples
    --------
    A prefix of 2 tokens that all may see, and after it each only what came before:

    >>> import numpy as np
    >>> from attnbook.ops import Segments, Tile
    >>> one, place = np.zeros(4, int), np.arange(4)
    >>> prefix_lm = Segments(one, one, place, np.where(place < 2, 0, place))
    >>> prefix_lm.allowed(np.zeros((4, 4)), Tile.whole(4, 4)).astype(int).tolist()
    [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    """

    q_ids: Any
    k_ids: Any
    q_places: Any = None
    k_places: Any = None
    own_axes, strides = 1, True

    @classmethod
    def packed(cls, cu_seqlens_q: Any, cu_seqlens_k: Any = None, causal: bool = False) -> Self:
        """Documents that follow one another, from the cumulative lengths ``cu_seqlens`` that the varlen kernels of
        flash-attn take: (0, …, n), integers. They have Q as (total, h, d), where it is (h, total, d) here.

        Those of the keys are by default those of the queries. ``causal`` counts in each document from the corner of its
        own table: True or "top-left", or "bottom-right", as flash-attn does.
        """
        corner = choose("causal", causal, ENDS)
        starts = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k}
        ids, places = zip(*(_of_documents(name, cu, corner or 0) for name, cu in starts.items()), strict=True)
        if (came := len(starts["cu_seqlens_k"])) != (wanted := len(cu_seqlens_q)):
            raise ValueError(expected("cu_seqlens_k", f"{wanted} numbers, as cu_seqlens_q", came))
        return cls(*ids) if corner is None else cls(*ids, *places)

    @property
    def arrays(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("q_ids", "k_ids") if self.q_places is None else ("q_ids", "k_ids", "q_places", "k_places")

    @property
    def heads_alike(self) -> bool:
        return all(getattr(self, name).ndim < 2 for name in self.arrays)

    def check(self, name: str, like: Any, like_name: str, shape: tuple[int, ...]) -> None:
        if (self.q_places is None) != (self.k_places is None):
            raise TypeError(expected(f"{name}, places", "those of queries and of keys, or none", "one of them"))
        for field in self.arrays:
            T, n = getattr(self, field), shape[-2] if field.startswith("q") else shape[-1]
            agree_on_place(f"{name}, {field}", T, like_name, like)
            if not array_namespace(T).isdtype(T.dtype, "integral"):
                raise TypeError(expected(f"{name}, {field}", "integers", T.dtype))
            came = tuple(T.shape)
            if came[-1:] != (n,):
                raise ValueError(expected(f"{name}, {field}", f"{n} numbers in the last axis", f"shape {came}"))
            lead = "the leading axes of the scores"
            check_broadcasts(f"{name}, {field}", came[:-1], shape[:-2], lead, f"shape {came}")

    def allowed(self, S: Any, tile: Tile) -> Any:
        q, k = self._cut(tile, 0)
        if self.q_places is None:
            return q == k
        i, j = self._cut(tile, 2)
        return (q == k) & (j <= i)  # eq-op-segments

    def allows_all(self, tile: Tile) -> bool:
        if not is_numpy(self.q_ids) or not (tile and self.q_ids.size and self.k_ids.size):
            return False
        if len({T for ids in self._cut(tile, 0) for T in (ids.min(), ids.max())}) > 1:
            return False
        i, j = (None, None) if self.q_places is None else self._cut(tile, 2)
        return i is None or bool(j.max() <= i.min())

    def live(self, tile: Tile) -> Tile:
        if not on_host(self.q_ids):
            return tile
        q, k = self._cut(tile, 0)
        xp = array_namespace(q)
        if bool((xp.max(q) < xp.min(k)) | (xp.max(k) < xp.min(q))):  # most tiles, where documents are in order
            return tile._replace(cols=range(tile.cols.start, tile.cols.start))
        return live_part(self.allowed(q, tile), tile)

    def in_kernel(self, kernel: Kernel, table: Tile) -> Kernel | None:
        return kernel._replace(mask=self.allowed(None, table)) if kernel.mask is None else None

    def _cut(self, tile: Tile, first: Any) -> tuple[Any, ...]:
        """Of two arrays, from the first on, what is on the tile, (..., rows, 1) and (..., 1, cols)."""
        q, k = (getattr(self, name) for name in self.arrays[first : first + 2])
        return tile.cut(q[..., :, None]), tile.cut(k[..., None, :])


def _of_documents(name: str, cu: Any, end: Any) -> tuple[Any, ...]:
    """For each token of documents with these ends its document, and its place from that one's first or last token."""
    if not is_array(cu) or not array_namespace(cu).isdtype(cu.dtype, "integral"):
        raise TypeError(expected(name, "an array of integers", getattr(cu, "dtype", type(cu).__name__)))
    xp = array_namespace(cu)
    if cu.ndim != 1 or not cu.shape[0] or int(cu[0]) != 0 or bool(xp.any(cu[1:] < cu[:-1])):
        raise ValueError(expected(name, "numbers on one axis that begin with 0 and never fall", cu))
    tokens = xp.arange(int(cu[-1]), dtype=cu.dtype, device=device(cu))
    ids = xp.searchsorted(cu[1:], tokens, side="right")
    return ids, tokens - xp.take(cu, ids + end, axis=0)
