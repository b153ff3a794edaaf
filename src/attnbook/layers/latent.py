"""Multi-head latent attention: keys and values made from one narrow row a token. Chapter: :doc:`/chapters/09_variants`.

Positions are decoupled: a part of the queries and one key for all heads are turned, nothing else. So W_UK of the other
part may be moved to the queries: the absorbed form attends to c itself, all that a cache keeps beside the turned key.
"""

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple

from attnbook.arguments import check_count, check_eps, check_flags, check_res, check_scale, check_shape
from attnbook.arrays import agree, array_namespace, expected, kind, mT, narrow, unbroadcast, widen
from attnbook.attention import split_by_asker
from attnbook.heads import merge_heads, split_heads
from attnbook.linear import project_vjp
from attnbook.norms import norm, norm_vjp
from attnbook.ops import Op
from attnbook.plan import resolve
from attnbook.rotary import Rotary
from attnbook.spines import SPINES, Way
from attnbook.types import AnyArray, Array, Corner, Method, described


@described
class LatentParams(NamedTuple, Generic[Array]):
    """The weights of latent attention, or their gradients, with the paper's names. Used as ``X @ W``.

    Down to the latent rows: W_DQ (d_model, d_q), W_DKV (d_model, d_c). Up to the heads: W_UQ (d_q, h·d_n), W_UK
    (d_c, h·d_n), W_UV (d_c, h·d_v). What is turned: W_QR (d_q, h·d_r), and for all heads W_KR (d_model, d_r). Out: W_O
    (h·d_v, d_out). Without W_DQ queries are made from X itself. Latent rows with a gain, g_Q (d_q,) or g_KV (d_c,), are
    RMS-normalized.

    DeepSeek's layers on Hugging Face keep them transposed and in pairs. Of ``kv_a_proj_with_mqa`` the columns after d_c
    are W_KR; of ``kv_b_proj`` each head has d_n columns of W_UK, then d_v of W_UV; of ``q_b_proj`` so W_UQ and W_QR::

        W_DKV, W_KR = np.split(kv_a_proj_with_mqa.T, [d_c], axis=1)
        W_UK, W_UV = (W.reshape(d_c, -1) for W in np.split(kv_b_proj.T.reshape(d_c, h, -1), [d_n], axis=2))
    """

    W_DQ: Array | None
    W_UQ: Array
    W_QR: Array
    W_DKV: Array
    W_UK: Array
    W_UV: Array
    W_KR: Array
    W_O: Array
    g_Q: Array | None = None
    g_KV: Array | None = None


class LatentResiduals(NamedTuple):
    """What the backward needs; ``of_Q`` and ``of_K`` are the latent rows before their norm and after it."""

    X: Any
    params: LatentParams
    num_heads: int
    absorbed: bool
    rotary: Rotary
    eps: float
    of_Q: tuple[Any, ...]
    of_K: tuple[Any, ...]
    Q_C: Any
    O: Any
    C: Any
    attention: Any


@described
class LatentGrads(NamedTuple, Generic[Array]):
    """The gradients of :func:`.latent_attention`, each with the shape of its variable."""

    dX: Array
    """(..., n, d_model), like X."""
    dparams: LatentParams[Array]
    """The gradients of the weights and gains, in their places."""
    dbias: Array | None
    """The shape of bias; None where there was none."""
    dops: tuple[Any, ...]
    """One entry for each of ``ops``."""


