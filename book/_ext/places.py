"""What a reader looks for, and where it is: formulas, letters, sections, mistakes, questions, incidents, functions."""

import re
from typing import NamedTuple

import atlas  # noqa: F401 (it finds evidence)
import symbols
from docutils import nodes
from formulas import in_lines, mathml
from plain_math import html, plain
from sphinx import addnodes

from evidence.atlas import CAUSES
from evidence.atlas.topics import topics

NOTATION, QUESTIONS, INCIDENTS, API = "book/notation", "book/questions", "book/atlas", "book/api"
NO_PROSE = (nodes.section, nodes.title, nodes.term, nodes.literal_block, nodes.raw)
UNRESOLVED = re.compile(r" \((?:tab|fig|eq|def)-[\w-]+\)")  # a number that a page will have
LONGEST = 110  # letters of what is shown below a title


class Place(NamedTuple):
    """``title`` is HTML, ``kind`` what it is, ``names`` what it is called, ``said`` its words, ``lead`` the first of
    them; ``inside`` the anchor of the section around it; ``left`` the letters that a formula computes.
    """

    page: str
    anchor: str
    kind: str
    title: str
    names: tuple = ()
    said: str = ""
    lead: str = ""
    inside: str = ""
    left: tuple = ()


def places(env):
    """Every place of the book. Of two that fit a query equally well, the earlier one is shown first."""
    written = [page for page in env.found_docs if not page.startswith("book/api/")]  # of the others, the names
    pages = sorted(written, key=lambda page: (page.startswith("book"), page))  # the chapters first
    trees = {page: env.get_doctree(page) for page in pages}
    _number_references(env, trees)
    called = {}
    for row in symbols.rows(trees[NOTATION]):
        label = next(iter(symbols.labels(row)), None)
        called.setdefault(label, []).extend(symbols.names(row))
    return [
        *_formulas(env, trees, called),
        *_letters(trees[NOTATION]),
        *_sections(env, trees),
        *_questions(trees[QUESTIONS]),
        *_incidents(),
        *_functions(env),
    ]


def _number_references(env, trees):
    """What refers to a formula shows its number, as on its page; a page gets it after this."""
    for tree in trees.values():
        for reference in tree.findall(addnodes.pending_xref):
            label = reference["reftarget"]
            if reference["reftype"] == "eq" and (page := env.domains["math"].equations.get(label, [""])[0]):
                number = env.toc_fignumbers[page]["displaymath"][nodes.make_id(f"equation-{label}")]
                reference[:] = [nodes.Text(f"({'.'.join(map(str, number))})")]


def page_name(env, page):
    """Chapter 4, A single head; or the title of another page."""
    number = env.toc_secnumbers.get(page, {}).get("")
    return (f"chapter {number[0]}, " if number else "") + env.titles[page].astext()


def _formulas(env, trees, called):
    for page, tree in trees.items():
        numbers = env.toc_fignumbers.get(page, {}).get("displaymath", {})
        for node in tree.findall(nodes.math_block):
            if (label := node.get("label")) and not label.startswith("step-"):  # a step is no place to look for
                anchor = nodes.make_id(f"equation-{label}")
                kind = f"equation {'.'.join(map(str, numbers[anchor]))}"
                text = plain(node.astext())
                left = [re.split(r"_\{|_\w\b| =", line)[0].strip() for line in text.split(";") if "=" in line]
                names = dict.fromkeys((label, label.partition("-")[2], *called.get(label, ())))
                inside, shown = _section_of(node)["ids"][0], mathml(in_lines(node.astext()))
                yield Place(page, anchor, kind, shown, tuple(names), text, "", inside, tuple(left))


def _letters(tree):
    for row in symbols.rows(tree):
        letter, meaning = (html(_text(row[column])) for column in (symbols.LETTER, symbols.MEANING))
        yield Place(NOTATION, row["ids"][0], "letter", f"{letter}: {meaning}", tuple(symbols.names(row)))


def _sections(env, trees):
    asked = {
        term["ids"][0]: _text(term) for term in trees[QUESTIONS].findall(nodes.term)
    }  # and answered in the section
    for page, tree in trees.items():
        numbers = env.toc_secnumbers.get(page, {})
        for heading in tree.findall(nodes.title):
            section, title = heading.parent, _text(heading)
            if section.parent is tree:
                yield Place(page, "", "page", html(title), (title,), *_words(section))
            elif isinstance(section, nodes.section):
                anchor = section["ids"][0]
                number = next((numbers[f"#{name}"] for name in section["ids"] if f"#{name}" in numbers), ())
                kind = "mistake" if anchor.startswith("mistake-") else f"section {'.'.join(map(str, number))}".strip()
                label = (anchor, anchor.partition("-")[2]) if anchor not in (*asked, nodes.make_id(title)) else ()
                names = (title, *label, *filter(None, [asked.get(anchor)]), *_called(section))
                yield Place(page, anchor, kind, html(title), tuple(dict.fromkeys(names)), *_words(section))


def _called(section):
    """What its text marks with the role ``index``: other names of what it is about."""
    for node in section.findall(addnodes.index):
        in_text = isinstance(node.parent, nodes.TextElement)  # not a member of the package, which is a place of its own
        if in_text and _section_of(node) is section:
            yield from (value for _, value, *_ in node["entries"])


def _section_of(node):
    return node if isinstance(node, nodes.section) else _section_of(node.parent)


def _questions(tree):
    for term in tree.findall(nodes.term):
        title, anchor, inside = _text(term), term["ids"][0], _section_of(term)["ids"][0]
        yield Place(QUESTIONS, anchor, "question", html(title), (title,), *_words(term.parent), inside)


def _incidents():
    for cause in CAUSES.values():
        threads = " ".join(f"{thread.library} {thread.title}" for thread in cause.threads)
        said = " ".join((cause.cause, cause.needs, " ".join(topics(cause.slug)), " ".join(cause.spoils), threads))
        names = (cause.title, cause.slug)
        yield Place(INCIDENTS, f"atlas-{cause.slug}", "incident", html(cause.title), names, said, _lead(cause.cause))


def _functions(env):
    for name, _, kind, page, anchor, _ in env.domains["py"].get_objects():
        if kind in ("function", "class"):
            yield Place(page, anchor, kind, name)


def _text(node):
    """The words of a node, its math as plain text, less the sign that links to it."""
    leaves = node.findall(lambda leaf: isinstance(leaf, nodes.Text))

    said = {nodes.raw: lambda html: " ", nodes.math: plain}
    return "".join(said.get(type(leaf.parent), str)(leaf) for leaf in leaves).strip()


def _words(node):
    """What a section or an answer says, less its title, its code and the sections inside of it; and how it begins."""
    paragraph = next((part for part in node.findall(nodes.paragraph) if _section_of(part) is _section_of(node)), None)
    return _prose(node), _lead(_text(paragraph)) if paragraph is not None else ""


def _lead(text):
    return html(" ".join(UNRESOLVED.sub("", text).replace("`", "").split()), LONGEST)


def _prose(node):
    if isinstance(node, nodes.Text):
        return plain(node) if isinstance(node.parent, nodes.math | nodes.math_block) else node
    between = "" if isinstance(node, nodes.TextElement) else " "
    return between.join(_prose(child) for child in node.children if not isinstance(child, NO_PROSE))
