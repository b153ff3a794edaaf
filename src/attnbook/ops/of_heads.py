"""Ops that learn a number a head: how these lie, and how their gradients are summed."""

from typing import Any

from attnbook.arrays import array_namespace, unbroadcast
from attnbook.ops.op import Op, Tile


class OfHeads(Op):
    """An op whose array is (), (h,) or (..., h), one number a head; or (..., h, 1, 1), as some models keep it."""

    strides = True

    def __post_init__(self) -> None:
        stretched = tuple(getattr(self.parameter, "shape", ())[-2:]) == (1, 1)
        object.__setattr__(self, "own_axes", None if stretched else 0)  # once: vmap puts its axis in front

    def spread(self, tile: Tile, T: Any = None) -> Any:
        """The numbers, or their tangents T, to be multiplied with a tile of a table."""
        T = self.here(tile, getattr(self, self.arrays[0]) if T is None else T)
        return T if self.own_axes is None else T[..., None, None]

    def summed(self, dT: Any, tile: Tile) -> Any:
        """What a tile of a table gives to the gradient of the numbers, where they learn."""
        if self.learns is None:
            return None
        shape = tile.shape(self.parameter.shape, self.own_axes)
        stretched = shape if self.own_axes is None else (*shape, 1, 1)
        return array_namespace(dT).reshape(unbroadcast(dT, stretched), shape)

    without_gradient = Op.not_learning
