"""The distinct errors that the wrong rows make: several rows may make the same one, and a row several."""

import re
from html import escape

from attnbook.diagnose.causes.mistakes import MISTAKE
from evidence.claims import AMBIGUOUS, WRONG

ERRORS = {
    "x-not-transposed": "The last x of the scores has no transpose",
    "d-of-the-bracket": "The d stands before a bracket in which nothing moves",
    "left-over-d": "A differential is left over in the gradient",
    "parts-of-the-jacobian": "diag(p) and ppᵀ are called the Jacobian's diagonal and the rest",
    "attribute": "wQ is assigned, WQ is read",
    "np-softmax": "NumPy is asked for a softmax",
    "digit-zero": "d0, with a digit, for dO",
    "update-first": "The weights move before the inputs' gradients are taken",
    "stored-not-read": "Arrays are kept for the backward, which does not read them",
    "heads-to-be-parallel": "Heads are taken for a way to compute one attention in parallel",
    "projection-aligns": "A projection is taken for a comparison",
    "values-are-the-sum": "V is called the weighted sum, which is AV",
    "labels-of-gradients": "dA is called the gradient through softmax, and dW an update",
    "values-left-out": "The way back leaves out the values",
    "transposed-is-contiguous": "Transposed arrays are called contiguous",
    "headings": "Gradients of L stand under the heading: gradient of Z",
    **{slug: re.sub("^[a-z](?![A-Z])", lambda m: m[0].upper(), m.title) for slug, m in MISTAKE.items()},
}
"""What each error is. Those of the catalogue of mistakes have their names there."""

IN_OUR_COPY = ("attribute", "digit-zero")
"""Errors beside a page break of our copy, which may be errors of the copy."""


class DistinctErrors:
    """A table of the distinct errors of a ledger, most rows first. Shows itself as HTML or as text."""

    def __init__(self, ledger):
        made = ledger.errors()
        self.rows = [(error, made[error]) for error in sorted(made, key=lambda error: -len(made[error]))]

    def __repr__(self):
        lines = (f"{ERRORS[error]}{self._copy(error)}: {' '.join(rows)}" for error, rows in self.rows)
        return "\n".join([f"{len(self.rows)} distinct errors", *lines])

    def _repr_html_(self):
        lines = []
        for error, rows in self.rows:
            words = escape(ERRORS[error])
            words = f'<a href="#mistake-{error}">{words}</a>' if error in MISTAKE else words
            links = " ".join(f'<a href="#row-{name.lower()}">{name}</a>' for name in rows)
            lines.append(f"<tr><td>{words}{self._copy(error)}</td><td>{links}</td></tr>")
        return (
            f'<table class="distinct-errors">\n<caption>The {len(self.rows)} distinct errors, and the rows that make '
            "them</caption>\n<thead><tr><th>error</th><th>rows</th></tr></thead>\n<tbody>\n"
            + "\n".join(lines)
            + "\n</tbody>\n</table>"
        )

    def _copy(self, error):
        return " (perhaps of our copy)" if error in IN_OUR_COPY else ""


def rows_of(slug, claims):
    """The rows that make a mistake of the catalogue, those of which one reading makes it, and those only related."""
    make, reading = (
        [c.id for c in claims if slug in c.errors and c.verdict == verdict] for verdict in (WRONG, AMBIGUOUS)
    )
    known = {c.id for c in claims} - {*make, *reading}
    return make, reading, [source for source in MISTAKE[slug].sources if source in known]