def latent_attention(
    X: Any,
    p: LatentParams[Array],
    *,
    num_heads: int,
    absorbed: bool = False,
    rotary: Rotary | None = None,
    eps: Any = 1e-6,
    mask: AnyArray | None = None,
    bias: AnyArray | None = None,
    causal: bool | Corner = False,
    scale: float | None = None,
    ops: Sequence[Op] = (),
    method: Method | Way = "auto",
) -> tuple[Array, LatentResiduals]:
    """Multi-head attention whose keys and values pass through a narrow latent row.

    .. math::
       c^Q = \\operatorname{norm}(X W_{DQ}) \\qquad c = \\operatorname{norm}(X W_{DKV}) \\qquad
       Q_r = \\bigl[c^Q W^{UQ}_r,\\; R(c^Q W^{QR}_r)\\bigr] \\qquad
       K_r = \\bigl[c\\,W^{UK}_r,\\; R(X W_{KR})\\bigr] \\qquad V_r = c\\,W^{UV}_r

    Absorbed, the same scores and outputs by products in another order, with one key and value head for all:

    .. math::
       Q'_r = \\bigl[c^Q W^{UQ}_r (W^{UK}_r)^{\\mathsf T},\\; R(c^Q W^{QR}_r)\\bigr] \\qquad
       K' = \\bigl[c,\\; R(X W_{KR})\\bigr] \\qquad V' = c \\qquad O_r = (P_r\\,c)\\,W^{UV}_r

    Equations :eq:`def-var-mla` and :eq:`eq-var-mla-absorbed`; R is the rotation of :eq:`def-var-rope`.

    Parameters
    ----------
    X : array (..., n, d_model)
    p : LatentParams
    num_heads : int
    absorbed : bool
        Which of the two; they differ by rounding only.
    rotary : Rotary, optional
        How the turned parts are; interleaved, at positions 0 to n − 1, by default.
    eps : float
        Of the norms.
    mask, bias, causal, scale, ops, method
        As for :func:`~attnbook.attention.attention`; scale is 1/√(d_n + d_r) by default. DeepSeek multiplies it by the
        square of a temperature, and leaves the turned parts without one.

    Returns
    -------
    Y : array (..., n, d_out), namespace, dtype and device of X
    res : LatentResiduals

    Raises
    ------
    TypeError
        p is no :class:`LatentParams`, an array none of floats or unlike X; num_heads is no integer, rotary no Rotary;
        and as :func:`~attnbook.attention.attention`.
    ValueError
        Widths do not fit each other or num_heads, eps is negative or not finite, or what does not fit otherwise.

    Notes
    -----
    Source: DeepSeek-AI, "DeepSeek-V2", section 2.1 and appendix C.
    """
    rotary = Rotary() if rotary is None else rotary
    h, d_n, d_r, d_c, d_v = _check(X, p, num_heads, rotary, eps)
    turned = rotary.for_heads(X, None, d_r)
    scale = check_scale(scale, d_n + d_r)
    options: dict[str, Any] = {
        "mask": mask,
        "bias": bias,
        "causal": causal,
        "scale": scale,
        "ops": ops,
        "method": method,
    }
    check_flags(absorbed=absorbed)
    shape, widths = (*X.shape[:-2], h, X.shape[-2], X.shape[-2]), (d_c + d_r, d_c) if absorbed else (d_n + d_r, d_v)
    plan = resolve({"X": X, **p._asdict()}, shape, widths, **options)
    x, w = widen(X), LatentParams(*(None if W is None else widen(W) for W in p))
    of_Q, of_K = _latent(x, w.W_DQ, w.g_Q, eps), _latent(x, w.W_DKV, w.g_KV, eps)
    c_Q, c = of_Q[1], of_K[1]
    Q_C, Q_R = split_heads(c_Q @ w.W_UQ, h), split_heads(c_Q @ w.W_QR, h)
    (Q_R, K_R), _ = turned.forward(Q_R, split_heads(x @ w.W_KR, 1))
    if absorbed:
        Q, c = Q_C @ mT(split_heads(w.W_UK, h)), split_heads(c, 1)  # eq-var-mla-absorbed
        K, V = _beside(c, K_R), c
    else:
        Q, V = Q_C, split_heads(c @ w.W_UV, h)
        K = split_heads(c @ w.W_UK, h)  # def-var-mla
        K = _beside(K, array_namespace(K).broadcast_to(K_R, (*K.shape[:-1], d_r)))
    O, kept = SPINES[plan.spine].forward(_beside(Q, Q_R), K, V, plan)
    C = merge_heads(O @ split_heads(w.W_UV, h) if absorbed else O)
    res = LatentResiduals(X, p, h, absorbed, turned, eps, of_Q, of_K, Q_C, O if absorbed else None, C, kept)
    return narrow(C @ w.W_O, X.dtype), res


