"""A call on NumPy, cut into what workers do: blocks of the table, their live tiles, and the memory they write to.

:mod:`attnbook.spines.numpy_tiled` says why. Its passes and those of :mod:`attnbook.spines.numpy_tangents` are made of
these parts.
"""

import math
import re
import sys
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.lib.introspect import opt_func_info

from attnbook.arrays import widen
from attnbook.ops import Tile, chain
from attnbook.spines.cuts import cuts_of, put
from attnbook.spines.tiled import pieces

LN2 = math.log(2)


def faster_in_bits(loops, system):
    """False, where NumPy has vector code for ``exp`` of float32 alone: on x86 without AVX-512 or Linux."""
    of_exp, of_exp2 = (loops.get(name, {}).get("ff", {}).get("current", "") for name in ("exp", "exp2"))
    both = system == "linux" and re.search("AVX512|X86_V4", of_exp2)
    return bool(both or not re.search("AVX|X86_V[34]", of_exp))


BITS = faster_in_bits(opt_func_info("exp"), sys.platform)
"""For float64, too, where the two take about as long."""


def unit_of(plan):
    """Nats that a score of this call has: those of a bit, where no op but masks is run on them, and that is faster."""
    return LN2 if plan.only_forbids and (BITS or plan.kernel) else 1.0


class Visit(NamedTuple):
    """A live tile: its rows in the strip, its columns in the block, and where masks cut through it."""

    tile: Tile
    here: slice
    there: slice
    cuts: list


