"""Wrong steps of a parallel calculation that take more than a line. Chapter: :doc:`/chapters/08_checking`.

``a`` is an :class:`attnbook.diagnose.ranks.over_ranks.OverRanks`, r a rank with its queries, s one with its keys.
"""

from typing import NamedTuple

import numpy as np

from attnbook.diagnose.ranks.over_ranks import OverRanks
from attnbook.diagnose.steps import Steps, rowsum


class RanksMistake(NamedTuple):
    """A wrong parallel calculation: like :class:`attnbook.diagnose.causes.mistakes.Mistake`, without the formulas.

    ``spoils`` are the results that come out wrong; ``sources`` public threads about it; ``steps`` are the steps of
    :class:`attnbook.diagnose.ranks.over_ranks.OverRanks` that it replaces.
    """

    slug: str
    title: str
    spoils: tuple
    steps: dict
    sources: tuple = ()


# --- whose, and how often


def own(a, r, s):
    return r


def before(a, r, s):
    """The block of the hop before: what a rank still has when it does not wait for what comes."""
    return s if s == r else (s + a.turn) % a.B


def ahead(a, r, s):
    """The block of the next hop: what a rank has that sends on what it has before it uses it."""
    return (s - a.turn) % a.B


def other_way(a, r, s):
    """The block that comes at this hop when the ring turns the other way."""
    return (2 * r - s) % a.B


def last(a, r, s):
    return int(a.hop(r, s) < a.B - 1 or a.B == 1)


def not_first(a, r, s):
    return int(r != s or a.B == 1)


def first_only(a, r, s):
    return int(r == s)


def first_twice(a, r, s):
    return 1 + int(r == s)


def same(a):
    return a.split.rank_q[:, None] == a.split.rank_k


def rank_q(a):
    return a.split.rank_q[:, None]


def local(a):
    return a.split.local_q[:, None] >= a.split.local_k


def tri(a):
    return np.tri(a.n_q, a.n_k, dtype=bool)


def own_column(a, T):
    """(..., n_q, 1): of a number for each query and block, that of the rank's own block."""
    return np.take_along_axis(T, np.broadcast_to(rank_q(a), (*T.shape[:-1], 1)), axis=-1)


def skips(a):
    """Whether the blocks of later ranks are skipped, since no key of theirs is seen."""
    return a.skipping and bool(a.corner) and a.split.kind == "rows"


def is_last(a, r, s):
    """Whether s is the last block that r visits."""
    return s == next(u for t in range(a.B)[::-1] if (u := a.met(r, t)) <= r or not skips(a))


def is_last_home(a, r, s):
    """Whether r is the last rank that visits the block of s."""
    return r == next(u for t in range(a.B)[::-1] if (u := (s + a.turn * t) % a.B) >= s or not skips(a))


def last_column(a, T):
    """That of the block of the last hop."""
    last = np.array([next(s for s in range(a.B) if is_last(a, r, s)) for r in range(a.B)])[a.split.rank_q][:, None]
    return np.take_along_axis(T, np.broadcast_to(last, (*T.shape[:-1], 1)), axis=-1)


def safe(a, L):
    """L, +∞ where no key is allowed."""
    return np.where(np.isneginf(L), np.inf, L) if a.guarded else L


def by_block(a, T):
    """(..., n_q, B), T summed over each block of keys."""
    return np.concatenate([rowsum(T[..., columns]) for columns in a.split.keys], axis=-1)


def block_outputs(a):
    """(..., n_q, B), rowsum(dO ∘ O) of each block's own output, before it is merged."""
    return by_block(a, a.P_blocks * (a.dO @ a.transpose(a.v)))


def neighbor(a, T):
    return a.of_rank(T, lambda r: (r - a.turn) % a.B)


# --- merging


