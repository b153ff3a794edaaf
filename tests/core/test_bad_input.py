"""What does not fit is refused before any work, with a message: which argument, what was expected, what came.

One line a mistake: the call, the type of the error, the whole message. ``…`` stands for any text.
"""

import importlib.util
import inspect
import math
import re

import array_api_strict
import numpy as np
import pytest
from cases import Gate

import attnbook as ab
from attnbook import checks, layers
from attnbook.ops import (
    ALiBi,
    Bias,
    BlockMask,
    Dropout,
    LogitScale,
    RelativeBias,
    Scale,
    Segments,
    Sink,
    Softcap,
    T5Buckets,
    Window,
    alibi_slopes,
)
from attnbook.rotary import Linear, Llama3, YaRN
from attnbook.spines import Way, threads, tiled

torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None


def ones(*shape, dtype="float64"):
    return np.ones(shape, dtype)


Q, K, V = ones(2, 6, 5, 11), ones(2, 3, 7, 11), ones(2, 3, 7, 13)
S, P = ones(2, 3, 5), ones(2, 3, 5)
X, W, b, dY = ones(2, 3, 5), ones(5, 7), ones(7), ones(2, 3, 7)
_, RES = ab.attention(Q, K, V, bias=ones(5, 7), ops=[Scale(2.0)])
_, BARE = ab.attention(Q, K, V)
_, OF_OPS = ab.attention(Q, K, V, ops=[Bias(ones(5, 7)), Softcap(1.0)])
dO, dL = ones(2, 6, 5, 13), ones(2, 6, 5)
PARAMS = ab.MultiHeadParams(ones(5, 6), ones(5, 6), ones(5, 22), ones(22, 13))
_, MULTI = ab.multi_head_attention(X, PARAMS, num_heads=2)
q, k, v, beta = ones(2, 6, 5, 11), ones(2, 3, 5, 11), ones(2, 3, 5, 13), ones(2, 6, 5)
_, LINEAR_RES = ab.linear_attention(q, k, v)
_, DELTA_RES = ab.delta_rule(q, k, v, beta)
_, SIGMOID_RES = ab.sigmoid_attention(Q, K, V)
STRICT = array_api_strict.asarray(ones(2, 3, 5))
OUTPUT = "f: expected a float64 NumPy array as its output, alone or first of a tuple"

attention = ab.attention
vjp = ab.attention_vjp
jvp, hvp = ab.attention_jvp, ab.attention_hvp
linear_attention, delta_rule, sigmoid_attention = ab.linear_attention, ab.delta_rule, ab.sigmoid_attention


def mha(X, p, num_heads=2, **options):
    return ab.multi_head_attention(X, p, num_heads=num_heads, **options)


TABLE = {}
TABLE["softmax"] = [
    (lambda: ab.softmax([1.0, 2.0]), TypeError, "S: expected an array, got list"),
    (lambda: ab.softmax(np.ma.ones((2, 3))), TypeError, "S: expected an array, got MaskedArray"),
    (lambda: ab.softmax(np.ndarray), TypeError, "S: expected an array, got the class ndarray itself"),
    (lambda: ab.softmax(np.ones(3, int)), TypeError, "S: expected a floating dtype, got int64"),
    (lambda: ab.softmax(S, axis=3), ValueError, "axis: expected an axis of S, of shape (2, 3, 5), got 3"),
    (lambda: ab.softmax(S, axis=-4), ValueError, "axis: expected an axis of S, of shape (2, 3, 5), got -4"),
    (lambda: ab.softmax(S, axis=1.0), TypeError, "axis: expected an integer, got 1.0"),
    (lambda: ab.logsumexp([1.0]), TypeError, "S: expected an array, got list"),
    (lambda: ab.logsumexp(S, axis=3), ValueError, "axis: expected an axis of S, of shape (2, 3, 5), got 3"),
    (lambda: ab.softmax_jacobian([1.0]), TypeError, "P: expected an array, got list"),
    (lambda: ab.softmax_jacobian(ones()), ValueError, "axis: expected an axis of P, of shape (), got -1"),
    (lambda: ab.softmax_vjp([1.0], P), TypeError, "dP: expected an array, got list"),
    (lambda: ab.softmax_vjp(S, np.float32(P)), TypeError, "P: expected dtype float64 like dP, got float32"),
    (lambda: ab.softmax_vjp(S, P, axis=3), ValueError, "axis: expected an axis of P, of shape (2, 3, 5), got 3"),
    (lambda: ab.softmax_jvp(None, P), TypeError, "tS: expected an array, got NoneType"),
    (lambda: ab.softmax_jvp(ones(3, 5), P), ValueError, "tS: expected shape (2, 3, 5), got (3, 5)"),
    (lambda: ab.logsumexp_vjp(ones(2, 3), P, axis=0), ValueError, "dL: expected shape (3, 5), got (2, 3)"),
    (lambda: ab.logsumexp_vjp(1.0, P), TypeError, "dL: expected an array, got float"),
    (lambda: ab.logsumexp_jvp(ones(2, 3), P), ValueError, "tS: expected shape (2, 3, 5), got (2, 3)"),
    (lambda: ab.logsumexp_jvp(None, P), TypeError, "tS: expected an array, got NoneType"),
]  # fmt: skip

TABLE["linear"] = [
    (lambda: ab.linear([[1.0]], W), TypeError, "X: expected an array, got list"),
    (lambda: ab.linear(X, np.float32(W)), TypeError, "W: expected dtype float64 like X, got float32"),
    (lambda: ab.linear(X, ones(2, 5, 7)), ValueError, "W: expected two axes (d_in, d_out), got shape (2, 5, 7)"),
    (lambda: ab.linear(X, W.T), ValueError, "X: expected a last axis of 7, the rows of W, got shape (2, 3, 5)"),
    (lambda: ab.linear(X, W, ones(1, 7)), ValueError, "b: expected shape (7,), the columns of W, got shape (1, 7)"),
    (lambda: ab.linear_vjp(None, X, W), TypeError, "dY: expected an array, got NoneType"),
    (lambda: ab.linear_vjp(ones(3, 7), X, W), ValueError, "dY: expected shape (2, 3, 7), got (3, 7)"),
    (lambda: ab.linear_jvp(None, W, b, X, W), TypeError, "tX: expected an array, got NoneType"),
    (lambda: ab.linear_jvp(X, W, ones(5), X, W), ValueError, "tb: expected shape (7,), the columns of W, got …"),
]  # fmt: skip

