"""The checks in balls: the package's own lines hold to 50 digits, and an error of one part in 10³⁰ is refused."""

from functools import partial

import numpy as np
import pytest
from cases import CASES
from compare import draw, finite

import attnbook as ab
from attnbook.arrays import array_namespace, mT
from attnbook.checks import check, check_jvp, check_vjp
from attnbook.spines import Way, tiled
from evidence.formats import FORMATS, any_rounding, rounded

flint = pytest.importorskip("flint", reason="python-flint is not installed")
from attnbook.checks import balls  # noqa: E402

DIGITS = 50
holds, pushes = partial(check_vjp, digits=DIGITS), partial(check_jvp, digits=DIGITS)
in_tiles = Way("tiled", tiled.Tiles(2, 3))


def softmax_grads(S, dP):
    return ab.softmax_vjp(dP, ab.softmax(S))


def refused(check, f, claimed, match="disagrees|known", error=AssertionError, **options):
    """The check must not pass."""
    with pytest.raises(error, match=match):
        check(f, claimed, **options)


# --- what is right ------------------------------------------------------------------------------------------------


def O_and_L(O, L):
    return array_namespace(O).concat([O, finite(L)[..., None]], axis=-1)


def each(cases, few, *first):
    """Each case, in `make test` only a few."""
    marks = [() if case.name in few else pytest.mark.thorough for case in cases]
    return [pytest.param(*first, case, id=str(case), marks=mark) for case, mark in zip(cases, marks, strict=True)]


FEW = "no key", "mask with a dead row", "grouped, masked and biased", "all at once", "two sinks, dropout, cap and bias"


@pytest.mark.parametrize(("method", "case"), [*each(CASES, ("plain", *FEW), "dense"), *each(CASES, FEW, in_tiles)])
def test_attention(method, case):
    """Every case: gradients from O and from L, and tangents of both."""
    inputs, n = case.draw(), len(case.draw())

    def attend(*inputs):
        return ab.attention(*inputs[:3], **case.options(*inputs[:1], *inputs[3:]), method=method)

    def both(*inputs):
        O, res = attend(*inputs)
        return O_and_L(O, res.L)

    def grads(*given):
        d = given[n]
        return case.pull(d[..., :-1], attend(*given[:n])[1], d[..., -1])

    def tangent(*given):
        return O_and_L(*case.push(given[n:], attend(*given[:n])[1], with_L=True))

    (d,) = draw(both(*inputs).shape, seed=2)
    holds(both, grads, at=inputs, cotangent=d, trials=1)
    pushes(both, tangent, at=inputs, tangents=draw(*(T.shape for T in inputs), seed=1))


def test_gradients_of_floats_are_held_against_the_same_balls():
    S, dP, tS = draw((3, 5), (3, 5), (3, 5))
    dS, tP = softmax_grads(S, dP), ab.softmax_jvp(tS, ab.softmax(S))
    assert str(holds(ab.softmax, dS, at=S, cotangent=dP)) == "agrees with balls, up to float64 rounding"
    pushes(ab.softmax, tP, at=S, tangents=tS)
    for wrong in (1 + 1e-10, np.nan):
        refused(holds, ab.softmax, dS * wrong, at=S, cotangent=dP)
        refused(pushes, ab.softmax, tP * wrong, at=S, tangents=tS)


ANALYTIC = "exp expm1 log log1p sin cos sqrt tanh sinh cosh asinh atan exp2 log2 abs norm max min"
MOVES = "sum mean negative ravel tril triu trace transpose"


def test_each_function_moves_its_tangent():
    """Every function of one array against its own difference quotient, at 200 digits."""

    def put(T, row):
        T = T.copy()
        T[1] = row
        return T

    x, t = draw((3, 4), (3, 4))
    x = np.abs(x) + 0.5
    index = balls.asarray(np.array([2, 0]))
    functions = {
        **{name: getattr(balls, name) for name in [*ANALYTIC.split(), *MOVES.split()]},
        "power": lambda T: T**2.5 + T**3 + 2.0**T + T**T,
        "divide": lambda T: 1 / T + T / 3 + T / T[0],
        "clip": lambda T: balls.clip(T, 0.7, 1.1),
        "where": lambda T: balls.where(T > 1, T * T, 0.0),
        "einsum": lambda T: balls.einsum("ij,ij->i", T, T),
        "cumulative_sum": lambda T: balls.cumulative_sum(T, axis=1),
        "take": lambda T: balls.take(T, index, axis=1),
        "stack": lambda T: balls.stack([T, T * T], axis=-1) + balls.concat([T, T])[:3, :, None],
        "in place": lambda T: put(T, T[0] * T[1]),
    }
    with flint.ctx.workdps(200):
        T, D = balls.asarray(x), balls.asarray(t)
        step = flint.arb(10) ** -60
        for name, f in functions.items():
            near = f(T + D * balls.Balls(step)) - f(T - D * balls.Balls(step))
            slope, found = near.x / (2 * step), balls.tangent(f(balls.Balls(T.x, D.x)))
            off = balls.bounds(balls.Balls(slope - found))
            assert np.max(np.abs(off)) < 1e-100, name
            assert found.shape == near.shape


