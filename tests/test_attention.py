"""Attention, forwards, backwards and along tangents: every case, every spine, every library."""

import doctest
import importlib
from dataclasses import replace
from functools import partial

import laws
import numpy as np
import pytest
import torch
from cases import CASE, CASES, Case
from hypothesis import given
from hypothesis import strategies as st
from libraries import ReadOnlyNumPy
from routes import ON_TILES, taking

import attnbook as ab
from attnbook.ops import Dropout, Softcap, Window
from attnbook.spines import SPINES, tiled

each_case = pytest.mark.parametrize("case", CASES, ids=str)
every_route = pytest.mark.usefixtures("route")


def those(condition):
    """The cases for which a law holds."""
    return pytest.mark.parametrize("case", [case for case in CASES if condition(case)], ids=str)


# --- values and derivatives ---------------------------------------------------------------------------------------


@every_route
@each_case
def test_values(case):
    laws.attention_values(case)


@every_route
@each_case
def test_derivatives(case):
    laws.attention_gradients(case)


@each_case
def test_every_library_gives_the_same(xp, case):
    laws.attention_in_every_library(xp, case)


@each_case
def test_every_library_gives_the_same_in_tiles(xp, case):
    with taking("tiled"):
        laws.attention_in_every_library(xp, case)


@pytest.mark.parametrize("name", ON_TILES)
@each_case
def test_the_engine_has_the_dtypes_of_numpy(case, name):
    with taking(name):
        laws.attention_in_every_library(ReadOnlyNumPy(), case)


OPS = ((Window, 1, 1), (Window, 0, None, "bottom-right"), (Window, None, 2), (Dropout, 0.4, 3), (Softcap, 1.5))


@st.composite
def any_case(draw):
    """Axes of every length, 0 included, that fit."""
    n_q, n_k, batch, h_kv = (draw(st.integers(0, 5)) for _ in range(4))
    d_k, d_v, group = (draw(st.integers(1, 5)) for _ in range(3))
    lead_q = (batch, h_kv * group)[draw(st.integers(0, 2)) :]
    lead_k = (batch, h_kv)[2 - draw(st.integers(0, len(lead_q))) :]
    scores = (*lead_q, n_q, n_k)
    stretched = st.sampled_from([None, scores, (n_q, n_k), (n_q, 1), (n_k,), ()])
    return Case(
        "drawn",
        q=(*lead_q, n_q, d_k),
        k=(*lead_k, n_k, d_k),
        v=(*lead_k, n_k, d_v),
        mask=draw(stretched),
        bias=draw(stretched),
        causal=draw(st.sampled_from([False, True, "bottom-right"])),
        scale=draw(st.sampled_from([None, 0.7])),
        ops=draw(st.sampled_from([(), *(((partial(op, *args), None),) for op, *args in OPS)])),
    )


@pytest.mark.parametrize("name", ["dense on NumPy", "tiled", "tiled on NumPy"])
@given(any_case(), st.integers(0, 2**32 - 1))
def test_any_shape(name, case, seed):
    with taking(name):
        laws.attention_values(case, seed=seed)
        laws.attention_gradients(case, seed=seed)


# --- properties ---------------------------------------------------------------------------------------------------


@every_route
@each_case
def test_a_backward_may_run_twice_and_is_linear(case):
    laws.attention_runs_twice(case)


@every_route
@those(lambda case: case.dead or not case.allowed().any(-1).all())
def test_dead_rows_are_exactly_zero(case):
    laws.dead_rows_are_exactly_zero(case)


def test_dead_rows_in_every_library(xp):
    case = CASE["mask with a dead row"]
    O, res = case.attend(*(xp.asarray(T) for T in case.draw()))
    assert np.array_equal(np.all(xp.numpy(O) == 0, axis=-1), ~case.allowed().any(axis=-1))
    dQ, *others = (xp.numpy(T) for T in case.pull(xp.asarray(np.ones(O.shape)), res))
    assert np.all(dQ[..., 1, :] == 0)
    assert all(np.all(np.isfinite(T)) for T in others)


