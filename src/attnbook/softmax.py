"""Softmax and log-sum-exp with their derivatives. Chapter: :doc:`/chapters/03_softmax`.

Scores are in nats. ``axis`` is the one that is normalized or summed, the last by default; P is what :func:`softmax`
returned. Rows of −∞ only (no key allowed) are defined: P = 0, L = −∞, and every derivative is 0, with no warning. A +∞
or a NaN makes its row NaN.
"""

from typing import Any

from attnbook.arguments import check_shape
from attnbook.arrays import agree, array_namespace, axis_of, device, narrow, quietly_on_numpy, scalar, widen
from attnbook.types import AnyArray, Array


def softmax(S: Array, axis: int = -1) -> Array:
    """Turn each row of scores into weights that are positive and sum to 1.

    .. math:: P_{ij} = e^{S_{ij}} \\Big/ \\textstyle\\sum_k e^{S_{ik}}

    Equations :eq:`def-softmax` and, in the stable form computed here, :eq:`eq-softmax-stable`.

    Parameters
    ----------
    S : array (..., n), floating
        −∞ is allowed and gives weight 0.
    axis : int

    Returns
    -------
    P : array of the shape and dtype of ``S``

    Raises
    ------
    TypeError
        S is no array of floats, or axis no integer.
    ValueError
        S has no such axis.

    Notes
    -----
    Residual: P itself, nothing else.
    """
    agree(S=S)
    axis = axis_of("S", S, axis)
    P, _, _ = normalize(widen(S), axis)
    return narrow(P, S.dtype)


def softmax_vjp(dP: Array, P: Array, axis: int = -1) -> Array:
    """Pull a gradient back through softmax, without ever building its Jacobian.

    .. math:: dS_{ij} = P_{ij}\\Bigl(dP_{ij} - \\textstyle\\sum_k P_{ik}\\,dP_{ik}\\Bigr)

    Equation :eq:`eq-softmax-vjp`. A score's gradient is how much better its key did than the row's average,
    times the weight it got. Each row of the result sums to 0.

    Parameters
    ----------
    dP : array (..., n)
    P : array (..., n)
    axis : int

    Returns
    -------
    dS : array of the shape and dtype of ``P``
        Exactly 0 wherever P is 0.

    Raises
    ------
    TypeError
        dP or P is no array of floats, they differ in dtype or library, or axis is no integer.
    ValueError
        The shapes of dP and P differ, or they have no such axis.

    Notes
    -----
    Time and memory are O(n) a row; the Jacobian would cost O(n²).
    """
    xp, axis = _same_shape(dP=dP, P=P, axis=axis)
    p, g = widen(P), widen(dP)
    return narrow(p * (g - xp.sum(p * g, axis=axis, keepdims=True)), P.dtype)  # eq-softmax-vjp


def softmax_jvp(tS: Array, P: Array, axis: int = -1) -> Array:
    """Push a change of the scores forward through softmax.

    .. math:: \\dot P_{ij} = P_{ij}\\Bigl(\\dot S_{ij} - \\textstyle\\sum_k P_{ik}\\,\\dot S_{ik}\\Bigr)

    Equation :eq:`eq-softmax-jvp`. The same lines as :func:`softmax_vjp`, because the Jacobian is symmetric.

    Parameters
    ----------
    tS : array (..., n)
        The tangent: in which direction, and how fast, the scores move.
    P : array (..., n)
    axis : int

    Returns
    -------
    tP : array of the shape and dtype of ``P``
        Each row sums to 0: weight moves, none is made.

    Raises
    ------
    TypeError
        tS or P is no array of floats, the two are not alike, or axis is no integer.
    ValueError
        tS has not the shape of P, or that no such axis.
    """
    _same_shape(tS=tS, P=P, axis=axis)
    return softmax_vjp(tS, P, axis)  # eq-softmax-jvp


def softmax_jacobian(P: Array) -> Array:
    """The Jacobian of softmax on the last axis, one n × n matrix a row: to look at, not to compute with.

    .. math:: J = \\operatorname{diag}(p) - p\\,p^{\\mathsf T}

    Equation :eq:`eq-softmax-jacobian`. Symmetric; rows and columns sum to 0; rank n − 1 where every weight is positive.

    Parameters
    ----------
    P : array (..., n)

    Returns
    -------
    J : array (..., n, n), dtype of ``P``

    Raises
    ------
    TypeError
        P is no array of floats.
    ValueError
        P has no axis.
    """
    xp = agree(P=P)
    n = P.shape[axis_of("P", P, -1)]
    p = widen(P)
    diagonal = xp.eye(n, dtype=p.dtype, device=device(p)) * p[..., None]
    return narrow(diagonal - p[..., :, None] * p[..., None, :], P.dtype)  # eq-softmax-jacobian


