"""The page of what the site was made with: its records are of the chapters and tests that exist, and it shows them."""

import json
import re
from importlib.metadata import version
from pathlib import Path

import pytest
import run_chapters
import status
from built_site import SITE, soup
from what_ran import record

CHAPTERS = sorted(path.stem for path in run_chapters.CHAPTERS.glob("*.ipynb"))


def times():
    return json.loads(run_chapters.RUN_TIMES.read_text(encoding="utf-8"))


def test_every_chapter_has_its_run_time_and_says_where_it_was_taken():
    assert list(times()) == CHAPTERS, "run `make notebooks`"
    for run in times().values():
        assert 0 < run["seconds"] < 600
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", run["date"])
        assert run["machine"]
        assert run["python"]


def test_a_chapter_that_runs_again_replaces_only_its_own_record(monkeypatch, tmp_path):
    monkeypatch.setattr(run_chapters, "RUN_TIMES", tmp_path / "run_times.json")
    run_chapters.record(Path("02_b.ipynb"), 2.04)
    run_chapters.record(Path("01_a.ipynb"), 1.0)
    run_chapters.record(Path("02_b.ipynb"), 3.0)
    known = json.loads(run_chapters.RUN_TIMES.read_text(encoding="utf-8"))
    assert [(name, run["seconds"]) for name, run in known.items()] == [("01_a", 1.0), ("02_b", 3.0)]


def test_a_version_is_read_without_the_machines_that_want_it():
    versions = dict(pin for _, packages in status.chosen() for pin in packages)
    assert re.fullmatch(r"[\d.]+", versions["triton"])  # its line names a platform


class TestThePage:
    @pytest.fixture
    def rows(self):
        page = soup(SITE / "book" / "status.html")
        return {cells[0]: cells[1:] for tr in page.select("tr") if (cells := [c.get_text() for c in tr.select("td")])}

    def test_versions_are_those_that_are_installed(self, rows):
        for package in ("numpy", "matplotlib", "jupyter-book", "nbval"):
            assert rows[package][0] == version(package)

    def test_chapters_and_tests_are_those_of_the_records(self, rows):
        seconds = [str(run["seconds"]) for run in times().values()]
        tables = soup(SITE / "book" / "status.html").select("table")
        (ran,) = (table for table in tables if [th.get_text() for th in table.select("th")][1:] == list(status.COLUMNS))
        assert [cell.get_text() for cell in ran.select("td:nth-child(2)")] == seconds
        tests = record()["tests"]
        assert rows["tests that check a quantity, passed"] == [str(tests["passed"])]
        assert 0 < tests["planted mistakes noticed"] < tests["passed"]
