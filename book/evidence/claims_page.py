"""How a ledger of claims looks on its page: a list for each text, folded on a screen and open on paper."""

import re
from html import escape

_INDEX = r"(model|dec|enc|kv|ij|ik|jk|il|jl|kl|[A-Za-z0-9])"
_LETTER = r"(?<![A-Za-z])(softmax|head|[db]?[A-Za-zα-ωΑ-Ω])"


def _math(text):
    """HTML of a line: W_h^Q with the h below and the Q above. Names of code, such as num_heads, stay as they are."""
    text = re.sub(rf"{_LETTER}_{_INDEX}", r"\1<sub>\2</sub>", escape(text))
    text = re.sub(r"_\{([^}]*)\}", r"<sub>\1</sub>", text)
    return re.sub(r"\^(?:\{([^}]*)\}|(\d+|[A-Za-z]))", lambda m: f"<sup>{m[1] or m[2]}</sup>", text)


def page(ledger):
    """HTML: every row, readable without a script."""
    texts = "\n".join(_text(ledger, key, title) for key, title in ledger.texts.items() if ledger.of_text(key))
    return f'<div class="claims">\n<style>{_STYLE}</style>\n{texts}\n</div>'


def _text(ledger, key, title):
    rows = ledger.of_text(key)
    counts = ", ".join(f"{n} {_kind(verdict)}" for verdict, n in ledger.counts(key).items() if n)
    items = "\n".join(_row(name, row) for name, row in rows.items())
    summary = f"<b>{escape(title)}</b>{f' ({key})' if key in rows or key[-1:].isdigit() else ''}: {counts}"
    return f"<details>\n<summary>{summary}</summary>\n<ul>\n{items}\n</ul>\n</details>"


def _row(name, row):
    c, anchor = row.claim, f"row-{name.lower()}"
    chapter = re.match(r"(\d\d)_", c.see)
    link = f' <a href="{escape(c.see)}">{f"Chapter {int(chapter[1])}" if chapter else "More"}</a>' if c.see else ""
    note = f'<p class="note">{_math(c.note)}{link}</p>' if c.note or link else ""
    return (
        f'<li id="{anchor}"><p class="head"><a href="#{anchor}">{escape(name)}</a> '
        f'<span class="verdict {_kind(c.verdict)}">{escape(c.verdict)}</span> <span>{escape(c.place)}</span></p>'
        f'<div><p class="says">{_math(c.says)}</p>{note}'
        f'<p class="measured">{_math(row.text())}</p></div></li>'
    )


def _kind(verdict):
    """One word: holds, convention, ambiguous, wrong, open."""
    return verdict.split()[-1]


_STYLE = """
.text_html:has(.claims, .counterexample, .distinct-errors) { background: transparent !important;
  color: inherit !important; padding: 0 !important; }
.claims details { border-bottom: 1px solid var(--pst-color-border, #999); }
.claims summary { padding: 0.5em 0; cursor: pointer; }
.claims ul { list-style: none; margin: 0; padding: 0; font-size: 0.88em; line-height: 1.45; }
.claims li { display: grid; grid-template-columns: 10.5em 1fr; gap: 0 1em; padding: 0.45em 0.3em; margin: 0;
  border-top: 1px solid var(--pst-color-border, #999); overflow-wrap: anywhere; scroll-margin-top: 4rem; }
.claims li:target { outline: 2px solid var(--ab-blue, #0072b2); outline-offset: -2px; }
.claims p { margin: 0; }
.claims .head > * { display: block; }
.claims .head a, .claims .verdict { font-weight: 600; }
.claims .note::before { content: "→ "; }
.claims .measured { font-size: 0.92em; color: var(--pst-color-text-muted, #555); }
.claims .verdict { color: var(--ab-green, #00795a); }
.claims .verdict::before { content: "✓ "; }
.claims .verdict.convention { color: var(--ab-blue, #0072b2); }
.claims .verdict.ambiguous { color: var(--ab-purple, #a3437b); }
.claims .verdict.ambiguous::before { content: "? "; }
.claims .verdict.wrong { color: var(--ab-orange, #c24e00); }
.claims .verdict.wrong::before { content: "✗ "; }
.claims .verdict.open { color: inherit; }
.claims .verdict.open::before { content: "… "; }
.counterexample p { margin: 0 0 0.3em; font-size: 0.92em; }
.counterexample details { margin-bottom: 0.8em; }
.counterexample summary { cursor: pointer; font-size: 0.92em; }
.counterexample pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0.3em 0; }
.distinct-errors td { text-align: left !important; vertical-align: top; overflow-wrap: normal; }
.distinct-errors td + td { min-width: 8em; }
@media (max-width: 600px) {
  .claims li { display: block; }
  .claims .head > * { display: inline; margin-right: 0.4em; }
}
@media print {
  .claims ul { columns: 2; column-gap: 2em; font-size: 0.75em; line-height: 1.3; }
  .claims li { display: block; break-inside: avoid; padding: 0.25em 0; }
  .claims .head > * { display: inline; margin-right: 0.4em; }
  .cell:has(.counterexample) { margin: 0 !important; }
  .counterexample pre { columns: 2; padding: 0.2em 0.4em; margin: 0; font-size: 0.72em; line-height: 1.25; }
  .counterexample p, .counterexample details { margin: 0; font-size: 0.88em; }
  section[id*="mistake-"] > h4 { margin: 0.9em 0 0.1em; font-size: 1.05em; }
  section[id*="mistake-"] > p { margin-bottom: 0.2em; }
  .counterexample summary { display: block; font-size: 0.8em; line-height: 1.2; }
}
"""
