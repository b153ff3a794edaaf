"""Scaled dot-product attention and its derivatives: the public face. Chapter: :doc:`/chapters/04_single_head`.

Arguments are checked here, turned into a plan, and handed to a spine; no mathematics happens in this file.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple

from attnbook.arguments import check_flags, check_res, check_shape, scores_shape
from attnbook.arrays import agree, expected
from attnbook.ops import Op
from attnbook.plan import resolve
from attnbook.spines import SPINES, Way
from attnbook.types import AnyArray, Array, Corner, Method, Residuals, described

RESIDUALS = {spine.Residuals for spine in SPINES.values()}


@described
class AttentionGrads(NamedTuple, Generic[Array]):
    """The gradients of :func:`~attnbook.attention.attention`, each with the shape of its variable."""

    dQ: Array
    """(..., n_q, d_k), like Q."""
    dK: Array
    """(..., n_k, d_k), like K; summed over the query heads that share a key head."""
    dV: Array
    """(..., n_k, d_v), like V."""
    dbias: Array | None
    """The shape of bias, summed over the axes along which it was stretched; None where there was none."""
    dops: tuple[Any, ...]
    """One entry for each of ``ops``: the gradient of its parameter, None for an op with no parameter."""


def attention(
    Q: Array,
    K: Array,
    V: Array,
    *,
    mask: AnyArray | None = None,
    bias: AnyArray | None = None,
    causal: bool | Corner = False,
    scale: float | None = None,
    ops: Sequence[Op] = (),
    method: Method | Way = "auto",
) -> tuple[Array, Residuals]:
    """Let every query take a weighted mean of the values, weighted by how well its keys match.

    .. math::
       O = P\\,V \\qquad P = \\operatorname{softmax}(S) \\qquad
       S = \\text{scale}\\cdot Q K^{\\mathsf T} + \\text{bias}

    Equation :eq:`def-attention`, with ops :eq:`def-op`. The order of the steps is fixed: scale, then ``ops`` in the
    order given, then bias, then all that forbids keys, also of ``ops``, then softmax over the keys.

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
    method : "auto", "dense", "tiled", "fused", or a Way
        "dense" keeps P for the backward: n_q × n_k numbers a head. "tiled" keeps O and L and never holds an
        n_q × n_k array: it visits the table in tiles, makes P again in the backward, and skips what is masked.
        "auto" takes "dense" for small tables and "tiled" for the others. The gradients are the same. "fused" is
        "tiled" as Triton kernels: for torch tensors on a CUDA device that no gradient of autograd is asked of, in
        float32, bfloat16 or float16, with heads up to 256 wide, and ops that declare how a kernel does them: Softcap,
        one bias or ALiBi, one mask, Window, Sink. A ``Way`` of :mod:`attnbook.spines` names a spine and its tiles.

    Returns
    -------
    O : array (..., n_q, d_v), namespace, dtype and device of Q
        Exactly 0 in a row with no allowed key, and where n_k = 0.
    res : Residuals
        What :func:`attention_vjp` and :func:`attention_jvp` need: Q, K, V (not copied), and in the accumulation
        dtype P (``res.P``) or O (``res.O``), as the method says; "fused" keeps O as it is. ``res.L`` is L in all.

    Raises
    ------
    TypeError
        Q, K or V is no array of floats, or they differ in dtype or library; mask is not of bools, bias not like Q;
        scale is no number; ops is no sequence of :class:`~attnbook.ops.op.Op` objects, or one's arrays do not fit Q; or
        the method cannot take this library.
    ValueError
        A shape does not fit, a head has width 0, an option is none of those above, scale is not finite, or an op does
        not fit the table.

    Notes
    -----
    A forbidden key and its value must still be finite: 0 · NaN is NaN. Source: Vaswani et al., "Attention Is All You
    Need", eq. 1.

    Examples
    --------
    >>> import numpy as np, attnbook as ab
    >>> Q, K = np.array([[1.0], [0.0]]), np.array([[1.0], [0.0]])
    >>> O, res = ab.attention(Q, K, K, scale=1.0)
    >>> res.P.round(4).tolist()
    [[0.7311, 0.2689], [0.5, 0.5]]
    """
    given: dict[str, Any] = {"Q": Q, "K": K, "V": V}
    agree(**given)
    shape, widths = scores_shape(Q, K, V), (Q.shape[-1], V.shape[-1])
    options: dict[str, Any] = {
        "mask": mask,
        "bias": bias,
        "causal": causal,
        "scale": scale,
        "ops": ops,
        "method": method,
    }
    plan = resolve(given, shape, widths, **options)
    return SPINES[plan.spine].forward(Q, K, V, plan)


def attention_vjp(dO: Array, res: Residuals, dL: AnyArray | None = None) -> AttentionGrads[Array]:
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
    dL : array (..., n_q) like ``res.L``, optional
        The gradient that arrives at L, where the loss uses that too. It makes dS = P ∘ (dP − (D − dL)).

    Returns
    -------
    AttentionGrads
        ``dQ``, ``dK`` and ``dV`` with the shapes of Q, K and V; ``dbias`` with that of the bias, None without one;
        ``dops``, a gradient for each of ``ops``, None where it learns nothing.

    Raises
    ------
    TypeError
        res is not from :func:`attention`, dO no array like Q, or dL none like ``res.L``.
    ValueError
        dO has not the shape of O, or dL not that of L.

    Notes
    -----
    A row with no allowed key gives and gets exactly 0.
    """
    plan = _plan_of(res)
    _check_like("dO", dO, "Q", res.Q, (*plan.shape[:-1], plan.widths[1]))
    if dL is not None:
        _check_like("dL", dL, "res.L", res.M, plan.shape[:-1])
    *grads, dparams = SPINES[plan.spine].vjp(dO, dL, res)
    return AttentionGrads(*grads, *split_by_asker(dparams, plan))  # type: ignore[call-arg]