TABLE["shapes"] = [
    (lambda: attention([1.0], K, V), TypeError, "Q: expected an array, got list"),
    (lambda: attention(Q, K, None), TypeError, "V: expected an array, got NoneType"),
    (lambda: attention(Q, K, np.float32(V)), TypeError, "V: expected dtype float64 like Q, got float32"),
    (lambda: attention(ones(11), K, V), ValueError,
     "Q: expected at least two axes (..., tokens, width), got shape (11,)"),
    (lambda: attention(ones(5, 0), ones(7, 0), V), ValueError,
     "Q: expected a head width of at least 1, got shape (5, 0)"),
    (lambda: attention(Q, V, V), ValueError, "K: expected the head width of Q, 11, got shape (2, 3, 7, 13)"),
    (lambda: attention(Q, K, ones(5, 13)), ValueError, "V: expected one row for each of the 7 keys, got shape (5, 13)"),
    (lambda: attention(Q, ones(5, 3, 7, 11), V), ValueError,
     "K: expected leading axes …Q, (2, 6, 5, 11), …(5, 3, 7, 11)"),
    (lambda: attention(Q, ones(2, 4, 7, 11), V), ValueError, "K: …a head count that divides …got shape (2, 4, 7, 11)"),
    (lambda: attention(Q, K, ones(2, 4, 7, 13)), ValueError, "V: …a head count that divides …got shape (2, 4, 7, 13)"),
]  # fmt: skip

TABLE["options"] = [
    (lambda: attention(Q, K, V, mask=[True]), TypeError, "mask: expected a bool array (True = may attend), got list"),
    (lambda: attention(Q, K, V, mask=ones(5, 7)), TypeError, "mask: expected a bool array …as bias, got dtype float64"),
    (lambda: attention(Q, K, V, mask=ones(7, 5) > 0), ValueError,
     "mask: expected a shape that broadcasts …got shape (7, 5)"),
    (lambda: attention(Q, K, V, bias=ones(5, 7, dtype="float32")), TypeError, "bias: expected dtype …got float32"),
    (lambda: attention(Q, K, V, bias=ones(7, 5)), ValueError, "bias: expected a shape that broadcasts …got shape …5)"),
    (lambda: attention(Q, K, V, causal="left"), ValueError,
     "causal: expected one of False, True, 'top-left', 'bottom-right', got 'left'"),
    (lambda: attention(Q, K, V, causal=1), ValueError, "causal: expected one of …got 1"),
    (lambda: attention(Q, K, V, scale=float("nan")), ValueError, "scale: expected a finite number, got nan"),
    (lambda: attention(Q, K, V, scale=10**400), ValueError, "scale: expected a finite number, got inf"),
    (lambda: attention(Q, K, V, scale="1"), TypeError, "scale: expected a real number or None, got str"),
    (lambda: attention(Q, K, V, scale=True), TypeError, "scale: expected a real number or None, got bool"),
    (lambda: attention(Q, K, V, ops=Scale(2.0)), TypeError, "ops: expected a sequence of ops, got Scale"),
    (lambda: attention(Q, K, V, ops=[Gate]), TypeError,
     "ops: expected objects of classes derived from attnbook.ops.Op, got the class Gate itself"),
    (lambda: attention(Q, K, V, ops=[Bias(ones(5, 7), fixed=1)]), TypeError,
     "ops, Bias, fixed: expected True or False, got 1"),
    (lambda: attention(Q, K, V, ops=[Bias([0.0], fixed=True)]), TypeError, "ops, Bias: expected an array, got list"),
    (lambda: attention(Q, K, V, ops=[Bias(ones(7) > 0, fixed=True)]), TypeError,
     "ops, Bias: expected float64 like Q, or a dtype that is widened to the same, got bool"),
    (lambda: attention(Q, K, V, ops=[LogitScale(ones(6, dtype="float32"))]), TypeError,
     "ops, LogitScale: expected dtype float64 like Q, got float32"),
    (lambda: attention(Q, K, V, ops=[LogitScale(torch.ones(6))]), TypeError,
     "ops, LogitScale: expected a numpy array like Q, got a torch array"),
    (lambda: attention(Q, K, V, ops=[Sink(ones(6, 1))]), ValueError, "ops, Sink: …(2, 6), got shape (6, 1)"),
    (lambda: attention(Q, K, V, ops=[Segments(np.arange(4), np.arange(7))]), ValueError,
     "ops, Segments, q_ids: expected 5 numbers in the last axis, got shape (4,)"),
    (lambda: attention(Q, K, V, ops=[Segments(np.arange(5), ones(7))]), TypeError,
     "ops, Segments, k_ids: expected integers, got float64"),
    (lambda: attention(Q, K, V, ops=[Segments(np.zeros((3, 5), int), np.arange(7))]), ValueError,
     "ops, Segments, q_ids: …the leading axes of the scores, (2, 6), got shape (3, 5)"),
    (lambda: attention(Q, K, V, ops=[Segments(np.arange(5), np.arange(7), np.arange(5))]), TypeError,
     "ops, Segments, places: expected those of queries and of keys, or none, got one of them"),
    (lambda: attention(Q, K, V, ops=[BlockMask(ones(3, 3) > 0, 2)]), ValueError,
     "ops, BlockMask: expected 3 × 4 blocks of (2, 2), got shape (3, 3)"),
    (lambda: attention(Q, K, V, ops=[BlockMask(ones(3, 4), 2)]), TypeError, "ops, BlockMask: expected a bool array …"),
    (lambda: attention(Q, K, V, ops=[BlockMask(ones(5, 3, 4) > 0, 2)]), ValueError, "ops, BlockMask: expected …"),
    (lambda: attention(Q[0, 0], K[0, 0], V[0, 0], ops=[Dropout(0.1, np.arange(5))]), ValueError,
     "ops, Dropout: expected seeds for the first of the leading axes (), got shape (5,)"),
    (lambda: attention(Q, K, V, method="flash"), ValueError, "method: expected one of 'auto', 'dense', …got 'flash'"),
    (lambda: attention(Q, K, V, method=Way("flash")), ValueError, "method, spine: expected one of …, got 'flash'"),
    (lambda: attention(Q, K, V, method=Way("tiled", (2, 3))), ValueError,
     "method, tiles: expected rows, cols of at least 1, got (2, 3)"),
    *((lambda spine=spine: attention(Q, K, V, method=Way(spine, tiled.Tiles(2, 3))), TypeError,
       f"method, tiles: expected None for method '{spine}', got Tiles(rows=2, cols=3)")
      for spine in ("dense", "numpy_dense")),
    (lambda: attention(Q, K, V, method=Way("numpy_tiled", tiled.Tiles(2, 3))), ValueError, "method, tiles: expected …"),
    *((lambda spine=spine: attention(*map(torch.tensor, (Q, K, V)), method=Way(spine)), TypeError,
       f"Q: expected a NumPy array for method '{spine}', got a torch array")
      for spine in ("numpy_dense", "numpy_tiled")),
]  # fmt: skip

