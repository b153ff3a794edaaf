"""The catalogue of mistakes: the right steps are right, the tests notice every mistake, and diagnose names it."""

import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import test_attention
from attentions.right import four_axes_only
from cases import CASES, Case
from equations import CHAPTERS, equations

import attnbook as ab
from attnbook import spines
from attnbook.diagnose.causes.mistakes import MISTAKE, MISTAKES
from attnbook.diagnose.learn.results import NAMES
from attnbook.diagnose.links import BOOK, SYMPTOM
from attnbook.diagnose.steps import Steps, with_mistakes
from attnbook.ops import Bias, Causal, Mask
from attnbook.spines import dense

LABELS = {equation.label for equation in equations()}

every_mistake = pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.slug)


def each(n, i=0):
    """Every mistake; by default only each n-th one, from the i-th on."""
    marks = [() if j % n == i else pytest.mark.thorough for j in range(len(MISTAKES))]
    rows = [pytest.param(m, id=m.slug, marks=mark) for m, mark in zip(MISTAKES, marks, strict=True)]
    return pytest.mark.parametrize("mistake", rows)


EQUAL = (
    Case("square", q=(4, 4), k=(4, 4), v=(4, 4)),
    Case("all axes equal", q=(4, 4, 4), k=(4, 4, 4), v=(4, 4, 4)),
)
"""Where a wrong transpose runs, and shows its values."""


def fits_steps(case):
    """Whether the plain steps can run the case: no ops, no broadcast among leading axes, some numbers at all."""
    lead_q, lead_k, lead_v = (shape[:-2] for shape in (case.q, case.k, case.v))
    grouped = len(lead_q) > 1 and lead_k == lead_v and lead_q[:-1] == lead_k[:-1] and lead_q[-1] % lead_k[-1] == 0
    sizes = (*case.q, *case.k, *case.v)
    return not case.ops and (grouped or lead_q == lead_k == lead_v) and all(sizes)


PLAIN = [case for case in CASES if fits_steps(case)]


@every_mistake
def test_an_entry_is_complete(mistake):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", mistake.slug)
    assert mistake.title
    assert mistake.wrong != mistake.right
    assert set(mistake.steps) <= set(vars(Steps))
    assert mistake.spoils == tuple(name for name in NAMES if name in mistake.spoils)
    assert mistake.equation in LABELS
    assert all(re.fullmatch(r"(S\d-\w+|X-\d|question \d+|[\w-]+#\d+)", source) for source in mistake.sources)


def test_slugs_and_titles_are_unique_and_each_has_its_section():
    """The targets that the links of ``diagnose`` lead to, and no other has one."""
    assert len(MISTAKE) == len(MISTAKES) == len({mistake.title for mistake in MISTAKES})
    chapter = (CHAPTERS / "in_the_wild.ipynb").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\(mistake-([\w-]+)\)=", chapter)) == sorted(MISTAKE)


# --- the tests notice every mistake -------------------------------------------------------------------------------


def plant(monkeypatch, mistake, dbias=False):
    """Let the package make this mistake: calls go through a spine that is the dense one, but for what it spoils.

    With ``dbias`` also in the gradient of a bias; without, no test can notice the mistake by that alone.
    """

    def steps(Q, K, V, dO, plan, **more):
        ops = {type(op): op for op in plan.ops}
        options = {"scale": None if np.isclose(plan.scale, Q.shape[-1] ** -0.5, rtol=1e-12) else plan.scale}
        options |= {"mask": ops[Mask].M} if Mask in ops else {}
        options |= {"causal": ops[Causal].corner} if Causal in ops else {}
        options |= {"bias": ops[Bias].B} if Bias in ops else {}
        return with_mistakes(mistake)(Q, K, V, dO, **options, **more)

    def forward(Q, K, V, plan):
        O, res = dense.forward(Q, K, V, plan)
        mistaken = "O" in mistake.spoils and isinstance(Q, np.ndarray)  # autograd, on tensors, sees what is right
        return (steps(Q, K, V, O, plan).run()[0].astype(Q.dtype) if mistaken else O), res

    def vjp(dO, dL, res):
        mistaken = steps(res.Q, res.K, res.V, dO, res.plan, **({} if dL is None else {"dL": dL}))
        grads = [T.astype(res.Q.dtype) for T in mistaken.run()[1:]]
        dops = dense.vjp(dO, dL, res)[3]
        if dbias:
            dops = [mistaken.dbias if isinstance(op, Bias) else dT for op, dT in zip(res.plan.ops, dops, strict=True)]
        return *grads, dops

    spine = SimpleNamespace(prepare=dense.prepare, forward=forward, vjp=vjp, jvp=dense.jvp)
    monkeypatch.setitem(spines.SPINES, "mistaken", spine)
    monkeypatch.setitem(spines.WAYS, "auto", spines.Way("mistaken"))


