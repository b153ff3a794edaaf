"""Who has which rows: contiguous, zig-zag or striped.

Chapter: :doc:`/chapters/14_many_devices`.
"""

import reprlib
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from attnbook.arguments import choose
from attnbook.arrays import array_namespace, axis_of, device, expected, is_array

Placement: TypeAlias = Literal["contiguous", "zigzag", "striped"]
"""How rows are dealt out over ranks."""


def positions(n: int, ranks: int, placement: Placement = "contiguous") -> list[Any]:
    """The places, in the whole sequence, of the rows that each rank has.

    "contiguous" are pieces one after the other, the first of them a row longer where ``ranks`` does not divide n.
    "zigzag" cuts twice as many, and gives rank r the pieces r and 2 · ranks − 1 − r: under a causal mask all have the
    same work. "striped" gives it the rows r, r + ranks, r + 2 · ranks, …

    Parameters
    ----------
    n : int
        Rows of the whole.
    ranks : int
    placement : "contiguous", "zigzag" or "striped"

    Returns
    -------
    list of int arrays, one a rank
        NumPy's. Some are empty, where there are fewer rows than ranks.

    Examples
    --------
    >>> from attnbook.parallel import positions
    >>> [places.tolist() for places in positions(7, 2, "zigzag")]
    [[0, 1, 6], [2, 3, 4, 5]]
    """
    return [np.concatenate([np.asarray(run, dtype=np.intp) for run in runs]) for runs in runs_of(n, ranks, placement)]


def split(X: Any, ranks: int, placement: Placement = "contiguous", axis: int = -2) -> list[Any]:
    """The rows of X that each rank has, by :func:`~attnbook.parallel.placement.positions`.

    Parameters
    ----------
    X : array
    ranks : int
    placement : "contiguous", "zigzag" or "striped"
    axis : int
        Where the rows are.

    Returns
    -------
    list of arrays, one a rank
    """
    if not is_array(X):
        raise TypeError(expected("X", "an array", type(X).__name__))
    axis = axis_of("X", X, axis)
    return [take(X, places, axis) for places in positions(X.shape[axis], ranks, placement)]


def join(parts: Sequence[Any], placement: Placement = "contiguous", axis: int = -2) -> Any:
    """The whole again, from the parts that :func:`~attnbook.parallel.placement.split` gave.

    Parameters
    ----------
    parts : sequence of arrays, one a rank
    placement : "contiguous", "zigzag" or "striped"
    axis : int

    Returns
    -------
    array

    Raises
    ------
    ValueError
        Parts of other lengths than the placement gives, "contiguous" apart, which may have any; of other sizes else.
    """
    if not isinstance(parts, tuple | list) or not parts or not all(map(is_array, parts)):
        raise TypeError(expected("parts", "arrays, one a rank", reprlib.repr(parts)))
    axis = axis_of("parts", parts[0], axis)
    others = [(*T.shape[:axis], *T.shape[axis + 1 :]) for T in parts]
    if any(shape != others[0] for shape in others):
        raise ValueError(expected("parts", f"the same sizes but for axis {axis}", [tuple(T.shape) for T in parts]))
    whole = array_namespace(*parts).concat(list(parts), axis=axis)
    if placement == "contiguous" or len(parts) == 1:
        return whole
    where = positions(whole.shape[axis], len(parts), placement)
    lengths = [T.shape[axis] for T in parts]
    if lengths != list(map(len, where)):
        raise ValueError(expected("parts", f"{list(map(len, where))} rows, as {placement} gives", lengths))
    return take(whole, np.argsort(np.concatenate(where)), axis)


def runs_of(n: int, ranks: int, placement: Placement) -> list[list[range]]:
    """The same as ranges, one or two a rank."""
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 0:
        raise ValueError(expected("n", "a number of rows", repr(n)))
    if isinstance(ranks, bool) or not isinstance(ranks, int | np.integer) or ranks < 1:
        raise ValueError(expected("ranks", "a number of ranks, at least 1", repr(ranks)))
    kind = choose("placement", placement, {"contiguous": 1, "zigzag": 2, "striped": 0})
    if kind == 0:
        return [[range(r, n, ranks)] for r in range(ranks)]
    pieces = kind * ranks
    ends = [n // pieces * i + min(i, n % pieces) for i in range(pieces + 1)]
    chunks = [range(ends[i], ends[i + 1]) for i in range(pieces)]
    if kind == 1:
        return [[chunk] for chunk in chunks]
    pairs = [(chunks[r], chunks[-1 - r]) for r in range(ranks)]
    return [[range(a.start, b.stop)] if a.stop == b.start else [a, b] for a, b in pairs]


def take(X: Any, places: Any, axis: int) -> Any:
    """X at these places of an axis."""
    xp = array_namespace(X)
    return xp.take(X, xp.asarray(places, device=device(X)), axis=axis)
