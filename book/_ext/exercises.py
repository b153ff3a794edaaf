"""``{exercises}``: all exercises of the chapters in a table: level, minutes, and what has the answer."""

import re

from docutils import nodes
from docutils.statemachine import StringList
from equations import ROOT
from reading import order, read
from sphinx.util.docutils import SphinxDirective
from status import table

EXERCISE = re.compile(
    r"\{exercise\} (?P<title>[^\n]+)\n:label: (?P<label>\S+)\n\s*"
    r"\*Level (?P<level>\d) · (?P<minutes>\d+) minutes(?: · answered by (?P<answer>[^*]+))?\.\*"
)
COLUMNS = ("level", "minutes", "answer")


def exercises():
    """Chapter, and what the exercise's first lines say of it."""
    for path in order():
        for cell in read(path):
            if cell["cell_type"] == "markdown":
                for match in EXERCISE.finditer(cell["source"]):
                    yield path.stem, match.groupdict("solved")


class Exercises(SphinxDirective):
    def run(self):
        rows = []
        for chapter, one in exercises():
            self.env.note_dependency(str(ROOT / "chapters" / f"{chapter}.ipynb"))
            number = int(chapter[:2]) if chapter[:2].isdigit() else "A"  # the only appendix
            rows.append((number, f"[{one['title']}](#{one['label']})", *map(one.get, COLUMNS)))
        lines = table(("Chapter", "Exercise", *map(str.capitalize, COLUMNS)), rows, right=("Level", "Minutes"))
        box = nodes.container()
        self.state.nested_parse(StringList(lines, "exercises"), self.content_offset, box)
        return [box]


def setup(app):
    app.add_directive("exercises", Exercises)
    return {"parallel_read_safe": True}
