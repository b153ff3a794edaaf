"""A call over several ranks, checked at the door, and what it costs, by formula.

Chapter: :doc:`/chapters/14_many_devices`.
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnbook.arguments import choose, scores_shape
from attnbook.arrays import agree, expected
from attnbook.ops import Op
from attnbook.parallel.placement import Placement
from attnbook.parallel.schemes import Heads
from attnbook.parallel.score_blocks import Places, Seen
from attnbook.plan import Plan, name_of, resolve, steps_of
from attnbook.spines import Way
from attnbook.spines.tiled import Tiles
from attnbook.types import Corner

METHODS: dict[Any, Any] = {"auto": "tiled", "tiled": "tiled", "dense": Way("tiled", Tiles(sys.maxsize, sys.maxsize))}  # type: ignore[arg-type]


def plan_of(
    scheme: str, Q: Any, K: Any, V: Any, placement: str, *, scale: Any, method: Any, steps: Any = None, **asked_for: Any
) -> tuple[Plan, int]:
    """The plan of a call on arrays as long as the whole, and how many ops it has; or an error where they do not fit."""
    agree(Q=Q, K=K, V=V)
    shape = scores_shape(Q, K, V)
    for name, T in (("K", K), ("V", V)):
        if tuple(T.shape[:-3]) != tuple(Q.shape[:-3]) or T.ndim != Q.ndim:
            wanted = f"the leading axes of Q, {tuple(Q.shape)}, but for heads"
            raise ValueError(expected(name, wanted, f"shape {tuple(T.shape)}"))
    if K.shape[:-2] != V.shape[:-2]:
        raise ValueError(expected("V", f"as many heads as K, of shape {tuple(K.shape)}", f"shape {tuple(V.shape)}"))
    if scheme == "heads" and Q.ndim < 3:
        raise ValueError(expected("Q", "an axis of heads, (..., h, n_q, d_k)", f"shape {tuple(Q.shape)}"))
    method = choose("method", method, METHODS)
    steps = steps_of(**asked_for) if steps is None else steps
    check_strides(placement, steps)
    plan = resolve({"Q": Q, "K": K, "V": V}, shape, (Q.shape[-1], V.shape[-1]), scale=scale, method=method, steps=steps)
    return plan, sum(asked_by == "ops" for asked_by, _ in steps)


def check_strides(placement: str, steps: Any) -> None:
    """An error for an op that takes no rows with a step between, where there are some."""
    for asked_by, op in steps if placement == "striped" else ():
        if not op.strides:
            raise ValueError(expected(name_of(asked_by, op), 'strides = True for placement="striped"', "False"))


def seen_of(n_q: int, n_k: int, places: Places, ops: Sequence[Op], causal: bool | Corner) -> Seen:
    """Which blocks have anything to see."""
    steps = steps_of(causal=causal, ops=ops)
    corner = next((op.corner for asked_by, op in steps if asked_by == "causal"), None)
    found = [op.at_corner(corner) if corner else op for _, op in steps]
    return Seen(places, tuple(op for op in found if op.forbids), n_q, n_k)


def scores_of_ranks(
    n_q: int,
    n_k: int,
    ranks: int,
    placement: Placement = "contiguous",
    ops: Sequence[Op] = (),
    causal: bool | Corner = False,
) -> Any:
    """How many scores each rank has to compute, a head: those of its rows that nothing forbids.

    Parameters
    ----------
    n_q, n_k : int
    ranks : int
    placement : "contiguous", "zigzag" or "striped"
    ops : sequence of ops
        Those count that forbid, and that have no arrays with leading axes.
    causal : False, True, "top-left" or "bottom-right"

    Returns
    -------
    int array (ranks,)

    Examples
    --------
    >>> from attnbook.parallel import scores_of_ranks
    >>> [scores_of_ranks(8, 8, 2, placement, causal=True).tolist() for placement in ("contiguous", "zigzag", "striped")]
    [[10, 26], [18, 18], [16, 20]]
    """
    places = Places.of(n_q, n_k, ranks, placement)
    seen = seen_of(n_q, n_k, places, ops, causal)
    return np.asarray([seen.pairs(queries, [range(n_k)]) for queries in places.queries], np.int64)


def bytes_of(
    scheme: str,
    *,
    ranks: int,
    n_q: int,
    n_k: int,
    d_k: int,
    d_v: int,
    h: int = 1,
    h_kv: int | None = None,
    batch: int = 1,
    itemsize: int = 8,
    placement: Placement = "contiguous",
    ops: Sequence[Op] = (),
    causal: bool | Corner = False,
) -> Any:
    """The bytes that each rank sends, by formula.

    Of what a rank holds of K and V, ``kv`` numbers, and of Q and O: "ring" sends kv once a hop, and in the backward
    again, with as many sums; "gather" ranks − 1 times, and again, with the sums; "heads" what others work on; "tree"
    O and L up and down a tree. Sums, O and L have four bytes a number, or eight in float64.

    Parameters
    ----------
    scheme : "ring", "gather", "heads" or "tree"
    ranks, n_q, n_k, d_k, d_v, h, h_kv, batch : int
        ``h_kv`` is h by default; ``batch`` is the product of the leading axes before the heads.
    itemsize : int
        Bytes a number, of Q, K and V.
    placement, ops, causal
        They say which blocks see anything.

    Returns
    -------
    int array (2, ranks)
        Of the forward, and of the backward with no dL.

    Examples
    --------
    >>> from attnbook.parallel import bytes_of
    >>> sizes = dict(ranks=4, n_q=16, n_k=16, d_k=3, d_v=5)
    >>> bytes_of("ring", **sizes).tolist()
    [[768, 768, 768, 768], [1792, 1792, 1792, 1792]]
    >>> bytes_of("ring", **sizes, causal=True)[0].tolist()  # no rank sees the keys of a later one
    [256, 512, 768, 0]
    """
    h_kv = h if h_kv is None else h_kv
    sizes = {"d_k": d_k, "d_v": d_v, "h": h, "h_kv": h_kv, "batch": batch, "itemsize": itemsize}
    for name, n in sizes.items():
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise ValueError(expected(name, "an integer of at least 1", repr(n)))
    wide = max(4, itemsize)
    if h % h_kv:
        raise ValueError(expected("h_kv", f"a number that divides h, {h}", h_kv))
    places = Places.of(n_q, n_k, ranks, placement)
    rows, keys = ([sum(map(len, runs)) for runs in of] for of in places)
    out = np.zeros((2, ranks), np.int64)
    kv = batch * h_kv * (d_k + d_v)
    if scheme == "ring":
        for s, far in enumerate(seen_of(n_q, n_k, places, ops, causal).hops()):
            for hop in range(far):
                out[:, (s + hop) % ranks] += kv * keys[s] * itemsize
            for hop in range(1 if far == 0 else 0, far + 1 if far else 0):
                out[1, (s + hop) % ranks] += kv * keys[s] * wide
    elif scheme == "gather":
        for r in range(ranks):
            out[:, r] += (ranks - 1) * kv * keys[r] * itemsize
            out[1, r] += (n_k - keys[r]) * kv * wide
    elif scheme == "heads":
        every = [Heads.of(r, ranks, h, h_kv) for r in range(ranks)]
        q, k = ([len(own[i]) for own in every] for i in (0, 1))
        for r in range(ranks):
            others_q, others_k = sum(q) - q[r], sum(k) - k[r]
            out[0, r] += batch * (others_q * rows[r] * d_k + others_k * keys[r] * (d_k + d_v)) * itemsize
            out[0, r] += batch * q[r] * (n_q - rows[r]) * (d_v + 1) * wide
            out[1, r] += batch * others_q * rows[r] * d_v * wide
            out[1, r] += batch * (q[r] * (n_q - rows[r]) * d_k + k[r] * (n_k - keys[r]) * (d_k + d_v)) * wide
    elif scheme == "tree":
        for r in range(ranks):
            below = sum(1 for i in range((ranks - 1).bit_length()) if r % 2 ** (i + 1) == 0 and r + 2**i < ranks)
            numbers = batch * h * n_q * ((r > 0) + below)
            out[:, r] = numbers * wide * np.asarray([d_v + 1, d_k])
    else:
        raise ValueError(expected("scheme", "one of 'ring', 'gather', 'heads', 'tree'", repr(scheme)))
    return out
