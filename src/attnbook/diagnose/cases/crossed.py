"""Cases in which what a function takes meets: every pair, and three where heads are shared, causal and one thing more.

Chapter: :doc:`/chapters/in_the_wild`. Most faults need two conditions at once: a backward that forgets the window where
there is a sink is right with each alone.
"""

from dataclasses import replace
from functools import lru_cache
from itertools import combinations

import numpy as np

from attnbook.diagnose.case import Case
from attnbook.diagnose.cases._draw import Draw
from attnbook.diagnose.cases.covering import cover
from attnbook.diagnose.cases.run import wrong_in
from attnbook.diagnose.learn.results import NAMES
from attnbook.diagnose.learn.safely import Clock
from attnbook.diagnose.steps import Steps

SHARED, CAUSAL, CORNER, DEAD = "shared key heads", "causal", 'causal="bottom-right"', "dead rows"
LENGTHS, WIDTHS, BATCH, BLOCKS = "n_q ≠ n_k", "d_k ≠ d_v", "a batch", "several blocks"

OPTIONS = {
    "mask": "mask", "scale": "scale", "bias": "bias", "slopes": "slopes", "window": "window", "softcap": "softcap",
    "sink": "sink", "dropout": "dropout", "cos": "rotary", "dL": "dL",
}  # fmt: skip
"""What each option is called in a report."""

FEATURES = (SHARED, CAUSAL, CORNER, "mask", DEAD, *list(OPTIONS.values())[1:], LENGTHS, WIDTHS, BATCH, BLOCKS)
"""All that is crossed."""

SHAPES = frozenset((LENGTHS, WIDTHS, BATCH))
"""What nearly all cases of the battery have, and none of them is about."""

NO_PAIRS = {frozenset((CAUSAL, CORNER))} | {frozenset((LENGTHS, one)) for one in ("window", "slopes", "rotary")}
"""What cannot meet, or means another thing to everyone: where lengths differ, positions have no common beginning."""

SMALL, LONG = {"": (9, 9), "<": (5, 9), ">": (9, 5)}, {"": (131, 131), "<": (67, 131), ">": (131, 67)}
"""(n_q, n_k), where they are equal, and where there are fewer queries or fewer keys: in one block, and in several."""

ONE_BLOCK = 64
"""So many keys, at most, are one block."""

SECONDS, PAIRS = 6.0, 40
"""For so long is it asked about, and about so many pairs that were refused with others beside them."""


def features(inputs, options):
    """Which of :data:`FEATURES` a call has."""
    Q, K, V = inputs[:3]
    given = {OPTIONS[name] for name, T in options.items() if name in OPTIONS and T is not None and T is not False}
    causal = options.get("causal")
    told = {
        SHARED: Q.ndim > 2 and 1 < K.shape[-3] < Q.shape[-3],  # one for all may broadcast by chance
        CAUSAL: causal in (True, "top-left"),
        CORNER: causal == "bottom-right",
        LENGTHS: Q.shape[-2] != K.shape[-2] and min(Q.shape[-2], K.shape[-2]) > 1,
        WIDTHS: Q.shape[-1] != V.shape[-1],
        BATCH: Q.ndim > 3 and Q.shape[-4] > 1,
        BLOCKS: K.shape[-2] > ONE_BLOCK,
        DEAD: "mask" in given and not _allowed(inputs, options).any(axis=-1).all(),
    }
    return frozenset(given | {name for name, has in told.items() if has})


def called(run):
    return run.came.inputs, run.came.options


def _allowed(inputs, options):
    rules = {name: T for name, T in options.items() if name in ("mask", "causal", "window")}
    return np.asarray(Steps(*inputs, **rules).allowed)


def met(runs):
    """The features of the calls that were compared, and the pairs of them that were in one call."""
    each = [features(*called(run)) for run in runs if run.compared]
    pairs = {frozenset(pair) for have in set(each) for pair in combinations(have, 2)}
    return frozenset().union(*each), pairs


def missing(runs):
    """(the features of which every pair met, as far as they were taken; the pairs that did not meet)."""
    taken, pairs = met(runs)
    taken = [name for name in FEATURES if name in taken]
    return taken, [pair for pair in combinations(taken, 2) if frozenset(pair) not in pairs | NO_PAIRS]


def cross(runs, ask, draw):
    """(the runs of the least cases in which something is wrong or that have two things alone, those of the cover).

    ``ask(case)`` runs one; ``draw`` is (seed, dtype, convention). First comes a cover of all that is taken, then by two
    what was refused in it. What is wrong there, and was right in ``runs``, is asked with less and less, until each
    thing that is left matters.
    """
    clock = Clock()
    asked = (ask(case) for case in _cover(*draw, met(runs)[0]) if clock.spent < SECONDS)
    cover_, least = list(asked), []
    for pair in missing([*runs, *cover_])[1][:PAIRS]:
        if clock.spent < SECONDS:
            least.append(ask(_pair(*draw, pair)))
    told = [run for run in [*runs, *least] if run.name != "long sums"]  # which may be a note, and no finding
    known = [(features(*called(run)) - SHAPES, wrong) for run in told if (wrong := _wrong(run))]
    for run in cover_:
        wrong = _wrong(run)
        if wrong and not any(less <= features(*called(run)) and wrong <= spoiled for less, spoiled in known):
            small = _least(run, wrong, ask, draw, clock)
            known.append((features(*called(small)), _wrong(small)))
            least += [small] if all(small.case is not each.case for each in least) else []
    took = lambda run: run.came.kind != "not run"  # noqa: E731
    again = {run.case for run in least}
    return list(filter(took, least)), [run for run in cover_ if run.case not in again and took(run)]


