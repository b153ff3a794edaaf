"""The table of exercises has each of the book's, with what its first line says."""

import re

from exercises import of_the_book, purpose
from reading import CHAPTERS, exercises, order


def test_it_has_each_exercise_of_the_book():
    texts = "".join(path.read_text(encoding="utf-8") for path in CHAPTERS.glob("*.ipynb"))
    labels = re.findall(r":label: (ex-[\w-]+)", texts)
    assert sorted(one.label for _, one in of_the_book()) == sorted(labels)
    assert {chapter for chapter, _ in of_the_book()} == {path.stem for path in order()}


def test_it_says_what_the_first_line_says():
    text = (
        "```{exercise} A title\n:label: ex-a\n*Level 2 · 15 minutes · answered by `diagnose`.* Mend it.\n```\n\nNext."
    )
    (one,) = exercises(text)
    assert one == ("A title", "ex-a", "2", "15", "`diagnose`", " Mend it.\n")
    assert purpose(one) == "practice"
    assert purpose(one._replace(answer="`check_vjp`")) == "marks"
