"""Scaled dot-product attention and its derivatives: the public face. Chapter: :doc:`/chapters/03_single_head`.

Arguments are checked here, turned into ops, and handed to a spine; no mathematics happens in this file.
"""

from typing import NamedTuple

from attnbook.arguments import (
    check_fits_scores,
    check_mask,
    check_ops,
    check_scale,
    check_shape,
    choose,
    scores_shape,
)
from attnbook.arrays import agree, expected
from attnbook.ops import Bias, Causal, Mask, Scale, Step
from attnbook.spines import METHODS, pick, spine_of

CORNERS = {False: None, True: "top-left", "top-left": "top-left", "bottom-right": "bottom-right"}


class AttentionGrads(NamedTuple):
    """The gradients of :func:`attention`, each with the shape of its variable."""

    dQ: object
    dK: object
    dV: object
    dbias: object
    dops: tuple


def attention(Q, K, V, *, mask=None, bias=None, causal=False, scale=None, ops=(), method="auto"):
    """Let every query take a weighted mean of the values, weighted by how well its keys match.

    .. math::
       O = P\\,V \\qquad P = \\operatorname{softmax}(S) \\qquad
       S = \\text{scale}\\cdot Q K^{\\mathsf T} + \\text{bias}

    Equation :eq:`def-attention`. The order of the steps is fixed: scale, then ``ops`` in the order given, then bias,
    mask and causal, then softmax over the keys.

    Parameters
    ----------
    Q : array (..., n_q, d_k)
        Queries. Leading axes (batch, heads) broadcast against those of K and V.
    K : array (..., n_k, d_k)
        Keys.
    V : array (..., n_k, d_v)
        Values. K and V may have fewer heads (axis −3) than Q, if their number divides Q's.
    mask : bool array, optional
        Broadcasts to (..., n_q, n_k). True = may attend.
    bias : array of the dtype of Q, optional
        Broadcasts to (..., n_q, n_k). Added to the scaled scores, in nats; −∞ forbids a key.
    causal : False, True, "top-left" or "bottom-right"
        Forbid later keys. True is "top-left". The two corners differ where n_q ≠ n_k.
    scale : float, optional
        1/√d_k by default.
    ops : sequence of ops
        Further steps for the scores; see :class:`attnbook.ops.op.Op`.
    method : "auto", "dense", "tiled" or "fused"
        "dense" keeps P for the backward: n_q × n_k numbers a head. "tiled" keeps O and L and never holds an
        n_q × n_k array: it visits the table in tiles, makes P again in the backward, and skips what is masked.
        "auto" takes "dense" for small tables and "tiled" for the others. The gradients are the same. "fused" is
        "tiled" as Triton kernels: for torch tensors on a CUDA device that no gradient of autograd is asked of, in
        float32, bfloat16 or float16, with heads up to 256 wide; of ops it takes Softcap, one bias, and Window.

    Returns
    -------
    O : array (..., n_q, d_v), namespace, dtype and device of Q
        Exactly 0 in a row with no allowed key, and where n_k = 0.
    res : Residuals
        What :func:`attention_vjp` and :func:`attention_jvp` need: Q, K, V (not copied), and in the accumulation
        dtype either P (``res.P``) or O and L (``res.O``, ``res.L``), as the method says; "fused" keeps O as it is.

    Raises
    ------
    TypeError
        An argument of the wrong type or dtype, or of another library than Q.
    ValueError
        Widths, lengths or leading axes that do not fit, a head width of 0, a scale that is not finite,
        an unknown ``causal`` or ``method``.

    Notes
    -----
    16-bit floats are widened to float32 at the door and narrowed at the end. A forbidden key and its value must still
    be finite: 0 · NaN is NaN. Source: Vaswani et al., "Attention Is
    All You Need", eq. 1. Chapter: :doc:`/chapters/03_single_head`.

    Examples
    --------
    >>> import numpy as np, attnbook as ab
    >>> Q, K = np.array([[1.0], [0.0]]), np.array([[1.0], [0.0]])
    >>> O, res = ab.attention(Q, K, K, scale=1.0)
    >>> res.P.round(4).tolist()
    [[0.7311, 0.2689], [0.5, 0.5]]
    """
    agree(Q=Q, K=K, V=V, optional={"bias": bias})
    shape = scores_shape(Q, K, V)
    forward, steps = plan(Q, shape, mask=mask, bias=bias, causal=causal, scale=scale, ops=ops, method=method)
    return forward(Q, K, V, steps, shape)


def plan(Q, shape, *, mask, bias, causal, scale, ops, method, d_k=None, like="Q"):
    """The forward of the spine that the options ask for, and the steps; an error where an option does not fit.

    ``Q`` stands for library and device, and is called ``like`` in messages; d_k is its width where none is given.
    """
    check_fits_scores("bias", bias, shape)
    check_mask(mask, Q, like)
    check_fits_scores("mask", mask, shape)
    scale = check_scale(scale, d_k or Q.shape[-1])
    ops = check_ops(ops)
    for op in ops:  # of the package, with an array that lies over the scores
        if isinstance(op, Bias):
            agree(**{like: Q, "ops, Bias": op.B})
            check_fits_scores("ops, Bias", op.B, shape)
        elif isinstance(op, Mask):
            check_mask(op.M, Q, like, "ops, Mask")
            check_fits_scores("ops, Mask", op.M, shape)
    method = choose("method", method, {name: name for name in METHODS})
    corner = choose("causal", causal, CORNERS)

    steps = [Step("scale", Scale(scale)), *(Step("ops", op) for op in ops)]
    if bias is not None:
        steps.append(Step("bias", Bias(bias)))
    if mask is not None:
        steps.append(Step("mask", Mask(mask)))
    if corner is not None:
        steps.append(Step("causal", Causal(corner)))
    return pick(method, Q, shape), steps


