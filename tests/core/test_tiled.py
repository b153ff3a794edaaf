"""The tiled spine and its twin on NumPy: what they save, what they skip, and that nothing shows how the table was cut.

That their values and derivatives are right is tested with those of the other spines, in test_attention.
"""

import sys
import tracemalloc

import numpy as np
import pytest
import torch
from cases import CASE, CASES
from compare import draw
from naive import naive_scores
from numpy.lib.introspect import opt_func_info
from planting import by_turns
from routes import ON_TILES, ROUTES, TILED, taking
from test_attention import A_FEW

import attnbook as ab
from attnbook import checks, spines
from attnbook.ops import Bias, BlockMask, Causal, Dropout, Mask, Op, Segments, Softcap, Tile, Window
from attnbook.spines import Way, numpy_work

every_route = pytest.mark.usefixtures("route")


def each_case_in_turn(routes):
    """Each case, in `make test` on one of the routes by turns."""
    return pytest.mark.parametrize(("route", "case"), by_turns(routes, CASES), indirect=["route"])


def in_tiles(test):
    return every_route(pytest.mark.parametrize("route", TILED, indirect=True)(test))


of_full_size = pytest.mark.parametrize("name", ["tiled", "tiled on NumPy"])


# --- what is kept and what is not ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tiled", {}),
        ("tiled on NumPy", {}),
        ("tiled on NumPy", {"causal": lambda n: True}),
        ("tiled on NumPy", {"bias": lambda n: np.zeros((n, 1), np.float32)}),
    ],
)
def test_memory_grows_linearly(name, options):
    """Every pass at n queries and n keys takes far less than a table, and twice as much as at n / 2."""
    n, d = 4096, 16

    def peak(n):
        Q, K, V, dO = (T.astype(np.float32) for T in draw((n, d), (n, d), (n, d), (n, d)))
        given = {name: T(n) for name, T in options.items()}
        ab.set_num_threads(1)
        tracemalloc.start()
        try:
            with taking(name, small=False):
                res = ab.attention(Q, K, V, **given)[1]
                ab.attention_vjp(dO, res)
                if not options:
                    ab.attention_hvp(Q, K, V, dO, res, tdO=lambda tO: tO)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            ab.set_num_threads(None)

    whole, half = peak(n), peak(n // 2)
    assert whole <= n * n * 4 / 5, f"{whole / 2**20:.0f} MiB, and a table of scores takes {n * n * 4 / 2**20:.0f}"
    assert whole <= 2.2 * half


@every_route
@each_case_in_turn(ROUTES)
def test_L_is_the_logsumexp_of_the_scores(case):
    """L of every row, in nats; −∞ in a row with no allowed key."""
    inputs = case.draw()
    _, res = case.attend(*inputs)
    tensors = [torch.tensor(T) for T in inputs]
    S = naive_scores(case, *tensors)
    wanted = torch.logsumexp(S, dim=-1).numpy() if S.shape[-1] else np.full(case.scores[:-1], -np.inf)
    dead = np.isneginf(wanted)
    assert res.L.shape == case.scores[:-1]
    assert np.array_equal(np.isneginf(res.L), dead)
    assert np.all(res.Z[..., 0][dead] == np.inf)
    assert np.all(res.M[..., 0][dead] == 0)
    assert checks.close(np.where(dead, 0, res.L), np.where(dead, 0, wanted))


@every_route
@pytest.mark.parametrize(("route", "case"), by_turns(ROUTES, [CASE[name] for name in A_FEW]), indirect=["route"])
def test_residuals_are_in_the_accumulation_dtype(case):
    """Nothing widens what is kept for the backward: it is float32 for 16 bits and for float32."""
    for dtype, wide in (("float16", "float32"), ("float32", "float32"), ("float64", "float64")):
        O, res = case.attend(*(T.astype(dtype) for T in case.draw()))
        assert O.dtype == dtype
        assert {T.dtype for T in (res.P if hasattr(res, "P") else res.O, res.M, res.Z)} == {np.dtype(wide)}


@every_route
@each_case_in_turn(ON_TILES)
def test_fresh_memory_is_not_read(case):
    """NaN or ∞ in memory that is asked for with ``np.empty`` changes nothing, and warns of nothing."""
    inputs, tangents = case.draw(), case.tangents()
    (dO,) = draw((*case.scores[:-1], case.v[-1]))

    def found():
        O, res = case.attend(*inputs)
        return [O, *case.pull(dO, res), *case.push_pull(tangents, dO, res, tdO=dO)]

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


# --- what is visited ----------------------------------------------------------------------------------------------

PADDING = np.arange(13) < 5
HOLE = (np.arange(13) < 3) | (np.arange(13) > 9)
MASKED = {
    "window, bottom-right": {"ops": [Window(3, 0, "bottom-right")]},
    "a hole": {"mask": HOLE},
    "all": {"mask": np.zeros((11, 13), bool)},
    "padding and causal": {"mask": PADDING, "causal": True},
    "documents": {"ops": [Segments.packed(np.array([0, 4, 4, 9, 11]), np.array([0, 2, 7, 10, 13]), "bottom-right")]},
    "blocks": {"ops": [BlockMask(np.eye(3, dtype=bool), (4, 5))]},
}


class Spy(Op):
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


def masked_scores(n_q, n_k, ops=(), mask=None, causal=False):
    S = np.zeros((n_q, n_k))
    for op in (*ops, *([] if mask is None else [Mask(mask)]), *([Causal()] if causal else [])):
        S, _ = op.forward(S, Tile.whole(n_q, n_k))
    return S


@in_tiles
@pytest.mark.parametrize("options", MASKED.values(), ids=MASKED)
def test_each_live_tile_is_visited_once(options):
    """Every allowed pair lies on one tile, forwards and backwards, and no tile lacks an allowed pair."""
    n_q, n_k = 11, 13
    Q, K, V, dO = draw((n_q, 3), (n_k, 3), (n_k, 3), (n_q, 3))
    spy = Spy()
    given = {**options, "ops": [spy, *options.get("ops", ())]}
    _, res = ab.attention(Q, K, V, **given)
    allowed = np.isfinite(masked_scores(n_q, n_k, **options))
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


# --- what must not show -------------------------------------------------------------------------------------------


@every_route
@each_case_in_turn(ON_TILES)
def test_threads_change_no_bit(case):
    """1, 2 or 5 threads: O, L, every gradient, and how they move are the same to the last bit."""
    inputs, tangents = case.draw(), case.tangents()
    (dO,) = draw((*case.scores[:-1], case.v[-1]))
    found = []
    try:
        for n in (1, 2, 5):
            ab.set_num_threads(n)
            O, res = case.attend(*inputs)
            found.append([O, res.L, *case.pull(dO, res), *case.push_pull(tangents, dO, res, tdO=dO)])
    finally:
        ab.set_num_threads(None)
    for other in found[1:]:
        assert all(map(np.array_equal, found[0], other))


LONG, OF_HEADS = ((1100, 8), (1300, 8), (1300, 5)), ((2, 6, 130, 8), (2, 2, 140, 8), (2, 3, 140, 5))
IN_EARNEST = {
    "window": (LONG, {"ops": [Window(100, 30, "top-left")]}),
    "padding": (LONG, {"mask": np.arange(1300) < 700}),
    "bias": (LONG, {"bias": np.linspace(-1, 1, 1300)}),
    "dropout and softcap": (LONG, {"ops": [Dropout(0.2, 3), Softcap(1.0), Bias(np.linspace(-1, 1, 1100)[:, None])]}),
    "heads": (OF_HEADS, {"bias": np.linspace(-1, 1, 140)}),
    "heads, causal": (OF_HEADS, {"causal": True}),
    "blocks": (LONG, {"ops": [BlockMask(np.random.default_rng(1).random((9, 15)) < 0.4, (130, 90))]}),
}


@of_full_size
@pytest.mark.parametrize(("shapes", "options"), IN_EARNEST.values(), ids=IN_EARNEST)
def test_tiles_of_full_size(name, shapes, options):
    """At the sizes that tiles have in earnest: output and gradients are those of the dense spine."""
    inputs = draw(*shapes)
    wanted, of_dense = ab.attention(*inputs, **options, method=Way("dense"))
    (dO,) = draw(wanted.shape, seed=1)
    with taking(name, small=False):
        O, res = ab.attention(*inputs, **options)
        found, grads = ab.attention_vjp(dO, res), ab.attention_vjp(dO, of_dense)
    assert checks.close(O, wanted)
    for a, b in zip((*found[:4], *found.dops), (*grads[:4], *grads.dops), strict=True):
        assert a is b is None or checks.close(a, b)


def test_heads_may_be_grouped_anew():
    """One head with large scores needs a shift, and so do those in its task; in the backward, tasks may be others."""
    Q, K, V, dO = draw((4, 5, 3), (4, 7, 3), (4, 7, 2), (4, 5, 2))
    Q[0] *= 1000
    right = ab.attention_vjp(dO, ab.attention(Q, K, V, method="dense")[1])
    _, res = ab.attention(Q, K, V, method="tiled")
    assert np.all(res.M != 0)
    tiles = res.plan.tiles._replace(scores_a_task=0)
    res = res._replace(plan=res.plan._replace(tiles=tiles))
    assert all(map(checks.close, ab.attention_vjp(dO, res)[:3], right[:3]))


def test_base_2_is_taken_where_it_is_no_slower():
    """By the vector code that NumPy says each function has here; on Windows its exp2 has none."""
    for exp, exp2, system, bits in (
        ("X86_V4", "X86_V4", "linux", True),
        ("X86_V4", "X86_V4", "win32", False),
        ("X86_V3", "baseline(X86_V2)", "linux", False),
    ):
        loops = {name: {"ff": {"current": of, "available": ""}} for name, of in (("exp", exp), ("exp2", exp2))}
        assert numpy_work.faster_in_bits(loops, system) is bits
        assert numpy_work.faster_in_bits({}, system) is True
    assert numpy_work.BITS is numpy_work.faster_in_bits(opt_func_info(), sys.platform)


@pytest.mark.parametrize("bits", [True, False])
def test_residuals_say_their_unit(bits):
    """What was made in bits on one machine may be read on another that would count in nats, and the other way round."""
    Q, K, V, dO = draw((5, 3), (7, 3), (7, 2), (5, 2))
    Q *= 100
    tangents, right = draw((5, 3), (7, 3), (7, 2)), ab.attention(Q, K, V, causal=True, method="dense")[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numpy_work, "BITS", bits)
        _, res = ab.attention(Q, K, V, causal=True, method="tiled")
        patch.setattr(numpy_work, "BITS", not bits)
        assert (res.unit == 1) is not bits
        assert checks.close(res.L, right.L)
        assert all(map(checks.close, ab.attention_vjp(dO, res)[:3], ab.attention_vjp(dO, right)[:3]))
        assert checks.close(ab.attention_jvp(*tangents, res), ab.attention_jvp(*tangents, right))


# --- packed documents ---------------------------------------------------------------------------------------------

CU_Q, CU_K = np.array([0, 3, 3, 10, 17]), np.array([0, 5, 7, 7, 12], np.int32)


@pytest.mark.parametrize("method", ["dense", "tiled", Way("tiled", spines.tiled.Tiles(4, 3)), Way("tiled")], ids=str)
@pytest.mark.parametrize("causal", [False, True, "bottom-right"])
def test_a_packed_document_is_attended_to_as_if_alone(causal, method):
    """Of other numbers of queries and of keys; without the ones, or without the others."""
    Q, K, V, dO = draw((6, 17, 5), (3, 12, 5), (3, 12, 4), (6, 17, 4))
    O, res = ab.attention(Q, K, V, ops=[Segments.packed(CU_Q, CU_K, causal)], method=method)
    g = ab.attention_vjp(dO, res)
    for q, k in zip(*(list(map(slice, cu, cu[1:])) for cu in (CU_Q.tolist(), CU_K.tolist())), strict=True):
        alone, kept = ab.attention(Q[:, q], K[:, k], V[:, k], causal=causal, method="dense")
        wanted = ab.attention_vjp(dO[:, q], kept)
        parts = O[:, q], res.L[:, q], g.dQ[:, q], g.dK[:, k], g.dV[:, k]
        for part, right in zip(parts, (alone, kept.L, *wanted[:3]), strict=True):
            assert checks.close(np.exp(part), np.exp(right))


# --- who is asked -------------------------------------------------------------------------------------------------


def test_auto_picks_by_size():
    numpy, tensor = np.ones((2, 2), np.float32), torch.ones((2, 2))
    small, huge = (2, 2), (8, 16384, 16384)
    for like in (numpy, tensor):
        assert spines.pick(like, small) == spines.WAYS["dense"]
        assert spines.pick(like, huge) == spines.WAYS["tiled"]


def test_torchs_vmap_over_tiles():
    """Under it no tensor says where it lies."""
    (Q,) = map(torch.tensor, draw((2, 7, 5)))
    O = torch.vmap(lambda Q: ab.attention(Q, Q, Q, method="tiled", causal=True)[0])(Q)
    assert checks.close(O.numpy(), ab.attention(Q, Q, Q, method="tiled", causal=True)[0].numpy())
