"""``{symbols}`` around tables of letters: each row gets an address, ``symbol-`` and its name in code."""

from docutils import nodes
from permalinks import permalink
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective

LETTER, IN_CODE, SHAPE, MEANING, DERIVED, IN_PACKAGE, ELSEWHERE = range(7)  # columns


class Symbols(SphinxDirective):
    """Tables with the columns above. The search finds a row by all of its names, and the formula that derives it."""

    has_content = True

    def run(self):
        box = nodes.container(classes=["symbols"])
        self.state.nested_parse(self.content, self.content_offset, box)
        for row in rows(box):
            row["ids"] += [nodes.make_id(f"symbol-{name}") for name in _code(row[IN_CODE])]
            row[LETTER][0] += permalink(row["ids"][0])
        return [box]


def rows(tree):
    """The rows of all tables of letters in a tree, less their heads."""
    for box in tree.findall(lambda node: isinstance(node, nodes.container) and "symbols" in node["classes"]):
        for body in box.findall(nodes.tbody):
            yield from body.findall(nodes.row)


def names(row):
    """What a letter is called, here and elsewhere."""
    return _code(row[IN_CODE]) + _code(row[ELSEWHERE])


def labels(row):
    """The formulas that derive it."""
    return [node["reftarget"] for node in row[DERIVED].findall(addnodes.pending_xref)]


def _code(cell):
    return [code.astext() for code in cell.findall(nodes.literal)]


def setup(app):
    app.add_directive("symbols", Symbols)
    return {"parallel_read_safe": True}
