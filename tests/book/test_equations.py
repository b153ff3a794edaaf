"""Every displayed formula is a definition, or a cell checks it, or it is a step on the way to one that is checked."""

import json
import re

import pytest
from equations import CHAPTERS, ROOT, check_cells, checks_of, equations

EQUATIONS = equations()
NOTEBOOKS = sorted(CHAPTERS.glob("*.ipynb"))


def notebook(*cells):
    """The text of a small notebook, for testing the reader itself."""
    made = [{"cell_type": kind, "id": f"c{i}", "source": source} for i, (kind, source) in enumerate(cells)]
    return json.dumps({"cells": made})


@pytest.mark.parametrize("chapter", [path.stem for path in NOTEBOOKS])
def test_every_formula_is_a_definition_a_step_or_checked(chapter):
    of_chapter = [e for e in EQUATIONS if e.chapter == chapter]
    assert of_chapter
    assert not [e.latex for e in of_chapter if not e.label]
    assert not [e.label for e in of_chapter if not re.fullmatch(r"(eq|def|step)-[\w-]+", e.label)]
    assert not [e.label for e in of_chapter if not (e.is_definition or e.is_step or e.checks)]


def test_no_label_is_used_twice():
    labels = [e.label for e in EQUATIONS]
    assert sorted(labels) == sorted(set(labels))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_check_names_formulas_of_its_chapter_and_checks_them(path):
    here = {e.label for e in EQUATIONS if e.chapter == path.stem}
    for check in check_cells(path):
        assert set(check.labels) <= here, check.cell
        assert check.checks, f"cell {check.cell} claims a check and checks nothing"


def test_the_gradients_of_attention_are_checked_by_differences_and_by_autograd():
    by_label = {e.label: e for e in EQUATIONS}
    for label in ("eq-softmax-vjp", "eq-linear-vjp", "eq-dV", "eq-dP", "eq-dS", "eq-dQ", "eq-dK", "eq-dX"):
        assert {"differences", "autograd"} <= by_label[label].checks, label


def test_docstrings_cite_formulas_that_exist():
    known = {e.label for e in EQUATIONS}
    for path in (ROOT / "src").rglob("*.py"):
        cited = set(re.findall(r":eq:`([\w-]+)`", path.read_text(encoding="utf-8")))
        assert cited <= known, path.name


class TestTheReader:
    """The reader itself must see what is missing; a check that has never failed shows nothing."""

    def read(self, tmp_path, *cells):
        (tmp_path / "01_x.ipynb").write_text(notebook(*cells), encoding="utf-8")
        return equations(tmp_path)

    def test_it_sees_a_check_and_that_none_is_there(self, tmp_path):
        shown = ("markdown", "x\n\n$$\na = b\n$$ (eq-a)\n\ny\n\n$$b$$")
        found = self.read(tmp_path, shown, ("code", "# checks: eq-a\nassert close(a, b)"))
        assert [(e.label, e.checks) for e in found] == [("eq-a", {"identity"}), (None, set())]

    @pytest.mark.parametrize("display", ["\\begin{align}a\\end{align}", "```{math}\na\n```", "\\[\na\n\\]"])
    def test_it_sees_displays_that_would_escape_it(self, tmp_path, display):
        assert [e.label for e in self.read(tmp_path, ("markdown", display))] == [None]

    def test_kinds_of_check_and_a_cell_that_only_looks_like_one_is_none(self):
        both = {"differences", "autograd"}
        assert checks_of("assert close(a, b)") == checks_of("check_adjoint(a, b, c, d)") == {"identity"}
        assert checks_of("check_vjp(f, g, at=x, cotangent=c)") == checks_of("checks.check_jvp(f, g)") == both
        for code in ("x = 1", "assert True", "assert 1 == 1", "assert (a, b)", "print(check_vjp)", "# assert a == b"):
            assert not checks_of(code), code
