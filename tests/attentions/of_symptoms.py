"""Small attentions that are right, for the page of symptoms: every line that it calls right stands in one of them.

The tests put the page's wrong lines in their place, and see whether the symptom comes.
"""

from functools import partial
from math import inf

import numpy as np
import torch

BLOCK = 3


def mT(T):
    return np.swapaxes(T, -1, -2)


def rowsum(T):
    return T.sum(axis=-1, keepdims=True)


def softmax(S):
    m = S.max(axis=-1, keepdims=True)
    m = np.where(np.isneginf(m), 0, m)
    E = np.exp(S - m)
    Z = rowsum(E)
    return E / np.where(Z == 0, 1, Z)


def softmax_vjp(dP, P):
    return P * (dP - rowsum(P * dP))


def split(T, shape):
    return T.reshape(*shape, *T.shape[-2:])


def head(Q, K, V, dO, *, mask=None, bias=None, causal=False, scale=None):
    """All that ``diagnose`` asks for."""
    n_q, n_k = Q.shape[-2], K.shape[-2]
    group = Q.shape[-3] // K.shape[-3] if Q.ndim > 2 else 1
    k, v = K, V
    if group > 1:
        k = np.repeat(K, group, axis=-3)
        v = np.repeat(V, group, axis=-3)
    if scale is None:
        scale = Q.shape[-1] ** -0.5
    scores = scale * Q @ mT(k) + (0 if bias is None else bias)

    def masked(corner):
        S = np.where(np.tri(n_q, n_k, corner, dtype=bool), scores, -np.inf) if causal else scores
        return S if mask is None else np.where(mask, S, -np.inf)

    corner = 0
    if causal == "bottom-right":
        corner = n_k - n_q
    O = softmax(masked(corner)) @ v

    P = softmax(masked(corner))
    dV = mT(P) @ dO
    dP = dO @ mT(v)
    D = rowsum(P * dP)
    dS = P * (dP - D)
    dQ = scale * dS @ k
    dK = scale * mT(dS) @ Q
    if group > 1:
        by_group = partial(split, shape=(*K.shape[:-2], group))
        dK = by_group(dK).sum(axis=-3)
        dV = by_group(dV).sum(axis=-3)
    return O, dQ, dK, dV


def blocks(Q, K, V, dO, *, causal=False):
    """Keys a block at a time, keeping O and L."""
    if causal not in (False, True):
        raise NotImplementedError("the other corner")
    scale = K.shape[-1] ** -0.5
    n_q, n_k = Q.shape[-2], K.shape[-2]
    i = np.arange(n_q)[:, None]
    m, Z, O = np.full((*Q.shape[:-1], 1), -np.inf), 0, 0

    def scores(start):
        K_b = K[..., start : start + BLOCK, :]
        S = scale * Q @ mT(K_b)
        j = start + np.arange(S.shape[-1])
        return np.where(j <= i, S, -np.inf) if causal else S

    for start in range(0, n_k, BLOCK):
        S, V_b = scores(start), V[..., start : start + BLOCK, :]
        new = np.maximum(m, S.max(axis=-1, keepdims=True))
        shrink, E = np.exp(m - new), np.exp(S - new)
        Z = shrink * Z + rowsum(E)
        O = shrink * O + E @ V_b
        m = new
    L = m + np.log(Z)
    O = O / Z
    D = rowsum(dO * O)

    dQ = np.zeros_like(Q)
    dK, dV = np.zeros_like(K), np.zeros_like(V)
    for start in range(0, n_k, BLOCK):
        b = slice(start, start + BLOCK)
        K_b, V_b = K[..., b, :], V[..., b, :]
        P = np.exp(scores(start) - L)
        dP = dO @ mT(V_b)
        scaled_dS = scale * P * (dP - D)
        dQ += scaled_dS @ K_b
        dK[..., b, :] = mT(scaled_dS) @ Q
        dV[..., b, :] = mT(P) @ dO
    return O, dQ, dK, dV


