"""What diagnose names: sixty attentions that people could have written, mistakes by chance, and never a wrong name."""

import inspect
import json
import time
from itertools import islice, product

import numpy as np
import pytest
from attentions import told
from attentions.wrong import DO, DQ, RIGHT, TILE, WRONG, mT, tile

import attnbook as ab
from attnbook.diagnose.causes._infer import FACTORS
from attnbook.diagnose.causes.faults import FAULTS
from attnbook.diagnose.causes.mistakes import MISTAKE, MISTAKES
from attnbook.diagnose.causes.registry import CAUSES, KNOWN, PAGES, TITLES
from attnbook.diagnose.steps import Steps, with_mistakes

THREADS = 25
"""So many rows, the first ones, are of the threads that people met them in."""

UNSEEN = ("flash-attention#2562",)
"""What no case shows as wrong: a function may refuse to take a length of 0."""


@pytest.mark.parametrize("name", RIGHT)
def test_the_right_ones_are_right(name):
    fn, library = RIGHT[name]
    assert told(fn, library).ok


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.what, marks=[pytest.mark.thorough] * (i >= THREADS or i % 3 > 0))
        for i, row in enumerate(WRONG)
    ],
)
def test_it_names_what_people_write(row):
    """Some of the wrong results by a name that is expected, and none by another; or it is seen, and has no name."""
    start = time.process_time()
    report = told(row.function(), RIGHT[row.of][1])
    assert time.process_time() - start < 10
    assert report.ok == (row.what in UNSEEN)
    if not report.ok:
        assert set(report.mistakes) <= set(row.names), str(report)
        assert bool(report.mistakes) == bool(row.names)
    if not report.ok and not row.names:
        assert row.why
    assert max(map(len, str(report).splitlines())) <= 100


FOLD = "T.reshape(*K.shape[:-2], group, *T.shape[-2:]).sum(axis=-3)"
SUMMED = "more.append(dsink.sum(axis=(*range(dsink.ndim - 3), -1, -2)))"
SKIPPED = "if bwd_causal is True and cols.start > rows.stop - 1:\n                continue\n            "
UNMASKED = "(j <= i + shift) | (i // TILE == j // TILE)"


