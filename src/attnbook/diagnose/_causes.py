"""Which known mistakes, made at once or in different cases, would give what came."""

from functools import cached_property
from itertools import combinations

from attnbook.diagnose.calling import NAMES
from attnbook.diagnose.mistakes import MISTAKES
from attnbook.diagnose.steps import with_mistakes


def explain(runs, wrong, known):
    """For each wrong result the causes that predict it in every case; for what has none, a mistake for each case.

    A mistake that explains several results goes before one that explains fewer, and one that would also spoil what
    came right goes last. Two at once are tried only where one alone does not do, and more only on top of what is known.
    """
    if not wrong:
        return {}, {}
    singles = [_Cause((mistake,), runs, wrong) for mistake in known.values()]
    causes = _cover(singles, wrong)
    left = wrong.keys() - causes.keys()
    if left:
        causes |= _cover([_Cause(pair, runs, wrong) for pair in combinations(known.values(), 2) if _apart(pair)], left)
        left -= causes.keys()
    if left and causes:
        sure = tuple(known[slug] for slug in dict.fromkeys(slug for each in causes.values() for slug in each[0]))
        more = (sure + extra for count in (1, 2) for extra in combinations(MISTAKES, count))
        causes |= _cover([_Cause(mistakes, runs, wrong) for mistakes in more if _apart(mistakes)], left)
        left -= causes.keys()
    return causes, {name: _case_by_case(singles, name, wrong[name]) for name in left}


def _apart(mistakes):
    """Whether they can be made at once: no two in the same step."""
    steps = [step for mistake in mistakes for step in mistake.steps]
    return len(steps) == len(set(steps))


class _Cause:
    """One mistake, or two at once, held against everything that came; computed only as far as it agrees."""

    def __init__(self, mistakes, runs, wrong):
        self.slugs, self.runs = tuple(mistake.slug for mistake in mistakes), runs
        self.steps, self.cache = with_mistakes(*mistakes), {}
        self.explained = {
            name for name, where in wrong.items() if all(self.matches(name, run) for run in (*where, *runs))
        }

    def predict(self, run):
        if run not in self.cache:
            self.cache[run] = run.predicted(self.steps)
        return self.cache[run]

    def matches(self, name, run):
        return run.matches(name, self.predict(run))

    @cached_property
    def too_much(self):
        """How many results it would spoil that it does not explain."""
        spoiled = {name for name in NAMES if any(not run.harmless(name, self.predict(run)) for run in self.runs)}
        return len(spoiled - self.explained)


def _cover(candidates, names):
    """{result: its causes}, from the cause that explains most; several where nothing tells them apart."""
    causes, left = {}, set(names)
    while useful := [c for c in candidates if c.explained & left]:
        ranks = [(-len(c.explained & left), c.too_much, "options-ignored" in c.slugs) for c in useful]
        alike = [c for c, rank in zip(useful, ranks, strict=True) if rank == min(ranks)]
        for name in alike[0].explained & left:
            causes[name] = tuple(c.slugs for c in alike if name in c.explained)[:3]
        left -= causes.keys()
    return causes


def _case_by_case(singles, name, where):
    """((slug, the wrong cases that it explains), …), together all but "all options", or nothing."""
    singles = [c for c in singles if c.slugs != ("options-ignored",)]
    found, left = [], [run for run in where if run.name != "all options"]
    while left:
        explained = [(c.slugs[0], [run for run in left if c.matches(name, run)]) for c in singles]
        slug, cases = max(explained, key=lambda item: len(item[1]))
        if not cases:
            return ()
        found.append((slug, *(run.name for run in cases)))
        left = [run for run in left if run not in cases]
    return tuple(found)