def latent_attention_vjp(dY: Array, res: LatentResiduals) -> LatentGrads[Array]:
    """Pull a gradient back through :func:`.latent_attention`: what c is read by adds up, and so does the shared key.

    .. math::
       dc = \\sum_r dK^C_r (W^{UK}_r)^{\\mathsf T} + dV_r (W^{UV}_r)^{\\mathsf T} \\qquad
       dW^{UK}_r = c^{\\mathsf T} dK^C_r \\qquad dK^R = \\sum_r R^{-1}\\,dK_r^R

    Absorbed, W_UK is a product's second factor on the side of the queries, and W_UV stands behind the attention:

    .. math::
       dc = dK'^C + dV' \\qquad dW^{UK}_r = dQ'^{\\mathsf T}_r Q^C_r \\qquad dQ^C_r = dQ'_r W^{UK}_r \\qquad
       dW^{UV}_r = (P_r c)^{\\mathsf T} dO_r

    Equation :eq:`eq-var-mla-vjp`; the rotation goes back as in :eq:`eq-var-rope-vjp`.

    Parameters
    ----------
    dY : array (..., n, d_out)
    res : LatentResiduals

    Returns
    -------
    LatentGrads

    Raises
    ------
    TypeError
        res is not from :func:`latent_attention`, or dY no array like X.
    ValueError
        dY lacks the shape of Y.
    """
    check_res(res, "latent_attention", LatentResiduals)
    X = res.X
    agree(X=X, dY=dY)
    check_shape("dY", dY, (*X.shape[:-1], res.params.W_O.shape[1]))
    x, w, h = widen(X), LatentParams(*(None if W is None else widen(W) for W in res.params)), res.num_heads
    (_, c_Q), (_, c) = res.of_Q, res.of_K
    dC, dW_O, _ = project_vjp(widen(dY), res.C, w.W_O)
    dO, plan = split_heads(dC, h), res.attention.plan
    if res.absorbed:
        U_K, U_V = split_heads(w.W_UK, h), split_heads(w.W_UV, h)
        dW_UV = merge_heads(unbroadcast(mT(res.O) @ dO, U_V.shape))
        dQ, dK, dV, dsteps = SPINES[plan.spine].vjp(dO @ mT(U_V), None, res.attention)
        (dQ, dQ_R), (dK, dK_R) = (_apart(T, c.shape[-1]) for T in (dQ, dK))
        dW_UK = merge_heads(unbroadcast(mT(dQ) @ res.Q_C, U_K.shape))
        dQ_C, dc = dQ @ U_K, merge_heads(dK + dV)
    else:
        dQ, dK, dV, dsteps = SPINES[plan.spine].vjp(dO, None, res.attention)
        (dQ_C, dQ_R), (dK, dK_R) = (_apart(T, res.Q_C.shape[-1]) for T in (dQ, dK))
        dK_R = unbroadcast(dK_R, (*dK_R.shape[:-3], 1, *dK_R.shape[-2:]))
        by_K, dW_UK, _ = project_vjp(merge_heads(dK), c, w.W_UK)
        by_V, dW_UV, _ = project_vjp(merge_heads(dV), c, w.W_UV)
        dc = by_K + by_V  # eq-var-mla-vjp
    dQ_R, dK_R, _ = res.rotary.vjp(dQ_R, dK_R, None)
    by_C, dW_UQ, _ = project_vjp(merge_heads(dQ_C), c_Q, w.W_UQ)
    by_R, dW_QR, _ = project_vjp(merge_heads(dQ_R), c_Q, w.W_QR)
    by_Q, dW_DQ, dg_Q = _latent_vjp(by_C + by_R, x, w.W_DQ, w.g_Q, res.of_Q, res.eps)
    by_K, dW_DKV, dg_KV = _latent_vjp(dc, x, w.W_DKV, w.g_KV, res.of_K, res.eps)
    by_KR, dW_KR, _ = project_vjp(merge_heads(dK_R), x, w.W_KR)
    dparams: Any = (dW_DQ, dW_UQ, dW_QR, dW_DKV, dW_UK, dW_UV, dW_KR, dW_O, dg_Q, dg_KV)
    dX, *dparams = (None if T is None else narrow(T, X.dtype) for T in (by_Q + by_K + by_KR, *dparams))
    dsteps = [None if T is None else narrow(T, X.dtype) for T in dsteps]
    return LatentGrads(dX, LatentParams(*dparams), *split_by_asker(dsteps, plan))