@pytest.mark.parametrize(
    ("right", "wrong", "slug"),
    [
        ([FOLD], ["T.reshape(*T.shape[:-3], group, K.shape[-3], *T.shape[-2:]).sum(axis=-4)"], "group-sum-tiled"),
        (["Z = alpha * Z + E"], ["Z = Z + E"], "merge-without-factor"),
        (["j <= i + shift, S, -np.inf) if"], [f"{UNMASKED}, S, -np.inf) if"], "diagonal-block-unmasked"),
        ([SUMMED], ["d = dsink.sum((-1, -2)); more.append(d[-1] if d.ndim > 1 else d)"], "dsink-of-one-batch"),
        ([DO, DQ], [SKIPPED + DO, "dQ[..., rows, :] = bwd_scale"], "dq-overwritten"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_it_names_more_wrong_lines_of_a_kernel(right, wrong, slug):
    source = inspect.getsource(RIGHT["kernel"][0])
    for line, other in zip(right, wrong, strict=True):
        assert source.count(line) == 1
        source = source.replace(line, other)
    names = {"np": np, "mT": mT, "tile": tile, "TILE": TILE}
    exec(compile(source, slug, "exec"), names)
    assert ab.diagnose(names["kernel"], library="numpy").mistakes == (slug,)


def test_what_no_case_tells_apart_is_said():
    """The battery has two batch entries: their mean is half of their sum."""

    def fn(*inputs, **options):
        came = Steps(*inputs, **options).results()
        return tuple(0.5 * T if name == "dsink" else T for name, T in came.items())

    report = ab.diagnose(fn)
    assert report.mistakes == ()
    assert report.alike == ((("factor-half",), ("factor-one-over-batch",)),)
    assert json.loads(report.as_json())["alike"] == [[["factor-half"], ["factor-one-over-batch"]]]


def test_few_cases_are_said_to_be_few():
    def small(Q, K, V, dO):
        asked.append(Q.shape)
        if len(asked) > 7:
            raise NotImplementedError
        return MISTAKE["ds-mean"].run(Q, K, V, dO)

    asked = []
    report = ab.diagnose(small)
    assert 0 < len(report.compared) < 5
    assert f"compared in {len(report.compared)} of {report.cases} cases: in so few" in report.notes[0]
    assert not any("in so few" in note for note in told(MISTAKE["ds-mean"].run).notes)


def test_most_have_a_name():
    assert len(WRONG) >= 46
    assert sum(bool(row.names) for row in WRONG) >= 40
    assert all("#" in row.what for row in WRONG[:THREADS])
    assert not any("#" in row.what for row in WRONG[THREADS:])


def test_every_name_has_words_and_a_fault_no_page():
    assert all(TITLES[slug] and TITLES[slug][-1] != "." for slug in TITLES)
    assert set(KNOWN) <= set(TITLES)
    assert {slug for slug in PAGES.values() if slug} <= set(MISTAKE)
    assert not {fault.slug for fault in FAULTS} & set(MISTAKE) - {
        "scale-of-padding",
        "mask-forgotten-with-l",
        "d-local",
        "l-local",
    }
    assert all(set(way.steps) <= set(vars(Steps)) for way in CAUSES)


# --- never a wrong name -------------------------------------------------------------------------------------------


def wrong_at(step, how):
    """A step that is wrong in a way that has no name."""

    def wrong(a):
        T = vars(Steps)[step].func(a)
        rows = np.arange(T.shape[-2])[:, None] + 1.0
        return {"grows": T * (1 + 0.3 * rows), "roots": np.sign(T) * np.sqrt(np.abs(T)), "adds": T + 0.2}[how]

    return {step: wrong}


def drawn(seed):
    """One to three wrong steps, of the catalogue or of none, no two in one step."""
    rng = np.random.default_rng(seed)
    steps, wanted, slugs = {}, rng.integers(1, 4), []
    while len(slugs) < wanted:
        if rng.random() < 0.3:
            step, how = (
                rng.choice(["P_backward", "dP", "D", "dS", "dQ", "dK", "dV", "S"]),
                rng.choice(["grows", "roots", "adds"]),
            )
            more, slug = wrong_at(step, how), f"{step} {how}"
        else:
            mistake = CAUSES[rng.integers(len(CAUSES))] if rng.random() < 0.5 else MISTAKES[rng.integers(len(MISTAKES))]
            more, slug = mistake.steps, mistake.slug
        if not steps.keys() & more.keys():
            steps |= more
            slugs.append(slug)
    return slugs, with_mistakes(type("Drawn", (), {"steps": steps}))


def off(a, b):
    if a.shape != b.shape or not np.array_equal(np.isfinite(a).all(-1), np.isfinite(b).all(-1)):
        return np.inf
    finite = np.isfinite(a) & np.isfinite(b)
    return np.max(np.abs(a - b)[finite], initial=0.0)


def check(seed):
    """What is named explains all that is wrong in fresh numbers too: its prediction is what comes there."""
    slugs, steps = drawn(seed)

    def fn(Q, K, V, dO, mask=None, bias=None, causal=False, scale=None):
        return steps(Q, K, V, dO, mask=mask, bias=bias, causal=causal, scale=scale).run()

    report = ab.diagnose(fn)
    fresh = np.random.default_rng(seed + 1000)
    for n_q, n_k, d_k, d_v in ((6, 8, 11, 13), (6, 6, 6, 6)):  # equal where a wrong transpose does not run otherwise
        inputs = [fresh.standard_normal((2, 3, *s)) for s in ((n_q, d_k), (n_k, d_k), (n_k, d_v), (n_q, d_v))]
        try:
            right, came = Steps(*inputs).results(), steps(*inputs).results()
            break
        except ValueError:
            continue
    else:
        return report, slugs  # .T, which fits no such sizes
    for finding in report.findings:
        for cause in finding.causes if finding.kind == "wrong" else ():
            if all(slug in KNOWN for slug in cause):
                ways = [[way for way in CAUSES if way.slug == slug] for slug in cause]
                errors = [off(came[finding.about], T) for T in all_of(ways, inputs, finding.about)]
                assert min(errors) <= 1e-6 * (1 + np.nanmax(np.abs(came[finding.about]))), (seed, slugs, cause)
            elif cause[0] in FACTORS:
                r = np.vdot(right[finding.about], came[finding.about]) / np.vdot(
                    right[finding.about], right[finding.about]
                )
                assert off(came[finding.about], r * right[finding.about]) <= 1e-6 * (1 + abs(r)), (seed, slugs, cause)
        for slug, *cases in finding.parts:
            assert slug in KNOWN
            assert set(cases) <= set(finding.cases)
    return report, slugs


def all_of(ways, inputs, name):
    """The result by each way of each cause, or of each pair of them."""
    for each in islice(product(*ways), 4000):
        try:
            yield with_mistakes(*each)(*inputs).results()[name]
        except (ValueError, KeyError):
            continue


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(200))
def test_no_name_misleads(seed):
    check(seed)


@pytest.mark.parametrize("seed", range(2))
def test_no_name_misleads_in_a_few(seed):
    check(seed)


# --- where there is no name ---------------------------------------------------------------------------------------


def by_steps(**steps):
    wrong = with_mistakes(type("Planted", (), {"steps": steps}))
    return lambda Q, K, V, dO: wrong(Q, K, V, dO).run()


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ({"D": lambda a: 0.7 * Steps.D.func(a) + 0.1}, "D is the likeliest: each row of dS is off by a multiple"),
        (
            {"dP": lambda a: Steps.dP.func(a) ** 3},
            "the rows of dS sum to 0: dP is the likeliest, or how D is taken off",
        ),
        ({"dS": lambda a: Steps.dS.func(a) + 0.2}, "the rows of dS do not sum to 0"),
        ({"S": lambda a: np.cbrt(Steps.S.func(a))}, "the rows of its P sum to 1: the scores are the likeliest"),
        ({"P": lambda a: Steps.P.func(a) ** 1.1}, "the rows of its P do not sum to 1"),
    ],
    ids=["D", "dP", "dS", "S", "P"],
)
def test_what_is_likely(steps, words):
    report = ab.diagnose(by_steps(**steps))
    assert report.mistakes == ()
    assert any(words in finding.likely for finding in report.findings)
    assert words in " ".join(str(report).split())


