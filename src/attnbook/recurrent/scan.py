"""Chunk after chunk, each handing on its state. Backwards from the last: later tokens read what earlier ones wrote."""

from attnbook.arrays import array_namespace
from attnbook.recurrent import chunk
from attnbook.recurrent.chunk import Tokens


def forward(x, H, size):
    """O, and the states: before each chunk of ``size`` tokens, and after the last."""
    outputs, states = [], [H]
    for rows in _pieces(x, size):
        O, H = chunk.forward(_cut(x, rows), H)
        outputs.append(O)
        states.append(H)
    return _joined(outputs, x.q @ H), states


def vjp(dO, dH, x, states, size):
    """The gradients of the tokens and of the first state, from those of O and of the last state."""
    found = []
    for rows, H in zip(reversed(_pieces(x, size)), reversed(states[:-1]), strict=True):
        dx, dH = chunk.vjp(dO[..., rows, :], dH, _cut(x, rows), H)
        found.insert(0, dx)
    return Tokens(*(_joined([dx[i] for dx in found], T) for i, T in enumerate(x))), dH


def jvp(tx, tH, x, states, size):
    """The tangents of O and of the last state."""
    outputs = []
    for rows, H in zip(_pieces(x, size), states[:-1], strict=True):
        tO, tH = chunk.jvp(_cut(tx, rows), tH, _cut(x, rows), H)
        outputs.append(tO)
    return _joined(outputs, x.q @ tH), tH


def _pieces(x, size):
    n = x.q.shape[-2]
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def _cut(x, rows):
    return Tokens(*(T if T is None else T[..., rows, :] for T in x))


def _joined(parts, empty):
    """The parts, one after the other along the tokens; ``empty`` where there is none, and no token or no array."""
    return array_namespace(empty).concat(parts, axis=-2) if parts and empty is not None else empty
