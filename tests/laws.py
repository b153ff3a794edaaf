"""What must hold: plain functions that raise an ``AssertionError`` where it does not.

The ordinary tests call them on what the package does; test_mutations calls the same ones with a mistake planted.
Each looks the package up when it runs, so that a planted mistake is what it meets.
"""

import contextlib
import importlib
import itertools
import signal
import threading
import time
import tracemalloc
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
import threadpoolctl
import torch

import attnbook as ab
from attnbook import arrays, checks, heads
from attnbook.checks import mistakes
from attnbook.checks.tolerances import LOW_PRECISION
from attnbook.ops import Causal, Dropout, Mask, Scale, Softcap, Step, Tile, Window
from attnbook.spines import dense, numpy_tiled, workers
from attnbook.torch import layout

torch.set_num_threads(1)  # the arrays are small, and the workers of a run are many


def draw(*shapes, seed=0):
    """Normal numbers of each shape."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in shapes]


# --- the same from every library ----------------------------------------------------------------------------------


def same_everywhere(xp, f, *inputs):
    """f gives on ``xp`` what it gives on NumPy: values, shape, dtype, device; in every dtype; inputs are left alone."""
    wanted = _flat(f(*inputs))
    given = [xp.asarray(T) for T in inputs]
    came = _flat(f(*given))
    _are_of(xp, came, wanted, "float64")
    for T, reference in zip(came, wanted, strict=True):
        assert checks.close(xp.numpy(T), reference)
    for T, original in zip(given, inputs, strict=True):
        assert np.array_equal(xp.numpy(T), original), "an input was modified"
    for dtype in set(xp.dtypes) - {"float64"}:
        low = [xp.cast(T, dtype) for T in given]
        came = _flat(f(*low))
        _are_of(xp, came, wanted, dtype)
        in_float32 = _flat(f(*(xp.cast(T, "float32") for T in low)))  # 16 bits: float32 inside, rounded once at the end
        for T, reference in zip(came, in_float32, strict=True):
            assert np.array_equal(xp.numpy(T), xp.numpy(xp.cast(reference, dtype)))


def _are_of(xp, came, wanted, dtype):
    for T, reference in zip(came, wanted, strict=True):
        assert xp.owns(T), f"of another library or on another device: {type(T)}"
        assert T.dtype == xp.dtype(dtype), f"expected {dtype}, got {T.dtype}"
        assert tuple(T.shape) == reference.shape, f"expected shape {reference.shape}, got {tuple(T.shape)}"


def in_wide(f, T, *args):
    """f as a spine calls it: on what is widened already, and narrowed when all is done."""
    return arrays.narrow(f(arrays.widen(T), *args), T.dtype)


def _flat(result):
    """All arrays in a result, a tuple of tuples perhaps."""
    if isinstance(result, tuple | list):
        return [T for entry in result for T in _flat(entry)]
    return [] if result is None else [result]


def quietly(f, *args, **options):
    """The result of f, which must not warn."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = f(*args, **options)
    assert not caught, f"warned: {caught[0].message}"
    return result


# --- arrays, heads, linear ----------------------------------------------------------------------------------------


def unbroadcast_is_the_adjoint(shape, target, seed=0):
    """⟨dT, broadcast(x)⟩ = ⟨unbroadcast(dT), x⟩."""
    x, dT = draw(shape, target, seed=seed)
    dx = arrays.unbroadcast(dT, shape)
    assert dx.shape == shape
    checks.check_adjoint(dT, np.broadcast_to(x, target), dx, x)


