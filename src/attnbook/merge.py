"""The merge of two partial attentions, over other keys each: an attention over two keys, with L for scores.

Rings, split keys and sinks stand on it. The derivatives take the arguments of :func:`merge` again, which keeps nothing
else. Chapter: :doc:`/chapters/11_memory_and_speed`.
"""

from typing import Any, Generic, NamedTuple

from attnbook.arguments import check_shape
from attnbook.arrays import accumulation_dtype, agree, agree_on_place, expected, narrow, widen
from attnbook.softmax import normalize, row_logsumexp
from attnbook.types import Array, described


@described
class MergeGrads(NamedTuple, Generic[Array]):
    """The gradients of :func:`.merge`, each with the shape of its variable."""

    dO1: Array
    """(..., n_q, d_v), like O1."""
    dL1: Array
    """(..., n_q), like L1."""
    dO2: Array
    """(..., n_q, d_v), like O2."""
    dL2: Array
    """(..., n_q), like L2."""


def merge(O1: Array, L1: Array, O2: Array, L2: Array) -> tuple[Array, Array]:
    """Join what the same queries got from two sets of keys into what they would have got from all.

    .. math::
       (w_1, w_2) = \\operatorname{softmax}(L_1, L_2) \\qquad O = w_1 O_1 + w_2 O_2 \\qquad
       L = \\log\\bigl(e^{L_1} + e^{L_2}\\bigr)

    Equation :eq:`eq-merge`. It is associative, and the order of the sets does not matter. But each call counts queries
    and keys from 0: where causal, windows, distances or dropout are meant for the whole table, give each call its part
    of that, as a mask or a bias. A sink is no part of each call, but once one more set, with O = 0 and L = σ.

    Parameters
    ----------
    O1, O2 : arrays (..., n_q, d_v)
        The outputs of the two attentions.
    L1, L2 : arrays (..., n_q), of the dtype of ``res.L``
        L of each; −∞ where a query may attend to no key of the set.

    Returns
    -------
    O : array like O1
        0 where both L are −∞.
    L : array like L1

    Raises
    ------
    TypeError
        One of the four is no array of floats; the outputs differ in dtype, or L1 or L2 is not in the accumulation
        dtype.
    ValueError
        O1 has fewer than two axes, or the shapes do not fit each other.

    Notes
    -----
    On torch tensors autograd follows it, in every order.
    """
    xp = _check(O1, L1, O2, L2)
    W, L = _weights(xp, L1, L2)
    O = W[0] * widen(O1) + W[1] * widen(O2)  # eq-merge, eq-tile-combine
    return narrow(O, O1.dtype), xp.squeeze(L, axis=-1)


def merge_vjp(dO: Array, dL: Array, O1: Array, L1: Array, O2: Array, L2: Array) -> MergeGrads[Array]:
    """Pull gradients of O and L back through :func:`.merge`.

    .. math::
       dO_a = w_a\\,dO \\qquad
       dL_a = w_a \\circ \\bigl(\\operatorname{rowsum}(dO \\circ O_a) - D + dL\\bigr) \\qquad
       D = \\operatorname{rowsum}(dO \\circ O)

    Equation :eq:`eq-merge-vjp`: dP − D + dL of an attention over two keys.

    Parameters
    ----------
    dO : array like O
    dL : array like L, or None
    O1, L1, O2, L2 : arrays

    Returns
    -------
    MergeGrads
        0 where the set had no key for the query.

    Raises
    ------
    TypeError
        dO is no array like O1, dL none like L1, or :func:`merge` would not take the others.
    ValueError
        dO or dL has another shape than O1 or L1; or what :func:`merge` refuses.
    """
    xp = _check(O1, L1, O2, L2)
    agree(O1=O1, dO=dO)
    check_shape("dO", dO, tuple(O1.shape))
    agree({"dL": dL}, L1=L1)
    if dL is not None:
        check_shape("dL", dL, tuple(L1.shape))
    W, _ = _weights(xp, L1, L2)
    dO = widen(dO)
    parts = [xp.sum(dO * widen(O), axis=-1, keepdims=True) for O in (O1, O2)]
    D = W[0] * parts[0] + W[1] * parts[1]  # eq-merge-vjp
    if dL is not None:
        alive = xp.squeeze(W[0] + W[1], axis=-1) > 0
        D = D - xp.expand_dims(xp.where(alive, dL, xp.zeros_like(dL)), axis=-1)
    dL1, dL2 = (xp.squeeze(w * (part - D), axis=-1) for w, part in zip(W, parts, strict=True))  # eq-merge-vjp
    dO1, dO2 = (narrow(w * dO, O1.dtype) for w in W)
    return MergeGrads(dO1, dL1, dO2, dL2)


