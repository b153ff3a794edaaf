"""The schemes, each as the lines that a rank runs: a forward and a backward, which are generators (``collectives``).

A forward takes this rank's Q, K and V, and returns O, L and what its backward needs; a backward takes that, dO and dL,
and returns dQ, dK and dV. All results are in the accumulation dtype. Chapter: :doc:`/chapters/14_many_devices`.
"""

from typing import Any, NamedTuple

import numpy as np

from attnbook.arrays import array_namespace, device
from attnbook.merge import merge
from attnbook.parallel.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    arrived,
    reduce_scatter,
    shift,
)
from attnbook.parallel.placement import take
from attnbook.parallel.score_blocks import Kept

# --- ring: keys and values travel -----------------------------------------------------------------------------------


def ring(part, Q, K, V):
    """At hop t, rank r meets the keys of rank r − t, while they are on their way to the next one."""
    found, block = part.start(Q, V.shape[-1]), (K, V)
    for hop in range(max(part.hops) + 1):
        coming = yield from _pass_on(part, hop, block, (K, V))
        if block is not None:
            found = part.meet(found, Q, *block, _keys(part, hop), hop)
        block = yield from arrived(coming)
        coming = None  # and with it what was sent
    O, L = part.finish(found)
    return O, L, (Q, K, V, O, L)


def ring_vjp(part, saved, dO, dL):
    """dK and dV travel with their block, a hop behind, and from the last rank that sees it go home in one."""
    Q, K, V, O, L = saved
    r, ranks, far, kept = part.rank, part.ranks, part.hops, Kept(O, L, dO, dL)
    part.columns_vjp(kept)
    inside = [part.inside(T[..., :0, :]) for T in (K, V)]  # of the dtype that gradients have
    dQ, block, coming, homeward = None, (K, V), None, None
    for hop in range(max(far) + 1):
        s, dblock = (r - hop) % ranks, ()
        onward = yield from _pass_on(part, hop, block, (K, V))
        if block is not None:
            dQ, *dblock = part.meet_vjp(Q, *block, _keys(part, hop), kept, dQ)  # eq-ranks-vjp, eq-tile-split
        before = yield from arrived(coming)  # what the ranks before have given to this block
        if before is not None:
            _add(dblock, before)
        before = coming = None  # what came and what was sent is held no longer than of use
        coming = yield from _pass_on(part, hop, dblock, inside)
        if hop == 0:
            home = dblock
        to = s if far[s] == hop > 0 else None  # nobody further on sees this block: home
        source = (r + hop) % ranks if far[r] == hop > 0 else None
        going = yield from shift(hop, to, dblock, source, part.rows_like(inside, r))
        home, homeward = (yield from arrived(homeward)) or home, going
        block = yield from arrived(onward)
        onward = going = dblock = None
    return dQ, *((yield from arrived(homeward)) or home)


def _add(arrays, others):
    """In place: these belong to nobody else yet."""
    for mine, theirs in zip(arrays, others, strict=True):
        mine += theirs


def _keys(part, hop):
    """Whose keys this rank meets at a hop."""
    return part.places.keys[(part.rank - hop) % part.ranks]


def _pass_on(part, hop, block, own):
    """Send a block to the next rank, where it is seen there or further on, and look forward to the one before."""
    r, ranks, before = part.rank, part.ranks, (part.rank - hop - 1) % part.ranks
    to = (r + 1) % ranks if hop < part.hops[(r - hop) % ranks] else None
    source = (r - 1) % ranks if hop < part.hops[before] else None
    return (yield from shift(hop, to, block, source, part.rows_like(own, before)))


# --- gather: every rank gets all keys and values --------------------------------------------------------------------


def gather(part, Q, K, V):
    """K and V of all ranks, then all blocks of this rank's queries."""
    found, blocks = part.start(Q, V.shape[-1]), (yield from _gathered(part, K, V))
    for hop in range(part.ranks):
        found = part.meet(found, Q, *blocks[(part.rank - hop) % part.ranks], _keys(part, hop), hop)
    O, L = part.finish(found)
    return O, L, (Q, K, V, O, L)


def gather_vjp(part, saved, dO, dL):
    """They are gathered again, not kept: n_k rows a rank would not fall with more ranks. dK and dV are reduced to where
    they belong, and scattered (:eq:`eq-ranks-gather`).
    """
    Q, K, V, O, L = saved
    kept = Kept(O, L, dO, dL)
    part.columns_vjp(kept)
    blocks = yield from _gathered(part, K, V)
    dQ, given = None, []
    for s in range(part.ranks):
        dQ, *grads = part.meet_vjp(Q, *blocks[s], part.places.keys[s], kept, dQ)
        given.append(grads)
    return dQ, *(yield from reduce_scatter(part.rank, 1, given))  # eq-ranks-gather


def _gathered(part, K, V):
    likes = [part.rows_like((K, V), s) for s in range(part.ranks)]
    return (yield from all_gather(part.rank, 0, [K, V], likes))


# --- heads: some heads of all rows, for all heads of some rows -----------------------------------------------------


