"""Multi-head attention, forwards and backwards: every case, every library, and what must hold whatever the numbers."""

import laws
import numpy as np
import pytest
from cases import MULTI_HEAD, MULTI_HEAD_CASE, Case, MultiHead
from hypothesis import given
from hypothesis import strategies as st

import attnbook as ab

each_case = pytest.mark.parametrize("case", MULTI_HEAD, ids=str)


def those(condition):
    """The cases for which a law holds."""
    return pytest.mark.parametrize("case", [case for case in MULTI_HEAD if condition(case)], ids=str)


def plain(case):
    """Whether the case has no options."""
    heads = case.heads
    return heads.mask is heads.bias is heads.scale is None and not heads.causal and not heads.ops


# --- values and derivatives ---------------------------------------------------------------------------------------


@each_case
def test_values(case):
    laws.multi_head_values(case)


@each_case
def test_gradients(case):
    found = laws.multi_head_gradients(case)
    assert set(found.errors) == {"differences", "autograd"}


@pytest.mark.usefixtures("route")
@pytest.mark.parametrize("name", ["grouped, self", "mask with a dead row", "bias for all batches", "all at once"])
def test_on_every_spine(name):
    laws.multi_head_values(MULTI_HEAD_CASE[name])
    laws.multi_head_gradients(MULTI_HEAD_CASE[name])


@each_case
def test_every_library_gives_the_same(xp, case):
    laws.multi_head_in_every_library(xp, case)


@st.composite
def any_case(draw):
    """Axes of every length, 0 included, that fit."""
    n_q, n_k, batch = (draw(st.integers(0, 4)) for _ in range(3))
    d_k, d_v, d_model, d_mem, d_out, h_kv, group = (draw(st.integers(1, 4)) for _ in range(7))
    lead = (batch, 2)[: draw(st.integers(0, 2))]
    of_itself = draw(st.booleans())
    n_k = n_q if of_itself else n_k
    heads = Case(
        "",
        q=(*lead, h_kv * group, n_q, d_k),
        k=(*lead, h_kv, n_k, d_k),
        v=(*lead, h_kv, n_k, d_v),
        mask=draw(st.sampled_from([None, (n_q, n_k), (*lead, 1, 1, n_k)])),
        bias=draw(st.sampled_from([None, (h_kv * group, n_q, 1), (n_k,)])),
        causal=draw(st.sampled_from([False, True, "bottom-right"])),
        scale=draw(st.sampled_from([None, 0.7])),
    )
    biases = draw(st.sampled_from(["", "QKVO", "QK", "VO"]))
    return MultiHead("drawn", heads, d_model, None if of_itself else d_mem, d_out, biases)


@given(any_case(), st.integers(0, 2**32 - 1))
def test_any_shape(case, seed):
    laws.multi_head_values(case, seed)
    laws.multi_head_gradients(case, seed)


# --- properties ---------------------------------------------------------------------------------------------------


@each_case
def test_a_backward_may_run_twice_and_is_linear(case):
    laws.multi_head_runs_twice(case)


def test_one_head_is_attention():
    laws.one_head_is_attention(MULTI_HEAD_CASE["one head"])


@those(lambda case: case.d_mem is None and plain(case))
def test_self_attention_is_cross_attention_with_itself(case):
    laws.self_is_cross_with_itself(case)


@pytest.mark.parametrize("name", ["cross", "cross, no biases", "all widths equal"])
def test_heads_have_no_order(name):
    laws.heads_have_no_order(MULTI_HEAD_CASE[name])


@pytest.mark.parametrize("name", ["grouped", "multi-query"])
def test_shared_heads_add_up(name):
    laws.shared_heads_add_up(MULTI_HEAD_CASE[name])


@those(lambda case: "K" in case.biases and not case.heads.ops)
def test_keys_need_no_bias(case):
    laws.keys_need_no_bias(case)


@those(lambda case: case.h == case.h_kv)
def test_projections_balance(case):
    laws.projections_balance(case)


def test_forbidden_tokens_get_no_gradient():
    laws.forbidden_tokens_get_no_gradient(MULTI_HEAD_CASE["mask of padding"])


def test_dead_queries_give_the_bias():
    laws.dead_queries_give_the_bias(MULTI_HEAD_CASE["mask with a dead row"])


# --- the public face ----------------------------------------------------------------------------------------------


def test_gradients_have_their_names():
    case = MULTI_HEAD_CASE["all at once"]
    inputs = case.draw()
    X, memory, p, (bias, B) = case.sort(inputs)
    Y, res = case.attend(*inputs)
    assert res.X is X, "residuals hold the inputs, not copies"
    assert res.params == p
    grads = ab.multi_head_attention_vjp(Y, res)
    assert isinstance(grads, ab.MultiHeadGrads)
    assert isinstance(grads.dparams, ab.MultiHeadParams)
    assert [T is None for T in grads.dparams] == [T is None for T in p]
    assert (grads.dX.shape, grads.dmemory.shape, grads.dbias.shape) == (X.shape, memory.shape, bias.shape)
    assert [dop.shape for dop in grads.dops] == [B.shape]


def test_what_is_not_there_has_no_gradient():
    case = MULTI_HEAD_CASE["self, no biases"]
    Y, res = case.attend(*case.draw())
    grads = ab.multi_head_attention_vjp(Y, res)
    assert grads.dmemory is grads.dbias is None
    assert grads.dparams[4:] == (None,) * 4
    assert grads.dops == ()


def test_ops_may_come_from_a_generator():
    case = MULTI_HEAD_CASE["self"]
    X, _, p, _ = case.sort(case.draw())
    ops = [ab.ops.Scale(2.0), ab.ops.Causal()]
    Y, _ = ab.multi_head_attention(X, p, num_heads=3, ops=ops)
    assert np.array_equal(Y, ab.multi_head_attention(X, p, num_heads=3, ops=iter(ops))[0])
