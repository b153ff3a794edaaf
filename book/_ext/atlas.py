"""``{atlas} counts``, ``filters`` and ``tables``: the page of incidents, from its table and its record."""

import json
import sys

from docutils import nodes
from equations import ROOT
from sphinx.util.docutils import SphinxDirective

sys.path.append(str(ROOT / "book"))

from evidence.atlas import KINDS
from evidence.atlas.page import counts_table, filters, table

RECORD = ROOT / "book" / "atlas.json"
TABLE = ROOT / "book" / "evidence" / "atlas"
SCRIPT = "atlas.js"


def record():
    """What ``make atlas`` recorded."""
    return json.loads(RECORD.read_text(encoding="utf-8"))


class Atlas(SphinxDirective):
    """One part of the page of incidents."""

    required_arguments = 1

    def run(self):
        for path in (RECORD, *TABLE.glob("*.py")):
            self.env.note_dependency(str(path))
        return getattr(self, f"_{self.arguments[0]}")()

    def _counts(self):
        return [nodes.raw("", counts_table(record()), format="html")]

    def _filters(self):
        return [nodes.raw("", filters(), format="html")]

    def _tables(self):
        """A section for each class, so that each has its place in the contents."""
        known, found = record(), []
        for kind in KINDS:
            section = nodes.section("", nodes.title("", kind), ids=[f"atlas-of-{nodes.make_id(kind)}"])
            section += nodes.raw("", table(kind, known), format="html")
            found.append(section)
        return found


def add_script(app, pagename, templatename, context, doctree):
    if pagename == "book/atlas":
        app.add_js_file(SCRIPT, defer="defer")


def setup(app):
    app.add_directive("atlas", Atlas)
    app.connect("html-page-context", add_script)
    return {"parallel_read_safe": True}
