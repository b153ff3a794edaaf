"""The page of what the site was made with: its records are of the chapters and tests that exist, and it shows them."""

import json
import re

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


class TestThePage:
    @pytest.fixture
    def rows(self):
        page = soup(SITE / "book" / "status.html")
        return {cells[0]: cells[1:] for tr in page.select("tr") if (cells := [c.get_text() for c in tr.select("td")])}

    def test_chapters_and_tests_are_those_of_the_records(self, rows):
        seconds = [str(run["seconds"]) for run in times().values()]
        tables = soup(SITE / "book" / "status.html").select("table")
        (ran,) = (table for table in tables if [th.get_text() for th in table.select("th")][1:] == list(status.COLUMNS))
        assert [cell.get_text() for cell in ran.select("td:nth-child(2)")] == seconds
        tests = record()["tests"]
        assert rows["tests that check a quantity, passed"] == [str(tests["passed"])]
        assert 0 < tests["planted mistakes noticed"] < tests["passed"]
