"""One case over several ranks: what came, and on which ranks it is wrong. Chapter: :doc:`/chapters/08_checking`."""

import numpy as np

from attnbook.checks.tolerances import DIAGNOSE
from attnbook.diagnose.cases.run import EPS, Run
from attnbook.diagnose.ranks.over_ranks import OverRanks


class RanksRun(Run):
    """A :class:`attnbook.diagnose.cases.run.Run` whose predictions know how the case was split."""

    def predicted(self, steps):
        """What someone gets who goes through these steps, or None where they do not fit the case."""
        if not issubclass(steps, OverRanks):
            return super().predicted(steps)
        a = steps(*self.came.inputs, **self.came.options)
        a.split = self.case.split
        try:
            return a.results()
        except (ValueError, IndexError):  # pieces of other lengths
            return None

    def matches(self, name, prediction):
        """Whether the mistake that predicts this would give what came; in uneven pieces not every mistake fits."""
        return (prediction is None and self.case.uneven) or super().matches(name, prediction)

    def error(self, name):
        """(how far off, relative to the largest right entry; the same in words, with the ranks)."""
        error, text = super().error(name)
        ranks = self.wrong_ranks(name)
        return error, f"{text}, on {_in_words(ranks, self.case.split.ranks)}" if ranks else text

    def wrong_ranks(self, name):
        """The ranks on whose rows this result is wrong."""
        split, came, right = self.case.split, self.came.values[name], self.right[name]
        if came.shape != right.shape:
            return []
        precision = self._precision(name)
        most = DIAGNOSE[precision] * EPS[precision] * self.sizes[name]
        off = ~(np.abs(came - right) <= most)  # NaN is off
        return [rank for rank in range(split.ranks) if split.owned(name, off, rank).any()]


def _in_words(ranks, of):
    if len(ranks) == of:
        return "every rank" if of > 1 else "the only rank"
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last} of {of}" if others else f"rank {last} of {of}"
