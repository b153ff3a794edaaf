"""How high a section will be on a phone, about: a browser that lays out only what is near leaves as much room.

Were it too little, a section that is laid out late would lie over the next one for a moment; much too much, and the
scroll bar would mislead.
"""

import re

from docutils import nodes
from live_head import live_head
from myst_nb.sphinx_ import HideCodeCellNode
from sphinx.ext.autosummary import autosummary_table
from sphinx_design.dropdown import dropdown_main
from sphinx_exercise.nodes import solution_node

CHARACTERS, LINE = 44, 27  # of prose, and pixels
CODE_LINE, PICTURE, FORMULA, GAP = 22, 420, 75, 20
CELL = 14  # characters on a line of a table
CLOSED, HEAD = 150, 900


def length(node):
    """Characters that are seen; those of TeX are about three for each."""
    return len(node.astext()) - sum(len(math.astext()) * 2 // 3 for math in node.findall(nodes.math))


def written(html):
    """Pixels of the words of a piece of HTML; of what is closed, of its summary; those of a drawing have its room."""
    html = re.sub(r"<(svg|script|style)\b.*?</\1>", "", html, flags=re.DOTALL)
    closed = re.findall(r"<details.*?(?:<summary.*?>(.*?)</summary>.*?)?</details>", html, flags=re.DOTALL)
    open_ = re.sub(r"<details.*?</details>", "", html, flags=re.DOTALL)
    return sum(GAP + lines(summary or "More") for summary in closed) + (GAP + lines(open_) if words(open_) else 0)


def words(html):
    """What a piece of HTML says."""
    return re.sub(r"<[^>]+>", "", html).strip()


def lines(html):
    """Pixels of its lines."""
    return LINE * (len(words(html)) // CHARACTERS + 1)


def height(node):
    """Pixels, from what the section holds."""
    if not isinstance(node, nodes.Element):
        return 0
    if isinstance(node, HideCodeCellNode):
        return GAP + LINE
    if isinstance(node, live_head):
        return HEAD
    if isinstance(node, nodes.literal_block):
        return GAP + CODE_LINE * (node.astext().count("\n") + 1)
    if isinstance(node, nodes.math_block):
        return FORMULA + LINE * node.astext().count("\\\\")
    if isinstance(node, nodes.raw):
        return written(node.astext()) + (PICTURE if "<svg" in node.astext() else 0)
    if isinstance(node, nodes.row):
        return GAP + LINE * max(length(cell) // CELL + 1 for cell in node)
    if isinstance(node, (solution_node, dropdown_main)) or "dropdown" in node.get("classes", ()):
        return CLOSED
    if isinstance(node, nodes.TextElement) and not isinstance(node, autosummary_table):
        return GAP + LINE * (length(node) // CHARACTERS + 1)
    heights = map(height, node.children)
    return max(heights, default=0) if "sd-tab-set" in node.get("classes", ()) else sum(heights)


def leave_room(app, pagename, templatename, context, doctree):
    """Write it on the sections of a page, those that the style sheet lets the browser put off."""
    tops = [top for top in (doctree.children if doctree else ()) if isinstance(top, nodes.section)]
    for section in (part for top in tops for part in top.children if isinstance(part, nodes.section)):
        tag = f'<section id="{section["ids"][0]}"'
        context["body"] = context["body"].replace(tag, f'{tag} style="--height: {height(section)}px"', 1)


def setup(app):
    app.connect("html-page-context", leave_room)
    return {"parallel_read_safe": True}
