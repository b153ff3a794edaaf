"""The page of what was checked: its record is that of the tests as they are, and the recorder tells what happened."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import covers
import pytest
from what_ran import mark, record

ROOT = Path(__file__).parents[1]


def cells(known):
    return {(quantity, check) for quantity, checks in known["cells"].items() for check in checks}


def test_the_record_is_of_the_tests_as_they_are(tmp_path):
    claimed = tmp_path / "claimed.json"
    command = [sys.executable, "-m", "pytest", "tests", "-q", "--collect-only", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--record-coverage", claimed], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    now, known = json.loads(claimed.read_text(encoding="utf-8")), record()
    assert known["rows"] == now["rows"], "run `make coverage`"
    assert known["columns"] == now["columns"], "run `make coverage`"
    assert cells(known) == cells(now), "run `make coverage`"


def test_the_record_holds_no_failure_and_nothing_of_one_machine():
    text = json.dumps(record())
    assert "FAILED" not in text
    assert "claimed" not in text
    assert "/" not in text.replace("1/", "")


def report(outcome, when="call", cells=(("dQ", "differences"),)):
    passed, skipped = outcome == "passed", outcome == "skipped"
    longrepr = ("file", 1, "Skipped: CuPy: no GPU here")
    return SimpleNamespace(
        nodeid="file::test",
        user_properties=[("covers", cells)],
        passed=passed,
        skipped=skipped,
        when=when,
        longrepr=longrepr,
    )


@pytest.mark.parametrize(
    ("reports", "kept"),
    [
        ([report("passed", "setup"), report("passed"), report("passed", "teardown")], {"passed"}),
        ([report("passed", "setup"), report("failed")], {"FAILED"}),
        ([report("failed", "setup")], {"FAILED"}),
        ([report("skipped", "setup")], {"CuPy: no GPU here"}),
        ([report("passed"), report("failed")], {"passed", "FAILED"}),
        ([report("passed", "setup")], None),
    ],
)
def test_the_recorder_keeps_what_happened(reports, kept, monkeypatch):
    monkeypatch.setattr(covers, "OUTCOMES", {})
    for each in reports:
        covers.pytest_runtest_logreport(each)
    assert covers.OUTCOMES.get(("dQ", "differences")) == kept


def test_nothing_is_written_after_a_failure(monkeypatch, tmp_path):
    monkeypatch.setattr(covers, "OUTCOMES", {("dQ", "differences"): {"passed", "FAILED"}})
    file = tmp_path / "record.json"
    config = SimpleNamespace(getoption=lambda name: str(file), option=SimpleNamespace(collectonly=False))
    with pytest.raises(pytest.UsageError, match="dQ"):
        covers.pytest_sessionfinish(SimpleNamespace(config=config))
    assert not file.exists()


def test_a_cell_says_what_ran():
    assert [mark(state) for state in (None, "passed", "CuPy: no GPU here")] == ["–", "yes", "not run"]
