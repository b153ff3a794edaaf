"""The battery that ``diagnose`` runs, cases that keep causes apart. Chapter: :doc:`/chapters/in_the_wild`.

Where sizes differ, a wrong transpose has a wrong shape; where they are equal, it runs, and shows its values. A mistake
about a mask shows only where there is one; one about rows, only where there are several; one about tiles, only beyond
the first; one about strides, only where memory is not in order.
"""

from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from attnbook.diagnose.case import Case
from attnbook.diagnose.cases._draw import Draw
from attnbook.diagnose.learn.convention import Convention

LARGE = {"float64": 1500.0, "float32": 1500.0, "float16": 60.0, "bfloat16": 1500.0}
"""Scores whose exponentials overflow, while products of queries and keys do not."""


def battery(seed=0, dtype="float64", convention=None):
    """The cases, simple ones first. The seed draws the numbers and, but for 0, the small sizes too; ``convention`` is
    what the function takes, everything by default. The arrays are read-only, and the same ones each time.
    """
    return list(_battery(seed, dtype, convention or Convention()))


@lru_cache(maxsize=8)
def _battery(seed, dtype, convention):
    draw = Draw(Case, seed, dtype, convention)
    makers = (_simple, _of_sizes, _in_memory, _of_activations, _with_options, _of_ranges, _empty)
    cases = tuple(case for make in makers for case in make(draw, dtype))
    for case in cases:
        for T in (*case.inputs, *case.options.values()):
            if isinstance(T, np.ndarray):
                T.flags.writeable = False
    return cases


def _simple(draw, dtype):
    """Small ones, that keep wrong formulas apart."""
    b, h, n = draw.b, draw.h, 4
    n_q, n_k, d_k, d_v = draw.sizes
    fewer = (n_k, n_q, d_k, d_v)
    case = draw.case
    yield case("plain", ())
    yield case("batch and heads")
    yield case("one query", (h,), of=(1, n_k, d_k, d_v), exactly="n_q")
    yield case("one key", (h,), of=(n_q, 1, d_k, d_v), exactly="n_k")
    yield case("square", (), of=(n, n, n, n))
    yield case("square, with heads", of=(n, n, n, n))
    yield case("all axes equal", (n, n), of=(n, n, n, n))
    yield case("mask", mask=draw.mask("b", 1, "q", "k"))
    yield case("mask of padding", mask=draw.mask("b", 1, 1, "k"))
    yield case("mask with a dead row", mask=draw.mask("h", "q", "k", dead=True))
    yield case("bias", bias=draw.table("b", "h", "q", "k"))
    yield case("bias, broadcast", bias=draw.table("h", 1, "k"))
    yield case("causal, more keys", causal=True, apart=True)
    yield case("causal, fewer keys", of=fewer, causal=True, apart=True)
    yield case("scale", scale=0.7)
    options = {"mask": draw.mask("q", "k"), "bias": draw.table("q", "k"), "causal": True, "scale": 0.7}
    yield case("all options", **options)
    yield case("bottom-right, more keys", optional=True, causal="bottom-right", apart=True)
    yield case("bottom-right, fewer keys", of=fewer, optional=True, causal="bottom-right", apart=True)
    yield case("grouped heads", (b, 2 * h), lead_k=(b, h), optional=True)
    yield case("one key head", lead_k=(b, 1), optional=True)
    yield case("large scores").enlarged(LARGE[dtype])
    yield from (case(other, dtype=other, optional=True) for other in ("float32", "float16") if other != dtype)


