"""Packed documents, as if each were alone. They also run in the table of cases."""

import numpy as np
import pytest
from compare import draw

import attnbook as ab
from attnbook import checks
from attnbook.ops import Segments
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
