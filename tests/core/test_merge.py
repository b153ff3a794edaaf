"""The merge of two partial attentions: values, derivatives, dead rows, libraries."""

import numpy as np
import pytest
import torch
from compare import derivatives_agree, draw, same_everywhere
from libraries import NumPy, ReadOnlyNumPy, Strict, Torch

import attnbook as ab
from attnbook.arrays import array_namespace
from attnbook.checks import close

SHAPES = (2, 3, 5, 4), (2, 3, 5), (2, 3, 5, 4), (2, 3, 5)  # O1, L1, O2, L2
QKV = (2, 4, 5, 7), (2, 2, 11, 7), (2, 2, 11, 3)
MASK = np.random.default_rng(5).random((5, 11)) < 0.6
MASK[1], MASK[2, :4], MASK[3, 4:] = False, False, False  # dead; dead in the first part; dead in the second
OPTIONS = {"plain": {}, "causal": {"causal": "bottom-right"}, "mask": {"mask": MASK}}
METHODS = ("dense", "tiled")


def halves(Q, K, V, options, method="auto"):
    """The attention to the first four keys, to the other seven, and to all."""
    mask = options.get("mask", np.ones((5, 11), bool))
    if "causal" in options:
        mask = np.tri(5, 11, 6, dtype=bool)
    for J in (slice(0, 4), slice(4, 11), slice(0, 11)):
        yield ab.attention(Q, K[..., J, :], V[..., J, :], mask=mask[:, J], method=method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", OPTIONS)
def test_two_parts_make_the_whole(name, method):
    (O1, r1), (O2, r2), (O, r) = halves(*draw(*QKV), OPTIONS[name], method)
    came, L = ab.merge(O1, r1.L, O2, r2.L)
    assert close(came, O)
    alive = np.isfinite(r.L)
    assert np.array_equal(np.isfinite(L), alive)
    assert close(L[alive], r.L[alive])
    assert np.all(L[~alive] == -np.inf)
    again, _ = ab.merge(O2, r2.L, O1, r1.L)
    assert close(again, O)


def test_derivatives():
    inputs, tangents = draw(*SHAPES), draw(*SHAPES, seed=1)
    dO, dL = draw(*SHAPES[:2], seed=2)
    grads = ab.merge_vjp(dO, dL, *inputs)
    tO, tL = ab.merge_jvp(*tangents, *inputs)

    def both(*inputs):
        O, L = ab.merge(*inputs)
        return array_namespace(O).concat([O, L[..., None]], axis=-1)

    cotangent, tangent = (np.concatenate([A, a[..., None]], axis=-1) for A, a in ((dO, dL), (tO, tL)))
    derivatives_agree(both, inputs, tangents, cotangent, grads, tangent)
    without = ab.merge_vjp(dO, None, *inputs)
    assert all(map(np.array_equal, without, ab.merge_vjp(dO, np.zeros_like(dL), *inputs)))


@pytest.mark.parametrize("dead", [(True, False), (False, True), (True, True)])
def test_a_part_without_a_key_gives_and_gets_nothing(dead):
    O1, L1, O2, L2 = parts = draw(*SHAPES)
    for gone, L, O in zip(dead, (L1, L2), (O1, O2), strict=True):
        if gone:
            L[..., 0], O[..., 0, :] = -np.inf, 0
    dO, dL, *tangents = draw(*SHAPES[:2], *SHAPES, seed=1)
    with np.errstate(all="raise"):
        O, L = ab.merge(*parts)
        grads, (tO, tL) = ab.merge_vjp(dO, dL, *parts), ab.merge_jvp(*tangents, *parts)
    assert all(np.all(np.isfinite(T)) for T in (*grads, tO, tL))
    for gone, dO_a, dL_a in zip(dead, grads[::2], grads[1::2], strict=True):
        assert not gone or not (np.any(dO_a[..., 0, :]) or np.any(dL_a[..., 0]))
    alive = (O2, L2) if dead[0] else (O1, L1)  # where both are gone, 0 and −∞
    assert np.array_equal(O[..., 0, :], alive[0][..., 0, :])
    assert np.array_equal(L[..., 0], alive[1][..., 0])
    assert not all(dead) or not (np.any(tO[..., 0, :]) or np.any(tL[..., 0]))


@pytest.mark.parametrize("library", [NumPy, ReadOnlyNumPy, Strict, Torch])
def test_on_every_library(library):
    inputs = draw(*SHAPES)

    xp = library()
    xp.dtypes = ("float32", "float64")  # 16-bit outputs have an L of float32
    same_everywhere(xp, lambda *T: (*ab.merge(*T), *ab.merge_vjp(T[0], T[1], *T), *ab.merge_jvp(*T, *T)), *inputs)
    if "float16" in library.dtypes:
        O1, L1, O2, L2 = (xp.cast(xp.asarray(T), d) for T, d in zip(inputs, ("float16", "float32") * 2, strict=True))
        O, L = ab.merge(O1, L1, O2, L2)
        assert (O.dtype, L.dtype) == (O1.dtype, L1.dtype)
        assert np.allclose(xp.numpy(O), ab.merge(*inputs)[0], atol=4e-3)


def test_autograd_follows_it_on_torch_in_every_order():
    """Also where a part, or both, are without a key."""
    O1, L1, O2, L2 = inputs = [torch.tensor(T, requires_grad=True) for T in draw((3, 2), (3,), (3, 2), (3,))]
    assert torch.autograd.gradcheck(ab.merge, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(ab.merge, inputs, check_fwd_over_rev=True)
    dead = [L.detach().clone() for L in (L1, L2)]
    dead[0][:2], dead[1][0] = -torch.inf, -torch.inf
    f = lambda O1, O2: ab.merge(O1, dead[0], O2, dead[1])[0]  # noqa: E731
    assert torch.autograd.gradcheck(f, (O1, O2), check_forward_ad=True)
