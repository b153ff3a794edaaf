"""Softmax and log-sum-exp: values, three kinds of derivative, and the edges."""

import laws
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attnbook as ab

AXES = [((2, 3, 5), -1), ((2, 3, 5), 1), ((2, 3, 5), -3), ((5,), 0), ((3, 1), -1), ((0, 5), -1), ((1, 1), 0)]
each_axis = pytest.mark.parametrize(("shape", "axis"), AXES)
either = pytest.mark.parametrize(
    ("values", "gradients"),
    [(laws.softmax_values, laws.softmax_gradients), (laws.logsumexp_values, laws.logsumexp_gradients)],
    ids=["softmax", "logsumexp"],
)


@each_axis
@either
def test_values_and_derivatives(values, gradients, shape, axis):
    values(shape, axis)
    gradients(shape, axis)


@st.composite
def shapes_with_an_axis(draw):
    shape = tuple(draw(st.lists(st.integers(0, 7), min_size=1, max_size=4)))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    return (shape, axis) if shape[axis] else ((*shape[:axis], 1, *shape[axis % len(shape) + 1 :]), axis)


@either
@given(where=shapes_with_an_axis(), seed=st.integers(0, 2**32 - 1))
def test_any_shape_and_axis(values, gradients, where, seed):
    values(*where, seed=seed)
    gradients(*where, seed=seed)


@pytest.mark.parametrize("shape", [(2, 3, 5), (5,), (3, 1)], ids=str)
def test_the_columns_of_the_jacobian_are_derivatives(shape):
    laws.jacobian_columns_are_derivatives(shape)


def test_the_jacobian_carries_a_tangent_as_the_jvp_does():
    S, t = laws.draw((2, 3, 5), (2, 3, 5))
    P = ab.softmax(S)
    carried = np.einsum("...jk,...k->...j", ab.softmax_jacobian(P), t)
    assert ab.checks.close(carried, ab.softmax_jvp(t, P))


def test_a_shift_of_the_row_changes_nothing():
    laws.softmax_is_shift_invariant()


def test_every_library_gives_the_same(xp):
    S, T = laws.draw((2, 3, 5), (2, 3, 5))
    for axis in (-1, 1):
        P, dL = ab.softmax(S, axis), T.take(0, axis)
        laws.same_everywhere(xp, lambda S, axis=axis: (ab.softmax(S, axis), ab.logsumexp(S, axis)), S)
        for f in (ab.softmax_vjp, ab.softmax_jvp, ab.logsumexp_jvp):
            laws.same_everywhere(xp, lambda T, P, f=f, axis=axis: f(T, P, axis), T, P)
        laws.same_everywhere(xp, lambda dL, P, axis=axis: ab.logsumexp_vjp(dL, P, axis), dL, P)
    laws.same_everywhere(xp, ab.softmax_jacobian, ab.softmax(S))


@pytest.mark.parametrize(("dtype", "size"), [("float16", 6e4), ("float32", 1e4), ("float64", 1e300)])
def test_large_scores_do_not_overflow(dtype, size):
    laws.softmax_of_large_scores(dtype, size)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_rows_of_minus_infinity(dtype):
    laws.softmax_of_dead_rows(dtype)


def test_rows_of_minus_infinity_in_every_library(xp):
    S = np.array([[0.0, 1.0, -np.inf], [-np.inf, -np.inf, -np.inf]])
    P, L = ab.softmax(xp.asarray(S)), ab.logsumexp(xp.asarray(S))
    assert np.array_equal(xp.numpy(P) == 0, np.isneginf(S))
    assert np.array_equal(np.isneginf(xp.numpy(L)), [False, True])


def test_an_empty_axis():
    S = np.zeros((3, 0))
    assert ab.softmax(S).shape == ab.softmax_vjp(S, S).shape == (3, 0)
    assert ab.softmax_jacobian(S).shape == (3, 0, 0)
    assert np.array_equal(ab.logsumexp(S), [-np.inf] * 3)
    assert np.array_equal(ab.logsumexp_jvp(S, S), [0.0] * 3)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_score_spoils_its_own_row_only(bad):
    S = np.array([[0.0, bad], [0.0, 1.0]])
    assert np.array_equal(np.isnan(ab.softmax(S)), [[True, True], [False, False]])
