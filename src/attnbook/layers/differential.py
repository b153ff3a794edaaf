"""Differential attention: what two softmaxes have in common is taken away. Chapter: :doc:`/chapters/09_variants`.

Its layer projects and splits heads as any other, with d columns twice in each head's queries and keys; normalizes each
head's output, :func:`~attnbook.norms.rms_norm`, with a gain; and multiplies it by 1 − λ_init.
"""

import math
import reprlib
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple

from attnbook.arguments import as_float, check_broadcasts, check_res, check_shape, is_real, scores_shape
from attnbook.arrays import agree, array_namespace, expected, narrow, unbroadcast, widen
from attnbook.attention import split_by_asker
from attnbook.ops import Op
from attnbook.plan import resolve
from attnbook.spines import SPINES, Way
from attnbook.types import AnyArray, Array, Corner, Method, described


class DifferentialResiduals(NamedTuple):
    """What the backward needs: the residuals of both attentions and the second one's output, in the accumulation
    dtype, and λ.
    """

    first: Any
    second: Any
    O2: Any
    lam: Any


@described
class DifferentialGrads(NamedTuple, Generic[Array]):
    """The gradients of :func:`.differential_attention`, each with the shape of its variable."""

    dQ: Array
    """(..., n_q, 2 d), like Q."""
    dK: Array
    """(..., n_k, 2 d), like K."""
    dV: Array
    """(..., n_k, d_v), like V."""
    dlam: Array
    """The shape of λ."""
    dbias: Array | None
    """The shape of bias; None where there was none."""
    dops: tuple[Any, ...]
    """One entry for each of ``ops``."""


def differential_attention(
    Q: Array,
    K: Array,
    V: Array,
    lam: AnyArray,
    *,
    mask: AnyArray | None = None,
    bias: AnyArray | None = None,
    causal: bool | Corner = False,
    scale: float | None = None,
    ops: Sequence[Op] = (),
    method: Method | Way = "auto",
) -> tuple[Array, DifferentialResiduals]:
    """Subtract from one attention λ times another, to the same values.

    .. math:: O = \\bigl(\\operatorname{softmax}(\\text{scale}\\,Q_1 K_1^{\\mathsf T})
       - \\lambda \\operatorname{softmax}(\\text{scale}\\,Q_2 K_2^{\\mathsf T})\\bigr)\\,V

    Equation :eq:`eq-var-differential`.

    Parameters
    ----------
    Q, K : arrays (..., n_q, 2 d), (..., n_k, 2 d)
        The first d columns are Q_1 and K_1, the others Q_2 and K_2. 1/√d is the scale by default.
    V : array (..., n_k, d_v)
    lam : array
        λ: one number, of shape (), or what broadcasts to the leading axes, such as one a head, (h,).
    mask, bias, causal, scale, ops, method
        As :func:`~attnbook.attention.attention` takes them, for both.

    Returns
    -------
    O : array (..., n_q, d_v)
    res : DifferentialResiduals

    Raises
    ------
    TypeError
        Q, K, V or lam is no array of floats, or they differ in dtype or library; and as
        :func:`~attnbook.attention.attention`.
    ValueError
        The width of Q or K is odd, lam does not broadcast to the leading axes of Q, or what does not fit otherwise.

    Notes
    -----
    Source: Ye et al., "Differential Transformer", section 2.1. λ is the caller's: the paper makes it as
    exp(λ_q1 · λ_k1) − exp(λ_q2 · λ_k2) + λ_init, through which ``dlam`` goes on.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook.layers import differential_attention, differential_attention_vjp
    >>> Q, K, V = np.array([[1.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([[1.0], [0.0]])
    >>> O, res = differential_attention(Q, K, V, np.array(0.5))
    >>> O.round(3).item(), differential_attention_vjp(np.ones((1, 1)), res).dlam.item()
    (0.481, -0.5)
    """
    agree(Q=Q, K=K, V=V, lam=lam)
    for name, T in (("Q", Q), ("K", K)):
        if T.ndim < 2 or T.shape[-1] % 2 or T.shape[-1] == 0:
            wanted = "at least two axes (..., tokens, width), and an even width"
            raise ValueError(expected(name, wanted, f"shape {tuple(T.shape)}"))
    check_broadcasts("lam", tuple(lam.shape), tuple(Q.shape[:-2]), "the leading axes of Q")
    (Q1, Q2), (K1, K2) = _halves(Q), _halves(K)
    options: dict[str, Any] = {"mask": mask, "bias": bias, "causal": causal, "scale": scale, "ops": ops}
    shape, widths = scores_shape(Q1, K1, V), (Q1.shape[-1], V.shape[-1])
    plan = resolve({"Q": Q, "K": K, "V": V}, shape, widths, **options, method=method)
    v = widen(V)
    (O1, first), (O2, second) = (
        SPINES[plan.spine].forward(widen(q), widen(k), v, plan) for q, k in ((Q1, K1), (Q2, K2))
    )
    O = O1 - _of_heads(lam) * O2  # eq-var-differential
    return narrow(O, Q.dtype), DifferentialResiduals(first, second, O2, lam)


