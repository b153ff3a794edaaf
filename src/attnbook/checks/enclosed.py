"""The checks in balls: derivatives enclosed, with no step and no rounding, and compared with what is claimed of them.

Chapter: :doc:`/chapters/08_checking`. Imported when first asked for, as it needs python-flint.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from flint import arb, ctx

from attnbook.arrays import expected
from attnbook.checks.autograd import LEAVES, output_of
from attnbook.checks.balls import Balls, UndecidedError, asarray, tangent, ties
from attnbook.checks.tolerances import EXACT

ENTRIES = 32
"""Up to so many entries of an input, each is compared by itself; of a larger one, sums along random directions."""

MORE = 15
"""Digits to work with beyond those that are asked for; where they are not enough, twice as many, up to eight times."""


class TooWideError(ArithmeticError):
    """Balls that overlap, but are too wide to say that they are the same number; perhaps only the ``claimed`` ones."""

    def __init__(self, what: Any, claimed: Any) -> None:
        super().__init__(what)
        self.claimed = claimed


def vjp_errors(f: Any, grads: Any, at: Any, cotangent: Any, digits: int, seed: int, trials: Any) -> Any:
    """The errors of ``grads``, arrays or a function, against the derivative of ⟨cotangent, f⟩."""
    f, found = _only_output(f), _Comparison(digits, callable(grads))

    def compare() -> None:
        x, c = [asarray(T) for T in at], asarray(cotangent)
        (Y,) = run("f", f, x)
        if Y.shape != c.shape:
            raise ValueError(expected("cotangent", f"the shape of the output, {Y.shape}", c.shape))
        rng = np.random.default_rng(seed)
        for i, dx in enumerate(_claimed("grads", grads, (*x, c), len(at))):
            if dx is None:
                continue
            name = f"gradient {i}" if len(at) > 1 else "the gradient"
            assert dx.shape == x[i].shape, f"{name} has shape {dx.shape}, its variable {x[i].shape}"
            for where, t in _directions(x[i].shape, rng, trials):
                (moved,) = run("f", f, [*x[:i], Balls(x[i].x, t), *x[i + 1 :]])
                terms = c.x * tangent(moved)
                found.compare(name + where, np.sum(dx.x * t), np.sum(terms), _sizes(terms) + _sizes(c.x * Y.x))

    return found.with_enough_digits(compare)


def jvp_errors(f: Any, claimed: Any, at: Any, tangents: Any, digits: int) -> Any:
    """The errors of ``claimed``, an array or a function, against the derivative of f along ``tangents``."""
    f, found = _only_output(f), _Comparison(digits, callable(claimed))

    def compare() -> None:
        x, t = ([asarray(T) for T in Ts] for Ts in (at, tangents))
        (Y,) = run("f", f, [Balls(a.x, b.x) for a, b in zip(x, t, strict=True)])
        (tY,) = _claimed("tangent", claimed if callable(claimed) else [claimed], (*x, *t), 1)
        assert tY.shape == Y.shape, f"the tangent has shape {tY.shape}, the output {Y.shape}"
        sizes = _sizes(tangent(Y)) + _sizes(Y.x)
        for place in np.ndindex(Y.shape):
            found.compare(f"the tangent at {place}", tY.x[place], tangent(Y)[place], sizes)

    return found.with_enough_digits(compare)


def run(name: str, f: Any, args: Any) -> Any:
    """What f makes of balls; where it met a maximum that two numbers share, only if that was nothing but a shift."""
    outputs, tied = _run(name, f, args, 0)
    for one, other in zip(outputs, _run(name, f, args, 1)[0] if tied else (), strict=False):
        if one is not None and not all(map(arb.overlaps, _numbers(one), _numbers(other))):
            raise UndecidedError(f"{name} takes a maximum that two numbers share")
    return outputs


def _run(name: str, f: Any, args: Any, moved: Any) -> tuple[Any, ...]:
    ties.met, ties.moved = False, moved
    try:
        given = [Balls(T.x.copy(), T.t) if isinstance(T, Balls) else T for T in args]
        outputs = f(*given)
    finally:
        ties.moved = None
    pairs = [(T.x.flat, own.x.flat) for T, own in zip(given, args, strict=True) if T is not own]
    if any(a is not b for pair in pairs for a, b in zip(*pair, strict=True)):
        raise ValueError(expected(name, *LEAVES))
    outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
    for T in outputs:
        if T is not None and not (isinstance(T, Balls) and T.x.dtype == object):
            wanted = "balls from balls, by functions of any array library and not of one"
            raise TypeError(expected(name, wanted, type(T).__name__))
    return outputs, ties.met


def _numbers(T: Any) -> tuple[Any, ...]:
    return (*T.x.flat, *tangent(T).flat)


def _only_output(f: Any) -> Any:
    return lambda *args: output_of(f(*args))


def _claimed(name: str, claimed: Any, args: Any, n: Any) -> Any:
    """What is claimed, as balls: arrays of floats as they are, or what a function makes of balls."""
    if not callable(claimed):
        return [None if T is None else asarray(T) for T in claimed]
    claimed = run(name, claimed, args)
    if len(claimed) != n:
        raise ValueError(expected(name, f"{n} arrays", len(claimed)))
    return claimed


def _directions(shape: Any, rng: Any, trials: Any) -> Iterator[Any]:
    """Each entry by itself, with its place in words, or random directions."""
    if np.prod(shape) > ENTRIES:
        for _ in range(trials):
            yield "", asarray(rng.standard_normal(shape)).x
        return
    for place in np.ndindex(shape):
        t = np.zeros(shape)
        t[place] = 1
        yield f" at {place}" if shape else "", asarray(t).x


def _sizes(T: Any) -> Any:
    """The sum of the sizes of all that is finite, at the least: what is too wide must not seem large."""
    return sum((a.abs_lower() for a in T.flat if a.is_finite()), arb())


class _Comparison:
    """Of what came, which is exact or float64, with what is wanted."""

    def __init__(self, digits: int, exact: Any) -> None:
        self.digits, self.exact = digits, exact
        self.by = f"balls of {digits} digits" if exact else "balls, up to float64 rounding"

    def with_enough_digits(self, compare: Any) -> dict[Any, Any]:
        """The largest error that ``compare`` finds, relative to what is added up; or an error where it cannot say."""
        for times in (1, 2, 4, 8):
            self.largest = 0.0
            try:
                with ctx.workdps(times * (self.digits + MORE)):
                    compare()
                return {self.by: self.largest}
            except (TooWideError, UndecidedError) as problem:
                last = problem
        if isinstance(last, UndecidedError):
            raise ValueError(expected("at", "a point where every comparison is decided", last)) from last
        if last.claimed:
            raise AssertionError(f"{last} in what is claimed, not in f") from last
        raise ValueError(expected("digits", "a number for which the balls stay narrow", last)) from last

    def compare(self, name: str, came: Any, wanted: Any, size: Any) -> None:
        allowed = size / arb(10) ** self.digits if self.exact else size * EXACT
        off = came - wanted
        if off.abs_lower() > (0 if self.exact else allowed):
            error = (off.abs_lower() / (size or 1)).str(2, radius=False)
            rule = "though the balls must overlap" if self.exact else f"allowed {EXACT:.0e}"
            raise AssertionError(f"{name} disagrees with {self.by}: off by {error}, {rule}")
        if not off.abs_upper() <= allowed:
            width = float(off.rad() / (size or 1)) if off.is_finite() else np.inf
            known = f"only to ±{width:.0e} of what it adds up" if width < 1 else "not at all"
            raise TooWideError(f"{name} known {known}", claimed=wanted.is_finite() and wanted.rad() <= allowed)
        self.largest = max(self.largest, float(off.abs_upper() / size) if size else 0.0)
