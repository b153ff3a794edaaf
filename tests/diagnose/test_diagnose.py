"""diagnose: silent about what is right, plain about what is wrong, and never thrown by what it is given."""

import re
import sys
import textwrap
import time

import numpy as np
import pytest
import torch
from attentions import told
from attentions.right import OURS, RIGHT_ONES, configurations, ours
from equations import ROOT
from libraries import CuPy

import attnbook as ab
from attnbook.diagnose.cases.battery import battery
from attnbook.diagnose.causes.mistakes import MISTAKE
from attnbook.diagnose.learn.adapters import adapter
from attnbook.diagnose.links import BOOK

CASES = [case.name for case in battery()]
NEWER = {"window", "softcap", "sink", "slopes", "cos", "sin", "dropout", "dL"}
"""Options that few functions take."""
LINK = "https://attnbook.github.io/attnbook/chapters/in_the_wild.html#mistake-"


def taken(*newer, library="numpy"):
    """The cases that a function is asked which takes mask, bias, causal and scale, and ``newer`` options."""
    lies = set(adapter(library).memory)
    return [
        case.name
        for case in battery()
        if NEWER & case.options.keys() <= set(newer) and lies.issuperset(case.memory.values())
    ]


def found(report):
    return [(finding.about, finding.kind) for finding in report.findings]


# --- what is right ------------------------------------------------------------------------------------------------


ROWS = configurations(34)
SOON = {row[0]: i for i, row in enumerate(ROWS) if row[0] in ("ours under autograd", "eager torch")}.values()
"""Those that no other test asks about, in their narrowest dtype."""


@pytest.mark.parametrize(
    ("name", "fn", "library", "dtype", "seed"),
    [
        pytest.param(*row, id="-".join(map(str, (row[0], *row[2:]))), marks=[pytest.mark.thorough] * (i not in SOON))
        for i, row in enumerate(ROWS)
    ],
)
def test_it_finds_nothing_in_what_is_right(name, fn, library, dtype, seed):
    report = ab.diagnose(fn, library=library, dtype=dtype, seed=seed)
    assert report.ok, str(report)
    assert len(report.compared) >= 10


@pytest.mark.parametrize("library", ["numpy", "torch", "cupy", "jax"])  # whose arrays our functions take
def test_ours_is_right_in_every_case_of_every_library(library):
    pytest.importorskip(library)
    if library == "cupy" and (reason := CuPy.missing()):
        pytest.skip(reason)
    report = told(OURS, library)
    assert report.ok
    assert report.notes == ("given in no case: method, ops",)
    assert str(report).splitlines()[0] == "right: O, dQ, dK, dV"
    assert f"  in {len(report.compared)} of {report.cases} cases: every pair of shared key heads, causal" in str(report)
    assert report.unasked == ("slopes", "window", "softcap", "sink", "dropout", "rotary")
    assert not report.apart
    assert [name for name in report.compared if name in CASES] == taken("dL", library=library)


def test_float32_is_a_note_and_no_mistake():
    report = ab.diagnose(RIGHT_ONES["float32 throughout"][0])
    assert report.ok
    assert "O, dQ, dK, dV are float32 where float64 went in" in str(report)
    report = ab.diagnose(RIGHT_ONES["float32 inside"][0])
    assert report.ok
    assert "precision" in str(report)


# --- what is wrong, as others write it ----------------------------------------------------------------------------


def causes(fn, **options):
    return ab.diagnose(fn, **options).mistakes


@pytest.mark.parametrize(
    ("cause", "weights"),
    [
        (("softmax-over-queries", "mask-ignored"), lambda S, M: S.softmax(-2)),
        (("mask-added",), lambda S, M: S.softmax(-1) if M is None else (S + M).softmax(-1)),
        (("mask-after-softmax",), lambda S, M: S.softmax(-1) if M is None else S.softmax(-1) * M),
    ],
)
def test_a_wrong_forward_under_autograd(cause, weights):
    """The gradient is right for what the forward computes: the mistake shows in O, and is named there."""

    def eager(Q, K, V, mask=None):
        return weights(Q @ K.mT * Q.shape[-1] ** -0.5, mask) @ V

    of_O = next(finding for finding in ab.diagnose(eager).findings if finding.about == "O")
    assert of_O.causes == (cause,)


def deaf(*names):
    return lambda *inputs, **options: ours(*inputs, **{n: o for n, o in options.items() if n not in names})


