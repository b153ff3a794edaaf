"""Beside a formula that a theorem proves: "proved", which opens the theorem. And the page of all proofs."""

import re
from html import escape

import graph
import yaml
from docutils import nodes
from docutils.statemachine import StringList
from equations import ROOT, equations
from proofs import as_read, by_label, definitions, files, record, required, stated, theorems, title
from sphinx.addnodes import pending_xref
from sphinx.util.docutils import SphinxDirective
from statements import as_html, implications

SHOWN = re.compile(r"moves|derive|adjoint|gradients|dot_matmul|dot_transpose")
START, END = "calculus.derive_exp", "eq_multi_head_vjp"  # the picture of the way from the exponential to the layer


def source(app, path, line):
    """The address of a line of the repository."""
    url, branch = (app.config.html_theme_options.get(key) for key in ("repository_url", "repository_branch"))
    return f"{url}/blob/{branch}/{path}#L{line}"


def in_words(reading):
    """What the comment above a theorem or definition says, as HTML; names in [brackets] are code."""
    return re.sub(r"\[([^\]]+)\]", r"<code>\1</code>", escape(reading))


def shown(html, label):
    """Lines of Coq in a box that the keyboard reaches."""
    return f'<pre tabindex="0" role="group" aria-label="{label}">{html}</pre>'


def statement(app, theorem):
    """A theorem as written, what it assumes, and where it is proved."""
    to, page = source(app, theorem.where, theorem.line), app.builder.get_relative_uri(app.env.docname, "book/proofs")
    box = shown(as_html(theorem.statement, theorem.file, page), f"The theorem {theorem.name}")
    there = f'<a href="{page}#{theorem.name}">Among the others</a>. ' if page else ""
    return (
        f"{box}<p>{assumed(theorem, page)} "
        f'Its proof: <a href="{escape(to)}">{theorem.file}.v, line {theorem.line}</a>. {there}'
        f'<a href="{page}#how-to-read-a-theorem">How to read it</a>.</p>'
    )


def assumed(theorem, page):
    """What a theorem assumes, in a sentence."""
    known = record()["theorems"]
    if theorem.name not in known:
        raise ValueError(f"book/proofs.json does not know {theorem.name}: run `make proofs`, which needs Coq")
    count = len(known[theorem.name].split())
    axioms = f'<a href="{page}#axioms">{count} axiom{"s"[: count > 1]}</a>' if count else "no axiom"
    before = "what stands before each <code><b>-&gt;</b></code>, and " if implications(theorem.statement) else ""
    return f"Assumes {before}{axioms}."


def mark_formulas(app, doctree):
    """Give each formula that has theorems the button and the box that its HTML shows: before its number, and after."""
    proved = by_label()
    for block in list(doctree.findall(nodes.math_block)):
        label = block.get("label") or ""
        if label in proved:
            box = "".join(f"<p>{in_words(theorem.reading)}</p>{statement(app, theorem)}" for theorem in proved[label])
            block["proved"] = (
                f'<button type="button" class="proved" popovertarget="proved-{label}" '
                f'aria-label="proved: {label}">proved</button>',
                f'<div popover class="theorem" id="proved-{label}"><p class="theorem-title">',
                f', proved<button type="button" popovertarget="proved-{label}" popovertargetaction="hide" '
                f'aria-label="Close">×</button></p>{box}</div>',
            )


def names_of(name):
    """The definitions of a file; those that its text separates, or a comment, have boxes of their own."""
    boxes = []
    for one in definitions(name):
        if one.apart or one.reading:
            boxes.append([one.reading, ""])
        boxes[-1][1] += as_html(one.written + "\n", name, "", one.names)
    return "".join(
        f"<p>{in_words(reading)}</p>" * bool(reading) + shown(html, f"Definitions of {name}") for reading, html in boxes
    )


def way(start=START, end=END):
    """The theorem ``end`` and what it rests on: how each step moves, back to ``start``, and its adjoint.

    Other rules of calculus, and lemmas about indices and signs, are left out: what they lead to is linked instead.
    """
    uses = {item: of.split() for item, of in record()["uses"].items()}
    (end,) = [item for item in uses if item.partition(".")[2] == end]

    def is_shown(item):
        return item in (start, end) or (not item.startswith("calculus.") and SHOWN.search(item))

    def shown_below(item):
        nearest = set()
        for other in uses[item]:
            nearest |= {other} if is_shown(other) else shown_below(other)
        return nearest

    met, asked = {}, [end]
    while asked:
        item = asked.pop()
        met[item] = sorted(shown_below(item)) if item != start else []
        asked += [other for other in met[item] if other not in met]
    return {item: met[item] for item in uses if item in met}