def merge_jvp(
    tO1: Array, tL1: Array, tO2: Array, tL2: Array, O1: Array, L1: Array, O2: Array, L2: Array
) -> tuple[Array, Array]:
    """Push changes of both attentions forward through :func:`.merge`.

    .. math::
       \\dot L = w_1 \\dot L_1 + w_2 \\dot L_2 \\qquad
       \\dot O = \\textstyle\\sum_a w_a \\bigl(\\dot O_a + (\\dot L_a - \\dot L)\\,O_a\\bigr)

    Equation :eq:`eq-merge-jvp`.

    Parameters
    ----------
    tO1, tL1, tO2, tL2 : arrays of the shapes of O1, L1, O2, L2
        Tangents.
    O1, L1, O2, L2 : arrays

    Returns
    -------
    tO, tL : arrays like O and L

    Raises
    ------
    TypeError
        A tangent is no array like its variable, or :func:`merge` would refuse these.
    ValueError
        A tangent has another shape than its variable; and what :func:`merge` asks.
    """
    xp = _check(O1, L1, O2, L2)
    agree(O1=O1, tO1=tO1, tO2=tO2)
    agree(L1=L1, tL1=tL1, tL2=tL2)
    for name, T, like in (("tO1", tO1, O1), ("tO2", tO2, O1), ("tL1", tL1, L1), ("tL2", tL2, L1)):
        check_shape(name, T, tuple(like.shape))
    W, _ = _weights(xp, L1, L2)
    tL1, tL2 = (xp.expand_dims(t, axis=-1) for t in (tL1, tL2))
    tL = W[0] * tL1 + W[1] * tL2  # eq-merge-jvp
    tO = W[0] * (widen(tO1) + (tL1 - tL) * widen(O1)) + W[1] * (widen(tO2) + (tL2 - tL) * widen(O2))  # eq-merge-jvp
    return narrow(tO, O1.dtype), xp.squeeze(tL, axis=-1)


def _weights(xp: Any, L1: Array, L2: Array) -> tuple[Any, ...]:
    """What the two outputs are weighted with, (..., n_q, 1) each, and L, likewise."""
    P, M, Z = normalize(xp.stack((L1, L2), axis=-1))
    return (P[..., 0:1], P[..., 1:2]), row_logsumexp(M, Z)


def _check(O1: Array, L1: Array, O2: Array, L2: Array) -> Any:
    """The namespace, or an error that names what does not fit."""
    xp = agree(O1=O1, O2=O2)
    if O1.ndim < 2:
        raise ValueError(expected("O1", "at least two axes (..., tokens, width)", f"shape {tuple(O1.shape)}"))
    check_shape("O2", O2, tuple(O1.shape))
    agree(L1=L1, L2=L2)
    agree_on_place("L1", L1, "O1", O1)
    if L1.dtype != accumulation_dtype(xp, O1.dtype):
        raise TypeError(expected("L1", "the dtype of O1, or float32 where that has 16 bits", L1.dtype))
    for name, L in (("L1", L1), ("L2", L2)):
        check_shape(name, L, tuple(O1.shape[:-1]))
    return xp
