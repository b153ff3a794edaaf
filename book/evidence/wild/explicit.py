"""Claims of a note with an explicit formula for attention's gradient (seed_explicit). It has no scale."""

import numpy as np

from attnbook.attention import attention, attention_vjp
from attnbook.checks.differences import complex_step
from attnbook.softmax import softmax, softmax_jacobian, softmax_vjp
from evidence.claims import CONVENTION, HOLDS, MISSING, Differs, Same, recorder
from evidence.wild.setting import plain_softmax

CLAIMS = []
claim, reading = recorder(CLAIMS)


class _Note:
    """The note's objects: e_i, p_i = K Qᵗ e_i, σ(p_i), dσ(p_i), for attention without a scale."""

    def __init__(self, z):
        self.z, self.Q, self.K, self.V, self.Lambda = z, z.Q, z.K, z.V, z.dO
        self.rows = range(z.n_q)
        self.e = np.eye(z.n_q)
        self.p = [z.K @ z.Q.mT @ e for e in self.e]
        self.sigma = [softmax(p) for p in self.p]
        self.dsigma = [softmax_jacobian(s) for s in self.sigma]
        self.ee = [np.outer(e, e) for e in self.e]
        self.grads = attention_vjp(z.dO, attention(z.Q, z.K, z.V, scale=1.0)[1])
        self.Omega = softmax_vjp(z.dO @ z.V.mT, softmax(z.Q @ z.K.mT))
        self.tQ, self.tK, self.tV = z.like(z.Q, z.K, z.V)

    def att(self, Q, K, V):
        return plain_softmax(Q @ K.mT) @ V

    def sum(self, term):
        return sum(term(i) for i in self.rows)

    def moved_Q(self, i):
        return np.outer(self.e[i], self.dsigma[i] @ self.K @ self.tQ.mT @ self.e[i]) @ self.V

    def moved_K(self, i):
        return np.outer(self.e[i], self.dsigma[i] @ self.tK @ self.Q.mT @ self.e[i]) @ self.V


@claim(
    "S3-1",
    "l.19",
    "Θ = three copies of R^{n×d}",
    CONVENTION,
    "all of it holds for n_q × d_k, n_k × d_k, n_k × d_v",
    "#wild-explicit",
)
def _(z):
    shapes = tuple(T.shape for T in (z.Q, z.K, z.V))
    return {
        "Ω K at these sizes": Same(_Note(z).Omega @ z.K, _Note(z).grads.dQ),
        "three equal shapes, in general": Differs(shapes, shapes[:1] * 3),
    }


@claim(
    "S3-2",
    "l.27",
    "standard attention = σ(QKᵗ)V",
    CONVENTION,
    "without the scale; with it p_i = KQᵗe_i/√d, dQ = ΩK/√d, dK = ΩᵗQ/√d",
    "#mistake-no-scale",
)
def _(z):
    n = _Note(z)
    return {
        "as defined": Same(n.att(z.Q, z.K, z.V), attention(z.Q, z.K, z.V, scale=1.0)[0]),
        "against scaled attention": Differs(n.att(z.Q, z.K, z.V), z.O),
        "its dQ against scaled attention": Differs(n.Omega @ z.K, z.dQ),
        "with the scale twice, in p_i and before ΩK": Same(z.dS @ z.K * z.s, z.dQ),
    }


@claim("S3-3", "l.30", "σ acts on every row", HOLDS, "of length n_k", "03_softmax.html")
def _(z):
    return {"row by row": Same(np.stack([softmax(row) for row in z.S]), softmax(z.S))}


@claim("S3-4", "l.34-35", "Att = Σ e_i σ((e_iᵗQKᵗ)ᵗ)ᵗV = Σ e_i σ(KQᵗe_i)ᵗV", HOLDS)
def _(z):
    n = _Note(z)
    true = attention(z.Q, z.K, z.V, scale=1.0)[0]
    return {
        "first": Same(n.sum(lambda i: np.outer(n.e[i], softmax((n.e[i] @ z.Q @ z.K.mT).T)) @ z.V), true),
        "second": Same(n.sum(lambda i: np.outer(n.e[i], n.sigma[i]) @ z.V), true),
    }


@claim("S3-5", "l.43", "dAtt·θ~ = d_Q·Q~ + d_K·K~ + d_V·V~", HOLDS)
def _(z):
    n = _Note(z)
    whole = complex_step(lambda h: n.att(z.Q + h * n.tQ, z.K + h * n.tK, z.V + h * n.tV), 0.0, 1.0)
    parts = (
        complex_step(lambda Q: n.att(Q, z.K, z.V), z.Q, n.tQ)
        + complex_step(lambda K: n.att(z.Q, K, z.V), z.K, n.tK)
        + complex_step(lambda V: n.att(z.Q, z.K, V), z.V, n.tV)
    )
    return {"as printed": Same(parts, whole)}


@claim("S3-6a", "l.55", "d_Q Att·Q~ = Σ e_i [dσ(p_i) K Q~ᵗ e_i]ᵗ V", HOLDS)
def _(z):
    n = _Note(z)
    return {"as printed": Same(n.sum(n.moved_Q), complex_step(lambda Q: n.att(Q, z.K, z.V), z.Q, n.tQ))}


