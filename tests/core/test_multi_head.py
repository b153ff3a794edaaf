"""Multi-head attention, forwards and backwards: every case, every library, and what must hold whatever the numbers."""

import numpy as np
import pytest
import torch
from cases import MULTI_HEAD, MULTI_HEAD_CASE
from compare import draw, quietly, same_everywhere
from libraries import CuPy, ReadOnlyNumPy, Strict, Torch, TorchCUDA
from naive import naive_multi_head
from planting import by_turns

import attnbook as ab
from attnbook import arrays, checks

each_case = pytest.mark.parametrize("case", MULTI_HEAD, ids=str)


def those(condition):
    """The cases for which a law holds."""
    return pytest.mark.parametrize("case", [case for case in MULTI_HEAD if condition(case)], ids=str)


def plain(case):
    """Whether the case has no options."""
    heads = case.heads
    return heads.mask is heads.bias is heads.scale is None and not heads.causal and not heads.ops and bare(case)


def bare(case):
    """Whether nothing stands between the projections and attention, on either side."""
    return case.norm is case.rotary is case.gate is None


# --- values and derivatives ---------------------------------------------------------------------------------------


@each_case
def test_values(case, seed=0):
    inputs = case.draw(seed)
    Y, _ = quietly(case.attend, *inputs)
    assert checks.close(Y, naive_multi_head(case, *map(torch.tensor, inputs)))


@each_case
def test_gradients(case, seed=0):
    """Every input, weight, bias and option: by differences, by autograd through our forward and through another."""
    inputs = case.draw(seed)
    Y, res = quietly(case.attend, *inputs)
    (dY,) = draw(Y.shape, seed=seed + 2)
    grads = quietly(case.pull, dY, res)
    assert len(grads) == len(inputs)
    tensors = [torch.tensor(T, requires_grad=True) for T in inputs]
    of_naive = torch.autograd.grad(naive_multi_head(case, *tensors), tensors, torch.tensor(dY))
    for T, other in zip(grads, of_naive, strict=True):
        assert checks.close(T, other)
    found = checks.check_vjp(case.attend, tuple(grads), at=inputs, cotangent=dY)
    assert set(found.errors) == {"differences", "autograd"}


@pytest.mark.usefixtures("route")
@pytest.mark.parametrize(
    "name",
    ["grouped, self", "mask with a dead row", "norm, rotary and gate, grouped", "all at once"],
)
def test_on_every_spine(name):
    test_values(MULTI_HEAD_CASE[name])
    test_gradients(MULTI_HEAD_CASE[name])


@pytest.mark.parametrize(
    ("xp", "case"),
    [
        *by_turns((ReadOnlyNumPy, Strict, Torch), MULTI_HEAD, ("all at once", "norm, rotary and gate, grouped")),
        *(pytest.param(library, case) for library in (CuPy, TorchCUDA) for case in MULTI_HEAD),
    ],
    indirect=["xp"],
)
def test_every_library_gives_the_same(xp, case):
    inputs = case.draw()
    (dY,) = draw((*case.heads.q[:-3], case.heads.q[-2], case.d_out))
    same_everywhere(xp, lambda *inputs: case.attend(*inputs)[0], *inputs)
    same_everywhere(xp, lambda dY, *inputs: case.pull(dY, case.attend(*inputs)[1]), dY, *inputs)


# --- properties ---------------------------------------------------------------------------------------------------


@each_case
def test_a_backward_may_run_twice_and_is_linear(case):
    """A backward changes nothing that a second one reads, and is linear in the gradient that arrives."""
    inputs = case.draw()
    copies = [T.copy() for T in inputs]
    Y, res = case.attend(*inputs)
    dY, other = draw(Y.shape, Y.shape)
    first, second = case.pull(dY, res), case.pull(other, res)
    both = case.pull(2 * dY - 3 * other, res)
    for a, b, ab_, again in zip(first, second, both, case.pull(dY, res), strict=True):
        assert np.array_equal(a, again)
        assert checks.close(ab_, 2 * a - 3 * b)
    assert all(map(np.array_equal, inputs, copies)), "an input was modified"


@those(lambda case: case.d_mem is None and plain(case))
def test_self_attention_is_cross_attention_with_itself(case):
    """Self-attention is cross-attention with memory = X: one output, and the gradients of the two uses add up."""
    X, _, p, _ = case.sort(case.draw())
    Y, res = ab.multi_head_attention(X, p, num_heads=case.h, num_kv_heads=case.h_kv)
    Y2, res2 = ab.multi_head_attention(X, p, num_heads=case.h, num_kv_heads=case.h_kv, memory=X)
    assert np.array_equal(Y, Y2)
    (dY,) = draw(Y.shape)
    g, g2 = ab.multi_head_attention_vjp(dY, res), ab.multi_head_attention_vjp(dY, res2)
    assert g.dmemory is None
    assert checks.close(g.dX, g2.dX + g2.dmemory)
    assert all(a is b is None or np.array_equal(a, b) for a, b in zip(g.dparams, g2.dparams, strict=True))


