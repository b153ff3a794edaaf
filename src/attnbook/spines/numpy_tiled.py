"""The tiled spine on NumPy: the lines of :mod:`attnbook.spines.tiled`, made fast. Each trick is one named step.

Exponentials are base 2.
    ``exp2`` is faster than ``exp`` in float32, and as fast in float64. The scale and log₂e go into Q once, so that the
    product gives S in bits. Gradients are in nats: what is made from the scaled Q is multiplied by ln 2 at the end.
No shift where none is needed.
    A score is at most max‖q‖ · max‖k‖. Where that is small, no exponential can overflow, and the running maximum, its
    subtraction and the rescaling are left out: M = 0.
D is one more column.
    [dO, −D]·[v, 1] = dP − D: the subtraction costs one column of a product, not a pass over the tile. 1/Z goes into
    dO, so P is never divided.
Only live tiles are visited.
    What is masked as a whole is left out, and tiles that a mask cuts are cut down to their live rows and columns. The
    list is made once for all heads that share it.
Masked exponentials become 0 afterwards.
    Where S is known to be finite, that is the faster way: exp2(−∞) is slow. Along a diagonal one pattern of zeros and
    ones recurs, as large as the part of the tile that it cuts; the exponentials are multiplied by it.
Buffers are written again and again.
    Fresh memory is slow on first touch.
Results lie in memory as the inputs do.
    The heads of a layer stand side by side in a row of its projections; so do those of O, and no copy merges them.
Workers take heads, and of large heads blocks.
    Blocks of queries in the forward, of keys in the backward; see :mod:`attnbook.spines.workers`.

Only the scale and masks take the fast lane; any other op runs as it is written, on S in nats, between the products.
"""

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from attnbook.arrays import narrow, quietly, widen
from attnbook.ops import Tile, chain
from attnbook.spines import columns
from attnbook.spines.cuts import cuts_of, put
from attnbook.spines.operands import check_numpy, in_order, less_dL, row_sums
from attnbook.spines.sums import Sums
from attnbook.spines.tiled import Residuals, check_sizes, hvp, jvp, on_grid, pieces
from attnbook.spines.workers import run

__all__ = ["Residuals", "Tiles", "forward", "hvp", "jvp", "prepare", "vjp"]

LN2 = math.log(2)


class Tiles(NamedTuple):
    """How the table is cut.

    Tiles of ``rows`` × ``cols``; a task of the backward has ``keys``, whole tiles of them. Small heads are put together
    up to so many ``scores``, while so many ``tasks`` remain, or up to ``scores_a_task``: with less to do, workers
    mostly wait for Python's lock. No shift where scores are below so many ``bits``: 2^-32 ≤ exp2(S) ≤ 2^32, whose sums,
    and products with V, stay far inside float32.
    """

    rows: int = 512
    cols: int = 256
    keys: int = 1024
    scores: int = 2**17
    tasks: int = 8
    scores_a_task: int = 2**16
    bits: float = 32.0


