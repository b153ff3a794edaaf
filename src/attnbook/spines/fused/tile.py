"""What all kernels do with one tile: load its rows, make its scores, take its exponentials.

A kernel never sees a whole table. It is told where a tile begins (i0, j0) and gets everything else from here, so the
forward and the backward cannot disagree about a mask. Chapter: :doc:`/chapters/12_gpu`.
"""

from typing import NamedTuple

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
TAYLOR = tl.constexpr(0.4)
"""Below this, tanh by its series: 1 − e would cancel there."""


class Rows(NamedTuple):
    """Q, K, V, O or a gradient, (B, heads, n, width): where it begins, and how far apart neighbours lie in memory.

    The entries of a row are neighbours. ``group`` query heads share a head.
    """

    data: object
    batch: int
    head: int
    row: int
    group: int


class Pairs(NamedTuple):
    """A mask or a bias, stretched to (B, h, n_q, n_k): an axis along which it is stretched has a step of 0."""

    data: object
    batch: int
    head: int
    row: int
    col: int


class Table(NamedTuple):
    """The score table. U is QKᵀ, or the cap's tanh of it, or, with a bias, S itself; and S log₂e = U · unit.

    Key j is allowed for query i where low ≤ j − i ≤ high, each None for no limit, and where ``mask`` allows it. With a
    softcap, ``inner`` is scale/cap. ``factor`` is the scale or the cap, to be multiplied with before a bias is added.
    ``has_bias`` and ``has_mask`` are 1 or None, and stand last: behind a tuple in a tuple, Triton 3.6 loses constants,
    and it cannot compare one with None.
    """

    h: int
    n_q: int
    n_k: int
    low: object
    high: object
    inner: object
    factor: float
    unit: float
    bias: object
    mask: object
    has_bias: object
    has_mask: object


@triton.jit
def load(T, b, h, start, n, SIZE: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, EDGE: tl.constexpr):
    """SIZE rows of one head from ``start`` on, padded to a power of two: 0 beyond its width and, at the edge, its end.

    Offsets of whole rows are 64 bits wide, those within a tile 32.
    """
    row, col = tl.arange(0, SIZE)[:, None], tl.arange(0, PADDED)[None, :]
    corner = T.data + b * T.batch + h // T.group * T.head + tl.cast(start, tl.int64) * T.row
    at = corner + (row * T.row + col)
    if EDGE:
        return tl.load(at, mask=(start + row < n) & (col < WIDTH), other=0.0)
    if WIDTH < PADDED:
        return tl.load(at, mask=col < WIDTH, other=0.0)
    return tl.load(at)


