"""The seam to the array libraries."""

import numpy as np
import pytest
from compare import draw, in_wide, same_everywhere
from hypothesis import given
from hypothesis import strategies as st

from attnbook import arrays, checks


def unbroadcast_is_the_adjoint(shape, target, seed=0):
    """⟨dT, broadcast(x)⟩ = ⟨unbroadcast(dT), x⟩."""
    x, dT = draw(shape, target, seed=seed)
    dx = arrays.unbroadcast(dT, shape)
    assert dx.shape == shape
    checks.check_adjoint(dT, np.broadcast_to(x, target), dx, x)


SHAPES = [((7,), (5, 7)), ((5, 1), (5, 7)), ((3, 1, 1), (2, 3, 5, 7)), ((), (5, 7)), ((1, 7), (0, 7)), ((1, 1), (1, 1))]


@pytest.mark.parametrize(("shape", "target"), SHAPES)
def test_unbroadcast_sums_what_broadcasting_spread(shape, target, xp):
    unbroadcast_is_the_adjoint(shape, target)
    same_everywhere(xp, lambda dT: in_wide(arrays.unbroadcast, dT, shape), *draw(target))


@st.composite
def broadcasts(draw):
    """A shape, and one that it broadcasts to."""
    target = draw(st.lists(st.integers(0, 5), max_size=5))
    tail = target[draw(st.integers(0, len(target))) :]
    return tuple(draw(st.sampled_from([1, n])) for n in tail), tuple(target)


@given(broadcasts(), st.integers(0, 2**32 - 1))
def test_unbroadcast_of_any_shapes(shapes, seed):
    unbroadcast_is_the_adjoint(*shapes, seed=seed)


@given(broadcasts())
def test_broadcasts_to_agrees_with_numpy(shapes):
    assert arrays.broadcasts_to(*shapes)
    for shape, target in (shapes, shapes[::-1]):
        try:
            fits = np.broadcast_shapes(shape, target) == target
        except ValueError:
            fits = False
        assert arrays.broadcasts_to(shape, target) == fits


def test_rows_of_folds_the_leading_axes(xp):
    same_everywhere(xp, arrays.rows_of, *draw((2, 3, 5)))
    folded = {(2, 3, 5): (6, 5), (5,): (1, 5), (0, 5): (0, 5), (2, 0): (2, 0)}
    assert {shape: arrays.rows_of(np.zeros(shape)).shape for shape in folded} == folded


def test_inner_is_a_float(xp):
    A, B = draw((5, 7), (5, 7))
    value = arrays.inner(xp.asarray(A), xp.asarray(B))
    assert type(value) is float
    assert np.isclose(value, np.trace(A.T @ B), rtol=1e-14)


def test_sixteen_bits_are_widened_and_narrowed_back(xp):
    for dtype in xp.dtypes:
        T = xp.cast(xp.asarray(np.ones(3)), dtype)
        wide = arrays.widen(T)
        assert wide.dtype == xp.dtype("float64" if dtype == "float64" else "float32")
        assert arrays.narrow(wide, T.dtype).dtype == T.dtype
        assert (wide is T) == (wide.dtype == T.dtype), "no copy where there is nothing to do"
