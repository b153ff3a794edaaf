"""Talking heads: the heads' scores are mixed before the softmax, and their weights after it. Chapter:
:doc:`/chapters/09_variants`.

It is no op: an op multiplies each weight by a number of its own, so that D stays rowsum(dO ∘ O), and here it does not.
The table is kept, as in the dense spine.
"""

from typing import Any, Generic, NamedTuple

from attnbook.arguments import check_res, check_scale, check_shape, scores_shape
from attnbook.arrays import agree, array_namespace, expected, mT, narrow, widen
from attnbook.ops import Tile
from attnbook.plan import steps_of
from attnbook.softmax import softmax, softmax_jvp, softmax_vjp
from attnbook.types import AnyArray, Array, described


class TalkingResiduals(NamedTuple):
    """What the backward needs, in the accumulation dtype: Q times the scale, K, V, the scores as they come from the
    product, the weights before they are mixed, both matrices, and the dtype of Q.
    """

    Q: Any
    K: Any
    V: Any
    S: Any
    P: Any
    W_S: Any
    W_P: Any
    scale: float
    dtype: Any


@described
class TalkingGrads(NamedTuple, Generic[Array]):
    """The gradients of :func:`.talking_heads`, each with the shape of its variable."""

    dQ: Array
    """(..., a, n_q, d_k), like Q."""
    dK: Array
    """(..., a, n_k, d_k), like K."""
    dV: Array
    """(..., c, n_k, d_v), like V."""
    dW_S: Array
    """(a, b), like W_S, which mixes the scores of the heads."""
    dW_P: Array
    """(b, c), like W_P, which mixes their weights."""


def talking_heads(
    Q: Any,
    K: Any,
    V: Any,
    W_S: AnyArray,
    W_P: AnyArray,
    *,
    mask: Any = None,
    causal: Any = False,
    scale: float | None = None,
) -> tuple[Array, TalkingResiduals]:
    """Attention whose heads mix their scores, and then their weights, by two learned matrices.

    .. math:: S'_b = \\sum_a S_a\\,(W_S)_{ab} \\qquad P_b = \\operatorname{softmax}(S'_b) \\qquad
       P'_c = \\sum_b P_b\\,(W_P)_{bc} \\qquad O_c = P'_c V_c

    Equation :eq:`eq-var-talking`. The mask is for the mixed scores.

    Parameters
    ----------
    Q, K : arrays (..., a, n_q, d_k), (..., a, n_k, d_k)
    V : array (..., c, n_k, d_v)
    W_S : array (a, b)
    W_P : array (b, c)
    mask, causal, scale
        As for :func:`~attnbook.attention.attention`; mask broadcasts to (..., b, n_q, n_k).

    Returns
    -------
    O : array (..., c, n_q, d_v)
    res : TalkingResiduals

    Raises
    ------
    TypeError
        An array is none of floats, or they differ in dtype or library; mask is not of bools, or scale no number.
    ValueError
        Q has fewer than three axes, or a table of heads or another shape does not fit.

    Notes
    -----
    Source: Shazeer et al., "Talking-Heads Attention", section 3.
    """
    shape, steps = _check(Q, K, V, W_S, W_P, mask, causal)
    scale = check_scale(scale, Q.shape[-1])
    q, k, v, w_S, w_P = widen(Q) * scale, *map(widen, (K, V, W_S, W_P))
    S = q @ mT(k)
    mixed = _mix(S, w_S)
    for _, op in steps:
        mixed, _ = op.forward(mixed, Tile.whole(*shape[-2:]))
    P = softmax(mixed)
    O = _mix(P, w_P) @ v
    return narrow(O, Q.dtype), TalkingResiduals(q, k, v, S, P, w_S, w_P, scale, Q.dtype)


def talking_heads_vjp(dO: Array, res: TalkingResiduals) -> TalkingGrads[Array]:
    """Pull a gradient back through :func:`.talking_heads`: a mixing goes back by its transpose.

    .. math:: dP_b = \\sum_c dP'_c\\,(W_P)_{bc} \\qquad (dW_P)_{bc} = \\langle P_b,\\, dP'_c\\rangle \\qquad
       dS_a = \\sum_b dS'_b\\,(W_S)_{ab} \\qquad (dW_S)_{ab} = \\langle S_a,\\, dS'_b\\rangle

    Of :eq:`eq-var-talking`; dS' is that of :eq:`eq-softmax-vjp`.

    Parameters
    ----------
    dO : array (..., c, n_q, d_v)
    res : TalkingResiduals

    Returns
    -------
    TalkingGrads

    Raises
    ------
    TypeError
        res is not from :func:`talking_heads`; dO is no array like Q.
    ValueError
        dO lacks the shape of O.
    """
    check_res(res, "talking_heads", TalkingResiduals)
    agree(dO=dO)
    _check_dtype("dO", dO, res)
    check_shape("dO", dO, (*res.V.shape[:-2], res.S.shape[-2], res.V.shape[-1]))
    dO = widen(dO)
    dmixed, dV = dO @ mT(res.V), mT(_mix(res.P, res.W_P)) @ dO
    dP = _mix(dmixed, mT(res.W_P))  # eq-var-talking
    dscores = softmax_vjp(dP, res.P)
    dS = _mix(dscores, mT(res.W_S))  # eq-var-talking
    dQ, dK = res.scale * (dS @ res.K), mT(dS) @ res.Q
    return TalkingGrads(*(narrow(T, res.dtype) for T in (dQ, dK, dV, _inner(res.S, dscores), _inner(res.P, dmixed))))


