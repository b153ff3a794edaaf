"""A multi-head layer with its heads over the ranks: W_Q, W_K, W_V split by columns, W_O by rows.

Chapter: :doc:`/chapters/14_many_devices`.
"""

from typing import Any

from attnbook.arguments import check_count
from attnbook.arrays import expected, whole
from attnbook.multi_head import MultiHeadParams, multi_head_attention, multi_head_attention_vjp
from attnbook.parallel.collectives import all_reduce


def split_layer(
    p: MultiHeadParams[Any], ranks: int, *, num_heads: int, num_kv_heads: int | None = None
) -> list[tuple[MultiHeadParams[Any], int, int]]:
    """The share of a layer that each rank has: columns of W_Q, W_K and W_V, and the rows of W_O that meet them.

    .. math::
       Y = \\textstyle\\sum_r C_r W_{O,r}

    Equation :eq:`def-head-blocks`, its sum taken over ranks. Query heads stay with the head of keys that they share.

    Parameters
    ----------
    p : MultiHeadParams
        The whole layer.
    ranks : int
        At most as many as there are heads of keys, whose number it need not divide.
    num_heads, num_kv_heads : int
        h and h_kv, by default h.

    Returns
    -------
    list of (MultiHeadParams, int, int), one a rank
        Its weights, and how many heads of queries and of keys they have. b_O is with rank 0 alone: it is added once.
    """
    h, h_kv = check_count("num_heads", num_heads), check_count("num_kv_heads", num_kv_heads or num_heads)
    if h % h_kv:
        raise ValueError(expected("num_kv_heads", f"a number that divides num_heads, {h}", h_kv))
    ranks = whole("ranks", ranks, 1, wanted := f"1 to {h_kv}, a head of keys for each at least")
    if ranks > h_kv:
        raise ValueError(expected("ranks", wanted, ranks))
    found = []
    for r in range(ranks):
        keys = r * h_kv // ranks, (r + 1) * h_kv // ranks
        queries = tuple(h // h_kv * i for i in keys)
        share = {"b_O": p.b_O if r == 0 else None}
        for name, (first, last), n in (("Q", queries, h), ("K", keys, h_kv), ("V", keys, h_kv)):
            for kind in ("W", "b"):
                T = getattr(p, f"{kind}_{name}")
                share[f"{kind}_{name}"] = None if T is None else T[..., _columns(T.shape[-1], n, first, last)]
        share["W_O"] = p.W_O[_columns(p.W_O.shape[0], h, *queries), :]
        found.append((MultiHeadParams(**share), queries[1] - queries[0], keys[1] - keys[0]))
    return found


def _columns(width: int, n: int, first: int, last: int) -> slice:
    return slice(width // n * first, width // n * last)


def layer(rank: int, ranks: int, X: Any, p: Any, **options: Any) -> Any:
    """The lines of a rank: its heads, then the sum over the ranks."""
    Y, res = multi_head_attention(X, p, **options)
    (Y,) = yield from all_reduce(rank, ranks, 0, [Y], lambda a, b: [a[0] + b[0]])
    return Y, res


def layer_vjp(rank: int, ranks: int, dY: Any, res: Any) -> Any:
    """Their transpose: dY is the same for all, and dX the sum of what the heads give."""
    grads = multi_head_attention_vjp(dY, res)
    given = [grads.dX] if grads.dmemory is None else [grads.dX, grads.dmemory]
    summed = yield from all_reduce(rank, ranks, 0, given, lambda a, b: [x + y for x, y in zip(a, b, strict=True)])
    return [*summed, *([None] if grads.dmemory is None else [])], grads
