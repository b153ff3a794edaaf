"""A ledger of claims: what a text says, next to what running it gives. Chapter: :doc:`/chapters/07_in_the_wild`.

A claim is a row of data and a small function. The function returns comparisons by name; each says beforehand whether
its two sides are the same or differ, and running the claim asserts exactly that. The first comparison is the claim
itself, read as its verdict says: it must differ if the claim is wrong, and be the same if it is anything else.
"""

import re
from collections import Counter
from collections.abc import Callable
from html import escape
from typing import NamedTuple

import numpy as np

from attnbook.checks.check import close

HOLDS, CONVENTION, AMBIGUOUS = "holds", "holds under a convention", "ambiguous"
WRONG, MISSING = "wrong", "left open"
VERDICTS = (HOLDS, CONVENTION, AMBIGUOUS, WRONG, MISSING)


class Same(NamedTuple):
    """Two sides that must be equal to rounding at every size. ``came`` may be a function, called when compared."""

    came: object
    truth: object


class Differs(NamedTuple):
    """Two sides that must not be equal at some size, or cannot be compared because ``came`` does not fit together."""

    came: object
    truth: object


class Raises(NamedTuple):
    """A call that must raise this exception, and no other, at every size."""

    came: Callable
    error: type[Exception]


class Claim(NamedTuple):
    """One claim of one text."""

    id: str
    place: str
    says: str
    verdict: str
    note: str  # the convention, the correction, or why it cannot be run
    see: str  # where the book explains it: an anchor of chapter 07 or a chapter
    run: Callable | None  # setting -> {name: Same, Differs or Raises}; None: judged by reading


class Row(NamedTuple):
    """A claim after it was run: for each of its comparisons, what came out at each size."""

    claim: Claim
    measured: dict

    def comparisons(self):
        """What came of each comparison, in words, each figure once."""
        if not self.measured:
            return ["by reading"]
        parts = []
        for name, (_, outcomes) in self.measured.items():
            by_size = outcomes if len(set(outcomes.values())) > 1 else {"": next(iter(outcomes.values()))}
            parts.append(f"{name}: " + ", ".join(f"{what}{size and f' ({size})'}" for size, what in by_size.items()))
        return parts

    def text(self):
        """All of it in a line."""
        return "; ".join(self.comparisons())

    def __repr__(self):
        head = f"{self.claim.id}, {self.claim.verdict}: {self.claim.says}"
        return "\n".join([head, *(f"    {line}" for line in self.comparisons())])


class Ledger:
    """All rows of all claims, run at every setting. Shows itself as a table; ``ledger["S2-10"]`` is one row."""

    def __init__(self, claims, settings):
        self.rows = {}
        for claim in claims:
            if claim.id in self.rows:
                raise ValueError(f"two claims are called {claim.id}")
            self.rows[claim.id] = Row(claim, run(claim, settings))

    def __getitem__(self, name):
        return self.rows[name]

    def __len__(self):
        return len(self.rows)

    def counts(self):
        """How many claims have each verdict."""
        counted = Counter(row.claim.verdict for row in self.rows.values())
        return {verdict: counted[verdict] for verdict in VERDICTS}

    def by_reading(self):
        """The claims that no code can run."""
        return [name for name, row in self.rows.items() if row.claim.run is None]

    def __repr__(self):
        return "\n".join([f"{len(self)} claims", *(f"{n:4} {verdict}" for verdict, n in self.counts().items())])

    def _repr_html_(self):
        return _table(self)


def recorder(claims):
    """A decorator that appends a :class:`Claim` for the function below it, and a function for claims without one."""

    def claim(name, place, says, verdict, note="", see=""):
        def keep(run):
            claims.append(Claim(name, place, says, verdict, note, see, run))
            return run

        return keep

    def reading(name, place, says, verdict, note, see=""):
        claims.append(Claim(name, place, says, verdict, note, see, None))

    return claim, reading


def outcome(came, truth):
    """How far ``came`` is off, in two digits; or why it cannot be compared. None where the two are equal."""
    if callable(came):
        try:
            came = came()
        except ValueError:  # what arrays raise that do not fit; any other error is a slip of ours, and is not caught
            return "does not fit"
    if isinstance(truth, bool | int | tuple):  # a fact, a count or a shape rather than a figure
        return None if came == truth else "no" if truth is True else f"{came}, not {truth}"
    came, truth = np.asarray(came, dtype=float), np.asarray(truth, dtype=float)
    if came.shape != truth.shape:
        return f"shape {came.shape} for {truth.shape}".replace(",)", ")")
    if close(came, truth):
        return None
    if not np.all(np.isfinite(came)):
        return "NaN"
    off, size = np.max(np.abs(came - truth)), np.max(np.abs(truth))
    return f"off by {off / size if size > 1e-9 else off:.2g}"


def agreed(truth):
    """What is said where both sides are the same: a fact as yes or no, a count as it is, all else as equal."""
    if isinstance(truth, bool):
        return "yes" if truth else "no"
    return str(truth) if isinstance(truth, int) else "equal"


def raised(call, error):
    """The name of the exception, which must be this one; None where nothing was raised."""
    try:
        call()
    except error as came:
        return type(came).__name__
    return None


def run(claim, settings):
    """Run one claim at every setting, and assert what it declares. Returns the outcomes, for a :class:`Row`."""
    if claim.run is None:
        assert claim.note, f"{claim.id} is not run, and does not say why"
        return {}
    found, same_as = {}, {}
    for setting in settings:
        for name, compared in claim.run(setting).items():
            kind, outcomes = found.setdefault(name, (type(compared), {}))
            outcomes[setting.name] = (raised if kind is Raises else outcome)(*compared)
            same_as[name, setting.name] = agreed(compared[1])
    for name, (kind, outcomes) in found.items():
        bad = {size: what for size, what in outcomes.items() if what}
        if kind is Same:
            assert not bad, f"{claim.id}, {name}: should be equal, but {bad}"
        else:
            assert bad, f"{claim.id}, {name}: should differ, but is equal at every size"
        outcomes.update({size: same_as[name, size] for size in outcomes if size not in bad})
    same = [kind is Same for kind, _ in found.values()]
    shown = {
        HOLDS: same and all(same),
        CONVENTION: same and same[0] and not all(same),
        AMBIGUOUS: same and same[0] and not all(same),
        WRONG: same and not same[0],
        MISSING: same and same[0],
    }
    assert shown[claim.verdict], f"{claim.id}: the comparisons do not show the verdict '{claim.verdict}'"
    return found


_INDEX = r"(model|dec|enc|kv|ij|ik|jk|il|jl|kl|[A-Za-z0-9])"
_LETTER = r"(?<![A-Za-z])(softmax|head|[db]?[A-Za-zα-ωΑ-Ω])"


def _math(text):
    """HTML of a line: W_h^Q with the h below and the Q above. Names of code, such as num_heads, stay as they are."""
    text = re.sub(rf"{_LETTER}_{_INDEX}", r"\1<sub>\2</sub>", escape(text))
    text = re.sub(r"_\{([^}]*)\}", r"<sub>\1</sub>", text)
    return re.sub(r"\^(?:\{([^}]*)\}|(\d+|[A-Za-z]))", lambda m: f"<sup>{m[1] or m[2]}</sup>", text)


def _table(ledger):
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
        f'<div class="claims" data-sources="{" ".join(sources)}" data-verdicts="{"|".join(VERDICTS)}">\n'
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
