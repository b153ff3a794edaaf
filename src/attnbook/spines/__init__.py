"""Spines: the ways to run attention through its ops.

A spine is a module with ``forward``, ``vjp``, ``jvp``, and ``Residuals``, which the first hands to the others. Each has
a twin for NumPy arrays, with the same residuals: the same lines, in place and on several threads.
"""

import math

from attnbook.arrays import expected, is_numpy
from attnbook.spines import dense, fused, numpy_dense, numpy_tiled, tiled

SPINES = {"dense": dense, "tiled": tiled, "fused": fused}
"""The spines by the name that ``attention(method=...)`` takes."""

METHODS = ("auto", *SPINES)

ON_NUMPY = {dense: numpy_dense, tiled: numpy_tiled}
"""The twin of a spine that NumPy arrays go through."""

DENSE_UP_TO = {True: 2**18, False: 2**20}
"""How many scores "auto" still gives to "dense", on NumPy and on other arrays. Measured by benchmarks/crossover.py."""


def pick(method, Q, shape):
    """The forward that ``method`` asks for, on arrays like Q with scores of ``shape``."""
    if method == "auto":
        method = "dense" if math.prod(shape) <= DENSE_UP_TO[is_numpy(Q)] else "tiled"
    return on_arrays_of(SPINES[method], Q).forward


def on_arrays_of(spine, T):
    """The spine, or its twin for NumPy arrays."""
    return ON_NUMPY.get(spine, spine) if is_numpy(T) else spine


def spine_of(res):
    """The spine that made the residuals ``res``."""
    for spine in SPINES.values():
        if type(res) is spine.Residuals:
            return on_arrays_of(spine, res.Q)
    raise TypeError(expected("res", "the residuals that attention returned", type(res).__name__))


__all__ = ["DENSE_UP_TO", "METHODS", "ON_NUMPY", "SPINES", "on_arrays_of", "pick", "spine_of"]