def attention_vjp(dO, res):
    """Pull a gradient back through attention: the one backward behind all of the book's formulas.

    .. math::
       dV = P^{\\mathsf T} dO \\qquad dP = dO\\,V^{\\mathsf T} \\qquad
       dS = P \\circ \\bigl(dP - \\operatorname{rowsum}(dP \\circ P)\\bigr)

       dQ = \\text{scale}\\cdot dS\\,K \\qquad dK = \\text{scale}\\cdot dS^{\\mathsf T} Q \\qquad
       d\\text{bias} = \\textstyle\\sum_{\\text{broadcast axes}} dS

    Equations :eq:`eq-dV`, :eq:`eq-dP`, :eq:`eq-dS`, :eq:`eq-dQ`, :eq:`eq-dK` and :eq:`eq-op-bias`.

    Parameters
    ----------
    dO : array of the shape, dtype and library of O
        The gradient that arrives at the output.
    res : Residuals
        As :func:`attention` returned it. It is not changed, and may be used again.

    Returns
    -------
    AttentionGrads
        ``dQ``, ``dK``, ``dV`` with the shapes of Q, K, V; ``dbias`` with the shape of bias, None where none was
        given; ``dops``, one entry for each of ``ops``, None for an op with no parameter.

    Raises
    ------
    TypeError, ValueError
        ``dO`` does not fit the output, or ``res`` is not a residual.

    Notes
    -----
    A row with no allowed key gives and gets exactly 0. Chapter: :doc:`/chapters/03_single_head`.
    """
    spine = spine_of(res)
    agree(Q=res.Q, dO=dO)
    check_shape("dO", dO, (*res.shape[:-1], res.V.shape[-1]))
    dQ, dK, dV, dparams = spine.vjp(dO, res)
    asked = [(step.asked_by, dparam) for step, dparam in zip(res.steps, dparams, strict=True)]
    dbias = next((dparam for asked_by, dparam in asked if asked_by == "bias"), None)
    return AttentionGrads(dQ, dK, dV, dbias, tuple(dparam for asked_by, dparam in asked if asked_by == "ops"))


def attention_jvp(tQ, tK, tV, res, *, tbias=None, tops=None):
    """Push changes of queries, keys and values forward through attention, all at once.

    .. math::
       \\dot S = \\text{scale}\\,(\\dot Q K^{\\mathsf T} + Q \\dot K^{\\mathsf T}) + \\dot{\\text{bias}} \\qquad
       \\dot P = P \\circ \\bigl(\\dot S - \\operatorname{rowsum}(\\dot S \\circ P)\\bigr) \\qquad
       \\dot O = \\dot P\\,V + P\\,\\dot V

    Equation :eq:`eq-attention-jvp`.

    Parameters
    ----------
    tQ, tK, tV : arrays of the shapes of Q, K, V
        Tangents. For a variable that does not move, zeros.
    res : Residuals
        As :func:`attention` returned it.
    tbias : array of the shape of bias, optional
        Zero where it is not given.
    tops : sequence, optional
        The tangent of each op's parameter, None for zero.

    Returns
    -------
    tO : array (..., n_q, d_v)

    Raises
    ------
    TypeError, ValueError
        Names the tangent whose type, dtype or shape does not fit.

    Notes
    -----
    Chapter: :doc:`/chapters/03_single_head`.
    """
    spine = spine_of(res)
    agree(Q=res.Q, tQ=tQ, tK=tK, tV=tV, optional={"tbias": tbias})
    for name, tangent, T in (("tQ", tQ, res.Q), ("tK", tK, res.K), ("tV", tV, res.V)):
        check_shape(name, tangent, tuple(T.shape))
    bias = next((step.op.B for step in res.steps if step.asked_by == "bias"), None)
    if tbias is not None:
        if bias is None:
            raise ValueError(expected("tbias", "None, because attention had no bias", "an array"))
        check_shape("tbias", tbias, tuple(bias.shape))
    ops = [step.op for step in res.steps if step.asked_by == "ops"]
    tops = (None,) * len(ops) if tops is None else tops
    if not isinstance(tops, tuple | list):
        raise TypeError(expected("tops", "a tuple or a list", type(tops).__name__))
    if len(tops) != len(ops):
        raise ValueError(expected("tops", f"{len(ops)} entries, one for each of ops", len(tops)))
    for op, tangent in zip(ops, tops, strict=True):
        if tangent is not None:
            if getattr(op, "parameter", None) is None:
                raise ValueError(expected("tops", f"None for {type(op).__name__}, which has no parameter", "an array"))
            agree(Q=res.Q, tops=tangent)
            check_shape("tops", tangent, tuple(op.parameter.shape))
    of_ops = iter(tops)
    tangent = {"bias": lambda: tbias, "ops": lambda: next(of_ops)}
    tparams = [tangent[step.asked_by]() if step.asked_by in tangent else None for step in res.steps]
    return spine.jvp(tQ, tK, tV, tparams, res)
