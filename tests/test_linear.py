"""The projection Y = X W + b."""

import laws
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attnbook as ab

LEADS = [(), (3,), (2, 3), (2, 1, 3), (0,), (2, 0)]


@pytest.mark.parametrize("lead", LEADS, ids=str)
def test_values_and_derivatives(lead):
    laws.linear_values(lead)
    laws.linear_gradients(lead)


@given(st.lists(st.integers(0, 5), max_size=3), st.integers(0, 5), st.integers(0, 5), st.integers(0, 2**32 - 1))
def test_any_shape(lead, d_in, d_out, seed):
    laws.linear_gradients(tuple(lead), d_in, d_out, seed)


def test_without_a_bias():
    X, W, b, tX, tW, tb = laws.draw((2, 3, 5), (5, 7), (7,), (2, 3, 5), (5, 7), (7,))
    assert ab.checks.close(ab.linear(X, W), ab.linear(X, W, 0 * b))
    assert ab.checks.close(ab.linear_jvp(tX, tW, None, X, W), ab.linear_jvp(tX, tW, 0 * tb, X, W))


def test_every_library_gives_the_same(xp):
    X, W, b, dY = laws.draw((2, 3, 5), (5, 7), (7,), (2, 3, 7))
    laws.same_everywhere(xp, ab.linear, X, W, b)
    laws.same_everywhere(xp, ab.linear_vjp, dY, X, W)
    laws.same_everywhere(xp, ab.linear_jvp, X, W, b, X, W)


def test_gradients_have_their_names():
    X, W, dY = laws.draw((2, 3, 5), (5, 7), (2, 3, 7))
    grads = ab.linear_vjp(dY, X, W)
    assert isinstance(grads, ab.LinearGrads)
    assert (grads.dX.shape, grads.dW.shape, grads.db.shape) == (X.shape, W.shape, (7,))
