"""Spines: the ways to run attention through its ops.

A spine is a module with ``prepare``, which completes a plan or refuses it before any work, ``forward``, ``vjp``,
``jvp``, ``hvp``, which is the jvp of the vjp, and the ``Residuals`` that ``forward`` hands to the others. "dense" and
"tiled" have twins for NumPy arrays, with the same residuals: the same lines, in place and on several threads.
"""

import math
from typing import Any, NamedTuple

from attnbook.arrays import is_numpy
from attnbook.spines import dense, fused, numpy_dense, numpy_tiled, tiled
from attnbook.types import AnyArray

SPINES = {"dense": dense, "tiled": tiled, "fused": fused, "numpy_dense": numpy_dense, "numpy_tiled": numpy_tiled}
NUMPY_TWIN = {"dense": "numpy_dense", "tiled": "numpy_tiled"}


class Way(NamedTuple):
    """A spine by its name, and its tiles, None for those that it takes by itself: what a ``method`` means.

    ``attention`` takes one for ``method`` too, and then that very spine, which may not be the twin.
    """

    spine: str
    tiles: AnyArray | None = None


WAYS: dict[str, Any] = {"auto": None, "dense": Way("dense"), "tiled": Way("tiled"), "fused": Way("fused")}
"""What the names that ``attention(method=...)`` takes mean; "auto" looks at the size of the table."""

DENSE_UP_TO = {True: 2**18, False: 2**21}
"""How many scores "auto" still gives to "dense", on NumPy and on other arrays: benchmarks/crossover.py with AVX2."""


def pick(like: Any, shape: tuple[int, ...]) -> Way:
    """The way that "auto" takes, for arrays like this and scores of ``shape``."""
    return WAYS["dense" if math.prod(shape) <= DENSE_UP_TO[is_numpy(like)] else "tiled"]


__all__ = ["DENSE_UP_TO", "NUMPY_TWIN", "SPINES", "WAYS", "Way", "pick"]
