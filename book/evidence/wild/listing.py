"""Claims of a long note (seed_listing): its formulas and explanations. For its code see ``listing_code.py``."""

import numpy as np

from attnbook.attention import attention, attention_vjp
from attnbook.checks.differences import complex_step
from attnbook.softmax import softmax, softmax_jacobian, softmax_vjp
from evidence.claims import AMBIGUOUS, CONVENTION, HOLDS, MISSING, WRONG, Differs, Same, recorder
from evidence.wild.setting import plain_softmax, side

CLAIMS = []
claim, reading = recorder(CLAIMS)


def _rowsum(T):
    return T.sum(-1, keepdims=True)


@claim(
    "S2-1",
    "l.18-32",
    "S = QKᵀ/√d_k, A = softmax(S), O = AV",
    HOLDS,
    "softmax over the keys",
    "01_a_first_head.html#equation-def-attention",
)
def _(z):
    return {"as printed": Same(softmax(z.Q @ z.K.mT / np.sqrt(z.d_k)) @ z.V, attention(z.Q, z.K, z.V)[0])}


reading(
    "S2-2",
    "l.40",
    "∂L/∂O = ∂L/∂O",
    HOLDS,
    "says nothing: there is nothing to run. In a layer, dO_h = dY (W_h^O)ᵀ (S2-57)",
)


@claim("S2-3", "l.46, l.98, l.643", "dA = dO Vᵀ", HOLDS, "A counts as free here", "04_single_head.html#equation-eq-dp")
def _(z):
    t = z.like(z.P)
    return {"as printed": Same(np.sum((z.dO @ z.V.mT) * t), np.sum(z.dO * (t @ z.V)))}


@claim(
    "S2-4",
    "l.54",
    "∂A_i/∂S_i = A_i · (I − A_iᵀ)",
    AMBIGUOUS,
    "diag(A_i) − A_i A_iᵀ; right if · multiplies by entries and A_i is a column",
    "#mistake-ds-identity-minus-p",
    ("ds-identity-minus-p", "ds-zero"),
)
def _(z):
    a, eye = z.P[0], np.eye(z.n_k)
    J, column, row = softmax_jacobian(a), a[:, None], a[None, :]
    return {
        "A_i a column, · by entries": Same(column * (eye - column.T), J),
        "A_i a row, · by entries": Same(row * (eye - row.T), J),
        "A_i a column, · a product": Differs(lambda: column @ (eye - column.T), J),
        "A_i a row, · a product": Differs(lambda: row @ (eye - row.T), J),
        "one axis, A*(I-A.T)": Differs(a * (eye - a.T), J),
        "one axis, A@(I-A.T)": Differs(a @ (eye - a.T), J),
        "one axis, A@(I-A.T) is zero": Same(a @ (eye - a.T), np.zeros(z.n_k)),
    }


@claim(
    "S2-5",
    "l.58, l.94, l.505",
    "dS = dA ∘ A − A dAᵀ A",
    WRONG,
    "dS = A ∘ (dA − rowsum(A ∘ dA)): only the diagonal of A dAᵀ belongs",
    "#mistake-ds-matrix-product",
    ("ds-matrix-product",),
)
def _(z):
    one, g = z.P[:1], z.dP[:1]
    return {
        "as printed": Differs(z.dP * z.P - z.P @ z.dP.mT @ z.P, z.dS),
        "one query": Same(g * one - one @ g.mT @ one, z.dS[:1]),
        "only the diagonal": Same(z.dP * z.P - np.diag(np.diag(z.P @ z.dP.mT)) @ z.P, z.dS),
    }


@claim(
    "S2-6",
    "l.60",
    "that formula accounts for the dependences between the elements of S",
    WRONG,
    "a row of S depends on its own row alone",
    "#mistake-ds-matrix-product",
    ("ds-matrix-product",),
)
def _(z):
    printed = lambda dP: dP * z.P - z.P @ dP.mT @ z.P  # noqa: E731
    other = z.dP.copy()
    other[1] += 1.0 + np.arange(z.n_k)
    return {
        "row 0 when row 1 of dA changes, as printed": Differs(printed(other)[0], printed(z.dP)[0]),
        "row sums, as printed": Differs(printed(z.dP).sum(-1), np.zeros(z.n_q)),
        "row 0, true": Same(softmax_vjp(other, z.P)[0], z.dS[0]),
    }


