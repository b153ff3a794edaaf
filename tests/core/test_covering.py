"""Rows that cover: every allowed combination is there, none that is forbidden, and they are few."""

import itertools

import pytest
from covering import cover

FACTORS = {"mask": ("none", "padding", "dead"), "heads": (1, 2), "op": [[], ["cap"], ["window"]], "dtype": (16, 32)}


def window_alone(row):
    """What may stand in a part of a row, or not: the KeyErrors are meant."""
    return row["op"] == ["window"] and row["mask"] != "none"


def window_in_32_only(row):
    """Together with the other, no window has a mask, and what is not forbidden by itself may have no row."""
    return row["op"] == ["window"] and row["dtype"] == 16


def either(row):
    return window_in_32_only(row) or window_alone(row)


def hidden(row):
    """32 bits and two heads forbid each other, but only a whole row shows it."""
    return len(row) == len(FACTORS) and row["dtype"] == 32 and row["heads"] == 2


def combinations(rows, of):
    return {repr([row[f] for f in of]) for row in rows}


@pytest.mark.parametrize("forbids", [lambda row: False, window_alone, either, hidden])
@pytest.mark.parametrize(("strength", "more"), [(1, []), (2, []), (2, [("mask", "dtype", "op")]), (3, []), (4, [])])
def test_every_allowed_combination_is_there(strength, more, forbids):
    found = cover(FACTORS, strength, more, forbids)
    every = [dict(zip(FACTORS, values, strict=True)) for values in itertools.product(*FACTORS.values())]
    allowed = [row for row in every if not forbids(row)]
    assert all(row in allowed for row in found)
    for of in (*itertools.combinations(FACTORS, strength), *more):
        assert combinations(found, of) == combinations(allowed, of)
    assert found == cover(FACTORS, strength, more, forbids)


@pytest.mark.parametrize(
    ("factors", "strength", "rows"),
    [({f: range(3) for f in "abcd"}, 2, 9), ({f: range(2) for f in "abcdefghijkl"}, 2, 10), (FACTORS, 4, 36)],
)
def test_the_rows_are_few(factors, strength, rows):
    """As few as can be, 9 and 36, or two more than that."""
    assert len(cover(factors, strength)) <= rows
