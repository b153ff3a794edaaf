"""Heads that several queries share; in every library those that are split from columns and merged again, too."""

import numpy as np
import pytest
from compare import draw, in_wide, same_everywhere

from attnbook import checks
from attnbook.heads import merge_heads, share_heads, share_heads_vjp, split_heads

grouped = pytest.mark.parametrize(("h_kv", "h"), [(3, 6), (2, 6), (3, 3), (2, 10)])


@grouped
def test_neighbours_share_a_head(h_kv, h):
    """Query head i reads key head i // (h / h_kv)."""
    (K,) = draw((2, h_kv, 7, 11))
    shared = share_heads(K, h)
    assert shared.shape[-3] == h
    for i in range(h):
        assert np.array_equal(shared[:, i], K[:, i // (h // h_kv)])


@grouped
def test_the_gradient_sums_over_the_group(h_kv, h):
    K, dK = draw((2, h_kv, 7, 11), (2, h, 7, 11))
    grad = share_heads_vjp(dK, K.shape)
    assert grad.shape == K.shape
    checks.check_adjoint(dK, np.repeat(K, h // h_kv, axis=-3), grad, K)


def test_every_library_gives_the_same(xp):
    K, dK = draw((2, 3, 7, 11), (2, 6, 7, 11))
    same_everywhere(xp, lambda T: merge_heads(split_heads(T, 11)), K)
    same_everywhere(xp, lambda K: share_heads(K, 6), K)
    for shape in ((2, 3, 7, 11), (3, 7, 11), (1, 1, 7, 11), (7, 11)):
        same_everywhere(xp, lambda dK, shape=shape: in_wide(share_heads_vjp, dK, shape), dK)
