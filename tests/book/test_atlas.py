"""The atlas: every cause is planted and run, what hides it is run too, and what is recorded of it is what comes."""

import ast
import json
import re
from collections import Counter
from functools import cache

import pytest
from atlas import SCRIPT, record
from bs4 import BeautifulSoup
from equations import ROOT

from attnbook.checks import check_vjp
from attnbook.diagnose.links import BOOK, link
from evidence.atlas import CAUSES, KINDS, incidents, threads
from evidence.atlas.entries import Cause, Setting
from evidence.atlas.options import RIGHT_ROTARY
from evidence.atlas.page import counts_table, filters, table
from evidence.atlas.plant import planted
from evidence.atlas.recorded import ANSWERS, Watched, run, today
from evidence.atlas.topics import TOPICS, topics

every_cause = pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES)
SAMPLE = ("dead-row", "nothing-to-do")


# --- the table ----------------------------------------------------------------------------------------------------


def test_a_thread_says_where_it_is_and_how_far_it_was_read():
    assert len(incidents()) >= 100
    assert len(CAUSES) == sum(map(len, KINDS.values())) >= 40
    latest = {}
    for thread in sorted(incidents().values(), key=lambda thread: (thread.repository, thread.number)):
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", thread.repository), thread
        assert 2017 <= latest.get(thread.repository, 2017) <= thread.year <= 2026, thread  # later numbers, later years
        assert (thread.kind in ("issues", "pull"), thread.read) == (True, "excerpt"), thread
        assert thread.title
        latest[thread.repository] = thread.year


@every_cause
def test_a_cause_is_told_in_sentences_and_spoils_what_it_says_and_nothing_else(cause):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", cause.slug)
    assert all(text.endswith(".") for text in (cause.cause, cause.needs, cause.fix))
    assert cause.spoils
    assert cause.threads
    assert run(cause, cause.shows) == cause.spoils
    if cause.hides:  # a call that lacks what a test needs does not see it
        assert run(cause, cause.hides) == ()


@pytest.mark.parametrize("setting", [Setting(), Setting(padding=1), Setting(heads=6, key_heads=2)], ids=str)
def test_without_a_mistake_nothing_is_spoiled(setting):
    assert run(Cause("", "", "", "", "", (), planted(), setting, None, ()), setting) == ()


def test_a_rotation_by_any_tables_is_right_by_differences():
    """The steps turn both halves by the same angles; these are turned by angles of their own."""
    shows = CAUSES["rotation-taken-back-in-the-wrong-order"].shows
    (*inputs, dO), tables = shows.draw()
    grads = RIGHT_ROTARY(*inputs, dO, **tables)
    given = tuple(grads[name] for name in ("dQ", "dK", "dV"))
    check_vjp(lambda *at: RIGHT_ROTARY(*at, dO, **tables)["O"], given, at=inputs, cotangent=dO, autograd=False)


# --- what diagnose says -------------------------------------------------------------------------------------------


def test_the_record_knows_every_cause_and_no_other():
    assert list(record()["causes"]) == list(CAUSES), "run `make atlas`"
    assert {of["answer"] for of in record()["causes"].values()} <= ANSWERS.keys()
    assert all(bool(of["names"]) == (of["answer"] == "named") for of in record()["causes"].values())


@pytest.mark.parametrize(
    "slug", [pytest.param(slug, marks=() if slug in SAMPLE else pytest.mark.thorough) for slug in CAUSES]
)
def test_diagnose_says_what_is_recorded(slug):
    answer, names = today(CAUSES[slug])
    assert record()["causes"][slug] == {"answer": answer, "names": list(names)}, "run `make atlas`"


def test_it_is_asked_about_the_mistake_as_large_as_it_is():
    overflow = CAUSES["address-overflows"]
    assert Watched(overflow).run is overflow.in_fact
    assert run(overflow._replace(run=overflow.in_fact), overflow.shows) == ()


# --- the page -----------------------------------------------------------------------------------------------------


@cache
def page():
    parts = [counts_table(record()), filters(), *(table(kind, record()) for kind in KINDS)]
    return BeautifulSoup("\n".join(parts), "html.parser")


def test_the_page_has_a_row_for_each_cause_and_a_link_for_each_thread():
    soup = page()
    rows = soup.select("table.atlas tbody tr")
    assert [row["id"] for row in rows] == [f"atlas-{slug}" for slug in CAUSES]
    links = [item.find("a")["href"] for item in soup.select("table.atlas li")]
    assert links == [thread.address for _, thread in threads()]
    assert [q.text for q in soup.select("table.atlas q")] == [thread.title for _, thread in threads()]
    ids = [tag["id"] for tag in soup.find_all(id=True)]
    assert len(ids) == len(set(ids))


