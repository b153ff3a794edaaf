"""The dense spine: the whole score table at once, and P kept for the backward. It reads like chapter 4.

Every pass widens its inputs at the door and narrows its outputs at the end; between the two there is one dtype.
"""

from typing import NamedTuple

from attnbook.arrays import array_namespace, mT, narrow, quietly_on_numpy, widen
from attnbook.ops import Tile, chain
from attnbook.softmax import normalize, row_logsumexp
from attnbook.spines import columns
from attnbook.spines.operands import in_order, less_dL, operands, operands_vjp, stretch, turn, unfit_tiles


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
    S = stretch(q @ mT(k), plan.shape)  # def-attention
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
    dV = mT(W) @ dO  # eq-dV: O = W V
    dW = dO @ mT(v)  # eq-dP
    dP, of_weights = chain.vjp(plan.weights, saved, dW, table)
    D = less_dL(xp.sum(dP * P, axis=-1, keepdims=True), dL, res.Z)  # def-softmax-row-average
    dS = P * (dP - D)  # eq-dS, eq-dS-D, eq-mask-dS, eq-var-dropout-vjp: P = softmax(S), L = logsumexp(S)
    dS, of_scores = chain.vjp(plan.scores, res.saved, dS, table)  # S' = op(S)
    dQ = plan.scale * (dS @ k)  # eq-dQ: S = scale Q Kᵀ
    dK = mT(dS) @ q  # eq-dK: with the scale in q
    return *operands_vjp(dQ, dK, dV, res), in_order(of_weights | of_scores | columns.vjp(D, res), res)


@quietly_on_numpy
def jvp(tQ, tK, tV, tparams, res):
    """The forward, with every line replaced by its derivative: the tangents of O and L."""
    moved = _pushed(tQ, tK, tV, tparams, res)
    return moved.tO, moved.tL


class _Pushed(NamedTuple):
    """What moves in the forward: the tangents before the ops on the scores and on the weights, and behind the last; W
    and what its ops saved; and the tangents of P, L and O.
    """

    of_scores: list
    of_weights: list
    W: object
    saved: list
    tP: object
    tL: object
    tO: object


def _pushed(tQ, tK, tV, tparams, res):
    plan, P = res.plan, res.P
    q, k, v = operands(res.Q, res.K, res.V, plan.scale)
    tq, tk, tv = operands(tQ, tK, tV, plan.scale)
    xp, table = array_namespace(P), Tile.whole(*plan.shape[-2:])
    tS = stretch(tq @ mT(k) + q @ mT(tk), plan.shape)  # S = scale Q Kᵀ
    of_scores = chain.tangents(plan.scores, res.saved, tS, table, tparams)  # S' = op(S)
    tS = of_scores[-1]
    tL = columns.jvp(xp.sum(P * tS, axis=-1, keepdims=True), tparams, res)  # L = logsumexp(S)
    tP = P * (tS - tL)  # eq-attention-jvp, eq-orders-forward: P = softmax(S)
    W, saved = chain.forward(plan.weights, P, table)
    of_weights = chain.tangents(plan.weights, saved, tP, table, tparams)
    tO = of_weights[-1] @ v + W @ tv  # eq-attention-jvp, eq-orders-forward: O = W V
    return _Pushed(of_scores, of_weights, W, saved, tP, xp.squeeze(tL, axis=-1), narrow(tO, res.Q.dtype))


@quietly_on_numpy
def hvp(tQ, tK, tV, tparams, dO, dL, turns, res):
    """The backward, with every line replaced by its derivative: the tangents of its gradients, and of O and L.
    ``turns``: those of dO and dL, None for 0, or functions of the tangents of O and L.
    """
    plan, P = res.plan, res.P
    moved = _pushed(tQ, tK, tV, tparams, res)
    tdO, tdL = map(turn, turns, (moved.tO, moved.tL))
    q, k, v = operands(res.Q, res.K, res.V, plan.scale)
    tq, tk, tv = operands(tQ, tK, tV, plan.scale)
    xp, table = array_namespace(P), Tile.whole(*plan.shape[-2:])
    dO = widen(dO)
    tdV, dW, tdW = mT(moved.of_weights[-1]) @ dO, dO @ mT(v), dO @ mT(tv)  # dV = Wᵀ dO, dW = dO Vᵀ
    if tdO is not None:
        tdO = widen(tdO)
        tdV, tdW = tdV + mT(moved.W) @ tdO, tdW + tdO @ mT(v)
    both, of_weights = chain.vjp_jvp(plan.weights, moved.saved, (dW, tdW), moved.of_weights, table, tparams)
    dP, tdP = both
    D = less_dL(xp.sum(dP * P, axis=-1, keepdims=True), dL, res.Z)
    tD = less_dL(xp.sum(tdP * P + dP * moved.tP, axis=-1, keepdims=True), tdL, res.Z)  # eq-orders-gradients
    both = P * (dP - D), moved.tP * (dP - D) + P * (tdP - tD)  # dS = P∘(dP − D)
    both, of_scores = chain.vjp_jvp(plan.scores, res.saved, both, moved.of_scores, table, tparams)
    dS, tdS = both
    tdQ = plan.scale * (tdS @ k + dS @ tk)  # eq-orders-gradients: dQ = scale dS K
    tdK = mT(tdS) @ q + mT(dS) @ tq  # eq-orders-gradients: dK = scale dSᵀ Q
    of_columns = columns.vjp_jvp(D, tD, xp.expand_dims(moved.tL, axis=-1), tparams, res)
    tdparams = in_order(of_weights | of_scores | of_columns, res)
    return *operands_vjp(tdQ, tdK, tdV, res), tdparams, moved.tO, moved.tL