@triton.jit
def store(T, b, h, start, n, values, SIZE: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """SIZE rows, rounded to the dtype of T; nothing beyond its width and its end."""
    row, col = tl.arange(0, SIZE)[:, None], tl.arange(0, PADDED)[None, :]
    corner = T.data + b * T.batch + h * T.head + tl.cast(start, tl.int64) * T.row
    tl.store(corner + (row * T.row + col), values.to(T.data.dtype.element_ty), (start + row < n) & (col < WIDTH))


@triton.jit
def load_pairs(T, table, b, h, i0, j0, i, j, other):
    """A tile of a mask or a bias. i and j count from its corner; one is a column, the other a row."""
    corner = T.data + b * T.batch + h * T.head + tl.cast(i0, tl.int64) * T.row + tl.cast(j0, tl.int64) * T.col
    return tl.load(corner + (i * T.row + j * T.col), mask=(i0 + i < table.n_q) & (j0 + j < table.n_k), other=other)


@triton.jit
def scores(X, table, b, h, i0, j0, i, j, EDGE: tl.constexpr):
    """From X = QKᵀ on a tile to U, −∞ where a key is forbidden, and T, the tanh that the cap's derivative needs.

    The order is that of attention: scale, softcap, bias, masks. Whether the tile stands upright or is transposed, i
    and j know.
    """
    T = X
    if table.inner is not None:
        T = tanh(X * table.inner)
    U = T
    if table.has_bias is not None:
        U = T * table.factor + load_pairs(table.bias, table, b, h, i0, j0, i, j, 0.0).to(tl.float32)
    if table.has_mask is not None:
        U = tl.where(load_pairs(table.mask, table, b, h, i0, j0, i, j, 0) != 0, U, float("-inf"))
    if EDGE:
        distance = (j0 + j) - (i0 + i)
        allowed = (j0 + j < table.n_k) & (i0 + i < table.n_q)
        if table.low is not None:
            allowed = allowed & (distance >= table.low)
        if table.high is not None:
            allowed = allowed & (distance <= table.high)
        U = tl.where(allowed, U, float("-inf"))
    return U, T


@triton.jit
def exponent(U, M, G, table, EXACT: tl.constexpr):
    """log₂ P = (U − M) unit − G, with G = log₂ Z; or U · unit − G, with G = M · unit + log₂ Z, that is L log₂e. M and G
    lie along the queries of the tile.

    EXACT: U − M of two close floats has no error, and a weight of 1 stays 1 however large the scores are. Else one
    multiply-add an entry does, with errors far below the rounding of 16-bit weights; but not with a bias, which may be
    so large that U · unit overflows.
    """
    if EXACT or table.has_bias is not None:
        return (U - M) * table.unit - G
    return U * table.unit - G


@triton.jit
def weights(X, M, G, table, b, h, i0, j0, i, j, EDGE: tl.constexpr, EXACT: tl.constexpr):
    """P on a tile, made again from X = QKᵀ, M and G, and the cap's tanh."""
    U, T = scores(X, table, b, h, i0, j0, i, j, EDGE)
    return tl.exp2(exponent(U, M, G, table, EXACT)), T


@triton.jit
def before_cap(dS, T, table):
    """The gradient of the capped scores, read back through the cap."""
    if table.inner is not None:
        dS = dS * (1 - T * T)
    return dS


@triton.jit
def tanh(x):
    x2 = x * x
    series = x * (1 + x2 * (-1 / 3 + x2 * (2 / 15 + x2 * (-17 / 315 + x2 * (62 / 2835 - x2 * (1382 / 155925))))))
    e = tl.exp2(tl.abs(x) * (-2 * LOG2E))
    away = (1 - e) / (1 + e)
    return tl.where(tl.abs(x) < TAYLOR, series, tl.where(x < 0, -away, away))


@triton.jit
def span(start, stop, n, low, high, STEP: tl.constexpr):
    """Where those begin and end that meet any of the places start … stop − 1, low ≤ other − own ≤ high; and in between
    where the tiles begin and end all of whose pairs are allowed. The first three are multiples of STEP.
    """
    first, last = 0, n
    inner_first, inner_last = 0, n
    if low is not None:
        first = tl.maximum(start + low, 0) // STEP * STEP
        inner_first = tl.cdiv(tl.maximum(stop - 1 + low, 0), STEP) * STEP
    if high is not None:
        last = tl.minimum(stop + high, n)
        inner_last = tl.minimum(start + high + 1, n)
    inner_last = tl.maximum(inner_last, 0) // STEP * STEP
    inner_first = tl.minimum(inner_first, tl.cdiv(tl.maximum(last, first), STEP) * STEP)
    inner_last = tl.maximum(inner_first, inner_last)
    return first, inner_first, inner_last, last


@triton.jit
def edge(t, first, inner_first, inner_last, STEP: tl.constexpr):
    """The t-th tile of those that lie in ``span`` but not in its inner part."""
    left = (inner_first - first) // STEP
    return tl.where(t < left, first + t * STEP, inner_last + (t - left) * STEP)


@triton.jit
def edges(first, inner_first, inner_last, last, STEP: tl.constexpr):
    """How many these are."""
    return (inner_first - first) // STEP + tl.cdiv(tl.maximum(last - inner_last, 0), STEP)


INTERPRETED = not isinstance(load, triton.JITFunction)
"""Whether Triton's interpreter runs the kernels: TRITON_INTERPRET was set when Triton was imported."""
