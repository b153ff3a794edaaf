"""Heads: split from columns, merged again, and shared by several queries."""

import laws
import numpy as np
import pytest

from attnbook.heads import merge_heads, share_heads, share_heads_vjp, split_heads

grouped = pytest.mark.parametrize(("h_kv", "h"), [(3, 6), (2, 6), (3, 3), (2, 10)])


@grouped
def test_neighbours_share_a_head(h_kv, h):
    laws.heads_are_shared_by_neighbours(h_kv, h)


@grouped
def test_the_gradient_sums_over_the_group(h_kv, h):
    laws.heads_gradient_is_the_adjoint(h_kv, h)


@pytest.mark.parametrize("h", [1, 3])
def test_heads_are_columns(h):
    laws.heads_are_columns(h)


@pytest.mark.parametrize(("shape", "h"), [((7, 11), 6), ((1, 7, 11), 6), ((6, 7, 11), 6), ((3, 7, 11), 1)])
def test_nothing_is_copied_where_broadcasting_does_it(shape, h):
    K = np.ones(shape)
    assert share_heads(K, h) is K


def test_every_library_gives_the_same(xp):
    K, dK = laws.draw((2, 3, 7, 11), (2, 6, 7, 11))
    laws.same_everywhere(xp, lambda T: merge_heads(split_heads(T, 11)), K)
    laws.same_everywhere(xp, lambda K: share_heads(K, 6), K)
    for shape in ((2, 3, 7, 11), (3, 7, 11), (1, 1, 7, 11), (7, 11)):
        laws.same_everywhere(xp, lambda dK, shape=shape: laws.in_wide(share_heads_vjp, dK, shape), dK)