@claim(
    "S2-7",
    "l.56",
    "that formula is used in practice",
    WRONG,
    "practice is the row sum",
    "03_softmax.html#equation-eq-softmax-vjp",
    ("ds-matrix-product",),
)
def _(z):
    return {
        "formula against the package": Differs(z.dP * z.P - z.P @ z.dP.mT @ z.P, softmax_vjp(z.dP, z.P)),
        "row sum against the package": Same(z.P * (z.dP - _rowsum(z.P * z.dP)), softmax_vjp(z.dP, z.P)),
    }


reading("S2-8", "l.64", "∂L/∂(QKᵀ/√d_k) = ∂L/∂S", HOLDS, "the definition of S; nothing to run")


@claim(
    "S2-9",
    "l.70, l.86, l.655",
    "dQ = dS K / √d_k",
    HOLDS,
    "dS of the scaled scores",
    "04_single_head.html#equation-eq-dq",
)
def _(z):
    return {"as printed": Same(z.dS @ z.K / np.sqrt(z.d_k), z.dQ)}


@claim(
    "S2-10",
    "l.72, l.90",
    "dK = Qᵀ dS / √d_k",
    WRONG,
    "dK = dSᵀ Q / √d_k; the same text has it right twice",
    "#mistake-dk-transposed",
    ("dk-transposed",),
)
def _(z):
    printed = z.Q.mT @ z.dS / np.sqrt(z.d_k)
    return {
        "as printed": Differs(printed, z.dK),
        "its transpose": Same(printed.mT, z.dK),
        "corrected": Same(z.dS.mT @ z.Q / np.sqrt(z.d_k), z.dK),
    }


@claim("S2-11", "l.76, l.82, l.643", "dV = Aᵀ dO", HOLDS, "", "04_single_head.html#equation-eq-dv")
def _(z):
    return {"as printed": Same(z.P.mT @ z.dO, attention_vjp(z.dO, attention(z.Q, z.K, z.V)[1]).dV)}


@claim(
    "S2-12",
    "l.78-98",
    "summary: the five formulas again",
    WRONG,
    "dV, dQ, dA right; dK and dS as in S2-10 and S2-5",
    "#wild-two-formulas",
    ("ds-matrix-product", "dk-transposed"),
)
def _(z):
    dS = z.dP * z.P - z.P @ z.dP.mT @ z.P
    return {
        "dS": Differs(dS, z.dS),
        "dK": Differs(z.Q.mT @ dS * z.s, z.dK),
        "dQ with the printed dS": Differs(dS @ z.K * z.s, z.dQ),
        "dV": Same(z.P.mT @ z.dO, z.dV),
        "dQ with a right dS": Same(z.dS @ z.K * z.s, z.dQ),
    }


reading(
    "S2-13",
    "l.102-104",
    "chain rule, softmax Jacobian and matrix calculus give the formulas",
    HOLDS,
    "names tools and derives nothing: there is no step to run",
    "04_single_head.html",
)


@claim(
    "S2-14",
    "l.475",
    "A_ij = exp S_ij / Σ_k exp S_ik",
    HOLDS,
    "in code subtract the row's maximum first",
    "03_softmax.html#equation-eq-softmax-stable",
)
def _(z):
    return {"as printed": Same(np.exp(z.S) / _rowsum(np.exp(z.S)), softmax(z.S))}


def _steps(z):
    """The Jacobian of the first row by complex steps."""
    return np.stack([complex_step(plain_softmax, z.S[0], unit) for unit in np.eye(z.n_k)], axis=1)


@claim("S2-15", "l.481", "∂A_ij/∂S_ij = A_ij (1 − A_ij)", HOLDS, "", "03_softmax.html#q-2")
def _(z):
    return {"as printed": Same(z.P[0] * (1 - z.P[0]), np.diag(_steps(z)))}


