"""The tiled spine: the score table a tile at a time, never whole. It keeps O and L, and makes P again. See chapter 11.

One way through all libraries. Only the sums for the ops' parameters are changed in place, so autograd can follow it
too. NumPy arrays go through :mod:`attnbook.spines.numpy_tiled`, which is these lines with buffers and threads.
"""

import math
import reprlib
from typing import NamedTuple

from attnbook.arrays import array_namespace, device, expected, mT, narrow, on_host, quietly_on_numpy, widen
from attnbook.ops import Tile, chain
from attnbook.softmax import row_logsumexp
from attnbook.spines import columns
from attnbook.spines.operands import (
    in_order,
    operands,
    operands_vjp,
    row_sums,
    row_sums_jvp,
    stretch,
    turn,
    zero_dparams,
)


class Tiles(NamedTuple):
    """Rows and columns of a tile, which stays in a core's own cache and still lets the products run at full rate."""

    rows: int = 512
    cols: int = 256


SCORES_ON_A_GPU, SIDE_ON_A_GPU = 2**25, 128
"""Scores that the tiles of all heads hold at once on a GPU, where each pass over them should take longer than its
launch; and the unit of a tile's side."""


class Residuals(NamedTuple):
    """What the backward needs: the inputs as they came, the output O, and L in two parts, all of length n_q.

    L = M·unit + log Z, with a shift M and the sum Z of the exponentials above it, both (..., n_q, 1), so that
    P = exp(S − M·unit) / Z. One number would do, and would round off what M holds exactly: at scores of ±3000 in
    float32, two parts in ten thousand of every weight. A row with no allowed key has M = 0 and Z = ∞: its weights
    come out as 0.
    """

    Q: object
    K: object
    V: object
    O: object
    M: object
    Z: object
    plan: NamedTuple
    unit: float = 1.0

    kept = ("O", "M", "Z")

    @property
    def L(self):
        """In nats, for each row of scores, the log-sum-exp (..., n_q); −∞ for a row with no allowed key."""
        return array_namespace(self.Z).squeeze(row_logsumexp(self.M, self.Z, self.unit), axis=-1)

    @property
    def P(self):
        """Not kept: it is made again a tile at a time."""
        method = self.plan.spine.removeprefix("numpy_")
        raise AttributeError(f'P: the method "{method}" keeps O and L; attention(..., method="dense") keeps P')


