"""The dense spine on NumPy: the lines of :mod:`attnbook.spines.dense`, each written over an array no longer needed.

For tables so small that tiles, workers and even a second array would cost more than the arithmetic.
"""

import numpy as np

from attnbook.arrays import narrow, widen
from attnbook.ops import Tile, chain
from attnbook.spines import dense
from attnbook.spines.dense import Residuals
from attnbook.spines.operands import in_order, operands, operands_vjp

jvp = dense.jvp


def forward(Q, K, V, steps, shape):
    """As :func:`attnbook.spines.dense.forward`."""
    q, k, v = operands(Q, K, V)
    tile = Tile.whole(*shape[-2:])
    S = np.empty(shape, q.dtype)
    S = np.matmul(np.broadcast_to(q, (*shape[:-1], q.shape[-1])), k.mT, out=S)
    S, steps = chain.forward(steps, S, tile, "scores")
    P = _softmax(S)
    W, steps = chain.forward(steps, P, tile, "weights")
    return narrow(W @ v, Q.dtype), Residuals(Q, K, V, P, steps)


def vjp(dO, res):
    """As :func:`attnbook.spines.dense.vjp`."""
    q, k, v = operands(res.Q, res.K, res.V)
    tile, dO = Tile.whole(*res.shape[-2:]), widen(dO)
    W, _ = chain.forward(res.steps, res.P, tile, "weights")
    dV = W.mT @ dO
    dP, of_weights = chain.vjp(res.steps, dO @ v.mT, tile, "weights")
    dS = dP - np.vecdot(dP, res.P)[..., None]
    dS *= res.P
    dS, of_scores = chain.vjp(res.steps, dS, tile, "scores")
    return *operands_vjp(dS @ k, dS.mT @ q, dV, res), in_order(of_weights | of_scores, res)


def _softmax(S):
    """softmax(S) in one new array: an op may have saved S itself."""
    if not S.shape[-1]:
        return S
    M = np.max(S, axis=-1, keepdims=True)
    M[-np.inf == M] = 0
    P = np.subtract(S, M)
    np.exp(P, out=P)
    Z = np.sum(P, axis=-1, keepdims=True)
    Z[Z == 0] = 1
    P /= Z
    return P