def merged(a):
    """(..., n_q, B), what is left of each block when a merge gives each side the factor of the other."""
    out = np.empty_like(a.L_blocks)
    for r, rows in enumerate(a.split.queries):
        L, w = np.broadcast_to(a.sink_seen, (*a.Q.shape[:-1], 1))[..., rows, 0], {}
        for t in range(a.B):
            s = a.met(r, t)
            new = a.L_blocks[..., rows, s]
            alive = ~np.isneginf(new)  # a block with no key for a query is skipped
            both, first = np.logaddexp(L, new), np.isneginf(L)
            w = {u: np.where(alive, weight * np.exp(new - both), weight) for u, weight in w.items()}
            w[s] = np.where(first, 1.0, np.where(alive, np.exp(L - both), 0.0))
            L = np.where(alive, both, L)
        for s, weight in w.items():
            out[..., rows, s] = weight
    return out


def no_rescale():
    """Sums of exponentials, each less the maximum of its own block, added up as they are."""

    def maxima(a):
        return np.concatenate([a.S[..., keys].max(axis=-1, keepdims=True) for keys in a.split.keys], axis=-1)

    def sums(a):
        return np.exp(a.L_blocks - np.where(np.isneginf(maxima(a)), np.inf, maxima(a)))

    def L(a):
        return maxima(a).max(axis=-1, keepdims=True) + np.log(rowsum(sums(a)))

    return {"factors": lambda a: sums(a) / rowsum(sums(a)), "L_backward": L}


# --- sums over ranks


def gradients(f, *names):
    """The steps that put f(a, T) in the place of each of these gradients T."""
    return {name: lambda a, name=name: f(a, getattr(OverRanks, name).func(a)) for name in names}


def times_ranks(a, T):
    return a.split.ranks * T


def over_ranks(a, T):
    return T / a.split.ranks


def sum_of_blocks(a, T):
    """The sum of the rows of all ranks, at each rank."""
    out = np.empty_like(T)
    total = sum(T[..., keys, :] for keys in a.split.keys)
    for keys in a.split.keys:
        out[..., keys, :] = total
    return out


# --- places


def in_order(a):
    """The place of each row, if every rank had one piece."""
    return a.split.rank_q * len(a.split.queries[0]) + a.split.local_q


def zigzag(a, straight=False):
    """The place of each row, if every rank had the chunks r and 2R − 1 − r, or r and R + r."""
    r, size = a.split.rank_q, len(a.split.queries[0]) // 2
    second = a.B + r if straight else 2 * a.B - 1 - r
    first = a.split.local_q < size
    return np.where(first, r * size, (second - 1) * size) + a.split.local_q


def hop_position(a):
    """(n_q, n_k), the place of each key, if the block of hop t were number t."""
    return a.over_table(a.hop) * len(a.split.keys[0]) + a.split.local_k


def in_zigzag(wrong):
    """``wrong`` under causal in a zigzag, and what is right in other splits."""
    return {"earlier": lambda a: wrong(a) if a.split.kind == "zigzag" else tri(a)}


# --- heads and padding


def shared_heads(a, T):
    """T with the heads of the first rank in the place of those of every other one."""
    if a.h == 1 or T.ndim < 3 or T.shape[-3] == 1:
        return T
    return T[..., np.arange(a.h) % (a.h // a.split.ranks), :, :]


def heads_mixed(a, T, back=False):
    """Rows and heads as they come out of an all-to-all whose pieces are reshaped with no transpose."""
    h, n = (T.shape[-3] if T.ndim > 2 else 1), T.shape[-2]
    if a.split.kind != "rows" or h % a.split.ranks:
        return T
    R, own = a.split.ranks, h // a.split.ranks
    pieces = T.reshape(*T.shape[:-3], R, *((R, own) if back else (own, R)), n // R, T.shape[-1])
    return np.swapaxes(pieces, -4, -3).reshape(T.shape)


def padded(a, *names):
    """The results where the padding of these inputs counts."""
    more = a.split.padding
    if not more:
        return OverRanks.run(a)
    inputs = {"Q": a.Q, "K": a.K, "V": a.V, "dO": a.dO}
    inputs |= {name: np.concatenate([inputs[name], more[name]], axis=-2) for name in names}
    O, dQ, dK, dV = Steps(**inputs, causal=a.causal, scale=a.given_scale).run()
    return O[..., : a.n_q, :], dQ[..., : a.n_q, :], dK[..., : a.n_k, :], dV[..., : a.n_k, :]
