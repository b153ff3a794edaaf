"""What a rubric makes of what was judged: costs that tie, mistakes without one, and a forward that has no backward."""

import csv
import io
import json
import re
from xml.etree import ElementTree

import pytest
from attentions.cs336 import TILED

from attnbook.diagnose.causes.registry import TITLES
from attnbook.grade import EXERCISES, Rubric, as_csv, as_json, as_table, feedback, grade, rubric
from attnbook.grade.grading import Row
from attnbook.grade.judging import Judged
from attnbook.grade.table import WRAP
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
        (judged(dQ=(A, B)), {B[0]: 2}, None, 8, "points: scale-without-root costs 2"),
        (judged(dQ=(A, B), dK=(A,)), {A[0]: 2, B[0]: 1}, None, 8, "points: scale-twice costs 2"),
        (judged(dQ=(A,), dV=(B,)), {A[0]: 1}, None, 7, "points: none for dV: scale-without-root has no cost"),
        (judged(dQ=(A,), dV=(B,)), {A[0]: 1}, 0.5, 8.5, "points: scale-without-root costs 0.5, the default"),
        (judged(dQ=(A,), dV=()), {A[0]: 1}, 0.5, 7, "points: none for dV: no mistake that has a name"),
        (judged(dQ=((*A, *B),)), {A[0]: 1}, None, 7, "points: none for dQ: scale-without-root has no cost"),
        (judged(dQ=((*A, *B),)), {A[0]: 1, B[0]: 1}, None, 8, "points: scale-without-root costs 1"),
        (judged(dQ=((*A, *B),)), {A[0]: 2, B[0]: 2}, None, 7, "points: scale-without-root costs 1"),
        (judged(dQ=(A,)), {A[0]: 9}, None, 7, "points: scale-twice costs 3"),
    ],
)
def test_costs(came, costs, default, points, words):
    mine = Rubric(PARTS, costs, default)
    assert mine.of(came) == points
    assert words in "\n".join(mine.why(came))


def test_without_costs_there_is_nothing_to_say():
    mine = Rubric(PARTS)
    assert (mine.of(judged(dQ=(A, B))), mine.why(judged(dQ=(A, B)))) == (7, [])


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


