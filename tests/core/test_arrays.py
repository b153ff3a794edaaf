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
