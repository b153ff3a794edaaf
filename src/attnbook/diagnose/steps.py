"""Attention and its gradient, a step at a time. Chapter: :doc:`/chapters/08_checking`.

A mistake replaces one step. It shares no line with the package that it is there to check.
"""

# ruff: noqa: E743, N805 (O is the output of attention; the calculation is `a`, so that a formula reads as one)

from functools import cached_property

import numpy as np


def mT(T):
    """The last two axes swapped."""
    return np.swapaxes(T, -1, -2)


def rowsum(T):
    """The sum over the keys, kept as a column."""
    return T.sum(axis=-1, keepdims=True)


def softmax(S, axis=-1):
    """Softmax of S; 0 where every score is −∞."""
    return normalized(exponentials(S, axis), axis)


def exponentials(S, axis=-1):
    """e to the scores less their largest; 0 where every score is −∞."""
    M = S.max(axis=axis, keepdims=True)
    return np.exp(S - np.where(np.isneginf(M), 0.0, M))


def normalized(E, axis=-1):
    """E over its sum; 0 where the sum is 0."""
    Z = E.sum(axis=axis, keepdims=True)
    return E / np.where(Z == 0, 1.0, Z)


class Steps:
    """Attention and its gradients, a step at a time, in plain NumPy: what a mistake replaces one step of.

    Every step is computed when it is first asked for, from the steps before it, and kept. ``a`` stands for the
    calculation: ``a.dS`` is its dS. With nothing replaced, :meth:`run` is right (:eq:`def-attention`, :eq:`eq-dV`,
    :eq:`eq-dP`, :eq:`eq-dS`, :eq:`eq-dQ`, :eq:`eq-dK`).

    Parameters
    ----------
    Q, K, V, dO : array (..., n_q, d_k), (..., n_k, d_k), (..., n_k, d_v), (..., n_q, d_v)
        With equal leading axes, but that K and V may have fewer heads (axis −3) than Q, if their number divides Q's.
    mask, bias, causal, scale
        As for :func:`attnbook.attention`.
    """

    def __init__(a, Q, K, V, dO, *, mask=None, bias=None, causal=False, scale=None):
        a.Q, a.K, a.V, a.dO = Q, K, V, dO
        a.mask, a.bias, a.causal, a.given_scale = mask, bias, causal, scale
        a.n_q, a.n_k, a.d_k, a.d_v = Q.shape[-2], K.shape[-2], Q.shape[-1], V.shape[-1]
        a.h, a.h_kv = (Q.shape[-3], K.shape[-3]) if Q.ndim > 2 else (1, 1)

    def run(a):
        """O, dQ, dK, dV, with no warning."""
        with np.errstate(all="ignore"):
            return a.O, a.dQ, a.dK, a.dV

    # --- what the formulas are made of

    def transpose(a, T):
        """Tᵀ, for the last two axes."""
        return mT(T)

    def share(a, T):
        """Each key head, once for every query head that shares it: neighbors share."""
        return T if a.h == a.h_kv else np.repeat(T, a.h // a.h_kv, axis=-3)

    def gather(a, dT):
        """The way back from :meth:`share`: what a head got from all query heads that share it adds up."""
        return a.groups(dT).sum(axis=-3) if a.h != a.h_kv else dT

    def groups(a, dT):
        """dT with the query heads of a group on an axis of their own, (..., h_kv, group, n, d)."""
        return dT.reshape(*dT.shape[:-3], a.h_kv, a.h // a.h_kv, *dT.shape[-2:])

    @cached_property
    def width(a):
        """The width that the scale is made of."""
        return a.d_k

    @cached_property
    def scale(a):
        """1/√d_k, where no other is given."""
        return a.width**-0.5 if a.given_scale is None else a.given_scale

    @cached_property
    def mask_allows(a):
        """(..., n_q, n_k), True where the mask lets a query attend."""
        return np.full((a.n_q, a.n_k), True) if a.mask is None else np.broadcast_to(a.mask, a.scores.shape)

    @cached_property
    def corner(a):
        """The corner that causal means, "top-left" or "bottom-right", or None."""
        return {False: None, True: "top-left"}.get(a.causal, a.causal)

    @cached_property
    def causal_allows(a):
        """(n_q, n_k), True where the key is not later than the query."""
        shift = {None: a.n_k, "top-left": 0, "bottom-right": a.n_k - a.n_q}[a.corner]
        return np.tri(a.n_q, a.n_k, shift, dtype=bool)

    @cached_property
    def allowed(a):
        """Where both allow."""
        return a.mask_allows & a.causal_allows

    # --- forward

    @cached_property
    def k(a):
        """K, a head for each query head."""
        return a.share(a.K)

    @cached_property
    def v(a):
        """V, a head for each query head."""
        return a.share(a.V)

    @cached_property
    def scores(a):
        """scale · Q Kᵀ + bias."""
        return a.scale * (a.Q @ a.transpose(a.k)) + (0.0 if a.bias is None else a.bias)

    @cached_property
    def S(a):
        """The scores, −∞ where a query must not attend."""
        return np.where(a.allowed, a.scores, -np.inf)

    @cached_property
    def P(a):
        """softmax(S)."""
        return softmax(a.S)

    @cached_property
    def O(a):
        """P V."""
        return a.P @ a.v

    # --- backward

    @cached_property
    def P_backward(a):
        """The weights that the backward uses, kept or computed again."""
        return a.P

    @cached_property
    def dV_heads(a):
        """Pᵀ dO, for every query head."""
        return a.transpose(a.P_backward) @ a.dO

    @cached_property
    def dV(a):
        """Pᵀ dO, added up over the query heads that share a key head."""
        return a.gather(a.dV_heads)

    @cached_property
    def dP(a):
        """dO Vᵀ."""
        return a.dO @ a.transpose(a.v)

    @cached_property
    def D(a):
        """rowsum(P ∘ dP)."""
        return rowsum(a.P_backward * a.dP)

    @cached_property
    def dS(a):
        """P ∘ (dP − D)."""
        return a.P_backward * (a.dP - a.D)

    @cached_property
    def dQ_unscaled(a):
        """dS K."""
        return a.dS @ a.k

    @cached_property
    def dQ_scale(a):
        """The factor of dQ."""
        return a.scale

    @cached_property
    def dQ(a):
        """scale · dS K."""
        return a.dQ_scale * a.dQ_unscaled

    @cached_property
    def dK_unscaled(a):
        """dSᵀ Q, for every query head."""
        return a.transpose(a.dS) @ a.Q

    @cached_property
    def dK_scale(a):
        """The factor of dK."""
        return a.scale

    @cached_property
    def dK(a):
        """scale · dSᵀ Q, added up over the query heads that share a key head."""
        return a.gather(a.dK_scale * a.dK_unscaled)


def with_mistakes(*mistakes):
    """The class :class:`Steps` with the steps of these mistakes in the place of the right ones."""
    steps = {}
    for mistake in mistakes:
        for name, wrong in mistake.steps.items():
            steps[name] = cached_property(wrong) if isinstance(vars(Steps)[name], cached_property) else wrong
    return type("Wrong", (Steps,), steps)
