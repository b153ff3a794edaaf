"""What every spine does at the door and at the end: one dtype inside, one head of keys for each head of queries."""

import functools
import math
import reprlib

import numpy as np

from attnbook.arrays import (
    accumulation_dtype,
    an_array_of,
    array_namespace,
    device,
    expected,
    is_numpy,
    narrow,
    unbroadcast,
    widen,
)
from attnbook.heads import share_heads, share_heads_vjp


def check_numpy(plan, given):
    """An error, where the arrays are not NumPy's own; only a ``Way`` can ask for that."""
    name, like = next(iter(given.items()))
    if not is_numpy(like):
        raise TypeError(expected(name, f"a NumPy array for method '{plan.spine}'", an_array_of(like)))


def tells_of_memory(run):
    """``run`` of NumPy's spines; where memory does not suffice, an error that says what was asked, and what helps.

    Nothing is half written then: results are new arrays, and what came is not changed.
    """

    @functools.wraps(run)
    def run_and_tell(*args):
        try:
            return run(*args)
        except MemoryError as error:
            plan = getattr(args[-1], "plan", args[-1])  # the residuals', or the plan
            method, asked = plan.spine.removeprefix("numpy_"), str(error) or "no memory is left"
            helps = "fewer heads, or a part of the batch, in a call need less"
            if method == "dense":
                size = math.prod(plan.shape) * np.dtype(accumulation_dtype(np, args[0].dtype)).itemsize / 2**20
                helps = f"each table of {plan.shape} numbers takes {size:,.0f} MiB; method='tiled' holds none"
            raise MemoryError(f"method '{method}': {asked}; {helps}") from error

    return run_and_tell


def unfit_tiles(plan, wanted):
    """The error for tiles that the spine does not take; only a ``Way`` has any."""
    return TypeError(expected("method, tiles", f"{wanted} for method '{plan.spine}'", reprlib.repr(plan.tiles)))


def operands(Q, K, V, scale=None):
    """Scaled queries, keys, values, in the accumulation dtype; each head of these repeated for those that share it.

    The scale goes into Q, which is smaller than the table, and where a product might overflow.
    """
    h = Q.shape[-3] if Q.ndim >= 3 else 1
    return widen(Q) if scale is None else widen(Q) * scale, share_heads(widen(K), h), share_heads(widen(V), h)


def operands_vjp(dQ, dK, dV, res):
    """The gradients summed back to the shapes of Q, K, V over heads and axes that were shared, in their dtype."""
    dQ = unbroadcast(dQ, res.Q.shape)
    dK, dV = share_heads_vjp(dK, res.K.shape), share_heads_vjp(dV, res.V.shape)
    dtype = res.Q.dtype
    return narrow(dQ, dtype), narrow(dK, dtype), narrow(dV, dtype)


def zero_dparams(plan, like):
    """The gradients of the ops' parameters before anything is added, by place."""
    found = {}
    for place, op in enumerate(plan.ops):
        if (T := op.parameter) is not None:
            found[place] = array_namespace(like).zeros(tuple(T.shape), dtype=like.dtype, device=device(like))
    return found


def in_order(dparams, res):
    """The gradients of the ops' parameters, one an op, from those found by place; None for an op without."""
    if not dparams:
        return (None,) * len(res.plan.ops)
    found = map(dparams.get, range(len(res.plan.ops)))
    return tuple(T if T is None else narrow(T, res.Q.dtype) for T in found)


def stretch(S, shape):
    """S with the leading axes that only V has."""
    return S if tuple(S.shape) == tuple(shape) else array_namespace(S).broadcast_to(S, shape)


def turn(change, moved):
    """A change that depends on what moved, where it is a function of it; else the change itself."""
    return change(moved) if callable(change) else change


def row_sums_jvp(dO, tdO, tdL, tO, res):
    """The tangent of :func:`row_sums`."""
    xp = array_namespace(dO)
    tD = xp.sum(widen(dO) * widen(tO), axis=-1, keepdims=True)
    if tdO is not None:
        tD = tD + xp.sum(widen(tdO) * widen(res.O), axis=-1, keepdims=True)
    return less_dL(tD, tdL, res.Z)


def row_sums(dO, dL, res):
    """rowsum(dO ∘ O) − dL (:eq:`eq-D`)."""
    return less_dL(array_namespace(dO).sum(widen(dO) * widen(res.O), axis=-1, keepdims=True), dL, res.Z)  # eq-D


def less_dL(D, dL, Z):
    """D − dL, all that a gradient of L changes (:eq:`eq-dS-L`). L of a dead row is −∞, and does not move."""
    if dL is None:
        return D
    xp = array_namespace(Z)
    dL = xp.expand_dims(widen(dL), axis=-1)
    return D - xp.where(xp.inf == Z, xp.zeros_like(dL), dL)  # eq-dS-L