def prepare(plan, given):
    """The plan with tiles: float32 has twice the rows of float64, and so as many bytes; and fewer columns where the
    edge of a mask cuts through tiles, half of each lost.
    """
    check_numpy(plan, given)
    check_sizes(plan.tiles, ("rows", "cols", "keys", "tasks"))
    if plan.tiles is not None:
        return plan
    tiles, n_k = Tiles(), plan.shape[-1]
    wide = next(iter(given.values())).dtype.itemsize == 8
    cols = min(tiles.cols, max(tiles.cols // 4, n_k // 16)) if plan.scores and n_k > tiles.cols // 2 else tiles.cols
    tiles = on_grid(tiles._replace(rows=tiles.rows * (1 if wide else 2), cols=cols), plan)
    keys = max(1, tiles.keys // tiles.cols) * tiles.cols  # whole tiles: the backward cuts as the forward did
    return plan._replace(tiles=tiles._replace(keys=keys))


def forward(Q, K, V, plan):
    """As :func:`attnbook.spines.tiled.forward`."""
    work = _Work(Q, K, V, plan)
    O = np.empty_like(work.q, shape=(*work.lead, work.n_q, work.v.shape[-1]))
    M, Z = np.empty((2, *work.lead, work.n_q, 1), work.dtype)

    def task(_, block):
        at = work.rows_of(block)
        work.forward_block(block, O[at], M[at], Z[at])

    run(task, work.blocks(work.tiles.rows, work.n_k))
    if work.lead != plan.shape[:-2]:
        O, M, Z = (T.reshape(*plan.shape[:-1], T.shape[-1]) for T in (O, M, Z))
    if plan.columns:
        O, M, Z = columns.add(plan, O, M, Z, work.unit)
    return narrow(O, Q.dtype), Residuals(Q, K, V, O, M, Z, plan, work.unit)


def vjp(dO, dL, res):
    """As :func:`attnbook.spines.tiled.vjp`."""
    work = _Work(res.Q, res.K, res.V, res.plan)
    kept = [widen(dO), res.O, res.M, res.Z]
    if dL is not None:
        kept.append(less_dL(np.zeros_like(res.Z), dL, res.Z))
    kept = [T.reshape(*work.lead, *T.shape[-2:]) for T in kept]  # the call's leading axes, as those of the work
    sums = Sums(work)
    run(lambda place, block: work.backward_block(place, block, kept, sums), work.blocks(work.n_q, work.tiles.keys))
    grads = [
        narrow(dT.reshape(T.shape), T.dtype) for dT, T in zip(sums.grads.values(), (res.Q, res.K, res.V), strict=True)
    ]
    if res.plan.columns:
        sums.dparams |= columns.vjp(row_sums(dO, dL, res), res)
    return *grads, in_order(sums.dparams, res)


class _Visit(NamedTuple):
    """A live tile: its rows in the strip, its columns in the block, and where masks cut through it."""

    tile: Tile
    here: slice
    there: slice
    cuts: list


class _Work:
    """One call: its operands, its steps, and how the table is cut. The methods are what a worker does."""

    def __init__(self, Q, K, V, plan):
        self.q, self.k, self.v = widen(Q), widen(K), widen(V)
        self.dtype, self.plan, self.tiles = self.q.dtype, plan, plan.tiles
        *lead, self.n_q, self.n_k = plan.shape
        self.lead, self.fast, self.drops = tuple(lead), plan.only_forbids, bool(plan.weights)
        self.plain = self.fast and not self.drops  # no op is run, so none needs to know which heads a tile has
        self.masks = [op for _, op in plan.scores] if self.fast else ()
        self.heads_differ = not all(op.heads_alike for op in plan.ops)
        # Scores are in bits on the fast lane, else in nats. Q takes the unit in, with the scale; what is made from that
        # Q needs it back at the end.
        self.unit, self.exp = (LN2, np.exp2) if self.fast else (1.0, np.exp)
        self.in_q, self.in_dQ, self.in_dK = plan.scale / self.unit, plan.scale, self.unit
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
        size = min(h, max(min(tiles.scores // scores, h // tiles.tasks), tiles.scores_a_task // scores))
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
                        here, there = _slice(tile.rows, rows), _slice(tile.cols, block.cols)
                        visits.append(_Visit(tile, here, there, cuts_of(self.masks, tile, self.dtype)))
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
        """Whether an exponential of these heads may leave the range that is safe: |S| ≤ max‖q‖ · max‖k‖."""
        if lead not in self._shifts:
            safe = self.fast and q.size and k.size
            if safe:
                longest_q, longest_k, longest_v = [math.sqrt(np.max(np.vecdot(T, T))) for T in (q, k, v)]
                safe = longest_q * longest_k * abs(self.in_q) < self.tiles.bits and longest_v < 2.0**60  # no, if NaN
            self._shifts[lead] = not safe
        return self._shifts[lead]

    @quietly
    def forward_block(self, block, O, M, Z):
        """The online softmax of one block of queries, into O, M and Z."""
        q, k, v = self.operands(block.lead)
        size, shifted = Z.shape[:-2], self.needs_shift(block.lead, q, k, v)
        scores, products, ones = _Buffer(self.dtype), _Buffer(self.dtype), np.ones((self.tiles.cols, 1), self.dtype)
        strips = self.strips(block)
        straight = _starts_with(strips, block.rows)
        Z[...], M[...] = 0, -np.inf if shifted else 0
        if shifted or not straight:  # shifted: fading meets what memory held before, ∞ · 0
            O[...] = 0
        q1 = np.empty((*size, len(block.rows), q.shape[-1]), self.dtype)
        np.multiply(q[..., _slice(block.rows), :], self.dtype.type(self.in_q), out=q1)
        for _, visits in strips:
            for tile, here, there, cuts in visits:
                if not self.plain:
                    tile = tile._replace(lead=block.lead)
                A, m, z = O[..., here, :], M[..., here, :], Z[..., here, :]
                E = np.matmul(q1[..., here, :], k[..., there, :].mT, out=scores.view((*z.shape[:-1], len(tile.cols))))
                if not self.fast:
                    E, _ = chain.forward(self.plan.scores, E, tile)
                elif shifted:
                    put(E, cuts, -np.inf)
                if shifted:
                    highest = np.maximum(m, np.max(E, axis=-1, keepdims=True))
                    shift = np.where(highest == -np.inf, self.dtype.type(0), highest)
                    fade = self.exp(m - shift)
                    E = np.subtract(E, shift, out=E if self.fast else None)  # an op may have saved E itself
                    A *= fade
                    z *= fade
                    m[...] = highest
                self.exp(E, out=E)
                if not shifted:
                    put(E, cuts, 0)
                z += E @ ones[: len(tile.cols)]
                W = chain.forward(self.plan.weights, E, tile)[0] if self.drops else E
                straight = _add(A, W, v[..., there, :], products, straight)
        dead = Z == 0
        Z[dead], M[dead] = np.inf, 0
        O /= Z

    @quietly
    def backward_block(self, place, block, kept, sums):
        """What one block of keys gives to dQ of all queries, to dK and dV of these keys, and to the parameters."""
        q, k, v = self.operands(block.lead)
        dO, O, M, Z, *minus_dL = kept
        shifted = self.needs_shift(block.lead, q, k, v)
        # The forward may have had other heads beside these, one of which needed a shift: vmap regroups them.
        shifted = shifted or bool(np.any(M[self.rows_of(block)]))
        k, v = k[..., _slice(block.cols), :], v[..., _slice(block.cols), :]
        size = tuple(map(len, block.lead))
        all_dK, dK = sums.place("dK", block, block.cols)
        all_dV, dV = sums.place("dV", block, block.cols)
        v1, dparams = _with_ones(v), {}
        exponentials, gradients, products = map(_Buffer, (self.dtype,) * 3)
        strips = self.strips(block)
        straight = len(strips) == 1 and [v.tile[:2] for v in strips[0][1]] == [block[:2]]  # need not add to zeros
        if not straight:
            dK[...], dV[...] = 0, 0
        for strip, (rows, visits) in enumerate(strips):
            all_dQ, dQ = sums.place("dQ", block, rows)
            first = _starts_with([(rows, visits)], rows)
            if not first:
                dQ[...] = 0
            if not visits:
                sums.give(strip, place, [])
                continue
            at = self.rows_of(block._replace(rows=rows))
            q1 = np.empty((*size, len(rows), k.shape[-1]), self.dtype)
            dO1 = np.empty((*size, len(rows), v.shape[-1] + 1), self.dtype)
            np.multiply(q[..., _slice(rows), :], self.dtype.type(self.in_q), out=q1)
            np.divide(dO[at], Z[at], out=dO1[..., :-1])
            np.negative(np.vecdot(dO1[..., :-1], O[at]), out=dO1[..., -1])
            if minus_dL:  # D − dL in place of D
                dO1[..., -1] -= minus_dL[0][at][..., 0] / Z[at][..., 0]
            M_i = M[at]
            for tile, here, there, cuts in visits:
                if not self.plain:
                    tile = tile._replace(lead=block.lead)
                shape = (*size, len(tile.rows), len(tile.cols))
                q_i, dO_i = q1[..., here, :], dO1[..., here, :]
                S = np.matmul(q_i, k[..., there, :].mT, out=exponentials.view(shape))
                E, saved = self.exponentials(S, M_i[..., here, :], tile, cuts, shifted)
                W, kept_by = chain.forward(self.plan.weights, E, tile) if self.drops else (E, ())
                _add(dV[..., there, :], W.mT, dO_i[..., :-1], products, straight)
                dS = self.dS(dO_i, v1[..., there, :], E, (saved, kept_by), tile, gradients.view(shape), dparams, block)
                first = _add(dQ[..., here, :], dS, k[..., there, :], products, first)
                _add(dK[..., there, :], dS.mT, q_i, products, straight)
            dQ *= self.dtype.type(self.in_dQ)
            sums.give(strip, place, [(all_dQ, dQ)])
        dK *= self.dtype.type(self.in_dK)
        sums.give("keys", place, [(all_dK, dK), (all_dV, dV), *sums.of_parameters(dparams, block)])

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
        E = np.exp2(S, out=S)
        if not shifted:
            put(E, cuts, 0)
        return E, ()

    def dS(self, dO1, v1, E, saved, tile, out, dparams, block):
        """P ∘ (dP − D), and back through the ops. P = E/Z, and dO1 has that 1/Z in it, and −D/Z in its last column."""
        of_ops = {}
        if not self.drops:
            dS = np.matmul(dO1, v1.mT, out=out)
        else:
            dW = np.matmul(dO1[..., :-1], v1[..., :-1].mT, out=out)
            dP, of_ops = chain.vjp(self.plan.weights, saved[1], dW, tile)
            dS = np.add(dP, dO1[..., -1:], out=out)
        dS *= E
        if not self.fast:  # behind a mask, P is 0 already
            dS, of_scores = chain.vjp(self.plan.scores, saved[0], dS, tile)
            of_ops |= of_scores
        chain.collect(dparams, of_ops, self.plan.ops, tile, block)
        return dS


class _Buffer:
    """Memory that one worker writes again and again, in whatever shape comes."""

    def __init__(self, dtype):
        self._memory = np.empty(0, dtype)

    def view(self, shape):
        size = math.prod(shape)
        if self._memory.size < size:
            self._memory = np.empty(size, self._memory.dtype)
        return self._memory[:size].reshape(shape)


def _in_a_row(T):
    """Whether the leading axes become one without a copy: each begins where the next one's numbers end."""
    steps = [(n, step) for n, step in zip(T.shape[:-2], T.strides[:-2], strict=True) if n > 1]
    return all(outer == n * inner for (_, outer), (n, inner) in pairwise(steps))


def _heads(shape, lead, sizes):
    """Where the heads ``lead`` stand in an array of ``shape``: an axis of length 1 serves all, a head its group."""
    n = len(shape) - 2
    return tuple(
        slice(None) if own == 1 else slice(r.start * own // size, (r.stop - 1) * own // size + 1)
        for own, size, r in zip(shape[:-2], sizes[len(sizes) - n :], lead[len(lead) - n :], strict=True)
    )


def _slice(places, within=range(0)):
    return slice(places.start - within.start, places.stop - within.start)


def _starts_with(strips, rows):
    """Whether the first tile has all these rows: then it need not add to zeros."""
    return bool(strips and strips[0][1]) and strips[0][1][0].tile.rows == rows


def _add(T, A, B, buffer, straight):
    """T += A B; straight into T, where that holds nothing yet. False, for the next time."""
    if straight:
        np.matmul(A, B, out=T)
    else:
        T += np.matmul(A, B, out=buffer.view(T.shape))
    return False


def _with_ones(T):
    """[T, 1]: its product with another factor adds up that factor's last column."""
    T1 = np.ones((*T.shape[:-1], T.shape[-1] + 1), T.dtype)
    T1[..., :-1] = T
    return T1
