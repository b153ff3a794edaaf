"""Ops in order, on one tile: what every spine does with them.

``steps`` are pairs, the place of an op among all of the call and the op itself; a plan has those on the scores and
those on the weights.
"""

from typing import Any

from attnbook.arrays import array_namespace, device, expected
from attnbook.ops.op import Op, Tile


def forward(steps: Any, T: Any, tile: Tile) -> tuple[Any, Any]:
    """T after these ops, and what each saved."""
    saved = []
    for _, op in steps:
        T, kept = _pair(op, "forward", op.forward(T, tile), T)
        saved.append(kept)
    return T, saved


def vjp(steps: Any, saved: Any, dT: Any, tile: Tile) -> tuple[Any, dict[int, Any]]:
    """The gradient before these ops, and that of each parameter, by the op's place."""
    dparams: dict[int, Any] = {}
    for (place, op), kept in zip(reversed(steps), reversed(saved), strict=True):
        dT, dparam = _pair(op, "vjp", op.vjp(dT, kept, tile), dT)
        dparams |= _of_parameter(place, op, "vjp", dparam, tile)
    return dT, dparams


def jvp(steps: Any, saved: Any, tT: Any, tile: Tile, tparams: Any) -> Any:
    """The tangent after these ops."""
    return tangents(steps, saved, tT, tile, tparams)[-1]


def tangents(steps: Any, saved: Any, tT: Any, tile: Tile, tparams: Any) -> list[Any]:
    """The tangent before each of these ops, and after the last."""
    found = [tT]
    for (place, op), kept in zip(steps, saved, strict=True):
        found.append(_fits(op, "jvp", op.jvp(found[-1], kept, tile, tparams[place]), tT))
    return found


def vjp_jvp(steps: Any, saved: Any, pair: Any, before: Any, tile: Tile, tparams: Any) -> tuple[Any, dict[int, Any]]:
    """A gradient and its tangent, a ``pair``, before these ops, and the tangent of each parameter's gradient, by the
    op's place. ``before``: as :func:`tangents` found them.
    """
    found: dict[int, Any] = {}
    dT, tdT = pair
    for i, (place, op) in reversed(list(enumerate(steps))):
        came = op.vjp_jvp(tdT, dT, before[i], saved[i], tile, tparams[place])
        tdT, tdparam = _pair(op, "vjp_jvp", came, tdT)
        found |= _of_parameter(place, op, "vjp_jvp", tdparam, tile)
        dT = _pair(op, "vjp", op.vjp(dT, saved[i], tile), dT)[0]
    return (dT, tdT), found


def collect(dparams: Any, found: Any, ops: Any, tile: Tile, block: Tile) -> None:
    """Add the parameters' gradients on one tile, by place, to those of the ``block`` that it lies in."""
    for place, dparam in found.items():
        op = ops[place]
        if place not in dparams:
            size = block.shape(op.parameter.shape, op.own_axes)
            dparams[place] = array_namespace(dparam).zeros(size, dtype=dparam.dtype, device=device(dparam))
        dparams[place][tile.within(block).index(dparams[place].shape, op.own_axes)] += dparam


def live(ops: Any, tile: Tile) -> Tile:
    """The part of the tile that no op forbids as a whole. It may be empty."""
    for op in ops:
        if tile:
            tile = op.live(tile)
    return tile


def _pair(op: Op, method: str, came: Any, T: Any) -> Any:
    if not isinstance(came, tuple) or len(came) != 2:
        got = f"{len(came)} things" if isinstance(came, tuple) else type(came).__name__
        raise TypeError(expected(f"ops, {type(op).__name__}.{method}", "a pair", got))
    _fits(op, method, came[0], T)
    return came


def _of_parameter(place: int, op: Op, method: str, dparam: Any, tile: Tile) -> dict[int, Any]:
    """The gradient of the op's parameter by its place, nothing where it has none, or an error where it does not fit."""
    name = f"ops, {type(op).__name__}.{method}"
    if (dparam is None) != (op.parameter is None):
        wanted = "None, as it has no parameter" if op.parameter is None else "the gradient of its parameter"
        raise TypeError(expected(name, wanted, type(dparam).__name__))
    if dparam is None:
        return {}
    if _shape(dparam) != (shape := tile.shape(op.parameter.shape, op.own_axes)):
        raise ValueError(expected(name, f"a gradient of shape {shape} on this tile", _shape(dparam)))
    return {place: dparam}


def _fits(op: Op, method: str, came: Any, T: Any) -> Any:
    """What a pass of the op made of T, or an error: of another shape or dtype it might be wrong in silence."""
    if _shape(came) != T.shape:
        raise ValueError(expected(f"ops, {type(op).__name__}.{method}", f"shape {tuple(T.shape)}", _shape(came)))
    if came.dtype != T.dtype:
        raise TypeError(expected(f"ops, {type(op).__name__}.{method}", f"dtype {T.dtype}", came.dtype))
    return came


def _shape(T: Any) -> Any:
    return tuple(T.shape) if hasattr(T, "shape") else type(T).__name__