def test_the_page_says_what_is_recorded_and_links_a_name_where_the_book_has_a_section():
    cells = json.loads((ROOT / "chapters" / "in_the_wild.ipynb").read_text(encoding="utf-8"))["cells"]
    chapter, linked = "".join("".join(cell["source"]) for cell in cells), 0
    for row in page().select("table.atlas tbody tr"):
        recorded, said = record()["causes"][row["id"].removeprefix("atlas-")], row.select("td")[1]
        words = re.search(r"diagnose: (.*)", said.get_text(" ", strip=True).replace(" :", ":"))[1]
        assert words.startswith(recorded["answer"])
        for name in recorded["names"]:
            (code,) = (code for code in said.select("code") if code.text == name)
            if link(name):
                linked += 1
                assert code.parent["href"] == link(name).replace(BOOK, "../")
                assert f"({code.parent['href'].partition('#')[2]})=" in chapter
            else:
                assert code.parent.name == "p"
    assert linked >= 5


def test_a_row_has_the_words_that_people_look_for():
    """GQA stands where query heads share a key head, and nowhere else."""
    assert {slug for slugs in TOPICS.values() for slug in slugs} <= CAUSES.keys()
    rows = {row["id"].removeprefix("atlas-"): row.find("td").get_text(" ") for row in page().select("tbody tr[id]")}
    for slug, text in rows.items():
        assert all(words in text for words in topics(slug))
    grouped = {slug for slug, cause in CAUSES.items() if cause.shows.key_heads not in (None, cause.shows.heads)}
    assert grouped == set(TOPICS["GQA, MQA"]) == {slug for slug, text in rows.items() if "GQA" in text}


@every_cause
def test_what_is_shown_runs_with_the_imports_that_are_shown(cause):
    row = page().find(id=f"atlas-{cause.slug}")
    *body, last = ast.parse(row.find("pre").text).body
    names = {}
    exec(compile(ast.Module(body, []), cause.slug, "exec"), names)
    if isinstance(last, ast.Expr):
        made = eval(compile(ast.Expression(last.value), cause.slug, "eval"), names)
    else:
        exec(compile(ast.Module([last], []), cause.slug, "exec"), names)
        made = names[last.name if isinstance(last, ast.FunctionDef) else last.targets[0].id]
    assert run(cause._replace(run=made), cause.shows) == cause.spoils


SHOWN = """() => [...document.querySelectorAll("table.atlas tbody tr")].filter((row) => row.checkVisibility())
    .map((row) => [row.id, [...row.querySelectorAll("li")].filter((item) => item.checkVisibility()).length])"""


def test_the_filters_show_what_fits(browser):
    """Without the script all is shown, and no filter; with it, what fits all that is chosen."""
    script = (ROOT / "book" / "_static" / SCRIPT).read_text(encoding="utf-8")
    sections = "".join(f"<section>{table(kind, record())}</section>" for kind in KINDS)
    tab = browser.new_page()
    tab.set_content(f"<!DOCTYPE html><html><body>{filters()}{sections}</body></html>")

    def shown(**chosen):
        for name in ("class", "topic", "symptom", "library", "year"):
            tab.select_option(f"select[name={name}]", chosen.get(name, ""))
        return {name.removeprefix("atlas-"): n for name, n in tab.evaluate(SHOWN)}

    assert not tab.locator(".atlas-filter").is_visible()
    whole = {slug: len(cause.threads) for slug, cause in CAUSES.items()}
    assert {name.removeprefix("atlas-"): n for name, n in tab.evaluate(SHOWN)} == whole
    tab.add_script_tag(content=script)
    assert tab.locator("output").text_content() == f"{len(incidents())} incidents"
    asked = {"library": "flash-attention", "year": "2023"}
    threads = ((slug, thread) for slug, cause in CAUSES.items() for thread in cause.threads)
    found = Counter(slug for slug, t in threads if (t.library, t.year) == ("flash-attention", 2023))
    assert shown(**asked) == found
    found = {slug: n for slug, n in found.items() if {"dQ", "dK"} <= set(CAUSES[slug].spoils)}
    assert shown(symptom="dQ, dK wrong", **asked) == found
    kind = next(kind for kind, causes in KINDS.items() if {cause.slug for cause in causes} & found.keys())
    inside = found.keys() & {cause.slug for cause in KINDS[kind]}
    assert shown(**{"class": kind}, symptom="dQ, dK wrong", **asked) == {slug: found[slug] for slug in inside}
    assert shown(topic="dropout").keys() == set(TOPICS["dropout"])
    tab.close()
