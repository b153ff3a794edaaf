"""All tokens at once, where every query sees every key: all is written before anything is read."""

from typing import Any

from attnbook.arrays import mT
from attnbook.recurrent.chunk import Tokens


def forward(x: Any, H: Any, size: int) -> tuple[Any, ...]:
    """O = Q H′ and the states, before and after: H′ = H + Kᵀ V."""
    last = H + mT(x.k) @ x.v
    return x.q @ last, [H, last]


def vjp(dO: Any, dH: Any, x: Any, states: Any, size: int) -> tuple[Any, ...]:
    """:eq:`eq-var-linear-vjp`, with dO for dN and dZ, as Z is a column of O."""
    dH = dH + mT(x.q) @ dO
    return Tokens(dO @ mT(states[-1]), x.v @ mT(dH), x.k @ dH, None, None), dH  # eq-var-linear-vjp


def jvp(tx: Any, tH: Any, x: Any, states: Any, size: int) -> tuple[Any, ...]:
    tH = tH + mT(tx.k) @ x.v + mT(x.k) @ tx.v
    return tx.q @ states[-1] + x.q @ tH, tH
