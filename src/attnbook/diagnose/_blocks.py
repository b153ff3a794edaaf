"""What goes wrong where keys or queries are taken a block at a time. Chapter: :doc:`/chapters/11_memory_and_speed`."""

from itertools import chain

import numpy as np

from attnbook.diagnose._ways import D_of_O, faults, made_again, throughout
from attnbook.diagnose.mistakes import MISTAKE
from attnbook.diagnose.steps import Steps, mT, rowsum, softmax

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
    shift = {"top-left": 0, "bottom-right": a.n_k - a.n_q}.get(a.corner)
    return Steps.causal_allows.func(a) if shift is None else j <= i + shift


def with_padding(a, size):
    """P where zeros past the last key count as scores."""
    more = -a.n_k % size_of(size, a.n_k)
    pad = np.zeros((*a.S.shape[:-1], more))
    if a.corner:
        shift = 0 if a.corner == "top-left" else a.n_k - a.n_q
        pad = np.where(a.n_k + np.arange(more) <= np.arange(a.n_q)[:, None] + shift, pad, -np.inf)
    return softmax(np.concatenate([a.S, pad], axis=-1))[..., : a.n_k]


def merged(a, size, lost):
    """O from blocks of keys, where the older sums are not rescaled as the largest score grows."""
    m = np.full((*a.S.shape[:-1], 1), -np.inf)
    O, Z = np.zeros((*a.S.shape[:-1], a.d_v)), np.zeros_like(m)
    for b in blocks(a.n_k, size):
        new = np.maximum(m, a.S[..., b].max(axis=-1, keepdims=True))
        at = np.where(np.isneginf(new), 0.0, new)
        keep, E = np.exp(m - at), np.exp(a.S[..., b] - at)
        O = (O if "O" in lost else keep * O) + E @ a.v[..., b, :]
        Z, m = (Z if "Z" in lost else keep * Z) + rowsum(E), new
    if a.sink is not None:
        Z = Z + np.exp(a.of_heads(a.sink) - np.where(np.isneginf(m), 0.0, m))
    return O / np.where(Z == 0, 1.0, Z)


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
    merge = [{"O": lambda a, lost=lost: merged(a, size, lost)} for lost in ("O", "Z", "OZ")]
    l_of_block = {"P_backward": lambda a: softmax_of_blocks(a, size)}
    return [
        *faults(*D_TITLES[size < 0],
                *({"D": lambda a: spread(a.P_backward * a.dP, size)} for _ in range(size != 1))),
        *faults(*L_TITLES[size < 0], l_of_block, {**l_of_block, "D": D_of_O},
                {**l_of_block, "D": lambda a: spread(a.P_backward * a.dP, size)}),
        *faults("dq-overwritten", "dQ is overwritten by the last block of keys, not added up", dQ_of("last", size)),
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
                    {"P": lambda a: with_padding(a, size)}),
        *faults("merge-without-factor", "blocks are merged without the factor for a new maximum",
                *merge, *({**way, "D": D_of_O} for way in merge)),
        *chain.from_iterable(
            made_again("kv-of-first-block", "every block is taken to have the first one's K or V", steps)
            for steps in stale(size) if size != 1),
    ]  # fmt: skip
