"""What a rubric makes of what was judged: costs that tie, mistakes without one, and a forward that has no backward."""

import re
from xml.etree import ElementTree

import pytest

from attnbook.diagnose.causes.registry import TITLES
from attnbook.grade import EXERCISES, Rubric, as_table, feedback, rubric
from attnbook.grade.grading import Row
from attnbook.grade.judging import Judged
from attnbook.reports import graded_html, graded_junit

PARTS = {"O": 2, "dQ": 3, "dK": 3, "dV": 2}


def judged(**causes):
    """Where these parts are wrong, by these causes; the rest is right."""
    parts = {part: "wrong" if part in causes else "right" for part in PARTS}
    return Judged(parts, causes={part: each for part, each in causes.items() if each})


A, B = ("scale-twice",), ("scale-without-root",)


@pytest.mark.parametrize(
    ("came", "costs", "default", "points", "words"),
    [
        (judged(dQ=(A,)), {A[0]: 1}, None, 9, "points: scale-twice costs 1"),
        (judged(dQ=(A, B)), {A[0]: 1, B[0]: 0.5}, None, 9.5, "no case tells scale-twice from scale-without-root; the"),
        (judged(dQ=(A, B), dK=(A,)), {A[0]: 2, B[0]: 1}, None, 8, "points: scale-twice costs 2"),
        (judged(dQ=(A,), dV=(B,)), {A[0]: 1}, 0.5, 8.5, "points: scale-without-root costs 0.5, the default"),
        (judged(dQ=(A,), dV=()), {A[0]: 1}, 0.5, 7, "points: none for dV: no mistake that has a name"),
        (judged(dQ=((*A, *B),)), {A[0]: 1}, None, 7, "points: none for dQ: scale-without-root has no cost"),
        (judged(dQ=((*A, *B),)), {A[0]: 1, B[0]: 1}, None, 8, "points: scale-without-root costs 1"),
        (judged(dQ=(A,)), {A[0]: 9}, None, 7, "points: scale-twice costs 3"),
    ],
)
def test_costs(came, costs, default, points, words):
    mine = Rubric(PARTS, costs, default)
    assert mine.of(came) == points
    assert words in "\n".join(mine.why(came))


def test_every_name_that_a_row_may_have_can_be_given_a_cost(tmp_path):
    lines = "\n".join(f"{slug} = 1" for slug in TITLES)
    (tmp_path / "r.toml").write_text(f"[points]\nO = 2\n[costs]\ndefault = 3\n{lines}\n", encoding="utf-8")
    read = rubric(EXERCISES["attention-vjp"], tmp_path / "r.toml")
    assert (read.default, read.costs) == (3, dict.fromkeys(TITLES, 1))


def test_the_name_that_a_rubric_knows_is_shown_with_the_title():
    sure = Row("a.py", "wrong", 0, 1, {"dQ": "wrong"}, A, (), (), 0.1)
    one = EXERCISES["attention-vjp"]
    for row in (sure, CLASS[1]):
        texts = [feedback(row, one), re.sub("<[^>]*>", "", graded_html([row], one))]
        texts.append(" ".join(as_table([row]).split()))
        texts += [graded_junit([row], one)] if row is sure else []
        for text in texts:
            assert f"{TITLES[A[0]]} (scale-twice)" in text


# --- a page of a class, and JUnit ---------------------------------------------------------------------------------

CLASS = [
    Row("right.py", "right", 10, 10, dict.fromkeys(PARTS, "right"), (), (), ("a note",), 1.0),
    Row("a/a_student_with_a_very_long_name_and_a_number_123456789.py", "wrong", 7, 10, judged(dQ=(A, B)).parts, (),
        ("dQ: in 3 cases: <b>\n&", "points: none"), (), 1.0, (*A, *B)),
    Row("a/same.py", "wrong", 5, 10, dict.fromkeys(PARTS, "not known"), (), ("the call: no",), (), 1.0),
    Row("b/same.py", "not graded", 0, 10, {}, (), ("no answer\nafter 60 s",), (), 1.0),
]  # fmt: skip


def test_a_page_of_a_class():
    text = graded_html(CLASS, EXERCISES["attention-vjp"])
    (table,) = re.findall(r"<table>.*</table>", text, re.DOTALL)
    rows = [re.sub(r"<[^>]+>", " ", row).split() for row in table.split("<tr>")[2:]]
    assert [row[0] for row in rows] == ["right.py", CLASS[1].file[2:], "a/same.py", "b/same.py"]
    assert rows[1][1:] == ["7", "of", "10", "wrong", "dQ"]
    assert "<li>dQ: in 3 cases: &lt;b&gt;\n&amp;</li>" in text
    assert text.index("(scale-twice)") < text.index(">or: ") < text.index("(scale-without-root)")
    assert "Not known: O, dQ, dK, dV." in text
    assert {*re.findall(r'href="#([^"]+)"', text)} == {*re.findall(r'id="([^"]+)"', text)}


def test_a_row_says_what_is_not_known_and_what_was_not_graded():
    one = EXERCISES["attention-vjp"]
    unknown, ungraded = as_table(CLASS).splitlines()[-4:-2]
    assert "not known: O, dQ, dK, dV  the call: no" in unknown
    assert ungraded.split()[1:5] == ["not", "graded", "-", "-"]
    assert feedback(CLASS[3], one).startswith("# attention-vjp: not graded\n")
    for text in (feedback(CLASS[3], one), graded_html([CLASS[3]], one), graded_junit([CLASS[3]], one)):
        assert "0 of 10" not in text


def test_junit_of_a_class():
    suite = ElementTree.fromstring(graded_junit(CLASS, EXERCISES["attention-vjp"]))
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["4", "2", "1"]
    assert [[each.tag for each in test] for test in suite] == [[], ["failure"], ["failure"], ["error"]]
    wrong = suite[1][0]
    assert wrong.get("message") == "wrong, 7 of 10 points, wrong: dQ"
    assert wrong.text.splitlines()[-1] == "points: none"