def _wrong(run):
    """Which results are wrong in this call; those of options only where all others are right."""
    wrong = set(wrong_in([run])) if run.compared else set()
    return wrong & set(NAMES) or wrong


def _least(run, wrong, ask, draw, clock):
    """The run of the least that is wrong still, where a thing more is left out each time."""
    row = run.case.row
    for name in reversed(FEATURES):
        less = row | {key: type(each)() for key, each in row.items() if name in (key, each)}
        if less != row and sum(map(bool, less.values())) and clock.spent < 2 * SECONDS:
            smaller = ask(_of_row(*draw, tuple(less.items())))
            if wrong & _wrong(smaller):
                run, row = smaller, less
    return run


@lru_cache(maxsize=64)
def _cover(seed, dtype, convention, taken):
    """The cases that cover what is taken."""
    options = [name for name in OPTIONS.values() if name in taken and name != "mask"]
    factors = {
        SHARED: (False, True)[: 1 + (SHARED in taken)],
        CAUSAL: ("", *(name for name in (CAUSAL, CORNER) if name in taken)),
        "mask": ("", *(name for name in ("mask", DEAD) if name in taken)),
        LENGTHS: ("", *(("<", ">")[: 1 + convention.more_queries] if LENGTHS in taken else ())),
    } | {name: (False, True) for name in (*options, WIDTHS, BATCH, BLOCKS) if name in taken}
    triples = [(SHARED, CAUSAL, name) for name in ("mask", *options)] if SHARED in taken else []
    apart = lambda row: row[LENGTHS] and any(row[one] for one in ("window", "slopes", "rotary") if one in factors)  # noqa: E731
    rows = cover(factors, triples=triples, forbids=apart)
    return [_of_row(seed, dtype, convention, tuple(row.items())) for row in rows if sum(map(bool, row.values())) > 1]


def _pair(seed, dtype, convention, pair):
    row = {CAUSAL: next((name for name in pair if name in (CAUSAL, CORNER)), "")}
    row["mask"] = next((name for name in pair[::-1] if name in ("mask", DEAD)), "")
    row[LENGTHS] = "<" if LENGTHS in pair else ""
    row |= {name: True for name in pair if name not in (CAUSAL, CORNER, "mask", DEAD, LENGTHS)}
    return _of_row(seed, dtype, convention, tuple(row.items()))


@lru_cache(maxsize=1024)
def _of_row(seed, dtype, convention, row):
    """The case that has what the row says; the same one each time."""
    return _case(Draw(Case, seed + 1, dtype, convention), dict(row))


def _case(draw, row):
    """The case that has what the row says."""
    long, h = row.get(BLOCKS), 4 if row.get(SHARED) else draw.h
    n_q, n_k = (LONG if long else SMALL)[row[LENGTHS]]
    d_k, d_v = (12, 10) if row.get(WIDTHS) else (12, 12)
    lead = (draw.b if row.get(BATCH) else 1, h)
    options = {"causal": {CAUSAL: True, CORNER: "bottom-right"}[row[CAUSAL]]} if row[CAUSAL] else {}
    drawn = {
        "mask": draw.mask("b", 1, "q", "k", dead=row["mask"] == DEAD),
        "scale": 0.7,
        "bias": draw.table("b", "h", "q", "k"),
        "slopes": lambda lead, n_q, n_k: 2.0 ** -np.arange(1.0, lead[-1] + 1),
        "window": (40, 9) if long else (3, 1),
        "softcap": 1.5,
        "sink": draw.of_heads(),
        "dropout": 0.3,
        "dL": draw.of_rows(),
    }
    options |= {name: T for name, T in drawn.items() if row.get(OPTIONS[name])}
    of = (n_q, n_k, d_k, max(n_q, n_k, d_k + 1) if row.get("dropout") else d_v)
    if row.get("rotary"):
        options |= draw.angles(of)
    names = [name for name in FEATURES if row.get(name) is True or name in row.values()]
    names += [LENGTHS] if row[LENGTHS] else []
    case = draw.case(
        ", ".join(names), lead, of=of, optional=True, **options,
        lead_k=(lead[0], 2) if row.get(SHARED) else None,
    )  # fmt: skip
    if row["mask"] == "mask":
        _let_each_row_live(case)
    case = draw.told(case) if row.get("dropout") else case
    for T in (*case.inputs, *case.options.values()):
        if isinstance(T, np.ndarray):
            T.flags.writeable = False
    return replace(case, row=row)


def _let_each_row_live(case):
    """Allow each row the first key that the other rules allow it: what a row is that has none, is another question."""
    others = {name: T for name, T in case.options.items() if name != "mask"}
    M = case.options["mask"]
    first = _allowed(case.inputs, others)
    first = first & (np.cumsum(first, axis=-1) == 1)
    M |= first.reshape((1,) * (M.ndim - first.ndim) + first.shape)