def tiles(Q, K, V, dO, *, causal=False):
    """Two loops, as on a GPU: full tiles of keys, with zeros past the end, and scores in bits; then tiles both ways."""
    if causal not in (False, True):
        raise NotImplementedError("the other corner")
    scale = K.shape[-1] ** -0.5
    n_q, n_k = Q.shape[-2], K.shape[-2]
    past = [(0, 0)] * (K.ndim - 2) + [(0, -n_k % BLOCK), (0, 0)]
    full_K, full_V = np.pad(K, past), np.pad(V, past)
    q = scale * np.log2(np.e) * Q
    i = np.arange(n_q)[:, None]
    m, Z, O = np.full((*Q.shape[:-1], 1), -np.inf), 0, 0
    for keys in cuts(n_k):
        K_b, V_b = full_K[..., keys, :], full_V[..., keys, :]
        j = keys.start + np.arange(BLOCK)
        S = q @ mT(K_b)
        S = np.where(j < n_k, S, -np.inf)
        S = np.where(j <= i, S, -np.inf) if causal else S
        new = np.maximum(m, S.max(axis=-1, keepdims=True))
        E, shrink = np.exp2(S - new), np.exp2(m - new)
        Z, O, m = shrink * Z + rowsum(E), shrink * O + E @ V_b, new
    L = (m + np.log2(Z)) * np.log(2)
    O = O / Z

    D = rowsum(O * dO)
    dQ, dK, dV = np.zeros_like(Q), np.zeros_like(K), np.zeros_like(V)

    def tile(rows, keys):
        S = scale * Q[..., rows, :] @ mT(K[..., keys, :])
        S = np.where(np.arange(n_k)[keys] <= i[rows], S, -np.inf) if causal else S
        P = np.exp(S - L[..., rows, :])
        return P, P * (dO[..., rows, :] @ mT(V[..., keys, :]) - D[..., rows, :])

    for keys in cuts(n_k):
        dK_b = dV_b = 0
        first = keys.start if causal else 0
        for rows in cuts(n_q, first):
            P, dS = tile(rows, keys)
            Q_b, dO_b = Q[..., rows, :], dO[..., rows, :]
            dV_b = dV_b + mT(P) @ dO_b
            dK_b = dK_b + mT(dS) @ Q_b
        dK[..., keys, :], dV[..., keys, :] = scale * dK_b, dV_b
    for rows in cuts(n_q):
        for keys in cuts(n_k):
            _, dS = tile(rows, keys)
            dQ[..., rows, :] += scale * dS @ K[..., keys, :]
    return O, dQ, dK, dV


def cuts(n, first=0):
    return [slice(start, start + BLOCK) for start in range(first, n, BLOCK)]


def by_rows(Q, K, V, dO):
    """What a kernel does that is handed bare memory, and counts rows and columns itself; dK a query at a time, added
    up in float32, in memory of its own.
    """
    scale = K.shape[-1] ** -0.5
    P = softmax(scale * Q @ mT(K))
    memory = dO.ravel(order="C")
    dO = memory.reshape(dO.shape)
    dP = dO @ mT(V)
    dS = softmax_vjp(dP, P)
    wide = np.promote_types(Q.dtype, np.float32)
    dK = np.zeros(K.shape, wide)
    for i in range(Q.shape[-2]):
        dK += mT(dS[..., i : i + 1, :]) * Q[..., i : i + 1, :]
    return P @ V, scale * dS @ K, (scale * dK).astype(Q.dtype), mT(P) @ dO


def dropped(Q, K, V, dO, keep, p):
    """Dropout on the weights; keep says which stay."""
    scale = K.shape[-1] ** -0.5
    P = softmax(scale * Q @ mT(K))
    W = keep * P / (1 - p)
    dV = mT(W) @ dO
    dP = keep * (dO @ mT(V)) / (1 - p)
    dS = P * (dP - rowsum(P * dP))
    return W @ V, scale * dS @ K, scale * mT(dS) @ Q, dV


