"""Make far keys count less, by a slope a head: S ↦ S − slope · distance."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnbook.arrays import array_namespace, device, whole
from attnbook.ops.of_heads import OfHeads
from attnbook.ops.op import Kernel, Placed, Tile, check_corner
from attnbook.types import Corner


@dataclass(frozen=True, eq=False)
class ALiBi(OfHeads, Placed):
    """Subtract from each score the distance of its key, times the slope of its head, (h,), which learns.

    .. math:: S'_{ij} = S_{ij} - \\text{slope}\\cdot\\Delta_{ij} \\qquad \\Delta_{ij} = |j - i - \\text{shift}| \\qquad
       dS = dS' \\qquad d\\,\\text{slope} = -\\textstyle\\sum_{ij} \\Delta_{ij}\\,dS'_{ij}

    Equations :eq:`def-var-alibi` and :eq:`eq-var-alibi-slope`. The shift lines up a corner, as in
    :class:`~attnbook.ops.masks.Window`; with a cache of earlier keys it is "bottom-right", as in flash-attn, whose
    formula this is. Press, Smith and Lewis, "Train Short, Test Long", 2022, add slope · (j − i) behind a causal mask.
    Behind one of the same corner both are the same: no key comes later, and what is added to a whole row changes no
    weight (:eq:`eq-var-alibi-shift`). The slopes are an array: ``np.array(0.5)`` is one for all heads. It keeps nothing
    for the backward, and the fused spine has it too. Chapter: :doc:`/chapters/09_variants`.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook.ops import ALiBi, Tile
    >>> ALiBi(np.array(0.5), "top-left").forward(np.zeros((2, 3)), Tile.whole(2, 3))[0].tolist()
    [[0.0, -0.5, -1.0], [-0.5, 0.0, -0.5]]
    """

    slopes: Any
    corner: Corner | None = None
    arrays, learns, affine = ("slopes",), "slopes", True

    def __post_init__(self) -> None:
        check_corner(self.corner)
        super().__post_init__()

    def forward(self, S: Any, tile: Tile) -> tuple[Any, Any]:
        return S - self.spread(tile) * self._distances(S, tile), None  # def-var-alibi

    def vjp(self, dS: Any, saved: Any, tile: Tile) -> tuple[Any, Any]:
        return dS, self.summed(-dS * self._distances(dS, tile), tile)  # eq-var-alibi-slope

    def jvp(self, tS: Any, saved: Any, tile: Tile, tparam: Any = None) -> Any:
        return tS if tparam is None else tS - self.spread(tile, tparam) * self._distances(tS, tile)

    def in_kernel(self, kernel: Kernel, table: Tile) -> Kernel | None:
        if kernel.bias is not None or kernel.slopes is not None:
            return None
        slopes = self.slopes if self.own_axes is None else self.slopes[..., None, None]
        return kernel._replace(slopes=slopes, shift=table.shift(self.corner))

    def _distances(self, like: Any, tile: Tile) -> Any:
        xp = array_namespace(like)
        i, j = (
            xp.arange(r.start, r.stop, r.step, dtype=like.dtype, device=device(like)) for r in (tile.rows, tile.cols)
        )
        return xp.abs(j - i[:, None] - tile.shift(self.corner))


def alibi_slopes(h: int) -> Any:
    """The slopes of the paper for ``h`` heads: a float64 NumPy array.

    .. math:: \\text{slope}_k = 2^{-8k/h} \\qquad k = 1, \\dots, h

    Where h is no power of two, those of the next lower one, and then every other one of the next higher.

    Raises
    ------
    ValueError
        h is no whole number of at least 1.

    Examples
    --------
    >>> from attnbook.ops import alibi_slopes
    >>> alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    h = whole("h", h, 1, "a whole number of heads, at least 1")
    lower = 2 ** (h.bit_length() - 1)
    steps = [*range(2, 2 * lower + 1, 2), *range(1, 2 * (h - lower), 2)]
    return 2.0 ** (-4 * np.array(steps) / lower)