class Proofs(SphinxDirective):
    """``{proofs} numbers``, ``files``, ``way``, ``theorems`` or ``axioms``: one part of the page of proofs."""

    required_arguments = 1

    def run(self):
        for name in files():
            self.env.note_dependency(f"proofs/{name}.v")
        return getattr(self, f"_{self.arguments[0]}")()

    def _numbers(self):
        known = record()
        of_formulas = sum(map(len, by_label().values()))
        return self._parsed(
            [
                f"**{of_formulas} theorems prove {len(by_label())} of the book’s {len(equations())} formulas; "
                f"{len(theorems()) - of_formulas} more prove what no numbered formula says.** In {known['lines']:,} "
                f"lines, which Coq {known['prover']} reads on two cores in {known['seconds']} seconds."
            ]
        )

    def _files(self):
        boxes = {name: graph.Box(name, f"#{name}-v", title(name)[0]) for name in files()}
        edges = {n: required(n) for n in files()}
        return self._picture(boxes, edges, "The files of proofs, each below those it rests on")

    def _way(self):
        edges, boxes, lemmas = way(), {}, []
        for item in edges:
            name, _, of = item.partition(".")
            boxes[item] = graph.Box(of, f"#{of}", f"{'Theorem' if of in theorems() else 'Lemma'} of {name}.v")
            if of not in theorems():
                written, line = stated(item)
                to = source(self.env.app, f"book/proofs/{name}.v", line)
                lemmas.append(
                    f'<div id="{of}">{shown(as_html(written, name, ""), f"The lemma {of}")}'
                    f'<p>Its proof: <a href="{to}">{name}.v, line {line}</a>.</p></div>'
                )
        fold = f'<details class="theorem"><summary>What these lemmas state</summary>{"".join(lemmas)}</details>'
        picture = self._picture(boxes, edges, "The steps from the derivative of the exponential to the layer")
        return [*picture, nodes.raw("", fold, format="html")]

    def _theorems(self):
        """A section for each file: what it is about, and its theorems, folded."""
        found = []
        for name in as_read():
            head, about = title(name)
            section = nodes.section("", nodes.title("", head), ids=[f"{name}-v"])
            section += self._parsed([about])
            if definitions(name):
                fold = f'<details class="theorem"><summary>What its names mean</summary>{names_of(name)}</details>'
                section += nodes.raw("", fold, format="html")
            section += [
                nodes.raw("", self._folded(theorem), format="html", label=theorem.label)
                for theorem in theorems().values()
                if theorem.file == name
            ]
            found.append(section)
        return found

    def _folded(self, theorem):
        summary = f"<summary><code>{theorem.name}</code> {in_words(theorem.reading)}</summary>"
        return f'<details class="theorem" id="{theorem.name}">{summary}{statement(self.env.app, theorem)}</details>'

    def _without(self):
        """The formulas that have none, each with the reason that the table of formulas gives; names in it are links."""
        known = yaml.safe_load((ROOT / "book" / "formulas.yml").read_text(encoding="utf-8"))["formulas"]
        where = {name: f"{file}.{name}" for file in files() for one in definitions(file) for name in one.names}
        where |= {name: name for name in theorems()}

        def linked(reason):
            return re.sub(r"`(\w+)`", lambda name: f'<a href="#{where[name[1]]}"><code>{name[1]}</code></a>', reason)

        rows = [f"- {{eq}}`{label}`: {linked(of['no theorem'])}" for label, of in known.items() if "no theorem" in of]
        return self._parsed([":::{dropdown} Formulas without a theorem, and why", *rows, ":::"])

    def _axioms(self):
        return self._parsed([f"- `{name}`: `{says}`" for name, says in record()["axioms"].items()])

    def _picture(self, boxes, edges, label):
        picture = graph.svg(boxes, edges)
        box = f'<div class="graph-box" tabindex="0" role="group" aria-label="{label}">{picture}</div>'
        return [nodes.raw("", box, format="html")]

    def _parsed(self, lines):
        box = nodes.container(classes=["proofs"])
        self.state.nested_parse(StringList(lines, "proofs"), self.content_offset, box)
        return box.children


def link_formulas(app, doctree, docname):
    """Begin each theorem of the page with a link to the formula that it proves: its number is known only now."""
    math = app.env.get_domain("math")
    for fold in list(doctree.findall(nodes.raw)):
        if label := fold.get("label"):
            asked = pending_xref("", refdoc=docname, reftarget=label)
            link = math.resolve_xref(app.env, docname, app.builder, "eq", label, asked, nodes.literal())
            to = f'<p>Proves <a href="{link["refuri"]}">{link.astext()}</a>.</p>'
            opened, end, rest = fold.astext().partition("</summary>")
            fold.children = [nodes.Text(opened + end + to + rest)]


def setup(app):
    app.add_directive("proofs", Proofs)
    app.connect("doctree-resolved", link_formulas)
    app.connect("doctree-read", mark_formulas)
    return {"parallel_read_safe": True}
