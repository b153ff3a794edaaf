"""Which known causes, one or several at once, would give what came. Chapter: :doc:`/chapters/in_the_wild`."""

from functools import cache, cached_property
from itertools import combinations, compress
from typing import NamedTuple

import numpy as np

from attnbook.diagnose.cases.run import LOWER
from attnbook.diagnose.causes._infer import factors, patterns, precisions
from attnbook.diagnose.causes.likely import likely
from attnbook.diagnose.causes.match import SMALL, apart, cost, explains, near, predicted, right_in, size, untouched
from attnbook.diagnose.causes.registry import CAUSES
from attnbook.diagnose.learn.safely import Clock
from attnbook.diagnose.steps import with_mistakes

PAIRED = 40
"""Of so many mistakes at most, each of which changes the wrong result and none that is right, all pairs are tried."""

YIELDS = ("options-ignored", "causal-other-corner", "diagonal-block-unmasked")
"""How the names begin of what a simpler cause is taken before, where both explain the same."""

OPTIONS = {"bias", "window", "softcap", "sink", "slopes", "rotary", "dropout"}
"""How the names begin of what only an option can show."""

SECONDS = 6.0
"""For so long is a cause looked for: what is simple comes first."""

FAR, FEW = 40.0, 3
"""Scores above the one are not usual; where no more than the other cases are wrong, every way is held against each."""

TOGETHER = 3
"""So many mistakes at most are put together, one for the cases that another leaves."""

ORDER = {way.slug: i for i, way in reversed(list(enumerate(CAUSES)))}
BASIC = [way for i, way in enumerate(CAUSES) if ORDER[way.slug] == i]
"""The first way of every cause."""


@cache
def classes():
    """{id(way): its steps}: a class each, made when something is wrong first."""
    return {id(way): with_mistakes(way) for way in CAUSES}


@cache
def classes_of(basic):
    """Those of all ways, or of the basic ones."""
    return tuple(classes()[id(way)] for way in (BASIC if basic else CAUSES))


class Explained(NamedTuple):
    """For each wrong result its ``causes``, each a tuple of slugs; several where no case tells them apart.

    For what has none as a whole: ``parts``, mistakes with the cases that each explains, and what is ``likely``, in
    words. ``steps`` are those of a cause.
    """

    causes: dict
    parts: dict
    steps: dict
    likely: dict


def explain(runs, wrong, known):
    """The :class:`Explained` of what is wrong: {name: the runs in which it is}.

    A cause that explains several results goes before one that explains fewer, and one that would also spoil what came
    right goes last. Two at once are tried only where one alone does not do.
    """
    if not wrong:
        return Explained({}, {}, {}, {})
    search = Search(runs, wrong, known)
    for each in (
        search.absent,
        search.alone,
        search.on_top,
        search.one_for_the_rest,
        search.pairs,
        search.on_top,
        search.rounded,
        search.imprecise,
    ):
        if search.left and search.clock.spent < SECONDS:
            search.cover(each())
    parts = {name: search.case_by_case(name) for name in search.left}
    found = search.found.values()
    causes = {name: tuple(dict.fromkeys(cause.slugs for cause in each))[:3] for name, each in search.found.items()}
    guesses = (
        {name: likely(name, where, runs) for name, where in search.left.items() if not parts[name]} if known else {}
    )
    return Explained(causes, parts, {cause.slugs: cause.steps for each in found for cause in each}, guesses)


class Cause:
    """One mistake, or several at once, held against what came; computed only as far as it agrees."""

    tier = 0

    def __init__(self, search, mistakes, level=""):
        self.mistakes = tuple(sorted(mistakes, key=lambda mistake: ORDER[mistake.slug]))
        self.slugs = tuple(dict.fromkeys(mistake.slug for mistake in self.mistakes))
        self.steps = classes()[id(mistakes[0])] if len(mistakes) == 1 else with_mistakes(*mistakes)
        self.search, self.level = search, level or search.level

    def matches(self, name, run):
        """ "yes", "harmless", or "" for no."""
        key, said = (self.steps, name, id(run), self.level), self.search.said
        if key not in said:
            prediction = predicted(run, self.steps, len(self.mistakes) == 1)
            wanted = None if prediction is None else prediction.get(name)
            if wanted is not None and untouched(run, name, prediction):
                key = (None, name, id(run), self.level)
            if key not in said:
                said[key] = self._held(run, name, wanted)
        return said[key]

    def _held(self, run, name, wanted):
        return explains(run, name, wanted) or (explains(run, name, wanted, self.level) if self.level else "")

    def explains(self, name):
        """Whether it predicts this result in every case, and no right one in half of those where it is wrong."""
        wrong, yes = len(self.search.wrong[name]), 0
        for i, run in enumerate(self.search.order[name]):  # those where it is wrong come first
            matches = self.matches(name, run)
            yes += matches == "yes"
            if not matches or 2 * (yes + max(0, wrong - i - 1)) < wrong:
                return False
        return True

    @cached_property
    def explained(self):
        """Those of the results without a cause yet that it explains."""
        return {name for name in self.search.left if self.explains(name)}

    def spoils(self, run):
        """What it changes in this case."""
        prediction = predicted(run, self.steps, len(self.mistakes) == 1)
        return {name for name in run.came.values if not run.harmless(name, prediction)}

    @cached_property
    def too_much(self):
        """How many results it would spoil that it does not explain, in small cases and where the error is simplest."""
        simplest = {id(where[0]): where[0] for where in self.search.wrong.values()}
        spoiled = set().union(*map(self.spoils, ({id(run): run for run in self.search.small} | simplest).values()))
        return len([name for name in spoiled if name not in self.search.wrong or not self.explains(name)])