def biased(Q, K, V, dO, bias):
    """With the gradient of a bias that may be broadcast."""
    P = softmax(Q.shape[-1] ** -0.5 * Q @ mT(K) + bias)
    dP = dO @ mT(V)
    dS = softmax_vjp(dP, P)
    lead = tuple(range(dS.ndim - bias.ndim))
    dbias = dS.sum(axis=lead)
    ones = tuple(a for a, n in enumerate(bias.shape) if n == 1)
    dbias = dbias.sum(axis=ones, keepdims=True)
    return P @ V, dbias


def sunk(Q, K, V, dO, sink):
    """With one more score a row that has no key."""
    S = Q.shape[-1] ** -0.5 * Q @ mT(K)
    Z = rowsum(np.exp(S)) + np.exp(sink)
    P, P_sink = np.exp(S) / Z, np.exp(sink) / Z
    dP = dO @ mT(V)
    O = P @ V
    D = rowsum(O * dO)
    dsink = -(P_sink * D).sum()
    scaled_dS = Q.shape[-1] ** -0.5 * (P * dP - P * D)
    return O, scaled_dS @ K, mT(scaled_dS) @ Q, mT(P) @ dO, dsink


def capped(Q, K, V, dO, cap):
    """Scores kept between −cap and cap."""
    scale = K.shape[-1] ** -0.5
    C = cap * np.tanh(scale * Q @ mT(K) / cap)
    P = softmax(C)
    dP = dO @ mT(V)
    dC = softmax_vjp(dP, P)
    dS = dC * (1 - (C / cap) ** 2)
    return P @ V, scale * dS @ K, scale * mT(dS) @ Q, mT(P) @ dO


def windowed(Q, K, V, dO, left):
    """The last ``left`` keys and the query's own."""
    scale = K.shape[-1] ** -0.5
    i, j = np.arange(Q.shape[-2])[:, None], np.arange(K.shape[-2])
    keep = (j <= i) & (j >= i - left)
    P = softmax(np.where(keep, scale * Q @ mT(K), -np.inf))
    dP = dO @ mT(V)
    dS = softmax_vjp(dP, P)
    return P @ V, scale * dS @ K, scale * mT(dS) @ Q, mT(P) @ dO


def by_autograd(Q, K, V, mask=None):
    """Dead rows put right before softmax, not after it."""
    S = Q.shape[-1] ** -0.5 * Q @ K.mT
    if mask is None:
        return S.softmax(-1) @ V
    dead = ~mask.any(-1, keepdim=True)
    some = mask | dead
    S = S.masked_fill(~some, -inf)
    O = S.softmax(-1) @ V
    O = O.masked_fill(dead, 0)
    return O  # noqa: RET504 (the page shows the line)


def detached(Q, K, V):
    """Nothing is cut off from the graph."""
    S = Q.shape[-1] ** -0.5 * Q @ K.mT
    P = S.softmax(-1)
    return P @ V


class Saved(torch.autograd.Function):
    """A backward by hand that can be differentiated again."""

    @staticmethod
    def forward(ctx, Q, K, V):
        scale = K.shape[-1] ** -0.5
        P = torch.softmax(scale * Q @ K.mT, -1)
        ctx.save_for_backward(Q, K, V)
        ctx.P = P
        return P @ V

    @staticmethod
    def backward(ctx, dO):
        Q, K, V = ctx.saved_tensors
        scale = K.shape[-1] ** -0.5
        P = (scale * Q @ K.mT).softmax(-1)
        dP = dO @ V.mT
        dS = P * (dP - (P * dP).sum(-1, keepdim=True))
        return scale * dS @ K, scale * dS.mT @ Q, P.mT @ dO
