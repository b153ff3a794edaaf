"""What the arrays tell: a factor, a precision, which entries are wrong. Chapter: :doc:`/chapters/08_checking`."""

import numpy as np

from attnbook.diagnose.causes.match import LEVELS, _growth, precision, right_in, size

LN2 = np.log(2)


def _heads(run):
    return run.came.inputs[0].shape[-3] if run.came.inputs[0].ndim > 2 else 1


def _batch(run):
    return int(np.prod(run.came.inputs[0].shape[:-3]))


def _group(run):
    Q, K = run.came.inputs[:2]
    return Q.shape[-3] / K.shape[-3] if Q.ndim > 2 and K.shape[-3] else 1


def _scale(run):
    given = run.came.options.get("scale")
    return run.came.inputs[0].shape[-1] ** -0.5 if given is None else given


FACTORS = {
    "factor-two": ("twice the right one", lambda run: 2.0),
    "factor-half": ("half the right one", lambda run: 0.5),
    "factor-sign": ("the right one with the other sign", lambda run: -1.0),
    "factor-ln-two": ("ln 2 times the right one", lambda run: LN2),
    "factor-log2-e": ("1/ln 2 times the right one: ln 2 is missing", lambda run: 1 / LN2),
    "factor-heads": ("h times the right one, h the number of heads", _heads),
    "factor-one-over-heads": ("1/h times the right one, h the number of heads", lambda run: 1 / _heads(run)),
    "factor-batch": ("b times the right one, b the size of the batch", _batch),
    "factor-one-over-batch": ("1/b times the right one, b the size of the batch", lambda run: 1 / _batch(run)),
    "factor-all-heads": ("b h times the right one", lambda run: _batch(run) * _heads(run)),
    "factor-one-over-all-heads": ("1/(b h) times the right one", lambda run: 1 / _batch(run) / _heads(run)),
    "factor-queries": ("n_q times the right one", lambda run: run.came.inputs[0].shape[-2]),
    "factor-one-over-queries": ("1/n_q times the right one", lambda run: 1 / run.came.inputs[0].shape[-2]),
    "factor-keys": ("n_k times the right one", lambda run: run.came.inputs[1].shape[-2]),
    "factor-one-over-keys": ("1/n_k times the right one", lambda run: 1 / run.came.inputs[1].shape[-2]),
    "factor-group": ("the size of the group times the right one", _group),
    "factor-one-over-group": ("the right one over the size of the group", lambda run: 1 / _group(run)),
    "factor-scale": ("the right one with the scale once more", _scale),
    "factor-one-over-scale": ("the right one without the scale", lambda run: 1 / _scale(run)),
    "factor-width": ("d_k times the right one", lambda run: run.came.inputs[0].shape[-1]),
    "factor-one-over-width": ("1/d_k times the right one", lambda run: 1 / run.came.inputs[0].shape[-1]),
}
"""What a factor can be, by slug: its words, and its value in a case."""


def ratio(run, name):
    """(the factor that what came is off by, how far it is from being one); None where what is right is 0.

    NaN where it is none: the shape is wrong, something is not finite, or 0 is right and did not come.
    """
    came, right = run.came.values[name], run.right[name]
    if came.shape != right.shape or not np.isfinite(came).all() or not np.isfinite(right).all():
        return np.nan, np.nan
    length = size(right)
    if length <= 1e-6 * run.sizes.get(name, 0.0):
        cancelled = size(came) <= 1e-5 * run.sizes.get(name, 0.0)  # of both, roundings are left
        return None if cancelled or right_in(run, name) else (np.nan, np.nan)
    r = float(np.vdot(right, came) / np.vdot(right, right))
    return r, size(came - r * right) / length


PATTERNS = {
    "tail-not-written": "the last rows, no full block, are never written",
    "ragged-tail": "the last rows, no full block, are wrong, and no others",
    "second-block-not-written": "the rows after the first block are never written",
    "second-block": "wrong from the second block of rows on",
    "rows-not-written": "some rows are never written",
    "precision-float16": "errors as of roundings to 10 bits: TF32 or float16 inside",
    "precision-bfloat16": "errors as of roundings to 7 bits: bfloat16 inside",
    "strides-not-followed": "wrong only where an input lies otherwise in memory: its strides are not followed",
    "empty-not-handled": "a sequence of length 0 is not handled: all is 0 there",
    "factor": "a multiple of the right one",
}
"""What else is read from the arrays, by slug."""

TITLES = PATTERNS | {slug: words for slug, (words, _) in FACTORS.items()}
"""All that is read from the arrays, in words."""


