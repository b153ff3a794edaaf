"""Tie each formula to the cell that checks it, folded into a line below it; and a table of them all."""

import yaml
from docutils import nodes
from docutils.statemachine import StringList
from equations import CHAPTERS, COLUMNS, ROOT, checked_labels, checks_of, equations
from proofs import RECORD, by_label
from reading import read
from sphinx.util.docutils import SphinxDirective

FORMULAS = ROOT / "book" / "formulas.yml"


class Coverage(SphinxDirective):
    """``{coverage}``: how many formulas each chapter displays and how they are checked, then each of them by number."""

    def run(self):
        found = equations()
        chapters = list(dict.fromkeys(e.chapter for e in found))
        for chapter in chapters:
            self.env.note_dependency(str(CHAPTERS / f"{chapter}.ipynb"))
        asserted, defined = sum(bool(e.checks) for e in found), sum(e.is_definition for e in found)
        self.proved = by_label()
        proved = sum(e.label in self.proved for e in found)
        self.balls = in_balls()
        for path in (FORMULAS, RECORD):
            self.env.note_dependency(str(path))
        lines = [
            f"**{len(found)} displayed formulas: {asserted} are checked by a cell that runs, {defined} are "
            f"definitions, {len(found) - asserted - defined} are steps on the way to a checked one. {proved} are "
            "proved for all sizes by a theorem that a machine accepts: [](proofs.md). The TeX of "
            f"{sum(e.label in self.balls for e in found)} is evaluated as it stands, in balls of 50 digits.**",
            "",
            "| Chapter | formulas | definitions | steps | " + " | ".join(COLUMNS) + " | balls | proved |",
            "|---|" + "--:|" * (5 + len(COLUMNS)),
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
            sum(e.is_step for e in found),
            *(sum(c in e.checks for e in found) for c in COLUMNS),
            *(sum(e.label in having for e in found) for having in (self.balls, self.proved)),
        ]
        return f"| {{doc}}`/chapters/{chapter}` | " + " | ".join(map(str, counts)) + " |"

    def _details(self, chapter, found):
        title = read(CHAPTERS / f"{chapter}.ipynb")[0]["source"].splitlines()[0].removeprefix("# ")
        yield f":::{{dropdown}} Every formula of “{title}”"
        yield "| Formula | Name | " + " | ".join(COLUMNS) + " | balls | proved |"
        yield "|---|---|" + ":-:|" * (len(COLUMNS) + 2)
        for e in (e for e in found if e.label):  # where there is none, the reader warns (reading.py)
            name = e.label.partition("-")[2].replace("-", " ")
            kind = "definition" if e.is_definition else "step"
            marks = ["yes" if c in e.checks else "–" for c in COLUMNS] if e.checks else [kind, "", ""]
            marks.append("yes" if e.label in self.balls else "–")
            names = [theorem.name for theorem in self.proved.get(e.label, ())]
            marks.append(f'<a href="proofs.html#{names[0]}">yes</a>' if names else "–")  # the page is beside this one
            yield f"| {{eq}}`{e.label}` | {name} | " + " | ".join(marks) + " |"
        yield ":::"
        yield ""


def in_balls():
    """The labels whose TeX is evaluated in balls: those with a setting, but for the few that cannot be read."""
    known = yaml.safe_load(FORMULAS.read_text(encoding="utf-8"))["formulas"]
    return {label for label, formula in known.items() if "setting" in formula and "no tex" not in formula}


def link_formulas_and_checks(app, doctree):
    """Fold each cell that checks formulas into one line that says how, and tell the formulas, which link to it."""
    checked = {}
    for block in list(doctree.findall(nodes.literal_block)):
        cell = _cell_of(block)
        new = [label for label in checked_labels(block.astext()) if label not in checked]
        if new and cell is not None:
            how = ", ".join(kind for kind in COLUMNS if kind in checks_of(block.astext()))
            cell.children[0]["ids"] += [f"check-{label}" for label in new]  # inside the fold: a link there opens it
            cell["classes"].append("check")
            cell["prompt_show"] = cell["prompt_hide"] = f"checked: {how}"
            checked.update(dict.fromkeys(new, how))
    for block in list(doctree.findall(nodes.math_block)):
        label = block.get("label") or ""
        if label in checked:
            block["checked"] = checked[label]


def _cell_of(block):
    """The notebook cell around a literal block, None outside of one."""
    node = block
    while node is not None and "cell" not in node.get("classes", ()):
        node = node.parent if isinstance(node.parent, nodes.Element) else None
    return node


def setup(app):
    app.add_directive("coverage", Coverage)
    app.connect("doctree-read", link_formulas_and_checks)
    return {"parallel_read_safe": True}
