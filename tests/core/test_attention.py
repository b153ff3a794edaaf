"""Attention, forwards, backwards and along tangents: every case, every spine, every library."""

from dataclasses import replace
from functools import cache, partial
from itertools import product

import numpy as np
import pytest
import torch
from cases import CASE, CASES, Case
from compare import derivatives_agree, draw, finite, quietly, same_everywhere
from hypothesis import given
from hypothesis import strategies as st
from libraries import CuPy, ReadOnlyNumPy, Strict, Torch, TorchCUDA
from naive import LAYOUTS, as_exact_as_plain, naive_attention
from planting import by_turns
from routes import ON_TILES, ROUTES, SMALL, taking

import attnbook as ab
from attnbook import arrays, checks
from attnbook.ops import (
    ALiBi,
    Bias,
    BlockMask,
    Causal,
    Dropout,
    LogitScale,
    RelativeBias,
    Scale,
    Segments,
    Sink,
    Softcap,
    T5Buckets,
    Window,
)
from attnbook.spines import SPINES, Way, tiled

A_FEW = ("plain", "no key", "all at once", "grouped, masked and biased", "distances, grouped and causal",
         "dropout, softcap and bias", "sink, grouped, bottom-right, with a dead row")  # fmt: skip


each_case = pytest.mark.parametrize("case", CASES, ids=str)
every_route = pytest.mark.usefixtures("route")


def by_routes(test):
    """Every case, in `make test` each on one route by turns. What each route makes of each case is that of the dense
    one in test_every_route_has_the_derivatives_of_dense.
    """
    return every_route(pytest.mark.parametrize(("route", "case"), by_turns(ROUTES, CASES), indirect=["route"])(test))


def those(condition):
    """The cases for which a law holds, on every route; where they are many, on one by turns, and a few on all."""
    cases = [case for case in CASES if condition(case)]
    pairs = by_turns(ROUTES, cases, A_FEW if len(cases) > 20 else [*map(str, cases)])
    return pytest.mark.parametrize(("route", "case"), pairs, indirect=["route"])


# --- values and derivatives ---------------------------------------------------------------------------------------


@every_route
@each_case
def test_values(case, seed=0):
    inputs = case.draw(seed)
    O, _ = quietly(case.attend, *inputs)
    assert checks.close(O, naive_attention(case, *map(torch.tensor, inputs)))


def O_and_L(O, L):
    """Both as one array: L is one more column, 0 in a dead row, where it does not move."""
    xp = arrays.array_namespace(O)
    return xp.concat([O, finite(L)[..., None]], axis=-1)


@by_routes
def test_derivatives(case, seed=0):
    """Of O and of L together; and where no gradient arrives at L, as if zeros did."""
    inputs = case.draw(seed)
    tangents = draw(*(T.shape for T in inputs), seed=seed + 1)
    O, res = quietly(case.attend, *inputs)
    dO, dL = draw(O.shape, res.L.shape, seed=seed + 2)
    grads = quietly(case.pull, dO, res, dL)
    tO_and_tL = O_and_L(*quietly(case.push, tangents, res, with_L=True))

    def both(*inputs):
        O, res = case.attend(*inputs)
        return O_and_L(O, res.L)

    derivatives_agree(both, inputs, tangents, O_and_L(dO, dL), grads, tO_and_tL)
    assert all(map(np.array_equal, quietly(case.pull, dO, res), case.pull(dO, res, 0 * dL)))


@cache
def made_of(case, route):
    """O and L, gradients and tangents of a case on a route."""
    inputs = case.draw()
    with taking(route):
        O, res = case.attend(*inputs)
        dO, dL = draw(O.shape, res.L.shape, seed=2)
        tangents = draw(*(T.shape for T in inputs), seed=1)
        return [O, finite(res.L), *case.pull(dO, res, dL), *map(finite, case.push(tangents, res, with_L=True))]


@pytest.mark.parametrize("name", [name for name in ROUTES if name != "dense"])
@each_case
def test_every_route_has_the_derivatives_of_dense(name, case):
    assert all(map(checks.close, made_of.__wrapped__(case, name), made_of(case, "dense")))