class Work:
    """One call: its operands, its steps, and how the table is cut."""

    def __init__(self, Q, K, V, plan, unit):
        self.q, self.k, self.v = widen(Q), widen(K), widen(V)
        self.dtype, self.plan, self.tiles = self.q.dtype, plan, plan.tiles
        *lead, self.n_q, self.n_k = plan.shape
        self.lead, self.fast, self.drops = tuple(lead), plan.only_forbids, bool(plan.weights)
        self.plain = self.fast and not self.drops  # no op is run, so none needs to know which heads a tile has
        self.masks = [op for _, op in plan.scores] if self.fast else ()
        self.heads_differ = not all(op.heads_alike for op in plan.ops)
        # Q takes the unit of the scores in, with the scale; what is made from that Q needs it back at the end.
        self.exp = np.exp if unit == 1 else plan.kernel or np.exp2
        self.in_q, self.in_dQ, self.in_dK = plan.scale / unit, plan.scale, unit
        if self.plain and not self.heads_differ:
            self.merge()
        self.all_heads = tuple(map(range, self.lead))
        self._visits, self._shifts = {}, {}

    def merge(self):
        """All leading axes as one, where every operand has them and none must be copied: more heads to put together."""
        operands = (self.q, self.k, self.v)
        if len(self.lead) > 1 and all(T.shape[:-2] == self.lead and T.size and _in_a_row(T) for T in operands):
            self.q, self.k, self.v = (T.reshape(-1, *T.shape[-2:]) for T in operands)
            self.lead = self.q.shape[:-2]

    def blocks(self, rows, cols):
        """The table in blocks, one a task: some heads, ``rows`` queries and ``cols`` keys. The last queries or keys
        come first: under a causal mask the keys with most work are then done last, in the order of the sums.
        """
        (*outer, h), tiles = self.lead or (1,), self.tiles
        scores = max(1, min(self.n_q, tiles.rows) * min(self.n_k, tiles.cols))
        most = math.prod(self.lead) // tiles.tasks
        size = min(h, max(min(tiles.scores // scores, most), tiles.scores_a_task // scores))
        for T in (self.k, self.v):  # query heads that share a head of K or V go together, others apart
            if T.ndim > 2 and T.shape[-3] not in (1, h):
                size = math.gcd(size, h // T.shape[-3])
        heads = [
            (*(range(i, i + 1) for i in place), some) if self.lead else ()
            for place in np.ndindex(*outer)
            for some in pieces(range(h), max(1, size))
            if h
        ]
        return [
            Tile(r, c, self.n_q, self.n_k, lead)
            for lead in heads
            for c in reversed(pieces(range(self.n_k), cols))
            for r in reversed(pieces(range(self.n_q), rows))
        ]

    def strips(self, block):
        """The rows of tiles in a block, each with its visits; none, where all of a strip is masked."""
        key = (block.rows, block.cols, block.lead if self.heads_differ else None)
        if key not in self._visits:
            strips = []
            for rows in pieces(block.rows, self.tiles.rows):
                visits = []
                for cols in pieces(block.cols, self.tiles.cols):
                    tile = chain.live(self.plan.ops, block._replace(rows=rows, cols=cols))
                    if tile:
                        here, there = slice_of(tile.rows, rows), slice_of(tile.cols, block.cols)
                        visits.append(Visit(tile, here, there, cuts_of(self.masks, tile, self.dtype)))
                strips.append((rows, visits))
            self._visits[key] = strips
        return self._visits[key]

    def part(self, T, lead):
        """T at these heads."""
        return T if lead == self.all_heads else T[_heads(T.shape, lead, self.lead)]

    def operands(self, lead):
        return self.part(self.q, lead), self.part(self.k, lead), self.part(self.v, lead)

    def rows_of(self, block):
        """Where the rows of a block stand in arrays like O."""
        return block.index((*self.lead, self.n_q, 1))[:-1]

    @np.errstate(over="ignore")
    def needs_shift(self, lead, q, k, v):
        """Whether an exponential of these heads may leave the range that is safe: ``|S| ≤ max‖q‖ · max‖k‖``."""
        if lead not in self._shifts:
            safe = self.fast and q.size and k.size
            if safe:
                of_q, of_k, of_v = [math.sqrt(np.max(np.vecdot(T, T))) for T in (q, k, v)]
                bound = of_q * of_k * abs(self.plan.scale)  # eq-tile-bound
                safe = bound < self.tiles.bits * LN2 and of_v < 2.0**60  # no, if NaN
            self._shifts[lead] = not safe
        return self._shifts[lead]

    def exponentials(self, S, M, tile, cuts, shifted):
        """exp(S − M) on a tile, and what the ops saved. The same product as in the forward, and M subtracted after it
        as there: so S − M is exactly 0 where M was found, and a weight of 1 stays 1.
        """
        if not self.fast:
            S, saved = chain.forward(self.plan.scores, S, tile)
            return np.exp(S - M), saved
        if shifted:
            S -= M
            put(S, cuts, -np.inf)
        E = self.exp(S, out=S)  # eq-tile-two-parts, eq-softmax-from-logsumexp, eq-mask-recompute
        if not shifted:
            put(E, cuts, 0)
        return E, ()


class Buffer:
    """Memory that one worker writes again and again, in whatever shape comes."""

    def __init__(self, dtype):
        self._memory = np.empty(0, dtype)

    def view(self, shape):
        size = math.prod(shape)
        if self._memory.size < size:
            self._memory = np.empty(size, self._memory.dtype)
        return self._memory[:size].reshape(shape)


def _in_a_row(T):
    """Whether the leading axes become one without a copy."""
    steps = [(n, step) for n, step in zip(T.shape[:-2], T.strides[:-2], strict=True) if n > 1]
    return all(outer == n * inner for (_, outer), (n, inner) in pairwise(steps))


def _heads(shape, lead, sizes):
    """Where the heads ``lead`` stand in an array of ``shape``: an axis of length 1 serves all, a head its group."""
    n = len(shape) - 2
    return tuple(
        slice(None) if own == 1 else slice(r.start * own // size, (r.stop - 1) * own // size + 1)
        for own, size, r in zip(shape[:-2], sizes[len(sizes) - n :], lead[len(lead) - n :], strict=True)
    )


def slice_of(places, within=range(0)):
    return slice(places.start - within.start, places.stop - within.start)


def starts_with(strips, rows):
    """Whether the first tile has all these rows: then it need not add to zeros."""
    return bool(strips and strips[0][1]) and strips[0][1][0].tile.rows == rows


def add(T, A, B, buffer, straight):
    """T += A B; straight into T, where that holds nothing yet. False, for the next time."""
    if straight:
        np.matmul(A, B, out=T)
    else:
        T += np.matmul(A, B, out=buffer.view(T.shape))
    return False


def with_ones(T):
    """[T, 1]: its product with another factor adds up that factor's last column."""
    T1 = np.ones((*T.shape[:-1], T.shape[-1] + 1), T.dtype)
    T1[..., :-1] = T
    return T1


def beside(*parts):
    """Matrices side by side, each stretched to the leading axes of all and the rows of the first."""
    lead = np.broadcast_shapes(*(T.shape[:-2] for T in parts))
    return np.concatenate([np.broadcast_to(T, (*lead, parts[0].shape[-2], T.shape[-1])) for T in parts], axis=-1)
