"""Linear attention and its derivatives. Chapter: :doc:`/chapters/09_variants`."""

from typing import Any, Literal

from attnbook.arguments import check_flags
from attnbook.recurrent import passes
from attnbook.recurrent.passes import Residuals
from attnbook.recurrent.plan import Inputs, RecurrentGrads, resolve
from attnbook.types import AnyArray, Array


def linear_attention(
    Q: Array,
    K: Array,
    V: Array,
    *,
    gate: AnyArray | None = None,
    feature: Literal["elu+1", "relu", "identity", "exp"] = "elu+1",
    normalize: bool = True,
    causal: bool = True,
    scale: float | None = None,
    chunk: int | None = 64,
    state: AnyArray | None = None,
) -> tuple[Array, Residuals]:
    """Let every query read a state that the keys have written the values into: d_k × d_v numbers, whatever n is.

    .. math::
       H_t = e^{g_t} H_{t-1} + \\varphi(k_t)^{\\mathsf T} v_t \\qquad
       z_t = e^{g_t} z_{t-1} + \\varphi(k_t) \\qquad
       o_t = \\frac{\\varphi(q_t) H_t}{\\varphi(q_t) \\cdot z_t}

    Equations :eq:`def-var-linear`, with the sums up to t, and :eq:`def-var-recurrent`. Without ``normalize``,
    o = scale · φ(q) H.

    Parameters
    ----------
    Q : array (..., n, d_k)
        Queries. Heads are shared, and leading axes broadcast, as in :func:`~attnbook.attention.attention`.
    K : array (..., n, d_k)
        Keys.
    V : array (..., n, d_v)
        Values.
    gate : array, optional
        g, the logarithm of what is left of the state at each step: broadcasts to (..., n). 0, by default, forgets
        nothing, −∞ everything. A number a head, (h, 1), is retention; a number a token and head, Mamba-2's gate.
    feature : "elu+1", "relu", "identity" or "exp"
        φ, see :mod:`attnbook.recurrent.features`.
    normalize : bool
        Divide by the sum of the weights. Then they must not cancel: with "identity" they may.
    causal : bool
        Every query sees the keys up to its own. False: all keys, of which there may be another number than of queries.
    scale : float, optional
        1/√d_k by default. ``normalize`` cancels it.
    chunk : int or None
        Tokens that are worked on at once, by products of matrices. 1 is the recurrent form, None, for all, the parallel
        one, of n² time. The results are the same, and n / chunk states are kept.
    state : array, optional
        What earlier tokens left, ``res.state`` of their call. Broadcasts to (..., d_k, d_v), or with ``normalize`` to
        (..., d_k, d_v + 1), where the last column is z. In the accumulation dtype.

    Returns
    -------
    O : array (..., n, d_v)
        0 where the weights of a row sum to 0, and for no keys.
    res : Residuals
        For both derivatives. ``res.state`` is the last state.

    Raises
    ------
    TypeError
        Q, K, V, gate or state is no array of floats, or not of the dtype and library of Q; or scale is no number.
    ValueError
        Causal, and not as many keys as queries; a gate, and not causal; an option that is none of those above; and
        shapes that do not fit.

    Notes
    -----
    Sources: Katharopoulos et al. 2020, "Transformers are RNNs"; Sun et al. 2023, "Retentive Network"; Dao and Gu 2024,
    "Transformers are SSMs".
    """
    inputs = Inputs(Q, K, V, None, gate, state)
    options: dict[str, Any] = {
        "feature": feature,
        "normalize": normalize,
        "causal": causal,
        "scale": scale,
        "chunk": chunk,
    }
    return passes.forward(inputs, resolve(inputs, **options))


def linear_attention_vjp(dO: Array, res: Residuals, dstate: AnyArray | None = None) -> RecurrentGrads[Array]:
    """Pull a gradient back through :func:`.linear_attention`: the state's runs from the last token to the first.

    .. math::
       dH_t = \\varphi(q_t)^{\\mathsf T} do_t + e^{g_{t+1}}\\, dH_{t+1} \\qquad
       d\\varphi(q_t) = do_t H_t^{\\mathsf T} \\qquad
       d\\varphi(k_t) = v_t\\, dH_t^{\\mathsf T} \\qquad
       dv_t = \\varphi(k_t)\\, dH_t \\qquad
       dg_t = e^{g_t} \\langle dH_t, H_{t-1} \\rangle

    Equations :eq:`eq-var-linear-vjp`, :eq:`eq-var-linear-causal` and :eq:`eq-var-recurrent`. The normalizer is one more
    column of V, of ones, whose do is −rowsum(do ∘ o)/(φ(q)·z), and the others are divided likewise.

    Parameters
    ----------
    dO : array like O
        The gradient that arrives at O.
    res : Residuals
        What the forward returned. It may be used again.
    dstate : array of the shape of ``res.state``, optional
        The gradient that arrives at the last state, from a later call: its ``dstate``.

    Returns
    -------
    RecurrentGrads
        ``dQ``, ``dK``, ``dV``; ``dgate`` and ``dstate``, None where there was no gate or state; ``dbeta`` is None.

    Raises
    ------
    TypeError
        res is not of this room, dO no array like Q, or dstate none like the state.
    ValueError
        dO has not the shape of O, or dstate not that of ``res.state``.
    """
    return passes.vjp(dO, dstate, res)


def linear_attention_jvp(
    tQ: Array,
    tK: Array,
    tV: Array,
    res: Residuals,
    *,
    tgate: AnyArray | None = None,
    tstate: AnyArray | None = None,
    with_state: bool = False,
) -> Any:
    """Push changes of queries, keys and values forward through :func:`.linear_attention`.

    .. math::
       \\dot H_t = e^{g_t} (\\dot H_{t-1} + \\dot g_t H_{t-1}) +
       \\dot\\varphi(k_t)^{\\mathsf T} v_t + \\varphi(k_t)^{\\mathsf T} \\dot v_t \\qquad
       \\dot o_t = \\dot\\varphi(q_t) H_t + \\varphi(q_t) \\dot H_t

    The adjoint of :eq:`eq-var-linear-vjp`.

    Parameters
    ----------
    tQ, tK, tV : arrays like Q, K, V
        Their tangents.
    res : Residuals
        What the forward returned.
    tgate, tstate : arrays like gate and state, optional
        None for zero.
    with_state : bool
        Also return the tangent of the last state.

    Returns
    -------
    tO : array like O; with ``with_state`` a pair, tO and the tangent of ``res.state``

    Raises
    ------
    TypeError
        res is not of this room, or a tangent no array like its variable.
    ValueError
        A tangent has not its variable's shape, or that was not given.
    """
    check_flags(with_state=with_state)
    tO, tH = passes.jvp(Inputs(tQ, tK, tV, None, tgate, tstate), res)
    return (tO, tH) if with_state else tO
