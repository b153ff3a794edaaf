"""What a page says about itself to search engines and to those who share its link: a sentence and a picture.

sphinxext-opengraph writes the tags. This gives it the sentence, from book/descriptions.yml, and a card of 1200 × 630
with the page's title beside numbers of the package: the same bytes on every build.
"""

import re
import textwrap
from pathlib import Path

import numpy as np
import yaml
from docutils import nodes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from room import INDEX, PAGES
from sphinx import addnodes

import attnbook as ab

DESCRIPTIONS = Path(__file__).parents[1] / "descriptions.yml"
SIZE = (1200, 630)
ALT = "{title}. Beside the title stand three small tables of colored cells: the weights P, and the gradients dP and dS."
INK, GREY, BLUE, ORANGE = "#1a1a1a", "#5f5f5f", "#0072b2", "#c24e00"
THEME_COLORS = {"light": "#ffffff", "dark": "#14181e"}  # the theme's grounds
OTHERS = {
    "search": "Search the book for formulas, letters, functions, mistakes and questions.",
    "genindex": "Every function and class of the package attnbook, in alphabetical order.",
    "py-modindex": "The modules of the package attnbook.",
    "404": "This page does not exist. Search the book, or start from its front page.",
}


def descriptions():
    """The sentence of each page, by the page's name."""
    return yaml.safe_load(DESCRIPTIONS.read_text(encoding="utf-8"))


def describe(app, pagename, templatename, context, doctree):
    """Before sphinxext-opengraph, which takes over what it finds."""
    if pagename.startswith(PAGES):
        sentence = next(doctree.findall(addnodes.desc_content), doctree).next_node(nodes.paragraph).astext()
    else:
        sentence = (descriptions() if doctree else OTHERS).get(pagename, app.config.project)
    colors = (
        f'<meta name="theme-color" content="{color}" media="(prefers-color-scheme: {theme})" />'
        for theme, color in THEME_COLORS.items()
    )
    tags = "\n".join([f'<meta name="description" content="{sentence}" />', *colors])
    context["metatags"] = f"{context.get('metatags', '')}{tags}\n"
    if doctree:
        drawn = INDEX if pagename.startswith(PAGES) else pagename
        name = f"_static/cards/{drawn.replace('/', '-')}.png"
        title = app.env.titles[drawn].astext()
        path = Path(app.outdir, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if drawn == pagename:
            draw(title, sentence, app.config.project, path)
        context["meta"] = (context["meta"] or {}) | {
            "og:description": sentence,
            "og:image": app.config.html_baseurl + name,
            "og:image:alt": ALT.format(title=title),
            "og:image:width": str(SIZE[0]),
            "og:image:height": str(SIZE[1]),
        }


def front_door(app, failed):
    """The site's bare address leads to the front page, and says the same about itself: it is the one that is shared."""
    if failed is None and app.builder.format == "html":
        address = f"{app.config.root_doc}.html"
        page = Path(app.outdir, address).read_text(encoding="utf-8")
        tags = re.findall(r'<meta (?:property="og:|name="(?:description|twitter:))[^>]*>', page)
        door = [
            '<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8" />',
            f"<title>{app.config.project}</title>",
            f'<meta http-equiv="refresh" content="0; url={address}" />',
            f'<link rel="canonical" href="{app.config.html_baseurl}{address}" />',
            '<link rel="icon" href="_static/favicon.svg" />',  # else a browser asks for one that is not there
            *tags,
            f'<a href="{address}">{app.config.project}</a>\n</html>\n',
        ]
        Path(app.outdir, "index.html").write_text("\n".join(door), encoding="utf-8")


def draw(title, sentence, book, path):
    """The card, as a PNG."""
    figure = Figure(figsize=(SIZE[0] / 100, SIZE[1] / 100), dpi=100, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, SIZE[0]), ylim=(SIZE[1], 0))
    axes.axis("off")
    axes.add_patch(Rectangle((0, 0), 16, SIZE[1], color=BLUE))
    axes.text(80, 90, "" if title == book else book, size=24, color=GREY, va="center")
    axes.text(80, 150, textwrap.fill(title, 19), size=42, color=INK, weight="bold", va="top", linespacing=1.25)
    axes.text(80, 560, textwrap.fill(sentence, 52), size=20, color=GREY, va="bottom", linespacing=1.4)
    for row, (name, table) in enumerate(_tables().items()):
        _cells(axes, 900, 78 + 180 * row, name, table)
    figure.savefig(path, metadata={"Software": None})


def _tables():
    """A causal head with whole numbers: its weights, and the two gradients around its softmax."""
    Q, K = np.array([[1, 0], [2, 1], [0, 2], [1, -1.0]]), np.array([[1, 1], [0, 2], [2, -1], [1, 0.0]])
    V, dO = np.array([[1, 0], [-1, 2], [0, 1], [2, -1.0]]), np.array([[1, -1], [0, 2], [-1, 1], [1, -1.0]])
    _, res = ab.attention(Q, K, V, causal=True)
    dP = np.where(res.P > 0, dO @ V.T, 0)
    return {"P": res.P, "dP": dP, "dS": ab.softmax_vjp(dP, res.P)}


def _cells(axes, x, y, name, table, width=56, height=36):
    axes.text(x - 24, y + 2 * height, name, size=24, color=INK, weight="bold", ha="right", va="center")
    for (i, j), value in np.ndenumerate(table / np.abs(table).max()):
        color = (BLUE if value > 0 else ORANGE, abs(value) ** 0.7) if abs(value) > 1e-9 else "white"
        corner = (x + j * width, y + i * height)
        axes.add_patch(Rectangle(corner, width, height, facecolor=color, edgecolor="#bdbdbd"))


def setup(app):
    app.connect("html-page-context", describe, priority=400)
    app.connect("build-finished", front_door, priority=400)  # before sphinx-external-toc, which fills the gap
    return {"parallel_read_safe": True}