def heads_are_shared_by_neighbours(h_kv=3, h=6):
    """Query head i reads key head i // (h / h_kv)."""
    (K,) = draw((2, h_kv, 7, 11))
    shared = heads.share_heads(K, h)
    assert shared.shape[-3] == h
    for i in range(h):
        assert np.array_equal(shared[:, i], K[:, i // (h // h_kv)])


def heads_gradient_is_the_adjoint(h_kv=3, h=6):
    K, dK = draw((2, h_kv, 7, 11), (2, h, 7, 11))
    grad = heads.share_heads_vjp(dK, K.shape)
    assert grad.shape == K.shape
    checks.check_adjoint(dK, np.repeat(K, h // h_kv, axis=-3), grad, K)


def heads_are_columns(h=3):
    """Head i is columns i·d to (i+1)·d; merging puts them back."""
    (T,) = draw((2, 5, h * 7))
    split = heads.split_heads(T, h)
    assert split.shape == (2, h, 5, 7)
    for i in range(h):
        assert np.array_equal(split[:, i], T[..., i * 7 : (i + 1) * 7])
    merged = heads.merge_heads(split)
    assert merged.shape == T.shape
    assert np.array_equal(merged, T)


def linear_values(lead=(2, 3)):
    X, W, b = draw((*lead, 5), (5, 7), (7,))
    assert checks.close(ab.linear(X, W), np.einsum("...i,ij->...j", X, W))
    assert checks.close(ab.linear(X, W, b), np.einsum("...i,ij->...j", X, W) + b)


def linear_gradients(lead=(2, 3), d_in=5, d_out=7, seed=0):
    inputs = draw((*lead, d_in), (d_in, d_out), (d_out,), seed=seed)
    tangents = draw(*(T.shape for T in inputs), seed=seed + 1)
    (dY,) = draw((*lead, d_out), seed=seed + 2)
    grads = ab.linear_vjp(dY, *inputs[:2])
    tY = ab.linear_jvp(*tangents, *inputs[:2])
    return _derivatives(ab.linear, inputs, tangents, dY, grads, tY)


def _derivatives(f, inputs, tangents, cotangent, grads, tangent):
    """A vjp and a jvp of f against differences, against autograd, and against one another."""
    by_vjp = checks.check_vjp(f, tuple(grads), at=inputs, cotangent=cotangent)
    by_jvp = checks.check_jvp(f, tangent, at=inputs, tangents=tangents)
    checks.check_adjoint(cotangent, tangent, tuple(grads), tangents)
    return by_vjp, by_jvp


# --- softmax and log-sum-exp --------------------------------------------------------------------------------------


def softmax_values(shape=(2, 3, 5), axis=-1, seed=0):
    from scipy import special

    (S,) = draw(shape, seed=seed)
    assert checks.close(ab.softmax(S, axis), special.softmax(S, axis))


def logsumexp_values(shape=(2, 3, 5), axis=-1, seed=0):
    from scipy import special

    (S,) = draw(shape, seed=seed)
    assert checks.close(ab.logsumexp(S, axis), special.logsumexp(S, axis))


def softmax_gradients(shape=(2, 3, 5), axis=-1, seed=0):
    S, dP, tS = draw(shape, shape, shape, seed=seed)
    P = ab.softmax(S, axis)
    dS, tP = ab.softmax_vjp(dP, P, axis), ab.softmax_jvp(tS, P, axis)
    return _derivatives(lambda S: ab.softmax(S, axis), [S], [tS], dP, [dS], tP)


def logsumexp_gradients(shape=(2, 3, 5), axis=-1, seed=0):
    S, tS = draw(shape, shape, seed=seed)
    P, L = ab.softmax(S, axis), ab.logsumexp(S, axis)
    (dL,) = draw(L.shape, seed=seed + 1)
    dS, tL = ab.logsumexp_vjp(dL, P, axis), ab.logsumexp_jvp(tS, P, axis)
    return _derivatives(lambda S: ab.logsumexp(S, axis), [S], [tS], dL, [dS], tL)


def jacobian_columns_are_derivatives(shape=(2, 3, 5)):
    """Column k is how P changes with score k; the matrix is symmetric and its rows sum to 0."""
    (S,) = draw(shape)
    J = ab.softmax_jacobian(ab.softmax(S))
    assert J.shape == (*shape, shape[-1])
    for k in range(shape[-1]):
        t = np.zeros(shape)
        t[..., k] = 1
        checks.check_jvp(ab.softmax, J[..., k], at=S, tangents=t)
    assert checks.close(J, np.swapaxes(J, -1, -2))
    assert checks.close(J.sum(-1), np.zeros(shape))


def softmax_is_shift_invariant(shape=(2, 3, 5)):
    S, shift = draw(shape, (*shape[:-1], 1))
    assert checks.close(ab.softmax(S + shift), ab.softmax(S))
    assert checks.close(ab.logsumexp(S + shift), ab.logsumexp(S) + shift[..., 0])
    assert checks.close(ab.softmax_vjp(S + shift, ab.softmax(S)), ab.softmax_vjp(S, ab.softmax(S)))


def softmax_of_large_scores(dtype, size):
    """Scores of ±size neither overflow nor warn: the largest takes all."""
    signs, dP = draw((3, 7), (3, 7))
    S = (size * np.sign(signs)).astype(dtype)
    S[:, 2] = size
    wins = S.max(axis=-1, keepdims=True) == S
    P = quietly(ab.softmax, S)
    assert np.array_equal(P, (wins / wins.sum(axis=-1, keepdims=True)).astype(dtype))
    assert np.array_equal(quietly(ab.logsumexp, S), (size + np.log(wins.sum(axis=-1))).astype(dtype))
    dS = quietly(ab.softmax_vjp, dP.astype(dtype), P)
    assert np.all(np.isfinite(dS))
    assert np.all(dS[~wins] == 0)


def softmax_of_dead_rows(dtype="float64"):
    """A row of −∞ has no weights, no value, no gradient, and makes no noise."""
    S, dP = (T.astype(dtype) for T in draw((3, 5), (3, 5)))
    S[1], S[2, :2] = -np.inf, -np.inf
    P, L = quietly(ab.softmax, S), quietly(ab.logsumexp, S)
    dead = np.isneginf(S)
    assert np.all(P[dead] == 0)
    assert np.all(P[~dead] > 0)
    assert np.array_equal(np.isneginf(L), [False, True, False])
    derivatives = ab.softmax_vjp(dP, P), ab.softmax_jvp(dP, P), ab.logsumexp_vjp(dP[:, 0], P)
    assert all(np.all(d[dead] == 0) and np.all(d[~dead] != 0) for d in derivatives)
    assert np.all(ab.softmax_jacobian(P)[1] == 0)
    assert ab.logsumexp_jvp(dP, P)[1] == 0


# --- ops ----------------------------------------------------------------------------------------------------------


def finite(T):
    """T with −∞ read as 0: the −∞ of a mask is a constant, and has no derivative."""
    xp = arrays.array_namespace(T)
    return xp.where(-xp.inf == T, xp.zeros_like(T), T)


def op_gradients(make, *parameters, shape=(2, 3, 5, 7)):
    """forward, vjp and jvp of the op ``make(S, *parameters)``, alone."""
    tile = Tile.whole(*shape[-2:])
    S, *_ = inputs = [*draw(shape), *parameters]
    tS, *tparameters = tangents = draw(*(T.shape for T in inputs), seed=1)
    (cotangent,) = draw(shape, seed=2)
    op = make(*inputs)
    saved = op.forward(S, tile)[1]
    dS, dparam = op.vjp(cotangent, saved, tile)
    assert (dparam is None) == (not parameters)
    grads = [dS] if dparam is None else [dS, dparam]
    tangent = op.jvp(tS, saved, tile, *tparameters)
    if parameters:  # no tangent for the parameter means that it does not move
        assert checks.close(op.jvp(tS, saved, tile), op.jvp(tS, saved, tile, np.zeros(parameters[0].shape)))
    return _derivatives(
        lambda *xs: finite(make(*xs).forward(xs[0], tile)[0]), inputs, tangents, cotangent, grads, tangent
    )


def op_is_the_same_on_tiles(op, parameter=None, shape=(2, 3, 5, 7)):
    """Run on blocks and stitched together, an op gives what it gives on the whole table; parts of dparam add up."""
    S, dS, tS = draw(shape, shape, shape, seed=3)
    n_q, n_k = shape[-2:]
    whole = Tile.whole(n_q, n_k)
    forward, saved = op.forward(S, whole)
    pulled, dparam = op.vjp(dS, saved, whole)
    pushed = op.jvp(tS, saved, whole, parameter)
    stitched = np.full((3, *shape), np.nan)
    summed = None if dparam is None else np.zeros(dparam.shape)  # of a parameter over the table, parts come cut
    for rows in (range(2), range(2, n_q)):
        for cols in (range(3), range(3, 4), range(4, n_k)):
            tile = Tile(rows, cols, n_q, n_k)
            block = (..., slice(rows.start, rows.stop), slice(cols.start, cols.stop))
            stitched[0][block], saved = op.forward(S[block], tile)
            stitched[1][block], part = op.vjp(dS[block], saved, tile)
            stitched[2][block] = op.jvp(tS[block], saved, tile, parameter)
            assert (part is None) == (dparam is None)
            if part is not None:
                (summed if part.shape == summed.shape else tile.cut(summed))[...] += part
    assert np.array_equal(stitched, np.stack([forward, pulled, pushed]))
    assert summed is None or checks.close(summed, dparam)


def causal_allows(corner, n_q=5, n_k=7):
    """The last key that query i may see: i itself, or i + n_k − n_q."""
    allowed = Causal(corner).allowed(np.zeros((n_q, n_k)), Tile.whole(n_q, n_k))
    last = {"top-left": lambda i: i, "bottom-right": lambda i: i + n_k - n_q}[corner]
    assert np.array_equal(allowed, [[j <= last(i) for j in range(n_k)] for i in range(n_q)])


def window_allows(left, right, corner, n_q=5, n_k=7):
    """Query i may see the keys from i − left to i + right, i counted from the corner; None is no limit."""
    allowed = Window(left, right, corner).allowed(np.zeros((n_q, n_k)), Tile.whole(n_q, n_k))
    at = {"top-left": lambda i: i, "bottom-right": lambda i: i + n_k - n_q}[corner]
    left, right = (n_q + n_k if side is None else side for side in (left, right))
    assert np.array_equal(allowed, [[at(i) - left <= j <= at(i) + right for j in range(n_k)] for i in range(n_q)])


def mask_knows_its_live_tiles(op, n_q=5, n_k=7):
    """``live`` is the smallest tile around the allowed pairs, empty where there is none; ``allows_all`` is never wrong.

    And a tile's ``pattern`` is a tile with the same allowed pairs.
    """
    for rows in (range(a, b) for a in range(n_q) for b in range(a + 1, n_q + 1)):
        for cols in (range(a, b) for a in range(n_k) for b in range(a + 1, n_k + 1)):
            tile = Tile(rows, cols, n_q, n_k)
            allowed = np.broadcast_to(op.allowed(np.zeros((n_q, n_k)), tile), (3, len(rows), len(cols))).any(axis=0)
            some_row, some_col = (np.flatnonzero(allowed.any(axis=axis)) for axis in (1, 0))
            live = op.live(tile)
            assert bool(live) == allowed.any()
            if live:
                assert (live.rows[0] - rows[0], live.rows[-1] - rows[0]) == (some_row[0], some_row[-1])
                assert (live.cols[0] - cols[0], live.cols[-1] - cols[0]) == (some_col[0], some_col[-1])
            assert allowed.all() or not op.allows_all(tile)
            if op.pattern(tile) is not None:
                assert np.array_equal(op.allowed(np.zeros((n_q, n_k)), op.pattern(tile)), allowed)


def softcap_bounds(cap=1.5):
    """Scores stay within ±cap, in their order; small ones hardly move; the slope is 1 at 0 and vanishes far out."""
    op, tile = Softcap(cap), Tile.whole(1, 2001)
    S = np.linspace(-20 * cap, 20 * cap, 2001)[None]
    capped, saved = op.forward(S, tile)
    assert np.all(np.abs(capped) <= cap)
    assert np.all(np.diff(capped) >= 0)
    assert checks.close(capped, cap * np.tanh(S / cap))
    assert checks.close(op.forward(1e-6 * S, tile)[0], 1e-6 * S)
    slope = op.vjp(np.ones_like(S), saved, tile)[0]
    assert slope[0, 1000] == 1
    assert np.max(slope[:, [0, -1]]) < 1e-12


def _kept(op, shape, tile=None, lead=None):
    n_q, n_k = shape[-2:]
    return op.kept(np.zeros(shape), tile or Tile.whole(n_q, n_k)._replace(lead=lead))


def dropout_keeps_its_share():
    """A share of 1 − p is kept, within five standard deviations; the mean of W is that of P; p = 0 changes nothing."""
    (P,) = draw((4, 5, 64, 100))
    for p in (0.0, 0.1, 0.5, 0.9):
        op = Dropout(p, seed=3)
        kept = _kept(op, P.shape)
        deviation = (p * (1 - p) / kept.size) ** 0.5
        assert abs(kept.mean() - (1 - p)) <= 5 * deviation
        for axis in range(4):  # the share of each batch, head, query and key
            others = tuple({*range(4)} - {axis})
            off = kept.mean(axis=others) - (1 - p)
            assert np.max(np.abs(off)) <= 5 * deviation * kept.shape[axis] ** 0.5
        W = op.forward(P, Tile.whole(64, 100))[0]
        assert checks.close(W, np.where(kept, P / (1 - p), 0.0))
        assert p > 0 or np.array_equal(W, P)


def dropout_is_unrelated():
    """Neighbors in any axis, near and far, and other seeds: what is kept here says nothing of what is kept there."""
    seeds = [0, 1, 2, 3, -1, 7, 2**31, 2**32, 2**32 + 1, 2**40 + 1, 2**63]
    masks = [_kept(Dropout(0.5, seed), (4, 4, 64, 64)) * 2.0 - 1 for seed in seeds]

    def unrelated(A, B):
        assert abs(np.mean(A * B)) <= 5 / A.size**0.5

    for a, A in enumerate(masks):
        for B in masks[:a]:
            unrelated(A, B)
        unrelated(A, A.swapaxes(0, 1) * (1 - np.eye(4))[:, :, None, None])
        unrelated(A, A.swapaxes(2, 3) * (1 - np.eye(64)))
        for axis in range(4):
            for step in (1, 2, 3, 8, 32):
                if step < A.shape[axis]:
                    unrelated(A.take(range(step, A.shape[axis]), axis), A.take(range(A.shape[axis] - step), axis))


def dropout_is_the_same_on_any_tile():
    """A tile, some of the heads, and any sizes around them: the number of a weight hangs on its place alone."""
    op, shape = Dropout(0.4, seed=11), (2, 3, 5, 7)
    whole = _kept(op, shape)
    assert 0 < whole.sum() < whole.size
    for lead in (None, (range(1, 2), range(3)), (range(2), range(1, 3))):
        for rows in (range(5), range(2, 4)):
            for cols in (range(7), range(3, 7)):
                for n_q, n_k in ((5, 7), (11, 13)):
                    tile = Tile(rows, cols, n_q, n_k, lead)
                    T = np.zeros((*shape[:2], len(rows), len(cols))) if lead is None else np.zeros(tile.shape(shape))
                    assert np.array_equal(op.kept(T, tile), tile.cut(whole))


def mask_stops_garbage(op, shape=(5, 7)):
    """NaN or ∞ where a key is forbidden reaches neither the scores nor any derivative."""
    tile = Tile.whole(*shape)
    forbidden = np.isneginf(op.forward(np.zeros(shape), tile)[0])
    T = np.where(forbidden, np.nan, 1.0)
    T[:, ::2][forbidden[:, ::2]] = np.inf
    S, saved = quietly(op.forward, T, tile)
    assert np.array_equal(S, np.where(forbidden, -np.inf, 1.0))
    assert np.array_equal(op.vjp(T, saved, tile)[0], np.where(forbidden, 0.0, 1.0))
    assert np.array_equal(op.jvp(T, saved, tile), np.where(forbidden, 0.0, 1.0))


# --- attention ----------------------------------------------------------------------------------------------------


def naive_heads(T, Q):
    """T with each of its heads repeated for the query heads that share it."""
    h = Q.shape[-3] if Q.ndim > 2 else 1
    return T.repeat_interleave(h // T.shape[-3], -3) if T.ndim > 2 and T.shape[-3] not in (1, h) and h > 1 else T


def naive_scores(case, Q, K, V, *parameters):
    """The scores of ``naive_attention``, −∞ where a key is forbidden."""
    rest = list(parameters)
    S = Q @ naive_heads(K, Q).mT * (Q.shape[-1] ** -0.5 if case.scale is None else case.scale)
    bias = 0.0 if case.bias is None else rest.pop(0)
    for op in case.made(*rest):
        if not isinstance(op, Dropout | Window):  # windows are in case.allowed()
            S = op.forward(S, Tile.whole(*case.scores[-2:]))[0]
    return (S + bias).masked_fill(~torch.tensor(case.allowed()), -torch.inf)


def naive_attention(case, Q, K, V, *parameters):
    """The definition in torch, each step in the dtype of Q: a second implementation, with autograd to differentiate."""
    S = naive_scores(case, Q, K, V, *parameters)
    P = torch.softmax(S, dim=-1).masked_fill(~torch.tensor(case.allowed()), 0.0)
    for op in case.made(*parameters[case.bias is not None :]):
        if isinstance(op, Dropout):
            P = P / (1 - op.p) * op.kept(P, Tile.whole(*case.scores[-2:]))
    return P @ naive_heads(V, Q)


def attention_values(case, seed=0):
    inputs = case.draw(seed)
    O, _ = quietly(case.attend, *inputs)
    tensors = [torch.tensor(T) for T in inputs]
    assert checks.close(O, naive_attention(case, *tensors))
    if not case.ops:
        Q, K, V, *bias = tensors
        h, lead = (case.q[-3] if len(case.q) > 2 else 1), case.scores[:-2]
        Q, K, V = (heads.share_heads(T, h).expand(*lead, *T.shape[-2:]) for T in (Q, K, V))
        allowed = torch.tensor(case.allowed())
        attn_mask = torch.zeros(case.scores, dtype=torch.float64).masked_fill(~allowed, -torch.inf) + sum(bias)
        sdpa = torch.nn.functional.scaled_dot_product_attention
        assert checks.close(O, sdpa(Q, K, V, attn_mask=attn_mask, scale=case.scale))


def attention_gradients(case, seed=0):
    inputs = case.draw(seed)
    tangents = draw(*(T.shape for T in inputs), seed=seed + 1)
    O, res = quietly(case.attend, *inputs)
    (dO,) = draw(O.shape, seed=seed + 2)
    grads, tO = quietly(case.pull, dO, res), quietly(case.push, tangents, res)
    return _derivatives(lambda *xs: case.attend(*xs)[0], inputs, tangents, dO, grads, tO)


def attention_in_every_library(xp, case):
    inputs = case.draw()
    (dO,) = draw((*case.scores[:-1], case.v[-1]))
    at_finite = [finite(T) for T in inputs]  # a tangent is finite
    same_everywhere(xp, lambda *inputs: case.attend(*inputs)[0], *inputs)
    same_everywhere(xp, lambda dO, *inputs: case.pull(dO, case.attend(*inputs)[1]), dO, *inputs)
    same_everywhere(xp, lambda *inputs: case.push(inputs, case.attend(*inputs)[1]), *at_finite)


def attention_runs_twice(case):
    """A backward changes nothing that a second one reads, and is linear in the gradient that arrives."""
    inputs = case.draw()
    copies = [T.copy() for T in inputs]
    O, res = case.attend(*inputs)
    dO, other = draw(O.shape, O.shape)
    first, second = case.pull(dO, res), case.pull(other, res)
    both = case.pull(2 * dO - 3 * other, res)
    for a, b, ab_, again in zip(first, second, both, case.pull(dO, res), strict=True):
        assert np.array_equal(a, again)
        assert checks.close(ab_, 2 * a - 3 * b)
    assert all(map(np.array_equal, inputs, copies)), "an input was modified"


def weights_are_in_the_accumulation_dtype(case):
    """Nothing widens what is kept for the backward: P is float32 for 16 bits and for float32."""
    for dtype, wide in (("float16", "float32"), ("float32", "float32"), ("float64", "float64")):
        _, res = case.attend(*(T.astype(dtype) for T in case.draw()))
        assert res.P.dtype == wide


def dead_rows_are_exactly_zero(case):
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
    tO = quietly(case.push, draw(*(T.shape for T in inputs)), res)
    assert np.array_equal(np.all(tO == 0, axis=-1), dead)


def keys_balance(case):
    """Moving every key by the same amount shifts each row of scores, so Σ_j dK_j = 0; and QᵀdQ = (KᵀdK)ᵀ."""
    Q, K, V, *rest = case.draw()
    O, res = case.attend(Q, K, V, *rest)
    dQ, dK, *_ = case.pull(draw(O.shape)[0], res)
    assert checks.close(dK.sum(axis=-2), np.zeros((*K.shape[:-2], K.shape[-1])))
    if Q.shape[:-2] == K.shape[:-2] == case.scores[:-2]:
        assert checks.close(arrays.mT(Q) @ dQ, arrays.mT(arrays.mT(K) @ dK))


def rows_of_dS_sum_to_zero(case):
    """The gradient of a bias for each score is dS itself: its rows sum to 0, and it is 0 where P is."""
    Q, K, V, *rest = case.draw()
    assert case.bias == case.scores, "the case has no bias for each score"
    O, res = case.attend(Q, K, V, *rest)
    dS = case.pull(draw(O.shape)[0], res)[3]
    assert checks.close(dS.sum(axis=-1), np.zeros(case.scores[:-1]))
    assert np.all(dS[~case.allowed()] == 0)


def future_is_unseen(case):
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


def keys_have_no_order(case):
    """Keys and values in another order, and the same output; their gradients follow them."""
    Q, K, V = case.draw()
    order = np.random.default_rng(0).permutation(K.shape[-2])
    O, res = case.attend(Q, K, V)
    O2, res2 = case.attend(Q, K[..., order, :], V[..., order, :])
    assert checks.close(O2, O)
    (dO,) = draw(O.shape)
    dQ, dK, dV = case.pull(dO, res)
    wanted = dQ, dK[..., order, :], dV[..., order, :]
    assert all(map(checks.close, case.pull(dO, res2), wanted))


def garbage_stays_behind_the_mask(case):
    """NaN and ∞ in the bias of a forbidden key reach neither the output nor a gradient nor a tangent."""
    inputs = case.draw()
    assert case.bias == case.scores, "the case has no bias for each score"
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


def attention_of_large_scores(dtype, size):
    """Scores of ±size, through products and through the bias, neither overflow nor warn, forwards or backwards."""
    Q, K, V, dO = (np.sign(T).astype(dtype) for T in draw((5, 1), (7, 1), (7, 13), (5, 13)))
    bias = (size * np.sign(draw((5, 7), seed=1)[0])).astype(dtype)
    root = np.asarray(size**0.5, dtype=dtype)
    for factor, options in ((root, {"scale": 1.0}), (1, {"bias": bias})):
        O, res = quietly(ab.attention, factor * Q, factor * K, V, **options)
        grads = quietly(ab.attention_vjp, dO, res)
        assert all(np.all(np.isfinite(T)) for T in (O, grads.dQ, grads.dK, grads.dV))
        assert np.all(np.abs(O) <= 1)


def low_precision(case, dtype, seed=0, size=1.0, on="cpu", **method):
    """The error against float64 stays within a multiple of a plain implementation's in the same dtype."""
    low = [torch.tensor(T).to(dtype) for T in case.draw(seed)]
    low[0] = size * low[0]
    Q, K, V, *parameters = (T.to(on) for T in low)
    O, res = ab.attention(Q, K, V, **case.options(Q, *parameters), **method)
    dO = torch.tensor(draw(tuple(O.shape))[0]).to(dtype)
    ours = [T.cpu() for T in (O, *case.pull(dO.to(on), res))]
    naive = _with_autograd(case, low, dO)
    exact = _with_autograd(case, [T.double() for T in low], dO.double())
    for i, (T, plain, true) in enumerate(zip(ours, naive, exact, strict=True)):
        assert T.shape == true.shape
        if not T.numel():
            continue
        off, allowed = ((A.double() - true).abs().max().item() for A in (T, plain))
        factor = LOW_PRECISION["gradient" if i else "output"]
        last_bit = torch.finfo(dtype).eps * true.abs().max().item()
        assert off <= factor * allowed + last_bit, f"result {i}: off by {off:.1e}, the plain one by {allowed:.1e}"


def _with_autograd(case, inputs, dO):
    inputs = [T.clone().requires_grad_() for T in inputs]
    O = naive_attention(case, *inputs)
    return [O.detach(), *torch.autograd.grad(O, inputs, dO)]


# --- the tiled spine ----------------------------------------------------------------------------------------------


def memory_grows_linearly(n=4096, d=16, **options):
    """Forward and backward at n queries and n keys take far less than a table, and twice as much as at n / 2."""

    def peak(n):
        Q, K, V, dO = (T.astype(np.float32) for T in draw((n, d), (n, d), (n, d), (n, d)))
        given = {name: T(n) for name, T in options.items()}
        ab.set_num_threads(1)
        tracemalloc.start()
        try:
            ab.attention_vjp(dO, ab.attention(Q, K, V, **given)[1])
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            ab.set_num_threads(None)

    whole, half = peak(n), peak(n // 2)
    assert whole <= n * n * 4 / 5, f"{whole / 2**20:.0f} MiB, and a table of scores takes {n * n * 4 / 2**20:.0f}"
    assert whole <= 2.2 * half


def threads_change_no_bit(case):
    """1, 2, 3 or 5 threads: O, every gradient, and L are the same to the last bit."""
    inputs = case.draw()
    (dO,) = draw((*case.scores[:-1], case.v[-1]))
    found = []
    try:
        for n in (1, 2, 3, 5):
            ab.set_num_threads(n)
            O, res = case.attend(*inputs)
            found.append([O, res.L, *case.pull(dO, res)])
    finally:
        ab.set_num_threads(None)
    for other in found[1:]:
        assert all(map(np.array_equal, found[0], other))


class Spy:
    """An op that changes nothing, and writes down the tiles that it is shown."""

    def __init__(self):
        self.forwards, self.backwards = [], []

    def forward(self, S, tile):
        self.forwards.append(tile)
        return S, None

    def vjp(self, dS, saved, tile):
        self.backwards.append(tile)
        return dS, None

    def jvp(self, tS, saved, tile, tparam=None):
        return tS


def each_live_tile_is_visited_once(n_q=11, n_k=13, **options):
    """Every allowed pair lies on one tile, forwards and backwards, and no tile lacks an allowed pair."""
    Q, K, V, dO = draw((n_q, 3), (n_k, 3), (n_k, 3), (n_q, 3))
    spy = Spy()
    ops = [spy, *options.pop("ops", ())]
    _, res = ab.attention(Q, K, V, ops=ops, **options)
    allowed = np.isfinite(_masked_scores(n_q, n_k, ops[1:], **options))
    forwards = list(spy.forwards)
    spy.forwards.clear()
    ab.attention_vjp(dO, res)
    for tiles in (forwards, spy.forwards, spy.backwards):
        visits = np.zeros((n_q, n_k), int)
        for tile in tiles:
            at = slice(tile.rows.start, tile.rows.stop), slice(tile.cols.start, tile.cols.stop)
            visits[at] += 1
            assert allowed[at].any(), f"nothing is allowed on {tile}"
        assert np.all(visits[allowed] == 1)
        assert np.max(visits) <= 1


def _masked_scores(n_q, n_k, ops, mask=None, causal=False):
    S = np.zeros((n_q, n_k))
    for op in (*ops, *([] if mask is None else [Mask(mask)]), *([Causal()] if causal else [])):
        S, _ = op.forward(S, Tile.whole(n_q, n_k))
    return S


def masked_exponentials_are_not_made(n=60, **options):
    """On NumPy, of what a mask forbids no more is exponentiated than the tiles that its edge cuts through."""
    Q, K, V, dO = draw((n, 3), (n, 3), (n, 3), (n, 3))
    ops = options.get("ops", ())
    allowed = np.isfinite(_masked_scores(n, n, **{"ops": ops, **options})).sum()
    made, exp2 = [], np.exp2

    def counted(T, *args, **kwargs):
        made.append(T.size if T.shape[-1] > 1 else 0)
        return exp2(T, *args, **kwargs)

    np.exp2 = counted
    try:
        _, res = ab.attention(Q, K, V, **options)
        forwards = sum(made)
        ab.attention_vjp(dO, res)
    finally:
        np.exp2 = exp2
    assert made, "none were made"
    for count in (forwards, sum(made) - forwards):
        assert count == 0 or 0.6 * allowed <= count <= allowed + 6 * n  # tiles of one column are not counted


def L_is_the_logsumexp_of_the_scores(case):
    """L of every row, in nats; +∞ in a row with no allowed key, whose Z is ∞ and whose O is 0."""
    inputs = case.draw()
    _, res = case.attend(*inputs)
    tensors = [torch.tensor(T) for T in inputs]
    n_k = case.scores[-1]
    S = naive_scores(case, *tensors)
    wanted = torch.logsumexp(S, dim=-1).numpy() if n_k else np.full(case.scores[:-1], -np.inf)
    dead = np.isneginf(wanted)
    assert res.L.shape == case.scores[:-1]
    assert np.all(res.L[dead] == np.inf)
    assert np.all(res.Z[..., 0][dead] == np.inf)
    assert np.all(res.M[..., 0][dead] == 0)
    assert checks.close(np.where(dead, 0, res.L), np.where(dead, 0, wanted))


def residuals_are_in_the_accumulation_dtype(case):
    for dtype, wide in (("float16", "float32"), ("float32", "float32"), ("float64", "float64")):
        O, res = case.attend(*(T.astype(dtype) for T in case.draw()))
        assert O.dtype == dtype
        assert res.O.dtype == res.M.dtype == res.Z.dtype == wide


def residuals_are_left_alone(case):
    """A backward and a forward derivative write into nothing that the residuals hold."""
    inputs = case.draw()
    O, res = case.attend(*inputs)
    held = [T for T in res if isinstance(T, np.ndarray)]
    before = [T.copy() for T in held]
    dO, *_ = draw(O.shape)
    dO.flags.writeable = False
    case.pull(dO, res)
    case.push(draw(*(T.shape for T in inputs), seed=1), res)
    assert all(map(np.array_equal, held, before))


def fresh_memory_is_not_read(case):
    """NaN or ∞ in memory that is asked for with ``np.empty`` changes nothing, and warns of nothing."""
    inputs = case.draw()
    (dO,) = draw((*case.scores[:-1], case.v[-1]))

    def found():
        O, res = case.attend(*inputs)
        return [O, *case.pull(dO, res)]

    def filling(make, number):
        def filled(*args, **kwargs):
            T = make(*args, **kwargs)
            if T.dtype.kind == "f":
                T.fill(number)
            return T

        return filled

    wanted = found()
    for number in (np.nan, np.inf):
        with pytest.MonkeyPatch.context() as patch:
            for name in ("empty", "empty_like"):
                patch.setattr(np, name, filling(getattr(np, name), number))
            try:
                came = found()
            except RuntimeWarning as warned:
                raise AssertionError("computed with what stood in fresh memory") from warned
        assert all(map(np.array_equal, came, wanted))


def layout_in_memory_changes_nothing(case):
    """Transposed, strided, reversed, broadcast and read-only inputs give what packed ones give."""
    packed = case.draw()
    (dO,) = draw((*case.scores[:-1], case.v[-1]))
    O, res = case.attend(*packed)
    wanted = [O, *case.pull(dO, res)]

    def locked(T):
        T = T.copy()
        T.flags.writeable = False
        return T

    for laid in (
        lambda T: np.moveaxis(np.ascontiguousarray(np.moveaxis(T, -2, -3)), -3, -2) if T.ndim > 2 else T,  # heads split
        lambda T: np.ascontiguousarray(T.swapaxes(-1, -2)).swapaxes(-1, -2) if T.ndim > 1 else T,
        lambda T: np.repeat(T, 2, axis=-1)[..., ::2] if T.ndim else T,
        lambda T: np.ascontiguousarray(T[..., ::-1])[..., ::-1] if T.ndim else T,
        lambda T: np.asfortranarray(T).reshape(T.shape),
        locked,
    ):
        O, res = case.attend(*map(laid, packed))
        assert all(map(checks.close, [O, *case.pull(laid(dO), res)], wanted))


def broadcast_inputs_are_ordinary(Q=(2, 3, 5, 11), K=(2, 3, 7, 11), V=(2, 3, 7, 13)):
    """Arrays that broadcast_to has stretched, whose entries share memory: every entry has its own gradient."""
    packed = draw((5, 11), (2, 1, 7, 11), (3, 7, 13))
    stretched = [np.broadcast_to(T, shape) for T, shape in zip(packed, (Q, K, V), strict=True)]
    (dO,) = draw((1, 3, 1, 13))
    dO = np.broadcast_to(dO, (2, 3, 5, 13))
    results = []
    for inputs in (stretched, [T.copy() for T in stretched]):
        O, res = ab.attention(*inputs, causal=True)
        results.append([O, *ab.attention_vjp(dO, res)[:3]])
    assert all(map(checks.close, *results))
    assert [T.shape for T in results[0][1:]] == [Q, K, V]


@cache
def _in_long_double(dtype, size, causal, seed):
    """Inputs in ``dtype`` with scores as large as ±size, and O, dQ, dK, dV in long double; a few rows are near ties."""
    Q, K, V, dO = draw((3, 200, 32), (3, 331, 32), (3, 331, 13), (3, 200, 13), seed=seed)
    root = (size / np.max(np.abs(Q @ K.swapaxes(-1, -2)))) ** 0.5
    low = [T.astype(dtype) for T in (root * Q, root * K, V, dO)]
    Q, K, V, dO = (T.astype(np.longdouble) for T in low)
    S = Q @ K.swapaxes(-1, -2)
    if causal:
        S = np.where(np.tri(200, 331, dtype=bool), S, -np.inf)
    P = np.exp(S - S.max(axis=-1, keepdims=True))
    P /= P.sum(axis=-1, keepdims=True)
    dP = dO @ V.swapaxes(-1, -2)
    dS = P * (dP - (dP * P).sum(axis=-1, keepdims=True))
    return low, (P @ V, dS @ K, dS.swapaxes(-1, -2) @ Q, P.swapaxes(-1, -2) @ dO)


def errors_are_those_of_dense(dtype, size, causal=False):
    """Root mean square errors of O, dQ, dK, dV against long double: at most twice those of the dense spine."""
    ours, plain = np.zeros(4), np.zeros(4)
    for seed in range(2):
        (*inputs, dO), exact = _in_long_double(dtype, size, causal, seed)
        O, res = quietly(ab.attention, *inputs, scale=1.0, causal=causal)
        steps = [Step("scale", Scale(1.0)), *([Step("causal", Causal())] if causal else [])]
        reference, of_dense = dense.forward(*inputs, steps, res.shape)
        found = [O, *quietly(ab.attention_vjp, dO, res)[:3]]
        for errors, came in ((ours, found), (plain, [reference, *dense.vjp(dO, of_dense)[:3]])):
            assert all(T.dtype == dtype for T in came)
            errors += [np.mean((T - true) ** 2) / np.mean(true**2) for T, true in zip(came, exact, strict=True)]
    ratio = (ours / plain) ** 0.5
    assert np.all(ratio <= 2), f"errors of O, dQ, dK, dV: {ratio} times those of the dense spine"


def agrees_with_dense(Q, K, V, **options):
    """At the sizes that tiles have in earnest: output and gradients are those of the dense spine."""
    inputs = draw(Q, K, V)
    O, res = ab.attention(*inputs, **options)
    (dO,) = draw(O.shape, seed=1)
    _, steps = importlib.import_module("attnbook.attention").plan(inputs[0], res.shape, **DEFAULTS | options)
    wanted, of_dense = dense.forward(*inputs, steps, res.shape)
    *grads, dparams = dense.vjp(dO, of_dense)
    found = ab.attention_vjp(dO, res)
    assert checks.close(O, wanted)
    assert all(map(checks.close, found[:3], grads))
    for dparam in dparams:
        assert dparam is None or any(checks.close(dparam, T) for T in (found.dbias, *found.dops) if T is not None)


DEFAULTS = {"mask": None, "bias": None, "causal": False, "scale": None, "ops": (), "method": "auto"}


# --- workers ------------------------------------------------------------------------------------------------------


def blas_threads():
    """How many threads NumPy's BLAS works with. SciPy has one of its own, which is let alone if it comes later."""
    pools = (pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas")
    return [pool["num_threads"] for pool in pools if "scipy.libs" not in pool["filepath"]]


def every_task_is_done_once(threads=3, tasks=20):
    done, lock = [], threading.Lock()

    def task(place, entry):
        with lock:
            done.append((place, entry))
            assert blas_threads() == [1] * len(before)

    with threadpoolctl.threadpool_limits(2, user_api="blas"):  # on any machine, and whatever goes wrong
        before = blas_threads()
        with set_threads(threads):
            workers.run(task, [10 * i for i in range(tasks)])
        assert sorted(done) == [(i, 10 * i) for i in range(tasks)]
        assert blas_threads() == before


def threads_are_as_many_as_set():
    with set_threads(7):
        assert ab.get_num_threads() == 7
        assert workers.get_num_threads() == 7


def sums_are_in_order():
    """Whoever gives first, sums are taken in the order of the tasks: 10¹⁶ + 1 − 10¹⁶ hangs on it."""
    for order in itertools.permutations(range(3)):
        total, sums = np.zeros(1), workers.InOrder()
        for place in order:
            sums.give("total", place, [(total, np.array([(1e16, 1.0, -1e16)[place]]))])
        assert total[0] == 1e16 + 1.0 - 1e16


def an_error_reaches_the_caller(of_helper, error=ZeroDivisionError):
    """An error in a task, the caller's or a helper's: it is raised, no worker is left, and BLAS is as it was."""
    before, working = blas_threads(), []
    at_work = {True: threading.Event(), False: threading.Event()}  # one of each is, when it happens

    def task(place, entry):
        working.append(place)
        try:
            helps = threading.current_thread() is not threading.main_thread()
            at_work[helps].set()
            at_work[not helps].wait(5)
            if helps == of_helper:
                raise error("in a task")
            time.sleep(0.02)
        finally:
            working.pop()

    with set_threads(2):
        try:
            workers.run(task, range(50))
        except error:
            assert not working, "a worker is still at work"
            assert blas_threads() == before
        else:
            raise AssertionError("the error was lost")


def an_interrupt_while_waiting_leaves_no_worker():
    """Ctrl-C while the caller waits for a helper: the helper finishes its task and takes no other."""
    before, working, started = blas_threads(), [], threading.Event()

    def task(place, entry):
        if threading.current_thread() is threading.main_thread():
            started.wait(5)
            return
        working.append(place)
        started.set()
        time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.05)
        working.pop()

    with set_threads(2):
        try:
            workers.run(task, range(2))
            time.sleep(0.2)
        except KeyboardInterrupt:
            assert not working, "a worker is still at work"
            assert blas_threads() == before
        else:
            raise AssertionError("the interrupt was lost")


@contextlib.contextmanager
def set_threads(n):
    ab.set_num_threads(n)
    try:
        yield
    finally:
        ab.set_num_threads(None)


def two_callers_at_once():
    """Two Python threads call attention at the same time: each gets what it gets alone, and BLAS is as it was."""
    before = blas_threads()
    inputs = [draw((2, 6, 40, 8), (2, 6, 50, 8), (2, 6, 50, 5), (2, 6, 40, 5), seed=seed) for seed in range(2)]

    def both(Q, K, V, dO):
        O, res = ab.attention(Q, K, V, causal=True)
        return [O, *ab.attention_vjp(dO, res)[:3]]

    with set_threads(3):
        alone = [both(*arrays) for arrays in inputs]
        with ThreadPoolExecutor(2) as pool:
            for _ in range(5):
                for wanted, found in zip(alone, pool.map(lambda arrays: both(*arrays), inputs), strict=True):
                    assert all(map(np.array_equal, wanted, found))
    assert blas_threads() == before


def heads_may_be_grouped_anew():
    """One head with large scores needs a shift, and so do those in its task; in the backward, tasks may be others."""
    Q, K, V, dO = draw((4, 5, 3), (4, 7, 3), (4, 7, 2), (4, 5, 2))
    Q[0] *= 1000
    right = ab.attention_vjp(dO, ab.attention(Q, K, V, method="dense")[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numpy_tiled, "SCORES_A_TASK", 2**16)
        _, res = ab.attention(Q, K, V, method="tiled")
        assert np.all(res.M != 0)
        patch.setattr(numpy_tiled, "SCORES_A_TASK", 0)
        assert all(map(checks.close, ab.attention_vjp(dO, res)[:3], right[:3]))


# --- multi-head attention -----------------------------------------------------------------------------------------


def naive_multi_head(case, *inputs):
    """The definition in torch, in the dtype of X, one head cut out after the other."""
    X, memory, p, rest = case.sort(inputs)
    M = X if memory is None else memory

    def project(T, W, b, h):
        return torch.stack((T @ W if b is None else T @ W + b).chunk(h, dim=-1), dim=-3)

    Q, K = project(X, p.W_Q, p.b_Q, case.h), project(M, p.W_K, p.b_K, case.h_kv)
    O = naive_attention(case.heads, Q, K, project(M, p.W_V, p.b_V, case.h_kv), *rest)
    Y = torch.cat(O.unbind(dim=-3), dim=-1) @ p.W_O
    return Y if p.b_O is None else Y + p.b_O


def multi_head_values(case, seed=0):
    inputs = case.draw(seed)
    Y, _ = quietly(case.attend, *inputs)
    assert checks.close(Y, naive_multi_head(case, *map(torch.tensor, inputs)))


def multi_head_gradients(case, seed=0):
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
    return checks.check_vjp(case.attend, tuple(grads), at=inputs, cotangent=dY)


def multi_head_runs_twice(case):
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


def multi_head_in_every_library(xp, case):
    inputs = case.draw()
    (dY,) = draw((*case.heads.q[:-3], case.heads.q[-2], case.d_out))
    same_everywhere(xp, lambda *inputs: case.attend(*inputs)[0], *inputs)
    same_everywhere(xp, lambda dY, *inputs: case.pull(dY, case.attend(*inputs)[1]), dY, *inputs)


def one_head_is_attention(case):
    """With one head: three projections, attention, one projection."""
    assert case.h == 1
    X, memory, p, _ = case.sort(case.draw())
    Q, K, V = ab.linear(X, p.W_Q, p.b_Q), ab.linear(memory, p.W_K, p.b_K), ab.linear(memory, p.W_V, p.b_V)
    Y = ab.linear(ab.attention(Q, K, V)[0], p.W_O, p.b_O)
    assert checks.close(ab.multi_head_attention(X, p, num_heads=1, memory=memory)[0], Y)


def self_is_cross_with_itself(case):
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


def heads_have_no_order(case):
    """Heads in another order, weights and biases alike, and the same output; their gradients follow them."""
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


def shared_heads_add_up(case):
    """A shared head is the same head given to each query of its group; its gradient is the sum over the group."""
    X, memory, p, _ = case.sort(case.draw())
    h, h_kv = case.h, case.h_kv
    assert h > h_kv

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


def keys_need_no_bias(case):
    """A bias of the keys shifts each row of scores, so it changes nothing, and its gradient is 0."""
    inputs = case.draw()
    Y, res = case.attend(*inputs)
    db_K = case.sort(case.pull(draw(Y.shape)[0], res))[2].b_K
    assert checks.close(db_K, np.zeros(db_K.shape))
    X, memory, p, rest = case.sort(inputs)
    moved = [X, memory, *p._replace(b_K=p.b_K + 1), *rest]
    assert checks.close(case.attend(*(T for T in moved if T is not None))[0], Y)


def projections_balance(case):
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


def forbidden_tokens_get_no_gradient(case):
    """A memory token that no query may see: exactly 0 arrives at it, whatever stands there, and Y is unchanged."""
    hidden = ~np.any(case.heads.allowed(), axis=(-3, -2))
    assert hidden.any(), "every token is seen"
    X, memory, *others = case.draw()
    Y, res = case.attend(X, memory, *others)
    (dY,) = draw(Y.shape)
    dmemory = case.pull(dY, res)[1]
    assert np.array_equal(np.all(dmemory == 0, axis=-1), hidden)
    assert np.array_equal(case.attend(X, np.where(hidden[..., None], 9.0, memory), *others)[0], Y)


def dead_queries_give_the_bias(case):
    """A query that may see no key, in any head: Y = b_O there, and what arrives there reaches b_O alone."""
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


# --- torch's layer ------------------------------------------------------------------------------------------------


def agrees_with_torchs_layer(module, query, key, value, **options):
    """Output, weights and all gradients of a ``torch.nn.MultiheadAttention`` are ours, through the converter."""
    masks = {name: options[name] for name in ("key_padding_mask", "attn_mask") if options.get(name) is not None}
    named = {"query": query, "key": key, "value": value, **{k: T for k, T in masks.items() if T.dtype != torch.bool}}
    named = {name: T.detach().clone().requires_grad_() for name, T in named.items()}
    Y, weights = module(**named | {k: T for k, T in masks.items() if k not in named}, **_others(options))
    named |= dict(module.named_parameters())

    X, p, ours = layout.from_multihead_attention(module, query, key, value, **masks)
    came, res = quietly(ab.multi_head_attention, X, p, **ours)
    turned = not module.batch_first and query.ndim == 3
    (dY,) = (torch.tensor(T) for T in draw(tuple(came.shape)))
    grads = layout.to_multihead_attention(quietly(ab.multi_head_attention_vjp, dY, res), module, **masks)

    wanted = torch.autograd.grad(Y, list(named.values()), dY.transpose(0, 1) if turned else dY)
    assert grads.keys() == named.keys()
    pairs = [(came.transpose(0, 1) if turned else came, Y.detach())]
    pairs += [(grads[name], T) for name, T in zip(named, wanted, strict=True)]
    if weights is not None:
        P = res.attention.P
        pairs.append((P.mean(dim=-3) if options.get("average_attn_weights", True) else P, weights.detach()))
    for ours, theirs in pairs:
        assert checks.close(ours, theirs)
    return max(((a - b).abs().max() / b.abs().max().clamp(min=1)).item() for a, b in pairs if a.numel())


def _others(options):
    return {name: option for name, option in options.items() if name not in ("key_padding_mask", "attn_mask")}


def torchs_layer_is_ours():
    """One call that has nearly all that there is: key ≠ value, appended tokens, both masks, tokens before the batch."""
    module = torchs_layer(embed_dim=33, num_heads=3, kdim=13, vdim=17, add_bias_kv=True, add_zero_attn=True)
    inputs = [torch.tensor(T) for T in draw((5, 2, 33), (7, 2, 13), (7, 2, 17))]
    scores, padding = (torch.tensor(T) > 0.5 for T in draw((6, 5, 7), (2, 7)))
    agrees_with_torchs_layer(module, *inputs, key_padding_mask=padding, attn_mask=scores)


def torchs_layer(*, seed=0, **options):
    """A float64 module whose parameters are all random: torch starts its biases at 0, where mistakes hide."""
    module = torch.nn.MultiheadAttention(**options, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    return module


# --- the checks themselves ----------------------------------------------------------------------------------------


def _refuses(check, *args, **options):
    """The check must raise an AssertionError."""
    try:
        check(*args, **options)
    except AssertionError:
        return
    raise AssertionError("a check has passed what is wrong")


def _cubes():
    """x³ + y with its derivatives: f, inputs, tangents, cotangent, gradients, tangent of the output."""
    x, y, tx, ty, c = draw((5,), (5,), (5,), (5,), (5,))
    return lambda x, y: x**3 + y, [x, y], [tx, ty], c, [3 * x**2 * c, c], 3 * x**2 * tx + ty


def checks_accept_what_is_right():
    f, at, tangents, c, grads, tangent = _cubes()
    found = checks.check_vjp(f, grads, at=at, cotangent=c)
    assert set(found.errors) == {"differences", "autograd"}
    assert set(checks.check_jvp(f, tangent, at=at, tangents=tangents).errors) == {"differences", "autograd"}
    checks.check_adjoint(c, tangent, grads, tangents)


def check_vjp_refuses_what_is_wrong():
    """Each input's gradient by each comparison: sizes, signs, NaN, and what is too small for differences to see."""
    f, at, _, c, grads, _ = _cubes()
    for i in range(2):
        for wrong in (2 * grads[i], -grads[i], np.nan * grads[i], 0 * grads[i], grads[i] * (1 + 1e-10), grads[i][:3]):
            _refuses(checks.check_vjp, f, [*grads[:i], wrong, *grads[i + 1 :]], at=at, cotangent=c)


def check_jvp_refuses_what_is_wrong():
    f, at, tangents, _, _, tangent = _cubes()
    for wrong in (2 * tangent, -tangent, np.nan * tangent, 0 * tangent, tangent * (1 + 1e-10), tangent[:3]):
        _refuses(checks.check_jvp, f, wrong, at=at, tangents=tangents)


def check_adjoint_refuses_what_is_wrong():
    _, _, tangents, c, grads, tangent = _cubes()
    for wrong in (2 * tangent, -tangent, np.nan * tangent, tangent * (1 + 1e-10)):
        _refuses(checks.check_adjoint, c, wrong, grads, tangents)
    _refuses(checks.check_adjoint, c, tangent, [grads[0], 2 * grads[1]], tangents)


def differences_refuse_what_autograd_accepts():
    """An f that hides a step from autograd: only differences see that its gradient is wrong."""
    (x, c, t) = draw((5,), (5,), (5,))

    def square(x):
        return (x.detach() if isinstance(x, torch.Tensor) else x) * x

    _refuses(checks.check_vjp, square, c * x, at=x, cotangent=c)
    _refuses(checks.check_jvp, square, t * x, at=x, tangents=t)


def close_tells_arrays_apart():
    (A,) = draw((3, 5))
    assert checks.close(A, A * (1 + 1e-15))
    assert checks.close(np.zeros((0, 3)), np.zeros((0, 3)))
    assert not checks.close(np.ones((3, 5)), np.ones(5))
    for B in (A * (1 + 1e-9), A[:1], A.T, A * np.nan):
        assert not checks.close(A, B)


def differences_converge():
    """Halving the step halves the error of a forward difference, quarters a central one's; a complex step has none."""
    (x, t) = draw((5,), (5,))
    true = t * np.cos(x)

    def error(rule, h):
        return np.max(np.abs(rule(np.sin, x, t, h) - true))

    for rule, ratio in ((checks.forward_difference, 2), (checks.central_difference, 4)):
        assert abs(error(rule, 1e-3) / error(rule, 5e-4) - ratio) < 0.01
        assert np.max(np.abs(rule(np.sin, x, t) - true)) < 1e-7
    assert checks.close(checks.complex_step(np.sin, x, t), true)


def autograd_is_asked_right():
    """What torch is asked for: the gradients for this cotangent, 0 for an input that is not used, the tangent."""
    f, at, tangents, c, grads, tangent = _cubes()
    assert all(map(checks.close, checks.autograd_vjp(f, at, c), grads))
    assert checks.close(checks.autograd_jvp(f, at, tangents), tangent)
    unused = checks.autograd_vjp(lambda x, y: (x, "residuals"), at, c)
    assert checks.close(unused[1], np.zeros(5))


def diagnose_tells_right_from_wrong():
    """Silent about the package; a mistake in a gradient, one that needs a dead row, and two at once are named."""
    assert ab.diagnose((ab.attention, ab.attention_vjp)).ok
    for slugs in (("dk-transposed",), ("mask-lowest-number",), ("ds-mean", "dk-transposed")):
        steps = mistakes.with_mistakes(*(mistakes.MISTAKE[slug] for slug in slugs))
        report = ab.diagnose(lambda *inputs, steps=steps, **options: steps(*inputs, **options).run())
        assert set(report.mistakes) == set(slugs)
