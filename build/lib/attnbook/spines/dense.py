"""The dense spine: the whole score table at once, and P kept for the backward. It reads like chapter 3.

Every pass widens its inputs at the door and narrows its outputs at the end; between the two there is one dtype.
"""

from typing import NamedTuple

from attnbook.arrays import mT, narrow, widen
from attnbook.ops import Tile, chain
from attnbook.softmax import softmax, softmax_jvp, softmax_vjp
from attnbook.spines.operands import in_order, operands, operands_vjp, stretch


class Residuals(NamedTuple):
    """What the backward needs: the inputs as they came, the weights P (..., n_q, n_k), and the steps of the scores."""

    Q: object
    K: object
    V: object
    P: object
    steps: tuple

    @property
    def shape(self):
        """The shape of the scores."""
        return tuple(self.P.shape)


def forward(Q, K, V, steps, shape):
    """O = softmax(opₘ(… op₁(Q Kᵀ))) V, with scores of ``shape`` (..., n_q, n_k), and the residuals."""
    q, k, v = operands(Q, K, V)
    tile = Tile.whole(*shape[-2:])
    S = stretch(q @ mT(k), shape)
    S, steps = chain.forward(steps, S, tile, "scores")
    P = softmax(S)
    W, steps = chain.forward(steps, P, tile, "weights")  # W is P, unless there is dropout
    return narrow(W @ v, Q.dtype), Residuals(Q, K, V, P, steps)


def vjp(dO, res):
    """The forward, read backwards: dQ, dK, dV, and the gradient of each step's parameter."""
    q, k, v = operands(res.Q, res.K, res.V)
    tile = Tile.whole(*res.shape[-2:])
    dO = widen(dO)
    W, _ = chain.forward(res.steps, res.P, tile, "weights")
    dV = mT(W) @ dO  # O = W V
    dW = dO @ mT(v)
    dP, of_weights = chain.vjp(res.steps, dW, tile, "weights")
    dS = softmax_vjp(dP, res.P)  # P = softmax(S)
    dS, of_scores = chain.vjp(res.steps, dS, tile, "scores")  # S' = op(S)
    dQ = dS @ k  # S = Q Kᵀ
    dK = mT(dS) @ q
    return *operands_vjp(dQ, dK, dV, res), in_order(of_weights | of_scores, res)


def jvp(tQ, tK, tV, tparams, res):
    """The forward, with every line replaced by its derivative."""
    q, k, v = operands(res.Q, res.K, res.V)
    tq, tk, tv = operands(tQ, tK, tV)
    tile = Tile.whole(*res.shape[-2:])
    tS = stretch(tq @ mT(k) + q @ mT(tk), res.shape)  # S = Q Kᵀ
    tS = chain.jvp(res.steps, tS, tile, tparams, "scores")  # S' = op(S)
    tP = softmax_jvp(tS, res.P)  # P = softmax(S)
    W, _ = chain.forward(res.steps, res.P, tile, "weights")
    tW = chain.jvp(res.steps, tP, tile, tparams, "weights")
    return narrow(tW @ v + W @ tv, res.Q.dtype)  # O = W V
