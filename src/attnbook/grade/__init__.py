"""Grade: many submissions of one exercise, each in a process of its own, judged here.

Chapter: :doc:`/chapters/08_checking`.

``python -m attnbook grade FILES --exercise NAME`` is this from a shell; a course's repository uses the pytest plugin
``attnbook.pytest``.
"""

from attnbook.grade.exercises import BOOK, EXERCISES, Exercise, exercise
from attnbook.grade.grading import Row, grade
from attnbook.grade.rubric import Rubric, rubric
from attnbook.grade.table import as_csv, as_json, as_table, feedback, pages

__all__ = [
    "BOOK",
    "EXERCISES",
    "Exercise",
    "Row",
    "Rubric",
    "as_csv",
    "as_json",
    "as_table",
    "exercise",
    "feedback",
    "grade",
    "pages",
    "rubric",
]