@claim(
    "S2-16",
    "l.485",
    "∂A_ij/∂S_ik = −A_ij A_ik for k ≠ j",
    HOLDS,
    "and 0 across rows, which is not said",
    "03_softmax.html#q-1",
)
def _(z):
    off = ~np.eye(z.n_k, dtype=bool)
    unit = np.zeros(z.S.shape)
    unit[1, 0] = 1.0
    return {
        "as printed": Same(-np.outer(z.P[0], z.P[0])[off], _steps(z)[off]),
        "across rows": Same(complex_step(plain_softmax, z.S, unit)[0], np.zeros(z.n_k)),
    }


@claim("S2-17", "l.491-495", "the Jacobian J_i of one row", HOLDS, "J_i = diag(A_i) − A_i A_iᵀ", "03_softmax.html#q-1")
def _(z):
    return {"diag(A_i) − A_i A_iᵀ": Same(np.diag(z.P[0]) - np.outer(z.P[0], z.P[0]), _steps(z))}


@claim("S2-18", "l.501", "dS = dA · J", AMBIGUOUS, "dS_i = dA_i J_i: every row has its own J", "03_softmax.html#q-3")
def _(z):
    J = softmax_jacobian(z.P)
    return {
        "row by row": Same(np.einsum("ij,ijk->ik", z.dP, J), z.dS),
        "one J for all rows": Differs(z.dP @ J[0], z.dS),
    }


@claim(
    "S2-19",
    "l.512-513",
    "dS = dA*A; dS -= np.sum(dS, -1, keepdims=True)*A",
    HOLDS,
    "the one right softmax backward of this text",
    "03_softmax.html#equation-eq-softmax-vjp",
)
def _(z):
    dS = z.dP * z.P
    dS -= np.sum(dS, -1, keepdims=True) * z.P
    batched = z.m.dP * z.m.P
    batched -= np.sum(batched, -1, keepdims=True) * z.m.P
    return {"as printed": Same(dS, z.dS), "with heads": Same(batched, z.m.dS)}


@claim(
    "S2-20",
    "l.518, l.526",
    "dA*A are the diagonal terms of the Jacobian",
    WRONG,
    "the diagonal is A(1 − A); dA ∘ A is the part of diag(A)",
    "#wild-two-formulas",
    ("parts-of-the-jacobian",),
)
def _(z):
    diagonal = np.diagonal(softmax_jacobian(z.P), axis1=1, axis2=2)
    return {"as said": Differs(z.dP * z.P, diagonal * z.dP), "A(1 − A)": Same(z.P * (1 - z.P), diagonal)}


@claim(
    "S2-21",
    "l.522",
    "the second line subtracts the off-diagonal terms",
    WRONG,
    "it subtracts the whole outer product, diagonal included",
    "#wild-two-formulas",
    ("parts-of-the-jacobian",),
)
def _(z):
    second = -_rowsum(z.dP * z.P) * z.P
    J = softmax_jacobian(z.P)
    off = J * (1 - np.eye(z.n_k))
    return {
        "against the off-diagonal part": Differs(second, np.einsum("ij,ijk->ik", z.dP, off)),
        "against the outer product": Same(second, -np.einsum("ij,ij,ik->ik", z.dP, z.P, z.P)),
    }


@claim(
    "S2-22",
    "l.527",
    "off-diagonal terms: −A dAᵀ A",
    WRONG,
    "−A ∘ rowsum(A ∘ dA)",
    "#mistake-ds-matrix-product",
    ("ds-matrix-product", "parts-of-the-jacobian"),
)
def _(z):
    true = z.dS - z.dP * z.P
    return {"as printed": Differs(-z.P @ z.dP.mT @ z.P, true), "corrected": Same(-z.P * _rowsum(z.P * z.dP), true)}