MEET = "expected 'top-left' or 'bottom-right', as 5 queries meet 7 keys without causal"
KEYS = "a whole number of keys, at least 0, or None"
WHOLE = "a whole number, at least"
LENGTHS = "numbers on one axis that begin with 0 and never fall"
SIZE = "a number of tokens, at least 1, or a pair of them"
TABLE["ops"] = [
    (lambda: Window(1, 1, "top-left", -1), ValueError, "global_tokens: expected a whole number of keys, …, got -1"),
    (lambda: ALiBi(ones(6), "left"), ValueError, "corner: expected 'top-left', 'bottom-right' or None, got 'left'"),
    (lambda: RelativeBias(ones(3), 32), TypeError, "buckets: expected T5Buckets or None, got int"),
    (lambda: T5Buckets(0), ValueError, f"num_buckets: expected {WHOLE} 4, got 0"),
    (lambda: T5Buckets(7), ValueError, "num_buckets: expected an even number, half of it a direction, got 7"),
    (lambda: T5Buckets(1, 128, False), ValueError, f"num_buckets: expected {WHOLE} 2, got 1"),
    (lambda: T5Buckets(32, 0), ValueError, f"max_distance: expected {WHOLE} 1, got 0"),
    (lambda: T5Buckets(32, 8), ValueError, "max_distance: expected more than the 8 distances …, got 8"),
    (lambda: T5Buckets(32, 128, 1), TypeError, "bidirectional: expected True or False, got 1"),
    (lambda: alibi_slopes(0), ValueError, "h: expected a whole number of heads, at least 1, got 0"),
    (lambda: LogitScale(2.0), TypeError, "t: expected an array, a number a head, got 2.0"),
    *((lambda op=op: attention(Q, K, V, ops=[op]), ValueError, f"ops, {type(op).__name__}: expected {message}")
      for op, message in (
          (ALiBi(ones(2)), "a shape that broadcasts to the leading axes …, (2, 6), got shape (2,)"),
          (RelativeBias(ones(2, 3), None, "top-left"), "a shape that …, (2, 6), got (2,), of shape (2, 3)"),
          (RelativeBias(ones(), None, "top-left"), "1 or more axes, got shape ()"),
          (RelativeBias(ones(6, 4), None, "top-left"), "an odd number of entries, 2R + 1, got shape (6, 4)"),
          (RelativeBias(ones(6, 9), T5Buckets(), "top-left"), "32 entries, one a bucket, got shape (6, 9)"),
      )),
    (lambda: Window(-1), ValueError, f"left: expected {KEYS}, got -1"),
    (lambda: Window(0, True), ValueError, f"right: expected {KEYS}, got True"),
    *((lambda op=op: attention(Q, K, V, ops=[op]), ValueError, f"ops, {type(op).__name__}, corner: {MEET}, got None")
      for op in (Window(0, 0), ALiBi(ones(6)), RelativeBias(ones(6, 3)))),
    *((lambda cap=cap: Softcap(cap), ValueError, f"cap: expected a positive number, got {cap!r}")
      for cap in (0.0, -1, math.inf, math.nan, "2", True)),
    (lambda: Softcap(10**400), ValueError, "cap: expected a positive number, got 1000…"),
    (lambda: Scale(True), ValueError, "factor: expected a finite number, or an array, got True"),
    (lambda: Scale(float("nan")), ValueError, "factor: expected a finite number, or an array, got nan"),
    (lambda: Scale("2"), ValueError, "factor: expected a finite number, or an array, got '2'"),
    (lambda: Segments.packed([0, 5]), TypeError, "cu_seqlens_q: expected an array of integers, got list"),
    (lambda: Segments.packed(ones(2)), TypeError, "cu_seqlens_q: expected an array of integers, got float64"),
    (lambda: Segments.packed(np.array(5)), ValueError, f"cu_seqlens_q: expected {LENGTHS}, got 5"),
    (lambda: Segments.packed(np.array([], int)), ValueError, f"cu_seqlens_q: expected {LENGTHS}, got []"),
    (lambda: Segments.packed(np.array([1, 5])), ValueError, f"cu_seqlens_q: expected {LENGTHS}, got [1 5]"),
    (lambda: Segments.packed(np.array([0, 5, 3])), ValueError, f"cu_seqlens_q: expected {LENGTHS}, got [0 5 3]"),
    (lambda: Segments.packed(np.array([0, 5]), np.array([0, 5, 7])), ValueError,
     "cu_seqlens_k: expected 2 numbers, as cu_seqlens_q, got 3"),
    (lambda: Segments.packed(np.array([0, 5]), causal="left"), ValueError, "causal: expected one of …got 'left'"),
    *((lambda size=size: BlockMask(ones(1, 1) > 0, size), ValueError, f"size: expected {SIZE}, got {size!r}")
      for size in (0, 1.0, True, (2, 0), (2, 2, 2), (), None)),
    *((lambda p=p: Dropout(p), ValueError, f"p: expected a probability in [0, 1), got {p!r}")
      for p in (1.0, -0.1, math.nan, True, "0.1")),
    (lambda: Dropout(0.1, seed=None), TypeError, "seed: expected an integer, got None"),
    (lambda: Dropout(0.1, seed=True), TypeError, "seed: expected an integer, got True"),
]  # fmt: skip

