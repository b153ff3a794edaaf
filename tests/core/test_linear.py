"""The projection Y = X W + b."""

import numpy as np
import pytest
from compare import derivatives_agree, draw, same_everywhere

import attnbook as ab
from attnbook import checks

each_lead = pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3), (0,), (2, 0)], ids=str)


@each_lead
def test_values(lead):
    X, W, b = draw((*lead, 5), (5, 7), (7,))
    assert checks.close(ab.linear(X, W), np.einsum("...i,ij->...j", X, W))
    assert checks.close(ab.linear_jvp(X, W, None, X, W), ab.linear_jvp(X, W, 0 * b, X, W))
    assert checks.close(ab.linear(X, W, b), np.einsum("...i,ij->...j", X, W) + b)


@each_lead
def test_derivatives(lead, seed=0):
    for d_in, d_out in ((5, 7), (0, 3), (3, 0)):
        derivatives_of(lead, d_in, d_out, seed)


def derivatives_of(lead, d_in, d_out, seed):
    inputs = draw((*lead, d_in), (d_in, d_out), (d_out,), seed=seed)
    tangents = draw(*(T.shape for T in inputs), seed=seed + 1)
    (dY,) = draw((*lead, d_out), seed=seed + 2)
    grads = ab.linear_vjp(dY, *inputs[:2])
    assert isinstance(grads, ab.LinearGrads)
    tY = ab.linear_jvp(*tangents, *inputs[:2])
    derivatives_agree(ab.linear, inputs, tangents, dY, grads, tY)


def test_every_library_gives_the_same(xp):
    X, W, b, dY = draw((2, 3, 5), (5, 7), (7,), (2, 3, 7))
    same_everywhere(xp, ab.linear, X, W, b)
    same_everywhere(xp, ab.linear_vjp, dY, X, W)
    same_everywhere(xp, ab.linear_jvp, X, W, b, X, W)
