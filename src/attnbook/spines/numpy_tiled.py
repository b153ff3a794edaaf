"""The tiled spine on NumPy: the lines of :mod:`attnbook.spines.tiled`, made fast. Each trick is one named step.

Exponentials are base 2, where NumPy is faster at that, or the plan's ``kernel`` is an ``exp2`` from elsewhere.
    The scale and log₂e go into Q once, so that the product gives S in bits. Gradients are in nats: what is made from
    the scaled Q is multiplied by ln 2 at the end.
No shift where none is needed.
    A score is at most max‖q‖ · max‖k‖. Where that is small, no exponential can overflow: M = 0.
D is one more column.
    [dO, −D]·[v, 1] = dP − D. 1/Z goes into dO, so P is never divided.
Only live tiles are visited.
    Tiles that a mask cuts are cut down to their live rows and columns.
Masked exponentials become 0 afterwards.
    Where S is known to be finite, that is faster: exp2(−∞) is slow.
Buffers are written again and again.
    Fresh memory is slow on first touch.
Results lie in memory as the inputs do.
    The heads of a layer stand side by side in a row; so do those of O, and no copy merges them.
Workers take heads, and of large heads blocks.
    Of queries in the forward, of keys in the backward; see :mod:`attnbook.spines.workers`.

Only the scale and masks take the fast lane; any other op runs as it is written, on S in nats, between the products.
How a call is cut: :mod:`attnbook.spines.numpy_work`.
"""

from typing import NamedTuple

import numpy as np

from attnbook.arrays import narrow, quietly, widen
from attnbook.ops import chain
from attnbook.spines import columns
from attnbook.spines.cuts import put
from attnbook.spines.numpy_tangents import hvp, jvp
from attnbook.spines.numpy_work import Buffer, Work, add, slice_of, starts_with, unit_of, with_ones
from attnbook.spines.operands import check_numpy, less_dL, row_sums, tells_of_memory
from attnbook.spines.sums import Sums
from attnbook.spines.tiled import Residuals, check_sizes, on_grid
from attnbook.spines.workers import run

__all__ = ["Residuals", "Tiles", "forward", "hvp", "jvp", "prepare", "vjp"]


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
    scores: int = 2**18
    tasks: int = 4
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


@tells_of_memory
def forward(Q, K, V, plan):
    """As :func:`attnbook.spines.tiled.forward`."""
    unit = unit_of(plan)
    work = Work(Q, K, V, plan, unit)
    O = np.empty_like(work.q, shape=(*work.lead, work.n_q, work.v.shape[-1]))
    M, Z = np.empty((2, *work.lead, work.n_q, 1), work.dtype)

    def task(_, block):
        at = work.rows_of(block)
        _forward_block(work, block, O[at], M[at], Z[at])

    run(task, work.blocks(work.tiles.rows, work.n_k), apart=work.plain)
    if work.lead != plan.shape[:-2]:
        O, M, Z = (T.reshape(*plan.shape[:-1], T.shape[-1]) for T in (O, M, Z))
    if plan.columns:
        O, M, Z = columns.add(plan, O, M, Z, unit)
    return narrow(O, Q.dtype), Residuals(Q, K, V, O, M, Z, plan, unit)


@tells_of_memory
def vjp(dO, dL, res):
    """As :func:`attnbook.spines.tiled.vjp`."""
    work = Work(res.Q, res.K, res.V, res.plan, res.unit)
    kept = [widen(dO), res.O, res.M, res.Z]
    if dL is not None:
        kept.append(less_dL(np.zeros_like(res.Z), dL, res.Z))
    kept = [T.reshape(*work.lead, *T.shape[-2:]) for T in kept]  # the call's leading axes, as those of the work
    sums = Sums(work)
    blocks = work.blocks(work.n_q, work.tiles.keys)
    run(lambda place, block: _backward_block(work, place, block, kept, sums), blocks, apart=work.plain)
    if res.plan.columns:
        sums.dparams |= columns.vjp(row_sums(dO, dL, res), res)
    return sums.found(res)


@quietly
def _forward_block(work, block, O, M, Z):
    """The online softmax of one block of queries, into O, M and Z."""
    q, k, v = work.operands(block.lead)
    size, shifted = Z.shape[:-2], work.needs_shift(block.lead, q, k, v)
    scores, products, ones = Buffer(work.dtype), Buffer(work.dtype), np.ones((work.tiles.cols, 1), work.dtype)
    strips = work.strips(block)
    straight = starts_with(strips, block.rows)
    Z[...], M[...] = 0, -np.inf if shifted else 0
    if shifted or not straight:  # shifted: fading meets what memory held before, ∞ · 0
        O[...] = 0
    q1 = np.empty((*size, len(block.rows), q.shape[-1]), work.dtype)
    np.multiply(q[..., slice_of(block.rows), :], work.dtype.type(work.in_q), out=q1)
    for _, visits in strips:
        for tile, here, there, cuts in visits:
            if not work.plain:
                tile = tile._replace(lead=block.lead)
            A, m, z = O[..., here, :], M[..., here, :], Z[..., here, :]
            E = np.matmul(q1[..., here, :], k[..., there, :].mT, out=scores.view((*z.shape[:-1], len(tile.cols))))
            if not work.fast:
                E, _ = chain.forward(work.plan.scores, E, tile)
            elif shifted:
                put(E, cuts, -np.inf)
            if shifted:
                highest = np.maximum(m, np.max(E, axis=-1, keepdims=True))
                shift = np.where(highest == -np.inf, work.dtype.type(0), highest)
                fade = m - shift
                work.exp(fade, out=fade)
                E = np.subtract(E, shift, out=E if work.fast else None)  # an op may have saved E itself
                A *= fade
                z *= fade
                m[...] = highest  # eq-tile-fade
            work.exp(E, out=E)
            if not shifted:
                put(E, cuts, 0)
            z += E @ ones[: len(tile.cols)]  # def-tile-state, eq-tile-online
            W = chain.forward(work.plan.weights, E, tile)[0] if work.drops else E
            straight = add(A, W, v[..., there, :], products, straight)  # def-tile-state, eq-tile-online
    dead = Z == 0
    Z[dead], M[dead] = np.inf, 0
    O /= Z  # eq-tile-end


