"""Which keys are the best of a query: a mask, which every spine takes. Chapter: :doc:`/chapters/09_variants`.

No tile of the scores has whole rows, so none could tell: it is found before, from the same scores.
"""

import math
from collections.abc import Sequence
from typing import Any

from attnbook.arguments import scores_shape
from attnbook.arrays import agree, array_namespace, mT, quietly_on_numpy, whole
from attnbook.ops import Op, Tile, chain
from attnbook.plan import resolve
from attnbook.spines.operands import operands, stretch
from attnbook.spines.tiled import pieces
from attnbook.types import AnyArray, Array, Corner

AT_ONCE = 2**22
"""Scores that are held at once, but at least a row of each head."""


def top_k_mask(
    Q: Array,
    K: AnyArray,
    k: int,
    *,
    mask: AnyArray | None = None,
    bias: AnyArray | None = None,
    causal: bool | Corner = False,
    scale: float | None = None,
    ops: Sequence[Op] = (),
) -> Any:
    """Mark each query's ``k`` keys with the highest scores, for ``attention(..., mask=...)`` with the same options.

    .. math:: M_{ij} = \\bigl(S_{ij} \\ge k\\text{-th largest of } S_i\\bigr)

    Equation :eq:`eq-op-blocks`. Scores that equal the k-th are all kept, whichever comes first: then a row has more
    than k. With k keys or fewer a row keeps all, but never one that is forbidden.

    Parameters
    ----------
    Q : array (..., n_q, d_k)
    K : array (..., n_k, d_k)
        It may have fewer heads than Q.
    k : int
        At least 1.
    mask, bias, causal, scale, ops
        As for :func:`~attnbook.attention.attention`: the choice is made among the scores that softmax would get.

    Returns
    -------
    M : bool array (..., n_q, n_k)
        A byte a score; of the scores themselves, only some rows are held at a time.

    Raises
    ------
    TypeError
        Q or K is no array of floats, they differ in dtype or library; or an option has the wrong type, as for
        attention.
    ValueError
        k is no whole number of at least 1, or a shape or an option does not fit.

    Notes
    -----
    A small step of Q or K changes no choice, so the gradient flows through the keys that are kept, as through any mask:
    with this one fixed, that of attention is right, except where two scores tie for the k-th place.
    """
    xp = agree(Q=Q, K=K)
    k = whole("k", k, 1, "a whole number of keys, at least 1")
    shape, widths = scores_shape(Q, K, K), (Q.shape[-1], Q.shape[-1])
    options: dict[str, Any] = {
        "mask": mask,
        "bias": bias,
        "causal": causal,
        "scale": scale,
        "ops": ops,
        "method": "dense",
    }
    plan = resolve({"Q": Q, "K": K}, shape, widths, **options)
    *lead, n_q, n_k = shape
    rows = max(1, AT_ONCE // max(1, math.prod(lead) * n_k))
    return xp.concat([_of_rows(Q, K, k, plan, part) for part in pieces(range(n_q), rows)], axis=-2)


@quietly_on_numpy
def _of_rows(Q: Any, K: Any, k: int, plan: Any, rows: range) -> Any:
    *lead, n_q, n_k = plan.shape
    q, key, _ = operands(Q[..., rows.start : rows.stop, :], K, K, plan.scale)
    S = stretch(q @ mT(key), (*lead, len(rows), n_k))
    S, _ = chain.forward(plan.scores, S, Tile(rows, range(n_k), n_q, n_k))
    xp = array_namespace(S)
    allowed = -xp.inf != S  # NaN is: it must not vanish here
    return allowed if k >= n_k else allowed & ~(xp.sort(S, axis=-1)[..., n_k - k : n_k - k + 1] > S)
