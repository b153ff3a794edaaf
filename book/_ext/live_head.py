"""``{live-head}``: one head whose numbers the reader changes. Its first state is computed here, and needs no script.

``book/_head`` has the script, to which ``steps_in_js`` adds the package's steps and mistakes. Only pages that have the
head load it.
"""

import re
from functools import cache
from html import escape
from inspect import getsource
from pathlib import Path

import numpy as np
from docutils import nodes
from equations import ROOT
from sphinx.util.docutils import SphinxDirective
from steps_in_js import all_mistakes, script

import attnbook as ab
from attnbook.checks.tolerances import DIFFERENCES, EXACT, STEP
from attnbook.diagnose import steps
from attnbook.diagnose.causes import mistakes
from attnbook.diagnose.causes.mistakes import MISTAKES
from attnbook.diagnose.steps import Steps

PARTS = [
    ROOT / "book" / "_head" / name
    for name in ("arrays.js", "compute.js", "state.js", "page.js", "hands.js", "begin.js")
]
MARKUP = ROOT / "book" / "_head" / "head.html"
SCRIPT = "live_head.js"
FIRST = {
    "Q": np.array([[1.0, 0.5], [-0.5, 1.0]]),
    "K": np.array([[1.0, -0.2], [0.3, 1.0], [-1.0, 0.5]]),
    "V": np.array([[1.0, 0.0], [0.2, 1.0], [-0.5, -1.0]]),
    "dO": np.array([[1.0, -0.6], [0.4, 0.8]]),
}
CAPTIONS = {  # the rows of the head: each matrix with what it is
    "given": {"Q": "queries", "K": "keys", "V": "values", "dO": "from the loss", "scale": "", "mask": "may look"},
    "forward": {"S": "scale · Q Kᵀ", "P": "softmax(S)", "L": "log Σ eˢ", "O": "P V"},
    "back": {
        "dP": "dO Vᵀ", "D": "Σ P∘dP", "dS": "P ∘ (dP − D)", "dQ": "scale · dS K", "dK": "scale · dSᵀ Q",
        "dV": "Pᵀ dO",
    },
}  # fmt: skip
TITLES = {  # and what one can do there
    "given": ("Given", "Change any number: type, drag, or press ↑ ↓"),
    "forward": ("Forward", ""),
    "back": ("Back", "Point at, or tap, an entry of dQ, dK or dV."),
}
OF_KEYS, TO_KEYS = {"K", "V", "dK", "dV"}, {"mask", "S", "P", "dP", "dS"}  # a row for each key, a column for each
THIRD = ' data-key=""'  # what goes where there are as many keys as queries
NEEDS = {  # which numbers show a mistake
    "": lambda d: {},
    "a forbidden key": lambda d: {"mask": np.array([[True, True, False], [True, False, True]])},
    "a query that may look at nothing": lambda d: {"mask": np.array([[False] * 3, [True] * 3])},
    "scores so large that their exponentials overflow": lambda d: {"Q": 900 * d["Q"], "K": 9 * d["K"]},
}


class live_head(nodes.General, nodes.Element):  # noqa: N801 (docutils names classes so)
    """The place of the head on a page."""


class LiveHead(SphinxDirective):
    """The head; it takes nothing."""

    def run(self):
        for path in (*PARTS, MARKUP, *(Path(module.__file__) for module in (mistakes, steps))):
            self.env.note_dependency(str(path))
        return [live_head(ids=["live-head"])]


def results(Q, K, V, dO, mask, scale=None):
    """Every matrix that follows from these, by name, from the package."""
    O, res = ab.attention(Q, K, V, mask=mask, scale=scale, method="dense")
    grads, dP = ab.attention_vjp(dO, res), dO @ V.T
    S = np.where(mask, res.plan.scale * (Q @ K.T), -np.inf)
    D = (res.P * dP).sum(axis=-1, keepdims=True)
    found = {"S": S, "P": res.P, "L": res.L[:, None], "O": O, "dP": dP, "D": D, "dS": ab.softmax_vjp(dP, res.P)}
    return found | {"dQ": grads.dQ, "dK": grads.dK, "dV": grads.dV}


def first_state():
    """Every matrix of the head as it is first seen."""
    numbers = {**FIRST, "mask": np.ones((2, 3), dtype=bool)}
    return numbers | results(**numbers)


def number(x):
    """Two decimals, as page.js writes them."""
    return f"{x + 0.0:.2f}".replace("-", "−")


