"""``{exercises}``: all exercises in a table: level, minutes, what has the answer, and what each is for."""

import re

from docutils import nodes
from docutils.statemachine import StringList
from equations import ROOT
from reading import exercises, order, read
from sphinx.util.docutils import SphinxDirective
from status import table


def of_the_book():
    """Chapter and exercise, for each."""
    for path in order():
        for cell in read(path):
            if cell["cell_type"] == "markdown":
                yield from ((path.stem, one) for one in exercises(cell["source"]))


def purpose(one):
    """Practice, or marks: none for what is printed, nor for a mistake to mend of which ``diagnose`` tells."""
    told = "diagnose" in (one.answer or "") and re.search(r"\b(mend|repair|set right)", one.text, re.IGNORECASE)
    return "practice" if told or not one.answer else "marks"


class Exercises(SphinxDirective):
    def run(self):
        rows = []
        for chapter, one in of_the_book():
            self.env.note_dependency(str(ROOT / "chapters" / f"{chapter}.ipynb"))
            number = int(chapter[:2]) if chapter[:2].isdigit() else "A"  # the only appendix
            title, answer = f"[{one.title}](#{one.label})", one.answer or "solved"
            rows.append((number, title, one.level, one.minutes, answer, purpose(one)))
        lines = table(("Chapter", "Exercise", "Level", "Minutes", "Answer", "For"), rows, right=("Level", "Minutes"))
        box = nodes.container()
        self.state.nested_parse(StringList(lines, "exercises"), self.content_offset, box)
        return [box]


def setup(app):
    app.add_directive("exercises", Exercises)
    return {"parallel_read_safe": True}