@quietly
def _backward_block(work, place, block, kept, sums):
    """What one block of keys gives to dQ of all queries, to dK and dV of these keys, and to the parameters."""
    q, k, v = work.operands(block.lead)
    dO, O, M, Z, *minus_dL = kept
    shifted = work.needs_shift(block.lead, q, k, v)
    # The forward may have had other heads beside these, one of which needed a shift: vmap regroups them.
    shifted = shifted or bool(np.any(M[work.rows_of(block)]))
    k, v = k[..., slice_of(block.cols), :], v[..., slice_of(block.cols), :]
    size = tuple(map(len, block.lead))
    all_dK, dK = sums.place("dK", block, block.cols)
    all_dV, dV = sums.place("dV", block, block.cols)
    v1, dparams = with_ones(v), {}
    exponentials, gradients, products = map(Buffer, (work.dtype,) * 3)
    strips = work.strips(block)
    straight = len(strips) == 1 and [v.tile[:2] for v in strips[0][1]] == [block[:2]]  # need not add to zeros
    if not straight:
        dK[...], dV[...] = 0, 0
    for strip, (rows, visits) in enumerate(strips):
        all_dQ, dQ = sums.place("dQ", block, rows)
        first = starts_with([(rows, visits)], rows)
        if not first:
            dQ[...] = 0
        if not visits:
            sums.give(strip, place, [])
            continue
        at = work.rows_of(block._replace(rows=rows))
        q1 = np.empty((*size, len(rows), k.shape[-1]), work.dtype)
        dO1 = np.empty((*size, len(rows), v.shape[-1] + 1), work.dtype)
        np.multiply(q[..., slice_of(rows), :], work.dtype.type(work.in_q), out=q1)
        np.divide(dO[at], Z[at], out=dO1[..., :-1])
        np.negative(np.vecdot(dO1[..., :-1], O[at]), out=dO1[..., -1])  # eq-tile-D
        if minus_dL:  # D − dL in place of D
            dO1[..., -1] -= minus_dL[0][at][..., 0] / Z[at][..., 0]
        M_i = M[at]
        for tile, here, there, cuts in visits:
            if not work.plain:
                tile = tile._replace(lead=block.lead)
            shape = (*size, len(tile.rows), len(tile.cols))
            q_i, dO_i = q1[..., here, :], dO1[..., here, :]
            S = np.matmul(q_i, k[..., there, :].mT, out=exponentials.view(shape))
            E, saved = work.exponentials(S, M_i[..., here, :], tile, cuts, shifted)
            W, kept_by = chain.forward(work.plan.weights, E, tile) if work.drops else (E, ())
            add(dV[..., there, :], W.mT, dO_i[..., :-1], products, straight)  # eq-tile-sums
            dS = _dS(work, dO_i, v1[..., there, :], E, (saved, kept_by), tile, gradients.view(shape), dparams, block)
            first = add(dQ[..., here, :], dS, k[..., there, :], products, first)  # eq-tile-sums
            add(dK[..., there, :], dS.mT, q_i, products, straight)  # eq-tile-sums
        dQ *= work.dtype.type(work.in_dQ)  # eq-tile-bits
        sums.give(strip, place, [(all_dQ, dQ)])
    dK *= work.dtype.type(work.in_dK)  # eq-tile-bits
    sums.give("keys", place, [(all_dK, dK), (all_dV, dV), *sums.of_parameters(dparams, block)])


def _dS(work, dO1, v1, E, saved, tile, out, dparams, block):
    """P ∘ (dP − D), and back through the ops. P = E/Z, and dO1 has that 1/Z in it, and −D/Z in its last column."""
    of_ops = {}
    if not work.drops:
        dS = np.matmul(dO1, v1.mT, out=out)  # eq-tile-column
    else:
        dW = np.matmul(dO1[..., :-1], v1[..., :-1].mT, out=out)
        dP, of_ops = chain.vjp(work.plan.weights, saved[1], dW, tile)
        dS = np.add(dP, dO1[..., -1:], out=out)
    dS *= E  # eq-tile-entry, eq-tile-engine
    if not work.fast:  # behind a mask, P is 0 already
        dS, of_scores = chain.vjp(work.plan.scores, saved[0], dS, tile)
        of_ops |= of_scores
    chain.collect(dparams, of_ops, work.plan.ops, tile, block)
    return dS