def differential_attention_vjp(dO: Array, res: DifferentialResiduals) -> DifferentialGrads[Array]:
    """Pull a gradient back through :func:`.differential_attention`: into the second one goes −λ dO.

    .. math:: dO_1 = dO \\qquad dO_2 = -\\lambda\\,dO \\qquad d\\lambda = -\\langle dO,\\, O_2\\rangle \\qquad
       dV = dV_1 + dV_2

    Equation :eq:`eq-var-differential`. A bias serves both, so its two gradients add up.

    Parameters
    ----------
    dO : array (..., n_q, d_v)
    res : DifferentialResiduals

    Returns
    -------
    DifferentialGrads

    Raises
    ------
    TypeError
        res is not from :func:`differential_attention`, or dO no array like Q.
    ValueError
        dO has another shape than O.
    """
    plan = _plan_of(res)
    xp = agree(lam=res.lam, dO=dO)
    check_shape("dO", dO, tuple(res.O2.shape))
    dO, dtype = widen(dO), dO.dtype
    *halves, steps1 = SPINES[plan.spine].vjp(dO, None, res.first)
    *others, steps2 = SPINES[plan.spine].vjp(-_of_heads(res.lam) * dO, None, res.second)
    dQ, dK = (xp.concat(pair, axis=-1) for pair in zip(halves[:2], others[:2], strict=True))
    dlam = unbroadcast(-xp.sum(dO * res.O2, axis=(-2, -1)), tuple(res.lam.shape))  # eq-var-differential
    dparams = [None if a is None else narrow(a + b, dtype) for a, b in zip(steps1, steps2, strict=True)]
    of_inputs = (narrow(T, dtype) for T in (dQ, dK, halves[2] + others[2], dlam))
    return DifferentialGrads(*of_inputs, *split_by_asker(dparams, plan))  # type: ignore[call-arg]


def differential_attention_jvp(tQ: Array, tK: Array, tV: Array, tlam: AnyArray, res: DifferentialResiduals) -> Array:
    """Push changes of queries, keys, values and λ forward.

    .. math:: \\dot O = \\dot O_1 - \\lambda\\,\\dot O_2 - \\dot\\lambda\\,O_2

    With both of :eq:`eq-attention-jvp`.

    Parameters
    ----------
    tQ, tK, tV, tlam : arrays of the shapes of Q, K, V and λ
    res : DifferentialResiduals

    Returns
    -------
    tO : array (..., n_q, d_v)

    Raises
    ------
    TypeError
        res is not from :func:`differential_attention`, or a tangent no array like Q.
    ValueError
        A tangent has another shape than what moves.
    """
    plan = _plan_of(res)
    agree(lam=res.lam, tQ=tQ, tK=tK, tV=tV, tlam=tlam)
    *lead, width = res.first.Q.shape
    wanted = ((*lead, 2 * width), (*res.first.K.shape[:-1], 2 * width), res.first.V.shape, res.lam.shape)
    for (name, T), shape in zip({"tQ": tQ, "tK": tK, "tV": tV, "tlam": tlam}.items(), wanted, strict=True):
        check_shape(name, T, tuple(shape))
    halves, tv = zip(_halves(widen(tQ)), _halves(widen(tK)), strict=True), widen(tV)
    (tO1, _), (tO2, _) = (
        SPINES[plan.spine].jvp(*half, tv, (None,) * len(plan.ops), kept)
        for half, kept in zip(halves, (res.first, res.second), strict=True)
    )
    return narrow(tO1 - _of_heads(res.lam) * tO2 - _of_heads(tlam) * res.O2, tQ.dtype)


