"""Heads: split from the columns and merged again, each the vjp of the other; shared by several query heads."""

from collections.abc import Sequence
from typing import Any

from attnbook.arrays import array_namespace, swapaxes, unbroadcast


def split_heads(T: Any, h: int) -> Any:
    """(..., n, h·d) → (..., h, n, d): head r is columns r·d to (r+1)·d (:eq:`eq-split-heads`).

    Reshape, then swap axes. A reshape alone to (..., h, n, d) has the same shape and mixes tokens.
    """
    *lead, n, width = T.shape
    xp = array_namespace(T)
    T = xp.reshape(T, (*lead, n, h, width // h))
    return swapaxes(T, -3, -2)  # eq-split-heads


def merge_heads(T: Any) -> Any:
    """(..., h, n, d) → (..., n, h·d): the heads side by side again (:eq:`eq-merge-heads`)."""
    *lead, h, n, d = T.shape
    xp = array_namespace(T)
    return xp.reshape(swapaxes(T, -3, -2), (*lead, n, h * d))  # eq-merge-heads


def share_heads(K: Any, h: int) -> Any:
    """Repeat each of K's heads (axis −3) for the h / h_kv query heads that share it, which follow one another
    (:eq:`def-head-groups`).

    K of one head, or of h, is returned as it is: broadcasting does the rest.
    """
    if h == 1 or K.ndim < 3 or K.shape[-3] in (1, h):
        return K
    return array_namespace(K).repeat(K, h // K.shape[-3], axis=-3)  # def-head-groups


def share_heads_vjp(dK: Any, shape: Sequence[int]) -> Any:
    """Sum the gradient over the query heads that shared a head, and over all broadcast axes, back to ``shape``."""
    h = dK.shape[-3] if dK.ndim >= 3 else 1
    if len(shape) >= 3 and shape[-3] not in (1, h):
        xp = array_namespace(dK)
        groups = (*dK.shape[:-3], shape[-3], h // shape[-3], *dK.shape[-2:])
        dK = xp.sum(xp.reshape(dK, groups), axis=-3)  # eq-head-groups-vjp
    return unbroadcast(dK, shape)
