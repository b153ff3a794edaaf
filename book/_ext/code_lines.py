"""Beside a formula that the package computes: "code", which opens the lines that do.

A line says so itself, in a comment: ``dV = W.mT @ dO  # eq-dV``, or ``# eq-dV, eq-other: and why``. No table of numbers
is kept. Where NumPy has lines of its own, these come first. A test, test_code_marks, runs every line with a mark.
"""

import ast
import functools
import io
import re
import tokenize
from html import escape
from typing import NamedTuple

from docutils import nodes
from equations import ROOT
from room import PAGES, REPOSITORY, packages, public, revision, rooms

SOURCE = ROOT / "src" / "attnbook"
LABELS = re.compile(r"# ((?:(?:eq|def|step)-[\w-]+(?:, )?)+)(?=$|[:;])", re.MULTILINE)


class Mark(NamedTuple):
    """A line whose comment names a formula: its file in the package, its number, the statement, and its function."""

    label: str
    file: str
    line: int
    code: str
    function: str

    @property
    def module(self):
        return "attnbook." + self.file.removesuffix(".py").replace("/", ".")

    @property
    def home(self):
        """The public function or class that the line is in, or else its module: what the pages of the package have."""
        name = self.function.partition(".")[0]
        return self.module if name.startswith("_") else f"{self.module}.{name}"


@functools.cache
def sources():
    """The text of each file of the package, NumPy's own spines first."""
    paths = sorted(SOURCE.rglob("*.py"), key=lambda path: (not path.stem.startswith("numpy_"), str(path)))
    return {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def marks(texts):
    """Every mark in these texts by its label, in the order of files and lines."""
    found = {}
    for file, text in texts.items():
        for mark in marks_of(text, file) if "# eq-" in text or "# def-" in text else ():
            found.setdefault(mark.label, []).append(mark)
    return found


@functools.cache
def all_marks():
    return marks(sources())


def marks_of(text, file):
    """Those of one file."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and (said := LABELS.match(token.string)):
            line, code = token.start[0], token.line[: token.start[1]].strip()
            around = [f.name for f in functions if f.lineno <= line <= f.end_lineno]
            for label in said[1].split(", "):
                yield Mark(label, file, line, code, ".".join(around))


def has_twin(of_label):
    """Whether NumPy has a line of its own for the formula, so that the others run for other libraries."""
    return any(mark.file.rpartition("/")[2].startswith("numpy_") for mark in of_label)


def page_of(mark):
    """The page of the package that has the function, or its room."""
    if tuple(mark.home.rpartition(".")[::2]) in public():
        return mark.home
    return next(package for package in reversed(packages(mark.module)) if package in rooms())


def shown(app, mark, twin):
    """A line of the package: the code, where it is, for whom it runs, and the page of its room."""
    address = f"{REPOSITORY}/blob/{revision()}/src/attnbook/{mark.file}#L{mark.line}"
    own = mark.file.rpartition("/")[2].startswith("numpy_")
    who = "NumPy: " if own else "other libraries: " if twin else ""
    page = app.builder.get_relative_uri(app.env.docname, PAGES + page_of(mark))
    function = f'<a href="{page}"><code>{mark.function}</code></a>'
    place = f'{who}<a href="{escape(address)}">{mark.file}, line {mark.line}</a>, in {function}'
    return f'<p>{place}</p><pre tabindex="0" role="group" aria-label="The line">{escape(mark.code)}</pre>'


def mark_formulas(app, doctree):
    """Give each formula that lines have a mark for the button and the box that its HTML shows."""
    known = all_marks()
    for block in list(doctree.findall(nodes.math_block)):
        if of_label := known.get(label := block.get("label") or ""):
            twin = has_twin(of_label)
            block["code"] = (
                f'<button type="button" class="runs" popovertarget="code-{label}" aria-label="code: {label}">'
                "code</button>",
                f'<div popover class="theorem" id="code-{label}"><p class="theorem-title">',
                f', what the package runs<button type="button" popovertarget="code-{label}" '
                f'popovertargetaction="hide" aria-label="Close">×</button></p>'
                f"{''.join(shown(app, mark, twin) for mark in of_label)}</div>",
            )


def name_formulas(app, what, name, thing, options, lines):
    """At the end of a docstring: the formulas of the lines below it, but for those that it has named."""
    said = " ".join(lines)
    labels = [label for label, of_label in all_marks().items() if name in [mark.home for mark in of_label]]
    if asked := [f":eq:`{label}`" for label in labels if f":eq:`{label}`" not in said]:
        lines += ["", f"Formulas in its lines: {', '.join(asked)}.", ""]


def setup(app):
    app.connect("autodoc-process-docstring", name_formulas, priority=900)  # after numpydoc, which sorts sections
    app.connect("doctree-read", mark_formulas)
    return {"parallel_read_safe": True}