class Inferred:
    """A cause that is no step, but was read from the arrays."""

    tier, too_much, level, steps, mistakes = 1, 0, "", None, ()

    def __init__(self, slug, explained):
        self.slugs, self.explained = (slug,), set(explained)


class Search:
    """All that came, what of it is wrong, and the causes that were found so far."""

    def __init__(self, runs, wrong, known):
        self.runs = sorted(runs, key=cost)
        self.small = [run for run in self.runs if cost(run) <= SMALL] or self.runs[:3]
        self.wrong = {name: sorted(where, key=cost) for name, where in wrong.items()}
        self.cheap = {name: [run for run in where if cost(run) <= 16 * SMALL] for name, where in self.wrong.items()}
        given = (run.came.options.items() for run in self.runs)
        self.given = {name.lower() for options in given for name, T in options if T is not None and T is not False}
        never = OPTIONS - self.given - ({"rotary"} if "cos" in self.given else set())
        known = {slug for slug in known if slug.partition("-")[0] not in never}
        self.ways = [way for way in CAUSES if way.slug in known]
        self.basic = [way for way in BASIC if way.slug in known]
        shown = {run.right_in(name) for run in self.small for name in run.came.values}
        self.level = "float32" if "float32" in shown else ""  # who computes in less precision makes mistakes in it
        self.found, self.said, self.order, self.clock = {}, {}, {}, Clock()
        for name, where in self.wrong.items():
            seen = set(map(id, where))
            self.order[name] = [*where, *(r for r in self.runs if id(r) not in seen and name in r.came.values)]

    @property
    def left(self):
        """What has no cause yet."""
        return {name: where for name, where in self.wrong.items() if name not in self.found}

    def _yields(self, slug):
        """Whether another cause of the same numbers is likelier: this one is about a mask, and none was given."""
        return slug.startswith(YIELDS) or (slug.startswith("mask-") and "mask" not in self.given)

    def cover(self, candidates):
        """Add the causes that explain most; several where nothing tells them apart."""
        while useful := [c for c in candidates if self.clock.spent < SECONDS and c.explained & self.left.keys()]:
            ranks = [
                (-len(c.explained & self.left.keys()), c.too_much, c.tier, any(map(self._yields, c.slugs)))
                for c in useful
            ]
            alike = [c for c, rank in zip(useful, ranks, strict=True) if rank == min(ranks)]
            for name in alike[0].explained & self.left.keys():
                self.found[name] = [c for c in alike if name in c.explained]

    # --- the searches, from what is likely to what is not

    def absent(self):
        """The graph that is cut, where no gradient came at all, and no zeros."""
        slugs = {
            f"{name.lower()}-zero" for name, where in self.left.items() if all(name in r.came.absent for r in where)
        }
        return [Cause(self, (way,)) for way in self.ways if way.slug in slugs]

    def alone(self):
        """One cause."""
        return self._singles() + self._inferred(factors)

    def on_top(self):
        """What explains another result, with one or two more that leave that result alone."""
        sure = tuple({m.slug: m for each in self.found.values() for m in each[0].mistakes}.values())
        if not sure:
            return []
        causes = [cause for name in self.left for cause in self._one_more(sure, name, self.ways)]
        if any(cause.explained for cause in causes):
            return causes
        return [pair for name in self.left for pair in self._pairs_for(name, sure, self.left)]

    def pairs(self):
        """Two that both show in the simplest case."""
        names = [name for name in self.left if self.cheap[name]]
        spoiled = {name: {n for n, where in self.wrong.items() if self.left[name][0] in where} for name in names}
        return [pair for name in names for pair in self._pairs_for(name, (), spoiled[name])]

    def one_for_the_rest(self):
        """One that explains some of the cases, and with others, one after the other, the rest."""
        causes = []
        for name in self.left:
            for way in self._most_cases(name):
                cause = Cause(self, (way,))
                for _ in range(TOGETHER - 1):
                    more = self._one_more(cause.mistakes, name, self.basic)
                    causes += more
                    if not more or any(each.explained for each in more):
                        break
                    cause = max(more, key=lambda each: sum(bool(each.matches(name, run)) for run in self.cheap[name]))
        return causes

    def rounded(self):
        """No mistake, but errors of the size of roundings."""
        return self._inferred(precisions)

    def imprecise(self):
        """One cause at the level of a lower precision, where one shows; then where errors are."""
        shown = {run.right_in(name) for run in self.small for name in run.came.values}
        for level in (level for words, level in LOWER.items() if words in shown):
            causes = self._singles(level)
            if any(cause.explained for cause in causes):
                return causes
        return self._inferred(patterns)

    def case_by_case(self, name):
        """((slug, the small cases that it explains), …), together all that are wrong but "all options", or nothing."""
        left = [run for run in self.cheap[name] if run.name != "all options"]
        found, known = [], self._cases(name)
        while left:
            in_left = lambda item: len([run for run in item[1] if run in left])  # noqa: B023, E731
            way, cases = max(known, key=in_left, default=(None, ()))
            cases = [run for run in cases if run in left]
            if not cases:
                return ()
            found.append((way, *(run.name for run in cases)))
            left = [run for run in left if run not in cases]
        ways = [Cause(self, (way,)) for way, *_ in found]
        large = (run for run in self.wrong[name] if run not in self.cheap[name] and run.name != "all options")
        if not all(any(cause.matches(name, run) == "yes" for cause in ways) for run in large):
            return ()
        return tuple((way.slug, *cases) for way, *cases in found)

    # --- what they are made of

    def _singles(self, level=""):
        """Single causes, those that are near enough where one of the results is wrong first."""
        if not self.ways:
            return []
        firsts = [(name, where[0]) for name, where in self.left.items()]
        maybe = np.any([near(run, name, classes_of(False), level or self.level) for name, run in firsts], axis=0)
        few = set(map(id, compress(CAUSES, maybe)))
        return [Cause(self, (way,), level) for way in self.ways if id(way) in few]

    def _inferred(self, how):
        return [Inferred(*each) for each in how(self.runs, self.left)] if self.ways else []

    def _one_more(self, mistakes, name, ways):
        """These with one more, that explains the simplest case that they leave."""
        cause = Cause(self, mistakes)
        rest = next((run for run in self.cheap[name] if not cause.matches(name, run)), None)
        more = [Cause(self, (*mistakes, way)) for way in ways if rest is not None and apart((*mistakes, way))]
        return [each for each in more if each.matches(name, rest) == "yes"]

    def _cases(self, name):
        """(way, the small cases that it explains), one a slug."""
        explained, ways = {way.slug: [] for way in self.basic if way.slug != "options-ignored"}, {}
        basic = len(self.cheap[name]) > FEW
        for run in self.cheap[name]:
            for way in compress(BASIC if basic else CAUSES, near(run, name, classes_of(basic), self.level)):
                cut = name in run.came.absent and way.slug not in (f"{name.lower()}-zero", "nothing-comes")
                if cut or run in explained.get(way.slug, (run,)):
                    continue
                cause = Cause(self, (way,))
                if cause.matches(name, run) == "yes" and not self._overstated(cause, run):
                    explained[way.slug].append(run)
                    ways.setdefault(way.slug, way)
        return [(ways[slug], runs) for slug, runs in explained.items() if runs]

    def _overstated(self, cause, run):
        """Whether it was seen in NaN or in scores far away alone, where many look the same, and would spoil what came
        right elsewhere."""
        Q, K = run.came.inputs[:2]
        usual = Q.ndim == K.ndim and Q.size * K.size and size(Q) * size(K) * Q.shape[-1] ** 0.5 < FAR
        if usual and all(np.isfinite(T).all() for T in run.came.values.values()):
            return False
        plain = (r for r in self.small if r.came.options.keys() <= run.came.options.keys())
        return any(right_in(each, name) for each in plain for name in cause.spoils(each))

    def _most_cases(self, name):
        """The ways that explain most of them, three at most."""
        cases = sorted(self._cases(name), key=lambda item: -len(item[1]))
        return [way for way, explained in cases[:3] if explained]

    def _pairs_for(self, name, sure, spoiled):
        """Pairs on top of what is sure, of mistakes that change this result and none but what is spoiled."""
        if not self.cheap[name]:
            return []
        run, few = self.cheap[name][0], []
        for way in self.basic:
            if not way.slug.endswith(("-in-forward", "options-ignored")) and apart((*sure, way)):
                changed = Cause(self, (way,)).spoils(run)
                few += [way] if name in changed and changed <= set(spoiled) else []
        pairs = ((*sure, *pair) for pair in combinations(few[:PAIRED], 2))
        causes = [Cause(self, pair) for pair in pairs if apart(pair)]
        return [cause for cause in causes if cause.matches(name, run) == "yes"]