def _of_sizes(draw, dtype):
    """Around the edges of tiles of 64 and 128, past the second one, and at widths that are padded; under the corner of
    causal that the function has.
    """
    tiles = partial(draw.case, sized=True)
    causal = True if draw.convention.corner == "top-left" else draw.convention.corner
    yield tiles("64 queries and keys", (2,), of=(64, 64, 64, 64))
    yield tiles("63 queries, 65 keys", (2,), of=(63, 65, 80, 64))
    yield tiles("65 queries, 63 keys, causal", (2,), of=(65, 63, 64, 80), causal=causal)
    yield tiles("a batch of 65, causal", (2, 2), of=(65, 65, 64, 64), causal=causal)
    yield tiles("127 queries, 129 keys", (2,), of=(127, 129, 96, 96))
    yield tiles("129 queries, 127 keys, causal", (2,), of=(129, 127, 64, 64), causal=causal)
    yield tiles("128 queries and keys, causal", (2,), of=(128, 128, 128, 128), causal=causal)
    yield tiles("257 queries, 300 keys", (), of=(257, 300, 64, 64))
    yield tiles("300 queries, 257 keys, causal", (), of=(300, 257, 96, 80), causal=causal)
    yield tiles("width 256", (2,), of=(33, 20, 256, 128))
    case = draw.case("long sums", (), of=(300, 300, 16, 16))
    Q, K, V, dO = case.inputs  # weights alike and terms of one sign: a sum in 16 bits loses the last of them
    yield replace(case, inputs=(Q / 4, K / 4, np.abs(V), np.abs(dO)))


def _in_memory(draw, dtype):
    """Strides: of each input alone, and of all that is read together."""
    for name in ("Q", "K", "V", "dO"):
        yield draw.case(f"{name} transposed in memory", memory={name: "transposed"})
    for kind in ("heads last", "sliced", "reversed"):
        optional = kind == "reversed"
        yield draw.case(f"dO {kind} in memory", memory={"dO": kind}, optional=optional)
        yield draw.case(f"Q, K, V {kind} in memory", memory=dict.fromkeys("QKV", kind), optional=optional)
    yield _repeated(draw.case("dO of one number, expanded in memory", memory={"dO": "expanded"}), dO=(0, 1, 2, 3))
    yield _repeated(draw.case("dO with all rows alike, expanded in memory", memory={"dO": "expanded"}), dO=(2,))
    yield _repeated(draw.case("K, V expanded in memory", memory=dict.fromkeys("KV", "expanded")), K=(0,), V=(0,))


def _of_activations(draw, dtype):
    """As those of trained models: a channel and a token that are far larger than the rest, where no exponential and no
    product overflows yet, also in 16 bits.
    """
    case = draw.case("outliers")
    Q, K, V, dO = (T.copy() for T in case.inputs)
    Q[..., 1] *= 8
    K[..., 1] *= 8
    K[..., 0, :] *= 3
    V[..., 0, :] *= 16
    dO[..., 0, :] *= 16
    yield replace(case, inputs=(Q, K, V, dO)).enlarged(9.0)


def _with_options(draw, dtype):
    """What a function may know, and then must do right. Queries and keys are as many, where corners would differ."""
    n = 9
    _, _, d_k, d_v = draw.sizes
    square = partial(draw.case, of=(n, n, d_k, d_v), optional=True)
    yield square("window", window=(2, 1))
    yield square("window, causal", window=(3, 0), causal=True)
    yield draw.case("window over tiles", (2,), of=(129, 129, 64, 64), optional=True, window=(40, 8))
    yield draw.case("softcap", optional=True, softcap=1.5)
    yield draw.case("softcap and mask", optional=True, softcap=1.5, mask=draw.mask("b", 1, "q", "k"))
    yield draw.case("sink", optional=True, sink=draw.of_heads())
    dead = draw.mask("h", "q", "k", dead=True)
    yield draw.case("sink and a dead row", optional=True, sink=draw.of_heads(), mask=dead)
    slopes = lambda lead, n_q, n_k: 2.0 ** -np.arange(1.0, lead[-1] + 1)  # noqa: E731
    yield square("slopes", slopes=slopes)
    yield square("slopes, causal", slopes=slopes, causal=True)
    yield draw.turning("rotary", n)
    yield draw.case("loss that uses L, the log-sum-exp", optional=True, dL=draw.of_rows())
    yield draw.telling("dropout", n, 0.3)


