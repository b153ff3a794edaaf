"""The gated delta rule and its derivatives. Chapter: :doc:`/chapters/09_variants`."""

from typing import Any

from attnbook.arguments import check_flags
from attnbook.arrays import agree
from attnbook.recurrent import passes
from attnbook.recurrent.passes import Residuals
from attnbook.recurrent.plan import Inputs, RecurrentGrads, resolve
from attnbook.types import AnyArray, Array


def delta_rule(
    Q: Array,
    K: Array,
    V: Array,
    beta: AnyArray,
    *,
    gate: AnyArray | None = None,
    scale: float | None = None,
    chunk: int | None = 64,
    state: AnyArray | None = None,
) -> tuple[Array, Residuals]:
    """Let each key first read what the state has for it, and write only what the value has over that.

    .. math::
       H_t = e^{g_t} H_{t-1} + k_t^{\\mathsf T} u_t \\qquad
       u_t = \\beta_t \\bigl(v_t - e^{g_t}\\, k_t H_{t-1}\\bigr) \\qquad
       o_t = \\text{scale} \\cdot q_t H_t

    Equation :eq:`def-var-recurrent`, with γ = e^g; or, with S = Hᵀ and α = e^g as its source writes it,
    S_t = α_t S_{t−1} (I − β_t k_t k_tᵀ) + β_t v_t k_tᵀ with columns k and v.

    Parameters
    ----------
    Q, K : arrays (..., n, d_k)
        Queries and keys; the keys of length 1, or β‖k‖² < 2 at least, or the state may grow without bound.
    V : array (..., n, d_v)
        Values. K and V may have fewer heads than Q, as in :func:`~attnbook.attention.attention`.
    beta : array
        How much of what is there is replaced, mostly between 0 and 1: broadcasts to (..., n).
    gate : array, optional
        g, the logarithm of α: broadcasts to (..., n). 0 by default, DeltaNet. One number a token and head: a gate for
        each column of K, as in Kimi Delta Attention (KDA), is not taken.
    scale : float, optional
        1/√d_k by default.
    chunk : int or None
        As in :func:`~attnbook.recurrent.linear_attention.linear_attention`; each chunk solves a triangular
        system of its length, so None takes n³ time.
    state : array, optional
        ``res.state`` of the tokens before, in the accumulation dtype; broadcasts to (..., d_k, d_v).

    Returns
    -------
    O : array (..., n, d_v)
    res : Residuals
        With ``res.state``, the state after the last token.

    Raises
    ------
    TypeError
        Q, K, V, beta, gate or state is no array of floats, or unlike Q in dtype or library; or scale is no number.
    ValueError
        Not as many keys as queries, a chunk that is no whole number of at least 1, and shapes that do not fit.

    Notes
    -----
    Sources: Schlag et al. 2021, "Linear Transformers Are Secretly Fast Weight Programmers"; Yang et al. 2024,
    "Gated Delta Networks", eq. 10. Qwen3-Next's layers run it, on queries and keys of
    :func:`~attnbook.norms.l2_norm`. These have fewer heads than V there, 16 and 32: repeat each for its neighbors,
    ``np.repeat(Q, 2, axis=-3)`` and likewise K, and sum dQ and dK over each pair of heads.

    Examples
    --------
    The second value replaces half of the first:

    >>> import numpy as np
    >>> import attnbook as ab
    >>> O, _ = ab.delta_rule(np.ones((2, 1)), np.ones((2, 1)), np.array([[1.0], [3.0]]), np.array([1.0, 0.5]))
    >>> O.tolist()
    [[1.0], [2.0]]
    """
    agree(Q=Q, K=K, V=V, beta=beta)
    inputs = Inputs(Q, K, V, beta, gate, state)
    return passes.forward(inputs, resolve(inputs, scale=scale, chunk=chunk))


def delta_rule_vjp(dO: Array, res: Residuals, dstate: AnyArray | None = None) -> RecurrentGrads[Array]:
    """Pull a gradient back through :func:`.delta_rule`. A key has two paths: it writes, and it reads what it replaces.

    .. math::
       dH_t = \\text{scale} \\cdot q_t^{\\mathsf T} do_t + e^{g_{t+1}} \\bigl(dH_{t+1} - k_{t+1}^{\\mathsf T}
       dv_{t+1}\\bigr) \\qquad du_t = k_t\\, dH_t \\qquad dv_t = \\beta_t\\, du_t

       dk_t = u_t\\, dH_t^{\\mathsf T} - e^{g_t}\\, dv_t H_{t-1}^{\\mathsf T} \\qquad
       d\\beta_t = du_t \\cdot \\bigl(v_t - e^{g_t}\\, k_t H_{t-1}\\bigr) \\qquad
       dg_t = e^{g_t} \\bigl\\langle dH_t - k_t^{\\mathsf T} dv_t,\\, H_{t-1} \\bigr\\rangle

    and dq as in linear attention. Equation :eq:`eq-var-recurrent`.

    Parameters
    ----------
    dO : array like O
    res : Residuals
        As :func:`delta_rule` returned it. It may be used again.
    dstate : array of the shape of ``res.state``, optional
        The gradient of the last state.

    Returns
    -------
    RecurrentGrads
        ``dQ``, ``dK``, ``dV``, ``dbeta``; ``dgate`` and ``dstate``, None where none was given.

    Raises
    ------
    TypeError
        dO is no array like Q, dstate none like the state, or res from elsewhere.
    ValueError
        dO or dstate has another shape than O or ``res.state``.
    """
    return passes.vjp(dO, dstate, res)


def delta_rule_jvp(
    tQ: Array,
    tK: Array,
    tV: Array,
    tbeta: AnyArray,
    res: Residuals,
    *,
    tgate: AnyArray | None = None,
    tstate: AnyArray | None = None,
    with_state: bool = False,
) -> Any:
    """Push changes of queries, keys, values and β forward through :func:`.delta_rule`.

    .. math::
       \\dot u_t = \\dot\\beta_t\\, u_t / \\beta_t + \\beta_t \\bigl(\\dot v_t - e^{g_t} (\\dot g_t\\, k_t H_{t-1} +
       \\dot k_t H_{t-1} + k_t \\dot H_{t-1})\\bigr) \\qquad
       \\dot H_t = e^{g_t} (\\dot H_{t-1} + \\dot g_t H_{t-1}) + \\dot k_t^{\\mathsf T} u_t +
       k_t^{\\mathsf T} \\dot u_t

    Then ȯ as in linear attention, the adjoint of :eq:`eq-var-recurrent`.

    Parameters
    ----------
    tQ, tK, tV, tbeta : arrays like Q, K, V, beta
    res : Residuals
        As :func:`delta_rule` returned it.
    tgate, tstate : arrays like gate and state, optional
        Zero where not given.
    with_state : bool
        Whether to return the last state's tangent, too.

    Returns
    -------
    tO : array like O; or tO and the tangent of ``res.state``

    Raises
    ------
    TypeError
        A tangent is no array like its variable, or res from elsewhere.
    ValueError
        A tangent has another shape than its variable, which must have been given.
    """
    check_flags(with_state=with_state)
    tO, tH = passes.jvp(Inputs(tQ, tK, tV, tbeta, tgate, tstate), res)
    return (tO, tH) if with_state else tO
