"""What one call cannot show: the same again, beside another, in other memory. Chapter: :doc:`/chapters/in_the_wild`.

A right function gives the same each time, whatever ran before or runs beside it and whatever memory held. Where it
does not, one comparison may be right by luck. The function is wrapped in the form that it has, and called as before.
"""

import math
import sys
import time
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import numpy as np

from attnbook.diagnose.cases import _wraps as wraps
from attnbook.diagnose.cases.run import NAMES, Run
from attnbook.diagnose.steps import Steps

OFTEN, SECONDS = 8, 0.03
"""How often a small case is called again, and for how long at most; three times at least."""

WRAPS = ("numpy", "torch", "cupy")
"""The libraries whose functions can be wrapped; those of others are traced."""

SAYS = {
    "unsteady": "the same call, made again, gives other numbers: a race, or something left from another call",
    "memory": "the results differ where memory holds NaN before the call: some is read that was never written",
    "state": "the results differ where another call comes between forward and backward, which reads what that left",
    "twice": "the second backward differs from the first: it reads what the first wrote over",
    "thread": "the gradients differ where the backward runs in another thread",
    "at once": "the results differ while another thread runs the function too: the two share memory",
    "no_grad": "O differs under no_grad",
    "dropout": "of the weights are kept, which chance does not explain",
    "absent": "no gradient arrives there: None came, and no zeros",
    "view": "a result lies in the memory of an input: who writes into one changes the other",
}
"""What each kind of finding means."""


class Shown(NamedTuple):
    """What was found: the fields of a :class:`attnbook.diagnose.report.Finding`."""

    about: str
    kind: str
    text: str
    cases: tuple


BY_DIFFERENCES = "gradients by differences of O, compared as precisely as these are"
"""What is worth a note where the library has no backward."""

DEVIATIONS = 6
"""How many standard deviations a count may lie from its mean."""


def check_determinism(call, runs):
    """([what is wrong], [what is worth a note]) in how the function of ``call`` conducts itself.

    ``runs`` are the cases that it ran in. Each check takes one or two of them, and compares with what came there, right
    or wrong. Where a case took too long, nothing more is called.
    """
    if any(run.came.kind == "too long" for run in runs):
        return [], []
    compared = {run.name: run for run in runs if run.compared and "dropout" not in run.case.options and _some(run)}
    small = _first(compared, "batch and heads", "plain", *compared)
    if small is None:
        return [], []
    tiles = _first(compared, "a batch of 65, causal", "63 queries, 65 keys", "64 queries and keys")
    masked = _first(compared, "causal, more keys", "mask")
    shown, notes = _Found(), [BY_DIFFERENCES] * hasattr(call.arrays, "dtype_of_gradient")
    _absent(compared.values(), shown)
    _kept([run for run in runs if run.compared and "dropout" in run.case.options], shown)
    notes += _again(call, [run for run in (small, tiles) if run], shown)
    if shown.has("unsteady"):  # nothing else means much then
        return shown.findings(), list(dict.fromkeys(notes))
    if call.library in WRAPS:
        _views(call, small, shown)
        for run in filter(None, (small, masked, tiles)):
            notes += _in_nan(call, run, shown)
        for kind, wrap in wraps.OF_FORM[call.form].items():
            notes += _compare(call.with_fn(wrap(call.fn)), small, kind, shown)
        _at_once(call, tiles or small, shown)
    return shown.findings(), list(dict.fromkeys(notes))


def _some(run):
    """Whether there is anything to compute: who refuses all else may take an empty sequence."""
    return all(map(np.size, run.case.inputs))


def _first(compared, *names):
    return next((compared[name] for name in names if name in compared), None)


class _Found:
    """Findings, those of one kind and text together."""

    def __init__(self):
        self._where = {}

    def add(self, about, kind, text, run):
        cases = self._where.setdefault((about, kind, text), [])
        cases.append(run.name)

    def has(self, kind):
        """Whether anything of this kind was found."""
        return any(found == kind for _, found, _ in self._where)

    def findings(self):
        return [Shown(*key, tuple(dict.fromkeys(cases))) for key, cases in self._where.items()]


def _compare(call, run, kind, shown):
    """Adds a finding of ``kind`` where the case gives other results than those of ``run``; a note where it raises."""
    came = call(run.case)
    if came.kind != "values":
        return [f"{_WHEN[kind]}, {came.text.removeprefix('it raised ')}"] if kind in _WHEN else []
    off = _off(run, came)
    if off:
        shown.add("the call", kind, f"{SAYS[kind]} ({', '.join(off)})", run)
    return []


_WHEN = {
    "twice": "called a second time, the backward does not run: it raised",
    "no_grad": "under no_grad it does not run: it raised",
    "thread": "in another thread the backward does not run: it raised",
}