@claim(
    "S2-23",
    "l.503, l.529, l.435",
    "the short form avoids the Jacobian",
    HOLDS,
    "n_q·n_k² numbers become n_q·n_k; only tiling removes those",
    "03_softmax.html#equation-eq-softmax-cost",
)
def _(z):
    J = softmax_jacobian(z.P)
    return {
        "numbers in the Jacobians": Same(J.size, z.n_q * z.n_k**2),
        "numbers in the short form": Same(z.dS.size, z.n_q * z.n_k),
    }


@claim(
    "S2-48",
    "l.539-541, l.613-620",
    "W^Q, W^K: d_model × d_k; W^V: d_model × d_v; d_k = d_v = d_model/h",
    CONVENTION,
    "shapes for one head; the listings use one d_model × d_model matrix for all; d_k = d_model/h is a choice",
    "05_multi_head.html",
)
def _(z):
    m = z.m
    packed = m.X_q @ side(m.W_Q)
    return {"heads side by side": Same(packed, side(m.Q)), "one head alone": Differs(m.X_q @ m.W_Q[0], packed)}


reading(
    "S2-49",
    "l.535, l.543",
    "W is 2-D because it is a linear map",
    HOLDS,
    "a reason in words; with a head axis W is 3-D (S2-48)",
)


@claim(
    "S2-50",
    "l.551-553, l.601",
    "Q = XW^Q measures how well vectors align",
    WRONG,
    "it is a projection; QKᵀ compares, and a dot product is alignment times both lengths",
    errors=("projection-aligns",),
)
def _(z):
    q, keys = np.array([1.0, 0.0]), np.array([[1.0, 0.0], [10.0, 10.0]])
    cosine = keys @ q / np.linalg.norm(keys, axis=1)
    return {
        "best by dot product, best by angle": Differs(int(np.argmax(keys @ q)), int(np.argmax(cosine))),
        "dot product = cosine × lengths": Same(keys @ q, cosine * np.linalg.norm(keys, axis=1)),
    }


@claim(
    "S2-51",
    "l.568-576, l.627",
    "Scores = QKᵀ, softmax of them, then a formula with 1/√d_k",
    AMBIGUOUS,
    "S = QKᵀ/√d_k throughout",
    "#mistake-no-scale",
    ("no-scale",),
)
def _(z):
    return {"with the scale": Same(softmax(z.Q @ z.K.mT * z.s), z.P), "without it": Differs(softmax(z.Q @ z.K.mT), z.P)}


@claim(
    "S2-52",
    "l.570, l.589-591",
    "a higher score means more relevant",
    CONVENTION,
    "within one row only: softmax sees differences",
    "03_softmax.html#q-7",
)
def _(z):
    shift = 5.0 * np.arange(z.n_q)[:, None]
    shifted = softmax(z.S + shift)
    return {
        "a row shifted as a whole": Same(shifted, z.P),
        "the same shift on one key": Differs(softmax(z.S + 5.0 * (np.arange(z.n_k) == 0)), z.P),
    }


reading(
    "S2-53",
    "l.580-585",
    "what Q, K, V mean in a sentence about a cat",
    AMBIGUOUS,
    "a metaphor without weights, which nobody can check; V is a projection XW^V, not the embedding",
)


@claim(
    "S2-54",
    "l.595",
    "dividing by √d_k keeps the gradients of the softmax from vanishing",
    CONVENTION,
    "for independent entries of mean 0 and variance 1; the gradient also carries the factor 1/√d_k",
    "03_softmax.html#q-9",
)
def _(z):
    def norm(d_k, scale):
        q, k = z.rng().normal(size=(2, 300, 8, d_k))
        J = softmax_jacobian(softmax(scale * np.einsum("bd,bnd->bn", q[:, 0], k)))
        return np.linalg.norm(J, axis=(1, 2)).mean()

    small, large = norm(4, 0.5), norm(1024, 1 / 32)
    return {
        "‖J‖ of width 4 and 1024, scaled: within a tenth": Same(bool(abs(large / small - 1) < 0.1), True),
        "unscaled": Differs(bool(abs(norm(1024, 1.0) / norm(4, 1.0) - 1) < 0.1), True),
    }


