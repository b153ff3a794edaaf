"""The dense spine: the whole score table at once, and P kept for the backward. It reads like chapter 4.

Every pass widens its inputs at the door and narrows its outputs at the end; between the two there is one dtype.
"""

from typing import NamedTuple

from attnbook.arrays import array_namespace, mT, narrow, quietly_on_numpy, widen
from attnbook.ops import Tile, chain
from attnbook.softmax import normalize, row_logsumexp
from attnbook.spines import columns
from attnbook.spines.operands import in_order, less_dL, operands, operands_vjp, stretch, unfit_tiles


class Residuals(NamedTuple):
    """What the backward needs: the inputs as they came, the weights P (..., n_q, n_k), what makes L, and what the ops
    on the scores saved.

    L = M + log Z, with the row's maximum M and the sum Z of the exponentials above it, both (..., n_q, 1); M = 0 and
    Z = ∞ in a row with no allowed key.
    """

    Q: object
    K: object
    V: object
    P: object
    M: object
    Z: object
    saved: list
    plan: NamedTuple

    kept = ("P",)

    @property
    def L(self):
        """The log-sum-exp of each row of scores (..., n_q); −∞ for a row with no allowed key."""
        return array_namespace(self.Z).squeeze(row_logsumexp(self.M, self.Z), axis=-1)

    @property
    def O(self):  # noqa: E743
        """Not kept: it is P V, and what attention returned."""
        raise AttributeError('O: the method "dense" keeps P; O is the first of the two that attention returned')


def prepare(plan, given):
    """The plan: nothing is to be settled."""
    if plan.tiles is not None:
        raise unfit_tiles(plan, "None")
    return plan


@quietly_on_numpy
def forward(Q, K, V, plan):
    """O = softmax(opₘ(… op₁(scale Q Kᵀ))) V, and the residuals."""
    q, k, v = operands(Q, K, V, plan.scale)
    table = Tile.whole(*plan.shape[-2:])
    S = stretch(q @ mT(k), plan.shape)
    S, saved = chain.forward(plan.scores, S, table)
    P, M, Z = normalize(S)
    if plan.columns:
        P, M, Z = columns.add(plan, P, M, Z)
    W, _ = chain.forward(plan.weights, P, table)  # W is P, unless there is dropout
    return narrow(W @ v, Q.dtype), Residuals(Q, K, V, P, M, Z, saved, plan)


@quietly_on_numpy
def vjp(dO, dL, res):
    """The forward, read backwards: dQ, dK, dV, and the gradient of each op's parameter."""
    plan, P = res.plan, res.P
    q, k, v = operands(res.Q, res.K, res.V, plan.scale)
    xp, table = array_namespace(P), Tile.whole(*plan.shape[-2:])
    dO = widen(dO)
    W, saved = chain.forward(plan.weights, P, table)
    dV = mT(W) @ dO  # O = W V
    dW = dO @ mT(v)
    dP, of_weights = chain.vjp(plan.weights, saved, dW, table)
    D = less_dL(xp.sum(dP * P, axis=-1, keepdims=True), dL, res.Z)
    dS = P * (dP - D)  # P = softmax(S), L = logsumexp(S)
    dS, of_scores = chain.vjp(plan.scores, res.saved, dS, table)  # S' = op(S)
    dQ = plan.scale * (dS @ k)  # S = scale Q Kᵀ
    dK = mT(dS) @ q  # with the scale in q
    return *operands_vjp(dQ, dK, dV, res), in_order(of_weights | of_scores | columns.vjp(D, res), res)


@quietly_on_numpy
def jvp(tQ, tK, tV, tparams, res):
    """The forward, with every line replaced by its derivative: the tangents of O and L."""
    plan, P = res.plan, res.P
    q, k, v = operands(res.Q, res.K, res.V, plan.scale)
    tq, tk, tv = operands(tQ, tK, tV, plan.scale)
    xp, table = array_namespace(P), Tile.whole(*plan.shape[-2:])
    tS = stretch(tq @ mT(k) + q @ mT(tk), plan.shape)  # S = scale Q Kᵀ
    tS = chain.jvp(plan.scores, res.saved, tS, table, tparams)  # S' = op(S)
    tL = columns.jvp(xp.sum(P * tS, axis=-1, keepdims=True), tparams, res)  # L = logsumexp(S)
    tP = P * (tS - tL)  # P = softmax(S)
    W, saved = chain.forward(plan.weights, P, table)
    tW = chain.jvp(plan.weights, saved, tP, table, tparams)
    tO = tW @ v + W @ tv  # O = W V
    return narrow(tO, res.Q.dtype), xp.squeeze(tL, axis=-1)
