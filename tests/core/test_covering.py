"""Rows that cover: every allowed combination is there, none that is forbidden, and they are few."""

import itertools

import pytest
from covering import cover

FACTORS = {"mask": ("none", "padding", "dead"), "heads": (1, 2), "op": [[], ["cap"], ["window"]], "dtype": (16, 32)}


def either(row):
    """Together no window has a mask, and what is not forbidden by itself may have no row: the KeyErrors are meant."""
    return row["op"] == ["window"] and (row["dtype"] == 16 or row["mask"] != "none")


def hidden(row):
    """32 bits and two heads forbid each other, but only a whole row shows it."""
    return len(row) == len(FACTORS) and row["dtype"] == 32 and row["heads"] == 2


def combinations(rows, of):
    return {repr([row[f] for f in of]) for row in rows}


@pytest.mark.parametrize("forbids", [lambda row: False, either, hidden])
@pytest.mark.parametrize(("strength", "more"), [(2, []), (2, [("mask", "dtype", "op")]), (4, [])])
def test_every_allowed_combination_is_there(strength, more, forbids):
    found = cover(FACTORS, strength, more, forbids)
    every = [dict(zip(FACTORS, values, strict=True)) for values in itertools.product(*FACTORS.values())]
    allowed = [row for row in every if not forbids(row)]
    assert all(row in allowed for row in found)
    for of in (*itertools.combinations(FACTORS, strength), *more):
        assert combinations(found, of) == combinations(allowed, of)
    assert found == cover(FACTORS, strength, more, forbids)


def test_the_rows_are_few():
    assert len(cover({f: range(3) for f in "abcd"})) == 9
    assert len(cover({f: range(2) for f in "abcdefghijkl"})) <= 10
