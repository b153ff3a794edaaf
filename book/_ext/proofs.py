"""Tie each formula to the cell that proves it, on the page: a link either way, and a table of them all."""

from docutils import nodes
from docutils.statemachine import StringList
from equations import CHAPTERS, COLUMNS, equations, proved_labels
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective


class Coverage(SphinxDirective):
    """``{coverage}``: how many formulas each chapter displays and how they are checked, then each of them by number."""

    def run(self):
        found = equations()
        chapters = list(dict.fromkeys(e.chapter for e in found))
        for chapter in chapters:
            self.env.note_dependency(str(CHAPTERS / f"{chapter}.ipynb"))
        asserted = sum(not e.is_definition for e in found)
        lines = [
            f"**{len(found)} displayed formulas: {asserted} are asserted by a cell that runs, "
            f"{len(found) - asserted} are definitions.**",
            "",
            "| Chapter | formulas | definitions | " + " | ".join(COLUMNS) + " |",
            "|---|" + "--:|" * (2 + len(COLUMNS)),
            *(self._summary(chapter, [e for e in found if e.chapter == chapter]) for chapter in chapters),
            "",
        ]
        for chapter in chapters:
            lines += self._details(chapter, [e for e in found if e.chapter == chapter])
        box = nodes.container(classes=["coverage"])
        self.state.nested_parse(StringList(lines, "coverage"), self.content_offset, box)
        return [box]

    def _summary(self, chapter, found):
        counts = [
            len(found),
            sum(e.is_definition for e in found),
            *(sum(c in e.checks for e in found) for c in COLUMNS),
        ]
        return f"| {{doc}}`/chapters/{chapter}` | " + " | ".join(map(str, counts)) + " |"

    def _details(self, chapter, found):
        yield f":::{{dropdown}} Every formula of {{doc}}`/chapters/{chapter}`"
        yield "| Formula | Name | " + " | ".join(COLUMNS) + " |"
        yield "|---|---|" + ":-:|" * len(COLUMNS)
        for e in found:
            name = e.label.partition("-")[2].replace("-", " ")
            marks = ["definition", "", ""] if e.is_definition else ["yes" if c in e.checks else "–" for c in COLUMNS]
            yield f"| {{eq}}`{e.label}` | {name} | " + " | ".join(marks) + " |"
        yield ":::"
        yield ""


def link_formulas_and_proofs(app, doctree):
    """Write "Proof of (2.6)" above the cell, and "proved" beside the formula, each linked to the other."""
    docname = app.env.docname
    proved = set()
    for block in list(doctree.findall(nodes.literal_block)):
        labels = proved_labels(block.astext())
        cell = _cell_of(block)
        if labels and cell is not None and not proved.issuperset(labels):
            note = nodes.paragraph(classes=["proof-of"], ids=[f"proof-{x}" for x in labels if x not in proved])
            note += nodes.Text("Proof of ")
            for i, label in enumerate(labels):
                note += [nodes.Text(", ")] if i else []
                note += _equation_reference(label, docname)
            cell.parent.insert(cell.parent.index(cell), note)
            proved.update(labels)
    for block in list(doctree.findall(nodes.math_block)):
        label = block.get("label") or ""
        if label in proved:
            html = f'<a class="proved" href="#proof-{label}" title="The cell that asserts this formula">proved</a>'
            block.parent.insert(block.parent.index(block) + 1, nodes.raw("", html, format="html"))


def _cell_of(block):
    """The notebook cell around a literal block, None outside of one."""
    node = block
    while node is not None and "cell" not in node.get("classes", ()):
        node = node.parent if isinstance(node.parent, nodes.Element) else None
    return node


def _equation_reference(label, docname):
    reference = addnodes.pending_xref(
        "", refdomain="math", reftype="eq", reftarget=label, refdoc=docname, refexplicit=False, refwarn=True
    )
    reference += nodes.literal("", label, classes=["xref", "eq"])
    return reference


def setup(app):
    app.add_directive("coverage", Coverage)
    app.connect("doctree-read", link_formulas_and_proofs)
    return {"parallel_read_safe": True}
