"""The tangents of the tiled spine on NumPy: those of O and L, and those of the gradients, one sweep over tiles each.

The lines of :mod:`attnbook.spines.tiled` with the tricks of :mod:`attnbook.spines.numpy_tiled`, and one more:

A sum of two products is one product, where its factors are narrow.
    Q̇ Kᵀ + Q K̇ᵀ = [Q̇, Q]·[K, K̇]ᵀ, and dO V̇ᵀ + dȮ Vᵀ likewise; −L̇ and −Ḋ are one more column.

So the product rule is dṠ = P ∘ ((Ṡ − L̇) ∘ (dP − D) + dṖ − Ḋ).
"""

from typing import Any, NamedTuple

import numpy as np

from attnbook.arrays import narrow, quietly, widen
from attnbook.ops import chain
from attnbook.spines import columns
from attnbook.spines.numpy_work import Buffer, Work, add, beside, slice_of, starts_with, with_ones
from attnbook.spines.operands import row_sums, row_sums_jvp, tells_of_memory, turn
from attnbook.spines.sums import Sums
from attnbook.spines.workers import run


@tells_of_memory
@quietly
def jvp(tQ, tK, tV, tparams, res):
    """As :func:`attnbook.spines.tiled.jvp`."""
    tO, tL = _push(_Moving(tQ, tK, tV, tparams, res), res)
    return narrow(tO, res.Q.dtype), tL[..., 0]


@tells_of_memory
@quietly
def hvp(tQ, tK, tV, tparams, dO, dL, turns, res):
    """As :func:`attnbook.spines.tiled.hvp`."""
    work = _Moving(tQ, tK, tV, tparams, res)
    tO, tL = _push(work, res)
    outputs = narrow(tO, res.Q.dtype), tL[..., 0]
    tdO, tdL = map(turn, turns, outputs)
    D, tD = row_sums(dO, dL, res), row_sums_jvp(dO, tdO, tdL, tO, res)
    rows = _Rows(widen(dO), None if tdO is None else widen(tdO), D, tD, tL, res.M, res.Z)
    rows = _Rows(*(T if T is None else work.in_lead(T) for T in rows))
    sums = Sums(work)
    blocks = work.blocks(work.n_q, work.tiles.keys)
    run(lambda place, block: _turn_block(work, place, block, rows, sums), blocks, apart=work.plain)
    if res.plan.columns:
        sums.dparams |= columns.vjp_jvp(D, tD, tL, tparams, res)
    return *sums.found(res), *outputs


class _Rows(NamedTuple):
    """What belongs to queries: dO and how it moves, None for not at all; D, how it moves, and L; what makes P."""

    dO: Any
    tdO: Any
    D: Any
    tD: Any
    tL: Any
    M: Any
    Z: Any


class _Moving(Work):
    """A call whose operands move."""

    def __init__(self, tQ, tK, tV, tparams, res):
        super().__init__(res.Q, res.K, res.V, res.plan, res.unit)
        tangents, operands = (tQ, tK, tV), (self.q, self.k, self.v)
        self.tq, self.tk, self.tv = (widen(t).reshape(T.shape) for t, T in zip(tangents, operands, strict=True))
        self.tparams = tparams

    def in_lead(self, T):
        """T with the leading axes of the work."""
        return T.reshape(*self.lead, *T.shape[-2:])

    def keys(self, block):
        """K, V, and how they move, of the keys of a block."""
        return [self.part(T, block.lead)[..., slice_of(block.cols), :] for T in (self.k, self.v, self.tk, self.tv)]

    def queries(self, block, rows, tL):
        """The queries that make S, and [Q̇, Q, −L̇], which make Ṡ − L̇, or Ṡ where ops come in between."""
        q, tq = (self.part(T, block.lead)[..., slice_of(rows), :] for T in (self.q, self.tq))
        both = beside(tq, q, -tL if self.fast else np.zeros_like(tL))
        both[..., :-1] *= self.dtype.type(self.plan.scale)
        q1 = np.empty((*tL.shape[:-1], q.shape[-1]), self.dtype)
        return np.multiply(q, self.dtype.type(self.in_q), out=q1), both

    def scores(self, queries, keys, M, tile, cuts, shifted, buffers):
        """E = exp(S − M) on a tile and what the ops saved; Ṡ before each op, and after the last."""
        shape = (*M.shape[:-2], len(tile.rows), len(tile.cols))
        made = zip(queries, keys, buffers, strict=True)
        S, tS = (np.matmul(a, b.mT, out=buffer.view(shape)) for a, b, buffer in made)
        E, saved = self.exponentials(S, M, tile, cuts, shifted)
        return E, saved, [tS] if self.fast else chain.tangents(self.plan.scores, saved, tS, tile, self.tparams)

    def shifted(self, block, M):
        """As in the backward: where the forward shifted, or would for these heads."""
        return self.needs_shift(block.lead, *self.operands(block.lead)) or bool(np.any(M[self.rows_of(block)]))


def _push(work, res):
    """The tangents of O and L, with the leading axes of the call."""
    tO = np.empty_like(work.q, shape=(*work.lead, work.n_q, work.v.shape[-1]))
    tL, M, Z = (work.in_lead(T) for T in (np.empty_like(res.Z), res.M, res.Z))

    def task(_, block):
        at = work.rows_of(block)
        _push_block(work, block, tO[at], tL[at], M[at], work.shifted(block, M))

    run(task, work.blocks(work.tiles.rows, work.n_k), apart=work.plain)
    tO /= Z
    tL /= Z
    tO, tL = (T.reshape(*work.plan.shape[:-1], T.shape[-1]) for T in (tO, tL))
    if res.plan.columns:
        tL = columns.jvp(tL, work.tparams, res)
    tO -= tL * res.O  # eq-orders-sweep
    return tO, tL


