"""Forward, vjp and jvp around a scan: features, shared heads and the normalizer, which is one more column of values.

Σ φ(q)φ(k) is what the same recurrence gives for values of 1. So O = A / Z, where Z is the last column of its output.
"""

from typing import Any, NamedTuple

from attnbook.arrays import array_namespace, device, expected, narrow, unbroadcast, widen
from attnbook.heads import share_heads, share_heads_vjp
from attnbook.recurrent import scan, whole
from attnbook.recurrent.chunk import Tokens
from attnbook.recurrent.features import FEATURES
from attnbook.recurrent.plan import Inputs, Plan, RecurrentGrads, check_cotangents, check_tangents


class Residuals(NamedTuple):
    """What the backward needs: the inputs as they came; with a normalizer O and Z, ∞ for a row that weighs nothing; and
    the ``states`` before each chunk and after the last, in the accumulation dtype.
    """

    Q: Any
    K: Any
    V: Any
    beta: Any
    gate: Any
    start: Any
    O: Any
    Z: Any
    states: list
    plan: Plan

    @property
    def state(self) -> Any:
        """The last state, which a later call takes as its first."""
        return self.states[-1]


def forward(inputs: Inputs, plan: Plan) -> tuple[Any, ...]:
    """O, divided by Z where the plan says so (:eq:`def-var-linear`), and what the backward needs."""
    Q = inputs.Q
    xp = array_namespace(Q)
    q, k, _ = _features(inputs, plan)
    x = _tokens(q, k, inputs, plan, ones=1.0)
    like = {"dtype": x.q.dtype, "device": device(Q)}
    H = xp.zeros(plan.of_state, **like) if inputs.state is None else xp.broadcast_to(inputs.state, plan.of_state)
    O, states = _spine(plan).forward(x, H, plan.chunk)
    kept = None, None
    if plan.normalize:
        Z = xp.where(O[..., -1:] == 0, xp.full_like(O[..., -1:], xp.inf), O[..., -1:])
        O = O[..., :-1] / Z  # def-var-linear
        kept = O, Z
    return narrow(O, Q.dtype), Residuals(*inputs, *kept, states, plan)


def vjp(dO: Any, dstate: Any, res: Any) -> RecurrentGrads[Any]:
    """The gradients (:eq:`eq-var-linear-vjp`): that of Z is one more column."""
    plan = _plan_of(res)
    check_cotangents(dO, dstate, res)
    xp, dtype = array_namespace(dO), res.Q.dtype
    q, k, (slope_q, slope_k) = _features(res, plan)
    x = _tokens(q, k, res, plan, ones=1.0)
    dO = widen(dO)
    if plan.normalize:  # O = A / Z, of which Z is a column
        dO = xp.concat([dO, -xp.sum(dO * res.O, axis=-1, keepdims=True)], axis=-1) / res.Z  # eq-var-linear-vjp
    dH = xp.zeros_like(res.state) if dstate is None else dstate
    dx, dH = _spine(plan).vjp(dO, dH, x, res.states, plan.chunk)
    dv = dx.v[..., :-1] if plan.normalize else dx.v
    grads = (
        unbroadcast(dx.q, res.Q.shape) * slope_q,
        share_heads_vjp(dx.k, res.K.shape) * slope_k,
        share_heads_vjp(dv, res.V.shape),
        *(None if T is None else unbroadcast(dT[..., 0], T.shape) for dT, T in ((dx.beta, res.beta), (dx.g, res.gate))),
    )
    dstate = None if res.start is None else unbroadcast(dH, res.start.shape)
    return RecurrentGrads(*(T if T is None else narrow(T, dtype) for T in grads), dstate)  # type: ignore[call-arg]


def jvp(tangents: Inputs, res: Any) -> tuple[Any, ...]:
    """The tangents of O and of the last state."""
    plan = _plan_of(res)
    check_tangents(tangents, res)
    xp = array_namespace(res.Q)
    q, k, (slope_q, slope_k) = _features(res, plan)
    x = _tokens(q, k, res, plan, ones=1.0)
    tx = _tokens(slope_q * widen(tangents.Q), slope_k * widen(tangents.K), tangents, plan, ones=0.0)
    tH = xp.zeros_like(res.state) if tangents.state is None else xp.broadcast_to(tangents.state, plan.of_state)
    tO, tH = _spine(plan).jvp(tx, tH, x, res.states, plan.chunk)
    if plan.normalize:
        tO = (tO[..., :-1] - tO[..., -1:] * res.O) / res.Z
    return narrow(tO, res.Q.dtype), tH


def _features(inputs: Inputs, plan: Plan) -> tuple[Any, ...]:
    """φ of Q, scaled, and of K, in the accumulation dtype; and the slopes by which they follow Q and K."""
    phi = FEATURES[plan.feature]
    (q, slope_q), (k, slope_k) = phi(widen(inputs.Q)), phi(widen(inputs.K))
    return q * plan.scale, k, (slope_q * plan.scale, slope_k)


def _tokens(q: Any, k: Any, others: Any, plan: Plan, ones: Any) -> Any:
    """What the scan takes, of arrays or of tangents: ``ones`` is the value of 1, and 0 its tangent."""
    xp, h, n = array_namespace(q), q.shape[-3] if q.ndim > 2 else 1, plan.shape[-1]
    v = widen(others.V)
    if plan.normalize:
        v = xp.concat([v, xp.full_like(v[..., :1], ones)], axis=-1)
    beta, g = (
        xp.zeros((n, 1), dtype=v.dtype, device=device(v)) if T is None
        else xp.expand_dims(xp.broadcast_to(widen(T), (*T.shape[:-1], n)), axis=-1)
        for T in (others.beta, others.gate)
    )  # fmt: skip
    return Tokens(q, share_heads(k, h), share_heads(v, h), beta if plan.delta else None, g)


def _spine(plan: Plan) -> Any:
    return scan if plan.causal else whole


def _plan_of(res: Any) -> Plan:
    if not isinstance(res, Residuals):
        raise TypeError(expected("res", "the residuals of linear_attention or delta_rule", type(res).__name__))
    return res.plan