def _latent(x: Any, W: Any, g: Any, eps: Any) -> tuple[Any, ...]:
    """The latent rows before their norm and after it; without a W, x itself."""
    rows = x if W is None else x @ W
    return rows, rows if g is None else norm(rows, g, eps, "rms")


def _latent_vjp(dc: Any, x: Any, W: Any, g: Any, rows: Any, eps: Any) -> tuple[Any, ...]:
    dc, dg = (dc, None) if g is None else norm_vjp(dc, rows[0], g, eps, "rms")
    return (dc, None, dg) if W is None else (*project_vjp(dc, x, W)[:2], dg)


def _beside(A: Any, B: Any) -> Any:
    return array_namespace(A).concat((A, B), axis=-1)


def _apart(T: Any, at: Any) -> tuple[Any, ...]:
    return T[..., :at], T[..., at:]


def _check(X: Any, p: Any, h: int, rotary: Any, eps: Any) -> tuple[Any, ...]:
    """h, d_n, d_r, d_c and d_v, or an error that names what does not fit."""
    if not isinstance(p, LatentParams):
        raise TypeError(expected("p", "a LatentParams", kind(p)))
    if not isinstance(rotary, Rotary):
        raise TypeError(expected("rotary", "a Rotary", kind(rotary)))
    h = check_count("num_heads", h)
    check_eps(eps)
    optional = {name: getattr(p, name) for name in ("W_DQ", "g_Q", "g_KV")}
    weights = {name: W for name, W in p._asdict().items() if name not in optional}
    agree(optional, X=X, **weights)
    if X.ndim < 2:
        raise ValueError(expected("X", "at least two axes (..., tokens, width)", f"shape {tuple(X.shape)}"))
    for name, W in p._asdict().items():
        if W is not None and name[0] == "W" and (W.ndim != 2 or (name in ("W_UQ", "W_UV") and W.shape[1] % h)):
            wanted = f"two axes (rows, columns), of columns that {h} heads divide"
            raise ValueError(expected(name, wanted, f"shape {tuple(W.shape)}"))
    d_model = X.shape[-1]
    d_q = d_model if p.W_DQ is None else p.W_DQ.shape[1]
    d_c, d_r, out = p.W_DKV.shape[1], p.W_KR.shape[1], p.W_O.shape[1]
    of_C, of_V = p.W_UQ.shape[1], p.W_UV.shape[1]
    shapes = ((d_model, d_q), (d_q, of_C), (d_q, h * d_r), (d_model, d_c), (d_c, of_C), (d_c, of_V), (d_model, d_r))
    for (name, W), shape in zip(p._asdict().items(), (*shapes, (of_V, out), (d_q,), (d_c,)), strict=True):
        if W is not None:
            check_shape(name, W, shape)
    return h, of_C // h, d_r, d_c, of_V // h
