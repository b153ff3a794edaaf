"""``.. room:: attnbook.ops`` documents every module of a room of the package, so that a new file needs no line here."""

from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective

PACKAGE_ROOT = Path(__file__).parents[2] / "src"
LONGEST_VALUE = 120  # of a constant: a table of arrays is for its source, one click away
MOVED = {  # where it was: links to there still arrive
    "attnbook.diagnose.steps.": "attnbook.diagnose.mistakes.",
    "attnbook.diagnose.faults.IGNORED": "attnbook.diagnose.report.IGNORED",
    "attnbook.diagnose.faults.KNOWN": "attnbook.diagnose.report.KNOWN",
    "attnbook.diagnose.links.": "attnbook.diagnose.report.",
}


class Room(SphinxDirective):
    """The docstring of a package, then all public members of each of its modules."""

    required_arguments = 1

    def run(self):
        package = self.arguments[0]
        folder = PACKAGE_ROOT.joinpath(*package.split("."))
        self.env.note_dependency(str(folder))
        lines = [f".. automodule:: {package}", "   :no-members:", ""]
        for module in sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")):
            lines += [f".. automodule:: {package}.{module}", "   :members:", ""]
        box = nodes.container()
        self.state.nested_parse(StringList(lines, "room"), self.content_offset, box)
        return box.children


def leave_out_long_values(app, domain, objtype, content):
    for signature in content.parent.findall(addnodes.desc_signature):
        for note in list(signature.findall(addnodes.desc_annotation)):
            if len(note.astext()) > LONGEST_VALUE:
                signature.remove(note)


def keep_old_addresses(app, domain, objtype, content):
    for signature in content.parent.findall(addnodes.desc_signature):
        for now, before in MOVED.items():
            old = [before + name.removeprefix(now) for name in signature["ids"] if name.startswith(now)]
            signature["ids"] += [name for name in old if name not in signature["ids"]]


def leave_out_field_numbers(app, what, name, obj, options, lines):
    """Python says of a field without a docstring which number it has."""
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()


def setup(app):
    app.add_directive("room", Room)
    app.connect("object-description-transform", leave_out_long_values)
    app.connect("object-description-transform", keep_old_addresses)
    app.connect("autodoc-process-docstring", leave_out_field_numbers)
    return {"parallel_read_safe": True}
