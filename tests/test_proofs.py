"""The proofs: Coq accepts each, assumes what the record says, and refuses the same theorems with a mistake in them."""

import json
import re
import stat

import proofs
import prove
import pytest
from equations import equations

AXIOMS = {  # of Coq's real numbers, and nothing else
    "ClassicalDedekindReals.sig_forall_dec",
    "ClassicalDedekindReals.sig_not_dec",
    "FunctionalExtensionality.functional_extensionality_dep",
}
PLANTED = (  # a theorem, what stands in its statement, and the mistake put in its place
    ("eq_softmax_vjp", "dP i j - ∑", "dP i j + ∑"),
    ("eq_softmax_jvp", "P i j * (tS", "(1 - P i j) * (tS"),
    ("eq_matmul_vjp", "A^T × dY", "A × dY"),
    ("eq_dV", "P^T × dO", "P × dO"),
    ("eq_dP", "dO × V^T", "dO × V"),
    ("eq_dS", "P i j * (dP", "(1 - P i j) * (dP"),
    ("eq_dQ", "scale • (dS × K)", "dS × K"),
    ("eq_dK", "dS^T × Q", "dS × Q"),
)
with_coq = pytest.mark.skipif(bool(prove.why_not()), reason=str(prove.why_not()))


@pytest.fixture(scope="module")
def found():
    """What Coq says of the proofs as they stand."""
    return prove.prove()


def test_the_record_is_of_these_proofs():
    assert proofs.record()["sources"] == proofs.digest(), "run `make proofs`, which needs Coq"
    assert set(proofs.record()["theorems"]) == set(proofs.theorems())


def test_nothing_is_assumed_but_the_real_numbers():
    for name, assumed in proofs.record()["theorems"].items():
        assert set(assumed.split()) <= AXIOMS, name
    for name in proofs.files():
        text = (proofs.PROOFS / f"{name}.v").read_text(encoding="utf-8")
        leaps = re.findall(r"\b(?:Admitted|admit|Axioms?|Parameters?|Conjecture|give_up|Unset Guard)\b", text)
        assert not leaps, name


def test_every_theorem_named_as_a_formula_has_one():
    labels = {e.label for e in equations()}
    for theorem in proofs.theorems().values():
        if theorem.name.startswith(("eq_", "def_", "step_")):
            assert theorem.label in labels, (
                f"{theorem.where}, line {theorem.line}: no formula has the label of {theorem.name}"
            )


@with_coq
def test_coq_accepts_every_proof_and_says_what_is_recorded(found):
    known = proofs.record()
    for key in ("axioms", "theorems", "uses"):
        assert found[key] == known[key], key


@with_coq
@pytest.mark.parametrize(("name", "right", "wrong"), PLANTED, ids=[name for name, _, _ in PLANTED])
def test_coq_refuses_a_planted_mistake(found, tmp_path, name, right, wrong):
    theorem = proofs.theorems()[name]
    text = (proofs.PROOFS / f"{theorem.file}.v").read_text(encoding="utf-8")
    start = text.index(theorem.statement)
    end = text.index("Qed.", start)
    assert theorem.statement.count(right) == 1
    spoiled = (
        text[:start] + theorem.statement.replace(right, wrong) + text[start + len(theorem.statement) : end] + "Qed.\n"
    )
    (tmp_path / "spoiled.v").write_text(spoiled, encoding="utf-8")
    command = ["coqc", *prove.QUIET, "-Q", str(prove.WORK), "attnbook", "spoiled.v"]
    with pytest.raises(prove.ProofError, match=r"line \d+") as refused:
        prove.told(command, tmp_path)
    line = int(re.search(r"line (\d+)", str(refused.value))[1])
    assert line >= theorem.line + theorem.statement.count("\n"), refused.value  # in its proof, not for its spelling


def test_a_theorem_without_words_is_named(tmp_path):
    (tmp_path / "x.v").write_text("Theorem eq_x : True.\nProof. exact I. Qed.\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"x\.v: no comment .* the theorem eq_x"):
        proofs.theorems(tmp_path)


def test_files_in_a_circle_are_named(tmp_path):
    for name, other in ("ab", "ba"):
        (tmp_path / f"{name}.v").write_text(f"From attnbook Require Import {other}.\n", encoding="utf-8")
    with pytest.raises(ValueError, match="circle: a, b"):
        proofs.files(tmp_path)


class TestWithoutCoq:
    """What a reader is told, in one line, where the proofs cannot run."""

    def coqc(self, folder, *answers):
        """A program of that name that gives these answers to --version and -where."""
        path = folder / "coqc"
        path.write_text(
            '#!/bin/sh\n[ "$1" = --version ] && echo "{}" || echo "{}"\n'.format(*answers), encoding="utf-8"
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(folder)

    def test_none(self, tmp_path):
        assert prove.why_not(str(tmp_path)) == (
            "the proofs need Coq, which is not installed: apt-get install coq libcoq-coquelicot"
        )

    @pytest.mark.parametrize(
        ("answer", "came"), [("version 8.12.0", "8.12"), ("nothing", "a version without a number")]
    )
    def test_an_old_one(self, tmp_path, answer, came):
        folder = self.coqc(tmp_path, answer, tmp_path)
        assert prove.why_not(folder) == f"the proofs need Coq 8.16 or later, got {came}"

    def test_no_coquelicot(self, tmp_path):
        folder = self.coqc(tmp_path, "version 8.20.1", tmp_path)
        assert prove.why_not(folder).startswith("the proofs need Coquelicot, which Coq does not find")
        (tmp_path / "user-contrib" / "Coquelicot").mkdir(parents=True)
        assert prove.why_not(folder) is None

    def test_the_record_is_plain(self):
        assert json.loads(proofs.RECORD.read_text(encoding="utf-8"))["prover"]
