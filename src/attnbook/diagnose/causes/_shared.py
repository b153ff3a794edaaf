"""What a mistake leaves as it is, taken from the right calculation. Chapter: :doc:`/chapters/08_checking`.

A thousand ways to be wrong are held against what came, and most of them change a step or two near the end.
"""

import numpy as np

from attnbook.diagnose.steps import Steps, step

PARTS = {name: part for name, part in vars(Steps).items() if callable(part) or isinstance(part, step)}
"""The steps, and the methods that they are made with: what a mistake may replace."""


class Watched(Steps):
    """The right calculation, which keeps for each step what it asked for."""

    def __init__(self, *inputs, **options):
        vars(self).update(asked={"": set()}, computing=[""])
        super().__init__(*inputs, **options)

    def __getattribute__(self, name):
        get = super().__getattribute__
        if name not in PARTS or name.startswith("__"):
            return get(name)
        kept, computing = get("__dict__"), get("computing")
        kept["asked"][computing[-1]].add(name)
        if name in kept or not isinstance(PARTS[name], step):
            return get(name)
        kept["asked"][name] = set()
        computing.append(name)
        try:
            return get(name)
        finally:
            computing.pop()


class Shared:
    """The right calculation of some inputs, and all others as far as they differ from it."""

    def __init__(self, inputs, options):
        self.inputs, self.options = inputs, options
        a = Watched(*inputs, **options)
        before = set(a.asked[""])  # what even the inputs went through
        self.results = a.results()
        self.steps = {name: T for name, T in vars(a).items() if isinstance(PARTS.get(name), step)}
        for T in self.steps.values():
            if isinstance(T, np.ndarray):
                T.flags.writeable = False
        self._rest = {name: _all_of(name, a.asked) for name in self.steps}
        self._before, self._left = before, {}

    def left_by(self, replaced):
        """The steps that rest on none of the replaced ones."""
        if replaced not in self._left:
            left = () if replaced & self._before else [n for n, on in self._rest.items() if not replaced & on]
            self._left[replaced] = {name: self.steps[name] for name in left}
        return self._left[replaced]

    def predicted(self, steps):
        """What someone gets who goes through these steps; None where the shapes do not fit."""
        try:
            a = steps(*self.inputs, **self.options)
            vars(a).update(self.left_by(steps.replaced), shared=self)
            return a.results()
        except ValueError:
            return None


def _all_of(name, asked):
    """The step itself and all that it asks for, directly or not."""
    found, new = set(), {name}
    while new:
        found |= new
        new = set().union(*(asked.get(each, ()) for each in new)) - found
    return found
