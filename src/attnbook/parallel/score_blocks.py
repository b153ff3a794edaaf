"""The table of scores in blocks, the queries of one rank with the keys of another, and a spine on each.

Ops see the places of the whole table, whatever block they are run on; and the backward of a block is given the L and O,
and so the D, that belong to all keys. Chapter: :doc:`/chapters/14_many_devices`.
"""

import math
from functools import cached_property, reduce
from operator import and_
from typing import NamedTuple

import numpy as np

from attnbook.arrays import array_namespace, device, widen
from attnbook.merge import merge
from attnbook.ops import Op, Tile, chain
from attnbook.parallel.placement import runs_of
from attnbook.spines import SPINES, columns
from attnbook.spines.numpy_work import unit_of
from attnbook.spines.operands import less_dL
from attnbook.spines.tiled import Residuals

SMALL = 20.0
"""Nats up to which exp(L) is far inside float32: then no score need be shifted."""


class Places(NamedTuple):
    """Who has which rows: for each rank the runs of its queries, and of its keys."""

    queries: list
    keys: list

    @classmethod
    def of(cls, n_q, n_k, ranks, placement):
        """As the placement deals them out."""
        return cls(*(runs_of(n, ranks, placement) for n in (n_q, n_k)))

    @property
    def ranks(self):
        return len(self.keys)


class Seen(NamedTuple):
    """Which blocks have anything to see, by the ops that forbid."""

    places: Places
    ops: tuple
    n_q: int
    n_k: int

    def blocks(self, queries, keys, lead=None):
        """The pairs of runs with something to see, each as (number, number, tile)."""
        for i, rows in enumerate(queries):
            for j, cols in enumerate(keys):
                tile = Tile(rows, cols, self.n_q, self.n_k, lead)
                if chain.live(self.ops, tile):
                    yield i, j, tile

    def sees(self, r, s):
        """Whether rank r sees any key of rank s."""
        return any(True for _ in self.blocks(self.places.queries[r], self.places.keys[s]))

    def hops(self):
        """For each rank, how far its keys travel around the ring: to the last rank that sees one of them."""
        ranks = self.places.ranks
        return [
            next((hop for hop in range(ranks - 1, 0, -1) if self.sees((s + hop) % ranks, s)), 0) for s in range(ranks)
        ]

    def pairs(self, queries, keys, shape=(), lead=None, like=None):
        """How many scores of these runs no op forbids, over all leading axes, of that ``shape``."""
        like, total = np.empty(0) if like is None else like, 0
        for _, _, block in self.blocks(queries, keys, lead):
            for i in range(0, len(block.rows), 256):
                tile = chain.live(self.ops, block._replace(rows=block.rows[i : i + 256]))
                allowed = [op.allowed(like, tile) for op in self.ops if tile and not op.allows_all(tile)]
                size = (*shape, len(tile.rows), len(tile.cols))
                total += int(_sum_of(reduce(and_, allowed), size)) if allowed else math.prod(size)
        return total


def _sum_of(M, shape):
    xp = array_namespace(M)
    return xp.sum(xp.astype(xp.broadcast_to(M, shape), xp.int64))