@claim(
    "S2-55",
    "l.599-605",
    "table: V = XW^V, weighted sum based on attention",
    WRONG,
    "AV is the weighted sum; V is a projection",
    errors=("values-are-the-sum",),
)
def _(z):
    return {
        "V as the output": Differs(z.m.V[0], z.m.P[0] @ z.m.V[0]),
        "AV": Same(z.m.P @ z.m.V, attention(z.m.Q, z.m.K, z.m.V)[0]),
    }


@claim(
    "S2-56",
    "l.617-629",
    "shapes: Q, K n × d_k; V, O n × d_v; QKᵀ, A n × n",
    CONVENTION,
    "one head of self-attention; else A is n_q × n_k",
    "04_single_head.html",
)
def _(z):
    shapes = lambda *arrays: np.array([T.shape for T in arrays])  # noqa: E731
    n, q = z.n_k, z.K
    A = softmax(q @ q.mT)
    return {
        "self-attention": Same(shapes(q, z.V, A, A @ z.V), [(n, z.d_k), (n, z.d_v), (n, n), (n, z.d_v)]),
        "cross-attention, A n × n": Differs(z.P.shape, (z.n_q, z.n_q)),
    }


@claim(
    "S2-57",
    "l.637-639",
    "dO is n × d_v and comes from the next layer, such as the feed-forward",
    CONVENTION,
    "the next layer is W^O, or attention stands alone; from the feed-forward comes dY, and dConcat = dY (W^O)ᵀ",
    "05_multi_head.html",
)
def _(z):
    m = z.m
    t = z.like(m.C)
    return {
        "from W^O: dY (W^O)ᵀ": Same(np.sum((m.dY @ m.W_O.mT) * t), np.sum(m.dY * (t @ m.W_O))),
        "from what reads Y: dY": Differs(lambda: np.sum(m.dY * t), np.sum(m.dC * t)),
    }


@claim(
    "S2-58",
    "l.649",
    "dS = A ∘ (dA − Σ_{i=1}^n A_i dA_i)",
    AMBIGUOUS,
    "right only if i counts keys: rowsum(A ∘ dA)",
    "#mistake-ds-column-sum",
    ("ds-column-sum", "ds-one-scalar"),
)
def _(z):
    product = z.P * z.dP
    return {
        "i counts keys": Same(z.P * (z.dP - product.sum(-1, keepdims=True)), z.dS),
        "A_i is row i: sums over queries": Differs(z.P * (z.dP - product.sum(0, keepdims=True)), z.dS),
        "one number for all": Differs(z.P * (z.dP - product.sum()), z.dS),
    }


@claim(
    "S2-59",
    "l.655",
    "dQ = dS K/√d_k, dK = dSᵀ Q/√d_k",
    HOLDS,
    "the reverse of l.72 and l.90",
    "04_single_head.html#equation-eq-dk",
)
def _(z):
    root = np.sqrt(z.d_k)
    return {"dQ": Same(z.dS @ z.K / root, z.dQ), "dK": Same(z.dS.mT @ z.Q / root, z.dK)}


@claim(
    "S2-60",
    "l.659",
    "dW^Q = Xᵀ dQ, dW^K = Xᵀ dK, dW^V = Xᵀ dV",
    CONVENTION,
    "X_q for W^Q, X_kv for W^K and W^V; summed over the batch",
    "04_single_head.html#q-10",
)
def _(z):
    m = z.m
    return {
        "each with its own input": Same(m.X_k.mT @ m.dK, m.dW_K),
        "dW^Q": Same(m.X_q.mT @ m.dQ, m.dW_Q),
        "dW^V": Same(m.X_v.mT @ m.dV, m.dW_V),
        "the queries' input for W^K, in cross-attention": Differs(lambda: m.X_q.mT @ m.dK, m.dW_K),
    }


