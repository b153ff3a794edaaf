"""A mask that is drawn in blocks: what is forbidden is forbidden a whole block at a time, and need not be visited."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnbook.arguments import check_mask
from attnbook.arrays import array_namespace, device, expected, is_numpy, on_host
from attnbook.ops.masks import Masking, live_part
from attnbook.ops.op import Kernel, Op, Tile


@dataclass(frozen=True, eq=False)
class BlockMask(Masking):
    """Allow the pairs of each block of ``size`` × ``size`` tokens, or of a pair of sizes, where ``blocks`` is True.

    .. math:: M_{ij} = B_{\\lfloor i / \\text{size} \\rfloor \\lfloor j / \\text{size} \\rfloor}

    Equation :eq:`eq-op-blocks`. ``blocks`` is a bool array with a row for every ``size`` queries and a column for
    every ``size`` keys, and what is left at the ends; the axes before broadcast to those of the scores. A tiled spine
    cuts its tiles where the blocks end, and visits no dead one, if they are on the host; heads that a task takes
    together share their visits. The fused kernels are given all pairs as a mask, a byte each. It keeps nothing for the
    backward. Chapter: :doc:`/chapters/09_variants`.

    Examples
    --------
    Queries 2 and 3 have no live block:

    >>> import numpy as np
    >>> import attnbook as ab
    >>> live, ones = np.array([[True, False], [False, False]]), np.ones((4, 1))
    >>> ab.attention(ones, ones, ones, ops=[ab.ops.BlockMask(live, 2)])[0].T.tolist()
    [[1.0, 1.0, 0.0, 0.0]]
    """

    blocks: Any
    size: Any
    arrays, own_axes = ("blocks",), 2

    def __post_init__(self) -> None:
        sizes = self.size if isinstance(self.size, tuple) else (self.size,)
        if (
            len(sizes) > 2
            or not sizes
            or not all(isinstance(n, int | np.integer) and type(n) is not bool and n > 0 for n in sizes)
        ):
            raise ValueError(expected("size", "a number of tokens, at least 1, or a pair of them", repr(self.size)))
        sizes = tuple(map(int, sizes))
        object.__setattr__(self, "size", sizes if isinstance(self.size, tuple) else sizes[0])

    @property
    def grid(self) -> tuple[Any, Any]:  # type: ignore[override]
        return self.size if isinstance(self.size, tuple) else (self.size, self.size)

    @property
    def heads_alike(self) -> bool:
        return self.blocks.ndim < 3

    def check(self, name: str, like: Any, like_name: str, shape: tuple[int, ...]) -> None:
        check_mask(self.blocks, like, like_name, name)
        came = tuple(self.blocks.shape)
        wanted = tuple(-(-n // size) for n, size in zip(shape[-2:], self.grid, strict=True))
        if came[-2:] != wanted:
            raise ValueError(expected(name, f"{wanted[0]} × {wanted[1]} blocks of {self.grid}", f"shape {came}"))
        Op.check(self, name, like, like_name, shape)

    def allowed(self, S: Any, tile: Tile) -> Any:
        M = tile.cut(self.blocks, self.own_axes)
        xp = array_namespace(M)
        for axis, places, size in zip((-2, -1), (tile.rows, tile.cols), self.grid, strict=True):
            M = xp.take(M, xp.arange(places.start, places.stop, device=device(M)) // size, axis=axis)  # eq-op-blocks
        return M

    def allows_all(self, tile: Tile) -> bool:
        return is_numpy(self.blocks) and bool(self._on(tile)[0].all())

    def live(self, tile: Tile) -> Tile:
        if not on_host(self.blocks):
            return tile
        M, rows, cols = self._on(tile)
        if not bool(array_namespace(M).any(M)):  # most tiles
            return tile._replace(cols=range(tile.cols.start, tile.cols.start))
        live = live_part(M, tile._replace(rows=rows, cols=cols))
        rows, cols = (
            range(max(places.start, part.start * size), min(places.stop, part.stop * size))
            for places, part, size in zip(tile[:2], live[:2], self.grid, strict=True)
        )
        return tile._replace(rows=rows, cols=cols)

    def in_kernel(self, kernel: Kernel, table: Tile) -> Kernel | None:
        return kernel._replace(mask=self.allowed(None, table)) if kernel.mask is None else None

    def _on(self, tile: Tile) -> tuple[Any, ...]:
        """The blocks that the tile has a part of, and their ranges."""
        rows, cols = (range(p.start // size, -(-p.stop // size)) for p, size in zip(tile[:2], self.grid, strict=True))
        M = tile.cut(self.blocks, self.own_axes)
        return M[..., rows.start : rows.stop, cols.start : cols.stop], rows, cols