def test_a_small_error_is_not_explained_by_what_does_little():
    """A mistake that changes nearly nothing is near everything; it must leave a tenth of the error at most."""

    def fn(Q, K, V, dO):
        O, dQ, dK, dV = Steps(Q, K, V, dO).run()
        return O, dQ * (1 + 1e-4 * np.arange(dQ.shape[-1])), dK, dV

    report = ab.diagnose(fn)
    assert not report.ok
    assert set(report.mistakes) <= {"precision-float16"}


def test_it_is_named_where_less_precision_is_computed_in():
    def fn(*inputs, **options):
        inputs = [T.astype(np.float32) for T in inputs]
        s = np.float32(inputs[0].shape[-1] ** -0.5)
        Q, K, V, dO = inputs
        S = s * Q @ K.swapaxes(-1, -2)
        E = np.exp(S - S.max(-1, keepdims=True, initial=-1e30))
        P = E / E.sum(-1, keepdims=True)
        dS = P * (dO @ V.swapaxes(-1, -2))
        grads = P @ V, s * dS @ K, s * dS.swapaxes(-1, -2) @ Q, P.swapaxes(-1, -2) @ dO
        return tuple(T.astype(np.float64) for T in grads)

    report = ab.diagnose(lambda Q, K, V, dO: fn(Q, K, V, dO))
    assert report.mistakes == ("ds-no-row-sum",)


def test_the_report_counts_what_a_cause_explains():
    report = told(MISTAKE["ds-mean"].run)
    cases = len(report.findings[0].cases)
    assert f"explains {cases} of {cases} wrong cases" in str(report)
