"""Gradients that do not come: what is left is judged without them. Chapter: :doc:`/chapters/08_checking`."""

from functools import wraps

import numpy as np

from attnbook.diagnose.learn.results import NAMES
from attnbook.diagnose.learn.safely import sentence
from attnbook.diagnose.steps import Steps
from attnbook.diagnose.wording import in_cases


class Gaps:
    """The gradients that a function lacks, by the case that is being asked, which whoever asks sets as ``case``."""

    def __init__(self):
        self.case, self._seen = None, {}

    def noted(self, fn):
        """``fn``, with a note of what it lacks. What its backward raised is raised."""

        @wraps(fn)
        def call(*inputs, **options):
            results = fn(*inputs, **options)
            for name, T in self._lacking(results, inputs[3]).items():
                why = "None, expected an array" if T is None else f"the backward raised {sentence(T)}"
                cases = self._seen.setdefault(why, {}).setdefault(name, [])
                cases += [self.case] if self.case and self.case not in cases else []
            if isinstance(results, list):
                for T in filter(lambda T: isinstance(T, Exception), results):
                    raise T
            return results

        return call

    def filled(self, fn):
        """``fn``, with the right gradients in place of those that it lacks."""

        @wraps(fn)
        def call(*inputs, **options):
            results = fn(*inputs, **options)
            lacking = self._lacking(results, inputs[3])
            if not lacking:
                return results
            right = Steps(*(T.astype(np.float64) for T in inputs), **options).run()
            came = results if isinstance(results, list) else [results] * 4
            return [
                R.astype(inputs[0].dtype) if name in lacking else T
                for name, T, R in zip(NAMES, came, right, strict=True)
            ]

        return call

    @property
    def names(self):
        """The gradients that did not come."""
        return {name for cases in self._seen.values() for name in cases}

    @property
    def cases(self):
        """The cases in which some did not."""
        return {case for names in self._seen.values() for cases in names.values() for case in cases}

    def why(self):
        """What did not come, in lines."""
        return [
            f"{', '.join(names)}: {in_cases(next(iter(names.values())))}: {text}" for text, names in self._seen.items()
        ]

    def _lacking(self, results, dO):
        """{gradient: None, or what its backward raised}; O alone lacks all."""
        if isinstance(results, np.ndarray) and results.shape == dO.shape:
            return dict.fromkeys(NAMES[1:])
        if not isinstance(results, list) or len(results) != 4:
            return {}
        return {n: T for n, T in zip(NAMES[1:], results[1:], strict=True) if T is None or isinstance(T, Exception)}
