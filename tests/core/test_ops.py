"""Each op alone: its derivatives, its tiles, every library. The ops of the table of cases are among them."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from array_api_compat import array_namespace, device
from cases import (
    BLOCKS,
    BLOCKS_OF_HEADS,
    CASES,
    DOCUMENTS,
    OF_A_BATCH,
    PACKED,
    PACKED_CAUSAL,
    PREFIX_LM,
    in_the_library_of,
)
from compare import derivatives_agree, draw, finite, same_everywhere

import attnbook as ab
from attnbook import checks
from attnbook import torch as of_torch
from attnbook.arrays import narrow, widen
from attnbook.ops import (
    ALiBi,
    Bias,
    BlockMask,
    Causal,
    Dropout,
    LogitScale,
    Mask,
    RelativeBias,
    Scale,
    Segments,
    Softcap,
    T5Buckets,
    Tile,
    Window,
    alibi_slopes,
)

ALLOWED = np.random.default_rng(7).random((3, 5, 7)) < 0.7


def mask(M):
    """Makes the op ``Mask`` in the library of the scores."""
    return lambda S: Mask(array_namespace(S).asarray(M, device=device(S)))


# name: how the op is made, from the scores and its parameters; the shapes of these
OPS = {
    "scale": (lambda S: Scale(0.3), []),
    "scale of zero": (lambda S: Scale(0.0), []),
    **{f"ALiBi {shape}": (lambda S, m: ALiBi(m, "top-left"), [shape]) for shape in ((), (1,), (2, 3), (3, 1, 1))},
    **{f"logit scale {shape}": (lambda S, t: LogitScale(t), [shape]) for shape in ((1,), (2, 1), (2, 3, 1, 1))},
    **{
        name: (lambda S, B: Bias(B), [shape])
        for name, shape in {
            "bias": (2, 3, 5, 7),
            "bias for all heads": (2, 1, 5, 7),
            "bias for all keys": (5, 1),
            "bias of one axis": (7,),
            "bias of no axis": (),
        }.items()
    },
    "relative bias for all heads": (lambda S, T: RelativeBias(T, corner="bottom-right"), [(9,)]),
    "mask": (mask(ALLOWED), []),
    "mask for all keys": (mask(ALLOWED[0, :, :1]), []),
    "mask of one axis": (mask(ALLOWED[0, 0]), []),
    "causal": (lambda S: Causal(), []),
    **{
        f"{case}, op {i}": (
            lambda S, *parameters, op=op, corner=case.corner: in_the_library_of(S, op(*parameters).at_corner(corner)),
            [] if shape is None else [shape],
        )
        for case in CASES
        if case.scores == (2, 3, 5, 7)
        for i, (op, shape) in enumerate(case.ops)
    },
}
each_op = pytest.mark.parametrize(("make", "shapes"), OPS.values(), ids=OPS)


@each_op
def test_derivatives(make, shapes):
    tile = Tile.whole(5, 7)
    S, *parameters = inputs = [*draw((2, 3, 5, 7)), *draw(*shapes, seed=5)]
    tS, *tparameters = tangents = draw(*(T.shape for T in inputs), seed=1)
    (cotangent,) = draw(S.shape, seed=2)
    op = make(*inputs)
    saved = op.forward(S, tile)[1]
    dS, dparam = op.vjp(cotangent, saved, tile)
    assert (dparam is None) == (not parameters)
    grads = [dS] if dparam is None else [dS, dparam]
    tangent = op.jvp(tS, saved, tile, *tparameters)
    if parameters:  # no tangent for the parameter means that it does not move
        assert checks.close(op.jvp(tS, saved, tile), op.jvp(tS, saved, tile, np.zeros(parameters[0].shape)))
    derivatives_agree(
        lambda *xs: finite(make(*xs).forward(xs[0], tile)[0]), inputs, tangents, cotangent, grads, tangent
    )


@each_op
def test_every_library_gives_the_same(xp, make, shapes):
    def three_passes(S, *parameters):
        op, tile, wide = make(S, *parameters), Tile.whole(5, 7), widen(S)  # a spine hands ops wide scores
        scores, saved = op.forward(wide, tile)
        dS, dparam = op.vjp(wide, saved, tile)
        results = finite(scores), dS, dparam, op.jvp(wide, saved, tile, *parameters)
        return [T if T is None else narrow(T, S.dtype) for T in results]

    same_everywhere(xp, three_passes, *draw((2, 3, 5, 7), *shapes))


SIDES = [(None, None), (None, 0), (2, None), (None, 2), (0, 0), (1, 2), (3, 0), (2, 2**63 - 1), (10**30, 0)]


@pytest.mark.parametrize("corner", ["top-left", "bottom-right"])
@pytest.mark.parametrize(("left", "right"), SIDES)
@pytest.mark.parametrize("first", [0, 1, 2, 10**30])
@pytest.mark.parametrize("n_k", [3, 5, 7])
def test_a_window_counts_from_its_corner(left, right, corner, n_k, first):
    """Query i may see the keys from i − left to i + right, i counted from the corner; None is no limit. The first
    tokens see and are seen by all.
    """
    n_q = 5
    ops = [Window(left, right, corner, first), *([Causal(corner)] if (left, right, first) == (None, 0, 0) else [])]
    at = {"top-left": lambda i: i, "bottom-right": lambda i: i + n_k - n_q}[corner]
    left, right = (n_q + n_k if side is None else side for side in (left, right))

    def sees(i, j):
        return i - left <= j <= i + right or 0 <= i < first or j < first

    wanted = [[sees(at(i), j) for j in range(n_k)] for i in range(n_q)]
    for op in ops:
        assert np.array_equal(op.allowed(np.zeros((n_q, n_k)), Tile.whole(n_q, n_k)), wanted)


@pytest.mark.parametrize("corner", ["top-left", "bottom-right"])
@pytest.mark.parametrize("n_k", [3, 5, 7])
def test_distances_count_from_their_corner(corner, n_k):
    """ALiBi and tables of distances, score by score."""
    n_q = 5
    S, slopes, table = draw((2, 3, n_q, n_k), (3,), (3, 5))
    tile, shift = Tile.whole(n_q, n_k), {"top-left": 0, "bottom-right": n_k - n_q}[corner]
    d = np.arange(n_k) - (np.arange(n_q)[:, None] + shift)
    assert checks.close(ALiBi(slopes, corner).forward(S, tile)[0], S - slopes[:, None, None] * abs(d))
    assert checks.close(RelativeBias(table, corner=corner).forward(S, tile)[0], S + table[:, d.clip(-2, 2) + 2])


def test_behind_a_causal_mask_alibi_is_that_of_its_paper():
    """m (j − i), in either corner: what is added to a whole row changes no weight."""
    Q, K, V = draw((2, 5, 11), (2, 7, 11), (2, 7, 13))
    slopes = alibi_slopes(2)
    linear = slopes[:, None, None] * (np.arange(7) - np.arange(5)[:, None])
    for causal in ("top-left", "bottom-right"):
        O, _ = ab.attention(Q, K, V, ops=[ALiBi(slopes, causal)], causal=causal)
        assert checks.close(O, ab.attention(Q, K, V, bias=linear, causal=causal)[0])


OF_PLACES = {
    "ALiBi": partial(ALiBi, np.array([0.5, -0.3])),
    "relative bias": partial(RelativeBias, np.array([[0.1, 0.7, -0.2], [0.4, -0.5, 0.9]])),
    "window": partial(Window, 1, None),
    "global tokens": partial(Window, 0, 1, global_tokens=1),
}
each_of_places = pytest.mark.parametrize("make", OF_PLACES.values(), ids=OF_PLACES)
CORNERS = "top-left", "bottom-right"


DOORS = {
    **{method: partial(ab.attention, method=method) for method in ("dense", "tiled")},
    "torch": lambda *QKV, ops, causal: [
        of_torch.attention(*map(torch.tensor, QKV), ops=[in_the_library_of(torch.ones(()), ops[0])], causal=causal)
    ],
}


@each_of_places
@pytest.mark.parametrize("n_k", [3, 7])
@pytest.mark.parametrize("run", DOORS.values(), ids=DOORS)
def test_an_op_that_is_told_no_corner_counts_from_that_of_causal(run, n_k, make):
    """And one that is told one counts from that."""
    QKV = draw((2, 5, 11), (2, n_k, 11), (2, n_k, 13))
    for causal in CORNERS:
        ops = make(), *(make(corner=corner) for corner in CORNERS)
        none, *told = (np.asarray(run(*QKV, ops=[op], causal=causal)[0]) for op in ops)
        assert [np.array_equal(none, O) for O in told] == [corner == causal for corner in CORNERS]


@each_of_places
@pytest.mark.parametrize("method", ["dense", "tiled"])
def test_the_last_queries_with_a_cache_are_the_last_rows(method, make):
    Q, K, V = draw((2, 7, 11), (2, 7, 11), (2, 7, 13))
    O, _ = ab.attention(Q, K, V, ops=[make()], causal=True)
    for m in (1, 3):
        last, _ = ab.attention(Q[:, -m:], K, V, ops=[make()], causal="bottom-right", method=method)
        assert checks.close(last, O[:, -m:])


@each_of_places
def test_a_corner_is_asked_for_where_nothing_tells_it(make):
    """Before any work, and by name; and not where both corners are the same."""
    Q, K, V = draw((2, 5, 11), (2, 7, 11), (2, 7, 13))
    wanted = "corner: expected 'top-left' or 'bottom-right', as 5 queries meet 7 keys without causal, got None"
    tensors, op = [torch.tensor(T) for T in (Q, K, V)], make()
    assert refusal(ab.attention, Q, K, V, ops=[op]) == f"ops, {type(op).__name__}, {wanted}"
    of_tensors = partial(of_torch.attention, ops=[in_the_library_of(tensors[0], op)])
    assert refusal(of_tensors, *tensors) == f"ops, {type(op).__name__}, {wanted}"
    assert refusal(op.forward, np.zeros((2, 5, 7)), Tile.whole(5, 7)) == wanted
    assert refusal(ab.attention, Q, K[:, :5], V[:, :5], ops=[op]) is None


def refusal(f, *args, **options):
    """The message of its error, or None."""
    try:
        f(*args, **options)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("h", range(1, 34))
def test_slopes_are_those_of_the_paper(h):
    def of_a_power(n):
        return [2 ** (-(2 ** -(math.log2(n) - 3)) * k) for k in range(1, n + 1)]

    lower = 2 ** math.floor(math.log2(h))
    assert checks.close(alibi_slopes(h), np.array(of_a_power(lower) + of_a_power(2 * lower)[0::2][: h - lower]))


def bucket_of_hugging_face(distances, bidirectional, num_buckets, max_distance):
    """Transformers' T5Attention._relative_position_bucket, in its float32."""
    found = torch.zeros_like(distances)
    if bidirectional:
        num_buckets //= 2
        found = (distances > 0).long() * num_buckets
        n = distances.abs()
    else:
        n = -torch.min(distances, torch.zeros_like(distances))
    exact = num_buckets // 2
    shared = torch.log(n.float() / exact) / math.log(max_distance / exact) * (num_buckets - exact)
    far = torch.min(exact + shared.clamp(min=0).long(), torch.full_like(n, num_buckets - 1))
    return found + torch.where(n < exact, n, far)