WHOLE, OF_TILES = "dense on NumPy", [(xp, "tiled") for xp in (Torch, Strict)] + [(ReadOnlyNumPy, to) for to in ON_TILES]
BY_LIBRARIES = [  # each case on a library by turns, and in tiles of one, the engine's among them in all dtypes of NumPy
    *by_turns([(xp, WHOLE) for xp in (ReadOnlyNumPy, Strict, Torch)], CASES, A_FEW),
    *by_turns(OF_TILES, CASES),
    *(pytest.param(where, case) for where in product((CuPy, TorchCUDA), (WHOLE, "tiled")) for case in CASES),
]


@every_route
@pytest.mark.parametrize(
    ("xp", "route", "case"),
    [pytest.param(*p.values[0], p.values[1], marks=p.marks) for p in BY_LIBRARIES],
    ids=lambda value: str(getattr(value, "name", value)),
    indirect=["xp", "route"],
)
def test_every_library_gives_the_same(xp, case):
    inputs = case.draw()
    (dO,) = draw((*case.scores[:-1], case.v[-1]))
    at_finite = [finite(T) for T in inputs]  # a tangent is finite
    same_everywhere(xp, lambda *inputs: case.attend(*inputs)[0], *inputs)
    same_everywhere(xp, lambda dO, *inputs: case.pull(dO, case.attend(*inputs)[1]), dO, *inputs)
    same_everywhere(xp, lambda *inputs: case.push(inputs, case.attend(*inputs)[1]), *at_finite)


ANY_OP = (  # and what its array has after the heads, None where it has none
    *((partial(Window, *sides, "top-left"), None) for sides in ((1, 1), (None, 2))),
    *((partial(Window, *args), None) for args in ((0, None, "bottom-right"), (0, 0, "top-left", 1))),
    *((partial(op, *args), None) for op, *args in ((Dropout, 0.4, 3), (Softcap, 1.5), (Scale, -0.7), (Causal,))),
    *((op, ()) for op in (partial(ALiBi, corner="top-left"), LogitScale, Sink)), (LogitScale, (1, 1)), (Bias, (1, 1)),
    (partial(RelativeBias, corner="top-left"), (3,)),
    (partial(RelativeBias, buckets=T5Buckets(6, 3), corner="bottom-right"), (6,)),
)  # fmt: skip


