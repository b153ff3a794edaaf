"""``{bibtex}``: CITATION.cff as a BibTeX entry, to copy."""

from pathlib import Path

import yaml
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

CITATION = Path(__file__).parents[2] / "CITATION.cff"


class Bibtex(SphinxDirective):
    """The entry, as a block of code, which has the site's button to copy it."""

    def run(self):
        self.env.note_dependency(str(CITATION))
        entry = bibtex(yaml.safe_load(CITATION.read_text(encoding="utf-8")))
        return [nodes.literal_block(entry, entry, language="bibtex")]


def bibtex(cff):
    """The entry of a citation file: its names, addresses and, if it was released, its version and year."""
    authors = " and ".join(_author(author) for author in cff["authors"])
    fields = {
        "author": authors,
        "title": f"{{{cff['title']}}}",  # keep its capitals
        "version": cff.get("version"),
        "year": str(cff.get("date-released", ""))[:4],
        "url": cff["url"],
        "note": f"Code: \\url{{{cff['repository-code']}}}",
    }
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
    return "\n".join(["@software{attnbook,", *lines, "}"])


def _author(author):
    """A person is *family, given*; a group's name is kept together."""
    return f"{author['family-names']}, {author['given-names']}" if "family-names" in author else f"{{{author['name']}}}"


def setup(app):
    app.add_directive("bibtex", Bibtex)
    return {"parallel_read_safe": True}
