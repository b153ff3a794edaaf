"""The atlas: every cause is planted and run, what hides it is run too, and what is recorded of it is what comes."""

import ast
import json
import re
from collections import Counter
from functools import cache

import numpy as np
import pytest
from atlas import RECORD, SCRIPT, record
from bs4 import BeautifulSoup
from equations import ROOT

from attnbook.diagnose.links import BOOK, link
from evidence.atlas import CAUSES, KINDS, incidents, threads
from evidence.atlas.entries import Cause, Setting, Thread
from evidence.atlas.options import RIGHT_ROTARY
from evidence.atlas.page import counts, counts_table, filters, symptom, table
from evidence.atlas.plant import planted
from evidence.atlas.recorded import ANSWERS, Watched, differs, run, today
from evidence.atlas.topics import TOPICS, topics

every_cause = pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES)
RESULTS = ("O", "dQ", "dK", "dV", "dbias", "dsink")
SAMPLE = ("dead-row", "nothing-to-do")


# --- the table ----------------------------------------------------------------------------------------------------


def test_a_thread_says_where_it_is_and_how_far_it_was_read():
    assert len(incidents()) >= 100
    assert len(CAUSES) == sum(map(len, KINDS.values())) >= 40
    latest = {}
    for thread in sorted(incidents().values(), key=lambda thread: (thread.repository, thread.number)):
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", thread.repository), thread
        assert thread.number > 0
        assert 2017 <= latest.get(thread.repository, 2017) <= thread.year <= 2026, thread  # later numbers, later years
        assert (thread.kind in ("issues", "pull"), thread.read) == (True, "excerpt"), thread
        assert thread.title.strip() == thread.title != "", thread
        assert thread.note == "" or thread.note[-1] in ".!", thread
        latest[thread.repository] = thread.year
    for _, thread in threads():  # one of two causes is the same in both but for its note
        assert thread._replace(note="") == incidents()[thread.address]._replace(note="")
    assert Thread("someone/something", 1, 2026, "x").library == "other"


@every_cause
def test_a_cause_is_told_in_sentences_and_spoils_what_it_says_and_nothing_else(cause):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", cause.slug)
    assert not cause.title.endswith(".")
    for text in (cause.cause, cause.needs, cause.fix):
        assert text.endswith(".")
        assert "  " not in text
    assert cause.spoils == ("raises",) or set(cause.spoils) <= set(RESULTS)
    assert cause.spoils
    assert cause.threads
    assert run(cause, cause.shows) == cause.spoils
    if cause.hides:  # a call that lacks what a test needs does not see it
        assert run(cause, cause.hides) == ()


@pytest.mark.parametrize("setting", [Setting(), Setting(padding=1), Setting(heads=6, key_heads=2)], ids=str)
def test_without_a_mistake_nothing_is_spoiled(setting):
    assert run(Cause("", "", "", "", "", (), planted(), setting, None, ()), setting) == ()


def test_a_difference_is_noticed_and_a_rounding_is_none():
    T = np.linspace(1.0, 2.0, 6)
    assert not differs(T * (1 + 1e-14), T)
    assert differs(T * (1 + 1e-6), T)
    assert differs(None, T)
    assert differs(T[:-1], T)
    assert differs(np.where(T > 1.9, np.nan, T), T)
    assert not differs(None, None)


def test_a_rotation_by_any_tables_is_right_by_differences():
    """The steps turn both halves by the same angles; these are turned by angles of their own."""
    shows = CAUSES["rotation-taken-back-in-the-wrong-order"].shows
    (*inputs, dO), tables = shows.draw()
    grads, rng, step = RIGHT_ROTARY(*inputs, dO, **tables), np.random.default_rng(3), 1e-5
    for i, name in enumerate(("dQ", "dK")):
        way = rng.standard_normal(inputs[i].shape)
        up, down = ([*inputs[:i], inputs[i] + s * way, *inputs[i + 1 :]] for s in (step, -step))
        losses = [np.sum(RIGHT_ROTARY(*moved, dO, **tables)["O"] * dO) for moved in (up, down)]
        assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(np.sum(way * grads[name]), rel=1e-7)


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