@pytest.mark.parametrize(
    ("fn", "slugs"),
    [
        (deaf("mask"), ("mask-ignored",)),
        (deaf("causal", "bias"), ("causal-ignored", "bias-ignored")),
        (deaf("mask", "bias", "causal", "scale"), ("options-ignored",)),
        (lambda Q, K, V, dO, window_size=(-1, -1): ours(Q, K, V, dO), ("window-ignored",)),
        (lambda Q, K, V, dO, dropout=0.0: ours(Q, K, V, dO), ("dropout-ignored",)),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_an_option_that_is_ignored(fn, slugs):
    assert set(causes(fn)) == set(slugs)


def test_what_is_not_known():
    def off(Q, K, V, dO, **options):
        O, dQ, dK, dV = ours(Q, K, V, dO, **options)
        return O, dQ + 0.1, dK, dV

    report = ab.diagnose(off)
    assert (found(report), report.mistakes) == ([("dQ", "wrong")], ())
    assert re.search(r'no known mistake\n  dQ: in \d+ cases, first in "plain": relative error 0.08', str(report))


def with_a_flag(*inputs, causal=False):
    return ours(*inputs, causal=bool(causal))


def test_a_flag_cannot_be_asked_for_the_other_corner():
    """A text is true to Python: what it then gives is right, for the corner that was not asked for."""
    bottom_right = ("bottom-right, more keys", "bottom-right, fewer keys")
    report = ab.diagnose(with_a_flag)
    assert report.ok, str(report)
    assert {"causal, more keys", "causal, fewer keys"} <= set(report.compared)
    assert not set(bottom_right) & set(report.compared)
    assert 'cannot be asked for causal="bottom-right": "bottom-right, more keys"' in " ".join(str(report).split())
    # but what knows its corners is asked
    assert told(MISTAKE["causal-top-left"].run).mistakes == ("causal-top-left",)


def test_since_when_and_by_how_much():
    def off(Q, K, V, dO, bias=None, **options):
        O, dQ, dK, dV = ours(Q, K, V, dO, **options, **({} if bias is None else {"bias": bias}))
        return O, dQ, dK if bias is None else 1.5 * dK, dV

    (finding,) = ab.diagnose(off).findings
    assert (finding.about, finding.error) == ("dK", 0.5)
    assert finding.cases == ("bias", "bias, broadcast", "all options", "bias with −∞", "bias with a row of −∞")


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "options", "error", "words"),
    [
        (None, {}, TypeError, "fn: expected a function, a pair of functions, or a torch module, got NoneType"),
        ((ab.attention, 3), {}, TypeError, "fn: expected a function, a pair"),
        (OURS, {"library": "theano"}, ValueError, "library: expected one of 'numpy', 'torch', .*, got 'theano'"),
        (OURS, {"dtype": "int8"}, ValueError, "dtype: expected one of"),
        (OURS, {"library": "numpy", "dtype": "bfloat16"}, ValueError, r"\(bfloat16: none of NumPy\)"),
        (OURS, {"limit": 0}, ValueError, "limit: expected a number of seconds above 0, got 0"),
        (OURS, {"limit": float("nan")}, ValueError, "limit: expected a number"),
        (OURS, {"seed": -1}, ValueError, "seed: expected"),
    ],
)
def test_bad_arguments(fn, options, error, words):
    with pytest.raises(error, match=words):
        ab.diagnose(fn, **options)


def constant(result):
    return lambda Q, K, V, dO: result


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda *inputs: 1 / 0, "raised ZeroDivisionError: division by zero"),
        (lambda *inputs: sys.exit(3), "raised SystemExit: 3"),
        (lambda Q, K, V, dO: ours(Q, K, V, dO)[:3], "returned 3 things, expected 4 arrays (O, dQ, dK, dV)"),
        (constant(None), "returned None, expected 4 arrays"),
        (constant((1, 2, 3, 4)), "O is an int, expected a numpy array"),
        (lambda Q, K, V, dO: tuple(map(torch.tensor, ours(Q, K, V, dO))), "O is a Tensor, expected a numpy array"),
        ((ab.attention, lambda dO, res: None), "the backward returned None, expected (dQ, dK, dV)"),
    ],
)
def test_what_is_not_as_asked_is_told_plainly(fn, words):
    report = ab.diagnose(fn, "numpy")
    assert not report.ok
    assert {kind for _, kind in found(report)} <= {"raised", "returned"}
    assert words in " ".join(str(report).split())


def test_the_wrong_shape_and_nan():
    def off(Q, K, V, dO):
        O, dQ, dK, dV = ours(Q, K, V, dO)
        return O.sum(), dQ * np.nan, dK[..., :1], np.where(dV > 0, np.inf, dV)

    report = ab.diagnose(off)
    text = str(report)
    assert [f.causes for f in report.findings] == [()] * 4
    assert re.search(r'O: in \d+ cases, first in "plain": shape \(\), expected \(5, 13\)', text)
    assert re.search(r'dQ: in \d+ cases, first in "plain": NaN', text)
    assert re.search(r'dV: in \d+ cases, first in "plain": infinite entries', text)
    assert re.search(r'dK: in \d+ cases, first in "plain": shape \(7, 1\), expected \(7, 11\)', text)


