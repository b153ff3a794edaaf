"""The claims of the five texts: each has its place in the chapter, which runs them all, and prints their verdicts."""

import json
import re
from functools import cache

import pytest
from equations import CHAPTERS

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
)  # fmt: skip
from evidence.counterexamples import WEAK, counterexample, passes
from evidence.wild import CLAIMS, DISTINCT, ERRORS, SETTINGS, TEXTS, ledger
from evidence.wild.errors import rows_of

CHAPTER = CHAPTERS / "in_the_wild.ipynb"
ALIKE = ({CONVENTION, AMBIGUOUS}, *({MISSING, verdict} for verdict in (HOLDS, CONVENTION, AMBIGUOUS)))
"""Verdicts that the same comparisons can show, so that only a reader can tell them apart."""


@cache
def text_of(path):
    return "\n".join("".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"])


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if claim.run], ids=lambda claim: claim.id)
def test_another_verdict_is_refused(claim):
    """That its own holds, the chapter runs."""
    compared = {setting.name: claim.run(setting) for setting in SETTINGS}
    for verdict in VERDICTS:
        if verdict != claim.verdict and {verdict, claim.verdict} not in ALIKE:
            errors = ("ds-mean",) if verdict == WRONG else ()
            wrong = claim._replace(verdict=verdict, errors=errors, run=lambda setting: compared[setting.name])
            with pytest.raises(AssertionError, match=claim.id):
                run(wrong, SETTINGS)


def test_a_slip_of_ours_is_no_proof_that_a_claim_is_wrong():
    for comparison in (Differs(lambda: no_such_name, 1.0), Raises(lambda: no_such_name, SyntaxError)):  # noqa: F821
        claim = Claim("T-1", "l.1", "a = b", WRONG, "why", "", lambda z, a=comparison: {"a": a}, ("ds-mean",))
        with pytest.raises(NameError):
            run(claim, [DISTINCT])


def test_the_page_has_every_row_once_without_a_script():
    html = ledger()._repr_html_()
    assert sorted(re.findall(r'<li id="row-([\w-]+)"', html)) == sorted(claim.id.lower() for claim in CLAIMS)
    assert html.count("<details") == len(TEXTS)
    assert {error for claim in CLAIMS for error in claim.errors} <= set(ERRORS)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.slug)
def test_a_mistake_has_a_section_and_stands_in_the_rows_that_make_it(mistake):
    make, reading, related = rows_of(mistake.slug, CLAIMS)
    verdicts = {claim.id: claim.verdict for claim in CLAIMS}
    assert {verdicts[name] for name in make} <= {WRONG}
    assert {verdicts[name] for name in reading} <= {AMBIGUOUS}
    assert {source for source in mistake.sources if source in verdicts} <= {*make, *reading, *related}
    shown = counterexample(mistake.slug)._repr_html_()
    assert re.findall(r'href="#row-[\w-]+">([\w-]+)<', shown) == [*make, *reading, *related]
    section, _, _ = text_of(CHAPTER).partition(f"(mistake-{mistake.slug})=")[2].partition("counterexample(")
    assert f'counterexample("{mistake.slug}")' in text_of(CHAPTER)
    bare = lambda tex: re.sub(r"\\bigl|\\bigr|\\textstyle|\s", "", tex)  # noqa: E731
    for line in (f"Wrong: ${mistake.wrong}$.", f"Right: ${mistake.right}$, {{eq}}`{mistake.equation}`"):
        assert bare(line) in bare(section), f"the section in {CHAPTER.name} lacks the line of the entry: {line}"


def test_the_right_formulas_get_past_every_weak_test():
    right = Mistake("none", "no mistake", "", "", "", (), (), {})
    assert all(passes(right, weak) for weak in WEAK)
