"""Softmax and log-sum-exp: values, three kinds of derivative, and the edges."""

import numpy as np
import pytest
from compare import derivatives_agree, draw, quietly, same_everywhere
from scipy import special

import attnbook as ab
from attnbook import checks

AXES = [((2, 3, 5), -1), ((2, 3, 5), 1), ((2, 3, 5), -3), ((5,), 0), ((3, 1), -1), ((0, 5), -1), ((1, 1), 0)]
each_axis = pytest.mark.parametrize(("shape", "axis"), AXES)


def softmax_is_right(shape=(2, 3, 5), axis=-1, seed=0):
    S, dP, tS = draw(shape, shape, shape, seed=seed)
    P = ab.softmax(S, axis)
    assert checks.close(P, special.softmax(S, axis))
    dS, tP = ab.softmax_vjp(dP, P, axis), ab.softmax_jvp(tS, P, axis)
    derivatives_agree(lambda S: ab.softmax(S, axis), [S], [tS], dP, [dS], tP)


def logsumexp_is_right(shape=(2, 3, 5), axis=-1, seed=0):
    S, tS = draw(shape, shape, seed=seed)
    P, L = ab.softmax(S, axis), ab.logsumexp(S, axis)
    assert checks.close(L, special.logsumexp(S, axis))
    (dL,) = draw(L.shape, seed=seed + 1)
    dS, tL = ab.logsumexp_vjp(dL, P, axis), ab.logsumexp_jvp(tS, P, axis)
    derivatives_agree(lambda S: ab.logsumexp(S, axis), [S], [tS], dL, [dS], tL)


either = pytest.mark.parametrize("is_right", [softmax_is_right, logsumexp_is_right], ids=["softmax", "logsumexp"])


@each_axis
@either
def test_values_and_derivatives(is_right, shape, axis):
    is_right(shape, axis)


@pytest.mark.parametrize("shape", [(2, 3, 5), (5,), (3, 1)], ids=str)
def test_the_columns_of_the_jacobian_are_derivatives(shape):
    """Column k is how P changes with score k; the matrix is symmetric and its rows sum to 0."""
    (S,) = draw(shape)
    J = ab.softmax_jacobian(ab.softmax(S))
    assert J.shape == (*shape, shape[-1])
    for k in range(shape[-1]):
        t = np.zeros(shape)
        t[..., k] = 1
        checks.check_jvp(ab.softmax, J[..., k], at=S, tangents=t)
    assert checks.close(J, np.swapaxes(J, -1, -2))
    assert checks.close(J.sum(-1), np.zeros(shape))


def test_every_library_gives_the_same(xp):
    S, T = draw((2, 3, 5), (2, 3, 5))
    for axis in (-1, 1):
        P, dL = ab.softmax(S.copy(), axis), T.take(0, axis)
        same_everywhere(xp, lambda S, axis=axis: (ab.softmax(S, axis), ab.logsumexp(S, axis)), S)
        for f in (ab.softmax_vjp, ab.softmax_jvp, ab.logsumexp_jvp):
            same_everywhere(xp, lambda T, P, f=f, axis=axis: f(T, P, axis), T, P)
        same_everywhere(xp, lambda dL, P, axis=axis: ab.logsumexp_vjp(dL, P, axis), dL, P)
    same_everywhere(xp, ab.softmax_jacobian, ab.softmax(S.copy()))
    S[0, 1], S[1, 2, :2] = -np.inf, -np.inf
    same_everywhere(xp, ab.softmax, S)
    assert np.array_equal(np.isneginf(xp.numpy(ab.logsumexp(xp.asarray(S)))), np.isneginf(S).all(-1))


@pytest.mark.parametrize(("dtype", "size"), [("float16", 6e4), ("float32", 1e4), ("float64", 1e300)])
def test_large_scores_do_not_overflow(dtype, size):
    """Scores of ±size neither overflow nor warn: the largest takes all."""
    signs, dP = draw((3, 7), (3, 7))
    S = (size * np.sign(signs)).astype(dtype)
    S[:, 2] = size
    wins = S.max(axis=-1, keepdims=True) == S
    P = quietly(ab.softmax, S)
    assert np.array_equal(P, (wins / wins.sum(axis=-1, keepdims=True)).astype(dtype))
    assert np.array_equal(quietly(ab.logsumexp, S), (size + np.log(wins.sum(axis=-1))).astype(dtype))
    dS = quietly(ab.softmax_vjp, dP.astype(dtype), P)
    assert np.all(np.isfinite(dS))
    assert np.all(dS[~wins] == 0)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_rows_of_minus_infinity(dtype):
    """A row of −∞ has no weights, no value, no gradient, and makes no noise."""
    S, dP = (T.astype(dtype) for T in draw((3, 5), (3, 5)))
    S[1], S[2, :2] = -np.inf, -np.inf
    P, L = quietly(ab.softmax, S), quietly(ab.logsumexp, S)
    dead = np.isneginf(S)
    assert np.all(P[dead] == 0)
    assert np.all(P[~dead] > 0)
    assert np.array_equal(np.isneginf(L), [False, True, False])
    derivatives = ab.softmax_vjp(dP, P), ab.softmax_jvp(dP, P), ab.logsumexp_vjp(dP[:, 0], P)
    assert all(np.all(d[dead] == 0) and np.all(d[~dead] != 0) for d in derivatives)
    assert np.all(ab.softmax_jacobian(P)[1] == 0)
    assert ab.logsumexp_jvp(dP, P)[1] == 0


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
    assert np.array_equal(ab.logsumexp(S), special.logsumexp(S, axis=-1), equal_nan=True)
