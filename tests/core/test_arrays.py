"""The seam to the array libraries."""

import numpy as np
import pytest
from compare import draw, in_wide, same_everywhere

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
