"""The table of exercises has each of the book's, with what its first line says."""

import re

import pytest
from exercises import of_the_book, purpose
from reading import CHAPTERS, exercises, order


def test_it_has_each_exercise_of_the_book():
    texts = "".join(path.read_text(encoding="utf-8") for path in CHAPTERS.glob("*.ipynb"))
    labels = re.findall(r":label: (ex-[\w-]+)", texts)
    assert sorted(one.label for _, one in of_the_book()) == sorted(labels)
    assert {chapter for chapter, _ in of_the_book()} == {path.stem for path in order()}


@pytest.mark.parametrize("fence", ["```", "````", ":::"])
@pytest.mark.parametrize("space", ["", "\n"])
@pytest.mark.parametrize(
    ("more", "answer"),
    [("", None), (" · answered by `diagnose`", "`diagnose`"), (" · answered by a friend", "a friend")],
)
def test_it_says_what_the_first_line_says(more, answer, space, fence):
    text = f"{fence}{{exercise}} A title\n:label: ex-a\n{space}*Level 2 · 15 minutes{more}.* Do it.\n{fence}\n\nNext."
    assert list(exercises(text)) == [("A title", "ex-a", "2", "15", answer, " Do it.\n")]


def test_what_is_not_said_is_none():
    (one,) = exercises("```{exercise} A title\n:class: easy\n\nDo it.\n```")
    assert one == ("A title", None, None, None, None, "Do it.\n")


@pytest.mark.parametrize(
    ("more", "text", "what"),
    [
        ("", "Derive it.", "practice"),
        (" · answered by `diagnose`", "Mend the line.", "practice"),
        (" · answered by `diagnose`", "Write the backward; what does it recommend?", "marks"),
        (" · answered by `check_vjp`", "Mend the line.", "marks"),
    ],
)
def test_what_an_exercise_is_for(more, text, what):
    (one,) = exercises(f"```{{exercise}} A title\n:label: ex-a\n*Level 2 · 15 minutes{more}.* {text}\n```")
    assert purpose(one) == what