TABLE["threads"] = [
    (lambda: ab.set_num_threads(0), ValueError, "n: expected at least 1 thread, got 0"),
    (lambda: ab.set_num_threads(1.5), TypeError, "n: expected a whole number of threads, got 1.5"),
    (lambda: ab.set_num_threads(True), TypeError, "n: expected a whole number of threads, got True"),
    (lambda: ab.get_num_threads(), ValueError, "ATTNBOOK_NUM_THREADS: expected at least 1 thread, got 0"),
]  # fmt: skip

TABLE["derivatives"] = [
    (lambda: vjp(np.float32(dO), RES), TypeError, "dO: expected dtype float64 like Q, got float32"),
    (lambda: vjp(Q, RES), ValueError, "dO: expected shape (2, 6, 5, 13), got (2, 6, 5, 11)"),
    (lambda: vjp(dO, None), TypeError, "res: expected the residuals that attention returned, got NoneType"),
    (lambda: vjp(dO, RES, np.float32(dL)), TypeError, "dL: expected dtype float64 like res.L, got float32"),
    (lambda: vjp(dO, RES, dL[:, :1]), ValueError, "dL: expected shape (2, 6, 5), got (2, 1, 5)"),
    (lambda: jvp(None, K, V, RES), TypeError, "tQ: expected an array, got NoneType"),
    (lambda: jvp(Q[0], K, V, RES), ValueError, "tQ: expected shape (2, 6, 5, 11), got (6, 5, 11)"),
    (lambda: jvp(Q, K, V, RES, tbias=ones(7, 5)), ValueError, "tbias: expected shape (5, 7), got (7, 5)"),
    (lambda: jvp(Q, K, V, BARE, tbias=ones(5, 7)), ValueError,
     "tbias: expected None, because attention had no bias, got an array"),
    (lambda: jvp(Q, K, V, RES, tops=()), ValueError, "tops: expected 1 entries, one for each of ops, got 0"),
    (lambda: jvp(Q, K, V, OF_OPS, tops=([0.0], None)), TypeError, "tops: expected an array, got list"),
    (lambda: jvp(Q, K, V, OF_OPS, tops=(ones(7), None)), ValueError, "tops: expected shape (5, 7), got (7,)"),
    (lambda: jvp(Q, K, V, OF_OPS, tops=(np.float32(ones(5, 7)), None)), TypeError, "tops: expected dtype …got float32"),
    (lambda: jvp(Q, K, V, OF_OPS, tops=(None, ones(5, 7))), ValueError,
     "tops: expected None for Softcap, which has no parameter, got an array"),
    (lambda: jvp(Q, K, V, RES, tops=0.0), TypeError, "tops: expected a tuple or a list, got float"),
    (lambda: jvp(Q, K, V, BARE, with_L=1), TypeError, "with_L: expected True or False, got 1"),
    (lambda: hvp(Q, K, V, dO, BARE, with_O=None), TypeError, "with_O: expected True or False, got None"),
    (lambda: hvp(Q, K, V, dO, RES, tdO=dO[0]), ValueError, "tdO: expected shape (2, 6, 5, 13), got (6, 5, 13)"),
]  # fmt: skip

TABLE["merge"] = [
    (lambda: ab.merge(dO, dL, np.float32(dO), dL), TypeError, "O2: expected dtype float64 like O1, got float32"),
    (lambda: ab.merge(np.float16(dO), np.float16(dL), np.float16(dO), np.float16(dL)), TypeError,
     "L1: expected the dtype of O1, or float32 where that has 16 bits, got float16"),
    (lambda: ab.merge(dO, dL, dO[..., :4, :], dL[..., :4]), ValueError, "O2: expected shape (2, 6, …got (2, 6, 4, 13)"),
    (lambda: ab.merge(dO, dL[..., :4], dO, dL), ValueError, "L1: expected shape (2, 6, 5), got (2, 6, 4)"),
    (lambda: ab.merge_vjp(dO[0], dL, dO, dL, dO, dL), ValueError, "dO: expected shape (2, 6, 5, 13), got (6, 5, 13)"),
    (lambda: ab.merge_vjp(dO, dL[0], dO, dL, dO, dL), ValueError, "dL: expected shape (2, 6, 5), got (6, 5)"),
    (lambda: ab.merge_vjp(dO, 1.0, dO, dL, dO, dL), TypeError, "dL: expected an array, got float"),
    *((lambda k=k: ab.top_k_mask(Q, K, k), ValueError, f"k: expected a whole number of keys, at least 1, got {k!r}")
      for k in (0, 1.0, True)),
    (lambda: ab.top_k_mask(Q, K[..., :3], 2), ValueError, "K: expected the head width of Q, 11, got …"),
    (lambda: ab.top_k_mask(Q, torch.tensor(K), 2), TypeError, "K: expected a numpy array like Q, got a torch array"),
    (lambda: ab.merge_jvp(dO, dL, dO, dL[0], dO, dL, dO, dL), ValueError, "tL2: expected shape (2, 6, 5), got (6, 5)"),
    (lambda: ab.merge_jvp(dO, None, dO, dL, dO, dL, dO, dL), TypeError, "tL1: expected an array, got NoneType"),
]  # fmt: skip

