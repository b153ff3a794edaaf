"""Attentions that are wrong as code that people write is wrong: a line of a right one replaced, without the catalogue.

The right ones are a tiled kernel and an eager one in torch. Each row of :data:`WRONG` says which line is replaced in
which of them, and what ``diagnose`` must name.
"""

import inspect
from typing import NamedTuple

import numpy as np
import torch

from attentions.of_symptoms import mT

TILE = 64


def tile(n, size):
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


# --- right --------------------------------------------------------------------------------------------------------


def kernel(Q, K, V, dO, *, mask=None, bias=None, causal=False, scale=None, window=None, softcap=None, sink=None):
    """Tiles of queries and keys: L and O in the forward; D, then dK and dV, then dQ, in the backward."""
    n_q, n_k, d, h = Q.shape[-2], K.shape[-2], Q.shape[-1], Q.shape[-3] if Q.ndim > 2 else 1
    group = h // K.shape[-3] if Q.ndim > 2 else 1
    k, v = (np.repeat(T, group, axis=-3) if group > 1 else T for T in (K, V))
    softmax_scale = d**-0.5 if scale is None else scale
    bwd_scale = softmax_scale
    is_causal = bwd_causal = causal
    M = None if mask is None else np.broadcast_to(mask, (*Q.shape[:-2], n_q, n_k))
    B = None if bias is None else np.broadcast_to(bias, (*Q.shape[:-2], n_q, n_k))
    sinks = None if sink is None else sink[..., None, None]

    def scores(rows, cols, scale, causal, bias=B):
        S = scale * Q[..., rows, :] @ mT(k[..., cols, :])
        S = S if softcap is None else softcap * np.tanh(S / softcap)
        S = S if bias is None else S + bias[..., rows, cols]
        i, j = np.arange(n_q)[rows, None], np.arange(n_k)[cols]
        shift = n_k - n_q if causal == "bottom-right" else 0
        S = np.where(j <= i + shift, S, -np.inf) if causal else S
        if window is not None:
            left, right = window
            S = np.where((j >= i + shift - left) & (j <= i + shift + right), S, -np.inf)
        return S if M is None else np.where(M[..., rows, cols], S, -np.inf)

    O, L = np.zeros_like(dO), np.zeros((*Q.shape[:-1], 1))
    for rows in tile(n_q, TILE):
        m = np.full((*Q.shape[:-2], rows.stop - rows.start, 1), -np.inf)
        Z, acc = np.zeros_like(m), 0 * dO[..., rows, :]
        for cols in tile(n_k, TILE):
            S = scores(rows, cols, softmax_scale, is_causal)
            new = np.maximum(m, S.max(axis=-1, keepdims=True))
            safe = np.where(np.isneginf(new), 0, new)
            alpha, E = np.exp(m - safe), np.exp(S - safe)
            acc = alpha * acc + E @ v[..., cols, :]
            Z = alpha * Z + E.sum(axis=-1, keepdims=True)
            m = new
        if sinks is not None:
            safe = np.where(np.isneginf(m), 0, m)
            Z = Z + np.exp(sinks - safe)
        O[..., rows, :] = acc / np.where(Z == 0, 1, Z)
        safe = np.where(np.isneginf(m), 0, m)
        L[..., rows, :] = np.where(Z == 0, np.inf, safe + np.log(np.where(Z == 0, 1, Z)))

    delta = (dO * O).sum(axis=-1, keepdims=True)
    dQ, dk, dv = np.zeros_like(Q), np.zeros_like(k), np.zeros_like(v)
    dB = None if bias is None else np.zeros(B.shape)
    for cols in tile(n_k, TILE):
        for rows in tile(n_q, TILE):
            q, do = Q[..., rows, :], dO[..., rows, :]
            S = scores(rows, cols, bwd_scale, bwd_causal)
            P = np.exp(S - L[..., rows, :])
            dv[..., cols, :] += mT(P) @ do
            dP = do @ mT(v[..., cols, :])
            dS = P * (dP - delta[..., rows, :])
            if dB is not None:
                dB[..., rows, cols] = dS
            if softcap is not None:
                t = np.tanh(softmax_scale * q @ mT(k[..., cols, :]) / softcap)
                dS = dS * (1 - t**2)
            dk[..., cols, :] += bwd_scale * mT(dS) @ q
            dQ[..., rows, :] += bwd_scale * dS @ k[..., cols, :]
    dK, dV = dk, dv
    if group > 1:
        dK, dV = (T.reshape(*K.shape[:-2], group, *T.shape[-2:]).sum(axis=-3) for T in (dk, dv))
    more = []
    if bias is not None:
        dbias = dB.sum(axis=tuple(range(dB.ndim - bias.ndim)))
        more.append(dbias.sum(axis=tuple(i for i, n in enumerate(bias.shape) if n == 1), keepdims=True))
    if sink is not None:
        dsink = -np.exp(sinks - L) * delta
        more.append(dsink.sum(axis=(*range(dsink.ndim - 3), -1, -2)))
    return O, dQ, dK, dV, *more