def test_a_name_with_a_typo_has_a_hint_and_no_list_of_all(tmp_path):
    (tmp_path / "r.toml").write_text("[points]\nO = 2\n[costs]\nds-men = 3\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"names of known mistakes.*got 'ds-men' \(is it ds-mean\?\)") as raised:
        rubric(EXERCISES["attention-vjp"], tmp_path / "r.toml")
    assert len(str(raised.value)) < 150


# --- a forward that has no backward -------------------------------------------------------------------------------

FORWARD, _, BACKWARD = TILED.partition("        L, Q, K, V, O = ctx.saved_tensors\n")
RAISES = FORWARD + "        raise NotImplementedError('later')\n"


def rows_of(folder, exercise, texts, points):
    files = [folder / f"{name}.py" for name in texts]
    for file, text in zip(files, texts.values(), strict=True):
        file.write_text(text, encoding="utf-8")
    return dict(zip(texts, grade(files, exercise, rubric=Rubric(points)), strict=True))


@pytest.fixture(scope="module")
def of_cs336(tmp_path_factory):
    texts = {
        "raises": RAISES,
        "none": FORWARD + "        return None, None, None, None\n",
        "sometimes": TILED.replace(
            "O = ctx.saved_tensors\n", "O = ctx.saved_tensors\n        assert not ctx.is_causal\n"
        ),
        "wrong": RAISES.replace("= o / z,", "= 2 * o / z,"),
    }
    return rows_of(
        tmp_path_factory.mktemp("cs336"), "cs336-flash-torch", texts, {"O": 4, "dQ": 2, "dK": 2, "dV": 1, "L": 1}
    )


@pytest.mark.parametrize(
    ("name", "points", "words"),
    [
        (
            "raises",
            5,
            'dQ, dK, dV: in 25 cases, first in "plain": the backward raised NotImplementedError: later (line',
        ),
        ("none", 5, 'dQ, dK, dV: in 25 cases, first in "plain": None, expected an array'),
        ("sometimes", 5, 'first in "causal": the backward raised AssertionError'),
        ("wrong", 1, 'O: in 25 cases, first in "plain": relative error 1'),
    ],
)
def test_a_right_forward_counts_where_the_backward_is_missing(of_cs336, name, points, words):
    row = of_cs336[name]
    assert (row.verdict, row.points, row.wrong[-3:]) == ("wrong", points, ("dQ", "dK", "dV"))
    assert words in "\n".join(row.why)
    assert ("O: right in all cases, so it counts" in row.why) == (points > 1)


HEAD = """
import numpy as np


def head(Q, K, V, dO):
    S = Q @ K.mT * Q.shape[-1] ** -0.5
    P = np.exp(S - S.max(axis=-1, keepdims=True))
    P /= P.sum(axis=-1, keepdims=True)
    return {}
"""


def test_a_head_without_all_gradients(tmp_path):
    results = {"alone": "P @ V", "none": "P @ V, None, None, None", "dv": "P @ V, None, None, P.mT @ dO"}
    texts = {name: HEAD.format(each) for name, each in results.items()}
    rows = rows_of(tmp_path, "attention-vjp", texts, {"O": 4, "dQ": 2, "dK": 2, "dV": 1})
    assert [row.points for row in rows.values()] == [4, 4, 5]
    assert rows["dv"].wrong == ("dQ", "dK")


SOLVED = HEAD.replace(
    "    return {}",
    """    scale = Q.shape[-1] ** -0.5
    dP = dO @ V.mT
    dS = P * (dP - (P * dP).sum(axis=-1, keepdims=True))
    return P @ V, scale * dS @ K, scale * dS.mT @ Q, P.mT @ dO""",
)
NOT_TRANSPOSED = SOLVED.replace("dS.mT @ Q", "dS @ Q")


def test_a_mistake_that_raises_costs_no_more_than_what_it_spoils(tmp_path):
    texts = {
        "alone": NOT_TRANSPOSED,
        "another raises too": NOT_TRANSPOSED.replace("    dP", "    assert Q.ndim < 4\n    dP"),
        "with another": NOT_TRANSPOSED.replace("scale * dS @ K", "dS @ K"),
        "it writes": NOT_TRANSPOSED.replace("    dP", "    dO *= 2\n    dO /= 2\n    dO += 1e-3\n    dP"),
        "no name": SOLVED.replace("P.mT @ dO", "np.linalg.inv(P) @ dO"),
    }
    rows = rows_of(tmp_path, "attention-vjp", texts, PARTS)
    assert {name: row.points for name, row in rows.items()} == dict.fromkeys(texts, 0) | {"alone": 7, "with another": 4}
    assert "O, dQ, dV: right where the call returned, and dk-not-transposed" in "\n".join(rows["alone"].why)
    known = rows["another raises too"]
    assert (known.mistakes, known.parts["O"]) == (("dk-not-transposed",), "not known")
    assert "What is not known earns nothing." in feedback(known, EXERCISES["attention-vjp"])
    assert "earns nothing" not in feedback(rows["alone"], EXERCISES["attention-vjp"])


IN_TORCH = """
import torch


class Head(torch.autograd.Function):
    @staticmethod
    def forward(ctx, Q, K, V):
        P = (Q @ K.mT * Q.shape[-1] ** -0.5).softmax(-1)
        ctx.save_for_backward(Q, K, V, P)
        return P @ V

    @staticmethod
    def backward(ctx, dO):
        Q, K, V, P = ctx.saved_tensors
        dP = dO @ V.mT
        dS = P * (dP - (P * dP).sum(-1, keepdim=True)) * Q.shape[-1] ** -0.5
        return dS @ K, dS @ Q, P.mT @ dO
"""


def test_so_in_the_backward_of_torch(tmp_path):
    texts = {"alone": IN_TORCH, "later": IN_TORCH.replace("        dP =", "        assert Q.ndim < 4\n        dP =")}
    rows = rows_of(tmp_path, "attention-torch", texts, PARTS)
    assert [row.points for row in rows.values()] == [7, 2], rows


# --- the table ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["plain words " * 20, "a_name_that_is_longer_than_one_line_of_the_column_is_wide_anyhow " * 9]
)
def test_the_table_cuts_no_word_and_the_other_formats_cut_nothing(text):
    text += "end"
    row = Row("a.py", "wrong", 0, 1, {"O": "wrong"}, (), (text,), (), 0.1)
    head, *lines = as_table([row]).splitlines()
    shown = [line[head.index("why") :] for line in lines[: lines.index("")]]
    assert len(shown) <= WRAP.max_lines
    assert shown[-1].endswith("…")
    words = " ".join(shown).removesuffix("…").split()
    assert words == text.split()[: len(words)]
    assert next(csv.DictReader(io.StringIO(as_csv([row]))))["why"] == text
    assert json.loads(as_json([row]))[0]["why"] == [text]
    assert text in feedback(row, EXERCISES["softmax"]).replace("\\", "")


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


def test_an_exception_is_shown_with_its_line_and_no_other_reason(tmp_path):
    texts = {"long": SOLVED.replace("    scale", f"    raise ValueError('{'size ' * 40}')\n    scale")}
    why = "\n".join(rows_of(tmp_path, "attention-vjp", texts, PARTS)["long"].why)
    assert ("size " * 40).strip() + " (line 9)" in why
    assert "(it raised)" in why
    assert "something else" not in why


def test_its_table_fits_a_phone(browser):
    tab = browser.new_page(viewport={"width": 390, "height": 800})
    tab.set_content(graded_html(CLASS, EXERCISES["cs336-flash-torch"]))
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    tab.close()


def test_junit_of_a_class():
    suite = ElementTree.fromstring(graded_junit(CLASS, EXERCISES["attention-vjp"]))
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["4", "2", "1"]
    assert [[each.tag for each in test] for test in suite] == [[], ["failure"], ["failure"], ["error"]]
    wrong = suite[1][0]
    assert wrong.get("message") == "wrong, 7 of 10 points, wrong: dQ"
    assert wrong.text.splitlines()[-1] == "points: none"