TABLE["norm"] = [
    (lambda: ab.rms_norm(ones(3, 0)), ValueError, "X: expected a last axis of at least 1, got shape (3, 0)"),
    (lambda: ab.l2_norm(np.float64(3.0)), ValueError, "X: expected a last axis of at least 1, got shape ()"),
    (lambda: ab.l2_norm(ones(3, 5), ones(4)), ValueError, "gain: expected a shape that broadcasts to …got shape (4,)"),
    (lambda: ab.rms_norm(ones(3, 5), ones(5, dtype="float32")), TypeError, "gain: expected dtype float64 …got float32"),
    (lambda: ab.rms_norm(ones(3, 5), eps=-1.0), ValueError, "eps: expected a finite number of at least 0, got -1.0"),
    (lambda: ab.rms_norm_vjp(ones(5), ones(3, 5)), ValueError, "dY: expected shape (3, 5), got (5,)"),
    (lambda: ab.l2_norm_vjp(None, ones(3, 5)), TypeError, "dY: expected an array, got NoneType"),
    (lambda: ab.rms_norm_jvp(ones(5), None, ones(3, 5)), ValueError, "tX: expected shape (3, 5), got (5,)"),
    (lambda: ab.l2_norm([3.0, 4.0]), TypeError, "X: expected an array, got list"),
    (lambda: ab.rms_norm_vjp([1.0], ones(3, 5)), TypeError, "dY: expected an array, got list"),
    (lambda: ab.l2_norm_vjp(ones(3), ones(3, 5)), ValueError, "dY: expected shape (3, 5), got (3,)"),
    (lambda: ab.rms_norm_jvp(None, None, ones(3, 5)), TypeError, "tX: expected an array, got NoneType"),
    (lambda: ab.l2_norm_jvp([1.0], None, ones(3, 5)), TypeError, "tX: expected an array, got list"),
    (lambda: ab.rms_norm_jvp(ones(3, 5), ones(5), ones(3, 5)), ValueError,
     "tgain: expected None, because there is no gain, got an array"),
    (lambda: ab.l2_norm_jvp(ones(3, 5), ones(1), ones(3, 5), ones(5)), ValueError, "tgain: expected shape …got (1,)"),
]  # fmt: skip

AT = np.arange(5)
TABLE["rotary"] = [
    (lambda: ab.rotary(None), TypeError, "X: expected an array, got NoneType"),
    (lambda: ab.rotary(ones(5, 11)), ValueError,
     "dims: expected an even number of columns, of the 11 that X has, got 11, its width"),
    *((lambda dims=dims: ab.rotary(ones(5, 11), dims=dims), ValueError,
       f"dims: expected an even number of columns, …got {dims}") for dims in (5, 12, 0)),
    (lambda: ab.rotary(ones(5, 4), [0, 1, 2, 3, 4]), TypeError, "positions: expected an array, got list"),
    (lambda: ab.rotary(ones(5, 4), AT > 0), TypeError, "positions: expected integers or floats, got bool"),
    (lambda: ab.rotary(ones(2, 5, 4), AT[:4]), ValueError,
     "positions: expected a position for each of the 5 tokens, and axes that broadcast to (2, 5), got shape (4,)"),
    (lambda: ab.rotary(ones(5, 4), base=0.0), ValueError, "base: expected a positive finite number, got 0.0"),
    (lambda: ab.rotary(ones(5, 4), base=1), ValueError, "base: expected a number over 1, got 1"),
    (lambda: ab.rotary(ones(5, 4), np.array([0, 1, np.nan, 3, 4])), ValueError,
     "positions: expected finite numbers, got nan"),
    (lambda: ab.rotary(ones(5, 4), layout="neox"), ValueError, "layout: expected one of 'interleaved', …got 'neox'"),
    (lambda: ab.rotary(ones(5, 4), scaling=4.0), TypeError,
     "scaling: expected Linear, YaRN, Llama3, or a callable (θ, base), got 4.0"),
    (lambda: ab.rotary(ones(5, 4), scaling=lambda theta, base: theta), TypeError, "scaling: expected a pair, …ndarray"),
    (lambda: ab.rotary(ones(5, 4), scaling=lambda theta, base: (theta[:1], 1.0)), ValueError,
     "scaling: expected a pair, the 2 angles and a temperature, to come of it, got θ of shape (1,)"),
    (lambda: ab.rotary(ones(5, 4), scaling=lambda theta, base: (theta, None)), ValueError,
     "scaling, temperature: expected a positive finite number, got None"),
    (lambda: ab.rotary(ones(5, 4), scaling=lambda theta, base: (np.array([1, np.inf]), 1.0)), ValueError,
     "scaling: expected finite angles to come of it, got inf"),
    (lambda: YaRN(4.0, 64, whole=1), TypeError, "whole: expected True or False, got 1"),
    (lambda: YaRN(4.0, 64, 1.0, 32.0), ValueError, "fast − slow: expected a positive finite number, got -31.0"),
    (lambda: YaRN(4.0, float("nan")), ValueError, "length: expected a positive finite number, got nan"),
    (lambda: Linear(0.0), ValueError, "factor: expected a positive finite number, got 0.0"),
    (lambda: YaRN(4.0, 64, temperature=0.0), ValueError, "temperature: expected a positive finite number, got 0.0"),
    (lambda: Llama3(4.0, 64, slow=4.0), ValueError, "fast − slow: expected a positive finite number, got 0.0"),
    (lambda: ab.rotary_vjp(None), TypeError, "dY: expected an array, got NoneType"),
    (lambda: ab.rotary_vjp(ones(5, 4), AT[:3]), ValueError, "positions: …5 tokens, …got shape (3,)"),
]  # fmt: skip

