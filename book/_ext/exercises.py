"""``{exercises}``: all exercises of the chapters in a table: level, minutes, and what has the answer."""

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


class Exercises(SphinxDirective):
    def run(self):
        rows = []
        for chapter, one in of_the_book():
            self.env.note_dependency(str(ROOT / "chapters" / f"{chapter}.ipynb"))
            number = int(chapter[:2]) if chapter[:2].isdigit() else "A"  # the only appendix
            rows.append((number, f"[{one.title}](#{one.label})", one.level, one.minutes, one.answer or "solved"))
        lines = table(("Chapter", "Exercise", "Level", "Minutes", "Answer"), rows, right=("Level", "Minutes"))
        box = nodes.container()
        self.state.nested_parse(StringList(lines, "exercises"), self.content_offset, box)
        return [box]


def setup(app):
    app.add_directive("exercises", Exercises)
    return {"parallel_read_safe": True}