def _of_ranges(draw, dtype):
    """Scores that are usual in no test and happen in training; in 16 bits less far away.

    Each keeps one thing apart: an exponential of what is masked, a maximum that counts it, one that begins at 0, a
    finite number in place of −∞, padding that weighs something in the backward, 0 · ∞, and −∞ − (−∞).
    """
    _, n_k, d_k, d_v = draw.sizes
    high, low, edge = (50.0, 200.0, 8.0) if "16" in dtype else (1500.0, 2e4, 80.0)
    square = partial(draw.case, of=(n_k, n_k, d_k, d_v))
    last = np.arange(n_k) == n_k - 1
    yield _at(draw.case("a masked score far above", mask=_all_but_the_last), high * last)
    yield _at(draw.case("a masked score far below", mask=_all_but_the_last), -high * last)
    yield _at(square("a later score far above", causal=True), high * last)
    yield _at(draw.case("scores far below 0"), -high)
    yield _at(draw.case("scores far below 0, and a mask", mask=draw.mask("b", 1, "q", "k")), -low)
    yield _at(draw.case("scores about 80" if edge == 80 else "scores about 8"), edge)
    yield _at(draw.case("scores about −80" if edge == 80 else "scores about −8"), -edge)
    yield _at(draw.case("one huge key"), high * (np.arange(n_k) == 1), across=True)
    yield draw.case("bias with −∞", bias=_with_infinities(draw, dead=False))
    yield draw.case("bias with a row of −∞", bias=_with_infinities(draw, dead=True))
    yield draw.case("whole tiles masked", (2,), of=(20, 300, d_k, d_v), mask=_whole_tiles)


def _at(case, scores, across=False):
    """The case with queries and keys turned so that these numbers, one a key, are added to its scores, more or less; a
    key that points ``across`` has as many scores far above as far below.
    """
    Q, K, V, dO = (T.copy() for T in case.inputs)
    sign = np.where(np.arange(Q.shape[-2]) % 2, -1.0, 1.0) if across else 1.0
    Q[..., 0] = sign * (1 + 0.1 * np.abs(Q[..., 0]))
    K[..., 0] = np.resize(scores, K.shape[-2]) * Q.shape[-1] ** 0.5
    return replace(case, inputs=(Q, K, V, dO))


def _all_but_the_last(lead, n_q, n_k):
    return np.broadcast_to(np.arange(n_k) < max(1, n_k - 1), (n_q, n_k)).copy()


def _whole_tiles(lead, n_q, n_k):
    """Every other row has no key in the first tile, of 64 or 128, and the others none in the last."""
    i, j = np.arange(n_q)[:, None], np.arange(n_k)
    return np.where(i % 2, j >= min(130, n_k - 1), j < min(120, n_k))


def _with_infinities(draw, dead):
    def table(*sizes):
        T = draw.table("b", "h", "q", "k")(*sizes)
        T[..., 1::3] = -np.inf
        if dead:
            T[..., 1, :] = -np.inf
        return T

    return table


def _empty(draw, dtype):
    """No queries, whose gradients of K and V are 0, and no keys, where O and dQ are. Last, since kernels die of it."""
    n_q, n_k, d_k, d_v = draw.sizes
    yield draw.case("no queries", of=(0, n_k, d_k, d_v), optional=True, apart=True)
    yield draw.case("no keys", of=(n_q, 0, d_k, d_v), optional=True, apart=True)
    yield draw.case("no queries and no keys", of=(0, 0, d_k, d_v), optional=True)


def _repeated(case, **axes):
    """The case with the inputs that are named repeating their first entry along ``axes``."""
    inputs = dict(zip(("Q", "K", "V", "dO"), case.inputs, strict=True))
    for name, along in axes.items():
        T = inputs[name]
        along = [axis for axis in along if axis < T.ndim]
        first = T[tuple(slice(0, 1) if axis in along else slice(None) for axis in range(T.ndim))]
        inputs[name] = np.broadcast_to(first, T.shape).copy()
    return replace(case, inputs=tuple(inputs.values()))