TABLE["multi-head"] = [
    (lambda: mha(None, PARAMS), TypeError, "X: expected an array, got NoneType"),
    (lambda: mha(ones(5), PARAMS), ValueError, "X: expected at least two axes (..., tokens, width), got shape (5,)"),
    (lambda: mha(X, tuple(PARAMS)), TypeError, "p: expected a MultiHeadParams, got tuple"),
    (lambda: mha(X, PARAMS._replace(W_Q=ones(5, 6, dtype="float32"))), TypeError, "W_Q: expected dtype …got float32"),
    (lambda: mha(X, PARAMS._replace(W_Q=ones(6))), ValueError,
     "W_Q: expected two axes (rows, columns), got shape (6,)"),
    (lambda: mha(X, PARAMS._replace(W_Q=ones(6, 5))), ValueError,
     "W_Q: expected 5 rows, the width of X, got shape (6, 5)"),
    (lambda: mha(X, PARAMS, memory=ones(2, 7, 11)), ValueError, "W_K: expected 11 rows, the width …got shape (5, 6)"),
    (lambda: mha(X, PARAMS, num_heads=4), ValueError,
     "W_Q: expected a number of columns that its 4 heads divide, got shape (5, 6)"),
    (lambda: mha(X, PARAMS._replace(W_V=ones(5, 0))), ValueError, "W_V: expected at least one …got shape (5, 0)"),
    (lambda: mha(X, PARAMS, num_kv_heads=1), ValueError, "W_K: expected 3 columns, got shape (5, 6)"),
    (lambda: mha(X, PARAMS._replace(W_O=ones(8, 13))), ValueError, "W_O: expected 22 rows, got shape (8, 13)"),
    (lambda: mha(X, PARAMS._replace(b_O=ones(11))), ValueError, "b_O: expected shape (13,), got (11,)"),
    (lambda: mha(X, PARAMS, memory=ones(7, 5)), ValueError,
     "memory: expected the leading axes of X, (2,), got shape (7, 5)"),
    (lambda: mha(X[0], PARAMS, memory=ones(5)), ValueError, "memory: expected at least two axes …, got shape (5,)"),
    (lambda: mha(X, PARAMS, num_heads=2.0), TypeError, "num_heads: expected an integer, got float"),
    (lambda: mha(X, PARAMS, num_heads=0), ValueError, "num_heads: expected a number of heads of at least 1, got 0"),
    (lambda: mha(X, PARAMS, num_kv_heads=0), ValueError, "num_kv_heads: expected a number of heads …, got 0"),
    (lambda: mha(X, PARAMS, num_kv_heads=3), ValueError, "num_kv_heads: expected a divisor of num_heads, 2, got 3"),
    (lambda: mha(X, PARAMS, qk_norm="layer"), ValueError, "qk_norm, kind: expected one of 'rms', 'l2', got 'layer'"),
    (lambda: mha(X, PARAMS, qk_norm=True), TypeError, "qk_norm: expected a QKNorm, got bool"),
    (lambda: mha(X, PARAMS, qk_norm=ab.QKNorm(ones(6))), ValueError, "qk_norm, g_Q: expected shape (3,), got (6,)"),
    (lambda: mha(X, PARAMS, qk_norm=ab.QKNorm(None, 1.0)), TypeError, "qk_norm, g_K: expected an array, got float"),
    (lambda: mha(X, PARAMS, rotary=True), TypeError, "rotary: expected a Rotary, got bool"),
    (lambda: mha(X, PARAMS, rotary=ab.Rotary()), ValueError, "dims: expected an even number of …got 3, its width"),
    (lambda: mha(X, PARAMS, memory=ones(2, 7, 5), rotary=ab.Rotary(None, AT, dims=2)), ValueError,
     "rotary, k_positions: expected a position for each of the 7 tokens, …broadcast to (2, 7), got shape (5,)"),
    (lambda: mha(X, PARAMS, gate=ones(5, 2)), TypeError, "gate: expected a Gate, got ndarray"),
    (lambda: mha(X, PARAMS, gate=ab.Gate(ones(5, 6))), ValueError,
     "gate, W: expected 5 rows, the width of X, and 2 columns, one a head, or 22, one …columns, got shape (5, 6)"),
    (lambda: mha(X, PARAMS, gate=ab.Gate(ones(5, 2), ones(1))), ValueError, "gate, b: expected shape (2,), got (1,)"),
    (lambda: ab.multi_head_attention_vjp(ones(2, 3, 13, dtype="float32"), MULTI), TypeError, "dY: expected …"),
    (lambda: ab.multi_head_attention_vjp(X, MULTI), ValueError, "dY: expected shape (2, 3, 13), got (2, 3, 5)"),
    (lambda: ab.multi_head_attention_vjp(X, RES), TypeError, "res: …that multi_head_attention returned, got Residuals"),
]  # fmt: skip

TABLE["recurrent"] = [
    (lambda: linear_attention(q, ones(2, 3, 7, 11), v), ValueError, "V: expected one row for each of the 7 …got …"),
    (lambda: linear_attention(q, K, V), ValueError, "K: expected a key for each of the 5 queries, as causal, got …"),
    (lambda: linear_attention(q, k, v, causal="top-left"), ValueError, "causal: expected one of False, …got 'top…"),
    (lambda: linear_attention(q, k, v, normalize=1), ValueError, "normalize: expected one of False, True, got 1"),
    (lambda: ab.linear_attention_jvp(q, k, v, LINEAR_RES, with_state=1), TypeError, "with_state: expected True …got 1"),
    (lambda: ab.delta_rule_jvp(q, k, v, beta, DELTA_RES, with_state="yes"), TypeError, "with_state: expected …"),
    (lambda: linear_attention(q, k, v, feature="elu"), ValueError, "feature: expected one of 'elu+1', … got 'elu'"),
    (lambda: linear_attention(q, k, v, gate=-0.1), TypeError, "gate: expected an array, got float"),
    (lambda: linear_attention(q, k, v, gate=ones(6)), ValueError, "gate: expected a shape that …got shape (6,)"),
    (lambda: linear_attention(q, k, v, gate=ones(5), causal=False), ValueError,
     "gate: expected None without causal: there are no steps to decay over, got an array"),
    *((lambda chunk=chunk: linear_attention(q, k, v, chunk=chunk), ValueError,
       f"chunk: expected a whole number of tokens, at least 1, or None for all, got {chunk!r}")
      for chunk in (0, 2.0, True)),
    (lambda: linear_attention(q, k, v, state=ones(2, 6, 11, 13)), ValueError, "state: expected …"),
    (lambda: linear_attention(*(np.float16(T) for T in (q, k, v)), state=ones(11, 14, dtype="float16")), TypeError,
     "state: expected the dtype of Q, or float32 where that has 16 bits, got float16"),
    (lambda: delta_rule(q, k, v, np.float32(beta)), TypeError, "beta: expected dtype float64 like Q, got float32"),
    (lambda: delta_rule(q, k, v, ones(2, 6, 5, 1)), ValueError, "beta: expected a shape that …got shape (2, 6, 5, 1)"),
    (lambda: delta_rule(q, k, v, beta, state=ones(2, 6, 13, 11)), ValueError, "state: expected …"),
    (lambda: ab.linear_attention_vjp(dO, RES), TypeError, "res: …of linear_attention or delta_rule, got Residuals"),
    (lambda: ab.linear_attention_vjp(dO[..., 1:], LINEAR_RES), ValueError, "dO: expected shape (2, 6, 5, 13), got …"),
    (lambda: ab.delta_rule_vjp(dO, DELTA_RES, ones(11, 13)), ValueError, "dstate: expected shape (2, 6, 11, …got …"),
    (lambda: ab.delta_rule_vjp(None, DELTA_RES), TypeError, "dO: expected an array, got NoneType"),
    (lambda: ab.linear_attention_jvp(q, k, q, LINEAR_RES), ValueError, "tV: expected shape (2, 3, 5, 13), got …"),
    (lambda: ab.linear_attention_jvp(q, k, v, LINEAR_RES, tgate=beta), ValueError,
     "tgate: expected None, as there was no gate, got an array"),
    (lambda: ab.delta_rule_jvp(q, k, v, beta, DELTA_RES, tstate=ones(11, 13)), ValueError, "tstate: expected …"),
]  # fmt: skip