def logsumexp(S: Array, axis: int = -1) -> Array:
    """The logarithm of the softmax's denominator, taken without overflow.

    .. math:: L_i = \\log \\textstyle\\sum_k e^{S_{ik}} = m_i + \\log \\sum_k e^{S_{ik} - m_i}

    Equation :eq:`def-logsumexp`. With it, P = exp(S − L): one number a row is enough to recompute all weights.

    Parameters
    ----------
    S : array (..., n), floating
    axis : int

    Returns
    -------
    L : array of the shape of ``S`` without ``axis``, same dtype
        −∞ for an empty row, too; ∞ for a row with ∞, whose softmax is NaN.

    Raises
    ------
    TypeError
        S is no array of floats; axis is no integer.
    ValueError
        There is no such axis in S.
    """
    xp = agree(S=S)
    axis = axis_of("S", S, axis)
    _, m, Z = normalize(widen(S), axis)
    L = xp.where(xp.inf == m, m, row_logsumexp(m, Z))  # ∞ − ∞ made a NaN of Z
    return narrow(xp.squeeze(L, axis=axis), S.dtype)


def logsumexp_vjp(dL: AnyArray, P: Array, axis: int = -1) -> Array:
    """Pull a gradient back through log-sum-exp, whose gradient is softmax.

    .. math:: dS_{ij} = dL_i\\,P_{ij}

    Equation :eq:`eq-logsumexp-vjp`.

    Parameters
    ----------
    dL : array of the shape of ``P`` without ``axis``
    P : array (..., n)
    axis : int

    Returns
    -------
    dS : array of the shape and dtype of ``P``

    Raises
    ------
    TypeError
        dL or P is no array of floats, dL is unlike P in dtype or library, or axis is no integer.
    ValueError
        dL has not the shape of P without the axis, or P no such axis.
    """
    xp = agree(dL=dL, P=P)
    axis = axis_of("P", P, axis)
    check_shape("dL", dL, (*P.shape[:axis], *P.shape[axis + 1 :]))
    return narrow(xp.expand_dims(widen(dL), axis=axis) * widen(P), P.dtype)  # eq-logsumexp-vjp


def logsumexp_jvp(tS: Array, P: Array, axis: int = -1) -> Array:
    """Push a change of the scores forward through log-sum-exp.

    .. math:: \\dot L_i = \\textstyle\\sum_k P_{ik}\\,\\dot S_{ik}

    Equation :eq:`eq-logsumexp-jvp`: the row's average of the change, weighted by attention.

    Parameters
    ----------
    tS : array (..., n)
    P : array (..., n)
    axis : int

    Returns
    -------
    tL : array of the shape of ``P`` without ``axis``, same dtype

    Raises
    ------
    TypeError
        tS or P is no array of floats, tS is unlike P in dtype or library, or axis is no integer.
    ValueError
        P has another shape than tS, or lacks the axis.
    """
    xp, axis = _same_shape(tS=tS, P=P, axis=axis)
    return narrow(xp.sum(widen(P) * widen(tS), axis=axis), P.dtype)  # eq-logsumexp-jvp


@quietly_on_numpy
def normalize(S: Any, axis: int = -1) -> tuple[Any, Any, Any]:
    """P = exp(S − m) / Z with each row's maximum m and sum Z; L = m + log Z. A row of −∞ only has m = 0, Z = ∞.

    Equations :eq:`def-softmax`, :eq:`eq-softmax-stable`.
    """
    xp = array_namespace(S)
    if S.shape[axis] == 0:  # no maximum to take
        nothing = xp.sum(S, axis=axis, keepdims=True)
        return S, nothing, nothing + xp.inf
    m = xp.max(S, axis=axis, keepdims=True)
    m = xp.where(-xp.inf == m, xp.zeros_like(m), m)
    E = xp.exp(S - m)
    Z = xp.sum(E, axis=axis, keepdims=True)
    Z = xp.where(Z == 0, xp.full_like(Z, xp.inf), Z)  # def-softmax-dead-row
    return E / Z, m, Z  # def-softmax, eq-softmax-stable


def row_logsumexp(m: Any, Z: Any, unit: float = 1.0) -> Any:
    """L = m·unit + log Z (:eq:`def-logsumexp`); −∞ where Z = ∞ says that no key is allowed."""
    xp = array_namespace(Z)
    return xp.where(xp.inf == Z, scalar(-xp.inf, like=Z), m * unit + xp.log(Z))  # def-logsumexp


def _same_shape(*, P: Any, axis: Any, **incoming: Any) -> tuple[Any, int]:
    """Namespace and axis for a derivative, whose incoming array must have the shape of P."""
    ((name, T),) = incoming.items()
    xp = agree(**{name: T, "P": P})
    check_shape(name, T, tuple(P.shape))
    return xp, axis_of("P", P, axis)
