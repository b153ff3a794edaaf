"""Heads side by side in the columns, or stacked on an axis of their own; each is the vjp of the other."""

from attnbook.arrays import array_namespace


def split_heads(T, h):
    """(..., n, h·d) → (..., h, n, d): head i is columns i·d to (i+1)·d (:eq:`eq-split-heads`).

    Reshape, then swap axes. A reshape alone to (..., h, n, d) has the same shape and mixes tokens.
    """
    *lead, n, width = T.shape
    xp = array_namespace(T)
    T = xp.reshape(T, (*lead, n, h, width // h))
    return xp.moveaxis(T, -2, -3)


def merge_heads(T):
    """(..., h, n, d) → (..., n, h·d): the heads side by side again (:eq:`eq-merge-heads`)."""
    *lead, h, n, d = T.shape
    xp = array_namespace(T)
    return xp.reshape(xp.moveaxis(T, -3, -2), (*lead, n, h * d))
