"""The page of what was checked: its record is that of the tests as they are."""

import json
from pathlib import Path

import covers
import pytest
from what_ran import mark, record

from attnbook import ops

COLUMNS = {
    "checks": list(covers.CHECKS),
    "spines": list(covers.SPINES),
    "libraries": [*covers.LIBRARIES, *covers.DTYPES],
}


def test_the_record_is_of_the_tests_as_they_are(request):
    known = record()
    assert known["rows"] == {title: list(rows) for title, rows in covers.ROWS.items()}, "run `make coverage`"
    assert known["columns"] == COLUMNS, "run `make coverage`"
    assert known["why"] == covers.REASONS, "run `make coverage`"
    recorded = {(quantity, check) for quantity, checks in known["cells"].items() for check in checks}
    config = request.config
    assert config.covered <= recorded, "run `make coverage`"
    if config.files == {path.name for path in Path(__file__).parent.glob("test_*.py")}:
        assert not config.covers_nothing, "tests/covers.py names tests that are not there"
        assert config.covered == recorded, "run `make coverage`"


def test_every_op_of_the_package_has_a_row():
    kinds = {kind for kind in vars(ops).values() if isinstance(kind, type) and issubclass(kind, ops.Op)}
    assert covers.OPS.keys() == kinds - {ops.Op, ops.Masking, ops.Placed}
    assert {*covers.OPS.values()} <= {*covers.VARIANTS}


def test_no_hole_without_its_reason():
    cells = record()["cells"]
    assert covers.holes(cells) == []
    assert covers.holes({**cells, "sink": {}}) == [("sink", c) for c in covers.NEEDED]
    assert covers.holes({**cells, "dropout": cells["sink"]}) == [("dropout", "fused")]


def test_the_record_holds_no_failure_and_nothing_of_one_machine():
    text = json.dumps(record())
    assert "FAILED" not in text
    assert "/" not in text.replace("1/", "")


@pytest.mark.parametrize(("state", "shown"), [(None, "–"), ("passed", "yes"), ("CuPy: no GPU here", "not run")])
def test_a_cell_says_what_ran(state, shown):
    assert mark(state) == shown
