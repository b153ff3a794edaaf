"""The claims of the five texts: all there, each with the verdict that running it gives, and a place in the chapter."""

import json
import re
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from equations import CHAPTERS

from attnbook.checks import check_vjp, close
from attnbook.diagnose.causes.mistakes import MISTAKES, Mistake
from evidence.claims import (
    AMBIGUOUS,
    CONVENTION,
    HOLDS,
    MISSING,
    VERDICTS,
    WRONG,
    Claim,
    Differs,
    Raises,
    run,
)
from evidence.counterexamples import WEAK, counterexample, passes
from evidence.wild import (
    CLAIMS,
    CRASHES,
    DISTINCT,
    ERRORS,
    LIMITS,
    SETTINGS,
    SILENT,
    TEXTS,
    DistinctErrors,
    Listed,
    gradient_errors,
    ledger,
)
from evidence.wild.errors import rows_of
from evidence.wild.listing_code import PRINTED, REUSE, softmax_cost

CHAPTER = CHAPTERS / "in_the_wild.ipynb"


ALIKE = ({CONVENTION, AMBIGUOUS}, *({MISSING, verdict} for verdict in (HOLDS, CONVENTION, AMBIGUOUS)))
"""Verdicts that the same comparisons can show, so that only a reader can tell them apart."""


all_run = cache(ledger)


