"""Beside a formula that a theorem proves: "proved", which opens the theorem. And the page of all proofs."""

import re
from html import escape

import graph
import yaml
from docutils import nodes
from docutils.statemachine import StringList
from equations import ROOT, equations
from proofs import as_read, by_label, defined_in, definitions, files, line_of, record, required, theorems, title
from sphinx.addnodes import pending_xref
from sphinx.util.docutils import SphinxDirective

SHOWN = re.compile(r"moves|derive|adjoint|gradients|dot_matmul|dot_transpose")
START, END = "calculus.derive_exp", "eq_multi_head_vjp"  # the picture of the way from the exponential to the layer


def source(app, path, line):
    """The address of a line of the repository."""
    url, branch = (app.config.html_theme_options.get(key) for key in ("repository_url", "repository_branch"))
    return f"{url}/blob/{branch}/{path}#L{line}"


def linked(statement, page):
    """A statement as HTML. A name that a definition makes leads to it, once, unless the statement binds it anew."""
    left = dict(defined_in())

    def link(match):
        name = match[0]
        anew = re.search(rf"\b(?:let|fun|forall|exists) {name}\b|[({{ ]{name}(?: \w+)* :(?!=)", statement)
        file = left.pop(name, None)
        return f'<a href="{page}#{file}.{name}">{name}</a>' if file and not anew else name

    return re.sub(r"(?<![\w.;&])[^\W\d][\w']*", link, escape(statement, quote=False))


def in_words(theorem):
    """The reading of a theorem as HTML; names in [brackets] are code."""
    return re.sub(r"\[([^\]]+)\]", r"<code>\1</code>", escape(theorem.reading))


def statement(app, theorem):
    """A theorem as written, what it assumes, and where it is proved."""
    to, page = source(app, theorem.where, theorem.line), app.builder.get_relative_uri(app.env.docname, "book/proofs")
    shown = linked(theorem.statement, page)
    return (
        f'<pre tabindex="0" role="group" aria-label="The theorem {theorem.name}">{shown}</pre>'
        f"<p>{hypotheses(theorem)}{axioms_of(theorem.name)}. "
        f'Its proof: <a href="{escape(to)}">{theorem.file}.v, line {theorem.line}</a>. '
        f'<a href="{page}#how-to-read-a-theorem">How to read it</a>.</p>'
    )


def hypotheses(theorem):
    """How the sentence on what a theorem assumes begins: has its claim, behind its own colon, an arrow?"""
    depth, claim = 0, ""
    for place, letter in enumerate(theorem.statement):
        depth += letter in "([{"
        depth -= letter in ")]}"
        if letter == ":" and not depth:
            claim = theorem.statement[place:]
            break
    return "Assumes what stands before each <code>-&gt;</code>, and " if "->" in claim else "Assumes "


def axioms_of(name):
    """What a theorem assumes beyond its statement, in words."""
    known = record()["theorems"]
    if name not in known:
        raise ValueError(f"book/proofs.json does not know the theorem {name}: run `make proofs`, which needs Coq")
    count = len(known[name].split())
    return f"{count} axiom{'s'[: count > 1]} of logic and of the real numbers" if count else "no axiom"


def mark_formulas(app, doctree):
    """Give each formula that has theorems the button and the box that its HTML shows."""
    proved = by_label()
    for block in list(doctree.findall(nodes.math_block)):
        label = block.get("label") or ""
        if label in proved:
            box = "".join(f"<p>{in_words(theorem)}</p>{statement(app, theorem)}" for theorem in proved[label])
            block["proved"] = (
                f'<button type="button" class="proved" popovertarget="proved-{label}" '
                f'aria-label="proved: {label}">proved</button>',
                f'<div popover class="theorem" id="proved-{label}"><p class="theorem-title">Proved'
                f'<button type="button" popovertarget="proved-{label}" popovertargetaction="hide" '
                f'aria-label="Close">×</button></p>{box}</div>',
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
        return self._parsed(
            [
                f"**{len(theorems())} theorems, for {len(by_label())} of the book’s {len(equations())} formulas, in "
                f"{known['lines']:,} lines. Coq {known['prover']} reads all of them on two cores in {known['seconds']} "
                "seconds.**"
            ]
        )

    def _files(self):
        boxes = {name: graph.Box(name, f"#{name}-v", title(name)[0]) for name in files()}
        edges = {n: required(n) for n in files()}
        return self._picture(boxes, edges, "The files of proofs, each below those it rests on")

    def _way(self):
        edges, boxes = way(), {}
        for item in edges:
            name, _, stated = item.partition(".")
            known = stated in theorems()
            link = f"#{stated}" if known else source(self.env.app, f"book/proofs/{name}.v", line_of(item))
            boxes[item] = graph.Box(stated, link, f"{'Theorem' if known else 'Lemma'} of {name}.v")
        return self._picture(boxes, edges, "The steps from the derivative of the exponential to the layer")

    def _theorems(self):
        """A section for each file: what it is about, and its theorems, folded."""
        found = []
        for name in as_read():
            head, about = title(name)
            section = nodes.section("", nodes.title("", head), ids=[f"{name}-v"])
            section += self._parsed([about])
            if made := definitions(name):
                parts = (f'<span id="{name}.{one}">{escape(written)}</span>' for one, written in made)
                shown = "\n".join(part.replace(f' id="{name}.None"', "") for part in parts)
                shown = f'<pre tabindex="0" role="group" aria-label="Definitions of {name}">{shown}</pre>'
                fold = f'<details class="theorem"><summary>What its names mean</summary>{shown}</details>'
                section += nodes.raw("", fold, format="html")
            section += [
                nodes.raw("", self._folded(theorem), format="html", label=theorem.label)
                for theorem in theorems().values()
                if theorem.file == name
            ]
            found.append(section)
        return found

    def _folded(self, theorem):
        summary = f"<summary><code>{theorem.name}</code> {in_words(theorem)}</summary>"
        return f'<details class="theorem" id="{theorem.name}">{summary}{statement(self.env.app, theorem)}</details>'

    def _without(self):
        """The formulas that have none, each with the reason that the table of formulas gives."""
        known = yaml.safe_load((ROOT / "book" / "formulas.yml").read_text(encoding="utf-8"))["formulas"]
        rows = [f"- {{eq}}`{label}`: {of['no theorem']}" for label, of in known.items() if "no theorem" in of]
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