@pytest.mark.parametrize("max_distance", [32, 100, 128, 1000])
@pytest.mark.parametrize("one_way", [2, 5, 16, 17])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_buckets_are_those_of_hugging_face(bidirectional, one_way, max_distance):
    num_buckets = 2 * one_way if bidirectional else one_way
    distances = torch.arange(-2 * max_distance, 2 * max_distance + 1)
    came = T5Buckets(num_buckets, max_distance, bidirectional)(distances)
    assert torch.equal(came, bucket_of_hugging_face(distances, bidirectional, num_buckets, max_distance))


MASKS = [
    *(Mask(M) for M in (ALLOWED, ALLOWED[:, :1], ALLOWED[0, :, :1], ALLOWED[0, 0], ALLOWED[0], np.zeros((5, 7), bool))),
    *(Mask(M) for M in (np.array(True), np.array(False), np.bool_(True), np.bool_(False))),
    *(Window(*sides, corner) for sides in SIDES for corner in ("top-left", "bottom-right")),
    *(Causal(corner) for corner in ("top-left", "bottom-right")),
    *(Window(*sides, corner, 2) for sides in ((0, 0), (1, 0), (None, 1)) for corner in ("top-left", "bottom-right")),
    *(op() for op in (DOCUMENTS, OF_A_BATCH, PREFIX_LM, PACKED, PACKED_CAUSAL, BLOCKS, BLOCKS_OF_HEADS)),
    Segments(np.zeros(5, int), np.zeros(7, int)),
]