@pytest.mark.parametrize("name", ["cross", "cross, no biases", "all widths equal"])
def test_heads_have_no_order(name):
    """Heads in another order, weights and biases alike, and the same output; their gradients follow them."""
    case = MULTI_HEAD_CASE[name]
    X, memory, p, _ = case.sort(case.draw())
    order = np.roll(range(case.h), 1)

    def reordered(p):
        blocks = [T if T is None else np.concatenate([np.split(T, case.h, axis=-1)[i] for i in order], axis=-1)
                  for T in (p.W_Q, p.W_K, p.W_V, p.b_Q, p.b_K, p.b_V)]  # fmt: skip
        W_O = np.concatenate([np.split(p.W_O, case.h)[i] for i in order])
        return ab.MultiHeadParams(*blocks[:3], W_O, *blocks[3:], p.b_O)

    Y, res = ab.multi_head_attention(X, p, num_heads=case.h, memory=memory)
    Y2, res2 = ab.multi_head_attention(X, reordered(p), num_heads=case.h, memory=memory)
    assert checks.close(Y2, Y)
    (dY,) = draw(Y.shape)
    g, g2 = ab.multi_head_attention_vjp(dY, res), ab.multi_head_attention_vjp(dY, res2)
    assert checks.close(g2.dX, g.dX)
    for a, b in zip(g2.dparams, reordered(g.dparams), strict=True):
        assert a is b is None or checks.close(a, b)


