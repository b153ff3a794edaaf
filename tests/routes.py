"""The routes that a call of attention can take through the package: each spine, and its twin for NumPy arrays.

A test that takes one sends every call through it, on tiles so small that small cases meet every edge: several blocks
of queries, of keys and of heads, ragged ends, tiles that are skipped, sums in order.
"""

import contextlib
import importlib
from typing import NamedTuple

import pytest

from attnbook.arrays import is_numpy
from attnbook.spines import dense, numpy_dense, numpy_tiled, tiled

ATTENTION = importlib.import_module("attnbook.attention")
SMALL = ((tiled, "ROWS", 2), (tiled, "COLS", 3), (tiled, "SCORES_ON_A_GPU", 30), (tiled, "SIDE_ON_A_GPU", 2),
         (numpy_tiled, "ROWS", 2), (numpy_tiled, "_cols", lambda *_, **__: 3),
         (numpy_tiled, "KEYS_A_TASK", 7), (numpy_tiled, "TASKS", 1), (numpy_tiled, "SCORES_A_TASK", 0))  # fmt: skip
TWO_HEADS = (numpy_tiled, "SCORES_A_TILE", 12)
SHIFTED = (numpy_tiled, "BITS_WITHOUT_SHIFT", 0.0)


class Route(NamedTuple):
    """The spine, the one that NumPy arrays take, and what is set besides."""

    spine: object
    on_numpy: object
    settings: tuple = ()

    def pick(self, method, Q, shape):
        return self.spine_of(Q).forward

    def spine_of(self, Q):
        return self.on_numpy if is_numpy(Q) else self.spine


ROUTES = {
    "dense": Route(dense, dense),
    "dense on NumPy": Route(dense, numpy_dense),
    "tiled": Route(tiled, tiled, SMALL),
    "tiled on NumPy": Route(tiled, numpy_tiled, (*SMALL, TWO_HEADS)),
    "tiled on NumPy, shifted": Route(tiled, numpy_tiled, (*SMALL, SHIFTED)),  # and all heads in one block
}
TILED = [name for name, route in ROUTES.items() if route.spine is tiled]
ON_TILES = [name for name in TILED if name != "tiled"]
"""Those with workers."""


@contextlib.contextmanager
def taking(name, small=True):
    """Every call of attention takes the route of that name; with its tiles as large as they are, if not ``small``."""
    route = ROUTES[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ATTENTION, "pick", route.pick)
        patch.setattr(ATTENTION, "spine_of", lambda res: route.spine_of(res.Q))
        for setting in route.settings if small else ():
            patch.setattr(*setting)
        yield


def on(name, law, *args, small=True, **options):
    """The law, to be called: it holds on the route of that name."""

    def of_route():
        with taking(name, small):
            return law(*args, **options)

    return of_route
