"""Heads: split from columns, merged again, and shared by several queries."""

import numpy as np
import pytest
from compare import draw, in_wide, same_everywhere

from attnbook import checks, heads
from attnbook.heads import merge_heads, share_heads, share_heads_vjp, split_heads

grouped = pytest.mark.parametrize(("h_kv", "h"), [(3, 6), (2, 6), (3, 3), (2, 10)])


@grouped
def test_neighbours_share_a_head(h_kv, h):
    """Query head i reads key head i // (h / h_kv)."""
    (K,) = draw((2, h_kv, 7, 11))
    shared = heads.share_heads(K, h)
    assert shared.shape[-3] == h
    for i in range(h):
        assert np.array_equal(shared[:, i], K[:, i // (h // h_kv)])


@grouped
def test_the_gradient_sums_over_the_group(h_kv, h):
    K, dK = draw((2, h_kv, 7, 11), (2, h, 7, 11))
    grad = heads.share_heads_vjp(dK, K.shape)
    assert grad.shape == K.shape
    checks.check_adjoint(dK, np.repeat(K, h // h_kv, axis=-3), grad, K)


@pytest.mark.parametrize("h", [1, 3])
def test_heads_are_columns(h):
    """Head i is columns i·d to (i+1)·d; merging puts them back."""
    (T,) = draw((2, 5, h * 7))
    split = heads.split_heads(T, h)
    assert split.shape == (2, h, 5, 7)
    for i in range(h):
        assert np.array_equal(split[:, i], T[..., i * 7 : (i + 1) * 7])
    merged = heads.merge_heads(split)
    assert merged.shape == T.shape
    assert np.array_equal(merged, T)


@pytest.mark.parametrize(("shape", "h"), [((7, 11), 6), ((1, 7, 11), 6), ((6, 7, 11), 6), ((3, 7, 11), 1)])
def test_nothing_is_copied_where_broadcasting_does_it(shape, h):
    K = np.ones(shape)
    assert share_heads(K, h) is K


def test_every_library_gives_the_same(xp):
    K, dK = draw((2, 3, 7, 11), (2, 6, 7, 11))
    same_everywhere(xp, lambda T: merge_heads(split_heads(T, 11)), K)
    same_everywhere(xp, lambda K: share_heads(K, 6), K)
    for shape in ((2, 3, 7, 11), (3, 7, 11), (1, 1, 7, 11), (7, 11)):
        same_everywhere(xp, lambda dK, shape=shape: in_wide(share_heads_vjp, dK, shape), dK)
