"""``{which-gradient}``: choose a layer, then a variable, and be at its equation: links in tabs, no script."""

from answer import NOTATIONS, UNITS
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

IN_THE_HEAD = {"dV", "dP", "dS", "dQ", "dK"}
LAYERS = {  # the title of a tab, the unit of the answer page, and which of its gradients, None for all
    "Self-attention": ("self", None),
    "Masked": ("masked", None),
    "Cross-attention": ("cross", None),
    "One head": ("self", IN_THE_HEAD),
}
WORDS = {"W": "projection", "b": "bias", "Q": "query", "K": "key", "V": "value", "O": "output"}
NAMES = {
    "dX": "input", "dmemory": "memory", "dQ": "queries", "dK": "keys", "dV": "values", "dS": "scores",
    "dP": "weights", "dO": "output of a head",
}  # fmt: skip


def choices(layer):
    """The gradients of a layer, those of its inputs first: letter, name, label of the equation."""
    unit, only = LAYERS[layer]
    for row in sorted(UNITS[unit].backward, key=lambda row: (row.name[1] not in "Xm", "_" not in row.name)):
        if only is None or row.name in only:
            yield NOTATIONS["ours"].letter(row.name, unit), name(row.name), row.labels[0]


def name(gradient):
    """dQ is that of the queries, dW_Q that of the query projection."""
    if gradient in NAMES:
        return NAMES[gradient]
    kind, of = gradient[1:].split("_")
    return f"{WORDS[of]} {WORDS[kind]}"


class WhichGradient(SphinxDirective):
    """A tab for each layer, and in it a link for each variable."""

    def run(self):
        lines = ["::::{tab-set}", ""]
        for layer in LAYERS:
            lines += [f":::{{tab-item}} {layer}", ""]
            lines += [f"- ${letter}$ {of} {{eq}}`{label}`" for letter, of, label in choices(layer)]
            lines += [":::", ""]
        box = nodes.container(classes=["which-gradient"])
        self.state.nested_parse(StringList([*lines, "::::"], "which-gradient"), self.content_offset, box)
        return [box]


def link_all_of_it(app, doctree, docname):
    """The whole line is the link, not its number alone: it says where it leads, and a thumb can hit it."""
    for box in doctree.findall(lambda node: isinstance(node, nodes.container) and "which-gradient" in node["classes"]):
        for line in box.findall(nodes.paragraph):
            link = next(line.findall(nodes.reference), None)
            if link is not None:
                link.children = [part for part in line.children if part is not link] + link.children
                for part in link.children:
                    part.parent = link
                line.children = [link]


def setup(app):
    app.add_directive("which-gradient", WhichGradient)
    app.connect("doctree-resolved", link_all_of_it)
    return {"parallel_read_safe": True}