def differential_lambda(q1: Array, k1: Array, q2: Array, k2: Array, init: float) -> Array:
    """λ from four learned vectors, so that it moves at the pace of the other weights.

    .. math:: \\lambda = e^{q_1 \\cdot k_1} - e^{q_2 \\cdot k_2} + \\lambda_{\\text{init}}

    It is the λ of :eq:`eq-var-differential`.

    Parameters
    ----------
    q1, k1, q2, k2 : arrays (..., d)
    init : float
        0.8 − 0.6 exp(−0.3 (l − 1)) in layer l of the paper, counted from 1.

    Returns
    -------
    lam : array (...)

    Raises
    ------
    TypeError
        A vector is no array of floats, or unlike q1.
    ValueError
        q1 has no axis, or another shape than one of the others; or init is no finite number.
    """
    _check_vectors(q1, k1, q2, k2)
    if not is_real(init) or not math.isfinite(as_float(init)):
        raise ValueError(expected("init", "a finite number", reprlib.repr(init)))
    e1, e2 = _exponentials(q1, k1, q2, k2)
    return narrow(e1 - e2 + float(init), q1.dtype)


def differential_lambda_vjp(
    dlam: Array, q1: Array, k1: Array, q2: Array, k2: Array
) -> tuple[Array, Array, Array, Array]:
    """Pull a gradient of λ back to the four vectors.

    .. math:: dq_1 = d\\lambda\\,e^{q_1 \\cdot k_1}\\,k_1 \\qquad dq_2 = -d\\lambda\\,e^{q_2 \\cdot k_2}\\,k_2

    dλ is that of :eq:`eq-var-differential`.

    Parameters
    ----------
    dlam : array (...)
    q1, k1, q2, k2 : arrays (..., d)

    Returns
    -------
    dq1, dk1, dq2, dk2 : arrays (..., d)

    Raises
    ------
    TypeError
        dlam or a vector is no array of floats, or unlike q1.
    ValueError
        dlam has not the shape of λ, or the vectors differ in shape.
    """
    _check_vectors(q1, k1, q2, k2)
    agree(q1=q1, dlam=dlam)
    check_shape("dlam", dlam, tuple(q1.shape[:-1]))
    e1, e2 = _exponentials(q1, k1, q2, k2)
    d1, d2 = ((widen(dlam) * e)[..., None] for e in (e1, -e2))
    return tuple(narrow(d * widen(T), q1.dtype) for d, T in ((d1, k1), (d1, q1), (d2, k2), (d2, q2)))


def _check_vectors(q1: Any, k1: Any, q2: Any, k2: Any) -> None:
    agree(q1=q1, k1=k1, q2=q2, k2=k2)
    if q1.ndim < 1:
        raise ValueError(expected("q1", "at least one axis (..., d)", "shape ()"))
    for name, T in (("k1", k1), ("q2", q2), ("k2", k2)):
        check_shape(name, T, tuple(q1.shape))


def _exponentials(q1: Any, k1: Any, q2: Any, k2: Any) -> Any:
    xp = array_namespace(q1)
    return (xp.exp(xp.sum(widen(q) * widen(k), axis=-1)) for q, k in ((q1, k1), (q2, k2)))


def _halves(T: Any) -> tuple[Any, ...]:
    return T[..., : T.shape[-1] // 2], T[..., T.shape[-1] // 2 :]


def _of_heads(lam: Any) -> Any:
    return widen(lam)[..., None, None]


def _plan_of(res: Any) -> Any:
    check_res(res, "differential_attention", DifferentialResiduals)
    return res.first.plan
