"""Which known mistakes explain what came over several ranks. Chapter: :doc:`/chapters/08_checking`."""

from functools import cached_property
from itertools import combinations

import numpy as np

from attnbook.diagnose.cases.run import largest
from attnbook.diagnose.causes.faults import FAULTS, IGNORED
from attnbook.diagnose.causes.match import apart
from attnbook.diagnose.causes.mistakes import MISTAKES
from attnbook.diagnose.ranks._likely_rank import likely
from attnbook.diagnose.ranks.catalogue import MISTAKES as OVER_RANKS
from attnbook.diagnose.ranks.over_ranks import OverRanks
from attnbook.diagnose.steps import with_steps

_ANYWHERE = ("group-sum-missing", "group-overwritten", "dq-zero", "dk-zero", "dv-zero", "nothing-comes")
_OF_TWO = ("d-local", "l-local")  # these are there for any number of ranks

KNOWN = (
    *OVER_RANKS,
    *(mistake for mistake in (*MISTAKES, *IGNORED) if mistake.slug not in _OF_TWO),
    *(fault for fault in FAULTS if fault.slug in _ANYWHERE),
)
"""All that can be recognized over several ranks."""

OTHER_RINGS = ((1, False, False), (1, False, True), (-1, True, True), (-1, False, False), (-1, False, True))
"""Other rings than the usual one, in which a mistake may give other numbers: K and V go to the rank before, and under
causal no block is skipped, where an L of −∞ is guarded against or not: the ``ring`` of :class:`OverRanks`."""

TITLES = {mistake.slug: mistake.title for mistake in OVER_RANKS}


def explain(runs, wrong):
    """({result: its causes}, {result: mistakes with the cases that each explains}, {result: what is likely}), from
    {result: where it is wrong}.

    A mistake that explains several results goes before one that explains fewer, and one that would also spoil what
    came right goes last. Two at once are tried only where one alone does not do.
    """
    causes, left = {}, wrong.keys()
    if left:
        singles = [_Cause((mistake,), runs, wrong) for mistake in KNOWN]
        causes = _cover(singles, wrong)
        left = wrong.keys() - causes.keys()
    said = {}
    for ring in OTHER_RINGS if left else ():
        more = _cover([_Cause(each.mistakes, runs, wrong, ring) for each in singles if each.steps.asked], left)
        said |= dict.fromkeys(more, _in_words(ring))
        causes |= more
        left = wrong.keys() - causes.keys()
    if left:
        few = [cause.mistakes[0] for cause in singles if any(cause.touches(name) for name in left)]
        causes |= _cover([_Cause(pair, runs, wrong) for pair in combinations(few, 2) if apart(pair)], left)
        left = left - causes.keys()
    parts = {name: _case_by_case(singles, name, wrong[name]) for name in left}
    return causes, parts, said | {name: likely(name, wrong[name], runs) for name in left if not parts[name]}


def _in_words(ring):
    turn, skipping, _ = ring
    parts = ["K and V go to the rank before"] if turn < 0 else []
    parts += [] if skipping else ["no block is skipped under causal"]
    return f"so it is in a ring where {' and '.join(parts)}"


class _Cause:
    """One mistake, or two at once, held against everything that came; computed only as far as it agrees."""

    def __init__(self, mistakes, runs, wrong, ring=None):
        self.mistakes, self.runs, self.wrong = mistakes, runs, wrong
        self.slugs = tuple(dict.fromkeys(mistake.slug for mistake in mistakes))
        self.steps, self.cache = _with(*mistakes, ring=ring), {}
        self.explained = {
            name
            for name, where in wrong.items()
            if all(self.matches(name, run) for run in (*where, *runs)) and any(self.tells(name, run) for run in where)
        }

    def predict(self, run):
        if run not in self.cache:
            self.cache[run] = run.predicted(self.steps)
        return self.cache[run]

    def matches(self, name, run):
        return run.matches(name, self.predict(run))

    def tells(self, name, run):
        """Whether it leaves a tenth of the error at most: in 16 bits what changes little is near everything."""
        prediction, came, right = self.predict(run), run.came.values[name], run.right[name]
        if prediction is None or came.shape != right.shape or not np.isfinite(came).all():
            return prediction is not None
        return largest(came - prediction[name]) <= 0.1 * largest(came - right)

    def touches(self, name):
        """Whether it changes this result where that is wrong first, and nothing that is right there."""
        run = self.wrong[name][0]
        changed = {each for each in run.came.values if not run.harmless(each, self.predict(run))}
        return name in changed and all(run in self.wrong.get(each, ()) for each in changed)

    @cached_property
    def too_much(self):
        """How many results it would spoil that it does not explain."""
        names = ("O", "dQ", "dK", "dV")
        spoiled = {name for name in names if any(not run.harmless(name, self.predict(run)) for run in self.runs)}
        return len(spoiled - self.explained)


def _cover(candidates, names):
    """{result: its causes}, from the cause that explains most; several where nothing tells them apart."""
    causes, left = {}, set(names)
    while useful := [c for c in candidates if c.explained & left]:
        ranks = [(-len(c.explained & left), c.too_much, "options-ignored" in c.slugs) for c in useful]
        alike = [c for c, rank in zip(useful, ranks, strict=True) if rank == min(ranks)]
        for name in alike[0].explained & left:
            causes[name] = tuple(dict.fromkeys(c.slugs for c in alike if name in c.explained))[:3]
        left -= causes.keys()
    return causes


def _case_by_case(singles, name, where):
    """((slug, the wrong cases that it explains), …), together all, or nothing."""
    found, left = [], list(where)
    while left:
        explained = [(c, [run for run in left if c.matches(name, run) and c.tells(name, run)]) for c in singles]
        most = max(len(cases) for _, cases in explained)
        if not most:
            return ()
        cause, cases = min((each for each in explained if len(each[1]) == most), key=lambda each: each[0].too_much)
        found.append((cause.slugs[0], *(run.name for run in cases)))
        left = [run for run in left if run not in cases]
    return tuple(found)


def _with(*mistakes, ring=None):
    """The class :class:`OverRanks` with the steps of these mistakes in the place of the right ones, in this ring."""
    steps = [step for mistake in mistakes for step in mistake.steps.items()]
    return with_steps(OverRanks, (("ring", ring or OverRanks.ring), *steps))
