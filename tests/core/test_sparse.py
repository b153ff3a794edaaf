"""Packed documents, and blocks. Both also run in the table of cases."""

import numpy as np
import pytest
from compare import draw
from test_tiled import Spy

import attnbook as ab
from attnbook import checks
from attnbook.ops import BlockMask, Segments
from attnbook.spines import Way, tiled

CU_Q, CU_K = np.array([0, 3, 3, 10, 17]), np.array([0, 5, 7, 7, 12], np.int32)


@pytest.mark.parametrize("method", ["dense", "tiled", Way("tiled", tiled.Tiles(4, 3)), Way("tiled")], ids=str)
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


def test_packed_alike_the_table_s_own_diagonal_is_that_of_each_document():
    inputs = draw((2, 17, 5), (2, 17, 5), (2, 17, 4))
    ways = ({"ops": [Segments.packed(CU_Q)], "causal": True}, {"ops": [Segments.packed(CU_Q, causal="bottom-right")]})
    assert np.array_equal(*(ab.attention(*inputs, **way)[0] for way in ways))


@pytest.mark.parametrize("spine", ["tiled", "numpy_tiled"])
@pytest.mark.parametrize("sizes", [(9, 7), (25, 30)], ids=str)
def test_a_dead_block_is_never_visited(sizes, spine):
    """The spine's own tiles have pairs of live blocks only, each once, forwards and backwards; keys and values that lie
    in dead blocks only are not even read: they may be NaN.
    """
    n_q, n_k = 50, 59
    blocks = np.random.default_rng(1).random([-(-n // size) for n, size in zip((n_q, n_k), sizes, strict=True)]) < 0.4
    blocks[:, 1] = False
    allowed = blocks.repeat(sizes[0], axis=0).repeat(sizes[1], axis=1)[:n_q, :n_k]
    assert blocks.any()
    Q, K, V, dO = draw((n_q, 5), (n_k, 5), (n_k, 4), (n_q, 4))
    spy, op = Spy(), BlockMask(blocks, sizes)
    O, res = ab.attention(Q, K, V, ops=[spy, op], method=Way(spine))
    forwards = list(spy.forwards)
    ab.attention_vjp(dO, res)
    for tiles in (forwards, spy.backwards):
        visits = np.zeros((n_q, n_k), int)
        for tile in tiles:
            visits[tile.index((n_q, n_k))] += 1
        assert np.array_equal(visits, allowed)
    unseen = ~allowed.any(axis=0)
    K[unseen], V[unseen] = np.nan, np.nan
    found, res = ab.attention(Q, K, V, ops=[op], method=Way(spine))
    assert checks.close(found, O)
    g = ab.attention_vjp(dO, res)
    assert all(np.all(np.isfinite(T)) for T in g[:3])