def _off(run, came):
    """The results that differ from those of ``run`` by more than roundings."""
    again = Run(run.case, came)
    return [
        name
        for name in NAMES
        if name in run.came.values and name in came.values
        and not again._is(name, run.came.values[name], again._precision(name))
    ]  # fmt: skip


# --- again --------------------------------------------------------------------------------------------------------


def _again(call, runs, shown):
    """The same call many times, after all others: other bits are a note, other numbers a finding."""
    for run in runs:
        came, started = [], time.monotonic()
        while len(came) < 3 or (len(came) < OFTEN and time.monotonic() - started < SECONDS):
            came.append(call(run.case))
        lost = [each for each in came if each.kind != "values"]
        if lost:
            text = f"called again, {'it ' + lost[0].kind if not lost[0].text else lost[0].text}"
            shown.add("the call", "unsteady", f"{text}: {len(lost)} of {len(came)} times", run)
            continue
        wrong = [off for each in came if (off := _off(run, each))]
        if wrong:
            names = ", ".join(dict.fromkeys(name for off in wrong for name in off))
            shown.add("the call", "unsteady", f"{SAYS['unsteady']} ({names}, {len(wrong)} of {len(came)} times)", run)
            continue
        values = run.came.values
        other = [
            name for name in values
            if any(not np.array_equal(values[name], each.values.get(name), equal_nan=True) for each in came)
        ]  # fmt: skip
        if other:
            yield f"{', '.join(other)} differ from call to call by roundings: sums are not always in one order"


# --- memory -------------------------------------------------------------------------------------------------------


def _in_nan(call, run, shown):
    """The call, where what memory is given out holds NaN."""
    if call.library == "torch":
        with _torch_fills_memory():
            return _compare(call, run, "memory", shown)
    if call.library == "numpy":
        came = run.came.values
        sizes = {T.size * np.dtype(run.case.dtype).itemsize for T in came.values()}
        rows = math.prod(came["O"].shape[:-1])
        sizes |= {n * np.dtype(run.case.dtype).itemsize for n in (rows, rows * run.came.inputs[1].shape[-2])}
        return _compare(call.with_fn(wraps.after(call, lambda: _dirty(sizes))), run, "memory", shown)
    return []


def _dirty(sizes):
    """Leaves freed blocks of these numbers of bytes full of ones, which are NaN in every format: the next ones that
    are given out are these.
    """
    blocks = [np.full(size, 255, np.uint8) for size in sizes for _ in range(8) if size]
    del blocks


@contextmanager
def _torch_fills_memory():
    import torch

    filled = torch.utils.deterministic.fill_uninitialized_memory
    was = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")  # the other way to say so loads torch's compiler, which takes 5 seconds
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = filled
        torch.set_deterministic_debug_mode(was)


@contextmanager
def _torch_keeps_kernels():
    """The kernels that torch's own attention may take are said for all threads at once: two functions that say so
    beside each other, each to bring back what it found, leave what the other one said.
    """
    from torch.backends import cuda

    kinds = [kind for kind in ("flash", "mem_efficient", "math", "cudnn") if hasattr(cuda, f"enable_{kind}_sdp")]
    were = {kind: getattr(cuda, f"{kind}_sdp_enabled")() for kind in kinds}
    try:
        yield
    finally:
        for kind, was in were.items():
            getattr(cuda, f"enable_{kind}_sdp")(was)


# --- beside another -----------------------------------------------------------------------------------------------


def _at_once(call, run, shown):
    """The call, while another thread makes the same one of other numbers."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with _torch_keeps_kernels() if call.library == "torch" else nullcontext():
            for _ in range(3):
                with wraps.beside(call) as wrapped:
                    _compare(call.with_fn(wrapped), run, "at once", shown)
    finally:
        sys.setswitchinterval(interval)


# --- what lies where ----------------------------------------------------------------------------------------------


def _views(call, run, shown):
    """Results that lie in the memory of an input."""
    views = {}
    call.with_fn(wraps.watching_views(call, views))(run.case)
    for (result, given), _ in views.items():
        shown.add(result, "view", f"{SAYS['view']} ({result}, {given})", run)


def _absent(runs, shown):
    """Inputs and options that no gradient reaches: the library, or fn, said None of them, and gave no zeros."""
    for run in runs:
        for name in run.came.absent:
            shown.add(name, "absent", SAYS["absent"], run)


def _kept(runs, shown):
    """Dropout that keeps too many weights, or too few; where it keeps all, it is ignored, which the numbers show."""
    for run in runs:
        allowed, p = Steps(*run.came.inputs, **run.options).allowed, run.case.options["dropout"]
        kept = run.options["kept"][np.broadcast_to(allowed, run.options["kept"].shape)]
        far = abs(np.count_nonzero(kept) - (1 - p) * kept.size) / (kept.size * p * (1 - p)) ** 0.5
        if far > DEVIATIONS and not kept.all():
            shown.add("O", "dropout", f"{kept.mean():.0%} {SAYS['dropout']} where dropout is {p:g}", run)
