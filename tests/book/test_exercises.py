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


def asked(first, text, fence="```", space=""):
    (one,) = exercises(
        f"{fence}{{exercise}} A title\n:label: ex-a\n{space}*Level 2 · {first}.* {text}\n{fence}\n\nNext."
    )
    return one


def test_it_says_what_the_first_line_says():
    for fence, space in (("```", ""), ("````", "\n"), (":::", "")):
        one = asked("15 minutes · answered by a friend", "Do it.", fence, space)
        assert one == ("A title", "ex-a", "2", "15", "a friend", " Do it.\n")
    (one,) = exercises("```{exercise} A title\n:class: easy\n\nDo it.\n```")
    assert one == ("A title", None, None, None, None, "Do it.\n")


@pytest.mark.parametrize(
    ("first", "text", "what"),
    [
        ("15 minutes", "Derive it.", "practice"),
        ("15 minutes · answered by `diagnose`", "Mend the line.", "practice"),
        ("15 minutes · answered by `diagnose`", "Write the backward; what does it recommend?", "marks"),
        ("15 minutes · answered by `check_vjp`", "Mend the line.", "marks"),
    ],
)
def test_what_an_exercise_is_for(first, text, what):
    assert purpose(asked(first, text)) == what