@claim(
    "S2-61",
    "l.663",
    "dX = dQ W^Qᵀ + dK W^Kᵀ + dV W^Vᵀ",
    CONVENTION,
    "one head, or packed weights; else summed over the heads",
    "05_multi_head.html",
)
def _(z):
    m = z.m
    X, W_K, W_V = m.X_q, *z.like(m.W_Q, np.zeros((m.h, m.X_q.shape[1], m.V.shape[-1])))
    t = z.rng().normal(size=X.shape)

    def heads(X):
        return plain_softmax(m.s * (X @ m.W_Q) @ (X @ W_K).mT) @ (X @ W_V)

    K, V = X @ W_K, X @ W_V
    P = softmax(m.s * m.Q @ K.mT)
    dS = softmax_vjp(m.dO @ V.mT, P)
    dQ, dK, dV = m.s * dS @ K, m.s * dS.mT @ m.Q, P.mT @ m.dO
    paths = dQ @ m.W_Q.mT + dK @ W_K.mT + dV @ W_V.mT
    true = np.sum(m.dO * complex_step(heads, X, t))
    alone = np.sum(m.dO[0] * complex_step(lambda X: heads(X)[0], X, t))
    return {
        "one head": Same(np.sum(paths[0] * t), alone),
        "one head of several": Differs(np.sum(paths[0] * t), true),
        "summed over the heads": Same(np.sum(paths.sum(0) * t), true),
    }


@claim(
    "S2-62",
    "l.667-677",
    "summary of shapes, with a description of each gradient",
    WRONG,
    "two labels: dA stands before the softmax backward and dS after it; dW is a gradient, the update is −lr dW",
    errors=("labels-of-gradients",),
)
def _(z):
    t = z.like(z.S)
    change = complex_step(lambda S: np.sum(z.dO * (plain_softmax(S) @ z.V)), z.S, t)
    return {
        "dA as the gradient through the softmax": Differs(np.sum(z.dP * t), change),
        "dS": Same(np.sum(z.dS * t), change),
    }


@claim(
    "S2-63",
    "l.681",
    "weights learn by gradient descent, using these updates",
    AMBIGUOUS,
    "W ← W − lr dW: sign and rate are not said",
)
def _(z):
    W = z.m.W_O
    loss = lambda W: np.sum(z.m.dY * (z.m.C @ W))  # noqa: E731
    return {
        "W − lr dW lowers the loss": Same(bool(loss(W - 0.01 * z.m.dW_O) < loss(W)), True),
        "W + dW, read literally, lowers it": Differs(bool(loss(W + z.m.dW_O) < loss(W)), True),
    }


reading(
    "S2-64",
    "l.683, l.281",
    "softmax gradients adjust the attention weights",
    AMBIGUOUS,
    "a matter of words: a step on W^Q and W^K changes A, which is no parameter and has no step of its own",
)


@claim(
    "S2-65",
    "l.684-685",
    "backpropagation flows: scores, queries and keys, weights, input",
    WRONG,
    "the values are a path of their own, and dX needs no dW",
    "#wild-paths",
    ("values-left-out",),
)
def _(z):
    X = z.like(np.zeros((z.n_q, 3)))
    rng = z.rng()
    W_Q, W_K, W_V = rng.normal(size=(3, 3, 3))
    t, dO = rng.normal(size=(2, *X.shape))
    forward = lambda X: plain_softmax((X @ W_Q) @ (X @ W_K).mT) @ (X @ W_V)  # noqa: E731
    g = attention_vjp(dO, attention(X @ W_Q, X @ W_K, X @ W_V, scale=1.0)[1])
    by_scores = g.dQ @ W_Q.mT + g.dK @ W_K.mT
    true = np.sum(dO * complex_step(forward, X, t))
    return {
        "without the values": Differs(np.sum(by_scores * t), true),
        "all three": Same(np.sum((by_scores + g.dV @ W_V.mT) * t), true),
    }


reading(
    "S2-66",
    "l.687",
    "build a numerical example (a suggestion)",
    MISSING,
    "row EX and the first section of chapter 4 do",
    "#wild-example",
)
reading(
    "S2-67",
    "l.106, l.285, l.465",
    "frameworks differentiate automatically and more efficiently",
    HOLDS,
    "true in general, no formula to run; plain automatic differentiation does not fuse (S2-T8)",
)
