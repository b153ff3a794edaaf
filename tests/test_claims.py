"""The claims of the five texts: all there, each with the verdict that running it gives, and a place in the chapter."""

import json
import re

import numpy as np
import pytest
from equations import CHAPTERS

from attnbook.book.claims import (
    AMBIGUOUS,
    CONVENTION,
    HOLDS,
    MISSING,
    VERDICTS,
    WRONG,
    Claim,
    Differs,
    Ledger,
    Raises,
    Same,
    outcome,
    run,
)
from attnbook.book.counterexamples import WEAK, counterexample, passes
from attnbook.book.wild import CLAIMS, CRASHES, DISTINCT, SETTINGS, SILENT, Listed, gradient_errors, ledger
from attnbook.checks import check_vjp
from attnbook.diagnose.mistakes import MISTAKES, Mistake

IDS = (
    [f"S0-{i}" for i in range(1, 15)]
    + [f"S1-{i}" for i in (*range(1, 18), *(f"18{c}" for c in "abcdefg"), *range(19, 30))]
    + [f"S2-{i}" for i in (*range(1, 68), *(f"T{i}" for i in range(1, 9)))]
    + [f"S3-{i}" for i in (*range(1, 6), "6a", "6b", "6c", *range(7, 21))]
    + [f"S4-{i}" for i in range(1, 13)]
    + ["EX", "X-1", "X-2", "X-3", "X-4"]
)
CHAPTER = CHAPTERS / "in_the_wild.ipynb"

BY_READING = {
    HOLDS: "S1-17 S2-2 S2-8 S2-13 S2-45 S2-49 S2-67 S3-8",
    AMBIGUOUS: "S0-4 S2-53",
    WRONG: "S2-41 S2-43 S2-64 S4-11",
    MISSING: "S0-9 S2-42 S2-47 S2-66 S3-19 S3-20 S4-12",
}
"""The claims that nothing runs: nothing but this list holds their verdicts."""

ALIKE = ({CONVENTION, AMBIGUOUS}, *({MISSING, verdict} for verdict in (HOLDS, CONVENTION, AMBIGUOUS)))
"""Verdicts that the same comparisons can show, so that only a reader can tell them apart."""


def chapter_text():
    cells = json.loads(CHAPTER.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells)


def a_claim(verdict, comparisons):
    return Claim("T-1", "l.1", "a = b", verdict, "why", "", lambda z: comparisons)


def test_every_row_is_there():
    assert [claim.id for claim in CLAIMS] == IDS
    assert len(IDS) == 163


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_the_verdict_is_what_running_says(claim):
    assert claim.verdict in VERDICTS
    run(claim, SETTINGS)


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if claim.run], ids=lambda claim: claim.id)
def test_another_verdict_is_refused(claim):
    compared = {setting.name: claim.run(setting) for setting in SETTINGS}
    claim = claim._replace(run=lambda setting: compared[setting.name])
    for verdict in VERDICTS:
        if verdict != claim.verdict and {verdict, claim.verdict} not in ALIKE:
            with pytest.raises(AssertionError, match=claim.id):
                run(claim._replace(verdict=verdict), SETTINGS)


def test_what_is_not_run_is_known():
    found = {verdict: [c.id for c in CLAIMS if c.run is None and c.verdict == verdict] for verdict in VERDICTS}
    assert {verdict: " ".join(ids) for verdict, ids in found.items() if ids} == BY_READING


def test_what_is_not_run_says_why():
    for claim in CLAIMS:
        if claim.run is None:
            assert len(claim.note) > 15, claim.id
        else:
            assert claim.says, claim.id
            assert claim.place, claim.id


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_the_truths_are_true(setting):
    m = setting.m
    check_vjp(m.forward, m.grads, at=m.inputs, cotangent=m.dY)


