"""The tiled spine: the score table a tile at a time, never whole. It keeps O and L, and makes P again. See chapter 10.

One way through all libraries. Only the sums for the ops' parameters are changed in place, so autograd can follow it
too. NumPy arrays go through :mod:`attnbook.spines.numpy_tiled`, which is these lines with buffers and threads.
"""

import math
from typing import NamedTuple

from attnbook.arrays import array_namespace, device, mT, narrow, on_host, widen
from attnbook.ops import Tile, chain
from attnbook.spines.operands import in_order, operands, operands_vjp, stretch

ROWS, COLS = 512, 256
"""Rows and columns of a tile, which stays in a core's own cache and still lets the products run at full rate."""

SCORES_ON_A_GPU, SIDE_ON_A_GPU = 2**24, 128
"""Scores that the tiles of all heads hold at once on a GPU, where each pass over them should take longer than its
launch; and the unit of a tile's side. By reckoning, not by measurement."""


class Residuals(NamedTuple):
    """What the backward needs: the inputs as they came, the output O, and L in two parts, all of length n_q.

    L = M·unit + log Z, with a shift M and the sum Z of the exponentials above it, both (..., n_q, 1), so that
    P = exp(S − M·unit) / Z. One number would do, and would round off what M holds exactly: at scores of ±3000 in
    float32, two parts in ten thousand of every weight. A row with no allowed key has Z = ∞ and L = ∞: its weights
    come out as 0.
    """

    Q: object
    K: object
    V: object
    O: object
    M: object
    Z: object
    steps: tuple
    shape: tuple
    unit: float = 1.0

    @property
    def L(self):
        """In nats, for each row of scores, the log-sum-exp (..., n_q); ∞ for a row with no allowed key."""
        xp = array_namespace(self.M)
        return xp.squeeze(self.M * self.unit + xp.log(self.Z), axis=-1)


def pieces(places, size):
    """The range ``places``, cut into ranges of ``size`` and a rest."""
    return [places[start : start + size] for start in range(0, len(places), max(1, size))]


