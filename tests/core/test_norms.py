"""Norms of rows, RMS and L2: values, derivatives, and what a norm leaves as it is."""

from functools import partial

import numpy as np
import pytest
import torch
from compare import derivatives_agree, draw, same_everywhere
from naive import naive_norm

import attnbook as ab
from attnbook import checks

KINDS = {
    "rms": (ab.rms_norm, ab.rms_norm_vjp, ab.rms_norm_jvp),
    "l2": (ab.l2_norm, ab.l2_norm_vjp, ab.l2_norm_jvp),
}
each_kind = pytest.mark.parametrize("kind", KINDS)
each_gain = pytest.mark.parametrize("gain", [None, (7,), (3, 1, 7), (5, 1)], ids=str)


def norm_is_right(kind, gain=(7,), shape=(2, 3, 5, 7), eps=0.01, seed=0):
    f, vjp, jvp = KINDS[kind]
    at = draw(*(s for s in (shape, gain) if s is not None), seed=seed)
    tangents = draw(*(T.shape for T in at), seed=seed + 1)
    (dY,) = draw(shape, seed=seed + 2)
    naive = naive_norm(torch.tensor(at[0]), None, kind, eps).numpy()
    assert checks.close(f(*at, eps=eps), naive if gain is None else at[1] * naive)
    grads = vjp(dY, *at, eps=eps)
    assert isinstance(grads, ab.NormGrads)
    assert (grads.dgain is None) == (gain is None)
    tY = jvp(tangents[0], tangents[1] if gain else None, *at, eps=eps)
    derivatives_agree(partial(f, eps=eps), at, tangents, dY, grads[: len(at)], tY)


@each_kind
@each_gain
def test_values_and_derivatives(kind, gain):
    norm_is_right(kind, gain)
    for shape in ((0, 7), (7,), (2, 1)):
        norm_is_right(kind, shape[-1:], shape)


@each_kind
def test_every_library_gives_the_same(xp, kind):
    f, vjp, jvp = KINDS[kind]
    X, g, dY, tX, tg = draw((2, 3, 5, 7), (7,), (2, 3, 5, 7), (2, 3, 5, 7), (7,))
    same_everywhere(xp, f, X, g)
    same_everywhere(xp, vjp, dY, X, g)
    same_everywhere(xp, jvp, tX, tg, X, g)


@each_kind
@pytest.mark.parametrize("eps", [0, 1e-6])
def test_a_row_of_zeros_stays(kind, eps):
    f, vjp, jvp = KINDS[kind]
    X, dY, g = draw((3, 7), (3, 7), (7,))
    X[1] = 0
    with np.errstate(invalid="ignore"):  # a NaN shows below
        Y, dX, tY = f(X, g, eps), vjp(dY, X, g, eps).dX, jvp(dY, g, X, g, eps)
    assert np.all(Y[1] == 0)
    for T in (dX, tY):
        assert np.all(np.isfinite(T))
        assert eps or np.all(T[1] == 0)
