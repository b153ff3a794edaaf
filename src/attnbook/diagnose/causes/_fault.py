"""The ways to commit a fault: forward, backward, or both. Chapter: :doc:`/chapters/in_the_wild`.

A kernel's backward makes its weights from S and L, and its D from O: what is wrong in S is then wrong in another way.
"""

from itertools import chain
from typing import NamedTuple

import numpy as np

from attnbook.diagnose.steps import L_of, Steps, rowsum, softmax, step, unbroadcast, with_mistakes


class Fault(NamedTuple):
    """One way to commit a fault: the ``steps`` of :class:`attnbook.diagnose.steps.Steps` that it replaces.

    ``page`` is the slug of the catalogue's mistake that it is a form of; none, where it is none.
    """

    slug: str
    title: str
    steps: dict
    page: str | None = None


# --- the same calculation by other steps --------------------------------------------------------------------------


def copy_of(a, steps):
    """The calculation of the same inputs by other steps, of which nothing is computed yet."""
    b = object.__new__(steps)
    b.__dict__.update((name, T) for name, T in vars(a).items() if not isinstance(getattr(Steps, name, None), step))
    return b


def by(a, steps):
    """The same, with what these steps leave as it is where that is known."""
    b = copy_of(a, steps)
    if a.shared:
        vars(b).update(a.shared.left_by(steps.replaced))
    return b


def right(a):
    """The right calculation."""
    return by(a, Steps)


def D_of_O(a):
    """rowsum(dO ∘ O), as a kernel has it."""
    return rowsum(a.dO * a.O)


def again(a):
    """exp(S − L): this calculation's scores, the forward's L."""
    return np.exp(a.S - L_of(right(a)))


def dsink_of(a, dP, weight=None):
    """The sink's gradient, with other numbers in the place of dL − D, or another weight of the sink."""
    dS = (softmax(a.column)[..., -1:] if weight is None else weight) * dP
    return unbroadcast(dS, (*a.sink.shape, 1, 1)).reshape(a.sink.shape)


def dsink_again(a):
    """The sink's gradient, where its weight is made from the forward's L."""
    return dsink_of(a, -a.D_less_dL, np.exp(a.of_heads(a.sink) - L_of(right(a))))


OF_O = {"O": lambda a: right(a).O, "D": D_of_O}
"""Where O came right, and D is made from it."""


def made_again(slug, title, steps, page=None):
    """The backward alone does it: its weights are a softmax of its own or exp(S − L), its D from P or from O."""
    ways = [{**steps, "O": lambda a: right(a).O}]
    if not {"D", "dS"} & steps.keys():
        ways.append({**steps, **OF_O})
    if not {"P", "dS"} & steps.keys():
        ways += [{**way, "P_backward": again, "dsink": dsink_again} for way in ways]
        factors = {"dQ_scale": lambda a: right(a).scale, "dK_scale": lambda a: right(a).scale}
        if {"scale", "width"} & steps.keys():
            wrong = with_mistakes(Fault("", "", steps))
            ways += [{**way, **factors} for way in ways]
            ways.append({name: lambda a: by(a, wrong).scale for name in factors})
    return [Fault(slug, title, way, page) for way in ways]


def in_backward(slug, title, steps, page=None):
    """The same of what could be wrong in the forward too."""
    return made_again(f"{slug}-in-backward", f"{title}, in the backward alone", steps, page)


def in_forward(slug, title, steps, page=None):
    """The forward alone does it; D is made from P, or from its O, and the weights from the scores alone, or its L."""
    wrong = with_mistakes(Fault("", "", steps))
    O = {"O": lambda a: by(a, wrong).O}
    ways = [O, {**O, "D": D_of_O}]
    if "P" not in steps:
        ways.append({**ways[1], "P_backward": lambda a: np.exp(a.S - L_of(by(a, wrong)))})
    return [Fault(f"{slug}-in-forward", f"{title}, in the forward alone", way, page) for way in ways]


def throughout(slug, title, *ways):
    """The forward and the backward do it, or one of the two."""
    each = ([Fault(slug, title, steps), *in_backward(slug, title, steps), *in_forward(slug, title, steps)]
            for steps in ways)  # fmt: skip
    return list(chain.from_iterable(each))


def faults(slug, title, *ways):
    """A fault that has its own ways."""
    return [Fault(slug, title, steps) for steps in ways]


def weights(P):
    """Other weights in the backward; D is made from them, or from O."""
    return {"P_backward": P}, {"P_backward": P, "D": D_of_O}


def without(a, *options):
    """The same calculation where some options are not given."""
    b = copy_of(a, type(a))
    vars(b).update(dict.fromkeys(options), shared=None)
    return b
