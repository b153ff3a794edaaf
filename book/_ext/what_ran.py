"""``{what-ran} checks`` and ``{what-ran} libraries``: which test looked at which quantity, from the record of a run."""

import json

from docutils import nodes
from docutils.statemachine import StringList
from equations import ROOT
from sphinx.util.docutils import SphinxDirective

RECORD = ROOT / "book" / "coverage.json"


def record():
    """The versions and the cells that ``make coverage`` wrote."""
    return json.loads(RECORD.read_text(encoding="utf-8"))


class WhatRan(SphinxDirective):
    """A table of the record: a row for each quantity, a column for each check, library or dtype."""

    required_arguments = 1

    def run(self):
        self.env.note_dependency(str(RECORD))
        known = record()
        columns, rows = known["columns"].get(self.arguments[0], []), known["rows"]
        lines, notes = [], {}
        for title, quantities in rows.items():
            reasons = known.get("why", {})
            shown = [c for c in columns if any(c in {**known["cells"][q], **reasons.get(q, {})} for q in quantities)]
            if not shown:
                continue
            lines += [f"| {title} | {' | '.join(shown)} |", "|---|" + ":-:|" * len(shown)]
            for quantity in quantities:
                why = reasons.get(quantity, {})
                marks = [mark(known["cells"][quantity].get(column), why.get(column), notes) for column in shown]
                lines.append(f"| {quantity} | {' | '.join(marks)} |")
            lines.append("")
        lines += [f"{number}. {why}." for why, number in notes.items()]
        box = nodes.container(classes=["coverage", "what-ran"])
        self.state.nested_parse(StringList(lines, "what-ran"), self.content_offset, box)
        return [box]


class WhatRanWith(SphinxDirective):
    """``{what-ran-with}``: the versions that the recorded run used, and what it had to skip."""

    def run(self):
        self.env.note_dependency(str(RECORD))
        known = record()
        skipped = {state for cells in known["cells"].values() for state in cells.values() if state != "passed"}
        versions = ", ".join(f"{name} {version}" for name, version in known["versions"].items())
        lines = [f"Recorded with {versions}."]
        if skipped:
            lines += ["", f"Not run: {'; '.join(sorted(skipped))}."]
        box = nodes.container()
        self.state.nested_parse(StringList(lines, "what-ran-with"), self.content_offset, box)
        return box.children


def mark(state, why=None, notes=None):
    """What a cell shows: yes, not run; where no test claims to look, why in a word with a note's number, or a dash."""
    if state is None and why:
        return f"{why.partition(':')[0]} ({notes.setdefault(why, len(notes) + 1)})"
    return "–" if state is None else "yes" if state == "passed" else "not run"


def setup(app):
    app.add_directive("what-ran", WhatRan)
    app.add_directive("what-ran-with", WhatRanWith)
    return {"parallel_read_safe": True}