def test_a_type_error_of_its_own_is_not_taken_for_an_option_that_it_does_not_know():
    def typo(Q, K, V, dO, **options):
        O, dQ, dK, dV = ours(Q, K, V, dO, **options)
        return O, dQ, dK, np.sum(dV, axis=(), keepdim=True) if "mask" in options else dV

    report = ab.diagnose(typo)
    assert found(report) == [("the call", "raised")]
    assert "keepdim" in report.findings[0].text
    assert report.findings[0].cases == tuple(c.name for c in battery() if "mask" in c.options and not c.optional)


def test_what_takes_for_ever():
    def stuck(Q, K, V, dO, **options):
        while Q.ndim == 3 and not over:
            time.sleep(0.01)
        return ours(Q, K, V, dO, **options)

    over = []
    started = time.monotonic()
    report = ab.diagnose(stuck, limit=0.3)
    over.append(True)
    assert time.monotonic() - started < 10
    assert found(report) == [("the call", "too long")]
    assert report.findings[0].cases == ("one query",)  # the first time was when it was asked what it takes
    assert "no answer after 0.3 s" in str(report)
    assert report.compared == ("plain", "batch and heads")
    assert set(report.not_run.values()) == {"two calls took too long before it"}


@pytest.fixture
def soon(monkeypatch):
    """What takes nothing is given up sooner."""
    monkeypatch.setattr(sys.modules["attnbook.diagnose.learn.learner"], "SECONDS", 0.2)


def nothing_yet(Q, K, V, dO, **options):
    raise NotImplementedError


def of_16(Q, K, V, dO):
    assert Q.ndim == 4, "(b, h, n, d)"
    if Q.shape[-2] % 16:
        raise ValueError("n must be a multiple of 16")
    return no_such_name  # noqa: F821


def never(Q, K, V, dO):
    assert Q.dtype == np.float16, "16 bits only"
    assert Q.dtype.itemsize > 2, "no 16 bits"


@pytest.mark.parametrize(
    ("fn", "kind", "tried"),
    [
        (nothing_yet, "nothing ran", ["NotImplementedError"]),
        (of_16, "raised", ["NameError", "multiple of 16"]),
        (never, "raised", ["no 16 bits", "tried numpy, (n, d) float64, n_q = 5, n_k = 7, d_k = 11, d_v = 13 and"]),
    ],
)
@pytest.mark.usefixtures("soon")
def test_where_nothing_is_taken_what_came_furthest_is_said_first(fn, kind, tried):
    report = ab.diagnose(fn)
    notes = [note for note in report.notes if note.startswith("tried")]
    assert all(words in note for words, note in zip(tried, notes, strict=False)), notes
    assert {(finding.about, finding.kind) for finding in report.findings} == {("the call", kind)}
    assert (report.ok, report.compared) == (False, ())
    assert "from symptom to cause" not in str(report)


def test_where_there_are_no_threads(monkeypatch):
    def none(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", none)
    assert ab.diagnose(OURS).ok


# --- the report ---------------------------------------------------------------------------------------------------


def test_it_prints_what_why_and_where_to_read_on():
    report = told(MISTAKE["dk-transposed"].run)
    text = str(report)
    assert text == repr(report)
    assert all(len(line) <= 88 for line in text.splitlines() if BOOK not in line)
    assert text == textwrap.dedent(f"""\
        right: O, dQ, dV
        wrong: dK
        compared in {report.cases - 1} of {report.cases} cases

        dK is Qᵀ dS: transposed
          {LINK}dk-transposed
          explains {len(CASES) - 1} of {len(CASES) - 1} wrong cases
          dK: in {len(CASES) - 1} cases, first in "plain": shape (11, 7), expected (7, 11)

        not run, it raised ValueError: array split does not result in an equal division:
          "rotary"

        from symptom to cause: {BOOK}book/symptoms.html#symptom-dk""")


def test_the_links_lead_to_the_book():
    (address,) = re.findall(r"baseurl: (\S+)", (ROOT / "_config.yml").read_text(encoding="utf-8"))
    assert address == BOOK


def test_a_dO_that_is_refused_is_worth_a_note():
    def contiguous(Q, K, V, dO):
        if dO.size and not dO.flags.c_contiguous:
            raise ValueError("dO must be contiguous")
        O, res = ab.attention(Q, K, V)
        return O, *ab.attention_vjp(dO, res)[:3]

    report = ab.diagnose(contiguous)
    assert report.ok
    (note,) = (note for note in report.notes if note.startswith("it refuses"))
    assert all(f'"dO {how} in memory"' in note for how in ("transposed", "sliced", "of one number, expanded"))
    assert not any(note.startswith("it refuses") for note in told(OURS).notes)