TABLE["sigmoid"] = [
    (lambda: sigmoid_attention(Q, K[..., :5], V), ValueError, "K: expected the head width of Q, 11, got shape …"),
    (lambda: sigmoid_attention(Q, K, V, method="fused"), ValueError, "method: expected one of 'auto', 'dense', ……"),
    (lambda: sigmoid_attention(Q, K, V, mask=ones(5, 7)), TypeError, "mask: expected a bool array …"),
    (lambda: sigmoid_attention(Q, K, V, ops=[Sink(ones(6))]), ValueError,
     "ops, Sink: expected an op on the scores or the weights: no sum of weights is there to add to, got one on …"),
    (lambda: ab.sigmoid_attention_vjp(dO, RES), TypeError, "res: …that sigmoid_attention returned, got Residuals"),
    (lambda: ab.sigmoid_attention_vjp(dO[..., :2], SIGMOID_RES), ValueError, "dO: expected shape (2, 6, 5, 13), got …"),
    (lambda: ab.sigmoid_attention_jvp(Q, K, K, SIGMOID_RES), ValueError, "tV: expected shape (2, 3, 7, 13), got …"),
    (lambda: ab.sigmoid_attention_jvp(Q, K, V, BARE), TypeError, "res: …that sigmoid_attention …got Residuals"),
]  # fmt: skip

of_latent = layers.LatentParams(
    *(ones(*s) for s in ((5, 7), (7, 6), (7, 8), (5, 11), (11, 6), (11, 22), (5, 4), (22, 13), (7,), (11,)))
)
_, LATENT = layers.latent_attention(X, of_latent, num_heads=2)


def mla(X, p=of_latent, num_heads=2, **options):
    return layers.latent_attention(X, p, num_heads=num_heads, **options)


LAM = ones(6)
Q2, K2, V2 = ones(2, 6, 5, 12), ones(2, 6, 7, 12), ones(2, 6, 7, 13)
_, DIFFERENTIAL = layers.differential_attention(Q2, K2, V2, LAM)
VECTORS = 4 * (ones(6, 3),)
TALK = ones(2, 3, 5, 11), ones(2, 3, 7, 11), ones(2, 2, 7, 13), ones(3, 4), ones(4, 2)
_, TALKING = layers.talking_heads(*TALK)
TABLE["layers"] = [
    (lambda: mla(X, PARAMS), TypeError, "p: expected a LatentParams, got MultiHeadParams"),
    (lambda: mla(X, num_heads=4), ValueError, "W_UQ: expected …of columns that 4 heads divide, got shape (7, 6)"),
    (lambda: mla(ones(3, 7)), ValueError, "W_DQ: expected shape (7, 7), got (5, 7)"),
    (lambda: mla(X, of_latent._replace(g_KV=ones(5))), ValueError, "g_KV: expected shape (11,), got (5,)"),
    (lambda: mla(X, of_latent._replace(W_KR=ones(5, 3), W_QR=ones(7, 6))), ValueError, "dims: expected …"),
    (lambda: layers.latent_attention_vjp(ones(2, 3, 5), LATENT), ValueError, "dY: expected shape (2, 3, 13), …"),
    (lambda: layers.latent_attention_vjp(X, MULTI), TypeError, "res: …latent_attention …got MultiHeadResiduals"),
    (lambda: layers.differential_attention(ones(2, 6, 5, 11), K2, V2, LAM), ValueError,
     "Q: expected at least two axes (..., tokens, width), and an even width, got shape (2, 6, 5, 11)"),
    (lambda: layers.differential_attention(Q2, K2, V2, 0.8), TypeError, "lam: expected an array, got float"),
    (lambda: layers.differential_attention(Q2, K2, V2, ones(5)), ValueError, "lam: expected a shape …got shape (5,)"),
    (lambda: layers.differential_attention(Q2, K2, V2, LAM, caual=True), TypeError,
     "differential_attention() got an unexpected keyword argument 'caual'"),
    (lambda: layers.differential_lambda(*VECTORS, "a"), ValueError, "init: expected a finite number, got 'a'"),
    (lambda: mla(X, absorbed="no"), TypeError, "absorbed: expected True or False, got 'no'"),
    (lambda: layers.differential_attention_vjp(V2, DIFFERENTIAL), ValueError, "dO: expected shape (2, 6, 5, 13), …"),
    (lambda: layers.differential_attention_vjp(dO, RES), TypeError, "res: …differential_attention …got Residuals"),
    (lambda: layers.differential_attention_jvp(Q2, K2, V2, ones(), DIFFERENTIAL), ValueError, "tlam: expected …got ()"),
    (lambda: layers.differential_attention_jvp(Q2, K2, V2, 0.8, DIFFERENTIAL), TypeError, "tlam: expected …got float"),
    (lambda: layers.differential_lambda(None, *VECTORS[1:], 0.8), TypeError, "q1: expected an array, got NoneType"),
    (lambda: layers.differential_lambda_vjp(1.0, *VECTORS), TypeError, "dlam: expected an array, got float"),
    (lambda: layers.differential_lambda(*VECTORS[:3], ones(3), 0.8), ValueError, "k2: expected shape (6, 3), got (3,)"),
    (lambda: layers.differential_lambda_vjp(ones(3), *VECTORS), ValueError, "dlam: expected shape (6,), got (3,)"),
    (lambda: layers.talking_heads(*TALK[:3], ones(2, 4), TALK[4]), ValueError, "W_S: expected shape (3, …got (2, 4)"),
    (lambda: layers.talking_heads(*TALK[:4], ones(4)), ValueError,
     "W_P: expected two axes (heads, heads), got shape (4,)"),
    (lambda: layers.talking_heads(*TALK[:2], TALK[2][:, :1], *TALK[3:]), ValueError, "V: expected …got (2, 1, 7, 13)"),
    (lambda: layers.talking_heads(*TALK, scale="1"), TypeError, "scale: expected a real number or None, got str"),
    (lambda: layers.talking_heads_vjp(TALK[2], TALKING), ValueError, "dO: expected shape (2, 2, 5, …got (2, 2, 7, 13)"),
    (lambda: layers.talking_heads_vjp(X, RES), TypeError, "res: …that talking_heads returned, got Residuals"),
    (lambda: layers.talking_heads_jvp(*TALK[:4], ones(2), TALKING), ValueError, "tW_P: expected shape (4, …got (2,)"),
    (lambda: layers.talking_heads_jvp(*TALK[:4], None, TALKING), TypeError, "tW_P: expected an array, got NoneType"),
]  # fmt: skip

