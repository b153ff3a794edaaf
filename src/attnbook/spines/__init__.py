"""Spines: the ways to run attention through its ops.

A spine is a module with ``forward``, ``vjp``, ``jvp``, and ``Residuals``, which the first hands to the others.
"""

from attnbook.arrays import expected
from attnbook.spines import dense

SPINES = {"dense": dense}
"""The spines by the name that ``attention(method=...)`` takes."""


def spine_of(res):
    """The spine that made the residuals ``res``."""
    for spine in SPINES.values():
        if isinstance(res, spine.Residuals):
            return spine
    raise TypeError(expected("res", "the residuals that attention returned", type(res).__name__))


__all__ = ["SPINES", "spine_of"]