@pytest.mark.parametrize(
    ("op", "n_q", "n_k"),
    [*((op, 5, 7) for op in MASKS), *((op, 7, 5) for op in MASKS[::2] if isinstance(op, Window))],
    ids=lambda x: repr(x)[:40].partition("array")[0],
)
def test_a_mask_knows_its_live_tiles(op, n_q, n_k):
    """``live`` is the smallest tile around the allowed pairs, empty where there is none; ``allows_all`` is never wrong.

    And a tile's ``pattern`` is a tile with the same allowed pairs.
    """
    for rows in (range(a, b) for a in range(n_q) for b in range(a + 1, n_q + 1)):
        for cols in (range(a, b) for a in range(n_k) for b in range(a + 1, n_k + 1)):
            tile = Tile(rows, cols, n_q, n_k)
            allowed = op.allowed(np.zeros((n_q, n_k)), tile)
            assert allowed.all() or not op.allows_all(tile)
            lead = tuple(range(max(0, allowed.ndim - 2)))
            allowed = np.broadcast_to(allowed.any(axis=lead), (len(rows), len(cols)))
            some_row, some_col = (np.flatnonzero(allowed.any(axis=axis)) for axis in (1, 0))
            live = op.live(tile)
            assert bool(live) == allowed.any()
            if live:
                assert (live.rows[0] - rows[0], live.rows[-1] - rows[0]) == (some_row[0], some_row[-1])
                assert (live.cols[0] - cols[0], live.cols[-1] - cols[0]) == (some_col[0], some_col[-1])
            if op.pattern(tile) is not None:
                assert np.array_equal(op.allowed(np.zeros((n_q, n_k)), op.pattern(tile)), allowed)