def sides(T, lead):
    """Rows and columns of a tile, for arrays like T with scores of ``lead`` axes before the last two."""
    if on_host(T):
        return ROWS, COLS
    side = math.isqrt(SCORES_ON_A_GPU // max(1, math.prod(lead)))
    return (max(1, side // SIDE_ON_A_GPU) * SIDE_ON_A_GPU,) * 2


def forward(Q, K, V, steps, shape):
    """O and the residuals: for each block of queries one pass over the keys, with the online softmax."""
    q, k, v = operands(Q, K, V)
    *lead, n_q, n_k = shape
    xp = array_namespace(q)
    like = {"dtype": q.dtype, "device": device(q)}
    n_rows, n_cols = sides(q, lead)
    outputs, shifts, sums = [], [], []
    for rows in pieces(range(n_q), n_rows):
        M = xp.full((*lead, len(rows), 1), -xp.inf, **like)
        Z = xp.zeros((*lead, len(rows), 1), **like)
        A = xp.zeros((*lead, len(rows), v.shape[-1]), **like)  # the output, not yet divided by Z
        for cols in pieces(range(n_k), n_cols):
            tile = Tile(rows, cols, n_q, n_k)
            if not chain.live(steps, tile):  # all of it is masked
                continue
            S, _ = _scores(q, k, steps, tile, lead)
            highest = xp.maximum(M, xp.max(S, axis=-1, keepdims=True))
            shift = xp.where(highest == -xp.inf, xp.zeros_like(highest), highest)
            E, fade = xp.exp(S - shift), xp.exp(M - shift)
            W, _ = chain.forward(steps, E, tile, "weights")
            M, Z = highest, fade * Z + xp.sum(E, axis=-1, keepdims=True)
            A = fade * A + W @ _at(v, cols)
        dead = Z == 0
        M, Z = xp.where(dead, xp.zeros_like(M), M), xp.where(dead, xp.full_like(Z, xp.inf), Z)
        outputs.append(A / Z)
        shifts.append(M)
        sums.append(Z)
    O, M, Z = (_join(xp, parts, (*lead, n_q, w), like) for parts, w in ((outputs, v.shape[-1]), (shifts, 1), (sums, 1)))
    return narrow(O, Q.dtype), Residuals(Q, K, V, O, M, Z, tuple(steps), tuple(shape))


def vjp(dO, res):
    """The backward. P is made again from Q, K, M and Z; D = rowsum(dO ∘ O) stands in for rowsum(dP ∘ P)."""
    q, k, v = operands(res.Q, res.K, res.V)
    *lead, n_q, n_k = res.shape
    xp, dO = array_namespace(q), widen(dO)
    like = {"dtype": q.dtype, "device": device(q)}
    D = xp.sum(dO * res.O, axis=-1, keepdims=True)
    n_rows, n_cols = sides(q, lead)
    key_tiles = pieces(range(n_k), n_cols)
    dQ, dK, dV = [], [0.0] * len(key_tiles), [0.0] * len(key_tiles)
    parameters = {place: getattr(step.op, "parameter", None) for place, step in enumerate(res.steps)}
    dparams = {place: xp.zeros(tuple(T.shape), **like) for place, T in parameters.items() if T is not None}
    for rows in pieces(range(n_q), n_rows):
        dQ_i, dO_i, q_i = 0.0, _at(dO, rows), _at(q, rows)
        for j, cols in enumerate(key_tiles):
            tile = Tile(rows, cols, n_q, n_k)
            if not chain.live(res.steps, tile):
                continue
            P, steps = _weights(q, k, res, tile, lead)
            W, steps = chain.forward(steps, P, tile, "weights")
            dV[j] = dV[j] + mT(W) @ dO_i  # O = W V
            dW = dO_i @ mT(_at(v, cols))
            dP, of_weights = chain.vjp(steps, dW, tile, "weights")
            dS = P * (dP - _at(D, rows))  # P = softmax(S)
            dS, of_scores = chain.vjp(steps, dS, tile, "scores")  # S' = op(S)
            dQ_i = dQ_i + dS @ _at(k, cols)  # S = Q Kᵀ
            dK[j] = dK[j] + mT(dS) @ q_i
            chain.collect(dparams, of_weights | of_scores, steps, tile, Tile.whole(n_q, n_k))
        dQ.append(_or_zeros(xp, dQ_i, (*lead, len(rows), q.shape[-1]), like))
    dK = [_or_zeros(xp, T, (*lead, len(c), k.shape[-1]), like) for T, c in zip(dK, key_tiles, strict=True)]
    dV = [_or_zeros(xp, T, (*lead, len(c), v.shape[-1]), like) for T, c in zip(dV, key_tiles, strict=True)]
    shapes = ((*lead, n_q, q.shape[-1]), (*lead, n_k, k.shape[-1]), (*lead, n_k, v.shape[-1]))
    whole = (_join(xp, parts, shape, like) for parts, shape in zip((dQ, dK, dV), shapes, strict=True))
    return *operands_vjp(*whole, res), in_order(dparams, res)


def jvp(tQ, tK, tV, tparams, res):
    """The forward's derivative, a tile at a time: Ȯ = Σ W∘(Ṡ − μ) V + W V̇ with μ = rowsum(P∘Ṡ), summed on the way."""
    q, k, v = operands(res.Q, res.K, res.V)
    tq, tk, tv = operands(tQ, tK, tV)
    *lead, n_q, n_k = res.shape
    xp = array_namespace(q)
    like = {"dtype": q.dtype, "device": device(q)}
    n_rows, n_cols = sides(q, lead)
    outputs = []
    for rows in pieces(range(n_q), n_rows):
        mean = xp.zeros((*lead, len(rows), 1), **like)
        tA = xp.zeros((*lead, len(rows), v.shape[-1]), **like)
        for cols in pieces(range(n_k), n_cols):
            tile = Tile(rows, cols, n_q, n_k)
            if not chain.live(res.steps, tile):
                continue
            P, steps = _weights(q, k, res, tile, lead)
            tS = _at(tq, rows) @ mT(_at(k, cols)) + _at(q, rows) @ mT(_at(tk, cols))  # S = Q Kᵀ
            tS = chain.jvp(steps, stretch(tS, P.shape), tile, tparams, "scores")  # S' = op(S)
            mean = mean + xp.sum(P * tS, axis=-1, keepdims=True)
            W, steps = chain.forward(steps, P, tile, "weights")
            tW = chain.jvp(steps, P * tS, tile, tparams, "weights")  # P = softmax(S), but for the mean
            tA = tA + tW @ _at(v, cols) + W @ _at(tv, cols)  # O = W V
        outputs.append(tA - mean * _at(res.O, rows))
    return narrow(_join(xp, outputs, (*lead, n_q, v.shape[-1]), like), res.Q.dtype)


def _scores(q, k, steps, tile, lead):
    S = stretch(_at(q, tile.rows) @ mT(_at(k, tile.cols)), (*lead, len(tile.rows), len(tile.cols)))
    return chain.forward(steps, S, tile, "scores")


def _weights(q, k, res, tile, lead):
    """P on this tile, made again, and the steps with what they saved on the way."""
    S, steps = _scores(q, k, res.steps, tile, lead)
    xp = array_namespace(S)
    return xp.exp(S - _at(res.M, tile.rows) * res.unit) / _at(res.Z, tile.rows), steps


def _at(T, places):
    return T[..., places.start : places.stop, :]


def _or_zeros(xp, T, shape, like):
    return xp.zeros(shape, **like) if isinstance(T, float) else T


def _join(xp, parts, shape, like):
    return xp.concat(parts, axis=-2) if parts else xp.zeros(shape, **like)