@pytest.mark.parametrize("name", ["grouped", "multi-query"])
def test_shared_heads_add_up(name):
    """A shared head is the same head given to each query of its group; its gradient is the sum over the group."""
    case = MULTI_HEAD_CASE[name]
    X, memory, p, _ = case.sort(case.draw())
    h, h_kv = case.h, case.h_kv

    def spread(T):
        groups = T.reshape(*T.shape[:-1], h_kv, -1)
        return np.repeat(groups, h // h_kv, axis=-2).reshape(*T.shape[:-1], -1)

    def collect(T):
        return T.reshape(*T.shape[:-1], h_kv, h // h_kv, -1).sum(axis=-2).reshape(*T.shape[:-1], -1)

    shared = ("W_K", "W_V", "b_K", "b_V")
    apart = p._replace(**{name: spread(getattr(p, name)) for name in shared})
    Y, res = ab.multi_head_attention(X, p, num_heads=h, num_kv_heads=h_kv, memory=memory)
    Y2, res2 = ab.multi_head_attention(X, apart, num_heads=h, memory=memory)
    assert checks.close(Y2, Y)
    (dY,) = draw(Y.shape)
    g, g2 = ab.multi_head_attention_vjp(dY, res).dparams, ab.multi_head_attention_vjp(dY, res2).dparams
    for name in shared:
        assert checks.close(getattr(g, name), collect(getattr(g2, name)))


@those(lambda case: "K" in case.biases and not case.heads.ops and bare(case))
def test_keys_need_no_bias(case):
    """A bias of the keys shifts each row of scores, so it changes nothing, and its gradient is 0."""
    inputs = case.draw()
    Y, res = case.attend(*inputs)
    db_K = case.sort(case.pull(draw(Y.shape)[0], res))[2].b_K
    assert checks.close(db_K, np.zeros(db_K.shape))
    X, memory, p, rest = case.sort(inputs)
    moved = [X, memory, *p._replace(b_K=p.b_K + 1), *rest]
    assert checks.close(case.attend(*(T for T in moved if T is not None))[0], Y)


@those(lambda case: case.h == case.h_kv and bare(case))
def test_projections_balance(case):
    """Within a head, W_Q A and W_K A⁻ᵀ give the same scores, W_V A and A⁻¹ W_O the same output, for any A.

    So the gradients satisfy W_Qᵀ dW_Q + b_Qᵀ db_Q = (W_Kᵀ dW_K + b_Kᵀ db_K)ᵀ and W_Vᵀ dW_V + b_Vᵀ db_V = dW_O W_Oᵀ.
    """
    assert case.h == case.h_kv
    inputs = case.draw()
    Y, res = case.attend(*inputs)
    p, d = case.sort(inputs)[2], case.sort(case.pull(draw(Y.shape)[0], res))[2]

    def turn(name):
        """How the loss changes as the columns of each head mix."""
        W, dW = (np.split(getattr(T, f"W_{name}"), case.h, axis=1) for T in (p, d))
        turned = [w.T @ dw for w, dw in zip(W, dW, strict=True)]
        if getattr(p, f"b_{name}") is not None:
            b, db = (np.split(getattr(T, f"b_{name}"), case.h) for T in (p, d))
            turned = [t + np.outer(x, dx) for t, x, dx in zip(turned, b, db, strict=True)]
        return np.stack(turned)

    of_O = np.stack([dw @ w.T for w, dw in zip(np.split(p.W_O, case.h), np.split(d.W_O, case.h), strict=True)])
    assert checks.close(turn("Q"), arrays.mT(turn("K")))
    assert checks.close(turn("V"), of_O)


def test_forbidden_tokens_get_no_gradient():
    """A memory token that no query may see: exactly 0 arrives at it, whatever stands there, and Y is unchanged."""
    case = MULTI_HEAD_CASE["mask of padding"]
    hidden = ~np.any(case.heads.allowed(), axis=(-3, -2))
    assert hidden.any(), "every token is seen"
    X, memory, *others = case.draw()
    Y, res = case.attend(X, memory, *others)
    (dY,) = draw(Y.shape)
    dmemory = case.pull(dY, res)[1]
    assert np.array_equal(np.all(dmemory == 0, axis=-1), hidden)
    assert np.array_equal(case.attend(X, np.where(hidden[..., None], 9.0, memory), *others)[0], Y)


def test_dead_queries_give_the_bias():
    """A query that may see no key, in any head: Y = b_O there, and what arrives there reaches b_O alone."""
    case = MULTI_HEAD_CASE["mask with a dead row"]
    dead = ~np.any(case.heads.allowed(), axis=(-3, -1))
    assert dead.any(), "the case has no dead row"
    inputs = case.draw()
    Y, res = quietly(case.attend, *inputs)
    b_O = case.sort(inputs)[2].b_O
    assert np.all(Y[dead] == b_O)
    (dY,) = draw(Y.shape)
    *grads, db_O = case.pull(dY, res)
    *silent, all_db_O = case.pull(np.where(dead[..., None], 1e6, dY), res)
    assert all(map(np.array_equal, grads, silent))
    assert not checks.close(db_O, all_db_O)
    assert np.all(grads[0][dead] == 0)


def test_decoding_with_a_cache_is_one_pass():
    """Token by token, each at its own position, beside the tokens so far: outputs and gradients of one causal pass."""
    case = MULTI_HEAD_CASE["norm, rotary and gate, grouped"]
    X, _, p, (_, *extras) = case.sort(case.draw())
    norm, gate = ab.QKNorm(*extras[:2]), ab.Gate(*extras[2:])
    options = {"num_heads": 6, "num_kv_heads": 2, "qk_norm": norm, "gate": gate}
    Y, res = ab.multi_head_attention(X, p, causal=True, rotary=ab.Rotary(dims=10), **options)
    (dY,) = draw(Y.shape)
    g = ab.multi_head_attention_vjp(dY, res)
    dX, dW_K, dg_K = 0 * X, 0 * p.W_K, 0 * norm.g_K
    for t in range(7):
        new, seen = slice(t, t + 1), slice(0, t + 1)
        rotary = ab.Rotary(np.arange(t, t + 1), dims=10)
        step = {"memory": X[:, seen], "causal": "bottom-right", "rotary": rotary, **options}
        Y_t, res_t = ab.multi_head_attention(X[:, new], p, **step)
        assert checks.close(Y_t, Y[:, new])
        assert checks.close(res_t.attention.K, res.attention.K[..., seen, :]), "a cache may keep the turned keys"
        g_t = ab.multi_head_attention_vjp(dY[:, new], res_t)
        dX[:, new] += g_t.dX
        dX[:, seen] += g_t.dmemory
        dW_K += g_t.dparams.W_K
        dg_K += g_t.dqk_norm.g_K
    for ours, whole in ((dX, g.dX), (dW_K, g.dparams.W_K), (dg_K, g.dqk_norm.g_K)):
        assert checks.close(ours, whole)


def test_a_norm_may_be_named():
    """And ops may come from a generator."""
    case = MULTI_HEAD_CASE["self"]
    X, _, p, _ = case.sort(case.draw())
    ops = [ab.ops.Scale(2.0), ab.ops.Causal()]
    for kind in ("rms", "l2"):
        same = {"qk_norm": kind, "ops": iter(ops)}, {"qk_norm": ab.QKNorm(kind=kind), "ops": ops}, {"ops": ops}
        by_name, whole, without = (ab.multi_head_attention(X, p, num_heads=3, **options)[0] for options in same)
        assert np.array_equal(by_name, whole)
        assert not checks.close(by_name, without)


def test_a_gate_that_is_open_or_shut():
    case = MULTI_HEAD_CASE["gate a head"]
    X, memory, p, (W, b) = case.sort(case.draw())

    def gated(b):
        return ab.multi_head_attention(X, p, num_heads=3, memory=memory, gate=ab.Gate(0 * W, b))[0]

    assert checks.close(gated(0 * b + 1e3), ab.multi_head_attention(X, p, num_heads=3, memory=memory)[0])
    assert checks.close(gated(0 * b - 1e3), np.broadcast_to(p.b_O, gated(b).shape))


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