@cache
def text_of(path):
    return "\n".join("".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"])


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_the_verdict_is_what_running_says_and_another_is_refused(claim):
    assert claim.verdict in VERDICTS
    if claim.run is None:  # by reading alone: it says why
        assert len(claim.note) > 15
        return
    assert claim.says
    assert claim.place
    compared = {setting.name: claim.run(setting) for setting in SETTINGS}
    claim = claim._replace(run=lambda setting: compared[setting.name])
    run(claim, SETTINGS)
    for verdict in VERDICTS:
        if verdict != claim.verdict and {verdict, claim.verdict} not in ALIKE:
            with pytest.raises(AssertionError, match=claim.id):
                run(claim._replace(verdict=verdict, errors=("ds-mean",) if verdict == WRONG else ()), SETTINGS)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_the_truths_are_true(setting):
    m = setting.m
    check_vjp(m.forward, m.grads, at=m.inputs, cotangent=m.dY)


def test_a_slip_of_ours_is_no_proof_that_a_claim_is_wrong():
    for comparison in (Differs(lambda: no_such_name, 1.0), Raises(lambda: no_such_name, SyntaxError)):  # noqa: F821
        claim = Claim("T-1", "l.1", "a = b", WRONG, "why", "", lambda z, a=comparison: {"a": a}, ("ds-mean",))
        with pytest.raises(NameError):
            run(claim, [DISTINCT])


def test_the_page_has_every_row_once_without_a_script():
    html = all_run()._repr_html_()
    assert sorted(re.findall(r'<li id="row-([\w-]+)"', html)) == sorted(claim.id.lower() for claim in CLAIMS)
    assert html.count("<details") == len(TEXTS)
    assert sum(all_run().counts().values()) == len(CLAIMS) == 163


def test_an_error_that_several_rows_make_counts_once():
    found = all_run().errors()
    wrong = [claim for claim in CLAIMS if claim.verdict == WRONG]
    assert {name for rows in found.values() for name in rows} == {claim.id for claim in wrong}
    assert set(found) == {error for claim in wrong for error in claim.errors}
    assert found["ds-matrix-product"] == ["S2-5", "S2-6", "S2-7", "S2-12", "S2-22"]
    named = {error for claim in CLAIMS for error in claim.errors}
    assert set(ERRORS) - {mistake.slug for mistake in MISTAKES} <= named <= set(ERRORS)
    assert f"{len(found)} distinct errors" in repr(DistinctErrors(all_run()))


def test_the_memory_of_the_listings():
    """Measured on the lines as they are printed, which subtract a mean; reuse holds one table and is right."""
    z = SETTINGS[0]
    mean = z.dP * z.P - (z.dP * z.P).mean(-1, keepdims=True)
    for lines, name, right, tables in (*zip(PRINTED.values(), ("dS", "dS"), (mean, mean), (3, 2), strict=True),
                                       (REUSE, "dA", z.dS, 1)):  # fmt: skip
        names = {"np": np, "self": SimpleNamespace(A=z.P), "dA": z.dP.copy()}
        exec("\n".join(lines), names)
        assert close(names[name], right)
        assert softmax_cost(lines)[0] == tables
    assert softmax_cost(["dS = dA * self.A + np.sum(dA, -1, keepdims=True)"])[1] == 3  # operations


def test_without_faults_the_listing_is_right_and_each_fault_is_one():
    for sizes in ({}, {"n_k": 7}, {"batch": 5}):
        assert max(gradient_errors(**sizes).values()) < 1e-12
    for fault in CRASHES:
        assert "raises" in gradient_errors([fault]), fault
    for fault in SILENT:
        assert max(gradient_errors([fault]).values()) > 0.1, fault
    for limit in LIMITS:  # right in self-attention, and fails aloud elsewhere
        assert max(gradient_errors([limit]).values()) < 1e-12, limit
        assert "raises" in gradient_errors([limit], n_k=7), limit
    with pytest.raises(ValueError, match="typo"):
        Listed(12, 3, ["typo"])


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.slug)
def test_a_mistake_has_a_small_counterexample_and_a_section_and_stands_in_the_rows_that_make_it(mistake):
    found = counterexample(mistake.slug)
    assert max(T.shape[-2] for T in found.case.inputs) <= 2
    assert found.errors["distinct sizes"] != "equal"
    make, reading, related = rows_of(mistake.slug, CLAIMS)
    verdicts = {claim.id: claim.verdict for claim in CLAIMS}
    assert {verdicts[name] for name in make} <= {WRONG}
    assert {verdicts[name] for name in reading} <= {AMBIGUOUS}
    assert {source for source in mistake.sources if source in verdicts} <= {*make, *reading, *related}
    html = found._repr_html_()
    for words, rows in {"Stands in": make, "One reading of": reading, "Related:": related}.items():
        assert (words in html) == bool(rows)
    assert re.findall(r'href="#row-[\w-]+">([\w-]+)<', html) == [*make, *reading, *related]
    section, _, _ = text_of(CHAPTER).partition(f"(mistake-{mistake.slug})=")[2].partition("counterexample(")
    assert f'counterexample("{mistake.slug}")' in text_of(CHAPTER)
    bare = lambda tex: re.sub(r"\\bigl|\\bigr|\\textstyle|\s", "", tex)  # noqa: E731
    assert f"Wrong:${bare(mistake.wrong)}$." in bare(section)
    assert f"Right:${bare(mistake.right)}$,{{eq}}`{mistake.equation}`" in bare(section)


def test_the_right_formulas_get_past_every_weak_test():
    right = Mistake("none", "no mistake", "", "", "", (), (), {})
    assert all(passes(right, weak) for weak in WEAK)


def test_links_of_the_rows_lead_somewhere_and_links_to_rows_to_rows():
    for claim in CLAIMS:
        page, _, anchor = claim.see.partition("#")
        text = text_of(CHAPTERS / page.replace(".html", ".ipynb") if page else CHAPTER)
        label = f"({anchor.removeprefix('equation-')})"
        marks = re.findall(r"^\([\w-]+\)(?==$)|(?<=\$\$ )\([\w-]+\)", text, re.MULTILINE) if anchor else ()
        assert not anchor or label.lower() in {mark.lower() for mark in marks}, claim.id
    linked = re.findall(r"#row-([\w-]+)", text_of(CHAPTER))
    assert {name.lower() for name in linked} <= {claim.id.lower() for claim in CLAIMS}
