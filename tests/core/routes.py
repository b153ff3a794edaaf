"""The routes that a call of attention can take through the package: each spine, and its twin for NumPy arrays.

A test that takes one sends every call that names no method through it, on tiles so small that small cases meet every
edge: several blocks of queries, of keys and of heads, ragged ends, tiles that are skipped, sums in order.
"""

import contextlib

import pytest

from attnbook.spines import NUMPY_TWIN, WAYS, Way, numpy_work
from attnbook.spines.numpy_tiled import Tiles

SMALL = Tiles(rows=2, cols=3, keys=6, tasks=1, scores_a_task=0)
ROUTES = {  # the way, and whether NumPy arrays take its twin there
    "dense": (Way("dense"), False),
    "dense on NumPy": (Way("dense"), True),
    "tiled": (Way("tiled", SMALL), False),
    "tiled on NumPy": (Way("tiled", SMALL._replace(scores=12)), True),  # of heads two in a block
    "tiled on NumPy, shifted": (Way("tiled", SMALL._replace(bits=0.0)), True),  # and all heads in one block
    "tiled on NumPy, in nats": (Way("tiled", SMALL._replace(scores=12)), True),  # as without AVX-512
}
TILED = [name for name in ROUTES if "tiled" in name]
ON_TILES = [name for name in TILED if name != "tiled"]
"""Those with workers."""


@contextlib.contextmanager
def taking(name, small=True):
    """Every call of attention takes the route of that name; with its tiles as large as they are, if not ``small``."""
    way, twin = ROUTES[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(WAYS, "auto", way if small else Way(way.spine))
        patch.setattr(numpy_work, "BITS", "nats" not in name)  # whatever this machine would take
        if not twin:
            patch.delitem(NUMPY_TWIN, way.spine)
        yield


def on(name, test, *args, small=True):
    """The test, to be called: it is run on the route of that name."""

    def of_route():
        with taking(name, small):
            test(*args)

    return of_route
