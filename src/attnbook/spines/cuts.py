"""Where masks cut through a tile, for NumPy: only that part is written to, and what recurs is remembered."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

REMEMBERED = 2**18  # pairs of a pattern at most: those of a tile, not of a whole table


class Cut(NamedTuple):
    """Where one mask cuts through a tile: the part with forbidden pairs, and which these are; 0 there and 1 elsewhere,
    where the pattern recurs and that is worth having.
    """

    at: tuple
    forbidden: np.ndarray
    allowed: np.ndarray | None = None


def cuts_of(masks, tile, dtype):
    """One entry a mask that forbids a pair of the tile. Along a diagonal one pattern recurs."""
    found = []
    for op in masks:
        if not op.allows_all(tile):
            key = _key(op) if len(tile.rows) * len(tile.cols) <= REMEMBERED else None
            pattern = op.pattern(tile) if key else None
            found.append(Cut((...,), _forbidden(op, tile)) if pattern is None else _recurring(key, pattern, dtype))
    return found


def _key(op):
    """The op and all that is set on it, if that can be compared: a class derived from ours may set more than fields."""
    key = (op, *vars(op).items())
    try:
        hash(key)
    except TypeError:
        return None
    return key


def put(T, cuts, value):
    """T with ``value`` where a mask forbids."""
    for cut in cuts:
        if value == 0 and cut.allowed is not None:
            T[cut.at] *= cut.allowed
        else:
            np.copyto(T[cut.at], value, where=cut.forbidden)


def _forbidden(op, tile):
    return ~op.allowed(np.empty(0), tile)


@lru_cache(maxsize=16)
def _recurring(key, tile, dtype):
    """The smallest cut with all the forbidden pairs, at most as large as a tile. Another call will need it, too."""
    forbidden = np.broadcast_to(_forbidden(key[0], tile), (len(tile.rows), len(tile.cols)))
    if not forbidden.any():
        return Cut((...,), np.asarray(False))
    rows, cols = (np.flatnonzero(forbidden.any(axis)) for axis in (1, 0))
    at = (..., slice(rows[0], rows[-1] + 1), slice(cols[0], cols[-1] + 1))
    return Cut(at, forbidden[at], (~forbidden[at]).astype(dtype))
