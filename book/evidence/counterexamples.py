"""The smallest numbers that refute each mistake of the catalogue, and the weak tests that it gets past.

Chapter: :doc:`/chapters/in_the_wild`. Compared are a mistake's run and the right one, both step by step
(:mod:`attnbook.diagnose.causes.mistakes`).
"""

from html import escape
from itertools import product
from typing import NamedTuple

import numpy as np

from attnbook.checks.check import close
from attnbook.diagnose.causes.mistakes import MISTAKE
from attnbook.diagnose.steps import Steps
from evidence.wild import CLAIMS
from evidence.wild.errors import rows_of

NAMES = ("O", "dQ", "dK", "dV")
EVERY = "shapes at square sizes"  # the weak test that every mistake gets past
_MET = ("Stands in", "One reading of", "Related:")


class Case(NamedTuple):
    """Inputs Q, K, V, dO and the options of attention."""

    inputs: tuple
    options: dict


class Counterexample(NamedTuple):
    """The smallest case at which a mistake shows, how far it is off at others, and the weak tests it gets past."""

    slug: str
    case: Case
    wrong: dict
    right: dict
    errors: dict
    passes: tuple

    def _lines(self):
        given = [f"{name} = {_short(T)}" for name, T in zip(("Q", "K", "V", "dO"), self.case.inputs, strict=True)]
        options = [f"{name} = {_short(value)}" for name, value in self.case.options.items()]
        lines = ["  ".join(given[:2]), "  ".join(given[2:] + options)]
        for name in self.wrong:
            lines.append(f"{name:2} wrong: {_short(self.wrong[name])}  right: {_short(self.right[name])}")
        return lines + [f"{where}: {what}" for where, what in self.errors.items()]

    def __repr__(self):
        past = ["gets past:", *(f"   {weak}" for weak in self.passes or ["none of the weak tests"])]
        return "\n".join([*self._lines(), *past])

    def _repr_html_(self):
        """Which rows of the texts have it, which weak tests it gets past, and, folded, the numbers."""
        said = [f"{words} {_links(rows)}" for words, rows in zip(_MET, rows_of(self.slug, CLAIMS), strict=True) if rows]
        past = ", ".join(name for name in self.passes if name != EVERY) or f"none but {EVERY}"
        words, numbers = ". ".join([*said, f"Gets past: {past}"]), escape("\n".join(self._lines()))
        return (
            f'<div class="counterexample"><p>{words}.</p>\n<details><summary>Smallest counterexample</summary>'
            f"<pre>{numbers}</pre></details></div>"
        )


def counterexample(slug):
    """Search the smallest sizes for a case at which the mistake shows, by a number rather than by a shape if it can."""
    mistake = MISTAKE[slug]
    for by_shape in (False, True):
        for case in _small_cases():
            right, wrong = right_of(case), wrong_of(mistake, case)
            shown = {name: what for name in mistake.spoils if (what := difference(wrong.get(name), right[name]))}
            if shown and (by_shape or not any("shape" in what or "fit" in what for what in shown.values())):
                small = [name for name in shown if right[name].size <= 4] or list(shown)[:1]
                some = {name: wrong.get(name) for name in small}
                errors = {where: _errors(mistake, cases) for where, cases in STRONG.items()}
                past = tuple(name for name in WEAK if passes(mistake, name))
                return Counterexample(slug, case, some, {n: right[n] for n in some}, errors, past)
    raise ValueError(f"no small counterexample to {slug}")


def passes(mistake, weak):
    """Whether a mistake gets past the weak test of that name."""
    look, cases = WEAK[weak]
    return all(look(wrong_of(mistake, case), right_of(case)) for case in cases)


def right_of(case):
    """The right output and gradients, by name."""
    return dict(zip(NAMES, Steps(*case.inputs, **case.options).run(), strict=True))


def wrong_of(mistake, case):
    """What the mistake makes of the case, by name; empty where it does not fit."""
    try:
        return dict(zip(NAMES, mistake.run(*case.inputs, **case.options), strict=True))
    except ValueError:
        return {}


def difference(came, truth):
    """How far one result is off, in words; empty where it is equal."""
    if came is None:
        return "does not fit"
    if came.shape != truth.shape:
        return f"has shape {came.shape}, not {truth.shape}"
    if close(came, truth):
        return ""
    if not np.all(np.isfinite(came)):
        return "has NaN" if np.any(np.isnan(came)) else "overflows"
    size = np.max(np.abs(truth))
    return f"off by {np.max(np.abs(came - truth)) / (size or 1.0):.2g}"


def _errors(mistake, cases):
    for name, case in cases.items():
        right, wrong = right_of(case), wrong_of(mistake, case)
        if not wrong:
            return f"its shapes do not fit{name}"
        off = {n: what for n in NAMES if (what := difference(wrong[n], right[n]))}
        if off:
            return ", ".join(f"{n} {what}" for n, what in off.items()) + name
    return "equal"