@every_route
@those(lambda case: not any(shape is None for _, shape in case.ops))
def test_the_gradients_of_keys_balance(case):
    laws.keys_balance(case)


@every_route
@those(lambda case: case.bias == case.scores)
def test_rows_of_dS_sum_to_zero(case):
    laws.rows_of_dS_sum_to_zero(case)


@every_route
@those(lambda case: not case.allowed().all() and case.k[:-2] == case.scores[:-2])
def test_what_is_forbidden_is_unseen(case):
    laws.future_is_unseen(case)


@every_route
@those(lambda case: case.mask is case.bias is None and not case.causal and not case.ops)
def test_keys_have_no_order(case):
    laws.keys_have_no_order(case)


@every_route
def test_garbage_stays_behind_the_mask():
    laws.garbage_stays_behind_the_mask(CASE["mask and bias of every score"])


# --- numerics -----------------------------------------------------------------------------------------------------


@every_route
@pytest.mark.parametrize(("dtype", "size"), [("float16", 6e4), ("float32", 1e4), ("float64", 1e100)])
def test_large_scores_do_not_overflow(dtype, size):
    laws.attention_of_large_scores(dtype, size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["plain", "bias for all heads", "causal, more keys", "grouped queries", "mask"])
def test_low_precision(name, seed, dtype):
    laws.low_precision(large(CASE[name]), dtype, seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["bias for all heads", "causal, more keys", "grouped queries"])
def test_low_precision_in_tiles(name, dtype, monkeypatch):
    monkeypatch.setattr(tiled, "ROWS", 16)
    monkeypatch.setattr(tiled, "COLS", 13)
    with taking("tiled", small=False):
        laws.low_precision(large(CASE[name]), dtype)


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


def test_gradients_have_their_names():
    Q, K, V = CASE["plain"].draw()
    O, res = ab.attention(Q, K, V)
    grads = ab.attention_vjp(O, res)
    assert isinstance(grads, ab.AttentionGrads)
    assert (grads.dbias, grads.dops) == (None, ())
    assert isinstance(res, SPINES["dense"].Residuals)
    assert res.Q is Q, "residuals hold the inputs, not copies"


def test_dops_has_an_entry_for_each_op():
    Q, K, V, B = CASE["op with a parameter"].draw()
    ops = (ab.ops.Scale(2.0), ab.ops.Bias(B), ab.ops.Causal())
    O, res = ab.attention(Q, K, V, ops=ops)
    before, dB, after = ab.attention_vjp(O, res).dops
    assert before is after is None
    assert dB.shape == B.shape


def test_weights_are_in_the_accumulation_dtype():
    laws.weights_are_in_the_accumulation_dtype(CASE["all at once"])


def test_a_mask_is_not_modified():
    Q, K, V = CASE["plain"].draw()
    mask = CASE["mask"].allowed()[0, 0].copy()
    mask.flags.writeable = False
    ab.attention(Q, K, V, mask=mask)


def test_tangents_that_are_left_out_are_zero():
    case = CASE["all at once"]
    Q, K, V, bias, B = case.draw()
    _, res = case.attend(Q, K, V, bias, B)
    assert np.array_equal(ab.attention_jvp(Q, K, V, res), case.push([Q, K, V, 0 * bias, 0 * B], res))


def test_auto_and_true_are_what_they_are_said_to_be():
    case = CASE["causal, more keys"]
    Q, K, V = case.draw()
    O, _ = ab.attention(Q, K, V, causal=True)
    assert np.array_equal(O, ab.attention(Q, K, V, causal="top-left", method="dense")[0])


def test_the_example_of_the_docstring():
    result = doctest.testmod(importlib.import_module("attnbook.attention"))
    assert result.attempted > 0
    assert result.failed == 0
