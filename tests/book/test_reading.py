"""How much a chapter asks of its reader, and that no formula, figure, table, exercise or term of it stands alone."""

import json
import re

import pytest
import yaml
from equations import DISPLAY, ROOT, checks_of, equations
from reading import count, faults, load, order, read, terms, too_early

CHAPTERS = order()
EQUATIONS = {e.label: e for e in equations()}
PARTS = {
    chapter["file"].partition("/")[2]: part["caption"]
    for part in yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))["parts"]
    for chapter in part["chapters"]
}
# Words in the main line, words in all, lines of open code.
BUDGETS = {"The path": (3000, 4000, 220), "Being right": (4000, 5000, 300), "In practice": (4000, 5000, 300)}


@pytest.mark.parametrize("path", [p for p in CHAPTERS if PARTS[p.stem] in BUDGETS], ids=lambda path: path.stem)
def test_a_chapter_is_no_longer_than_its_reader_s_evening(path):
    asked, (words, all_words, lines) = load(path), BUDGETS[PARTS[path.stem]]
    assert asked.main_line <= words, asked
    assert asked.words <= all_words, asked
    assert asked.open_lines <= lines, asked


def test_attention_stands_at_the_beginning_of_the_book():
    before = 0
    for cell in (cell for path in CHAPTERS for cell in read(path) if cell["cell_type"] == "markdown"):
        if any(match[2] == "def-attention" for match in DISPLAY.finditer(cell["source"])):
            break
        before += count(cell["source"])
    assert before <= 1500


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_nothing_in_a_chapter_stands_alone(path):
    assert not list(faults(path))


def test_every_term_is_explained_before_it_is_used():
    assert not list(too_early(CHAPTERS, terms()))


def test_each_formula_has_a_label_of_its_own():
    assert not [e.latex for e in equations() if not re.fullmatch(r"(eq|def|step)-[\w-]+", e.label or "")]
    assert len(EQUATIONS) == len(equations())


def test_the_gradients_of_attention_are_checked_by_differences_and_by_autograd():
    for label in ("eq-softmax-vjp", "eq-linear-vjp", "eq-dV", "eq-dP", "eq-dS", "eq-dQ", "eq-dK", "eq-dX"):
        assert {"differences", "autograd"} <= EQUATIONS[label].checks, label


def test_docstrings_cite_formulas_that_exist():
    for path in (ROOT / "src").rglob("*.py"):
        cited = set(re.findall(r":eq:`([\w-]+)`", path.read_text(encoding="utf-8")))
        assert cited <= set(EQUATIONS), path.name


class TestTheReader:
    """The reader itself must see what is missing: the build warns of what it sees."""

    def chapter(self, tmp_path, *cells):
        path = tmp_path / "chapters" / "01_x.ipynb"
        path.parent.mkdir()
        made = [
            {"cell_type": kind, "id": f"c{i}", "source": source, "metadata": {"tags": tags}, "outputs": outputs}
            for i, (kind, source, tags, *outputs) in enumerate(cells)
        ]
        path.write_text(json.dumps({"cells": made}), encoding="utf-8")
        return path

    @pytest.mark.parametrize(
        ("cells", "fault"),
        [
            ([("markdown", "$$\na\n$$", [])], "no number"),
            ([("markdown", "$$\na\n$$ (eq-a)", [])], "neither checked"),
            ([("markdown", "$$\na\n$$ (step-a)\n\n## Next\n\n$$\nb\n$$ (def-b)", [])], "leads to no checked formula"),
            ([("markdown", "| a |\n|---|\n| b |", [])], "a table has no caption"),
            ([("markdown", "```{exercise} Easy\n:label: ex-a\nDo it.\n```", [])], "no level and time"),
            ([("code", "f()", [], {"data": {"text/html": '<figure class="attnbook">'}})], "a figure has no caption"),
        ],
    )
    def test_it_sees_what_stands_alone(self, tmp_path, monkeypatch, cells, fault):
        path = self.chapter(tmp_path, *cells)
        monkeypatch.setattr("reading.equations", lambda: equations(path.parent))
        assert any(fault in said for _, said in faults(path))

    @pytest.mark.parametrize("display", ["\\begin{align}a\\end{align}", "```{math}\na\n```", "\\[\na\n\\]"])
    def test_it_sees_a_display_that_could_carry_no_label(self, tmp_path, display):
        path = self.chapter(tmp_path, ("markdown", display, []))
        assert [e.label for e in equations(path.parent)] == [None]

    def test_it_sees_a_term_before_its_meaning(self, tmp_path):
        path = self.chapter(tmp_path, ("markdown", "A tile.", []), ("markdown", "A tile is …", []))
        said = [fault for _, _, fault in too_early([path], {"tile": ("01_x", "c1"), "vjp": ("01_x", "c1")})]
        assert said == ["tile is used before 01_x#c1 says what it means", "vjp is not explained here"]


def test_kinds_of_check_and_a_cell_that_only_looks_like_one_is_none():
    both = {"differences", "autograd"}
    assert checks_of("assert close(a, b)") == checks_of("check_adjoint(a, b, c, d)") == {"identity"}
    assert checks_of("check_vjp(f, g, at=x, cotangent=c)") == checks_of("checks.check_jvp(f, g)") == both
    for code in ("x = 1", "assert True", "assert 1 == 1", "assert (a, b)", "print(check_vjp)", "# assert a == b"):
        assert not checks_of(code), code
