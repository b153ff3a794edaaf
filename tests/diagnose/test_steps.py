"""The steps that diagnose compares with: right with every option, by the package's own ops and by differences."""

import numpy as np
import pytest
from attentions.right import with_ops

from attnbook import checks
from attnbook.diagnose.cases.battery import battery
from attnbook.diagnose.causes._shared import Shared
from attnbook.diagnose.causes.search import classes
from attnbook.diagnose.steps import Steps, as_if_contiguous

CASES = [case for case in battery(seed=2) if case.dtype == "float64" and "dropout" not in case.options]


def test_dropout_is_the_package_s_where_it_keeps_the_same():
    (case,) = (case for case in battery(seed=2) if "dropout" in case.options)
    *inputs, dO = case.inputs
    rng = np.random.default_rng(0)
    V, dO = rng.standard_normal(inputs[2].shape), rng.standard_normal(dO.shape)
    kept = with_ops(*case.inputs, **case.options)[0] != 0  # V is 1 on the diagonal
    right = with_ops(*inputs[:2], V, dO, **case.options)
    assert 0.5 < kept.mean() < 0.9
    assert all(map(checks.close, Steps(*inputs[:2], V, dO, kept=kept, **case.options).run(), right))
    assert not checks.close(Steps(*inputs[:2], V, dO, kept=~kept, **case.options).O, right[0])
    drawn = Steps(*inputs[:2], V, dO, **case.options)  # on its own, it draws
    assert 0 < np.count_nonzero(drawn.weights == 0) < drawn.weights.size


@pytest.mark.parametrize("kind", ["transposed", "heads last", "reversed"])
def test_what_one_reads_who_ignores_strides(kind):
    T = np.arange(120.0).reshape(2, 3, 4, 5)
    swap = {"transposed": (-1, -2), "heads last": (-2, -3)}.get(kind)
    memory = T[..., ::-1, :].copy() if swap is None else np.swapaxes(T, *swap).copy()
    assert np.array_equal(as_if_contiguous(T, kind), memory.ravel().reshape(T.shape))
    assert as_if_contiguous(T, "") is T


SMALL = [
    pytest.param(case, marks=() if case.name in ("all options", "sink", "grouped heads") else pytest.mark.thorough)
    for case in CASES
    if max(map(np.size, case.inputs)) <= 1024
]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_what_is_shared_with_the_right_calculation_is_what_each_would_compute(case):
    options = {**case.options, **({"memory": case.memory} if case.memory else {})}
    shared = Shared(case.inputs, options)
    with np.errstate(all="ignore"):
        for steps in classes().values():
            try:
                alone = steps(*case.inputs, **options).results()
            except ValueError:
                alone = None
            came = shared.predicted(steps)
            assert (came is None) == (alone is None)
            assert all(np.array_equal(came[name], T, equal_nan=True) for name, T in (alone or {}).items())


def test_nothing_is_shared_that_rests_on_what_is_replaced():
    case = next(case for case in CASES if case.name == "plain")
    shared = Shared(case.inputs, case.options)
    left = shared.left_by(frozenset({"dP"})).keys()
    assert {"S", "P", "O", "dV"} <= left
    assert not {"dP", "D", "dS", "dQ", "dK"} & left
    assert shared.left_by(frozenset({"turned"})) == {}
    with pytest.raises(ValueError, match="read-only"):
        shared.steps["P"][...] = 0
