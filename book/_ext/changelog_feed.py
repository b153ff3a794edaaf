"""``changelog.xml``, an Atom feed with an entry for each dated heading of CHANGELOG.md, and its link in every page.

A heading is ``## 1.2.0 - 2027-01-31``; "Unreleased" carries the date on which it was last added to. The foot of every
page says which version it is of.
"""

import re
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from docutils import nodes
from markdown_it import MarkdownIt

from attnbook import __version__

CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"
HEADING = re.compile(r"^## (\S+) - (\d{4}-\d{2}-\d{2})$", re.MULTILINE)
ATOM = "http://www.w3.org/2005/Atom"
FEED, PAGE = "changelog.xml", "book/changelog.html"


class Entry(NamedTuple):
    version: str
    date: str
    text: str


def entries(changelog):
    """The dated versions of a changelog, newest first, as they stand."""
    _, *parts = HEADING.split(changelog)
    return [Entry(*parts[i : i + 2], parts[i + 2].strip()) for i in range(0, len(parts), 3)]


def feed(changelog, title, author, address):
    """The feed as XML. The id of an entry is made of its version alone, so that no edit makes it new."""
    found = entries(changelog)
    ElementTree.register_namespace("", ATOM)
    root = ElementTree.Element(f"{{{ATOM}}}feed")
    _add(root, "title", f"Changes of {title}")
    _add(root, "id", f"{address}{FEED}")
    _add(root, "updated", f"{max(entry.date for entry in found)}T00:00:00Z")
    _add(root, "link", rel="self", type="application/atom+xml", href=f"{address}{FEED}")
    _add(root, "link", rel="alternate", type="text/html", href=f"{address}{PAGE}")
    _add(_add(root, "author"), "name", author)
    for entry in found:
        node = _add(root, "entry")
        _add(node, "title", entry.version)
        _add(node, "id", f"{address}{PAGE}#{nodes.make_id('version-' + entry.version)}")
        _add(node, "updated", f"{entry.date}T00:00:00Z")
        _add(node, "link", rel="alternate", type="text/html", href=f"{address}{PAGE}")
        _add(node, "content", MarkdownIt().render(entry.text), type="html")
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add(parent, tag, text=None, **attributes):
    node = ElementTree.SubElement(parent, f"{{{ATOM}}}{tag}", attributes)
    node.text = text
    return node


def write(app, failed):
    """Beside the pages, once they are there."""
    if failed is None and app.builder.format == "html":
        changelog = CHANGELOG.read_text(encoding="utf-8")
        config = app.config
        xml = feed(changelog, config.html_title or config.project, config.author, config.html_baseurl)
        Path(app.outdir, FEED).write_text(xml, encoding="utf-8")


def link(app, pagename, templatename, context, doctree):
    href = context["pathto"](FEED, 1)
    tag = f'<link rel="alternate" type="application/atom+xml" title="Changes" href="{href}" />'
    context["metatags"] = f"{context.get('metatags', '')}{tag}\n"
    context["theme_extra_footer"] += f' <a href="{context["pathto"](PAGE, 1)}">Version {__version__}</a>.'


def setup(app):
    app.connect("html-page-context", link)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True}
