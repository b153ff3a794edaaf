"""Scores, biases and masks at the ends of a dtype: every way and library gives the same, without a warning or a NaN."""

import contextlib
import warnings

import numpy as np
import pytest

import attnbook as ab
from attnbook.checks import close
from attnbook.spines import Way, numpy_tiled, tiled

WAYS = {
    "dense": "dense",
    "tiled": "tiled",
    "dense, of any library": Way("dense"),
    "tiled, of any library": Way("tiled", tiled.Tiles(2, 3)),
    "small tiles": Way("numpy_tiled", numpy_tiled.Tiles(2, 3, keys=6, scores=12, tasks=1, scores_a_task=0)),
    "small tiles, shifted": Way("numpy_tiled", numpy_tiled.Tiles(2, 3, keys=6, scores=12, tasks=1, bits=0.0)),
}
DTYPES = (np.float64, np.float32, np.float16)
N_Q, N_K, D_K, D_V = 5, 7, 3, 4


def inputs(dtype, size=1.0):
    rng = np.random.default_rng(3)
    shapes = (2, N_Q, D_K), (2, N_K, D_K), (2, N_K, D_V), (2, N_Q, D_V)
    Q, K, V, dO = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    return (Q * dtype(size)).astype(dtype), K, V, dO


def bias_of(name, dtype):
    """The bias of that name; row 1 is the one of interest."""
    low, high = float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    B = np.zeros((N_Q, N_K), dtype)
    B[1] = {"lowest": low, "highest": high, "-1e9": max(low, -1e9), "-inf": -np.inf}.get(name, 0)
    B[1, 2:5] = {"some lowest": low, "some highest": high, "some -inf": -np.inf}.get(name, B[1, 2:5])
    if name == "both ends":
        B[1, :3], B[1, 3:] = low, high
        B[2, 3:] = -np.inf
    return B


BIASES = ("lowest", "highest", "-1e9", "-inf", "some lowest", "some highest", "some -inf", "both ends")


def reference(Q, K, V, dO, B):
    """The textbook's lines in float64, where a row of −∞ is 0; the bias of the dtype swallows what it must."""
    dtype, scale = B.dtype.type, D_K**-0.5
    wide = np.float32 if dtype == np.float16 else dtype
    q, k, v, g = (T.astype(wide) for T in (Q, K, V, dO))
    with np.errstate(all="ignore"):
        S = ((q * wide(scale)) @ k.mT + B.astype(wide)).astype(np.float64)
        top = S.max(axis=-1, keepdims=True)
        E = np.exp(S - np.where(np.isinf(top), 0, top))
        Z = E.sum(axis=-1, keepdims=True)
        P = E / np.where(Z == 0, 1, Z)
        L = (np.where(Z == 0, -np.inf, np.where(np.isinf(top), 0, top) + np.log(Z)))[..., 0]
    q, k, v, g = (T.astype(np.float64) for T in (q, k, v, g))
    dP = g @ v.mT
    dS = P * (dP - (dP * P).sum(axis=-1, keepdims=True))
    return P @ v, L, scale * dS @ k, scale * dS.mT @ q, P.mT @ g, dS.sum(axis=0)


def run(Q, K, V, dO, B, **options):
    O, res = ab.attention(Q, K, V, bias=B, **options)
    g = ab.attention_vjp(dO, res)
    return O, res.L, g.dQ, g.dK, g.dV, g.dbias


TOLERANCE = {np.float64: 1e-13, np.float32: 3e-6, np.float16: 4e-3}


def agree(came, wanted, dtype):
    for name, T, right in zip(("O", "L", "dQ", "dK", "dV", "dbias"), came, wanted, strict=True):
        T = np.asarray(T, dtype=np.float64)
        finite = np.isfinite(right)
        assert np.array_equal(np.isfinite(T), finite), name
        assert np.array_equal(T[~finite], right[~finite]), name
        size = np.maximum(1, np.abs(right[finite]))
        assert np.all(np.abs(T[finite] - right[finite]) <= TOLERANCE[dtype] * size), name


@contextlib.contextmanager
def every_flag_told(**but):
    """But "invalid" of a product, which BLAS was seen to raise for finite operands and a finite result, three times in
    some 10⁵ calls and never again for the same: a NaN of its own stands in what comes out.
    """
    with np.errstate(all="warn", **but), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "invalid value encountered in matmul")
        yield


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", BIASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bias_at_the_ends_of_its_dtype(way, name, dtype):
    given = (*inputs(dtype), bias_of(name, dtype))
    with every_flag_told():
        came = run(*given, method=WAYS[way])
    agree(came, reference(*given), dtype)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("dtype", "size"), [(np.float64, 1e307), (np.float32, 1e37), (np.float64, 1e-310)])
def test_scores_at_the_ends_of_their_dtype(way, dtype, size):
    """One key takes it all, or all are alike."""
    Q, K, V, dO = inputs(dtype, size)
    with every_flag_told(under="ignore"):  # a product of denormals is what it is
        O, res = ab.attention(Q, K, V, method=WAYS[way], causal=True)
        grads = ab.attention_vjp(dO, res)[:3]
        tO, tL = ab.attention_jvp(np.zeros_like(Q), np.zeros_like(K), V, res, with_L=True)
    S = np.where(np.tri(N_Q, N_K, dtype=bool), np.sign(size - 1) * (Q / dtype(size)) @ K.mT, -np.inf)
    if size > 1:
        assert close(O, V[np.arange(2)[:, None], S.argmax(axis=-1)])
    else:
        assert close(O, np.stack([V[:, : i + 1].mean(axis=1) for i in range(N_Q)], axis=1))
    assert close(tO, O)
    assert np.all(tL == 0)
    assert all(np.all(np.isfinite(T)) for T in (res.L, *grads))