@pytest.mark.parametrize(("op", "shape"), [(ALiBi, (3,)), (LogitScale, (3,)), (Scale, ()), (RelativeBias, (3, 5))])
def test_an_array_that_nobody_asks_the_gradient_of(op, shape):
    """The same scores, and no work for that gradient."""
    S, dS, numbers = draw((2, 3, 5, 7), (2, 3, 5, 7), shape)
    op, tile = op(numbers).at_corner("top-left"), Tile.whole(5, 7)
    twin = op.without_gradient()
    (scores, saved), (dS_before, dparam) = op.forward(S, tile), op.vjp(dS, op.forward(S, tile)[1], tile)
    assert np.array_equal(twin.forward(S, tile)[0], scores)
    assert np.array_equal(twin.vjp(dS, saved, tile)[0], dS_before)
    assert dparam is not None
    assert twin.parameter is twin.vjp(dS, saved, tile)[1] is None
    assert op.parameter is numbers


def test_a_logit_scale_multiplies_and_a_softcap_bounds():
    S, t = draw((2, 3, 5, 7), (3,))
    tile = Tile.whole(5, 7)
    assert checks.close(LogitScale(t).forward(S, tile)[0], t[:, None, None] * S)
    assert LogitScale(t[0]).parameter is not None, "a number of NumPy's is an array of no axis"
    assert Scale(t[0]).parameter is None
    for size in (1e-6, 1, 30):
        assert checks.close(Softcap(1.5).forward(size * S, tile)[0], 1.5 * np.tanh(size * S / 1.5))


def kept(op, shape):
    """Which weights of a whole table it keeps."""
    return op.kept(np.zeros(shape), Tile.whole(*shape[-2:]))


def test_dropout_keeps_its_share():
    """A share of 1 − p is kept, within five standard deviations; the mean of W is that of P; p = 0 changes nothing."""
    (P,) = draw((4, 5, 64, 100))
    for p in (0.0, 0.1, 0.5, 0.9):
        op = Dropout(p, seed=3)
        stays = kept(op, P.shape)
        for over in (range(4), *itertools.combinations(range(4), 3)):  # the share of each batch, head, query and key
            share = stays.mean(axis=tuple(over))
            assert np.max(np.abs(share - (1 - p))) <= 5 * (p * (1 - p) * share.size / stays.size) ** 0.5
        W = op.forward(P, Tile.whole(64, 100))[0]
        assert checks.close(W, np.where(stays, P / (1 - p), 0.0))
        assert p > 0 or np.array_equal(W, P)


def test_dropout_is_unrelated_from_place_to_place():
    """Neighbors in any axis, near and far, and other seeds: what is kept here says nothing of what is kept there."""
    seeds = [0, 1, 2, 3, -1, 7, 2**31, 2**32, 2**32 + 1, 2**40 + 1, 2**63]
    masks = [kept(Dropout(0.5, seed), (4, 4, 64, 64)) * 2.0 - 1 for seed in seeds]

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


