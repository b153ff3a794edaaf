"""Attentions over several ranks that are right, for ``diagnose``: the tests put wrong lines into them.

What each runs is one rank's part: its rows of Q, K, V and dO, and a ``comm`` to the others.
"""

import numpy as np

import attnbook as ab
from attentions.of_symptoms import mT, rowsum


def share(T, h):
    """Each key head once for every query head that shares it."""
    return T if T.ndim < 3 or T.shape[-3] == h else np.repeat(T, h // T.shape[-3], axis=-3)


def gather(dT, like):
    """The way back from :func:`share`."""
    if dT.shape == like.shape:
        return dT
    return dT.reshape(*like.shape[:-2], -1, *like.shape[-2:]).sum(axis=-3)


def heads(Q):
    return Q.shape[-3] if Q.ndim > 2 else 1


def sinks(sink):
    """The sink of each head, as an op."""
    return () if sink is None else [ab.ops.Sink(sink)]


def places(n, rank, size, zigzag):
    """Where in the whole the n rows of a rank stand."""
    if not zigzag:
        return rank * n + np.arange(n)
    chunk = np.arange(n // 2)
    return np.concatenate([rank * (n // 2) + chunk, (2 * size - 1 - rank) * (n // 2) + chunk])


def earlier(at, n_q, n_k):
    """Which keys of a block are not later than its queries, for the queries of one rank and the keys of another."""
    r, s, R, zigzag = at
    return places(n_q, r, R, zigzag)[:, None] >= places(n_k, s, R, zigzag)


def scores(Q, k, scale, at, mask, bias, causal):
    """The scores of a block."""
    _, s, R, zigzag = at
    S = scale * (Q @ mT(k))
    columns = places(k.shape[-2], s, R, zigzag)
    if bias is not None:
        S = S + bias[..., columns]
    if mask is not None:
        S = np.where(mask[..., columns], S, -np.inf)
    if causal:
        S = np.where(earlier(at, *S.shape[-2:]), S, -np.inf)
    return S


def skipped(causal, zigzag, r, s):
    """Whether all keys of the block are later than all queries."""
    return causal and not zigzag and s > r


def block_forward(S, v):
    """The output of a block of keys, and its L."""
    m = S.max(axis=-1, keepdims=True)
    m = np.where(np.isneginf(m), 0.0, m)
    E = np.exp(S - m)
    z = rowsum(E)
    return (E @ v) / np.where(z == 0, 1.0, z), m + np.log(z)


def merge(O, L, O_new, L_new):
    """Two outputs over different keys, and their L, put together."""
    both = np.logaddexp(L, L_new)
    safe = np.where(np.isneginf(both), 0.0, both)
    return np.exp(L - safe) * O + np.exp(L_new - safe) * O_new, both


def ring_forward(Q, K, V, comm, causal, scale, mask, bias, sink, zigzag):
    """K and V go around."""
    r, R, h = comm.rank, comm.size, heads(Q)
    O, L = np.zeros((*Q.shape[:-1], V.shape[-1])), np.full((*Q.shape[:-1], 1), -np.inf)
    if sink is not None:
        L = np.broadcast_to(sink[:, None, None], L.shape)
    k, v = K, V
    for t in range(R):
        s = (r - t) % R
        if not skipped(causal, zigzag, r, s):
            S = scores(Q, share(k, h), scale, (r, s, R, zigzag), mask, bias, causal)
            new = block_forward(S, share(v, h))
            O, L = merge(O, L, *new)
        k, v = comm.exchange((k, v))
    return O, np.where(np.isneginf(L), np.inf, L)


def ring_backward(Q, K, V, O, L, dO, comm, causal, scale, mask, bias, zigzag):
    """K and V go around again, and dK and dV with them: after as many hops as there are ranks they are home."""
    r, R, h = comm.rank, comm.size, heads(Q)
    D = rowsum(dO * O)
    k, v, dQ, dk, dv = K, V, np.zeros(Q.shape), np.zeros(K.shape), np.zeros(V.shape)
    for t in range(R):
        s = (r - t) % R
        if not skipped(causal, zigzag, r, s):
            S = scores(Q, share(k, h), scale, (r, s, R, zigzag), mask, bias, causal)
            P = np.exp(S - L)
            dv = dv + gather(mT(P) @ dO, V)
            dP = dO @ mT(share(v, h))
            dS = P * (dP - D)
            dQ = dQ + scale * (dS @ share(k, h))
            dk = dk + gather(scale * (mT(dS) @ Q), K)
        k, v = comm.exchange((k, v))
        dk, dv = comm.exchange((dk, dv))
    return dQ, dk, dv


def ring(Q, K, V, dO, comm, causal=False, scale=None, mask=None, bias=None, sink=None, zigzag=False):
    """Ring attention."""
    scale = Q.shape[-1] ** -0.5 if scale is None else scale
    O, L = ring_forward(Q, K, V, comm, causal, scale, mask, bias, sink, zigzag)
    dQ, dK, dV = ring_backward(Q, K, V, O, L, dO, comm, causal, scale, mask, bias, zigzag)
    return tuple(T.astype(Q.dtype) for T in (O, dQ, dK, dV))


def zigzag_ring(Q, K, V, dO, comm, causal=False, scale=None, mask=None, bias=None, sink=None):
    """The ring, where a rank has an early chunk and a late one."""
    return ring(Q, K, V, dO, comm, causal, scale, mask, bias, sink, zigzag=True)


def gathered(Q, K, V, dO, comm, causal=False, scale=None, mask=None, bias=None, sink=None, lengths=None, n=None):
    """All keys to every rank; the gradients of the keys are summed where the keys live."""
    n_q, n_k = Q.shape[-2], K.shape[-2]
    K, V = (np.concatenate(comm.all_gather(T), axis=-2) for T in (K, V))
    lengths_q = (n_q,) * comm.size if lengths is None else lengths
    lengths_k = (n_k,) * comm.size if lengths is None else lengths
    first = sum(lengths_q[: comm.rank])
    if causal:
        earlier = first + np.arange(n_q)[:, None] >= np.arange(K.shape[-2])
        mask = earlier if mask is None else mask & earlier
    if n is not None:
        there = np.arange(K.shape[-2]) < n
        mask = there if mask is None else mask & there
        dO = np.where(first + np.arange(n_q)[:, None] < n, dO, 0.0)
    O, res = ab.attention(Q, K, V, mask=mask, bias=bias, scale=scale, ops=sinks(sink))
    dQ, dK, dV = ab.attention_vjp(dO, res)[:3]
    ends = np.cumsum(lengths_k)[:-1]
    dK, dV = (comm.reduce_scatter(np.split(T, ends, axis=-2)) for T in (dK, dV))
    return O, dQ, dK, dV


def to_heads(T, comm):
    """Some rows of all heads, exchanged for all rows of some heads."""
    return np.concatenate(comm.all_to_all(np.split(T, comm.size, axis=-3)), axis=-2)


def to_rows(T, comm):
    """The way back."""
    return np.concatenate(comm.all_to_all(np.split(T, comm.size, axis=-2)), axis=-3)


def ulysses(Q, K, V, dO, comm, causal=False, scale=None, mask=None, bias=None, sink=None):
    """Heads for rows, attention as ever, and rows for heads."""
    if mask is not None:
        mask = np.concatenate(comm.all_gather(mask), axis=-2)
    if bias is not None:
        bias = to_heads(bias, comm)
    Q, K, V, dO = (to_heads(T, comm) for T in (Q, K, V, dO))
    if sink is not None:
        sink = np.split(sink, comm.size)[comm.rank]
    O, res = ab.attention(Q, K, V, causal=causal, scale=scale, mask=mask, bias=bias, ops=sinks(sink))
    dQ, dK, dV = ab.attention_vjp(dO, res)[:3]
    return tuple(to_rows(T, comm) for T in (O, dQ, dK, dV))


def own_heads(Q, K, V, dO, comm, causal=False, scale=None, mask=None, bias=None, sink=None):
    """Every rank has heads of its own, and needs nobody."""
    O, res = ab.attention(Q, K, V, causal=causal, scale=scale, mask=mask, bias=bias, ops=sinks(sink))
    dQ, dK, dV = ab.attention_vjp(dO, res)[:3]
    return O, dQ, dK, dV


RIGHT = {
    "ring": (ring, "rows"),
    "zigzag ring": (zigzag_ring, "zigzag"),
    "all-gather": (gathered, "rows"),
    "Ulysses": (ulysses, "rows"),
    "own heads": (own_heads, "heads"),
}