class TestTheLedger:
    """It must refuse a verdict that its comparisons do not show."""

    def test_it_takes_what_is_true(self):
        assert run(a_claim(HOLDS, {"a": Same(1.0, 1.0)}), [DISTINCT])
        assert run(a_claim(WRONG, {"a": Differs(1.0, 2.0), "b": Same(2.0, 2.0)}), [DISTINCT])

    @pytest.mark.parametrize(
        ("verdict", "comparisons"),
        [
            (HOLDS, {"a": Same(1.0, 2.0)}),
            (HOLDS, {"a": Same(1.0, 1.0), "b": Differs(1.0, 2.0)}),
            (WRONG, {"a": Differs(1.0, 1.0)}),
            (WRONG, {"a": Same(1.0, 1.0)}),
            (WRONG, {"a": Same(1.0, 1.0), "b": Differs(1.0, 2.0)}),
            (AMBIGUOUS, {"a": Same(1.0, 1.0)}),
            (CONVENTION, {"a": Same(1.0, 1.0)}),
            (CONVENTION, {"a": Differs(1.0, 2.0), "b": Same(1.0, 1.0)}),
            (MISSING, {"a": Differs(1.0, 2.0)}),
            (MISSING, {}),
            (WRONG, {"a": Raises(lambda: 1.0, ValueError)}),
        ],
    )
    def test_it_refuses_what_is_not(self, verdict, comparisons):
        with pytest.raises(AssertionError, match="T-1"):
            run(a_claim(verdict, comparisons), [DISTINCT])

    def test_a_slip_of_ours_is_no_proof_that_a_claim_is_wrong(self):
        for slip in (lambda: no_such_name, lambda: np.no_such_function(1.0), lambda: np.ones(2)["x"]):  # noqa: F821
            with pytest.raises((NameError, AttributeError, IndexError)):
                run(a_claim(WRONG, {"a": Differs(slip, 1.0)}), [DISTINCT])
            with pytest.raises((NameError, AttributeError, IndexError)):
                run(a_claim(WRONG, {"a": Raises(slip, SyntaxError)}), [DISTINCT])

    def test_outcomes_are_told(self):
        assert outcome(1.0, 1.0) is None
        assert outcome(np.ones(2), np.ones(3)) == "shape (2) for (3)"
        assert outcome(3.0, 2.0) == "off by 0.5"
        assert outcome(np.array([np.nan]), np.ones(1)) == "NaN"
        assert outcome(lambda: np.ones(2) @ np.ones(3), 1.0) == "does not fit"
        assert outcome(3, 4) == "3, not 4"
        assert outcome(False, True) == "no"

    def test_no_id_twice(self):
        claim = a_claim(HOLDS, {"a": Same(1.0, 1.0)})
        with pytest.raises(ValueError, match="T-1"):
            Ledger([claim, claim], [DISTINCT])

    def test_the_table_has_every_row_without_a_script(self):
        html = ledger()._repr_html_()
        for name in IDS:
            assert f'id="row-{name.lower()}"' in html
        assert html.count("<tr") == len(IDS) + 1
        assert "hidden" not in html[: html.index("<style")]
        assert "163 claims" in repr(ledger())


class TestTheListing:
    def test_without_faults_it_is_right(self):
        for sizes in ({}, {"n_k": 7}, {"batch": 5}):
            assert max(gradient_errors(**sizes).values()) < 1e-12

    @pytest.mark.parametrize("fault", CRASHES)
    def test_each_crash_crashes(self, fault):
        assert "raises" in gradient_errors([fault])

    @pytest.mark.parametrize("fault", SILENT)
    def test_each_silent_error_is_one(self, fault):
        found = gradient_errors([fault])
        if fault == "one length":  # it fails aloud where the lengths differ
            assert max(found.values()) < 1e-12
            assert "raises" in gradient_errors([fault], n_k=7)
        else:
            assert max(found.values()) > 0.1

    def test_an_unknown_fault_is_refused(self):
        with pytest.raises(ValueError, match="typo"):
            Listed(12, 3, ["typo"])


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.slug)
def test_every_mistake_has_a_small_counterexample_and_a_section(mistake):
    found = counterexample(mistake.slug)
    assert max(T.shape[-2] for T in found.case.inputs) <= 2
    assert found.errors["distinct sizes"] != "equal"
    assert f"(mistake-{mistake.slug})=" in chapter_text()
    assert f'counterexample("{mistake.slug}")' in chapter_text()


def test_the_right_formulas_get_past_every_weak_test():
    right = Mistake("none", "no mistake", "", "", "", (), (), {})
    assert all(passes(right, weak) for weak in WEAK)


def test_links_of_the_table_lead_somewhere():
    text = chapter_text()
    here = set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))
    for claim in CLAIMS:
        page, _, anchor = claim.see.partition("#")
        if claim.see and not page:
            assert anchor in here, claim.id