def test_a_seed_drops_the_same_in_every_version():
    stays = [[0, 1, 0, 0, 0, 1, 0, 0], [0, 1, 1, 1, 0, 0, 0, 1]]
    assert np.array_equal(kept(Dropout(0.5, seed=3), (2, 8)), stays)


def test_dropout_is_the_same_on_any_tile():
    """A tile, some of the heads, and any sizes around them: the number of a weight hangs on its place alone."""
    op, shape = Dropout(0.4, seed=11), (2, 3, 5, 7)
    whole = kept(op, shape)
    leads, sizes = ((range(1, 2), range(3)), (range(2), range(1, 3))), ((5, 7), (11, 13))
    for lead, i, j, around in itertools.product(leads, (range(5), range(2, 4)), (range(7), range(3, 7)), sizes):
        tile = Tile(i, j, *around, lead)
        assert np.array_equal(op.kept(np.zeros(tile.shape(shape)), tile), tile.cut(whole))


def test_dropout_in_every_library(xp):
    T, tile = np.zeros((2, 3, 5, 7)), Tile.whole(5, 7)
    for op in (Dropout(0.3, 5), Dropout(0.9, -(2**63)), Dropout(0.5, 2**63 + 7)):
        assert np.array_equal(xp.numpy(op.kept(xp.asarray(T), tile)), op.kept(T, tile))


def test_numbers_of_numpy_are_numbers():
    """Also those that would overflow, or widen."""
    assert Scale(np.float64(0.3)).forward(np.ones((5, 7), np.float32), Tile.whole(5, 7))[0].dtype == np.float32
    Q, K, V = draw((9, 3), (9, 3), (9, 2))
    for op, other in (
        (Softcap(np.float32(0.5)), Softcap(0.5)),
        (Dropout(np.float16(0.5), 3), Dropout(0.5, 3)),
        (BlockMask(np.eye(3, dtype=bool), np.int8(3)), BlockMask(np.eye(3, dtype=bool), 3)),
    ):
        assert np.array_equal(*(ab.attention(Q, K, V, ops=[one])[0] for one in (op, other)))
    far = Tile(range(300, 310), range(295, 306), 400, 400)
    assert Window(np.uint8(3), np.uint8(1), "top-left").live(far) == Window(3, 1, "top-left").live(far)
    assert alibi_slopes(np.int64(4)).tolist() == alibi_slopes(4).tolist()
    assert np.array_equal(*(ab.top_k_mask(Q, K, k) for k in (np.int64(2), 2)))


@pytest.mark.parametrize("after", [Softcap(2.0), Scale(0.0), Scale(-0.7), LogitScale(np.array([0.4, 1.2, 0.9]))])
@pytest.mark.parametrize("method", ["dense", "tiled"])
def test_a_key_that_a_bias_forbids_stays_forbidden(xp, after, method):
    """Whatever comes after the bias: c tanh(−∞) is a number, 0 · −∞ none, and −1 · −∞ is ∞. And it gives nothing to the
    gradient of a scale.
    """
    Q, K, V, B, dO, tB, tt = draw((3, 5, 11), (3, 7, 11), (3, 7, 13), (5, 7), (3, 5, 13), (5, 7), (3,))
    allowed, wild = np.abs(B) < 1, np.where(np.abs(B) < 1, B, -np.inf)
    after, learns = in_the_library_of(xp.asarray(Q), after), after.parameter is not None

    def run(bias, *mask):
        O, res = ab.attention(*map(xp.asarray, (Q, K, V)), ops=[Bias(xp.asarray(bias)), after, *mask], method=method)
        g = ab.attention_vjp(xp.asarray(dO), res)
        tops = [xp.asarray(tB), xp.asarray(tt) if learns else None, *(None for _ in mask)]
        tO = ab.attention_jvp(*map(xp.asarray, (Q, K, V)), res, tops=tops)
        assert len(g.dops) == 2 + len(mask)
        return [xp.numpy(T) for T in (O, res.L, g.dQ, g.dK, g.dV, *g.dops[: 1 + learns], tO)]

    came, wanted = run(wild), run(np.where(allowed, B, 0.0), Mask(xp.asarray(allowed)))
    assert all(checks.close(a, b) for a, b in zip(came, wanted, strict=True))
    assert not np.any(came[5][~allowed])