@claim("S3-6b", "l.57", "d_K Att·K~ = Σ e_i [dσ(p_i) K~ Qᵗ e_i]ᵗ V", HOLDS)
def _(z):
    n = _Note(z)
    return {"as printed": Same(n.sum(n.moved_K), complex_step(lambda K: n.att(z.Q, K, z.V), z.K, n.tK))}


@claim("S3-6c", "l.59", "d_V Att·V~ = Σ e_i σ(p_i)ᵗ V~", HOLDS)
def _(z):
    n = _Note(z)
    printed = n.sum(lambda i: np.outer(n.e[i], n.sigma[i]) @ n.tV)
    return {"as printed": Same(printed, complex_step(lambda V: n.att(z.Q, z.K, V), z.V, n.tV))}


@claim(
    "S3-7",
    "l.62-63, l.194",
    "dσ(p) = Δσ(p) − σ(p)σ(p)ᵗ",
    HOLDS,
    "Δv = diag(v), which is not said",
    "03_softmax.html#q-1",
)
def _(z):
    n = _Note(z)
    s, t = n.sigma[0], z.like(n.p[0])
    return {"as printed": Same((np.diag(s) - np.outer(s, s)) @ t, complex_step(plain_softmax, n.p[0], t))}


reading(
    "S3-8",
    "l.65-73",
    "only a real-valued map has a gradient, so L = ℓ ∘ Att",
    HOLDS,
    "a definition, and the only text of the five that gives it",
    "02_gradients.html",
)


@claim(
    "S3-9",
    "l.81-87, 7 lines",
    "⟨d_Q Att·Q~, P⟩ = … = ⟨Q~, Σ e_ie_iᵗ P Vᵗ dσ(p_i) K⟩",
    HOLDS,
    "every line",
    "#wild-explicit",
)
def _(z):
    n, P, V, K = _Note(z), z.dO, z.V, z.K
    true = np.sum(complex_step(lambda Q: n.att(Q, K, V), z.Q, n.tQ) * P)
    lines = [
        np.sum(n.sum(n.moved_Q) * P),
        n.sum(lambda i: np.sum(n.moved_Q(i) * P)),
        n.sum(lambda i: np.sum((n.ee[i] @ n.tQ @ K.mT @ n.dsigma[i].T @ V) * P)),
        n.sum(lambda i: np.trace(V.mT @ n.dsigma[i] @ K @ n.tQ.mT @ n.ee[i] @ P)),
        n.sum(lambda i: np.trace(n.tQ.mT @ n.ee[i] @ P @ V.mT @ n.dsigma[i] @ K)),
        n.sum(lambda i: np.sum(n.tQ * (n.ee[i] @ P @ V.mT @ n.dsigma[i] @ K))),
        np.sum(n.tQ * n.sum(lambda i: n.ee[i] @ P @ V.mT @ n.dsigma[i] @ K)),
    ]
    return {"all 7 lines": Same(lines, [true] * 7)}


@claim("S3-10", "l.93", "d_Q Att* · P = Σ e_ie_iᵗ P Vᵗ dσ(p_i) K", HOLDS)
def _(z):
    n = _Note(z)
    adjoint = n.sum(lambda i: n.ee[i] @ z.dO @ z.V.mT @ n.dsigma[i] @ z.K)
    moved = complex_step(lambda Q: n.att(Q, z.K, z.V), z.Q, n.tQ)
    return {"⟨adjoint of P, Q~⟩ = ⟨P, d_Q Att·Q~⟩": Same(np.sum(adjoint * n.tQ), np.sum(z.dO * moved))}


@claim("S3-11", "l.98-103, 5 lines", "d_Q L·Q~ = … = ⟨Q~, Σ e_ie_iᵗ Λ Vᵗ dσ(p_i) K⟩", HOLDS, "Λ = dℓ* · 1 is dO")
def _(z):
    n = _Note(z)
    true = complex_step(lambda Q: np.sum(z.dO * n.att(Q, z.K, z.V)), z.Q, n.tQ)
    moved = complex_step(lambda Q: n.att(Q, z.K, z.V), z.Q, n.tQ)
    last = n.sum(lambda i: n.ee[i] @ n.Lambda @ z.V.mT @ n.dsigma[i] @ z.K)
    return {
        "first three lines": Same(np.sum(z.dO * moved) * 1.0, true),
        "last two lines": Same(np.sum(n.tQ * last), true),
    }


@claim("S3-12", "l.112", "d_Q L = Σ e_ie_iᵗ Λ Vᵗ dσ(p_i) K", HOLDS, "", "#equation-eq-omega-gradients")
def _(z):
    n = _Note(z)
    return {"as printed": Same(n.sum(lambda i: n.ee[i] @ n.Lambda @ z.V.mT @ n.dsigma[i] @ z.K), n.grads.dQ)}


