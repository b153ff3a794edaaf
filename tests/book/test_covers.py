"""The page of what was checked: its record is that of the tests as they are."""

import re
from pathlib import Path

import covers
from what_ran import record

TESTS = Path(__file__).parents[1]
COLUMNS = {
    "checks": list(covers.CHECKS),
    "spines": list(covers.SPINES),
    "libraries": [*covers.LIBRARIES, *covers.DTYPES],
}


def test_the_record_is_of_the_tests_as_they_are():
    known = record()
    assert known["rows"] == {title: list(rows) for title, rows in covers.ROWS.items()}, "run `make coverage`"
    assert known["columns"] == COLUMNS, "run `make coverage`"
    assert known["why"] == covers.REASONS, "run `make coverage`"


def test_the_claims_name_tests_that_are_there():
    """Read, not collected: a claim is worked out only where it is recorded."""
    there = {
        f"{path.name}::{name}"
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert {test for test, *_ in covers.CLAIMS} <= there


def test_no_hole_without_its_reason():
    cells = record()["cells"]
    assert covers.holes(cells) == []
    assert cells.keys() >= set(covers.VARIANTS), "run `make coverage`"
