"""The dense spine on NumPy: the lines of :mod:`attnbook.spines.dense`, each written over an array no longer needed.

For tables so small that tiles, workers and even a second array would cost more than the arithmetic. What is masked is
written into S once: the backward need not do so, as P is 0 there. Any other op runs as it is written.
"""

import numpy as np

from attnbook.arrays import narrow, quietly, widen
from attnbook.ops import Tile, chain
from attnbook.spines import columns, dense
from attnbook.spines.cuts import cuts_of, put
from attnbook.spines.dense import Residuals
from attnbook.spines.operands import (
    check_numpy,
    in_order,
    less_dL,
    operands,
    operands_vjp,
    tells_of_memory,
    unfit_tiles,
)

__all__ = ["Residuals", "forward", "hvp", "jvp", "prepare", "vjp"]

jvp, hvp = map(tells_of_memory, (dense.jvp, dense.hvp))


def prepare(plan, given):
    """The plan: nothing is to be settled."""
    check_numpy(plan, given)
    if plan.tiles is not None:
        raise unfit_tiles(plan, "None")
    return plan


@tells_of_memory
@quietly
def forward(Q, K, V, plan):
    """As :func:`attnbook.spines.dense.forward`."""
    q, k, v = operands(Q, K, V, plan.scale)
    table, saved = Tile.whole(*plan.shape[-2:]), [None] * len(plan.scores)
    S = np.matmul(q, k.mT, out=np.empty(plan.shape, q.dtype))  # def-attention
    del q  # a scaled copy, as large as the output
    P = S
    if plan.only_forbids:
        if plan.scores:
            put(S, cuts_of([op for _, op in plan.scores], table, S.dtype), -np.inf)  # eq-op-mask
    else:
        S, saved = chain.forward(plan.scores, S, table)
        P = np.empty_like(S)  # an op may have saved S itself
    P, M, Z = _normalize(S, out=P)
    if plan.columns:
        P, M, Z = columns.add(plan, P, M, Z)
    W = chain.forward(plan.weights, P, table)[0] if plan.weights else P
    return narrow(W @ v, Q.dtype), Residuals(Q, K, V, P, M, Z, saved, plan)


@tells_of_memory
@quietly
def vjp(dO, dL, res):
    """As :func:`attnbook.spines.dense.vjp`."""
    plan, W = res.plan, res.P
    q, k, v = operands(res.Q, res.K, res.V)  # not scaled, which would be a copy
    table, dO, dparams = Tile.whole(*plan.shape[-2:]), widen(dO), {}
    dP = dO @ v.mT  # eq-dP
    if plan.weights:
        W, saved = chain.forward(plan.weights, W, table)
        dP, dparams = chain.vjp(plan.weights, saved, dP, table)
    dV = W.mT @ dO  # eq-dV
    D = less_dL(np.vecdot(dP, res.P)[..., None], dL, res.Z)  # def-softmax-row-average
    if plan.columns:
        dparams |= columns.vjp(D, res)
    dS = np.subtract(dP, D, out=None if plan.weights else dP)  # an op may keep what it returned
    dS *= res.P  # eq-dS, eq-dS-D, eq-mask-dS, eq-var-dropout-vjp
    if not plan.only_forbids:
        dS, of_scores = chain.vjp(plan.scores, res.saved, dS, table)
        dparams |= of_scores
    dQ, dK = dS @ k, dS.mT @ q
    dQ *= plan.scale  # eq-dQ
    dK *= plan.scale  # eq-dK
    return *operands_vjp(dQ, dK, dV, res), in_order(dparams, res)


def _normalize(S, out):
    """softmax(S) into ``out``, which may be S, and what makes L, as :func:`attnbook.softmax.normalize`."""
    if not S.shape[-1]:
        return S, np.zeros((*S.shape[:-1], 1), S.dtype), np.full((*S.shape[:-1], 1), np.inf, S.dtype)
    M = np.max(S, axis=-1, keepdims=True)
    M[-np.inf == M] = 0
    P = np.subtract(S, M, out=out)
    np.exp(P, out=P)
    Z = P @ np.ones((P.shape[-1], 1), P.dtype)  # a product adds up faster than a sum
    Z[Z == 0] = np.inf  # def-softmax-dead-row, def-mask-dead-row
    P /= Z  # eq-softmax-stable, eq-mask-weights
    return P, M, Z
