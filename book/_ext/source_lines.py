"""``{literalinclude}`` with a ``:pyobject:`` shows the lines that run, less docstring and hints, and links to it.

Below any lines of the package: the formulas that their comments name.
"""

import ast
import textwrap
from pathlib import Path

from code_lines import LABELS
from docutils import nodes
from sphinx import addnodes
from sphinx.directives.code import LiteralInclude

PACKAGE_ROOT = Path(__file__).parents[2] / "src"
WIDTH = 100


class SourceLines(LiteralInclude):
    """The package's own lines in a chapter. Everything Sphinx's directive can do, it still does."""

    def run(self):
        shown = super().run()
        path = Path(self.env.relfn2path(self.arguments[0])[1])
        if "pyobject" in self.options and path.is_relative_to(PACKAGE_ROOT):
            for block in (b for node in shown for b in node.findall(nodes.literal_block)):
                code = without_hints(without_docstring(block.astext()))
                block.rawsource, block.children = code, []
                block += nodes.Text(code)
            if not self.options["pyobject"].startswith("_"):  # the API page lists what is public
                shown.append(self._link(path))
        text = "\n".join(block.astext() for node in shown for block in node.findall(nodes.literal_block))
        named = {label: None for said in LABELS.findall(text) for label in said.split(", ")}
        if named and path.is_relative_to(PACKAGE_ROOT):
            shown.append(self._formulas(named))
        return shown

    def _formulas(self, labels):
        found = nodes.paragraph("", "", nodes.Text("Formulas in these lines: "), classes=["formulas-of"])
        for place, label in enumerate(labels):
            asked = {"refdomain": "math", "reftype": "eq", "reftarget": label, "refdoc": self.env.docname}
            found += [nodes.Text(", " * bool(place)), addnodes.pending_xref("", nodes.literal("", label), **asked)]
        return found

    def _link(self, path):
        module = ".".join(path.relative_to(PACKAGE_ROOT).with_suffix("").parts)
        name = self.options["pyobject"].partition(".")[0]  # a method is documented with its class
        link = addnodes.pending_xref(
            "",
            nodes.literal("", f"{module}.{self.options['pyobject']}"),
            refdomain="py",
            reftype="obj",
            reftarget=name,
            refdoc=self.env.docname,
            refexplicit=True,
            refwarn=True,
            **{"py:module": module},
        )
        return nodes.paragraph("", "", nodes.Text("The package runs these lines: "), link, classes=["source-of"])


def without_docstring(code):
    """The code of one function or class, less its docstring."""
    definition = ast.parse(textwrap.dedent(code)).body[0]
    first = definition.body[0]
    if not ast.get_docstring(definition) or len(definition.body) == 1:
        return code
    lines = code.splitlines()
    del lines[first.lineno - 1 : first.end_lineno]
    while not lines[first.lineno - 1].strip():
        del lines[first.lineno - 1]
    return "\n".join(lines)


def without_hints(code):
    """The same, each signature as it reads without types."""
    lines = code.splitlines()
    found = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef))
    for function in sorted(found, key=lambda node: -node.lineno):
        start, end = function.lineno - 1, function.body[0].lineno - 1
        function.returns, function.body, function.decorator_list = None, [], []
        for argument in ast.walk(function.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        indent = " " * function.col_offset
        signature = ast.unparse(function).replace("'", '"')
        lines[start:end] = textwrap.wrap(signature, WIDTH, initial_indent=indent, subsequent_indent=indent + " " * 8)
    return "\n".join(lines)


def setup(app):
    app.add_directive("literalinclude", SourceLines, override=True)
    return {"parallel_read_safe": True}
