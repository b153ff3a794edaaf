"""How a ledger of claims looks on its page: a table, its style, and the script of its two filters."""

import re
from html import escape

_INDEX = r"(model|dec|enc|kv|ij|ik|jk|il|jl|kl|[A-Za-z0-9])"
_LETTER = r"(?<![A-Za-z])(softmax|head|[db]?[A-Za-zα-ωΑ-Ω])"


def _math(text):
    """HTML of a line: W_h^Q with the h below and the Q above. Names of code, such as num_heads, stay as they are."""
    text = re.sub(rf"{_LETTER}_{_INDEX}", r"\1<sub>\2</sub>", escape(text))
    text = re.sub(r"_\{([^}]*)\}", r"<sub>\1</sub>", text)
    return re.sub(r"\^(?:\{([^}]*)\}|(\d+|[A-Za-z]))", lambda m: f"<sup>{m[1] or m[2]}</sup>", text)


def table(ledger):
    """HTML: every row, readable without a script; the site's script adds the two filters."""
    sources = list(dict.fromkeys(name.split("-")[0] for name in ledger.rows))
    rows = []
    for name, row in ledger.rows.items():
        c = row.claim
        anchor = f"row-{name.lower()}"
        chapter = re.match(r"0(\d)_", c.see)
        link = f' <a href="{escape(c.see)}">{f"Chapter {chapter[1]}" if chapter else "More"}</a>' if c.see else ""
        kind = c.verdict.split()[-1]
        lines = "".join(f"<li>{_math(line)}</li>" for line in row.comparisons())
        cells = (
            f'<th scope="row" role="rowheader"><a href="#{anchor}">{escape(name)}</a> <span>{escape(c.place)}</span>'
            f'<span class="verdict verdict-{kind}">{escape(c.verdict)}</span></th>',
            f'<td role="cell">{_math(c.says)}</td>',
            f'<td role="cell" class="{"note" if c.note else "bare"}">{_math(c.note)}{link}</td>',
            f'<td role="cell"><ul>{lines}</ul></td>',
        )
        attributes = f'role="row" id="{anchor}" data-source="{name.split("-")[0]}" data-verdict="{escape(c.verdict)}"'
        rows.append(f"<tr {attributes}>{''.join(cells)}</tr>")
    heads = ("row, place, verdict", "what it says", "convention or correction", "measured")
    head = "".join(f'<th scope="col" role="columnheader">{h}</th>' for h in heads)
    body = "\n".join(rows)
    counts = f"{len(ledger)} of {len(ledger)} rows"
    return (
        f'<div class="claims" data-sources="{" ".join(sources)}" data-verdicts="{"|".join(ledger.counts())}">\n'
        f'<p class="claims-count" role="status">{counts}</p>\n'
        '<div class="claims-scroll" role="region" tabindex="0" aria-label="Table of all claims">\n'
        f'<table role="table">\n<thead role="rowgroup"><tr role="row">{head}</tr></thead>\n'
        f'<tbody role="rowgroup">\n{body}\n</tbody>\n</table>\n</div>\n'
        f"<style>{_STYLE}</style>\n<script>{_FILTERS}</script>\n</div>"
    )


_STYLE = """
.text_html:has(.claims) { background: transparent !important; color: inherit !important; padding: 0 !important; }
.claims { container-type: inline-size; }
.claims-filters { display: flex; flex-wrap: wrap; gap: 0.5rem 1.5rem; }
.claims-filters select { margin-left: 0.5em; padding: 0.2em; font: inherit; color: inherit;
  background: var(--pst-color-surface, transparent); border: 1px solid; border-radius: 0.3em; }
.claims-filters option { color: #111; background: #fff; }
.claims-scroll { max-height: 75vh; overflow: auto; border: 1px solid var(--pst-color-border, #999); }
.claims table { border-collapse: collapse; font-size: 0.8em; line-height: 1.45; margin: 0; width: 100%;
  table-layout: fixed; }
.claims th, .claims td { padding: 0.5em 0.6em; text-align: left; vertical-align: top; overflow-wrap: anywhere;
  border-bottom: 1px solid var(--pst-color-border, #999); white-space: normal; color: inherit; background: none; }
.claims thead th { position: sticky; top: 0; z-index: 1; background: var(--pst-color-surface, #eee); }
.claims thead th:first-child { width: 7.5rem; }
.claims tbody tr { scroll-margin-top: 3.5rem; }
.claims tr:target { outline: 2px solid var(--ab-blue, #0072b2); outline-offset: -2px; }
.claims tr[hidden] { display: none; }
.claims tbody th, .claims tbody th span { font-weight: 400; }
.claims tbody th a, .claims tbody th .verdict { font-weight: 600; }
.claims ul { list-style: none; margin: 0; padding: 0; }
.claims li { margin: 0; padding-left: 0.8em; text-indent: -0.8em; }
.claims .verdict { display: block; }
.claims .verdict::before { content: "✓ "; }
.claims .verdict-wrong::before { content: "✗ "; }
.claims .verdict-ambiguous::before, .claims .verdict-open::before { content: "? "; }
.claims .verdict-wrong { color: var(--ab-orange, #b04600); }
@container (max-width: 40rem) {
  .claims table, .claims tbody, .claims tbody tr, .claims tbody th, .claims tbody td { display: block; }
  .claims thead { position: absolute; clip-path: inset(50%); height: 1px; overflow: hidden; }
  .claims table { font-size: 0.9em; }
  .claims tbody tr { padding: 0.6em; border-bottom: 2px solid var(--pst-color-border, #999); scroll-margin-top: 0; }
  .claims tbody th, .claims tbody td { padding: 0.15em 0; border: 0; }
  .claims .verdict { display: inline; margin-left: 0.5em; }
  .claims td:nth-child(2) { font-size: 1.1em; }
  .claims .note::before { content: "Convention or correction: "; opacity: 0.8; }
  .claims td:nth-child(4)::before { content: "Measured: "; opacity: 0.8; }
}
"""

_FILTERS = """
for (const box of document.querySelectorAll(".claims:not(.has-filters)")) {
  box.classList.add("has-filters");
  const rows = [...box.querySelectorAll("tbody tr")], count = box.querySelector(".claims-count");
  const bar = document.createElement("div"), chosen = {};
  bar.className = "claims-filters";
  const show = () => {
    for (const row of rows)
      row.hidden = Object.entries(chosen).some(([key, want]) => want && row.dataset[key] !== want);
    count.textContent = rows.filter(row => !row.hidden).length + " of " + rows.length + " rows";
  };
  const choices = { source: box.dataset.sources.split(" "), verdict: box.dataset.verdicts.split("|") };
  for (const [key, words] of Object.entries(choices)) {
    const label = document.createElement("label"), select = document.createElement("select");
    select.append(new Option("all", ""), ...words.map(word => new Option(word, word)));
    select.addEventListener("change", () => { chosen[key] = select.value; show(); });
    label.append(key === "source" ? "Text" : "Verdict", select);
    bar.append(label);
  }
  // Not before a reader comes near: for a page's fields a browser lays out all that stands around them.
  new IntersectionObserver((seen, observer) => {
    if (!seen.some(entry => entry.isIntersecting)) return;
    observer.disconnect();
    box.prepend(bar);
  }, { rootMargin: "100% 0%" }).observe(box);
  addEventListener("hashchange", () => {
    const row = document.getElementById(location.hash.slice(1));
    if (!rows.includes(row) || !row.hidden) return;
    for (const select of bar.querySelectorAll("select")) select.value = "";
    for (const key of Object.keys(chosen)) delete chosen[key];
    show();
    row.scrollIntoView();
  });
}
"""
