"""The dense spine on NumPy: the lines of :mod:`attnbook.spines.dense`, each written over an array no longer needed.

For tables so small that tiles, workers and even a second array would cost more than the arithmetic. The scale goes into
Q, which is smaller than S, and what is masked is written into S once: the backward needs neither, as P is 0 there. Any
other op runs as it is written.
"""

import numpy as np

from attnbook.arrays import narrow, widen
from attnbook.ops import Tile, chain
from attnbook.spines import dense
from attnbook.spines.cuts import cuts_of, put
from attnbook.spines.dense import Residuals
from attnbook.spines.operands import in_order, operands, operands_vjp, scale_and_masks

jvp = dense.jvp


def forward(Q, K, V, steps, shape):
    """As :func:`attnbook.spines.dense.forward`."""
    q, k, v = operands(Q, K, V)
    tile, found = Tile.whole(*shape[-2:]), scale_and_masks(steps)
    S = np.empty(shape, q.dtype)
    if found:
        np.matmul(q * found.factor, k.mT, out=S)
        put(S, cuts_of(found.masks, tile, S.dtype), -np.inf)
        P = W = _softmax(S, out=S)
    else:
        S, steps = chain.forward(steps, np.matmul(q, k.mT, out=S), tile, "scores")
        P = _softmax(S, out=np.empty_like(S))  # an op may have saved S itself
        W, steps = chain.forward(steps, P, tile, "weights")
    return narrow(W @ v, Q.dtype), Residuals(Q, K, V, P, tuple(steps))


def vjp(dO, res):
    """As :func:`attnbook.spines.dense.vjp`."""
    q, k, v = operands(res.Q, res.K, res.V)
    tile, dO, found = Tile.whole(*res.shape[-2:]), widen(dO), scale_and_masks(res.steps)
    dP, dparams, W = dO @ v.mT, {}, res.P
    if not found:
        W, _ = chain.forward(res.steps, W, tile, "weights")
        dP, dparams = chain.vjp(res.steps, dP, tile, "weights")
    dV = W.mT @ dO
    dS = np.subtract(dP, np.vecdot(dP, res.P)[..., None], out=dP)
    dS *= res.P
    if found:
        dQ, dK = dS @ k, dS.mT @ q
        dQ *= found.factor
        dK *= found.factor
    else:
        dS, of_scores = chain.vjp(res.steps, dS, tile, "scores")
        dQ, dK, dparams = dS @ k, dS.mT @ q, dparams | of_scores
    return *operands_vjp(dQ, dK, dV, res), in_order(dparams, res)


def _softmax(S, out):
    """softmax(S), into ``out``, which may be S."""
    if not S.shape[-1]:
        return S
    M = np.max(S, axis=-1, keepdims=True)
    M[-np.inf == M] = 0
    P = np.subtract(S, M, out=out)
    np.exp(P, out=P)
    Z = P @ np.ones((P.shape[-1], 1), P.dtype)  # a product adds up faster than a sum
    Z[Z == 0] = 1
    P /= Z
    return P
