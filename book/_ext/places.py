"""What a reader may look for, and where it is: formulas, letters, mistakes, questions, sections and functions.

Sphinx's search knows which pages hold a word. This gives the search page the places inside of them, by all their names;
``places.js`` puts those that fit before Sphinx's pages.
"""

import json
import re
from pathlib import Path
from typing import NamedTuple

import symbols
from docutils import nodes
from plain_math import html, plain
from sphinx import addnodes

SCRIPT = Path(__file__).with_name("places.js")
NOTATION, QUESTIONS = "book/notation", "book/questions"
NO_PROSE = (nodes.section, nodes.title, nodes.term, nodes.literal_block, nodes.raw)


class Place(NamedTuple):
    """``title`` is HTML, ``names`` what it is called, ``left`` the letters a formula computes, ``said`` its words."""

    page: str
    anchor: str
    title: str
    kind: str
    names: tuple = ()
    left: tuple = ()
    said: str = ""


def places(env):
    """Every place of the book. Of two that fit a query equally well, the earlier one is shown first."""
    pages = sorted(env.found_docs, key=lambda page: (page.startswith("book"), page))  # the chapters first
    trees = {page: env.get_doctree(page) for page in pages}
    called = {}
    for row in symbols.rows(trees[NOTATION]):
        label = next(iter(symbols.labels(row)), None)
        called.setdefault(label, []).extend(symbols.names(row))
    return [
        *_formulas(env, trees, called),
        *_letters(trees[NOTATION]),
        *_sections(env, trees),
        *_functions(env),
        *_questions(trees[QUESTIONS]),
    ]


def _formulas(env, trees, called):
    for page, tree in trees.items():
        numbers = env.toc_fignumbers.get(page, {}).get("displaymath", {})
        for node in tree.findall(nodes.math_block):
            if (label := node.get("label")) and not label.startswith("step-"):  # a step is no place to look for
                anchor = nodes.make_id(f"equation-{label}")
                number = ".".join(map(str, numbers[anchor]))
                text = plain(node.astext())
                left = [re.split(r"_\{|_\w\b| =", line)[0].strip() for line in text.split(";") if "=" in line]
                names = (label, label.partition("-")[2], *called.get(label, ()))
                kind = f"equation {number}, {_page(env, page)}"
                yield Place(page, anchor, html(text), kind, names, tuple(left))


def _letters(tree):
    for row in symbols.rows(tree):
        letter, meaning = (html(_text(row[column])) for column in (symbols.LETTER, symbols.MEANING))
        yield Place(NOTATION, row["ids"][0], f"{letter}: {meaning}", "letter, Notation", tuple(symbols.names(row)))


def _functions(env):
    for name, _, kind, page, anchor, _ in env.domains["py"].get_objects():
        if kind in ("function", "class"):
            yield Place(page, anchor, name, f"{kind}, {_page(env, page)}", (name, name.rpartition(".")[2]))


def _sections(env, trees):
    for page, tree in trees.items():
        for heading in tree.findall(nodes.title):
            section, title = heading.parent, _text(heading)
            said = _said(section) if page.startswith("chapters/") else ""
            if section.parent is tree:
                yield Place(page, "", html(title), "page", (title,), said=said)
            elif isinstance(section, nodes.section):
                anchor = section["ids"][0]
                kind = "mistake, " if anchor.startswith("mistake-") else ""
                label = (anchor, anchor.partition("-")[2]) if anchor != nodes.make_id(title) else ()
                names = (title, *label, *_called(section))
                yield Place(page, anchor, html(title), kind + _page(env, page), names, said=said)


def _called(section):
    """What its text marks with the role ``index``: other names of what it is about."""
    for node in section.findall(addnodes.index):
        in_text = isinstance(
            node.parent, nodes.TextElement
        )  # not a member of the package, which has a place of its own
        if in_text and _section_of(node) is section:
            yield from (value for _, value, *_ in node["entries"])


def _section_of(node):
    return node if isinstance(node, nodes.section) else _section_of(node.parent)


def _questions(tree):
    for term in tree.findall(nodes.term):
        title, anchor = _text(term), term["ids"][0]
        yield Place(QUESTIONS, anchor, html(title), "question", (title, anchor), said=_said(term.parent))


def _page(env, page):
    """Chapter 4, One head; or the title of another page."""
    number = env.toc_secnumbers.get(page, {}).get("")
    return (f"chapter {number[0]}, " if number else "") + env.titles[page].astext()


def _text(node):
    """The words of a node, its math as plain text, less the sign that links to it."""
    leaves = node.findall(lambda leaf: isinstance(leaf, nodes.Text))
    parts = (leaf for leaf in leaves if not isinstance(leaf.parent, nodes.raw))
    return "".join(plain(leaf) if isinstance(leaf.parent, nodes.math) else leaf for leaf in parts).strip()


def _said(node):
    """Each word of a section or an answer once, less its title, its code, and the sections inside of it."""
    return " ".join(dict.fromkeys(_prose(node).lower().split()))


def _prose(node):
    if isinstance(node, nodes.Text):
        return plain(node) if isinstance(node.parent, nodes.math | nodes.math_block) else node
    between = "" if isinstance(node, nodes.TextElement) else " "
    return between.join(_prose(child) for child in node.children if not isinstance(child, NO_PROSE))


def write(app, pagename, templatename, context, doctree):
    """The places and their script, for the search page only: deferred, so that Sphinx's search is there first."""
    if pagename == "search":
        found = json.dumps(places(app.env), ensure_ascii=False, separators=(",", ":"))
        script = SCRIPT.read_text(encoding="utf-8").replace("PLACES", found, 1)
        Path(app.outdir, "_static", SCRIPT.name).write_text(script, encoding="utf-8")
        app.add_js_file(SCRIPT.name, defer="defer")


def setup(app):
    app.connect("html-page-context", write)
    return {"parallel_read_safe": True}
