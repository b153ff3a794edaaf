"""Sigmoid attention in every case of attention: values, derivatives, tiles, libraries."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from cases import CASE, CASES
from compare import draw, finite, quietly, same_everywhere
from naive import naive_heads, naive_scores

import attnbook as ab
from attnbook import sigmoid
from attnbook.checks import check_adjoint, check_jvp, close
from attnbook.checks.autograd import autograd_jvp
from attnbook.ops import Dropout, Tile
from attnbook.spines import Way
from attnbook.spines.tiled import Tiles

each_case = pytest.mark.parametrize("case", [case for case in CASES if "Sink" not in str(case.ops)], ids=str)
METHODS = ("dense", "tiled")


def attend(case, Q, K, V, *parameters, method="auto"):
    """On tiles so small that small cases meet every edge."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sigmoid.METHODS, "tiled", Way("tiled", Tiles(rows=2, cols=3)))
        return ab.sigmoid_attention(Q, K, V, **case.options(Q, *parameters), method=method)


def pull(case, dO, res):
    g = ab.sigmoid_attention_vjp(dO, res)
    return [T for T in (*g[:4], *g.dops) if T is not None]


def push(case, tangents, res):
    tQ, tK, tV, *rest = tangents
    tbias = None if case.bias is None else rest.pop(0)
    tops = [None if shape is None else rest.pop(0) for _, shape in case.ops]
    return ab.sigmoid_attention_jvp(tQ, tK, tV, res, tbias=tbias, tops=tops)


def naive(case, Q, K, V, *parameters):
    """The definition in torch."""
    P = torch.sigmoid(naive_scores(case, Q, K, V, *parameters))
    for op in case.made(*parameters[case.bias is not None :]):
        if isinstance(op, Dropout):
            P = P / (1 - op.p) * op.kept(P, Tile.whole(*case.scores[-2:]))
    return P @ naive_heads(V, Q)


@each_case
@pytest.mark.parametrize("method", METHODS)
def test_values_and_derivatives(case, method):
    inputs = case.draw()
    tangents = draw(*(T.shape for T in inputs), seed=1)
    O, res = attend(case, *inputs, method=method)
    tensors = [torch.tensor(T, requires_grad=True) for T in inputs]
    wanted = naive(case, *tensors)
    assert close(O, wanted.detach())
    assert not np.any(O[~case.allowed().any(axis=-1)]), "a row with no allowed key is exactly 0"
    (dO,) = draw(O.shape, seed=2)
    wanted.backward(torch.tensor(dO))
    grads = pull(case, dO, res)
    assert all(close(T, x.grad) for T, x in zip(grads, tensors, strict=True))
    tO = push(case, tangents, res)
    check_adjoint(dO, tO, grads, tangents)
    assert close(tO, autograd_jvp(partial(naive, case), inputs, tangents))
    if case.name in ("plain", "bias for all queries", "causal, more keys"):
        check_jvp(lambda *T: attend(case, *T, method=method), tO, at=inputs, tangents=tangents)


@pytest.mark.parametrize("name", ["plain", "no key", "all at once", "grouped, masked and biased"])
@pytest.mark.parametrize("method", METHODS)
def test_every_library_gives_the_same(xp, name, method):
    case = CASE[name]
    inputs = [finite(T) for T in case.draw()]

    def passes(dO, *inputs):
        O, res = attend(case, *inputs, method=method)
        return O, pull(case, dO, res), push(case, inputs, res)

    same_everywhere(xp, passes, *draw((*case.scores[:-1], case.v[-1])), *inputs)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_largest_scores_and_the_smallest(dtype):
    """No overflow, and a small weight keeps its digits: σ(−x) is e⁻ˣ, not what 1 − 1 leaves."""
    S = np.array([[-np.inf, -1e30, -80.0, -1.0, 0.0, 1.0, 80.0, 1e30]], dtype)
    one = np.ones((1, 1), dtype)
    V = np.eye(8, dtype=dtype)
    P, _ = quietly(ab.sigmoid_attention, one, np.zeros((8, 1), dtype), V, bias=S)
    σ = [0, 0, *(1 / (1 + math.exp(-x)) for x in (-80, -1, 0, 1, 80)), 1]
    assert np.allclose(P, [σ], rtol=4 * np.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("method", METHODS)
def test_torchs_vmap(method):
    """Over any of the inputs; a call for each says the same."""
    case = CASE["mask with a dead row"]
    inputs = [torch.tensor(T) for T in case.draw()]
    (dO,) = (torch.tensor(T) for T in draw((*case.scores[:-1], case.v[-1])))

    def passes(*inputs):
        O, res = attend(case, *inputs, method=method)
        return [O, *pull(case, dO, res), push(case, inputs, res)]

    for over in range(3):
        many = [torch.stack([T, 2 * T]) if i == over else T for i, T in enumerate(inputs)]
        came = torch.func.vmap(passes, tuple(0 if i == over else None for i in range(len(inputs))))(*many)
        for j in range(2):
            each = passes(*(T[j] if i == over else T for i, T in enumerate(many)))
            assert all(close(T[j], wanted) for T, wanted in zip(came, each, strict=True))