def talking_heads_jvp(tQ: Array, tK: Array, tV: Array, tW_S: AnyArray, tW_P: AnyArray, res: TalkingResiduals) -> Array:
    """Push changes of queries, keys, values and both matrices forward: the product rule at each step.

    .. math:: \\dot S' = \\dot S\\,W_S + S\\,\\dot W_S \\qquad \\dot P' = \\dot P\\,W_P + P\\,\\dot W_P \\qquad
       \\dot O = \\dot P' V + P' \\dot V

    With Ṡ of :eq:`eq-attention-jvp`.

    Parameters
    ----------
    tQ, tK, tV, tW_S, tW_P : arrays of the shapes of Q, K, V, W_S and W_P
    res : TalkingResiduals

    Returns
    -------
    tO : array (..., c, n_q, d_v)

    Raises
    ------
    TypeError
        res is not from :func:`talking_heads`, or a tangent is unlike Q.
    ValueError
        The shape of a tangent is not its variable's.
    """
    check_res(res, "talking_heads", TalkingResiduals)
    agree(tQ=tQ, tK=tK, tV=tV, tW_S=tW_S, tW_P=tW_P)
    _check_dtype("tQ", tQ, res)
    tangents = {"tQ": tQ, "tK": tK, "tV": tV, "tW_S": tW_S, "tW_P": tW_P}
    for (name, T), like in zip(tangents.items(), (res.Q, res.K, res.V, res.W_S, res.W_P), strict=True):
        check_shape(name, T, tuple(like.shape))
    tq, tk, tv, tw_S, tw_P = widen(tQ) * res.scale, *map(widen, (tK, tV, tW_S, tW_P))
    tS = tq @ mT(res.K) + res.Q @ mT(tk)
    tP = softmax_jvp(_mix(tS, res.W_S) + _mix(res.S, tw_S), res.P)
    tmixed = _mix(tP, res.W_P) + _mix(res.P, tw_P)
    return narrow(tmixed @ res.V + _mix(res.P, res.W_P) @ tv, res.dtype)


def _mix(S: Any, T: Any) -> Any:
    """Σ_a S_a T_ab: the heads are axis −3 of S."""
    xp = array_namespace(S)
    return xp.moveaxis(xp.moveaxis(S, -3, -1) @ T, -1, -3)


def _inner(A: Any, B: Any) -> Any:
    """⟨A_a, B_b⟩ for each pair of heads, summed over all else."""
    xp = array_namespace(A)
    a, b = (xp.reshape(xp.moveaxis(T, -3, 0), (T.shape[-3], -1)) for T in (A, B))
    return a @ mT(b)


def _check(Q: Any, K: Any, V: Any, W_S: Any, W_P: Any, mask: Any, causal: Any) -> tuple[Any, ...]:
    """The shape of the mixed scores and the steps of the mask, or an error that names what does not fit."""
    agree(Q=Q, K=K, V=V, W_S=W_S, W_P=W_P)
    for name, T, axes in (("Q", Q, 3), ("K", K, 3), ("V", V, 3), ("W_S", W_S, 2), ("W_P", W_P, 2)):
        if T.ndim < axes or axes == 2 < T.ndim:
            wanted = "at least three axes (..., heads, tokens, width)" if axes == 3 else "two axes (heads, heads)"
            raise ValueError(expected(name, wanted, f"shape {tuple(T.shape)}"))
    scores_shape(Q, K, K, names=("Q", "K", "K"), sharing=False)
    check_shape("K", K, (*Q.shape[:-2], *K.shape[-2:]))
    check_shape("W_S", W_S, (Q.shape[-3], W_P.shape[0]))
    check_shape("V", V, (*Q.shape[:-3], W_P.shape[1], K.shape[-2], V.shape[-1]))
    shape = (*Q.shape[:-3], W_S.shape[1], Q.shape[-2], K.shape[-2])
    steps = steps_of(mask=mask, causal=causal)
    for asked_by, op in steps:
        op.check(asked_by, Q, "Q", shape)
    return shape, steps


def _check_dtype(name: str, T: Any, res: Any) -> None:
    if T.dtype != res.dtype:
        raise TypeError(expected(name, f"dtype {res.dtype} like Q", T.dtype))