def both_tests(case):
    """Those of tests/core/test_attention.py that every case must pass."""
    return [partial(test_attention.test_values, case), partial(test_attention.test_derivatives, case)]


LARGE = partial(test_attention.test_large_scores_do_not_overflow, "float64", 1e4)


def test_right_steps_are_refused_by_none(monkeypatch):
    plant(monkeypatch, SimpleNamespace(steps={}, spoils=NAMES))
    for i, case in enumerate(PLAIN):
        for test in both_tests(case)[: 1 + (i % 6 == 0)]:  # derivatives take long
            test()


def refused_by(test):
    """The kind of error that the test ends with, if any; one of shapes that do not fit is a ValueError."""
    try:
        return test()
    except (AssertionError, ValueError) as error:
        return AssertionError if isinstance(error, AssertionError) else ValueError


@every_mistake
def test_the_tests_notice_it(mistake, monkeypatch):
    """And not only by a shape that does not fit: where it runs, what it computes is refused."""
    plant(monkeypatch, mistake)
    came = set()
    for test in (*(test for case in PLAIN for test in both_tests(case)), LARGE):
        came.add(refused_by(test))
        if AssertionError in came:
            return
    assert ValueError in came
    assert any(refused_by(test) is AssertionError for case in EQUAL for test in both_tests(case))


# --- diagnose names every mistake ---------------------------------------------------------------------------------


def names(report):
    """The mistakes it names, and what it says is wrong of O, dQ, dK and dV."""
    return report.mistakes, tuple(f.about for f in report.findings if f.kind == "wrong" and f.about in NAMES)


@each(8, 5)
def test_diagnose_names_it(mistake):
    report = ab.diagnose(mistake.run)
    assert names(report) == ((mistake.slug,), mistake.spoils)
    if mistake.spoils in SYMPTOM and mistake.slug != "group-tiled":  # which has a section of its own
        assert str(report).endswith(f"\n\nfrom symptom to cause: {BOOK}book/symptoms.html{SYMPTOM[mistake.spoils]}")


@each(24, 3)
def test_diagnose_names_it_in_the_package(mistake, monkeypatch):
    plant(monkeypatch, mistake, dbias=True)
    assert names(ab.diagnose((ab.attention, ab.attention_vjp))) == ((mistake.slug,), mistake.spoils)


@each(12, 1)
def test_diagnose_names_it_in_float32_where_only_four_axes_are_taken(mistake):
    report = ab.diagnose(four_axes_only(mistake.run), dtype="float32", seed=1)
    assert names(report) == ((mistake.slug,), mistake.spoils)


@pytest.mark.parametrize(
    "pair",
    [
        ("ds-mean", "dk-transposed"),
        ("mask-forgotten-in-backward", "group-mean"),
        pytest.param(("mask-inverted", "ds-no-row-sum"), marks=pytest.mark.thorough),
    ],
    ids=" and ".join,
)
def test_diagnose_names_two_at_once(pair):
    def wrong(*inputs, **options):
        return with_mistakes(*(MISTAKE[slug] for slug in pair))(*inputs, **options).run()

    report = ab.diagnose(wrong)
    assert not report.ok
    assert set(report.mistakes) == set(pair)
    assert all(len(finding.causes) == 1 for finding in report.findings if finding.kind == "wrong")
