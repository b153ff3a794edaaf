"""What diagnose names: attentions that people could have written, mistakes by chance, and never a wrong name."""

import json
from itertools import islice, product

import numpy as np
import pytest
from attentions import told
from attentions.wrong import RIGHT, WRONG, Wrong

import attnbook as ab
from attnbook.diagnose.causes.faults import FAULTS
from attnbook.diagnose.causes.mistakes import MISTAKE, MISTAKES
from attnbook.diagnose.causes.registry import CAUSES, KNOWN, PAGES, TITLES
from attnbook.diagnose.causes.search import BASIC
from attnbook.diagnose.steps import Steps, with_mistakes

SAMPLE = (1,)
"""The rows that are asked each time, of the threads that people met them in."""

MORE = (
    Wrong("heads of a group side by side", "kernel", "T.reshape(*K.shape[:-2], group, *T.shape[-2:]).sum(axis=-3)",
          "T.reshape(*T.shape[:-3], group, K.shape[-3], *T.shape[-2:]).sum(axis=-4)", ("group-sum-tiled",)),
    Wrong("the tile on the diagonal", "kernel", "j <= i + shift, S, -np.inf) if",
          "(j <= i + shift) | (i // TILE == j // TILE), S, -np.inf) if", ("diagonal-block-unmasked",)),
    Wrong("the sink of one batch", "kernel", "more.append(dsink.sum(axis=(*range(dsink.ndim - 3), -1, -2)))",
          "d = dsink.sum((-1, -2)); more.append(d[-1] if d.ndim > 1 else d)", ("dsink-of-one-batch",)),
)  # fmt: skip


@pytest.mark.parametrize("name", ["kernel", pytest.param("eager", marks=pytest.mark.thorough)])
def test_the_right_ones_are_right(name):
    fn, library = RIGHT[name]
    assert told(fn, library).ok


@pytest.mark.parametrize(
    "row",
    [
        *(
            pytest.param(row, id=row.what, marks=[pytest.mark.thorough] * (i not in SAMPLE))
            for i, row in enumerate(WRONG)
        ),
        *(pytest.param(row, id=row.what) for row in MORE),
    ],
)
def test_it_names_what_people_write(row):
    """Some of the wrong results by a name that is expected, and none by another."""
    report = told(row.function(), RIGHT[row.of][1])
    assert not report.ok
    assert set() < set(report.mistakes) <= set(row.names), str(report)
    assert max(map(len, str(report).splitlines())) <= 100


APART = (
    *(
        "strides-",
        "dq-tail",
        "dkv-tail",
        "softcap-after",
        "padding-counts",
        "sink-forgotten-in-forward",
        "sink-not-in-l",
    ),
    *("dropout-drawn", "causal-forced-in-forward", "merge-without-factor"),
)
"""How the names begin of what a function of these steps does not show, or shows as another."""

FORMS = [way for way in BASIC if way.slug not in MISTAKE and not way.slug.startswith(APART)]


@pytest.mark.parametrize(
    "fault",
    [pytest.param(way, id=way.slug, marks=[pytest.mark.thorough] * (i % 24 > 0)) for i, way in enumerate(FORMS)],
)
def test_it_names_a_fault_by_its_own_steps(fault):
    fn = lambda *inputs, **options: tuple(with_mistakes(fault)(*inputs, **options).results().values())  # noqa: E731
    assert ab.diagnose(fn, "numpy").mistakes == (fault.slug,)


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


def test_every_name_has_words_and_a_fault_no_page():
    assert all(TITLES[slug] and TITLES[slug][-1] != "." for slug in TITLES)
    assert set(KNOWN) <= set(TITLES)
    assert {slug for slug in PAGES.values() if slug} <= set(MISTAKE)
    both = {"scale-of-padding", "mask-forgotten-with-l", "d-local", "l-local", "mask-minus-1e9", "mask-lowest-number"}
    assert {fault.slug for fault in FAULTS} & set(MISTAKE) <= both
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
            step = rng.choice(["P_backward", "dP", "D", "dS", "dQ", "dK", "dV", "S"])
            more, slug = wrong_at(step, rng.choice(["grows", "roots", "adds"])), f"none, in {step}"
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


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(1, 200))])
def test_no_name_misleads(seed):
    """What is named explains all that is wrong in fresh numbers too: its prediction is what comes there."""
    slugs, steps = drawn(seed)

    def fn(Q, K, V, dO, mask=None, bias=None, causal=False, scale=None):
        return steps(Q, K, V, dO, mask=mask, bias=bias, causal=causal, scale=scale).run()

    report = ab.diagnose(fn)
    fresh = np.random.default_rng(seed + 1000)
    for n_q, n_k, d_k, d_v in ((6, 8, 11, 13), (6, 6, 6, 6)):  # equal where a wrong transpose does not run otherwise
        inputs = [fresh.standard_normal((2, 3, *s)) for s in ((n_q, d_k), (n_k, d_k), (n_k, d_v), (n_q, d_v))]
        try:
            came = steps(*inputs).results()
            break
        except ValueError:
            continue
    else:
        return  # .T, which fits no such sizes
    for finding in report.findings:
        for cause in finding.causes if finding.kind == "wrong" else ():
            if all(slug in KNOWN for slug in cause):
                ways = [[way for way in CAUSES if way.slug == slug] for slug in cause]
                T = came[finding.about]
                errors = [off(T, predicted) for predicted in all_of(ways, inputs, finding.about)]
                assert min(errors) <= 1e-6 * (1 + np.nanmax(np.abs(T))), (slugs, cause)
        for slug, *cases in finding.parts:
            assert slug in KNOWN
            assert set(cases) <= set(finding.cases)


def all_of(ways, inputs, name):
    """The result by each way of each cause, or of each pair of them."""
    for each in islice(product(*ways), 4000):
        try:
            yield with_mistakes(*each)(*inputs).results()[name]
        except (ValueError, KeyError):
            continue


# --- where there is no name ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "how", "words"),
    [
        ("D", lambda T: 0.7 * T + 0.1, "D is the likeliest: each row of dS is off by a multiple"),
        ("dP", lambda T: T**3, "the rows of dS sum to 0, as with the D of its dP: dP is the likeliest"),
        ("S", np.cbrt, "the rows of its P are weights, and sum to 1: the scores are the likeliest"),
    ],
)
def test_what_is_likely(step, how, words):
    wrong = with_mistakes(type("Planted", (), {"steps": {step: lambda a: how(vars(Steps)[step].func(a))}}))
    report = ab.diagnose(lambda Q, K, V, dO: wrong(Q, K, V, dO).run())
    assert report.mistakes == ()
    assert words in " ".join(str(report).split())