def test_an_answer_follows_from_what_was_asked():
    """A mistake where it shows is seen, where no call can show it there is no case, and missed between.

    The first shows with one query only: what has no name is sought for in every wrong case, and that takes time.
    """
    spoiling = planted(dQ=lambda a: a.scale * a.dQ_unscaled + (np.sin(a.Q) if a.n_q == 1 else 0.0))
    never = planted(dQ=lambda a: (1.25 if a.n_q > 10**6 else 1.0) * a.scale * a.dQ_unscaled)
    hardly = planted(dQ=lambda a: (1 + 1e-8) * a.scale * a.dQ_unscaled)  # a float32 inside, as far as it can tell
    asked = [
        today(Cause("", "", "", "", "", ("dQ",), made, Setting(), None, ()))[0] for made in (spoiling, never, hardly)
    ]
    assert asked == ["seen", "no case", "missed"]


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
    """GQA stands where query heads share a key head, and nowhere else; an option at least where the call has it."""
    assert {slug for slugs in TOPICS.values() for slug in slugs} <= CAUSES.keys()
    rows = {row["id"].removeprefix("atlas-"): row.find("td").get_text(" ") for row in page().select("tbody tr[id]")}
    for slug, text in rows.items():
        assert all(words in text for words in topics(slug))
    shown = {slug: cause.shows for slug, cause in CAUSES.items()}
    grouped = {slug for slug, shows in shown.items() if shows.key_heads not in (None, shows.heads)}
    assert grouped == set(TOPICS["GQA, MQA"])
    assert grouped == {slug for slug, text in rows.items() if "GQA" in text}
    for option, words in (("window", "sliding window (SWA)"), ("sink", "attention sinks"), ("softcap", "softcap"),
                          ("dropout", "dropout"), ("cos", "RoPE, rotary embeddings")):  # fmt: skip
        assert {slug for slug, shows in shown.items() if option in shows.options} <= set(TOPICS[words])


def test_the_counts_are_computed():
    *rows, last = counts(record())
    assert last[1:3] == (len(CAUSES), len(incidents()))
    answers = Counter(of["answer"] for of in record()["causes"].values())
    assert last[3:] == tuple(answers[answer] for answer in ANSWERS)
    assert [row[1] for row in rows] == [len(causes) for causes in KINDS.values()]


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


def test_what_is_said_around_the_tables():
    counted = counts_table(record())
    assert all(counted.index(meaning) < counted.index("<table") for meaning in ANSWERS.values())
    said = {option["value"]: option.text for option in page().select("select[name=symptom] option")}
    assert said.pop("") == "all"
    words = {symptom(cause) for cause in CAUSES.values()}
    assert said == {each: each if each == "an error" else f"at least {each}" for each in words}
    known = json.loads(RECORD.read_text(encoding="utf-8"))
    del known["causes"]["dead-row"]  # a record that lacks a cause is no page
    with pytest.raises(KeyError, match="dead-row"):
        table("Causal, windows and masks", known)


SHOWN = """() => [...document.querySelectorAll("table.atlas tbody tr")].filter((row) => row.checkVisibility())
    .map((row) => [row.id, [...row.querySelectorAll("li")].filter((item) => item.checkVisibility()).length])"""


def test_the_filters_show_what_fits(browser):
    """Without the script all is shown, and no filter; with it, what fits all that is chosen."""
    script = (ROOT / "book" / "_static" / SCRIPT).read_text(encoding="utf-8")
    sections = "".join(f"<section>{table(kind, record())}</section>" for kind in KINDS)
    tab = browser.new_page()
    tab.set_content(f"<!DOCTYPE html><html><body>{filters()}{sections}</body></html>")

    def shown():
        return {name.removeprefix("atlas-"): n for name, n in tab.evaluate(SHOWN)}

    def choose(**values):
        for name, value in values.items():
            tab.select_option(f"select[name={name}]", value)

    assert not tab.locator(".atlas-filter").is_visible()
    assert shown() == {slug: len(cause.threads) for slug, cause in CAUSES.items()}
    tab.add_script_tag(content=script)
    assert tab.locator("output").text_content() == f"{len(incidents())} incidents"
    choose(library="flash-attention", year="2023")
    fits = {
        slug: n
        for slug, cause in CAUSES.items()
        if (n := sum(thread.library == "flash-attention" and thread.year == 2023 for thread in cause.threads))
    }
    assert shown() == fits
    choose(symptom="dQ, dK wrong")
    fits = {slug: n for slug, n in fits.items() if {"dQ", "dK"} <= set(CAUSES[slug].spoils)}
    assert shown() == fits
    assert any(symptom(CAUSES[slug]) != "dQ, dK wrong" for slug in fits)  # and others, with more
    kinds = {kind: {cause.slug for cause in causes} for kind, causes in KINDS.items()}
    left = [kind for kind, slugs in kinds.items() if slugs & fits.keys()]
    assert tab.locator("section:visible").count() == len(left) < len(KINDS)
    choose(**{"class": left[0]})
    assert shown() == {slug: n for slug, n in fits.items() if slug in kinds[left[0]]}
    choose(**{"class": ""}, symptom="", library="", year="")
    for words, slugs in TOPICS.items():
        choose(topic=words)
        assert shown().keys() == set(slugs)
    other = next(words for words, slugs in TOPICS.items() if not kinds[left[0]] & set(slugs))
    choose(topic=other, **{"class": left[0]})
    assert tab.locator("output").text_content() == "0 incidents: choose less"
    choose(topic="dropout", **{"class": ""})
    tab.evaluate("""() => {
        document.querySelector("select[name=topic]").value = "KV cache";
        dispatchEvent(new PageTransitionEvent("pageshow"));
    }""")  # as a browser restores what was chosen
    assert shown().keys() == set(TOPICS["KV cache"])
    tab.set_viewport_size({"width": 390, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    place = tab.locator("table.atlas a.here:visible").first.bounding_box()
    assert min(place["width"], place["height"]) >= 24
    tab.close()