def factors(runs, wrong):
    """(slug, the results that are off by this factor, in every case)."""
    found = {}
    for name, where in wrong.items():
        ratios = {run: ratio(run, name) for run in runs if name in run.came.values}
        ratios = {run: each for run, each in ratios.items() if each is not None}
        near = {run: LEVELS["float16" if "16" in run.case.dtype else "float32"] for run in ratios}
        is_one = all(off <= near[run] * (1 + abs(r)) for run, (r, off) in ratios.items())  # no NaN is
        told = [run for run in where if run in ratios]
        if not is_one or not told or any(abs(ratios[run][0]) < 1e-9 for run in told):
            continue
        fits = [
            slug
            for slug, (_, value) in FACTORS.items()
            if all(abs(r - value(run)) <= 3 * near[run] * abs(r) for run, (r, _) in ratios.items())
        ]
        for slug in fits or ["factor"]:
            found.setdefault(slug, []).append(name)
    return list(found.items())


def precisions(runs, wrong):
    """(slug, the results whose errors are those of roundings to so many bits, in every case): in most cases, as
    roundings are, or in long ones alone, as where kernels differ.
    """
    found = {}
    for name, where in wrong.items():
        came = [run for run in runs if name in run.came.values]
        if 2 * len(where) <= len(came) and min(max(run.came.inputs[0].shape[-2:]) for run in where) < LONG:
            continue
        errors = [_relative_error(run, name) / _growth(run) for run in where]
        for level in ("float16", "bfloat16"):
            if max(errors) <= LEVELS[level]:
                found.setdefault("precision-" + level, []).append(name)
                break
    return list(found.items())


def _relative_error(run, name):
    came, right = run.came.values[name], run.right[name]
    if came.shape != right.shape or not np.isfinite(came).all() or not np.isfinite(right).all() or not size(right):
        return np.inf
    return size(came - right) / size(right)


# --- which entries are wrong --------------------------------------------------------------------------------------


def wrong_entries(run, name):
    """A bool array, True where what came is wrong by more than roundings; None where its shape is wrong."""
    came, right = run.came.values[name], run.right[name]
    if came.shape != right.shape:
        return None
    if right_in(run, name):
        return np.zeros(right.shape, dtype=bool)
    near = {"float64": 1e-7, "float32": 1e-4}.get(precision(run, name), 1e-2)
    with np.errstate(invalid="ignore"):
        return ~(np.abs(came - right) <= near * max(size(right), 1e-300)) & ~(~np.isfinite(came) & ~np.isfinite(right))


LONG = 32
"""Shorter and narrower cases are one block to every kernel."""

BLOCKS = (128, 64, 32, 16, 8, 4, 3, 2)


def patterns(runs, wrong):
    """(slug, the results that are wrong at such places alone, in every case)."""
    found = {}
    for name, where in wrong.items():
        entries = {run: wrong_entries(run, name) for run in runs if name in run.came.values}
        if any(W is None or W.ndim < 2 for W in entries.values()):
            continue
        for slug in _patterns_of(name, where, entries):
            found.setdefault(slug, []).append(name)
    return list(found.items())


def _patterns_of(name, where, entries):
    if all(0 in (*run.came.inputs[0].shape, *run.came.inputs[1].shape) for run in where):
        return ["empty-not-handled"]
    if len(where) > 1 and all(run.case.memory for run in where):
        return ["strides-not-followed"]
    rows = {run: along(W, -2) for run, W in entries.items()}
    empty = all(_is_empty(run.came.values[name][entries[run]]) for run in where)
    for size_ in BLOCKS:
        if not any(len(r) > size_ for r in rows.values()):
            continue
        tail = {run: len(r) // size_ * size_ for run, r in rows.items()}
        if all(
            r[t:].any() == (t < len(r)) and not r[:t].any() for r, t in zip(rows.values(), tail.values(), strict=True)
        ):
            return ["tail-not-written" if empty else "ragged-tail"]
        if all(_only_from(r, size_) for r in rows.values()):
            return ["second-block-not-written" if empty else "second-block"]
    return ["rows-not-written"] if empty and all(not rows[run].all() for run in where) else []


def _only_from(rows, start):
    """Whether rows are wrong from here on, if there are any, and none before."""
    return rows[start:].any() == (start < len(rows)) and not rows[:start].any()


def _is_empty(T):
    return bool(np.all(T == 0))


def along(W, axis):
    """Along which entries of an axis anything is wrong."""
    return W.any(axis=tuple(i for i in range(W.ndim) if i != axis % W.ndim))
