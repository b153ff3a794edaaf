"""What every spine does at the door and at the end: one dtype inside, one head of keys for each head of queries."""

from typing import NamedTuple

from attnbook.arrays import array_namespace, narrow, unbroadcast, widen
from attnbook.heads import share_heads, share_heads_vjp
from attnbook.ops import Masking, Scale


def operands(Q, K, V):
    """Q, K, V in the accumulation dtype, each key and value head repeated for the query heads that share it."""
    h = Q.shape[-3] if Q.ndim >= 3 else 1
    return widen(Q), share_heads(widen(K), h), share_heads(widen(V), h)


def operands_vjp(dQ, dK, dV, res):
    """The gradients summed back to the shapes of Q, K, V over heads and axes that were shared, in their dtype."""
    dQ = unbroadcast(dQ, res.Q.shape)
    dK, dV = share_heads_vjp(dK, res.K.shape), share_heads_vjp(dV, res.V.shape)
    return tuple(narrow(T, res.Q.dtype) for T in (dQ, dK, dV))


def in_order(dparams, res):
    """The gradients of the steps' parameters, one a step, from those found by place; None for a step without."""
    found = (dparams.get(place) for place in range(len(res.steps)))
    return tuple(T if T is None else narrow(T, res.Q.dtype) for T in found)


def stretch(S, shape):
    """S with the leading axes that only V has."""
    return S if tuple(S.shape) == tuple(shape) else array_namespace(S).broadcast_to(S, shape)


class ScaleAndMasks(NamedTuple):
    """Steps that need not be run one by one: a factor, which a product can take in, and what is forbidden."""

    factor: float
    masks: tuple


def scale_and_masks(steps):
    """The steps in this form, if they are the scale and masks and nothing else; else None."""
    scale, *others = (step.op for step in steps)
    if isinstance(scale, Scale) and all(isinstance(op, Masking) for op in others):
        return ScaleAndMasks(scale.factor, tuple(others))
    return None
