"""The table of exercises has each of the book's, with what its first line says."""

import re

import pytest
from exercises import EXERCISE, exercises
from reading import CHAPTERS, order


def test_it_has_each_exercise_of_the_book():
    texts = "".join(path.read_text(encoding="utf-8") for path in CHAPTERS.glob("*.ipynb"))
    labels = re.findall(r":label: (ex-[\w-]+)", texts)
    assert sorted(one["label"] for _, one in exercises()) == sorted(labels)
    assert {chapter for chapter, _ in exercises()} == {path.stem for path in order()}


@pytest.mark.parametrize(
    ("more", "answer"),
    [("", "solved"), (" · answered by `diagnose`", "`diagnose`"), (" · answered by a friend", "a friend")],
)
def test_it_says_what_the_first_line_says(more, answer):
    text = f"```{{exercise}} A title\n:label: ex-a\n\n*Level 2 · 15 minutes{more}.* Do it.\n```"
    found = EXERCISE.search(text).groupdict("solved")
    assert found == {"title": "A title", "label": "ex-a", "level": "2", "minutes": "15", "answer": answer}