class Heads(NamedTuple):
    """What a rank works on: heads of queries, those of keys that these need, and which of them each one needs."""

    queries: range
    keys: range
    needs: list

    @classmethod
    def of(cls, rank, ranks, h, h_kv):
        """As evenly as it goes."""
        queries, group = range(rank * h // ranks, (rank + 1) * h // ranks), max(1, h // max(1, h_kv))
        keys = range(queries.start // group, -(-queries.stop // group) if queries else queries.start // group)
        return cls(queries, keys, [i // group - keys.start for i in queries])

    @property
    def shared_alike(self):
        """Whether as many queries share each: then a spine does it."""
        n = len(self.queries) // max(1, len(self.keys))
        return self.needs == [i // n for i in range(n * len(self.keys))]


def heads(part, Q, K, V):
    """Rows go to where their heads are worked on, and O and L come back: all-to-all, twice."""
    every = [Heads.of(r, part.ranks, Q.shape[-3], K.shape[-3]) for r in range(part.ranks)]
    own, mine = every[part.rank], part.of_heads(every[part.rank].queries)
    q, k, v = yield from _to_heads(part, 0, (Q, K, V), ("queries", "keys", "keys"), every)
    if not own.shared_alike:
        k, v = (take(T, own.needs, -3) for T in (k, v))
    O, L = mine.finish(mine.meet(mine.start(q, v.shape[-1]), q, k, v, mine.places.keys[0]))
    part.met = mine.met
    O_rows, L_rows = yield from _to_rows(part, 1, (O, L[..., None]), ("queries",) * 2, every)
    return O_rows, L_rows[..., 0], (q, k, v, O, L, mine, every)


def heads_vjp(part, saved, dO, dL):
    """All-to-all is its own transpose: the same two, the other way round."""
    q, k, v, O, L, mine, every = saved
    own, given = every[part.rank], (dO,) if dL is None else (dO, dL[..., None])
    dO, *dL = yield from _to_heads(part, 0, given, ("queries",) * 2, every)
    kept = Kept(O, L, dO, dL[0][..., 0] if dL else None)
    mine.columns_vjp(kept)
    grads = mine.meet_vjp(q, k, v, mine.places.keys[0], kept)
    part.dparams = mine.dparams
    if not own.shared_alike:
        grads = [grads[0], *(_summed(T, own) for T in grads[1:])]
    return (yield from _to_rows(part, 1, grads, ("queries", "keys", "keys"), every))


def _to_heads(part, step, arrays, names, every):
    """(..., all heads, own rows, d) → (..., own heads, all rows, d), for arrays of queries, and of keys."""
    own, pairs = every[part.rank], list(zip(arrays, names, strict=False))
    parts = [[_at_heads(T, getattr(there, name)) for T, name in pairs] for there in every]
    likes = [
        [((*T.shape[:-3], len(getattr(own, name)), part.rows(name, s), T.shape[-1]), T) for T, name in pairs]
        for s in range(part.ranks)
    ]
    came = yield from all_to_all(part.rank, step, parts, likes)
    whole = [array_namespace(*each).concat(list(each), axis=-2) for each in zip(*came, strict=True)]
    return [take(T, np.argsort(part.order(name)), -2) for T, name in zip(whole, names, strict=False)]


def _to_rows(part, step, arrays, names, every):
    """(..., own heads, all rows, d) → (..., all heads, own rows, d); what several ranks have of a head is summed."""
    pairs = [(take(T, part.order(name), -2), name) for T, name in zip(arrays, names, strict=True)]
    starts = {name: np.cumsum([0, *(part.rows(name, s) for s in range(part.ranks))]) for name in names}
    parts = [[T[..., starts[name][s] : starts[name][s + 1], :] for T, name in pairs] for s in range(part.ranks)]
    n = {name: part.rows(name, part.rank) for name in names}
    likes = [
        [((*T.shape[:-3], len(getattr(there, name)), n[name], T.shape[-1]), T) for T, name in pairs] for there in every
    ]
    came, found = (yield from all_to_all(part.rank, step, parts, likes)), []
    for i, (T, name) in enumerate(pairs):
        h = max(getattr(there, name).stop for there in every)
        total = array_namespace(T).zeros((*T.shape[:-3], h, n[name], T.shape[-1]), dtype=T.dtype, device=device(T))
        for there, arrays in zip(every, came, strict=True):
            _at_heads(total, getattr(there, name))[...] += arrays[i]
        found.append(total)
    return found


def _at_heads(T, which):
    return T[..., which.start : which.stop, :, :]


def _summed(T, own):
    """Over the heads of queries that need the same one."""
    xp, needs = array_namespace(T), np.asarray(own.needs)
    groups = [np.flatnonzero(needs == i) for i in range(len(own.keys))]
    return xp.stack([xp.sum(T[..., g[0] : g[-1] + 1, :, :], axis=-3) for g in groups], axis=-3)


# --- tree: the same queries everywhere, as in decoding ---------------------------------------------------------------


def tree(part, Q, K, V):
    """Every rank meets its own keys; O and L are merged up a tree, and come down again."""
    ((O, L),) = part.meet(part.start(Q, V.shape[-1]), Q, K, V, part.places.keys[part.rank])
    O, L = part.finish([(yield from all_reduce(part.rank, part.ranks, 0, [O, L], lambda a, b: merge(*a, *b)))])
    return O, L, (Q, K, V, O, L)


def tree_vjp(part, saved, dO, dL):
    """dK and dV are here; dQ, of queries that all ranks have, is the sum over the ranks."""
    Q, K, V, O, L = saved
    kept = Kept(O, L, dO, dL)
    if part.rank == 0:
        part.columns_vjp(kept)
    dQ, dK, dV = part.meet_vjp(Q, K, V, part.places.keys[part.rank], kept)
    (dQ,) = yield from all_reduce(part.rank, part.ranks, 0, [dQ], lambda a, b: [a[0] + b[0]])
    return dQ, dK, dV


class Scheme(NamedTuple):
    """Its two lines, and whether every rank has all queries."""

    forward: Any
    backward: Any
    same_queries: bool = False


SCHEMES = {
    "ring": Scheme(ring, ring_vjp),
    "gather": Scheme(gather, gather_vjp),
    "heads": Scheme(heads, heads_vjp),
    "tree": Scheme(tree, tree_vjp, same_queries=True),
}