@st.composite
def any_case(draw):
    """Axes of every length, 0 included, that fit; up to four ops, in any order, beside bias, mask and causal."""
    n_q, n_k, batch, h_kv = (draw(st.integers(0, 5)) for _ in range(4))
    d_k, d_v, group = (draw(st.integers(1, 5)) for _ in range(3))
    lead_q = (batch, h_kv * group)[draw(st.integers(0, 2)) :]
    lead_k = (batch, h_kv)[2 - draw(st.integers(0, len(lead_q))) :]
    scores = (*lead_q, n_q, n_k)
    stretched = st.sampled_from([None, scores, (n_q, n_k), (n_q, 1), (n_k,), ()])
    blocks = np.random.default_rng(n_q).random((-(-n_q // 2), -(-n_k // 3))) < 0.6
    of_the_table = (partial(Segments, np.arange(n_q) // 2, np.arange(n_k) // 3), partial(BlockMask, blocks, (2, 3)))
    ops = [
        (op, own if own is None else (*draw(st.sampled_from([lead_q, lead_q[-1:]])), *own))
        for op, own in draw(st.lists(st.sampled_from((*ANY_OP, *((op, None) for op in of_the_table))), max_size=4))
    ]
    return Case(
        "drawn",
        q=(*lead_q, n_q, d_k),
        k=(*lead_k, n_k, d_k),
        v=(*lead_k, n_k, d_v),
        mask=draw(stretched),
        bias=draw(stretched),
        causal=draw(st.sampled_from([False, True, "bottom-right"])),
        scale=draw(st.sampled_from([None, 0.7])),
        ops=tuple(ops),
    )


@pytest.mark.parametrize(
    "name", [pytest.param("dense on NumPy", marks=pytest.mark.thorough), "tiled", "tiled on NumPy"]
)
@given(any_case(), st.integers(0, 2**32 - 1))
def test_any_shape(name, case, seed):
    with taking(name):
        test_values(case, seed)
        test_derivatives(case, seed)


# --- properties ---------------------------------------------------------------------------------------------------


@by_routes
def test_a_backward_may_run_twice_and_is_linear(case):
    """It is linear in the gradient that arrives. And no derivative writes into what it is given, or residuals hold."""
    inputs, tangents = case.draw(), case.tangents()
    O, res = case.attend(*inputs)
    dO, other = draw(O.shape, O.shape)
    dO.flags.writeable = False
    held = [*inputs, *tangents, *(T for T in res if isinstance(T, np.ndarray))]
    before = [T.copy() for T in held]
    first, second = case.pull(dO, res), case.pull(other, res)
    both = case.pull(2 * dO - 3 * other, res)
    case.push(tangents, res)
    case.push_pull(tangents, dO, res, dL=np.ones_like(res.L), tdO=dO)
    for a, b, ab_, again in zip(first, second, both, case.pull(dO, res), strict=True):
        assert np.array_equal(a, again)
        assert checks.close(ab_, 2 * a - 3 * b)
    assert all(map(np.array_equal, held, before))


@every_route
@those(lambda case: not case.allowed().any(-1).all() and "Dropout" not in str(case.ops))
def test_dead_rows_are_exactly_zero(case):
    """A query with no allowed key: O = 0, its gradients are 0, and what arrives there reaches nothing else."""
    inputs = case.draw()
    dead = ~np.any(case.allowed(), axis=-1)
    assert dead.any(), "the case has no dead row"
    O, res = quietly(case.attend, *inputs)
    assert np.array_equal(np.all(O == 0, axis=-1), dead)
    (dO,) = draw(O.shape)
    grads = quietly(case.pull, dO, res)
    silent = quietly(case.pull, np.where(dead[..., None], 1e9, dO), res)
    assert all(map(np.array_equal, grads, silent))
    if case.scores[:-1] == case.q[:-1]:
        assert np.all(grads[0][dead] == 0)
    tO = quietly(case.push, case.tangents(), res)
    assert np.array_equal(np.all(tO == 0, axis=-1), dead)
    tdQ, *_, tO, tL = quietly(case.push_pull, case.tangents(), dO, res)
    assert not np.any(tO[dead])
    assert np.array_equal(tL[dead] != 0, np.zeros_like(tL[dead], bool)) or "Sink" in str(case.ops)
    if case.scores[:-1] == case.q[:-1]:
        assert not np.any(tdQ[dead])


@every_route
@those(lambda case: not case.allowed().all() and case.k[:-2] == case.scores[:-2] and min(case.scores) > 1)
def test_what_is_forbidden_is_unseen(case):
    """What stands in keys and values that a query may not see leaves its output alone, bit for bit."""
    Q, K, V, *rest = case.draw()
    O, _ = case.attend(Q, K, V, *rest)
    for j in range(K.shape[-2]):
        blind = ~case.allowed()[..., j]
        K2, V2 = K.copy(), V.copy()
        K2[..., j, :], V2[..., j, :] = 3.0, -3.0  # so large that no engine changes its way
        O2, _ = case.attend(Q, K2, V2, *rest)
        assert np.array_equal(O2[blind], O[blind])
        if not any(isinstance(op, Dropout) for op in case.made(*rest[case.bias is not None :])):  # it may drop all
            assert np.all(np.any(O2[~blind] != O[~blind], axis=-1))


@every_route
def test_garbage_stays_behind_the_mask():
    """NaN and ∞ in the bias of a forbidden key reach neither the output nor a gradient nor a tangent."""
    case = CASE["mask and bias of every score"]
    inputs = case.draw()
    tangents = draw(*(T.shape for T in inputs), seed=1)
    dirty = inputs[3].copy()
    dirty[~case.allowed()] = np.nan
    dirty[..., -1] = np.where(case.allowed()[..., -1], dirty[..., -1], np.inf)
    O, res = case.attend(*inputs)
    O2, res2 = quietly(case.attend, *inputs[:3], dirty)
    (dO,) = draw(O.shape, seed=2)
    assert np.array_equal(O2, O)
    assert all(map(np.array_equal, case.pull(dO, res2), case.pull(dO, res)))
    assert np.array_equal(case.push(tangents, res2), case.push(tangents, res))


# --- numerics -----------------------------------------------------------------------------------------------------


@every_route
@pytest.mark.parametrize(("dtype", "size"), [("float16", 6e4), ("float32", 1e4), ("float64", 1e100)])
def test_large_scores_do_not_overflow(dtype, size):
    """Scores of ±size, through products and through the bias, neither overflow nor warn, forwards or backwards."""
    Q, K, V, dO = (np.sign(T).astype(dtype) for T in draw((5, 1), (7, 1), (7, 13), (5, 13)))
    bias = (size * np.sign(draw((5, 7), seed=1)[0])).astype(dtype)
    root = np.asarray(size**0.5, dtype=dtype)
    for factor, options in ((root, {"scale": 1.0}), (1, {"bias": bias})):
        O, res = quietly(ab.attention, factor * Q, factor * K, V, **options)
        grads = quietly(ab.attention_vjp, dO, res)
        assert all(np.all(np.isfinite(T)) for T in (O, grads.dQ, grads.dK, grads.dV))
        assert np.all(np.abs(O) <= 1)


PLACES = ("ALiBi of many heads", "relative bias", "relative bias of T5", "logit scale, grouped",
          "window with global tokens")  # fmt: skip


ENGINE = Way("numpy_tiled", SMALL._replace(rows=16, cols=13, keys=26))
SHIFTED = ENGINE._replace(tiles=ENGINE.tiles._replace(bits=0.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("method", ["auto", Way("tiled", tiled.Tiles(16, 13))], ids=["auto", "tiled"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2))])
@pytest.mark.parametrize(
    "name", ["bias for all heads", "causal, more keys", "grouped queries", "mask with a dead row", "sink", *PLACES]
)
def test_low_precision(name, seed, method, dtype):
    as_exact_as_plain(large(CASE[name]), dtype, seed=seed, method=method)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("method", "size"), [("dense", 1.0), (ENGINE, 1.0), (ENGINE, 300.0), (SHIFTED, 300.0)], ids=str
)
@pytest.mark.parametrize("name", ["causal, more keys", "mask with a dead row"])
def test_low_precision_on_numpy(name, size, method, layout):
    """At scores of up to a thousand too, and however the arrays lie in memory."""
    as_exact_as_plain(large(CASE[name]), layout=layout, size=size, put=torch.Tensor.numpy, method=method)


def large(case):
    """The case with 61 queries, 67 keys, and widths 31 and 37: errors have room to add up."""
    sizes = {5: 61, 7: 67, 11: 31, 13: 37}
    grown = {
        name: (*shape[:-2], *(sizes.get(n, n) for n in shape[-2:]))
        for name in ("q", "k", "v", "mask", "bias")
        if (shape := getattr(case, name)) is not None
    }
    return replace(case, **grown)


# --- the public face ----------------------------------------------------------------------------------------------


def test_gradients_have_their_names_and_dops_an_entry_for_each_op():
    Q, K, V, B = CASE["op with a parameter"].draw()
    O, res = ab.attention(Q, K, V, ops=(ab.ops.Scale(2.0), ab.ops.Bias(B), ab.ops.Causal()))
    grads = ab.attention_vjp(O, res)
    assert isinstance(grads, ab.AttentionGrads)
    assert isinstance(res, SPINES["dense"].Residuals)
    assert res.Q is Q, "residuals hold the inputs, not copies"
    before, dB, after = grads.dops
    assert grads.dbias is before is after is None
    assert dB.shape == B.shape


def test_tangents_that_are_left_out_are_zero():
    case = CASE["all at once"]
    Q, K, V, bias, B = case.draw()
    _, res = case.attend(Q, K, V, bias, B)
    assert np.array_equal(ab.attention_jvp(Q, K, V, res), case.push([Q, K, V, 0 * bias, 0 * B], res))
