"""``.. room:: attnbook.ops`` documents every module of a room of the package, so that a new file needs no line here."""

from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

PACKAGE_ROOT = Path(__file__).parents[2] / "src"


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


def setup(app):
    app.add_directive("room", Room)
    return {"parallel_read_safe": True}
