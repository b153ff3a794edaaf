"""Multi-head attention, forwards and backwards: every case, every library, and what must hold whatever the numbers."""

import numpy as np
import pytest
import torch
from cases import MULTI_HEAD, MULTI_HEAD_CASE
from compare import draw, quietly, same_everywhere
from libraries import CuPy, ReadOnlyNumPy, Strict, Torch, TorchCUDA
from naive import naive_multi_head
from planting import by_turns
from routes import ROUTES

import attnbook as ab
from attnbook import checks

each_case = pytest.mark.parametrize("case", MULTI_HEAD, ids=str)


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
    ("route", "name"),
    by_turns(ROUTES, ["grouped, self", "mask with a dead row", "all at once", "norm, rotary and gate, grouped"],
             whole=("norm, rotary and gate, grouped",)),
    indirect=["route"],
)  # fmt: skip
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


def test_a_norm_may_be_named_and_ops_come_from_a_generator():
    case = MULTI_HEAD_CASE["self"]
    X, _, p, _ = case.sort(case.draw())
    ops = [ab.ops.Scale(2.0), ab.ops.Causal()]
    ways = {"qk_norm": "l2", "ops": iter(ops)}, {"qk_norm": ab.QKNorm(kind="l2"), "ops": ops}
    assert np.array_equal(*(ab.multi_head_attention(X, p, num_heads=3, **options)[0] for options in ways))


# --- the public face ----------------------------------------------------------------------------------------------


def test_gradients_have_their_names():
    case = MULTI_HEAD_CASE["all at once"]
    inputs = case.draw()
    X, memory, p, (bias, B) = case.sort(inputs)
    Y, res = case.attend(*inputs)
    assert res.X is X, "residuals hold the inputs, not copies"
    grads = ab.multi_head_attention_vjp(Y, res)
    assert isinstance(grads, ab.MultiHeadGrads)
    assert isinstance(grads.dparams, ab.MultiHeadParams)
    assert [T is None for T in grads.dparams] == [T is None for T in p]
    of = grads.dX, grads.dmemory, grads.dbias, *grads.dops
    assert [T.shape for T in of] == [T.shape for T in (X, memory, bias, B)]
