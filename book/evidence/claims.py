"""A ledger of claims: what a text says, next to what running it gives. Chapter: :doc:`/chapters/in_the_wild`.

A claim is a row of data and a small function. The function returns comparisons by name; each says beforehand whether
its two sides are the same or differ, and running the claim asserts exactly that. The first comparison is the claim
itself, read as its verdict says: it must differ if the claim is wrong, and be the same if it is anything else.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from attnbook.checks.check import close
from evidence.claims_page import page

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
    see: str  # where the book explains it: an anchor of the appendix or a chapter
    run: Callable | None  # setting -> {name: Same, Differs or Raises}; None: judged by reading
    errors: tuple = ()  # which errors it makes if it is wrong, or one way to read it makes if it is ambiguous


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
    """All rows of all claims, run at every setting. Shows itself as lists; ``ledger["S2-10"]`` is one row.

    ``texts`` names each text by what its rows begin with; the last takes the rows that belong to none.
    """

    def __init__(self, claims, settings, texts=None):
        self.rows, self.texts = {}, texts or {"": "All"}
        for claim in claims:
            if claim.id in self.rows:
                raise ValueError(f"two claims are called {claim.id}")
            self.rows[claim.id] = Row(claim, run(claim, settings))

    def __getitem__(self, name):
        return self.rows[name]

    def __len__(self):
        return len(self.rows)

    def of_text(self, text):
        """The rows of one text."""
        last = list(self.texts)[-1]
        of = {name: next((key for key in self.texts if name.startswith(key)), last) for name in self.rows}
        return {name: row for name, row in self.rows.items() if of[name] == text}

    def counts(self, text=None):
        """How many claims have each verdict, of one text or of all."""
        rows = self.rows if text is None else self.of_text(text)
        counted = Counter(row.claim.verdict for row in rows.values())
        return {verdict: counted[verdict] for verdict in VERDICTS}

    def errors(self):
        """The distinct errors that the wrong rows make, each with its rows."""
        made = {}
        for name, row in self.rows.items():
            for error in row.claim.errors if row.claim.verdict == WRONG else ():
                made.setdefault(error, []).append(name)
        return made

    def by_reading(self):
        """The claims that no code can run."""
        return [name for name, row in self.rows.items() if row.claim.run is None]

    def __repr__(self):
        lines = [f"{n:4} {verdict}" for verdict, n in self.counts().items()]
        lines[VERDICTS.index(WRONG)] += f": {len(self.errors())} distinct errors"
        return "\n".join([f"{len(self)} claims, {len(self.by_reading())} of them judged by reading", *lines])

    def _repr_html_(self):
        return page(self)


def recorder(claims):
    """A decorator that appends a :class:`Claim` for the function below it, and a function for claims without one."""

    def claim(name, place, says, verdict, note="", see="", errors=()):
        def keep(run):
            claims.append(Claim(name, place, says, verdict, note, see, run, errors))
            return run

        return keep

    def reading(name, place, says, verdict, note, see="", errors=()):
        claims.append(Claim(name, place, says, verdict, note, see, None, errors))

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
    assert claim.errors or claim.verdict != WRONG, f"{claim.id} is wrong, and does not say which error it makes"
    assert not claim.errors or claim.verdict in (WRONG, AMBIGUOUS), f"{claim.id} is not wrong, and names an error"
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