def eager(Q, K, V, mask=None, bias=None, causal=False, scale=None, dropout=0.0):
    """As a model's file in torch has it; autograd is its backward."""
    h = Q.shape[-3] if Q.ndim > 2 else 1
    if Q.ndim > 2:
        K, V = (T.repeat_interleave(h // T.shape[-3], -3) for T in (K, V))
    scale = Q.shape[-1] ** -0.5 if scale is None else scale
    S = Q @ K.mT * scale
    if bias is not None:
        S = S + bias
    if causal:
        corner = S.shape[-1] - S.shape[-2] if causal == "bottom-right" else 0
        S = S.masked_fill(~torch.ones(S.shape[-2:], dtype=torch.bool).tril(corner), -torch.inf)
    if mask is not None:
        S = S.masked_fill(~mask, -torch.inf)
    m = S.amax(-1, keepdim=True).detach() if S.shape[-1] else S.new_zeros(())
    E = (S - m.masked_fill(m == -torch.inf, 0.0)).exp()
    Z = E.sum(-1, keepdim=True)
    P = E / Z.masked_fill(Z == 0, 1.0)
    P = torch.nn.functional.dropout(P, dropout)
    return P @ V


RIGHT = {"kernel": (kernel, "numpy"), "eager": (eager, "torch")}


# --- wrong --------------------------------------------------------------------------------------------------------


class Wrong(NamedTuple):
    """``right`` in the source of ``of`` is replaced by ``wrong``; ``names`` are those of which one must be named."""

    what: str
    of: str
    right: str
    wrong: str
    names: tuple

    def function(self):
        """The wrong function, from the source."""
        source = inspect.getsource(RIGHT[self.of][0])
        if source.count(self.right) != 1:
            raise ValueError(f"{self.what}: {self.right!r} stands {source.count(self.right)} times")
        names = {"np": np, "torch": torch, "mT": mT, "tile": tile, "TILE": TILE}
        exec(compile(source.replace(self.right, self.wrong), self.what, "exec"), names)
        return names[self.of]


BWD_SCALE = "bwd_scale = softmax_scale"
BWD_CAUSAL = "is_causal = bwd_causal = causal"
SCORES = "S = scores(rows, cols, bwd_scale, bwd_causal)"
DELTA = "delta = (dO * O).sum(axis=-1, keepdims=True)\n    dQ, dk"

WRONG = (
    # the threads of incidents.md, by what their cause was
    Wrong("tilelang-ascend#1669", "kernel", BWD_SCALE,
          "bwd_scale = softmax_scale if scale is not None else (-(-d // 16) * 16) ** -0.5",
          ("scale-of-padding-in-backward",)),
    Wrong("diffusers#14265", "kernel", DELTA,
          "k, v = (T[..., np.arange(n_k) % TILE, :] for T in (k, v))\n    " + DELTA,
          ("kv-of-first-block",)),
    Wrong("MSLK PR#263", "kernel", BWD_CAUSAL, "is_causal, bwd_causal = causal, False",
          ("causal-forgotten-in-backward",)),
    Wrong("triton#5660", "kernel", BWD_CAUSAL, "is_causal, bwd_causal = causal, causal or True",
          ("causal-forced-in-backward",)),
    Wrong("levanter PR#449", "kernel",
          "if group > 1:\n"
          "        dK, dV = (T.reshape(*K.shape[:-2], group, *T.shape[-2:]).sum(axis=-3) for T in (dk, dv))",
          "", ("group-sum-missing",)),
    Wrong("DeepSpeed#5248", "kernel", "return O, dQ, dK, dV, *more", "return O, 4 * dQ, 4 * dK, 4 * dV, *more",
          ("factor",)),
    Wrong("pytorch#146377", "kernel", DELTA,
          'K_ = K.ravel(order="K").reshape(K.shape)\n    k = np.repeat(K_, group, axis=-3) if group > 1 else K_\n    '
          + DELTA, ("strides-of-k-in-backward",)),
    Wrong("pytorch PR#174361", "kernel", "softmax_scale = d**-0.5 if scale is None else scale",
          "softmax_scale = d**-0.5", ("scale-ignored",)),
    Wrong("flash-attention PR#2776", "kernel", "n_q, n_k, d, h =",
          "if 0 in (Q.shape[-2], K.shape[-2]):\n        return tuple(np.full(T.shape, np.nan) for T in (dO, Q, K, V))\n"
          "    n_q, n_k, d, h =", ("empty-not-handled",)),
    Wrong("maxtext#3138", "kernel", "softmax_scale = d**-0.5 if scale is None else scale",
          "softmax_scale = (d**-0.5 if scale is None else scale) * d**-0.5", ("scale-and-default",)),
    Wrong("cudnn-frontend PR#421", "kernel", "safe = np.where(np.isneginf(m), 0, m)\n        L[...",
          "safe = np.where(np.isneginf(m), 0, m)\n        Z = Z if sinks is None else Z - np.exp(sinks - safe)\n"
          "        L[...", ("sink-not-in-l",)),
    Wrong("Megatron-LM PR#205", "kernel", "dsink = -np.exp(sinks - L) * delta", "dsink = 0 * delta", ("dsink-zero",)),
    Wrong("jax#27184", "kernel", "dB[..., rows, cols] = dS", "pass", ("dbias-zero",)),
    Wrong("apex PR#816", "eager", "P = torch.nn.functional.dropout(P, dropout)",
          "P = torch.nn.functional.dropout(P, dropout) * (1 - dropout)", ("dropout-factor-missing",)),
    # the scale
    Wrong("backward scales by the width of V", "kernel", BWD_SCALE,
          "bwd_scale = softmax_scale if scale is not None else V.shape[-1] ** -0.5", ("scale-of-values-in-backward",)),
    Wrong("backward scales by all heads", "kernel", BWD_SCALE,
          "bwd_scale = softmax_scale if scale is not None else (h * d) ** -0.5", ("scale-of-model-in-backward",)),
    Wrong("backward forgets the given scale", "kernel", BWD_SCALE, "bwd_scale = d**-0.5",
          ("given-scale-forgotten-in-backward",)),
    # masks
    Wrong("j < i in the backward", "kernel", SCORES,
          SCORES + "\n            if bwd_causal:\n"
          '                shift = n_k - n_q if bwd_causal == "bottom-right" else 0\n'
          "                S = np.where(np.arange(n_k)[cols] < np.arange(n_q)[rows, None] + shift, S, -np.inf)",
          ("causal-own-key-forbidden-in-backward",)),
    Wrong("backward without the bias", "kernel", SCORES, "S = scores(rows, cols, bwd_scale, bwd_causal, None)",
          ("bias-forgotten-in-backward",)),
    Wrong("window has no end", "kernel",
          "(j >= i + shift - left) & (j <= i + shift + right)", "(j >= i + shift - left)", ("window-one-sided",)),
    # D, dP, L
    Wrong("D without the weights", "kernel", DELTA, "delta = (dO @ mT(v)).sum(axis=-1, keepdims=True)\n    dQ, dk",
          ("d-unweighted",)),
    Wrong("L without the maximum", "kernel", "np.where(Z == 0, np.inf, safe +", "np.where(Z == 0, np.inf, 0 * safe +",
          ("l-without-maximum",)),
    # tiles, heads
    Wrong("only full tiles of queries", "kernel", "for rows in tile(n_q, TILE):\n            q, do",
          "for rows in tile(n_q, TILE)[: max(1, n_q // TILE)]:\n            q, do",
          ("rows-not-written", "dkv-tail-dropped")),
    Wrong("the second tile of dQ is never written", "kernel", "dk[..., cols, :] += bwd_scale * mT(dS) @ q\n",
          "dk[..., cols, :] += bwd_scale * mT(dS) @ q\n            if rows.start:\n                continue\n",
          ("second-block-not-written",)),
    Wrong("K of head 0 for all heads", "kernel", "dQ[..., rows, :] += bwd_scale * dS @ k[..., cols, :]",
          "dQ[..., rows, :] += bwd_scale * dS @ (k[..., :1, cols, :] if k.ndim > 2 else k[..., cols, :])",
          ("kv-of-first-head",)),
    Wrong("the group's last head", "kernel", ".sum(axis=-3) for T in (dk, dv)", "[..., -1, :, :] for T in (dk, dv)",
          ("group-overwritten",)),
    Wrong("over the batch", "kernel", "return O, dQ, dK, dV, *more",
          "b = Q.shape[0] if Q.ndim == 4 else 1\n    return O, dQ / b, dK / b, dV / b, *more",
          ("factor-one-over-batch",)),
    # what a graph loses
    Wrong("the maximum is detached in half", "eager", "Z = E.sum(-1, keepdim=True)",
          "Z = (S - S.amax(-1, keepdim=True).nan_to_num(neginf=0.0)).exp().sum(-1, keepdim=True) "
          "if E.shape[-1] else E.sum(-1, keepdim=True)",
          ("maximum-half-detached",)),
)  # fmt: skip
"""Those of the threads first, by the thread."""
