"""Read from the notebooks which formula each displays, and which cell checks it. The tests and the site both ask here.

The convention, in a chapter's markdown and code:

- every displayed formula carries a label: ``$$ … $$ (eq-name)``; ``(def-name)`` where it only gives a name;
  ``(step-name)`` for a line on the way to a formula of the same section that is checked;
- the code cell that asserts it begins with ``# checks: eq-name, eq-other``.
"""

import ast
import json
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CHAPTERS = ROOT / "chapters"

DISPLAY = re.compile(r"^\$\$(.+?)\$\$[ ]*(?:\(([\w-]+)\))?[ ]*$", re.MULTILINE | re.DOTALL)
OTHER_DISPLAY = re.compile(r"^\s*(?:\\begin\{(?:equation|align|gather)\b|\\\[|[`:]{3,}\{math\})", re.MULTILINE)
CHECKED = re.compile(r"\A# checks: *([\w, -]+)$", re.MULTILINE)

CHECKS = {
    "check_vjp": ("differences", "autograd"),
    "check_jvp": ("differences", "autograd"),
    "check_adjoint": ("identity",),
    "central_difference": ("differences",),
    "complex_step": ("differences",),
    "autograd_vjp": ("autograd",),
    "autograd_jvp": ("autograd",),
}
COLUMNS = ("differences", "autograd", "identity")


class Equation(NamedTuple):
    """A displayed formula: its label (None where it has none), its chapter, its text, and the cells that check it."""

    label: str | None
    chapter: str
    latex: str
    cells: tuple

    @property
    def is_definition(self):
        return bool(self.label) and self.label.startswith("def-")

    @property
    def is_step(self):
        return bool(self.label) and self.label.startswith("step-")

    @property
    def checks(self):
        """The kinds of check that assert it."""
        return {kind for cell in self.cells for kind in cell.checks}


class Check(NamedTuple):
    """A code cell that says which formulas it checks: its id, their labels, and the kinds of check that it makes."""

    cell: str
    labels: tuple
    checks: frozenset


def equations(chapters=CHAPTERS):
    """Every displayed formula of every chapter, in order."""
    return [equation for path in sorted(chapters.glob("*.ipynb")) for equation in _of_notebook(path)]


def check_cells(path):
    """Every code cell of a notebook that says what it checks."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [
        Check(cell["id"], labels, checks_of(source))
        for cell in cells
        if cell["cell_type"] == "code" and (labels := checked_labels(source := "".join(cell["source"])))
    ]


def checked_labels(source):
    """The labels that a code cell's first line claims to check."""
    match = CHECKED.search(source)
    return tuple(label.strip() for label in match.group(1).split(",") if label.strip()) if match else ()


def _of_notebook(path):
    known = check_cells(path)
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "markdown":
            source = "".join(cell["source"])
            for match in DISPLAY.finditer(source):
                latex, label = match.groups()
                of_it = tuple(check for check in known if label in check.labels)
                yield Equation(label, path.stem, latex.strip(), of_it)
            if OTHER_DISPLAY.search(source):  # a display that could carry no label we read
                yield Equation(None, path.stem, source, ())


def cannot_fail(assertion):
    """Whether it looks at nothing that the cell has made: a constant, or a tuple, which is true whatever is in it."""
    return isinstance(assertion.test, ast.Tuple) or not any(isinstance(n, ast.Name) for n in ast.walk(assertion.test))


def checks_of(source):
    """Which kinds of check a cell makes, read from its syntax tree. An assertion that cannot fail does not count."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assert) and not cannot_fail(node):
            found.add("identity")
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            found.update(CHECKS.get(name, ()))
    return frozenset(found)
