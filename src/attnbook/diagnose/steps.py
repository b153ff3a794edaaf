"""Attention and its gradient, a step at a time. Chapter: :doc:`/chapters/08_checking`.

A mistake replaces one step. It shares no line with the package that it is there to check.
"""

# ruff: noqa: E743, N805 (O is the output of attention; the calculation is `a`, so that a formula reads as one)

from functools import lru_cache

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
    """e to the scores less their largest; 0 where every score is −∞, and nothing where there is none."""
    M = S.max(axis=axis, keepdims=True, initial=-np.inf)
    return np.exp(S - np.where(np.isneginf(M), 0.0, M))


def normalized(E, axis=-1):
    """E over its sum; 0 where the sum is 0."""
    Z = E.sum(axis=axis, keepdims=True)
    return E / np.where(Z == 0, 1.0, Z)


def unbroadcast(dT, shape):
    """dT summed over the axes along which an array of ``shape`` was repeated."""
    dT = dT.sum(axis=tuple(range(dT.ndim - len(shape))))
    return dT.sum(axis=tuple(i for i, n in enumerate(shape) if n == 1 and dT.shape[i] != 1), keepdims=True)


def as_if_contiguous(T, kind):
    """What one reads who takes the memory of T, which lies there as ``kind`` says, for that of an array in order."""
    if kind == "transposed":
        return mT(T).reshape(T.shape)
    if kind == "heads last" and T.ndim > 2:
        return np.swapaxes(T, -2, -3).reshape(T.shape)
    if kind == "reversed":
        return T[..., ::-1, :]
    return T


class step:  # noqa: N801 (a decorator)
    """What is computed when it is first asked for, and kept; Python 3.11 has a lock for each, which takes longer."""

    def __init__(self, func):
        self.func, self.__doc__ = func, func.__doc__

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, a, owner=None):
        if a is None:
            return self
        value = vars(a)[self.name] = self.func(a)
        return value


