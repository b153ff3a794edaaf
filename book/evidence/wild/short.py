"""Claims of a short note on Z = QKᵀ (seed_short)."""

import numpy as np

from attnbook.checks.differences import complex_step
from attnbook.softmax import softmax
from evidence.claims import AMBIGUOUS, CONVENTION, HOLDS, MISSING, WRONG, Differs, Same, recorder

CLAIMS = []
claim, reading = recorder(CLAIMS)


def _jacobian(f, X):
    """Every partial derivative of f at X: the shape of f(X), then that of X."""
    units = np.eye(X.size).reshape(X.size, *X.shape)
    steps = np.stack([complex_step(f, X, unit) for unit in units], axis=-1)
    return steps.reshape(*steps.shape[:-1], *X.shape)


@claim(
    "S4-1",
    "l.9-15",
    "attention scores A = softmax(QKᵀ/√d_k); Z, the scores before softmax, = QKᵀ",
    AMBIGUOUS,
    "two things are called scores, and Z lacks the scale; S = QKᵀ/√d_k enters the softmax",
    "#mistake-no-scale",
    ("no-scale",),
)
def _(z):
    Z = z.Q @ z.K.mT
    return {"softmax(Z/√d_k) = A": Same(softmax(Z / np.sqrt(z.d_k)), z.P), "softmax(Z) = A": Differs(softmax(Z), z.P)}


@claim("S4-2", "l.19-21", "Q, K are n × dim_head, Z is n × n", CONVENTION, "self-attention; else n_q × n_k")
def _(z):
    n = z.n_q
    return {
        "self-attention": Same((z.Q @ z.Q.mT).shape, (n, n)),
        "cross-attention": Differs((z.Q @ z.K.mT).shape, (n, n)),
    }


@claim(
    "S4-3",
    "l.27",
    "∂Z/∂Q = K",
    CONVENTION,
    "one row of Z by the same row of Q, in numerator layout; in full ∂Z_ij/∂Q_kl = δ_ik K_jl, four indices",
    "#wild-dz-dq",
)
def _(z):
    J = _jacobian(lambda Q: Q @ z.K.mT, z.Q)
    return {
        "one row": Same(z.K, J[0, :, 0, :]),
        "the whole derivative": Differs(z.K, J),
        "δ_ik K_jl": Same(np.einsum("ik,jl->ijkl", np.eye(z.n_q), z.K), J),
    }


@claim(
    "S4-4",
    "l.31",
    "a row of Q influences the same row of Z",
    HOLDS,
    "so for A and O; not so for K",
    "#equation-eq-qk-jacobian",
)
def _(z):
    J = _jacobian(lambda Q: Q @ z.K.mT, z.Q)
    return {"other rows": Same(J[0, :, 1, :], np.zeros((z.n_k, z.d_k)))}


@claim(
    "S4-5",
    "l.32",
    "therefore the derivative is K and not Kᵀ",
    CONVENTION,
    "numerator layout, which is not said; the rows do not decide it. What one needs is ⟨dZ, Q~Kᵀ⟩ = ⟨dZ K, Q~⟩",
    "#wild-dz-dq",
)
def _(z):
    t, one = z.like(z.Q), _jacobian(lambda q: q @ z.K.mT, z.Q[0])
    return {
        "one row, numerator layout": Same(z.K, one),
        "one row, denominator layout": Differs(z.K, np.moveaxis(one, 0, 1)),
        "in that layout it is Kᵀ": Same(np.moveaxis(one, 0, 1), z.K.mT),
        "the inner product": Same(np.sum(z.dS * (t @ z.K.mT)), np.sum((z.dS @ z.K) * t)),
    }


@claim(
    "S4-6",
    "l.38",
    "dQ = dZ · ∂Z/∂Q, with ∂Z/∂Q = K",
    HOLDS,
    "the result is right, in this order, as a rule for Z = QKᵀ",
    "04_single_head.html#equation-eq-dq",
)
def _(z):
    return {"dZ K": Same((z.dS * z.s) @ z.K, z.dQ)}


@claim(
    "S4-7",
    "l.42, l.60",
    "dQ = (∂L/∂A) K",
    WRONG,
    "dQ = dZ K with dZ = A ∘ (dA − rowsum(A ∘ dA)) / √d_k",
    "#mistake-ds-skipped",
    ("ds-skipped",),
)
def _(z):
    return {
        "A the weights": Differs(z.dP @ z.K, z.dQ),
        "A the scaled scores": Differs(z.dS @ z.K, z.dQ),
        "A the unscaled scores Z": Same(z.s * z.dS @ z.K, z.dQ),
    }


@claim(
    "S4-8",
    "l.44",
    "∂L/∂A is the gradient of the attention scores A",
    AMBIGUOUS,
    "A was the softmax output; what is meant is dZ",
    "#mistake-ds-skipped",
    ("ds-skipped",),
)
def _(z):
    return {
        "A read as Z": Same(z.s * z.P * (z.dP - (z.P * z.dP).sum(-1, keepdims=True)), z.s * z.dS),
        "A the weights": Differs(z.dP, z.s * z.dS),
    }


@claim(
    "S4-9",
    "l.50",
    "∂Z/∂K = Qᵀ",
    AMBIGUOUS,
    "one column of Z, in denominator layout; in the layout of l.27 it is Q. In full δ_jk Q_il",
    "#wild-dz-dq",
)
def _(z):
    J = _jacobian(lambda K: z.Q @ K.mT, z.K)
    return {
        "one column, denominator layout": Same(z.Q.mT, J[:, 0, 0, :].mT),
        "one column, the layout of l.27": Differs(z.Q.mT, J[:, 0, 0, :]),
        "δ_jk Q_il": Same(np.einsum("jk,il->ijkl", np.eye(z.n_k), z.Q), J),
    }


@claim("S4-10", "l.54, l.64", "dK = (∂L/∂A)ᵀ Q", WRONG, "dK = dZᵀ Q", "#mistake-ds-skipped", ("ds-skipped",))
def _(z):
    return {"A the weights": Differs(z.dP.mT @ z.Q, z.dK), "A read as Z": Same((z.s * z.dS).mT @ z.Q, z.dK)}


reading(
    "S4-11",
    "l.58, l.62",
    "headings: gradient of Z, over formulas for the gradient of L",
    WRONG,
    "a label, so nothing to run: they are gradients of L",
    errors=("headings",),
)
reading(
    "S4-12",
    "whole",
    "dV, dA, the softmax backward, mask, heads, projections: absent",
    MISSING,
    "absent; S2-3, S2-11 and S2-19 run them",
    "04_single_head.html",
)