def split_by_asker(dparams: Sequence[Any], plan: Any) -> tuple[Any, tuple[Any, ...]]:
    """The gradient of the argument bias, and those of the argument ops."""
    n_ops = plan.asked_by.count("ops")  # they come first
    return dparams[plan.asked_by.index("bias")] if "bias" in plan.asked_by else None, tuple(dparams[:n_ops])


def attention_jvp(
    tQ: Array,
    tK: Array,
    tV: Array,
    res: Residuals,
    *,
    tbias: AnyArray | None = None,
    tops: Sequence[Any] | None = None,
    with_L: bool = False,
) -> Any:
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
    with_L : bool
        Also return the tangent of L, rowsum(Ṡ ∘ P).

    Returns
    -------
    tO : array (..., n_q, d_v); with ``with_L`` a pair, tO and tL (..., n_q), the latter 0 in a row with no allowed key

    Raises
    ------
    TypeError
        res is not from :func:`attention`, a tangent is no array like Q, or tops no tuple or list.
    ValueError
        A tangent has another shape than its variable, or tbias or an entry of tops moves what is not there.

    Notes
    -----
    "tiled" makes it in one sweep over the tiles, :eq:`eq-orders-sweep`. Chapter: :doc:`/chapters/13_every_order`.
    """
    plan = _plan_of(res)
    tparams = check_tangents(tQ, tK, tV, tbias, tops, res)
    check_flags(with_L=with_L)
    tO, tL = SPINES[plan.spine].jvp(tQ, tK, tV, tparams, res)
    return (tO, tL) if with_L else tO


def attention_hvp(
    tQ: Array,
    tK: Array,
    tV: Array,
    dO: Array,
    res: Residuals,
    *,
    tdO: Array | Callable[[Array], Array] | None = None,
    dL: AnyArray | None = None,
    tdL: AnyArray | Callable[[Any], Any] | None = None,
    tbias: AnyArray | None = None,
    tops: Sequence[Any] | None = None,
    with_O: bool = False,
) -> Any:
    """Push changes forward through the backward: how the gradients move. Hessian products are made of it.

    .. math::
       \\dot P = P \\circ (\\dot S - \\dot L) \\qquad
       \\dot D = \\operatorname{rowsum}(\\dot{dO} \\circ O + dO \\circ \\dot O) - \\dot{dL} \\qquad
       \\dot{dP} = \\dot{dO}\\,V^{\\mathsf T} + dO\\,\\dot V^{\\mathsf T}

       \\dot{dS} = \\dot P \\circ (dP - D) + P \\circ (\\dot{dP} - \\dot D) \\qquad
       \\dot{dV} = \\dot P^{\\mathsf T} dO + P^{\\mathsf T} \\dot{dO}

       \\dot{dQ} = \\text{scale}\\,(\\dot{dS}\\,K + dS\\,\\dot K) \\qquad
       \\dot{dK} = \\text{scale}\\,(\\dot{dS}^{\\mathsf T} Q + dS^{\\mathsf T} \\dot Q)

    Equation :eq:`eq-orders-gradients`: the product rule, in each line of :func:`attention_vjp`. S, L and O move as in
    :func:`attention_jvp`, :eq:`eq-orders-forward`.

    Parameters
    ----------
    tQ, tK, tV : arrays of the shapes of Q, K, V
        The direction. For a variable that does not move, zeros.
    dO : array of the shape, dtype and library of O
        The gradient that arrives at the output.
    res : Residuals
        As :func:`attention` returned it.
    tdO : array like dO, or a function of tO that returns one, optional
        How dO moves, by default not at all. Of a loss of O it is ∂²ℓ/∂O² times the tangent of O, which the call finds
        on its way: the product with the Hessian of ½‖O‖² has ``dO=O, tdO=lambda tO: tO``.
    dL, tdL : arrays (..., n_q) like ``res.L``, optional
        Likewise for L; ``tdL`` may be a function of tL.
    tbias, tops
        As :func:`attention_jvp` takes them.
    with_O : bool
        Also return the tangents of O and L.

    Returns
    -------
    AttentionGrads
        Its fields are the tangents of the gradients: ``dQ`` is that of dQ, and so on. With ``with_O`` a triple: these,
        tO and tL.

    Raises
    ------
    TypeError
        res is not from :func:`attention`; what is given, or what tdO or tdL returns, is no array like Q (like ``res.L``
        for L); or an op saves something for its derivatives, and has no :meth:`~attnbook.ops.op.Op.vjp_jvp`.
    ValueError
        A shape does not fit, as for the vjp and the jvp.

    Notes
    -----
    The backward is linear in dO, and symmetric: pulled back through it, cotangents of dQ, dK and dV give to Q, K and V
    what this gives for them as ``tQ``, ``tK`` and ``tV``, and to dO and dL the tO and tL. So this is double backward,
    too, :eq:`eq-orders-double`. Products with the Gauss–Newton matrix need only the other two:
    ``attention_vjp(H @ attention_jvp(...), res)`` with the loss's Hessian H. A row with no allowed key gives and gets
    exactly 0. "tiled" makes all of it in two sweeps over the tiles, and holds no n_q × n_k array; "fused" does as
    "tiled" does, in the library's own operations.
    Source: Pearlmutter, "Fast Exact Multiplication by the Hessian", 1994. Chapter: :doc:`/chapters/13_every_order`.

    Examples
    --------
    The Hessian of ½‖O‖² as a table, a column a call:

    >>> import numpy as np, attnbook as ab
    >>> Q, K, V = np.array([[1.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[1.0], [0.0]])
    >>> O, res = ab.attention(Q, K, V, scale=1.0)
    >>> along = lambda tQ: ab.attention_hvp(tQ, 0 * K, 0 * V, O, res, tdO=lambda tO: tO).dQ[0]
    >>> np.array([along(tQ[None]) for tQ in np.eye(2)]).round(4).tolist()
    [[-0.0278, 0.0278], [0.0278, -0.0278]]
    """
    plan = _plan_of(res)
    tparams = check_tangents(tQ, tK, tV, tbias, tops, res)
    check_flags(with_O=with_O)
    like_O, like_L = ("Q", res.Q, (*plan.shape[:-1], plan.widths[1])), ("res.L", res.M, plan.shape[:-1])
    _check_like("dO", dO, *like_O)
    if dL is not None:
        _check_like("dL", dL, *like_L)
    turns = _checked("tdO", tdO, *like_O), _checked("tdL", tdL, *like_L)
    *grads, tdparams, tO, tL = SPINES[plan.spine].hvp(tQ, tK, tV, tparams, dO, dL, turns, res)
    found: AttentionGrads[Array] = AttentionGrads(*grads, *split_by_asker(tdparams, plan))  # type: ignore[call-arg]
    return (found, tO, tL) if with_O else found


def _check_like(name: str, T: Any, like_name: str, like: Any, shape: tuple[int, ...]) -> None:
    """An error, where T has not the library, dtype and device of ``like``, or not this shape."""
    agree(**{like_name: like, name: T})
    check_shape(name, T, shape)


def _checked(name: str, change: Any, *wanted: Any) -> Any:
    """A change after its check, or a function that checks what the given one returns; None where there is none."""
    if change is None:
        return None
    if not callable(change):
        _check_like(name, change, *wanted)
        return change

    def found(moved: Any) -> Any:
        _check_like(f"{name}({name.replace('d', '')})", came := change(moved), *wanted)
        return came

    return found


def check_tangents(tQ: Any, tK: Any, tV: Any, tbias: Any, tops: Any, res: Any) -> tuple[Any, ...]:
    """The tangents of the plan's ops, one each, or an error where a tangent does not fit."""
    plan = res.plan
    agree({"tbias": tbias}, Q=res.Q, tQ=tQ, tK=tK, tV=tV)
    for name, tangent, T in (("tQ", tQ, res.Q), ("tK", tK, res.K), ("tV", tV, res.V)):
        check_shape(name, tangent, tuple(T.shape))
    if tbias is not None and "bias" not in plan.asked_by:
        raise ValueError(expected("tbias", "None, because attention had no bias", "an array"))
    n_ops = plan.asked_by.count("ops")
    tops = (None,) * n_ops if tops is None else tops
    if not isinstance(tops, tuple | list):
        raise TypeError(expected("tops", "a tuple or a list", type(tops).__name__))
    if len(tops) != n_ops:
        raise ValueError(expected("tops", f"{n_ops} entries, one for each of ops", len(tops)))
    tparams = (*tops, *(tbias if asked_by == "bias" else None for asked_by in plan.asked_by[n_ops:]))
    for op, tangent, asked_by in zip(plan.ops, tparams, plan.asked_by, strict=True):
        if tangent is not None:
            name = "tops" if asked_by == "ops" else "tbias"
            if op.parameter is None:
                raise ValueError(expected(name, f"None for {type(op).__name__}, which has no parameter", "an array"))
            agree(Q=res.Q, **{name: tangent})
            check_shape(name, tangent, tuple(op.parameter.shape))
    return tparams


def _plan_of(res: Any) -> Any:
    check_res(res, "attention", *RESIDUALS)
    return res.plan