def prepare(plan, given):
    """The plan with tiles, larger ones on a GPU."""
    check_sizes(plan.tiles, Tiles._fields)
    tiles = plan.tiles or Tiles()
    if plan.tiles is None and not on_host(next(iter(given.values()))):
        side = math.isqrt(SCORES_ON_A_GPU // max(1, math.prod(plan.shape[:-2])))
        tiles = Tiles(*(max(1, side // SIDE_ON_A_GPU) * SIDE_ON_A_GPU,) * 2)
    return plan._replace(tiles=on_grid(tiles, plan) if plan.tiles is None else tiles)


def on_grid(tiles, plan):
    """The tiles, made to end where the blocks of the first op do that has a grid."""
    grid = next((op.grid for op in plan.ops if op.grid is not None), None)
    return tiles if grid is None else tiles._replace(rows=_part(grid[0], tiles.rows), cols=_part(grid[1], tiles.cols))


def _part(block, size):
    """The largest size, at most this one, of which some make the block; all of it, where they would be many."""
    part = next(n for n in range(min(block, size), 0, -1) if block % n == 0)
    return part if part * 4 >= min(block, size) else block


def check_sizes(tiles, names):
    """An error, where tiles are given and lack one of these sizes: of 0 rows they would leave out all of the table."""
    sizes = [] if tiles is None else [getattr(tiles, name, None) for name in names]
    if not all(isinstance(n, int) and n > 0 for n in sizes):
        raise ValueError(expected("method, tiles", f"{', '.join(names)} of at least 1", reprlib.repr(tiles)))


def pieces(places, size):
    """The range ``places``, cut into ranges of ``size`` and a rest; an empty one stays one."""
    if len(places) <= size:
        return [places]
    return [places[start : start + size] for start in range(0, len(places), size)]


@quietly_on_numpy
def forward(Q, K, V, plan):
    """O and the residuals: for each block of queries one pass over the keys, with the online softmax."""
    q, k, v = operands(Q, K, V, plan.scale)
    xp, (n_q, n_k) = array_namespace(q), plan.shape[-2:]
    outputs, shifts, sums = [], [], []
    for rows in pieces(range(n_q), plan.tiles.rows):
        M, Z = _filled(-xp.inf, plan, rows, 1, q), _filled(0.0, plan, rows, 1, q)
        A = _filled(0.0, plan, rows, v.shape[-1], q)  # the output, not yet divided by Z
        for cols in pieces(range(n_k), plan.tiles.cols):
            tile = Tile(rows, cols, n_q, n_k)
            if not chain.live(plan.ops, tile):  # all of it is masked
                continue
            S, _ = _scores(q, k, plan, tile)
            highest = xp.maximum(M, xp.max(S, axis=-1, keepdims=True))
            shift = xp.where(highest == -xp.inf, xp.zeros_like(highest), highest)
            E, fade = xp.exp(S - shift), xp.exp(M - shift)
            W, _ = chain.forward(plan.weights, E, tile)
            M, Z = highest, fade * Z + xp.sum(E, axis=-1, keepdims=True)  # def-tile-state, eq-tile-fade, eq-tile-online
            A = fade * A + W @ _at(v, cols)  # def-tile-state, eq-tile-online
        dead = Z == 0
        M, Z = xp.where(dead, xp.zeros_like(M), M), xp.where(dead, xp.full_like(Z, xp.inf), Z)
        outputs.append(A / Z)  # eq-tile-end
        shifts.append(M)
        sums.append(Z)
    O, M, Z = (xp.concat(parts, axis=-2) for parts in (outputs, shifts, sums))
    if plan.columns:
        O, M, Z = columns.add(plan, O, M, Z)
    return narrow(O, Q.dtype), Residuals(Q, K, V, O, M, Z, plan)


@quietly_on_numpy
def vjp(dO, dL, res):
    """The backward. P is made again from Q, K, M and Z; D = rowsum(dO ∘ O) stands in for rowsum(dP ∘ P)."""
    plan = res.plan
    q, k, v = operands(res.Q, res.K, res.V, plan.scale)
    xp, (n_q, n_k), dO = array_namespace(q), plan.shape[-2:], widen(dO)
    D = row_sums(dO, dL, res)  # eq-tile-D
    table, key_tiles = Tile.whole(n_q, n_k), pieces(range(n_k), plan.tiles.cols)
    dK, dV = ([_filled(0.0, plan, cols, T.shape[-1], q) for cols in key_tiles] for T in (k, v))
    dQ, dparams = [], zero_dparams(plan, q)
    for rows in pieces(range(n_q), plan.tiles.rows):
        dQ_i, dO_i, q_i = _filled(0.0, plan, rows, q.shape[-1], q), _at(dO, rows), _at(q, rows)
        for j, cols in enumerate(key_tiles):
            tile = Tile(rows, cols, n_q, n_k)
            if not chain.live(plan.ops, tile):
                continue
            P, saved = _weights(q, k, res, tile)
            W, kept = chain.forward(plan.weights, P, tile)
            dV[j] = dV[j] + mT(W) @ dO_i  # eq-tile-sums: O = W V
            dW = dO_i @ mT(_at(v, cols))
            dP, of_weights = chain.vjp(plan.weights, kept, dW, tile)
            dS = P * (dP - _at(D, rows))  # eq-tile-entry: P = softmax(S), L = logsumexp(S)
            dS, of_scores = chain.vjp(plan.scores, saved, dS, tile)  # S' = op(S)
            dQ_i = dQ_i + dS @ _at(k, cols)  # eq-tile-sums: S = scale Q Kᵀ
            dK[j] = dK[j] + mT(dS) @ q_i  # eq-tile-sums
            chain.collect(dparams, of_weights | of_scores, plan.ops, tile, table)
        dQ.append(dQ_i * plan.scale)
    whole = (xp.concat(parts, axis=-2) for parts in (dQ, dK, dV))
    return *operands_vjp(*whole, res), in_order(dparams | columns.vjp(D, res), res)


@quietly_on_numpy
def jvp(tQ, tK, tV, tparams, res):
    """The tangents of O and L, a tile at a time: Ȯ = Σ W∘(Ṡ − L̇) V + W V̇ with L̇ = rowsum(P∘Ṡ), summed on the way."""
    tO, tL = _pushed(tQ, tK, tV, tparams, _in_nats(res))
    return narrow(tO, res.Q.dtype), array_namespace(tL).squeeze(tL, axis=-1)


def _in_nats(res):
    """The residuals, as the forward here leaves them."""
    if res.unit != 1.0:  # M·unit is rounded: at large scores too much to make P from other products
        _, res = forward(res.Q, res.K, res.V, res.plan)
    return res


def _pushed(tQ, tK, tV, tparams, res):
    """The tangents of O and L in one sweep (:eq:`eq-orders-sweep`)."""
    plan = res.plan
    q, k, v = operands(res.Q, res.K, res.V, plan.scale)
    tq, tk, tv = operands(tQ, tK, tV, plan.scale)
    xp, (n_q, n_k), O = array_namespace(q), plan.shape[-2:], widen(res.O)
    of_O, of_L = [], []
    for rows in pieces(range(n_q), plan.tiles.rows):
        tL, tA = (_filled(0.0, plan, rows, width, q) for width in (1, v.shape[-1]))
        for cols in pieces(range(n_k), plan.tiles.cols):
            tile = Tile(rows, cols, n_q, n_k)
            if not chain.live(plan.ops, tile):
                continue
            P, saved = _weights(q, k, res, tile)
            tS = _tangents((q, tq), (k, tk), saved, plan, tile, tparams)[-1]
            tL = tL + xp.sum(P * tS, axis=-1, keepdims=True)  # L = logsumexp(S)
            W, saved = chain.forward(plan.weights, P, tile)
            tW = chain.jvp(plan.weights, saved, P * tS, tile, tparams)  # P = softmax(S), but for the mean
            tA = tA + tW @ _at(v, cols) + W @ _at(tv, cols)  # O = W V
        of_O.append(tA)
        of_L.append(tL)
    tA, tL = (xp.concat(parts, axis=-2) for parts in (of_O, of_L))
    tL = columns.jvp(tL, tparams, res)
    return tA - tL * O, tL  # eq-orders-sweep


@quietly_on_numpy
def hvp(tQ, tK, tV, tparams, dO, dL, turns, res):
    """The tangents of the gradients, and of O and L: as in the dense spine, in two sweeps over the tiles. What the rows
    sum up to must be known before the second: L̇, and Ḋ = rowsum(dȮ∘O + dO∘Ȯ) − dL̇.
    """
    res = _in_nats(res)
    plan, dtype = res.plan, res.Q.dtype
    tO, tL = _pushed(tQ, tK, tV, tparams, res)
    xp, (n_q, n_k), dO = array_namespace(tO), plan.shape[-2:], widen(dO)
    outputs = narrow(tO, dtype), xp.squeeze(tL, axis=-1)
    tdO, tdL = map(turn, turns, outputs)
    D, tD = row_sums(dO, dL, res), row_sums_jvp(dO, tdO, tdL, tO, res)
    tdO = xp.zeros_like(dO) if tdO is None else widen(tdO)
    q, k, v = operands(res.Q, res.K, res.V, plan.scale)
    tq, tk, tv = operands(tQ, tK, tV, plan.scale)
    table, key_tiles = Tile.whole(n_q, n_k), pieces(range(n_k), plan.tiles.cols)
    tdK, tdV = ([_filled(0.0, plan, cols, T.shape[-1], q) for cols in key_tiles] for T in (k, v))
    tdQ, tdparams = [], zero_dparams(plan, q)
    for rows in pieces(range(n_q), plan.tiles.rows):
        tdQ_i, dO_i, tdO_i = _filled(0.0, plan, rows, q.shape[-1], q), _at(dO, rows), _at(tdO, rows)
        for j, cols in enumerate(key_tiles):
            tile = Tile(rows, cols, n_q, n_k)
            if not chain.live(plan.ops, tile):
                continue
            P, saved = _weights(q, k, res, tile)
            of_scores = _tangents((q, tq), (k, tk), saved, plan, tile, tparams)
            tP = P * (of_scores[-1] - _at(tL, rows))  # P = softmax(S)
            W, kept = chain.forward(plan.weights, P, tile)
            of_weights = chain.tangents(plan.weights, kept, tP, tile, tparams)
            tdV[j] = tdV[j] + mT(of_weights[-1]) @ dO_i + mT(W) @ tdO_i  # dV = Wᵀ dO
            both = dO_i @ mT(_at(v, cols)), tdO_i @ mT(_at(v, cols)) + dO_i @ mT(_at(tv, cols))  # dW = dO Vᵀ
            (dP, tdP), found = chain.vjp_jvp(plan.weights, kept, both, of_weights, tile, tparams)
            above = dP - _at(D, rows)
            both = P * above, tP * above + P * (tdP - _at(tD, rows))  # eq-orders-entry: dS = P∘(dP − D)
            (dS, tdS), of_parameters = chain.vjp_jvp(plan.scores, saved, both, of_scores, tile, tparams)
            tdQ_i = tdQ_i + tdS @ _at(k, cols) + dS @ _at(tk, cols)  # dQ = scale dS K
            tdK[j] = tdK[j] + mT(tdS) @ _at(q, rows) + mT(dS) @ _at(tq, rows)  # dK = scale dSᵀ Q
            chain.collect(tdparams, found | of_parameters, plan.ops, tile, table)
        tdQ.append(tdQ_i * plan.scale)
    whole = (xp.concat(parts, axis=-2) for parts in (tdQ, tdK, tdV))
    tdparams |= columns.vjp_jvp(D, tD, tL, tparams, res)
    return *operands_vjp(*whole, res), in_order(tdparams, res), *outputs


def _tangents(queries, keys, saved, plan, tile, tparams):
    """The tangents of the scores on this tile, before each op and after the last. S = scale Q Kᵀ."""
    (q, tq), (k, tk) = ([_at(T, places) for T in pair] for pair, places in ((queries, tile.rows), (keys, tile.cols)))
    tS = tq @ mT(k) + q @ mT(tk)
    return chain.tangents(plan.scores, saved, stretch(tS, (*plan.shape[:-2], *tS.shape[-2:])), tile, tparams)


def _scores(q, k, plan, tile):
    """S on this tile, and what the ops saved."""
    S = _at(q, tile.rows) @ mT(_at(k, tile.cols))
    return chain.forward(plan.scores, stretch(S, (*plan.shape[:-2], *S.shape[-2:])), tile)


def _weights(q, k, res, tile):
    """P on this tile, made again (:eq:`eq-tile-two-parts`), and what the ops saved on the way."""
    S, saved = _scores(q, k, res.plan, tile)
    xp = array_namespace(S)
    return xp.exp(S - _at(res.M, tile.rows) * res.unit) / _at(res.Z, tile.rows), saved  # eq-tile-two-parts


def _at(T, places):
    return T[..., places.start : places.stop, :]


def _filled(value, plan, places, width, like):
    """For each head a row of ``width`` at each of these places, of this value alone."""
    shape = (*plan.shape[:-2], len(places), width)
    return array_namespace(like).full(shape, value, dtype=like.dtype, device=device(like))
