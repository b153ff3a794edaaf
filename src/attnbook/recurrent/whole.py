"""All tokens at once, where every query sees every key: all is written before anything is read."""

from attnbook.arrays import mT
from attnbook.recurrent.chunk import Tokens


def forward(x, H, size):
    """O = Q H′ and the states, before and after: H′ = H + Kᵀ V."""
    last = H + mT(x.k) @ x.v
    return x.q @ last, [H, last]


def vjp(dO, dH, x, states, size):
    dH = dH + mT(x.q) @ dO
    return Tokens(dO @ mT(states[-1]), x.v @ mT(dH), x.k @ dH, None, None), dH


def jvp(tx, tH, x, states, size):
    tH = tH + mT(tx.k) @ x.v + mT(x.k) @ tx.v
    return tx.q @ states[-1] + x.q @ tH, tH
