"""How a function is judged that is no whole attention. Chapter: :doc:`/chapters/08_checking`.

It is compared with a right one, and with what the mistakes of the catalogue would give.
"""

import numpy as np

from attnbook.checks import close
from attnbook.diagnose.wording import in_cases
from attnbook.grade.judging import Judged


def formula(right, cases, wrong=()):
    """A judge that compares results with those of ``right``.

    ``cases(rng)`` yields (name, arrays, further arguments); ``wrong`` is {slug: function that makes this mistake}.
    """

    def judge(submission, exercise, seed):
        off, raised, possible = {}, {}, dict(wrong)
        for name, arrays, more in cases(np.random.default_rng(seed)):
            wanted = right(*arrays, *more)
            try:
                came = submission.call([T.copy() for T in arrays], more)
            except Exception as error:
                raised.setdefault(f"raised {type(error).__name__}: {error}", []).append(name)
                continue
            came = list(came) if isinstance(came, list) else [came]
            if len(came) != len(exercise.parts):
                raised.setdefault(f"returned {len(came)} things, expected {', '.join(exercise.parts)}", []).append(name)
                continue
            for part, T, want in zip(exercise.parts, came, wanted, strict=True):
                if text := _difference(T, want):
                    off.setdefault(part, (text, []))[1].append(name)
            possible = {slug: f for slug, f in possible.items() if _same(came, f, arrays, more)}
        parts = dict.fromkeys(exercise.parts, "not known" if raised else "right") | dict.fromkeys(off, "wrong")
        alike = tuple(possible) if off else ()
        why = [f"{part}: {in_cases(names)}: {text}" for part, (text, names) in off.items()]
        why += [f"the call: {in_cases(names)}: {text}" for text, names in raised.items()]
        sure, unsure = (alike, ()) if len(alike) == 1 else ((), alike)
        return Judged(parts, sure, why, unsure, dict.fromkeys(off, tuple((slug,) for slug in alike)))

    return judge


def _difference(T, want):
    """In words, how T differs; "" where it does not."""
    if not isinstance(T, np.ndarray):
        return f"{'None' if T is None else type(T).__name__}, expected an array"
    if T.shape != want.shape:
        return f"shape {T.shape}, expected {want.shape}"
    if not np.isfinite(T).all():
        return "NaN" if np.isnan(T).any() else "infinite entries"
    if close(T, want):
        return ""
    size = np.max(np.abs(want))
    return f"relative error {np.max(np.abs(T - want)) / size:.1g}" if size > 1e-12 else "0 is right"


def _same(came, mistake, arrays, more):
    try:
        with np.errstate(all="ignore"):
            predicted = mistake(*arrays, *more)
    except ValueError:
        return False
    return all(
        isinstance(T, np.ndarray) and T.shape == P.shape and np.allclose(T, P, rtol=1e-9, atol=1e-12, equal_nan=True)
        for T, P in zip(came, predicted, strict=True)
    )
