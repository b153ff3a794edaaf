"""The cases that several ranks are asked, and how they are split. Chapter: :doc:`/chapters/08_checking`.

With two ranks many mistakes look alike: a neighbor is also the last one. With three and four they do not.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from attnbook.diagnose.case import Case


@dataclass(frozen=True, eq=False)
class Split:
    """Who has what, of ``ranks`` ranks.

    ``queries`` and ``keys`` are the rows of each rank, as index arrays. With ``kind`` "heads" every rank has all rows
    of its own heads. ``padding``: what fills the last pieces up, by "Q", "K", "V", "dO"; none where that is not needed.
    """

    kind: str
    ranks: int
    queries: tuple
    keys: tuple
    padding: dict = field(default_factory=dict)

    def piece(self, name, T, rank):
        """What ``rank`` has of T: its rows or its heads, and its part of the padding."""
        if self.kind == "heads":
            size = T.shape[-3] // self.ranks
            return T[..., rank * size : (rank + 1) * size, :, :]
        rows = self._rows(name)[rank]
        if name not in self.padding:
            return T[..., rows, :]
        length = max(map(len, self._rows(name)))
        whole = np.concatenate([T, self.padding[name]], axis=-2)
        return whole[..., rank * length : (rank + 1) * length, :]

    def owned(self, name, T, rank):
        """The part of a result that is this rank's, without padding."""
        return self.piece(name, T, rank) if self.kind == "heads" else T[..., self._rows(name)[rank], :]

    def option(self, T, n_q, rank):
        """What ``rank`` gets of a mask, bias or sink: its heads, or the rows of its queries, with all keys."""
        if T.ndim == 1:
            own = len(T) // self.ranks
            return T[rank * own : (rank + 1) * own] if self.kind == "heads" else T
        if self.kind == "heads":
            return self.piece("", T, rank) if T.ndim > 2 and T.shape[-3] > 1 else T
        return T[..., self.queries[rank], :] if T.shape[-2] == n_q and n_q > 1 else T

    def whole(self, name, pieces, T):
        """The pieces of all ranks put together, like T."""
        if self.kind == "heads":
            return np.concatenate(pieces, axis=-3)
        out = np.empty(T.shape[:-1] + pieces[0].shape[-1:], dtype=pieces[0].dtype)
        for rows, piece in zip(self._rows(name), pieces, strict=True):
            out[..., rows, :] = piece[..., : len(rows), :]
        return out

    def _rows(self, name):
        return self.keys if name in ("K", "V", "dK", "dV") else self.queries

    # --- for the wrong calculations: whose row a row of the table is, and which one of that rank's

    @cached_property
    def blocks(self):
        """How many blocks the queries come in, and the keys too: one a rank, but where the heads are split."""
        return len(self.queries)

    @cached_property
    def rank_q(self):
        return _spread(self.queries, lambda rank, rows: rank)

    @cached_property
    def rank_k(self):
        return _spread(self.keys, lambda rank, rows: rank)

    @cached_property
    def local_q(self):
        return _spread(self.queries, lambda rank, rows: np.arange(len(rows)))

    @cached_property
    def local_k(self):
        return _spread(self.keys, lambda rank, rows: np.arange(len(rows)))


def _spread(blocks, what):
    out = np.empty(sum(map(len, blocks)), dtype=int)
    for rank, rows in enumerate(blocks):
        out[rows] = what(rank, rows)
    return out


def split_of(kind, ranks, n_q, n_k):
    """The even split, or as even as it gets: the first ranks have one row more."""
    if kind == "heads":
        return Split(kind, ranks, (np.arange(n_q),), (np.arange(n_k),))
    return Split(kind, ranks, *(_blocks(kind, ranks, n) for n in (n_q, n_k)))


def _blocks(kind, ranks, n):
    if kind == "rows":
        return tuple(np.array_split(np.arange(n), ranks))
    chunks = np.split(np.arange(n), 2 * ranks)
    return tuple(np.concatenate([chunks[r], chunks[-1 - r]]) for r in range(ranks))


@dataclass(frozen=True, eq=False)
class RanksCase(Case):
    """A case, and its split; ``words`` are the options that say how long the pieces are, rank by rank."""

    split: Split | None = None
    words: dict = field(default_factory=dict)

    @property
    def uneven(self):
        """Whether the pieces differ in length."""
        return bool(self.words)


def cases(kind="rows", ranks=(1, 2, 3, 4), axes=4, seed=0, dtype="float64"):
    """The cases, simple ones first: for every number of ranks in turn."""
    rng = np.random.default_rng(seed)
    return [case for r in ranks for case in _with(kind, r, axes, rng, dtype)]


def _with(kind, ranks, axes, rng, dtype):
    each, heads = 4, 2 * ranks
    n, d_k, d_v = each * ranks, 3, 5
    causal = {"causal": True} if kind == "zigzag" else {}  # it is made for that, and may take nothing else
    lead = (2, heads)[4 - axes :] if axes < 4 else (2, heads)

    def normal(*shape):
        return rng.standard_normal(shape)

    def case(name, *, n_q=n, n_k=n, grouped=1, optional=False, split=None, words=None, dtype=dtype, **options):
        lead_k = (*lead[:-1], heads // grouped) if lead else ()
        inputs = normal(*lead, n_q, d_k), normal(*lead_k, n_k, d_k), normal(*lead_k, n_k, d_v), normal(*lead, n_q, d_v)
        name = f"{name}, {ranks} rank{'s' if ranks > 1 else ''}"
        split = split or split_of(kind, ranks, n_q, n_k)
        return RanksCase(name, inputs, options, dtype, optional, split=split, words=words or {})

    table = (heads, n, n) if lead else (n, n)
    mask = rng.random((n, n)) < 0.5
    mask[:, ::4] = True  # a key in every block
    yield case("causal" if causal else "plain", **causal)
    yield case("plain", optional=True) if causal else case("causal", causal=True)
    yield case("scale", scale=0.7, **causal)
    yield case("bias", bias=normal(*table), **causal)
    yield case("mask", mask=mask, **causal)
    if kind == "rows":
        yield case("more keys", n_k=2 * n, optional=True)
        yield from _uneven(case, ranks, n, d_k, d_v, lead, normal)
    if lead:
        yield case("sink", sink=normal(heads), **causal)
        yield case("grouped heads", grouped=2, optional=True, **causal)
    yield case("large scores", **causal).enlarged(60.0 if dtype == "float16" else 1500.0)
    if dtype == "float64":
        yield case("float32", optional=True, dtype="float32", **causal)


def _uneven(case, ranks, n, d_k, d_v, lead, normal):
    """Lengths that the ranks do not divide: in pieces as they come, and in equal pieces with padding."""
    if ranks == 1:
        return
    n -= ranks - 1
    split = split_of("rows", ranks, n, n)
    for name, options in (("ragged", {}), ("ragged, causal", {"causal": True})):
        lengths = tuple(map(len, split.queries))
        yield case(name, n_q=n, n_k=n, optional=True, split=split, words={"lengths": lengths}, **options)
    each = -(-n // ranks)
    rows = tuple(np.arange(r * each, min(n, (r + 1) * each)) for r in range(ranks))
    more = each * ranks - n
    for name, options in (("padded", {}), ("padded, causal", {"causal": True})):
        padding = {T: normal(*lead, more, d) for T, d in (("Q", d_k), ("K", d_k), ("V", d_v), ("dO", d_v))}
        split = Split("rows", ranks, rows, rows, padding)
        yield case(name, n_q=n, n_k=n, optional=True, split=split, words={"n": n}, **options)