def matrix(name, T, caption):
    """A table with its numbers, colored by their size."""
    largest = np.max(np.abs(T)) or 1.0

    def cell(i, j, x):
        of_key = THIRD if name in TO_KEYS and j == 2 else ""
        if name == "mask":
            return f"<td{of_key}>✓</td>"
        sign = "-" if x < 0 else "+"
        shade = "" if name in FIRST else f' style="--c: {abs(x) / largest:.3f}" data-sign="{sign}"'
        text = f"{x:g}".replace("-", "−") if name in FIRST else number(x)
        return f"<td{of_key}{shade}>{text}</td>"

    rows = (
        f"<tr{THIRD if name in OF_KEYS and i == 2 else ''}>{''.join(cell(i, j, x) for j, x in enumerate(row))}</tr>"
        for i, row in enumerate(T)
    )
    return (
        f'<table data-name="{name}"><caption><b>{name}</b> <span>{caption}</span></caption>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def row(title, captions):
    """One row of the head."""
    state = first_state()
    scale = '<table data-name="scale"><caption><b>scale</b> <span>&nbsp;</span></caption><tr><td>1/√2</td></tr></table>'
    tables = (scale if name == "scale" else matrix(name, state[name], of) for name, of in captions.items())
    said, hint = TITLES[title]
    hint = hint and f'<span class="head-hint">{hint}</span>'
    return f'<div class="head-row" data-row="{title}"><p><b>{said}</b> {hint}</p>{"".join(tables)}</div>'


def same(found, right):
    """Whether all results are, up to rounding."""
    return all(f.shape == r.shape and np.allclose(f, r, atol=EXACT) for f, r in zip(found, right, strict=True))


@cache
def offered():
    """The mistakes that this head can show, by slug, each with what it takes."""
    with_steps, _ = all_mistakes()
    known = {}
    for mistake in MISTAKES:
        for need, change in NEEDS.items():
            numbers = {**FIRST, "mask": np.ones((2, 3), dtype=bool)}
            numbers |= change(numbers)
            try:
                shown = not same(mistake.run(**numbers), Steps(**numbers).run())
            except ValueError:  # its shapes do not fit
                shown = True
            if shown and mistake.slug in with_steps:
                known[mistake.slug] = need
                break
    return known


def groups():
    """The title of each part of the catalogue, with its mistakes that this head can show."""
    parts = re.split(r"^    # --- (.*)$", getsource(mistakes), flags=re.MULTILINE)[1:]
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        found = [m for m in MISTAKES if f'"{m.slug}",' in text and m.slug in offered()]
        if found:
            yield title, found


def options():
    for title, found in groups():
        yield f'<optgroup label="{escape(title)}">'
        for m in found:
            yield f'<option value="{m.slug}" data-needs="{offered()[m.slug]}">{escape(m.title)}</option>'
        yield "</optgroup>"
    more = len(MISTAKES) - len(offered())
    yield f"<option disabled>{more} more need several heads, a causal corner or other widths</option>"


def html(wild):
    """The whole head; ``wild`` is the address of the appendix."""
    rows = "".join(row(title, captions) for title, captions in CAPTIONS.items())
    return (
        MARKUP.read_text(encoding="utf-8")
        .replace("<!-- rows -->", rows)
        .replace("<!-- options -->", "".join(options()))
        .replace("WILD", wild)
    )


def write_html(translator, node):
    builder = translator.builder
    translator.body.append(html(builder.get_relative_uri(builder.current_docname, "chapters/in_the_wild")))
    raise nodes.SkipNode


def code():
    """The whole script: what the parts define is theirs alone."""
    texts = [path.read_text(encoding="utf-8") for path in PARTS]
    arrays, compute, state, page, hands, begin = (re.sub(r"^\s*//.*\n", "", text, flags=re.MULTILINE) for text in texts)
    direction = np.random.default_rng(0).normal(size=(3, 2)).tolist()
    given = (
        f"const TOLERANCES = {{ step: {STEP}, differences: {DIFFERENCES}, exact: {EXACT} }};\n"
        f"const DIRECTION = {direction};\n"
    )
    return '(() => {\n"use strict";\n' + "".join(
        [arrays, script(offered()), given, compute, state, "function begin() {\n", page, hands, "}\n", begin, "})();\n"]
    )


def write_script(app):
    if app.builder.format == "html":
        static = Path(app.outdir, "_static")
        static.mkdir(parents=True, exist_ok=True)
        (static / SCRIPT).write_text(code(), encoding="utf-8")


def add_script(app, pagename, templatename, context, doctree):
    if doctree is not None and next(doctree.findall(live_head), None) is not None:
        app.add_js_file(SCRIPT, defer="defer")


def setup(app):
    app.add_node(live_head, html=(write_html, None))
    app.add_directive("live-head", LiveHead)
    app.connect("builder-inited", write_script)
    app.connect("html-page-context", add_script)
    return {"parallel_read_safe": True}
