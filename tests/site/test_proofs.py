"""The proofs: Coq accepts each and assumes what the record says, and the site shows them."""

import re

import answer
import proofs
import prove
import pytest
import statements
from built_site import SITE, soup

AXIOMS = {  # of Coq's real numbers, and nothing else
    "ClassicalDedekindReals.sig_forall_dec",
    "ClassicalDedekindReals.sig_not_dec",
    "Classical_Prop.classic",  # Coq's own logarithm needs it
    "FunctionalExtensionality.functional_extensionality_dep",
}
WORD = re.compile(r"(?<![\w.'%])[^\W\d][\w']*(?:\.\w+)?")
PLAIN = {"Theorem", "R", "Z", "T", "bool", "list", "in", "exp", "ln", "sqrt", "tanh", "sin", "cos"}
PLAIN |= {"s", "n", "m", "V", "K", "sk", "_"}  # what a definition calls its arguments, before :=


def with_coq(test):
    """For `make thorough`: that Coq has read these very proofs, the record says by their digest."""
    return pytest.mark.thorough(pytest.mark.skipif(bool(prove.why_not()), reason=str(prove.why_not()))(test))


def test_the_record_is_of_these_proofs_and_nothing_is_assumed_but_the_real_numbers():
    assert proofs.record()["sources"] == proofs.digest(), "run `make proofs`, which needs Coq"
    assert set(proofs.record()["theorems"]) == set(proofs.theorems())
    for name, assumed in proofs.record()["theorems"].items():
        assert set(assumed.split()) <= AXIOMS, name
    for name in proofs.files():
        text = (proofs.PROOFS / f"{name}.v").read_text(encoding="utf-8")
        leaps = re.findall(r"\b(?:Admitted|admit|Axioms?|Parameters?|Conjecture|give_up|Unset Guard)\b", text)
        assert not leaps, name


def test_the_table_explains_what_comes_from_coq():
    explained = {
        word for code in soup(SITE / "book" / "proofs.html").select("table code") for word in WORD.findall(code.text)
    }
    for theorem in proofs.theorems().values():
        known = statements.bound(theorem.statement) | set(proofs.defined_in(theorem.file)) | PLAIN
        unknown = set(WORD.findall(theorem.statement)) - explained - known - {theorem.name}
        assert not unknown, f"{theorem.where}, {theorem.name}"


def test_every_theorem_named_as_a_formula_has_one():
    named = [t for t in proofs.theorems().values() if t.name.startswith(("eq_", "def_", "step_"))]
    assert not [f"{theorem.where}, line {theorem.line}: {theorem.name}" for theorem in named if not theorem.label]


@with_coq
def test_coq_accepts_every_proof_and_says_what_is_recorded():
    known, found = proofs.record(), prove.prove()
    for key in ("axioms", "uses", "theorems"):
        assert found[key] == known[key], key


def test_the_page_of_proofs_has_them_all_and_leads_to_them():
    page = soup(SITE / "book" / "proofs.html")
    assert {fold["id"] for fold in page.select("details.theorem[id]")} == set(proofs.theorems())
    assert len(page.select("svg.graph a")) > len(proofs.files())
    links = {a["href"] for a in page.select("article a[href^='#']")}  # test_site follows them
    assert {"#axioms", "#softmax.softmax", "#tiles.State", "#products.adjoint"} <= links
    assert "<a" not in statements.as_html("fun weights => weights", "head", "p")  # bound there


def test_all_that_the_answer_page_leads_to_is_proved():
    rows = [row for unit in answer.UNITS.values() for row in unit.backward]
    rows += [row for tables in (answer.OF_A_ROW, answer.OF_RAW_INPUTS) for of in tables.values() for row in of]
    assert {label for row in rows for label in row.labels} <= set(proofs.by_label())