@quietly
def _push_block(work, block, tO, tL, M, shifted):
    """Σ E∘Ṡ V + E V̇ and rowsum(E∘Ṡ) of one block of queries, into tO and tL."""
    k, v, tk, tv = work.keys(block)
    *buffers, products = (Buffer(work.dtype) for _ in range(3))
    ones = np.ones((work.tiles.cols, 1), work.dtype)
    strips = work.strips(block)
    straight = starts_with(strips, block.rows)
    tL[...] = 0
    if not straight:
        tO[...] = 0
    k2, queries = beside(k, tk, ones[:1]), work.queries(block, block.rows, np.zeros_like(M))
    for _, visits in strips:
        for tile, here, there, cuts in visits:
            tile = tile if work.plain else tile._replace(lead=block.lead)
            q_i, k_j = [T[..., here, :] for T in queries], [T[..., there, :] for T in (k, k2)]
            E, _, of_scores = work.scores(q_i, k_j, M[..., here, :], tile, cuts, shifted, buffers)
            tE = np.multiply(of_scores[-1], E, out=of_scores[-1] if work.fast else None)
            tL[..., here, :] += tE @ ones[: len(tile.cols)]
            W, tW = E, tE
            if work.drops:
                W, kept = chain.forward(work.plan.weights, E, tile)
                tW = chain.jvp(work.plan.weights, kept, tE, tile, work.tparams)
            straight = add(tO[..., here, :], tW, v[..., there, :], products, straight)
            add(tO[..., here, :], W, tv[..., there, :], products, straight)


@quietly
def _turn_block(work, place, block, rows, sums):
    """The tangents of what one block of keys gives to dQ of all queries, to dK and dV of these keys, and to the
    parameters.
    """
    shifted = work.shifted(block, rows.M)
    k, v, tk, tv = work.keys(block)
    one = np.ones((1, 1), work.dtype)
    k2, v1 = beside(k, tk, one), with_ones(v)
    v2 = beside(tv, one) if rows.tdO is None else beside(tv, v, one)
    all_tdK, tdK = sums.place("dK", block, block.cols)
    all_tdV, tdV = sums.place("dV", block, block.cols)
    tdK[...], tdV[...] = 0, 0
    *buffers, products = (Buffer(work.dtype) for _ in range(6))
    tdparams, d_k = {}, k.shape[-1]
    for strip, (places, visits) in enumerate(work.strips(block)):
        all_tdQ, tdQ = sums.place("dQ", block, places)
        first = starts_with([(places, visits)], places)
        if not first:
            tdQ[...] = 0
        if not visits:
            sums.give(strip, place, [])
            continue
        at = work.rows_of(block._replace(rows=places))
        dO, tdO, D, tD, tL, M, Z = (T if T is None else T[at] for T in rows)
        queries = work.queries(block, places, tL)
        dO1, dO2 = beside(dO, -D), beside(dO, -tD) if tdO is None else beside(dO, tdO, -tD)
        dO1 /= Z
        dO2 /= Z
        for tile, here, there, cuts in visits:
            tile = tile if work.plain else tile._replace(lead=block.lead)
            q_i, k_j = [T[..., here, :] for T in queries], [T[..., there, :] for T in (k, k2)]
            E, saved, of_scores = work.scores(q_i, k_j, M[..., here, :], tile, cuts, shifted, buffers[:2])
            tS = of_scores[-1] if work.fast else of_scores[-1] - tL[..., here, :]
            dO_i, tdO_i = dO1[..., here, :], dO2[..., here, :]
            if work.drops:
                W, kept = chain.forward(work.plan.weights, E, tile)
                of_weights = chain.tangents(work.plan.weights, kept, E * tS, tile, work.tparams)
                both = (A[..., :-1] @ B[..., there, :-1].mT for A, B in ((dO_i, v1), (tdO_i, v2)))
                both, found = chain.vjp_jvp(work.plan.weights, kept, both, of_weights, tile, work.tparams)
                (dS, tdS), tW = (dP + T[..., -1:] for dP, T in zip(both, (dO_i, tdO_i), strict=True)), of_weights[-1]
            else:
                dS = np.matmul(dO_i, v1[..., there, :].mT, out=buffers[2].view(E.shape))
                tdS, found = np.matmul(tdO_i, v2[..., there, :].mT, out=buffers[3].view(E.shape)), {}
            tdS += np.multiply(tS, dS, out=buffers[4].view(E.shape))
            tdS *= E  # eq-orders-entry
            dS *= E
            if not work.drops:
                W, tW = E, np.multiply(tS, E, out=tS)
            if not work.fast:
                both, of_parameters = chain.vjp_jvp(work.plan.scores, saved, (dS, tdS), of_scores, tile, work.tparams)
                (dS, tdS), found = both, found | of_parameters
            chain.collect(tdparams, found, work.plan.ops, tile, block)
            to_Q, to_K, to_V = tdQ[..., here, :], tdK[..., there, :], tdV[..., there, :]
            first = add(to_Q, tdS, k[..., there, :], products, first)
            add(to_Q, dS, tk[..., there, :], products, False)
            add(to_K, tdS.mT, queries[1][..., here, d_k : 2 * d_k], products, False)
            add(to_K, dS.mT, queries[1][..., here, :d_k], products, False)
            add(to_V, tW.mT, dO_i[..., :-1], products, False)
            if tdO is not None:
                add(to_V, W.mT, tdO_i[..., v.shape[-1] : -1], products, False)
        tdQ *= work.dtype.type(work.plan.scale)
        sums.give(strip, place, [(all_tdQ, tdQ)])
    sums.give("keys", place, [(all_tdK, tdK), (all_tdV, tdV), *sums.of_parameters(tdparams, block)])