class Steps:
    """Attention and its gradients, a step at a time, in plain NumPy: what a mistake replaces one step of.

    Every step is computed when it is first asked for, from the steps before it, and kept. ``a`` stands for the
    calculation: ``a.dS`` is its dS. With nothing replaced, :meth:`run` is right (:eq:`def-attention`, :eq:`eq-dV`,
    :eq:`eq-dP`, :eq:`eq-dS`, :eq:`eq-dQ`, :eq:`eq-dK`). The order is: rotation, scale, cap, bias and slopes, all that
    forbids, softmax with the sink, dropout.

    Parameters
    ----------
    Q, K, V, dO : array (..., n_q, d_k), (..., n_k, d_k), (..., n_k, d_v), (..., n_q, d_v)
        With equal leading axes, but that K and V may have fewer heads (axis −3) than Q, if their number divides Q's.
    mask, bias, causal, scale
        As for :func:`attnbook.attention`.
    window : (left, right)
        Allows key j for query i where −left ≤ j − i ≤ right, counted from the corner of causal.
    softcap : float
        Scores become softcap · tanh(scores / softcap), before bias and mask.
    sink, slopes : array (h,)
        A score for each head that has no key, and the slope of its distances, which are subtracted.
    cos, sin : array (n, d_k / 2)
        Of the angles by which Q and K are turned; columns l and l + d_k / 2 are a pair.
    dropout : float, with kept : array (..., n_q, n_k) of bool
        The probability, and which weights stayed; drawn, if not said. ``kept_of_dV`` are those that dV was made with.
    dL : array (..., n_q)
        The gradient that arrives at L.
    memory : dict
        How an input lies in memory, as in :class:`attnbook.diagnose.case.Case`. What is right does not depend on it.
    """

    dL = softcap = shared = None
    replaced = frozenset()

    def __init__(
        a, Q, K, V, dO, *, mask=None, bias=None, causal=False, scale=None, window=None, softcap=None, sink=None,
        slopes=None, cos=None, sin=None, dropout=0.0, kept=None, kept_of_dV=None, dL=None, memory=None,
    ):  # fmt: skip
        a.cos, a.sin = cos, sin
        a.Q, a.K, a.V, a.dO = a.turned(Q), a.turned(K), V, dO
        a.mask, a.bias, a.causal, a.given_scale = mask, bias, causal, scale
        a.window, a.softcap, a.sink, a.slopes, a.dL = window, softcap, sink, slopes, dL
        a.dropout, a.kept, a.kept_of_dV, a.memory = dropout, kept, kept_of_dV, memory or {}
        a.n_q, a.n_k, a.d_k, a.d_v = Q.shape[-2], K.shape[-2], Q.shape[-1], V.shape[-1]
        a.h, a.h_kv = (Q.shape[-3], K.shape[-3]) if Q.ndim > 2 else (1, 1)
        if dropout and kept is None:
            a.kept = np.random.default_rng(0).random((*Q.shape[:-1], a.n_k)) >= dropout

    def run(a):
        """O, dQ, dK, dV, with no warning."""
        with np.errstate(all="ignore"):
            return a.O, a.dQ, a.dK, a.dV

    def results(a):
        """The same by name, and those of a bias and a sink where there is one."""
        O, dQ, dK, dV = a.run()
        more = {f"d{name}": getattr(a, f"d{name}") for name in ("bias", "sink") if getattr(a, name) is not None}
        return {"O": O, "dQ": dQ, "dK": dK, "dV": dV, **more}

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

    def turned(a, T, back=False):
        """T with each row's pairs of columns turned by the angles of cos and sin, or turned back; T where none are."""
        if a.cos is None:
            return T
        x, y = np.split(T, 2, axis=-1)
        sin = -a.sin if back else a.sin
        return np.concatenate([x * a.cos - y * sin, x * sin + y * a.cos], axis=-1)

    def of_heads(a, numbers):
        """A number a head, to be multiplied with a table."""
        return numbers[..., None, None]

    @step
    def width(a):
        """The width that the scale is made of."""
        return a.d_k

    @step
    def scale(a):
        """1/√d_k, where no other is given."""
        return a.width**-0.5 if a.given_scale is None else a.given_scale

    @step
    def mask_allows(a):
        """(..., n_q, n_k), True where the mask lets a query attend."""
        return np.full((a.n_q, a.n_k), True) if a.mask is None else np.broadcast_to(a.mask, a.scores.shape)

    @step
    def corner(a):
        """The corner that causal means, "top-left" or "bottom-right", or None."""
        return {False: None, True: "top-left"}.get(a.causal, a.causal)

    @step
    def causal_allows(a):
        """(n_q, n_k), True where the key is not later than the query."""
        shift = {None: a.n_k, "top-left": 0, "bottom-right": a.n_k - a.n_q}[a.corner]
        return np.tri(a.n_q, a.n_k, shift, dtype=bool)

    @step
    def later(a):
        """(n_q, n_k), by how much the key is later than the query, counted from the corner of causal."""
        shift = a.n_k - a.n_q if a.corner == "bottom-right" else 0
        return np.arange(a.n_k) - np.arange(a.n_q)[:, None] - shift

    @step
    def window_allows(a):
        """(n_q, n_k), True where the key is in the query's window."""
        left, right = (a.n_q + a.n_k,) * 2 if a.window is None else a.window
        return (-left <= a.later) & (a.later <= right)

    @step
    def allowed(a):
        """Where all of them allow."""
        return a.mask_allows & a.causal_allows & a.window_allows

    # --- forward

    @step
    def k(a):
        """K, a head for each query head."""
        return a.share(a.K)

    @step
    def v(a):
        """V, a head for each query head."""
        return a.share(a.V)

    @step
    def products(a):
        """scale · Q Kᵀ."""
        return a.scale * (a.Q @ a.transpose(a.k))

    @step
    def capped(a):
        """softcap · tanh(products / softcap), where there is a cap."""
        return a.products if a.softcap is None else a.softcap * np.tanh(a.products / a.softcap)

    @step
    def scores(a):
        """What was capped, plus bias, less slopes · distance."""
        far = 0.0 if a.slopes is None else a.of_heads(a.slopes) * np.abs(a.later)
        return a.capped + (0.0 if a.bias is None else a.bias) - far

    @step
    def S(a):
        """The scores, −∞ where a query must not attend."""
        return np.where(a.allowed, a.scores, -np.inf)

    @step
    def column(a):
        """S with the scores of the sink as one more column."""
        return np.concatenate([a.S, np.broadcast_to(a.of_heads(a.sink), (*a.S.shape[:-1], 1))], axis=-1)

    @step
    def P(a):
        """softmax(S), where the sink takes its part of each row."""
        return softmax(a.S) if a.sink is None else softmax(a.column)[..., :-1]

    def dropped(a, T, kept):
        """The entries of T that were kept, over 1 − dropout."""
        return T if kept is None else kept * T / (1 - a.dropout)

    @step
    def weights(a):
        """P after dropout."""
        return a.dropped(a.P, a.kept)

    @step
    def O(a):
        """P V."""
        return a.weights @ a.v

    # --- backward

    @step
    def P_backward(a):
        """The weights that the backward uses, kept or computed again."""
        return a.P

    @step
    def kept_backward(a):
        """Which weights the backward takes to have stayed."""
        return a.kept

    @step
    def dO_read(a):
        """The gradient of O, as the backward reads it from memory."""
        return a.dO

    @step
    def dV_heads(a):
        """Pᵀ dO, for every query head."""
        return a.transpose(a.dropped(a.P_backward, a.kept_backward)) @ a.dO_read

    @step
    def dV(a):
        """Pᵀ dO, added up over the query heads that share a key head."""
        return a.gather(a.dV_heads)

    @step
    def dP(a):
        """dO Vᵀ, and back through dropout."""
        return a.dropped(a.dO_read @ a.transpose(a.v), a.kept_backward)

    @step
    def D(a):
        """rowsum(P ∘ dP)."""
        return rowsum(a.P_backward * a.dP)

    @step
    def D_less_dL(a):
        """D − dL, where the loss uses L too."""
        return a.D if a.dL is None else a.D - a.dL[..., None]

    @step
    def dS(a):
        """P ∘ (dP − D)."""
        return a.P_backward * (a.dP - a.D_less_dL)

    @step
    def dproducts(a):
        """The gradient of scale · Q Kᵀ, which is dS, back through the cap."""
        return a.dS if a.softcap is None else a.dS * (1 - np.tanh(a.products / a.softcap) ** 2)

    @step
    def dbias(a):
        """dS, summed where the bias was repeated."""
        return unbroadcast(a.dS, a.bias.shape)

    @step
    def dsink(a):
        """Σ P_sink (dL − D), for each head."""
        dS = -softmax(a.column)[..., -1:] * a.D_less_dL
        return unbroadcast(dS, (*a.sink.shape, 1, 1)).reshape(a.sink.shape)

    @step
    def dQ_unscaled(a):
        """dS K."""
        return a.dproducts @ a.k

    @step
    def dQ_scale(a):
        """The factor of dQ."""
        return a.scale

    @step
    def dQ(a):
        """scale · dS K."""
        return a.turned(a.dQ_scale * a.dQ_unscaled, back=True)

    @step
    def dK_unscaled(a):
        """dSᵀ Q, for every query head."""
        return a.transpose(a.dproducts) @ a.Q

    @step
    def dK_scale(a):
        """The factor of dK."""
        return a.scale

    @step
    def dK(a):
        """scale · dSᵀ Q, added up over the query heads that share a key head."""
        return a.turned(a.gather(a.dK_scale * a.dK_unscaled), back=True)


def with_mistakes(*mistakes):
    """The class :class:`Steps` with the steps of these mistakes in the place of the right ones."""
    return with_steps(Steps, tuple(step for mistake in mistakes for step in mistake.steps.items()))


@lru_cache(maxsize=4096)
def with_steps(of, steps):
    """The class ``of`` with these (name, function) in the place of its own."""
    wrong = {name: step(func) if isinstance(getattr(of, name), step) else func for name, func in steps}
    return type("Wrong", (of,), wrong | {"replaced": frozenset(wrong)})


def L_of(a):
    """The log-sum-exp of each row, the sink's score too, as a column; +∞ for a dead row."""
    S = a.S if a.sink is None else a.column
    M = S.max(axis=-1, keepdims=True, initial=-np.inf)
    M = np.where(np.isneginf(M), 0.0, M)
    with np.errstate(divide="ignore"):
        L = M + np.log(rowsum(np.exp(S - M)))
    return np.where(np.isneginf(L), np.inf, L)