# --- what is wrong ------------------------------------------------------------------------------------------------


def head_lines(wrong=None):
    """The gradients of a head, or with a mistake in one line."""

    def grads(Q, K, V, dO):
        xp, scale = array_namespace(Q), 0.3
        P = ab.softmax(scale * Q @ mT(K))
        dP = dO @ mT(V)
        D = xp.sum(P * dP, axis=-1, keepdims=True)
        dS = P * (dP - (0 if wrong == "D forgotten" else D))
        dQ, dK, dV = scale * dS @ K, scale * mT(dS) @ Q, mT(P) @ dO
        if wrong == "1e-30 of one entry":
            dV[1, 0] = dV[1, 0] * (1 + xp.asarray(1e-30))
        if wrong == "1e-40 of another":
            dQ[2, 1] = dQ[2, 1] + xp.asarray(1e-40)
        return dQ, dK, dV

    return grads


def head(Q, K, V):
    return ab.attention(Q, K, V, scale=0.3)


HEAD = ((3, 5), (3, 5), (3, 2), (3, 2))
LARGE = 4 * ((13, 7),)  # more entries than are looked at one by one: a random direction sees one that is off
MISTAKES = ("D forgotten", "1e-30 of one entry", "1e-40 of another")


def test_a_formula_in_numpy_runs_on_balls():
    """What a chapter writes with np, methods and all."""

    def of_numpy(Q, K, V):
        S = 0.3 * Q @ K.mT
        E = np.exp(S - S.max(axis=-1, keepdims=True))
        return np.einsum("ik,kj->ij", E / E.sum(-1, keepdims=True), V)

    *at, dO = draw(*HEAD)
    holds(of_numpy, head_lines(), at=at, cotangent=dO)


@pytest.mark.parametrize("wrong", MISTAKES)
@pytest.mark.parametrize("shapes", [HEAD, LARGE], ids=["small", "large"])
def test_a_mistake_is_refused(wrong, shapes):
    *at, dO = draw(*shapes)
    holds(head, head_lines(), at=at, cotangent=dO)
    holds(head, lambda *args: (None, head_lines()(*args)[1], None), at=at, cotangent=dO)
    refused(holds, head, head_lines(wrong), at=at, cotangent=dO)


def test_a_wrong_tangent_is_refused_and_named():
    S, tS = draw((3, 5), (3, 5))

    def wrong(S, tS):
        tP = ab.softmax_jvp(tS, ab.softmax(S))
        tP[1, 2] = tP[1, 2] * (1 + balls.asarray(1e-30))
        return tP

    refused(pushes, ab.softmax, wrong, match=r"the tangent at \(1, 2\) disagrees with balls", at=S, tangents=tS)
    refused(pushes, ab.softmax, lambda S, tS: tS[:2], match="shape", at=S, tangents=tS)


def test_a_failure_says_where_and_by_how_much():
    *at, dO = draw(*HEAD)
    options = {"at": at, "cotangent": dO}
    refused(holds, head, head_lines("1e-30 of one entry"), r"^gradient 2 at \(1, 0\) .* by \d\.\d+e-32", **options)
    said = "gradient 0 at .* known not at all in what is claimed"
    refused(holds, head, lambda *args: [T * np.nan for T in args[:3]], said, **options)
    refused(holds, head, lambda *args: (at[0][:1] * args[0][:1], None, None), "shape", **options)


# --- what balls cannot say, and what is no function of balls --------------------------------------------------------


CORNERS = (
    lambda x: x.max(-1),  # its value matters, and two numbers share it
    lambda x: array_namespace(x).maximum(x, 0.5),
    lambda x: abs(x - 0.5),
    lambda x: array_namespace(x).where(x == 0.5, 0.5, x),  # true there and nowhere near
    lambda x: array_namespace(x).where(x > 0.5, x, 0.5),
)


