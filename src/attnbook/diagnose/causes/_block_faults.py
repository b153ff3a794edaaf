"""What goes wrong where keys or queries are taken a block at a time. Chapter: :doc:`/chapters/11_memory_and_speed`."""

from itertools import chain

import numpy as np

from attnbook.diagnose.causes._fault import D_of_O, dsink_of, faults, made_again, throughout
from attnbook.diagnose.causes.mistakes import MISTAKE
from attnbook.diagnose.steps import Steps, exponentials, mT, rowsum, softmax

SIZES = (1, 2, 3, 4, 8, 16, 32, 64, 128, -2, -4)
"""Sizes of blocks: those of tests, and those of kernels; −2 are halves, on two ranks, and −4 are quarters."""


def size_of(size, n):
    return size if size > 0 else max(1, -(n // size))


def blocks(n, size):
    size = size_of(size, n)
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def spread(T, size):
    """The sum over each block of keys, spread over that block."""
    parts = [np.broadcast_to(rowsum(T[..., b]), T[..., b].shape) for b in blocks(T.shape[-1], size)]
    return np.concatenate(parts, axis=-1) if parts else T


def softmax_of_blocks(a, size):
    parts = [softmax(a.S[..., b]) for b in blocks(a.n_k, size)]
    return np.concatenate(parts, axis=-1) if parts else a.S


def only(T, axis, b):
    """T, 0 outside of these entries of the axis."""
    kept = np.zeros_like(T)
    where = (Ellipsis, b, slice(None)) if axis == -2 else (Ellipsis, b)
    kept[where] = T[where]
    return kept


def kept_of(n, size, which):
    """The entries that are left: of the last block, of the first, or of the full ones."""
    size = size_of(size, n)
    last, full = (n - 1) // size * size if n else 0, n // size * size
    return {
        "last": slice(last, n),
        "first": slice(0, size),
        "full": slice(0, full),
        "full, if any": slice(0, full or n),
    }[which]


def dQ_of(which, size):
    return {"dQ_unscaled": lambda a: only(a.dproducts, -1, kept_of(a.n_k, size, which)) @ a.k}


def last_visited(a, size, rows):
    """(n_q, n_k), True in the last block of keys that is visited where causal skips those beyond the diagonal; a block
    of queries is ``rows`` times as long.
    """
    size_q, size_k = rows * size_of(size, a.n_q), size_of(size, a.n_k)
    last = np.minimum((np.arange(a.n_q) // size_q + 1) * size_q, a.n_q) - 1 + corner_shift(a, a.n_k)
    return (np.minimum(last, a.n_k - 1) // size_k)[:, None] == np.arange(a.n_k) // size_k


def corner_shift(a, without=None):
    """How far the diagonal of causal lies to the right of the first key; ``without`` where nothing is causal."""
    return {None: without, "top-left": 0, "bottom-right": a.n_k - a.n_q}[a.corner]


def weights_left(a):
    """The weights of the backward, after dropout."""
    return a.dropped(a.P_backward, a.kept_backward)


def dK_dV_of(which, size):
    return {
        "dK_unscaled": lambda a: mT(only(a.dproducts, -2, kept_of(a.n_q, size, which))) @ a.Q,
        "dV_heads": lambda a: mT(only(weights_left(a), -2, kept_of(a.n_q, size, which))) @ a.dO_read,
    }


def off_diagonal(a, T, size):
    """T less the blocks that the diagonal of a causal mask runs through."""
    if not a.corner:
        return T
    i, j = np.arange(a.n_q)[:, None] // size_of(size, a.n_q), np.arange(a.n_k) // size_of(size, a.n_k)
    return np.where(i == j, 0.0, T)


def counted_in_block(a, size):
    """Causal, with a block's keys counted from 0."""
    i, j = np.arange(a.n_q)[:, None], np.arange(a.n_k) % size_of(size, a.n_k)
    return Steps.causal_allows.func(a) if not a.corner else j <= i + corner_shift(a)


def past_the_end(a, size, causal):
    """(n_q, more), which of the places past the last key, up to a full block, a query may attend to."""
    more = np.arange(-a.n_k % size_of(size, a.n_k))
    return (a.n_k + more <= np.arange(a.n_q)[:, None] + corner_shift(a, np.inf)) | (not causal)


def with_padding(a, size, causal):
    """P where zeros past the last key count as scores."""
    pad = np.where(past_the_end(a, size, causal), 0.0, -np.inf)
    pad = np.broadcast_to(pad, (*a.S.shape[:-2], *pad.shape))
    return softmax(np.concatenate([a.S, pad], axis=-1))[..., : a.n_k]


def repeating(size, causal):
    """The last key and value stand again in the places past the end, which take no gradient."""

    def counts(a):
        last = np.arange(a.n_k) == a.n_k - 1
        return a.allowed + last * past_the_end(a, size, causal).sum(axis=-1, keepdims=True)

    def S(a):
        return a.scores + np.log(counts(a))

    def own(a):
        return a.allowed / np.maximum(counts(a), 1)

    return {
        "S": S,
        "dK_unscaled": lambda a: mT(own(a) * a.dproducts) @ a.Q,
        "dV_heads": lambda a: mT(own(a) * weights_left(a)) @ a.dO_read,
    }


def diagonal_unmasked(a, size, visited):
    """Causal, but for the block that the diagonal runs through; or for all blocks that it runs through."""
    if not a.corner:
        return Steps.causal_allows.func(a)
    i, j = np.arange(a.n_q)[:, None], np.arange(a.n_k)
    if visited:
        return j // size * size <= np.minimum(i // size * size + size, a.n_q) - 1 + corner_shift(a)
    return Steps.causal_allows.func(a) | (i // size == j // size)


def merged(a, size, lost):
    """(the numerators of O, their sum) from blocks of keys, where the sums in ``lost`` are not rescaled as the largest
    score grows.
    """
    ends = np.minimum((np.arange(a.n_k) // size_of(size, a.n_k) + 1) * size_of(size, a.n_k), a.n_k) - 1
    m = np.maximum.accumulate(a.S, axis=-1)[..., ends]
    stale, E = np.exp(a.S - np.where(np.isneginf(m), 0.0, m)), exponentials(a.S)
    Z = rowsum(stale if "Z" in lost else E)
    if a.sink is not None:
        Z = Z + sink_over_maximum(a)
    return stale if "O" in lost else E, np.where(Z == 0, 1.0, Z)


def sink_over_maximum(a):
    """e to the sink less the largest score."""
    m = a.S.max(axis=-1, keepdims=True, initial=-np.inf)
    return np.exp(a.of_heads(a.sink) - np.where(np.isneginf(m), 0.0, m))


def merges(size):
    """O, L, or both come from such a merge."""

    def output(a, lost):
        E, Z = merged(a, size, lost)
        return E @ a.v / Z

    lost_in_O = [{"O": lambda a, lost=lost: output(a, lost)} for lost in ("O", "Z", "OZ")]
    L = {
        "P_backward": lambda a: exponentials(a.S) / merged(a, size, "Z")[1],
        "dsink": lambda a: dsink_of(a, -a.D_less_dL, sink_over_maximum(a) / merged(a, size, "Z")[1]),
    }
    ways = [*lost_in_O, L]
    return [*ways, *({**way, "D": D_of_O} for way in (*ways, *({**O, **L} for O in lost_in_O[1:])))]


def stale(size):
    """Every block of keys is read as the first one."""

    def first(a, T):
        return a.share(T)[..., np.arange(a.n_k) % size_of(size, a.n_k), :]

    k, v = {"k": lambda a: first(a, a.K)}, {"v": lambda a: first(a, a.V)}
    return {**k, **v}, k, v


D_TITLES = ("d-of-block", "D is a block's own, not the row's"), ("d-local", MISTAKE["d-local"].title)
L_TITLES = ("l-of-block", "L is a block's own, not the row's"), ("l-local", MISTAKE["l-local"].title)


def of_blocks(size):
    """All that goes wrong with blocks of this size."""
    causals = (True, False) if size > 2 else (True,)  # whether what is past the end is later than every query
    l_of_block = {"P_backward": lambda a: softmax_of_blocks(a, size)}
    return [
        *faults(*D_TITLES[size < 0],
                *({"D": lambda a: spread(a.P_backward * a.dP, size)} for _ in range(size != 1))),
        *faults(*L_TITLES[size < 0], l_of_block, {**l_of_block, "D": D_of_O},
                {**l_of_block, "D": lambda a: spread(a.P_backward * a.dP, size)}),
        *faults("dq-overwritten", "dQ is overwritten by the last block of keys, not added up", dQ_of("last", size)),
        *faults("dq-overwritten", "dQ is overwritten by the last block of keys, not added up",
                *({"dQ_unscaled": lambda a, rows=rows: (last_visited(a, size, rows) * a.dproducts) @ a.k}
                  for rows in (1, 2))),
        *faults("dq-first-block", "dQ is that of the first block of keys alone", dQ_of("first", size)),
        *faults("dq-tail-dropped", "the last keys, no full block, are left out of dQ", dQ_of("full", size),
                dQ_of("full, if any", size)),
        *faults("dkv-overwritten", "overwritten by the last block of queries, not added up", dK_dV_of("last", size)),
        *faults("dkv-first-block", "that of the first block of queries alone", dK_dV_of("first", size)),
        *faults("dkv-tail-dropped", "the last queries, no full block, are left out", dK_dV_of("full", size),
                dK_dV_of("full, if any", size)),
        *faults("diagonal-block-skipped", "under causal, the block on the diagonal is skipped",
                {"dK_unscaled": lambda a: mT(off_diagonal(a, a.dproducts, size)) @ a.Q,
                 "dV_heads": lambda a: mT(off_diagonal(a, weights_left(a), size)) @ a.dO_read,
                 "dQ_unscaled": lambda a: off_diagonal(a, a.dproducts, size) @ a.k}),
        *throughout("block-offset", "causal counts a block's keys from 0",
                    *({"causal_allows": lambda a: counted_in_block(a, size)} for _ in range(size != 1))),
        *throughout("padding-counts", "zeros past the last key take weight, as scores of 0",
                    *({"P": lambda a, causal=causal: with_padding(a, size, causal)} for causal in causals)),
        *(throughout("padding-repeats", "the last key, repeated to fill its block, takes weight again",
                     *(repeating(size, causal) for causal in causals)) if size > 2 else ()),
        *(throughout("diagonal-block-unmasked", "causal leaves the block on the diagonal unmasked",
                     *({"causal_allows": lambda a, visited=visited: diagonal_unmasked(a, size, visited)}
                       for visited in (False, True))) if size > 1 else ()),
        *faults("merge-without-factor", "blocks are merged without the factor for a new maximum",
                *merges(size)),
        *chain.from_iterable(
            made_again("kv-of-first-block", "every block is taken to have the first one's K or V", steps)
            for steps in stale(size) if size != 1),
    ]  # fmt: skip