@claim(
    "S3-13",
    "l.118-126, 8 lines",
    "⟨d_K Att·K~, P⟩ = … = ⟨K~, Σ dσ(p_i)ᵗ V Pᵗ e_ie_iᵗ Q⟩",
    HOLDS,
    "the transpose of dσ is idle: it is symmetric",
    "#wild-explicit",
)
def _(z):
    n, P, V, Q = _Note(z), z.dO, z.V, z.Q
    true = np.sum(complex_step(lambda K: n.att(Q, K, V), z.K, n.tK) * P)
    lines = [
        np.sum(n.sum(n.moved_K) * P),
        n.sum(lambda i: np.sum(n.moved_K(i) * P)),
        n.sum(lambda i: np.sum((n.ee[i] @ Q @ n.tK.mT @ n.dsigma[i].T @ V) * P)),
        n.sum(lambda i: np.trace(V.mT @ n.dsigma[i] @ n.tK @ Q.mT @ n.ee[i] @ P)),
        n.sum(lambda i: np.trace(Q.mT @ n.ee[i] @ P @ V.mT @ n.dsigma[i] @ n.tK)),
        n.sum(lambda i: np.trace(n.tK.mT @ n.dsigma[i].T @ V @ P.mT @ n.ee[i] @ Q)),
        n.sum(lambda i: np.sum(n.tK * (n.dsigma[i].T @ V @ P.mT @ n.ee[i] @ Q))),
        np.sum(n.tK * n.sum(lambda i: n.dsigma[i].T @ V @ P.mT @ n.ee[i] @ Q)),
    ]
    return {"all 8 lines": Same(lines, [true] * 8)}


@claim(
    "S3-14",
    "l.131, l.136",
    "d_K L = Σ dσ(p_i)ᵗ V Λᵗ e_ie_iᵗ Q",
    HOLDS,
    "",
    "#equation-eq-omega-gradients",
)
def _(z):
    n = _Note(z)
    return {"as printed": Same(n.sum(lambda i: n.dsigma[i].T @ z.V @ n.Lambda.mT @ n.ee[i] @ z.Q), n.grads.dK)}


@claim("S3-15", "l.142-146, 4 lines", "⟨d_V Att·V~, P⟩ = … = ⟨V~, Σ σ(p_i) e_iᵗ P⟩", HOLDS, "every line")
def _(z):
    n, P = _Note(z), z.dO
    true = np.sum(complex_step(lambda V: n.att(z.Q, z.K, V), z.V, n.tV) * P)
    moved = lambda i: np.outer(n.e[i], n.sigma[i]) @ n.tV  # noqa: E731
    lines = [
        np.sum(n.sum(moved) * P),
        n.sum(lambda i: np.sum(moved(i) * P)),
        n.sum(lambda i: np.sum(n.tV * (np.outer(n.sigma[i], n.e[i]) @ P))),
        np.sum(n.tV * n.sum(lambda i: np.outer(n.sigma[i], n.e[i]) @ P)),
    ]
    return {"all 4 lines": Same(lines, [true] * 4)}


@claim("S3-16", "l.152, l.158", "d_V L = Σ σ(p_i) e_iᵗ Λ", HOLDS, "= AᵗΛ", "04_single_head.html#equation-eq-dv")
def _(z):
    n = _Note(z)
    return {"as printed": Same(n.sum(lambda i: np.outer(n.sigma[i], n.e[i]) @ n.Lambda), n.grads.dV)}


@claim(
    "S3-17",
    "l.165",
    "dL = (ΩK, ΩᵗQ, Σ σ(p_i) e_iᵗ Λ)",
    HOLDS,
    "for scale 1; with the scale see S3-2",
    "#equation-eq-omega-gradients",
)
def _(z):
    n = _Note(z)
    return {"ΩK": Same(n.Omega @ z.K, n.grads.dQ), "ΩᵗQ": Same(n.Omega.mT @ z.Q, n.grads.dK)}


@claim(
    "S3-18",
    "l.179, l.185, l.194",
    "Ω = Σ e_ie_iᵗ Λ Vᵗ dσ(p_i), also as stacked rows",
    HOLDS,
    "Ω = dS; by entries it costs n_q·n_k, not n_q·n_k²",
    "#equation-eq-omega",
)
def _(z):
    n = _Note(z)
    stacked = np.stack([n.e[i] @ n.Lambda @ z.V.mT @ n.dsigma[i] for i in n.rows])
    return {
        "the sum": Same(n.sum(lambda i: n.ee[i] @ n.Lambda @ z.V.mT @ n.dsigma[i]), n.Omega),
        "stacked": Same(stacked, n.Omega),
    }


reading(
    "S3-19",
    "l.30, l.201",
    "the softmax derivative is behind two links, one of them empty",
    MISSING,
    "nothing to run; chapter 3 derives it in place",
    "03_softmax.html#q-1",
)
reading(
    "S3-20",
    "l.203-205",
    "does automatic differentiation use Ω twice? (asked)",
    MISSING,
    "once, if both gradients are asked for in one call; needs torch, so it is counted in the text",
    "#wild-explicit",
)
