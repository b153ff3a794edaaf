"""The dense spine: the whole score table at once, and P kept for the backward. It reads like chapter 3.

Every pass widens its inputs at the door and narrows its outputs at the end; between the two there is one dtype.
"""

from typing import NamedTuple

from attnbook.arrays import array_namespace, mT, narrow, unbroadcast, widen
from attnbook.heads import share_heads, share_heads_vjp
from attnbook.ops import Tile
from attnbook.softmax import softmax, softmax_jvp, softmax_vjp


class Residuals(NamedTuple):
    """What the backward needs: the inputs as they came, the weights P (..., n_q, n_k), and the steps of the scores."""

    Q: object
    K: object
    V: object
    P: object
    steps: tuple


def forward(Q, K, V, steps, shape):
    """O = softmax(opₘ(… op₁(Q Kᵀ))) V, with scores of ``shape`` (..., n_q, n_k), and the residuals."""
    q, k, v = _operands(Q, K, V)
    tile = Tile.whole(*shape[-2:])
    S = _stretch(q @ mT(k), shape)
    done = []
    for step in steps:
        S, saved = step.op.forward(S, tile)
        done.append(step._replace(saved=saved))
    P = softmax(S)
    return narrow(P @ v, Q.dtype), Residuals(Q, K, V, P, tuple(done))


def vjp(dO, res):
    """The forward, read backwards: dQ, dK, dV, and the gradient of each step's parameter."""
    q, k, v = _operands(res.Q, res.K, res.V)
    tile = Tile.whole(*res.P.shape[-2:])
    dO = widen(dO)
    dV = mT(res.P) @ dO  # O = P V
    dP = dO @ mT(v)
    dS = softmax_vjp(dP, res.P)  # P = softmax(S)
    dparams = []
    for step in reversed(res.steps):  # S' = op(S)
        dS, dparam = step.op.vjp(dS, step.saved, tile)
        dparams.append(dparam)
    dQ = dS @ k  # S = Q Kᵀ
    dK = mT(dS) @ q
    dQ = unbroadcast(dQ, res.Q.shape)
    dK, dV = share_heads_vjp(dK, res.K.shape), share_heads_vjp(dV, res.V.shape)
    dQ, dK, dV, *dparams = (T if T is None else narrow(T, res.Q.dtype) for T in (dQ, dK, dV, *dparams))
    return dQ, dK, dV, tuple(reversed(dparams))


def jvp(tQ, tK, tV, tparams, res):
    """The forward, with every line replaced by its derivative."""
    q, k, v = _operands(res.Q, res.K, res.V)
    tq, tk, tv = _operands(tQ, tK, tV)
    tile = Tile.whole(*res.P.shape[-2:])
    tS = _stretch(tq @ mT(k) + q @ mT(tk), res.P.shape)  # S = Q Kᵀ
    for step, tparam in zip(res.steps, tparams, strict=True):  # S' = op(S)
        tS = step.op.jvp(tS, step.saved, tile, tparam)
    tP = softmax_jvp(tS, res.P)  # P = softmax(S)
    return narrow(tP @ v + res.P @ tv, res.Q.dtype)  # O = P V


def _operands(Q, K, V):
    """Q, K, V in the accumulation dtype, each key and value head repeated for the query heads that share it."""
    h = Q.shape[-3] if Q.ndim >= 3 else 1
    return widen(Q), share_heads(widen(K), h), share_heads(widen(V), h)


def _stretch(S, shape):
    """S with the leading axes that only V has."""
    return S if S.shape == shape else array_namespace(S).broadcast_to(S, shape)