@pytest.mark.parametrize("f", CORNERS)
def test_a_corner_is_no_place_for_a_derivative(f):
    x = np.full((2, 3), 0.5)
    said, options = "^at: expected a point where every comparison is decided, got", {"cotangent": np.ones(f(x).shape)}
    refused(holds, f, lambda x, c: x * 0, said, ValueError, at=x, **options)


def test_too_wide_is_an_error_and_no_pass():
    """(e⁶⁰⁰⁰ + e⁵⁰⁰⁰ x + x) − e⁵⁰⁰⁰ x − e⁶⁰⁰⁰ is x, which only thousands of digits could tell."""
    (x, c) = draw((3,), (3,))

    def cancelling(x):
        large, larger = (array_namespace(x).exp(0 * x + power) for power in (5000.0, 6000.0))
        return (larger + large * x + x) - large * x - larger

    said = "^digits: expected a number for which the balls stay narrow, got"
    refused(holds, cancelling, lambda x, c: c, said, ValueError, at=x, cotangent=c)
    refused(holds, lambda x: x, lambda x, c: cancelling(c), match="not at all in what is claimed", at=x, cotangent=c)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: np.asarray(x),
        lambda x: x * float(x[0]),
        lambda x: np.exp(np.ones(3)),  # of NumPy, whatever it is given
        lambda x: x.astype(np.float32),
        lambda x: np.add.reduce(x),
        lambda x: x * (1 if x[0] else 2),
    ],
)
def test_what_leaves_the_balls_is_refused(f):
    x, c = draw((3,), (3,))
    said = r"ball|__array_function__|__array_ufunc__"
    refused(holds, f, lambda x, c: x * c, said, TypeError, at=x, cotangent=c)
    refused(holds, lambda x: x * x, lambda x, c: f(x), said, TypeError, at=x, cotangent=c)


def test_bad_arguments():
    S, dP = draw((3, 5), (3, 5))
    for compare, claimed, said, error, more in (
        *((holds, softmax_grads, "digits: expected None or a positive integer, got", ValueError, {"digits": digits})
          for digits in (0, 2.5)),
        (check_vjp, softmax_grads, "expected float64 NumPy arrays, got function", TypeError, {}),
        (holds, lambda S, dP: (S, S), "grads: expected 1 arrays, got 2", ValueError, {}),
        (holds, softmax_grads, "cotangent: expected the shape of the output", ValueError, {"cotangent": dP[:1]}),
        (holds, softmax_grads, "at: expected float64", TypeError, {"at": S.astype(np.float32)}),
    ):  # fmt: skip
        refused(compare, ab.softmax, claimed, said, error, **({"at": S, "cotangent": dP} | more))


def test_without_python_flint_one_line_says_so(monkeypatch):
    monkeypatch.setattr(check, "has_flint", lambda: False)
    S, dP = draw((3, 5), (3, 5))
    with pytest.raises(ModuleNotFoundError, match="digits: expected None where python-flint is not installed, got 50"):
        holds(ab.softmax, softmax_grads, at=S, cotangent=dP)
    check_vjp(ab.softmax, softmax_grads(S, dP), at=S, cotangent=dP)


# --- the arrays themselves ------------------------------------------------------------------------------------------


def test_bounds_enclose():
    """Their ends are floats on both sides of the number, and the next ones at that."""
    numbers = [flint.arb(1) / 3, flint.arb(2).sqrt(), flint.arb(1) / 4]
    low, high = balls.bounds(balls.Balls(np.array(numbers, dtype=object)))
    for a, below, above in zip(numbers, low, high, strict=True):
        assert flint.arb(float(below)) < a < flint.arb(float(above))
        assert above - below < 1e-15


@pytest.mark.parametrize("name", FORMATS)
def test_any_rounding_holds_the_nearest(name):
    """Each number of a format that is nearest, and with a tenth more than half a spacing some that are not."""
    rng = np.random.default_rng(0)
    form = FORMATS[name]
    x = rng.normal(size=2000) * 2.0 ** rng.integers(max(form.emin, -1000) - 20, form.emax - 4, 2000)
    with flint.ctx.workdps(400):
        exact = balls.asarray(x)
        wide = any_rounding(name)(exact)
        for a, found in zip(wide.x, rounded(x, name), strict=True):
            assert a.contains(flint.arb(float(found)))
        apart = [not a.contains(b * (1 + 2.2 * form.u)) for a, b in zip(wide.x, exact.x, strict=True) if abs(b) > 1]
        assert all(apart)
        (beyond,) = any_rounding(name)(balls.Balls(np.array([flint.arb(form.largest) * 2]))).x
        assert not beyond.is_finite()