TABLE["checks"] = [
    (lambda: checks.check_vjp(1.0, S, at=S, cotangent=S), TypeError,
     "f: expected a function of the arrays in at, got float"),
    (lambda: checks.check_vjp(lambda S: S.tolist(), S, at=S, cotangent=S), TypeError, f"{OUTPUT}, got list"),
    (lambda: checks.check_jvp(lambda S: S * 1j, S, at=S, tangents=S), TypeError,
     f"{OUTPUT}, got complex128 in a ndarray"),
    (lambda: checks.check_jvp(None, S, at=S, tangents=S), TypeError, "f: expected a function of the …got NoneType"),
    (lambda: checks.check_adjoint(S, S, [S, S], S), ValueError,
     "tangents: expected 2 arrays, one for each gradient, got 1"),
    (lambda: checks.check_adjoint(S, ones(5), S, S), ValueError,
     "tangent: expected the shape of its cotangent, (2, 3, 5), got (5,)"),
    (lambda: checks.check_adjoint(S, S, None, S), TypeError, "grads: expected float64 NumPy arrays, got NoneType"),
    (lambda: checks.check_vjp(np.sin, S, at=np.float32(S), cotangent=S), TypeError, "at: expected …got float32"),
    (lambda: checks.check_vjp(np.sin, S, at=S, cotangent=ones(5)), ValueError,
     "cotangent: expected the shape of the output, (2, 3, 5), got (5,)"),
    (lambda: checks.check_jvp(np.sin, S, at=S, tangents=[S, S]), ValueError,
     "tangents: expected 1 arrays, one for each input, got 2"),
    (lambda: checks.check_jvp(np.sin, STRICT, at=S, tangents=S), TypeError, "tangent: expected float64 …got Array"),
]  # fmt: skip

ROWS = [
    pytest.param(*row, id=f"{room}-{row[2]}")
    for room, rows in TABLE.items()
    for row in rows
    if torch or "torch" not in row[0].__code__.co_names
]


SPINES = ("dense", "tiled", "numpy_dense", "numpy_tiled", "operands")


@pytest.fixture
def no_work(monkeypatch):
    """All mathematics begins by widening its operands: make that fail."""

    def begins(T):
        raise AssertionError("work began before the arguments were checked")

    monkeypatch.setenv("ATTNBOOK_NUM_THREADS", "0")
    threads._said.cache_clear()
    monkeypatch.setitem(threads._settings, "threads", None)  # a test that was made to fail may have left a number
    rooms = "softmax linear merge rotary norms gates sigmoid multi_head recurrent.passes"
    layers_of = "layers.latent layers.differential layers.talking"
    for module in (*rooms.split(), *layers_of.split(), *(f"spines.{spine}" for spine in SPINES)):
        monkeypatch.setattr(importlib.import_module(f"attnbook.{module}"), "widen", begins)
    monkeypatch.setattr(Scale, "forward", begins)
    monkeypatch.setattr(Bias, "forward", begins)
    yield
    threads._said.cache_clear()


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(("call", "error", "message"), ROWS)
def test_it_is_refused(call, error, message):
    pattern = ".*".join(re.escape(part) for part in message.split("…"))
    with pytest.raises(error, match=f"(?s)^{pattern}$") as raised:
        call()
    assert type(raised.value) is error


SHORT = {"vjp": "attention_vjp", "jvp": "attention_jvp", "hvp": "attention_hvp"}
SHORT |= {"mha": "multi_head_attention", "mla": "latent_attention"}
ELSEWHERE = {"diagnose", "get_num_threads"}  # their own tables stand in test_diagnose and test_workers
FUNCTIONS = {name: getattr(room, name) for room in (layers, ab) for name in room.__all__}
FUNCTIONS = {name: f for name, f in FUNCTIONS.items() if inspect.isfunction(f) and name not in ELSEWHERE}


def refused_by(name):
    """The errors of all rows that call this function."""
    rows = (row for rows in TABLE.values() for row in rows)
    return {error.__name__ for call, error, _ in rows if name in {SHORT.get(n, n) for n in call.__code__.co_names}}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_raises_what_its_docstring_says(name):
    """Every error that a row of the table draws from it, and no other."""
    said = re.search(r"Raises\n-+\n(.+?)(?=\n\n|$)", inspect.getdoc(FUNCTIONS[name]), re.DOTALL)[1]
    assert set(re.findall(r"\w+Error", said)) == refused_by(name)


def test_flags_may_be_those_of_numpy():
    """As what ``mask.any()`` returns; a 1 is refused above, as it may be meant for another argument."""
    for flag in (False, True):
        O, res = ab.attention(Q, K, V, causal=np.bool_(flag))
        assert np.array_equal(O, ab.attention(Q, K, V, causal=flag)[0])
        tO, tL = ab.attention_jvp(Q, K, V, res, with_L=np.True_)
        assert tO.shape[:-1] == tL.shape
    assert ab.linear_attention(q, k, v, normalize=np.False_)[0].shape == O.shape