def _draw(n_q, n_k, d_k, d_v, lead=(), key_lead=None, size=1.0):
    rng = np.random.default_rng(5)
    keys = lead if key_lead is None else key_lead
    shapes = ((*lead, n_q, d_k), (*keys, n_k, d_k), (*keys, n_k, d_v), (*lead, n_q, d_v))
    Q, *others = (rng.normal(size=shape) for shape in shapes)
    return (size * Q, *others)


def _strong(n_q, n_k, d_k, d_v):
    dead = np.random.default_rng(6).random((n_q, n_k)) < 0.5
    dead[:2] = [[False] * n_k, [True] * n_k]
    one, heads = _draw(n_q, n_k, d_k, d_v), _draw(n_q, n_k, d_k, d_v, (4,), (2,))
    layer = _draw(n_q, n_k, d_k, d_v, (2, 3))
    return {
        "": Case(one, {}),
        " (batch and heads)": Case(layer, {}),
        " (a mask)": Case(one, {"mask": dead[1:].repeat(2, 0)[:n_q]}),
        " (a mask with a dead row)": Case(one, {"mask": dead}),
        " (causal)": Case(one, {"causal": True}),
        " (causal, bottom right)": Case(one, {"causal": "bottom-right"}),
        " (shared key heads)": Case(heads, {}),
        " (large scores)": Case(_draw(n_q, n_k, d_k, d_v, size=1e4), {}),
    }


STRONG = {"distinct sizes": _strong(5, 7, 3, 2), "square sizes": _strong(4, 4, 4, 4)}
"""Where the error of a mistake is measured. The first case that shows it counts."""


def _all_equal(wrong, right):
    return all(not difference(wrong.get(name), right[name]) for name in NAMES)


def _shapes(wrong, right):
    return bool(wrong) and all(wrong[name].shape == right[name].shape for name in NAMES)


def _output(wrong, right):
    return not difference(wrong.get("O"), right["O"])


def _row_sums(wrong, right):
    """Σ_j dK_j = 0, the one sum that needs no reference."""
    return "dK" in wrong and close(wrong["dK"].sum(axis=-2), np.zeros_like(right["dK"].sum(axis=-2)))


_PLAIN = _draw(5, 7, 3, 2)
_FLAT = (0 * _PLAIN[0], *_PLAIN[1:])
_SQUARE = _draw(4, 4, 4, 4)
WEAK = {
    EVERY: (_shapes, [Case(_SQUARE, {})]),
    "the output alone": (_output, list(STRONG["distinct sizes"].values())),
    "the keys' gradients sum to 0": (_row_sums, [Case(_PLAIN, {})]),
    "one query": (_all_equal, [Case(_draw(1, 7, 3, 2), {})]),
    "one key": (_all_equal, [Case(_draw(5, 1, 3, 2), {})]),
    "equal weights": (_all_equal, [Case(_FLAT, {})]),
    "scale 1": (_all_equal, [Case(_PLAIN, {"scale": 1.0})]),
    "one sequence, one head, no mask": (_all_equal, [Case(_PLAIN, {})]),
    "every row has a key": (_all_equal, [Case(_PLAIN, {}), Case(_PLAIN, {"mask": np.tri(5, 7, 2, dtype=bool)})]),
}
"""Tests that people run, and that let wrong formulas pass."""


def _small_cases():
    """From the smallest up: sizes, then options, then numbers."""
    corner = {"mask": np.array([[True, False]])}
    options = [
        {"scale": 1.0},
        {},
        {"causal": True},
        {"causal": "bottom-right"},
        corner,
        {"mask": np.array([[False]])},
        {"mask": np.array([[True, False], [False, False]])},
    ]
    sizes = sorted(product((1, 2), repeat=4), key=lambda size: (sum(size), size))
    leads = [((), None), ((2,), None), ((1, 2), None), ((2,), (1,)), ((4,), (2,))]
    for (lead, keys), (n_q, n_k, d_k, d_v), option in product(leads, sizes, options):
        M = option.get("mask")
        if M is not None and (M.shape[1] != n_k or M.shape[0] not in (1, n_q)):
            continue
        for draw in range(4):
            rng = np.random.default_rng(draw)
            key_lead = lead if keys is None else keys
            shapes = ((*lead, n_q, d_k), (*key_lead, n_k, d_k), (*key_lead, n_k, d_v), (*lead, n_q, d_v))
            yield Case(tuple(rng.integers(-1, 3, size=shape).astype(float) for shape in shapes), option)
    for score in (1000.0,):
        one = np.ones((1, 1))
        yield Case((score * one, one, one, one), {"scale": 1.0})


def _links(rows):
    return ", ".join(f'<a href="#row-{name.lower()}">{name}</a>' for name in rows)


def _short(T):
    if T is None:
        return "does not fit"
    if isinstance(T, np.ndarray):
        T = (np.round(T, 4) + 0.0).tolist() if T.dtype != bool else T.tolist()
    return str(T).replace(".0,", ",").replace(".0]", "]").replace("nan", "NaN")
