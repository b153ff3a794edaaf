"""What :func:`attnbook.diagnose` says of every cause, and where it is recorded. Page: :doc:`/book/atlas`."""

import inspect

import numpy as np

import attnbook as ab
from attnbook.diagnose.cases.determinism import SAYS
from evidence.atlas.entries import Cause
from evidence.atlas.plant import planted, right

RIGHT = 1e-9
"""How far from right, relative to the largest entry, a result may be that is not spoiled: roundings, and no more."""

USUAL = ("mask", "bias", "causal", "scale")
OPTIONS = ("window", "softcap", "sink", "slopes", "cos", "sin", "dropout", "dL")
"""The options that ``diagnose`` knows: a reproduction takes the usual ones, and the others where it is about them."""

ANSWERS = {
    "named": "It names what explains every wrong result.",
    "seen": "It says what is wrong, and not why.",
    "missed": "The mistake changed numbers, or raised, in calls that it made, and it found nothing.",
    "no case": "In none of the calls that it makes does the mistake change anything.",
}
"""What ``diagnose`` may make of a reproduction."""


def differs(came, wanted):
    """Whether one result is not the right one: absent, of another shape, not finite where it should be, or off."""
    if came is None or wanted is None:
        return came is not wanted
    if came.shape != wanted.shape or not np.array_equal(np.isfinite(came), np.isfinite(wanted)):
        return True
    return bool(np.max(np.abs(came - wanted), initial=0.0) > RIGHT * max(1.0, np.max(np.abs(wanted), initial=0.0)))


def spoiled(came, wanted):
    """The names of the results that are wrong, in the order in which they came."""
    return tuple(name for name in came if differs(came[name], wanted[name]))


def run(cause, setting):
    """What a cause spoils in a call; ("raises",) where it raises. A race is given the call in which it happens."""
    (Q, K, V, dO), options = setting.draw()
    wanted = right_of(cause)(Q, K, V, dO, **options)
    try:
        made = fresh(cause.run)
        for _ in range(getattr(made, "every", 1)):
            came = made(Q, K, V, dO, **options)
    except (RuntimeError, AssertionError, AttributeError):
        return ("raises",)
    return spoiled(came, wanted)


def fresh(made):
    """The same function; one that counts its calls begins anew."""
    return made.from_the_first() if hasattr(made, "from_the_first") else made


def right_of(cause):
    """The function without the mistake: the package's, where no option is another's."""
    return cause.right or right


class Watched:
    """A reproduction in the form that ``diagnose`` takes, which notes whether the mistake ever changed a number."""

    def __init__(self, cause: Cause):
        self.cause, self.right, self.changed = cause, cause.right or planted(), False
        self.run = fresh(cause.in_fact or cause.run)

    def call(self, Q, K, V, dO, **options):
        """The results by name, as the mistake gives them."""
        try:
            came = self.run(Q, K, V, dO, **options)
        except Exception:
            self.changed = True
            raise
        if Q.dtype == np.float64 and not self.changed:  # in fewer bits roundings alone make a difference
            with np.errstate(all="ignore"):
                wanted = self.right(Q, K, V, dO, **options)
            self.changed = bool(spoiled(came, wanted))
        return came

    def function(self):
        """What ``diagnose`` is handed: a function that takes the usual options, and those of the call that shows it."""
        names = dict.fromkeys((*USUAL, *(name for name in self.cause.shows.options if name in OPTIONS)))

        def fn(Q, K, V, dO, **options):
            return self.call(Q, K, V, dO, **{name: T for name, T in options.items() if T is not None})

        inputs = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("Q", "K", "V", "dO")]
        asked = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in names]
        fn.__signature__ = inspect.Signature([*inputs, *asked])
        return fn


def today(cause):
    """(one of :data:`ANSWERS`, the names that ``diagnose`` gives to what it found: mistakes, and kinds of conduct)."""
    watched = Watched(cause)
    report = ab.diagnose(watched.function())
    if report.ok:
        return ("missed" if watched.changed else "no case"), ()
    told = {finding.kind for finding in report.findings} & SAYS.keys()
    slugs = dict.fromkeys(slug for finding in report.findings for cause in finding.causes for slug in cause)
    open_ones = [finding for finding in report.findings if not finding.causes and finding.kind not in SAYS]
    named = (slugs or told) and (not open_ones or "unsteady" in told)
    return ("named", (*slugs, *sorted(told))) if named else ("seen", ())
