"""Chunk after chunk, each handing on its state. Backwards from the last: later tokens read what earlier ones wrote."""

from typing import Any

from attnbook.arrays import array_namespace
from attnbook.recurrent import chunk
from attnbook.recurrent.chunk import Tokens


def forward(x: Any, H: Any, size: int) -> tuple[Any, ...]:
    """O, and the states: before each chunk of ``size`` tokens, and after the last."""
    outputs, states = [], [H]
    for rows in _pieces(x, size):
        O, H = chunk.forward(_cut(x, rows), H)
        outputs.append(O)
        states.append(H)
    return _joined(outputs, x.q @ H), states


def vjp(dO: Any, dH: Any, x: Any, states: Any, size: int) -> tuple[Any, ...]:
    """The gradients of the tokens and of the first state, from those of O and of the last state."""
    found: list[Any] = []
    for rows, H in zip(reversed(_pieces(x, size)), reversed(states[:-1]), strict=True):
        dx, dH = chunk.vjp(dO[..., rows, :], dH, _cut(x, rows), H)
        found.insert(0, dx)
    return Tokens(*(_joined([dx[i] for dx in found], T) for i, T in enumerate(x))), dH


def jvp(tx: Any, tH: Any, x: Any, states: Any, size: int) -> tuple[Any, ...]:
    """The tangents of O and of the last state."""
    outputs = []
    for rows, H in zip(_pieces(x, size), states[:-1], strict=True):
        tO, tH = chunk.jvp(_cut(tx, rows), tH, _cut(x, rows), H)
        outputs.append(tO)
    return _joined(outputs, x.q @ tH), tH


def _pieces(x: Any, size: int) -> list[Any]:
    n = x.q.shape[-2]
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def _cut(x: Any, rows: Any) -> Any:
    return Tokens(*(T if T is None else T[..., rows, :] for T in x))


def _joined(parts: Any, empty: Any) -> Any:
    """The parts, one after the other along the tokens; ``empty`` where there is none, and no token or no array."""
    return array_namespace(empty).concat(parts, axis=-2) if parts and empty is not None else empty