class At(Op):
    """An op of the whole table on one block of it: the spine counts in the block, and the op in the table."""

    grid = None

    def __init__(self, op, block):
        self.op, self.block = op, block
        self.forbids, self.on, self.own_axes, self.heads_alike = op.forbids, op.on, op.own_axes, op.heads_alike

    heads_alike = None

    @property
    def parameter(self):
        """What of it lies on the block."""
        return None if self.op.parameter is None else self.block.cut(self.op.parameter, self.own_axes)

    def forward(self, S, tile):
        return self.op.forward(S, self._there(tile))

    def vjp(self, dS, saved, tile):
        return self.op.vjp(dS, saved, self._there(tile))

    def allowed(self, S, tile):
        return self.op.allowed(S, self._there(tile))

    def allows_all(self, tile):
        return self.op.allows_all(self._there(tile))

    def pattern(self, tile):
        """None: a pattern would be remembered, and with it the block."""
        return

    def live(self, tile):
        found = self.op.live(self._there(tile))
        rows, cols = (
            range((first := (r.start - run.start) // run.step), first + len(r))
            for r, run in zip(found[:2], self.block[:2], strict=True)
        )
        return tile._replace(rows=rows, cols=cols)

    def _there(self, tile):
        """A tile of the block, as one of the table."""
        rows, cols = (
            range(run.start + run.step * r.start, run.start + run.step * r.stop, run.step)
            for r, run in zip(tile[:2], self.block[:2], strict=True)
        )
        lead, own = tile.lead, self.block.lead
        if own is not None and lead is None:
            lead = own
        elif own is not None and len(lead) == len(own):  # a spine may take all axes as one, where heads are alike
            lead = tuple(range(b.start + r.start, b.start + r.stop) for b, r in zip(own, lead, strict=True))
        return self.block._replace(rows=rows, cols=cols, lead=lead)


class Part:
    """What one rank computes: attention of its own queries, block by block, as they meet the keys of the others.

    ``plan`` is that of the whole call. ``inside`` makes of an array what the spines take.
    """

    def __init__(self, plan, places, rank, lead=None, inside=widen):
        self.plan, self.places, self.rank, self.lead, self.inside = plan, places, rank, lead, inside
        self.seen = Seen(places, tuple(op for op in plan.ops if op.forbids), *plan.shape[-2:])
        self.met = []  # (step, which part, keys): what was computed, for who counts it
        self.dparams = {}

    ranks = property(lambda self: self.places.ranks)
    queries = property(lambda self: self.places.queries[self.rank])
    hops = cached_property(lambda self: self.seen.hops())

    def scores(self, keys, like):
        """How many scores it computes where it meets these keys."""
        return self.seen.pairs(self.queries, keys, self.plan.shape[:-2], self.lead, like)

    def of_heads(self, heads):
        """The same call with all rows, but of these heads alone."""
        (*lead, _), (n_q, n_k) = self.plan.shape[:-2], self.plan.shape[-2:]
        plan, places = self.plan._replace(shape=(*lead, len(heads), n_q, n_k)), Places([[range(n_q)]], [[range(n_k)]])
        return Part(plan, places, 0, (*map(range, lead), heads), self.inside)

    def rows(self, name, rank):
        """How many queries or keys a rank has."""
        return sum(map(len, getattr(self.places, name)[rank]))

    def rows_like(self, arrays, rank):
        """What receives arrays like these, with as many rows as that rank has keys."""
        n = self.rows("keys", rank)
        return [((*T.shape[:-2], n, T.shape[-1]), T) for T in arrays]

    def order(self, name):
        """The places in the whole of the queries or keys of all ranks, as they follow each other."""
        return np.concatenate([np.asarray(run, dtype=np.intp) for runs in getattr(self.places, name) for run in runs])

    def start(self, Q, d_v):
        """O = 0 and L = −∞, for each run of queries: no key was met yet."""
        return [_nothing(q, d_v) for q in self._of_runs(self.inside(Q), self.queries)]

    def meet(self, found, Q, K, V, keys, step=0):
        """O and L with more keys, those at ``keys``: merged (:eq:`eq-merge`)."""
        self.met.append((step, self, keys))
        Q, K, V = map(self.inside, (Q, K, V))
        for i, _, (q, k, v), plan, spine in self._each(Q, K, V, keys):
            O, res = SPINES[spine].forward(q, k, v, plan)
            found[i] = merge(*found[i], O, res.L)
        return found

    def finish(self, found):
        """O and L of all queries, after the columns that have no key, which come once."""
        O, L = map(list, zip(*found, strict=True))
        if self.plan.columns:
            for i, run in enumerate(self.queries):
                O[i], M, Z = columns.add(self._of_columns(run, O[i]), O[i], *_apart(L[i]))
                L[i] = _together(M, Z)
        xp = array_namespace(*O)
        return xp.concat(O, axis=-2), xp.concat(L, axis=-1)

    def meet_vjp(self, Q, K, V, keys, kept, dQ=None):
        """The gradients of queries and keys from the blocks at ``keys``, that of the queries added to ``dQ``; those of
        parameters are added up here. The O and L in ``kept``, and dO and dL, are those of all keys, so that D is too:
        dS = P ∘ (dP − D + dL).
        """
        Q, K, V = map(self.inside, (Q, K, V))
        runs = list(zip(*(self._of_runs(T, self.queries, axis) for T, axis in kept.on_axes()), strict=True))
        found = [_zeros(Q) if dQ is None else dQ, _zeros(K), _zeros(V)]
        into = [self._of_runs(T, where) for T, where in zip(found, (self.queries, keys, keys), strict=True)]
        for i, j, (q, k, v), plan, spine in self._each(Q, K, V, keys):
            O, L, dO, *dL = runs[i]
            M, Z, unit = *_shifts(spine, L), unit_of(plan) if spine == "numpy_tiled" else 1.0
            res = Residuals(q, k, v, O, M / unit, Z, plan, unit)
            *grads, dparams = SPINES[spine].vjp(dO, dL[0] if dL else None, res)
            for to, place, T in zip(into, (i, j, j), grads, strict=True):
                to[place][...] += T
            del grads, T  # not beside those of the next block
            self._collect(dparams, plan)
        return found

    def columns_vjp(self, kept):
        """What the columns that have no key give to their parameters."""
        for i, run in enumerate(self.queries if self.plan.columns else ()):
            O, L, dO, *dL = (self._of_runs(T, self.queries, axis)[i] for T, axis in kept.on_axes())
            plan = self._of_columns(run, O)
            M, Z = _apart(L)
            D = less_dL(array_namespace(O).sum(O * dO, axis=-1, keepdims=True), dL[0] if dL else None, Z)
            found = columns.vjp(D, Residuals(None, None, None, O, M, Z, plan))
            self._collect([found.get(place) for place in range(len(plan.ops))], plan)

    def in_order(self):
        """The gradients of the parameters, one an op."""
        return tuple(
            None if op.parameter is None else self.dparams.get(place, _zeros(self.inside(op.parameter)))
            for place, op in enumerate(self.plan.ops)
        )

    def _collect(self, dparams, plan):
        for place, dparam in enumerate(dparams):
            if dparam is not None:
                op, at = self.plan.ops[place], plan.ops[place]
                total = self.dparams.setdefault(place, _zeros(self.inside(op.parameter)))
                total[(..., *at.block.index(total.shape, op.own_axes))] += dparam

    def _each(self, Q, K, V, keys):
        """The blocks with something to see: their numbers, operands, plan and spine."""
        if 0 in self.plan.shape[:-2]:
            return
        q, k, v = self._of_runs(Q, self.queries), self._of_runs(K, keys), self._of_runs(V, keys)
        for i, j, tile in self.seen.blocks(self.queries, keys, self.lead):
            plan = self._on(tile, (*self.plan.shape[:-2], len(tile.rows), len(tile.cols)))
            cutting = tuple(step for step in plan.scores if not (step[1].forbids and step[1].op.allows_all(tile)))
            plan, spine = plan._replace(scores=cutting, columns=()), plan.spine  # larger tiles, where no mask cuts
            plan = SPINES[spine].prepare(plan, {"Q": q[i]})
            yield i, j, (q[i], k[j], v[j]), plan, spine

    def _on(self, tile, shape):
        return self.plan._replace(shape=shape).with_ops([At(op, tile) for op in self.plan.ops])

    def _of_columns(self, run, like):
        shape = (*like.shape[:-1], 1)
        return self._on(Tile(run, range(1), self.plan.shape[-2], 1, self.lead), shape)

    @staticmethod
    def _of_runs(T, runs, axis=-2):
        """The parts of T that belong to these runs, which follow each other in it."""
        parts, start = [], 0
        for run in runs:
            parts.append(T[(..., slice(start, start + len(run)), *(slice(None),) * (-1 - axis))])
            start += len(run)
        return parts


class Kept(NamedTuple):
    """O and L of some queries, and what arrives at them; dL may be None."""

    O: object
    L: object
    dO: object
    dL: object = None

    def on_axes(self):
        """Each with the axis of its rows."""
        each = [(self.O, -2), (self.L, -1), (self.dO, -2)]
        return each if self.dL is None else [*each, (self.dL, -1)]


def _nothing(q, d_v):
    xp = array_namespace(q)
    O = xp.zeros((*q.shape[:-1], d_v), dtype=q.dtype, device=device(q))
    return O, xp.full(q.shape[:-1], -math.inf, dtype=q.dtype, device=device(q))


def _zeros(T):
    return array_namespace(T).zeros(tuple(T.shape), dtype=T.dtype, device=device(T))


def _apart(L):
    """L as M and Z, (..., n_q, 1); M = 0 and Z = ∞ in a row with no allowed key."""
    xp, L = array_namespace(L), L[..., None]
    dead = -math.inf == L
    return xp.where(dead, xp.zeros_like(L), L), xp.where(dead, xp.full_like(L, math.inf), xp.ones_like(L))


def _together(M, Z):
    xp = array_namespace(M)
    return xp.where(math.inf == Z, xp.full_like(M, -math.inf), M + xp.log(Z))[..., 0]


def _shifts(spine, L):
    """M and Z for the backward: no shift on NumPy where none is needed, as that is faster."""
    M, Z = _apart(L)
    if spine == "numpy_tiled" and (not M.size or np.max(np.abs(M)) < SMALL):
        return np.zeros_like(M), np.exp(M) * Z
    return M, Z
