"""Claims of a derivation by matrix calculus, which the answer of seed_question links to (seed_blog_matrix).

Its chains of equalities stand inside a trace and give df along a change of some variables. Each line is run along a
random change and compared with the true df, the inner product of gradient and change. ``move`` is the d of the text.
"""

import numpy as np

from attnbook.checks.differences import complex_step as move
from attnbook.softmax import softmax, softmax_vjp
from evidence.claims import AMBIGUOUS, CONVENTION, HOLDS, MISSING, WRONG, Differs, Same, recorder
from evidence.wild.setting import blocks, diagonal_blocks, plain_softmax, side

CLAIMS = []
claim, reading = recorder(CLAIMS)


def _tr(*factors):
    product = factors[0]
    for T in factors[1:]:
        product = product @ T
    return np.trace(product)


def _concat(m, X_q, X_k, X_v, W_Q, W_K, W_V):
    return side(plain_softmax(m.s * (X_q @ W_Q) @ (X_k @ W_K).mT) @ (X_v @ W_V))


def _heads(m, W_V):
    return side(m.P @ (m.X_v @ W_V))


def _scores(m, W_Q, W_K):
    return side(m.s * (m.X_q @ W_Q) @ (m.X_k @ W_K).mT)


class _Softmax:
    """The text's objects for its last question: A, S, V', the matrix of ones, Y = 1 / (exp(A) ones)."""

    def __init__(self, m):
        n_k = m.S.shape[-1]
        self.A, self.S, self.V = side(m.S), side(m.P), blocks(m.V)
        self.ones = blocks(np.ones((m.h, n_k, n_k)))
        self.E = np.exp(self.A)
        self.Y = 1 / (self.E @ self.ones)
        self.G = m.dY @ m.W_O.mT @ self.V.mT  # the M of the short form
        self.left = self.V @ m.W_O @ m.dY.mT
        self.dA = side(m.dS)

    def weights(self, A):
        return np.exp(A) / (np.exp(A) @ self.ones)


@claim(
    "S1-1",
    "l.10-13",
    "MultiHead = Concat(head_h) W^O, head_h = Att(QW_h^Q, KW_h^K, VW_h^V)",
    HOLDS,
    "no mask, no bias; Q, K, V are the inputs themselves",
    "05_multi_head.html",
)
def _(z):
    m = z.m
    return {"as printed": Same(m.forward(*m.inputs), side(softmax(m.S) @ m.V) @ m.W_O)}


@claim(
    "S1-2",
    "l.15-16",
    "df = tr((df/dX)ᵀ d(Concat W^O)) = tr((df/dX)ᵀ Concat dW^O)",
    CONVENTION,
    "everything but W^O is held fixed",
)
def _(z):
    m = z.m
    t = z.like(m.W_O)
    t_V = z.like(m.W_V)
    line_2 = _tr(m.dY.mT, m.C, t)
    return {
        "line 1": Same(_tr(m.dY.mT, move(lambda W: m.C @ W, m.W_O, t)), np.sum(m.dW_O * t)),
        "line 2": Same(line_2, np.sum(m.dW_O * t)),
        "W^V moves too": Differs(line_2, np.sum(m.dW_O * t) + np.sum(m.dW_V * t_V)),
    }


@claim("S1-3", "l.18", "dW^O = Concatᵀ df/dX", HOLDS, "as S0-13", "04_single_head.html#q-10")
def _(z):
    return {"as printed": Same(z.m.C.mT @ z.m.dY, z.m.dW_O)}


@claim("S1-4", "l.22, lines 1-2", "df = tr(Gᵀ dX) = tr(Gᵀ dConcat W^O)", HOLDS, "read (dConcat) W^O")
def _(z):
    m = z.m
    t = z.like(m.W_V)
    true = np.sum(m.dW_V * t)
    return {
        "line 1": Same(_tr(m.dY.mT, move(lambda W: _heads(m, W) @ m.W_O, m.W_V, t)), true),
        "line 2": Same(_tr(m.dY.mT, move(lambda W: _heads(m, W), m.W_V, t), m.W_O), true),
    }


@claim("S1-5", "l.22, line 3", "head_h = softmax(QW^Q (W^K)ᵀ Kᵀ / √d_k) VW^V", HOLDS, "(QW^Q)(KW^K)ᵀ multiplied out")
def _(z):
    m = z.m
    return {"as printed": Same(softmax(m.s * m.X_q @ m.W_Q @ m.W_K.mT @ m.X_k.mT) @ m.X_v @ m.W_V, m.P @ m.V)}


@claim(
    "S1-6",
    "l.22, line 4",
    "tr(W^O Gᵀ d(softmax_1 V, …) diag(W_1^V, …))",
    AMBIGUOUS,
    "d of the product, as the lines that follow have it; the parentheses may be those of the tuple",
    "#wild-bracket",
    ("d-of-the-bracket",),
)
def _(z):
    m = z.m
    t = z.like(m.W_V)
    inside = side(m.P @ m.X_v)
    true = np.sum(m.dW_V * t)
    bracket = move(lambda W: inside + 0 * W.sum(), m.W_V, t)  # the bracket does not contain W^V
    whole = move(lambda W: inside @ blocks(W), m.W_V, t)
    return {
        "d of the whole product": Same(_tr(m.W_O, m.dY.mT, whole), true),
        "d of the bracket alone": Differs(_tr(m.W_O, m.dY.mT, bracket, blocks(m.W_V)), true),
    }


@claim(
    "S1-7",
    "l.26",
    "A = (softmax_1 V, …, softmax_H V)",
    HOLDS,
    "n_q × (H d_model); the letter A changes its meaning later",
    "#wild-letters",
)
def _(z):
    m = z.m
    return {"A W^v W^O is the output": Same(side(m.P @ m.X_v) @ blocks(m.W_V) @ m.W_O, m.Y)}


@claim(
    "S1-8", "l.28", "W^v = diag(W_1^V, …, W_H^V)", CONVENTION, "a block-diagonal matrix, not a free one", "#wild-blocks"
)
def _(z):
    m = z.m
    A = side(m.P @ m.X_v)
    return {
        "blocks on the diagonal": Same(A @ blocks(m.W_V), m.C),
        "one block below the other": Differs(lambda: A @ np.concatenate(list(m.W_V)), m.C),
    }


@claim(
    "S1-9",
    "l.32-36",
    "df = tr(W^O Gᵀ d(AW^v)) = tr(W^O Gᵀ A dW^v) = tr((Aᵀ G W^Oᵀ)ᵀ dW^v)",
    HOLDS,
    "A is constant: W^Q, W^K, V are fixed",
)
def _(z):
    m = z.m
    t = z.like(m.W_V)
    A, tW, true = side(m.P @ m.X_v), blocks(t), np.sum(m.dW_V * t)
    return {
        "line 1": Same(_tr(m.W_O, m.dY.mT, move(lambda W: A @ W, blocks(m.W_V), tW)), true),
        "line 2": Same(_tr(m.W_O, m.dY.mT, A, tW), true),
        "line 3": Same(_tr((A.mT @ m.dY @ m.W_O.mT).mT, tW), true),
    }


@claim(
    "S1-10",
    "l.40",
    "dW^v = Aᵀ (df/dX) (W^O)ᵀ",
    CONVENTION,
    "W^v counts as a free matrix; it is not, and only the diagonal blocks are gradients, as in S0-12",
    "#wild-blocks",
)
def _(z):
    m = z.m
    full = side(m.P @ m.X_v).mT @ m.dY @ m.W_O.mT
    free = z.like(full)
    as_free = move(lambda W: np.sum(m.dY * (side(m.P @ m.X_v) @ W @ m.W_O)), blocks(m.W_V), free)
    return {
        "if W^v were a free matrix": Same(np.sum(full * free), as_free),
        "the diagonal blocks": Same(diagonal_blocks(full, m.h), m.dW_V),
        "the whole matrix": Differs(full, blocks(m.dW_V)),
    }


@claim(
    "S1-11",
    "l.44, 4 lines",
    "df = … = tr(W^O Gᵀ d(softmax_1, …, softmax_H) diag(VW_1^V, …))",
    CONVENTION,
    "d reaches only the bracket, and VW^V is fixed",
)
def _(z):
    m = z.m
    t = z.like(m.W_Q)
    true = np.sum(m.dW_Q * t)
    concat = move(lambda W: _concat(m, m.X_q, m.X_k, m.X_v, W, m.W_K, m.W_V), m.W_Q, t)
    weights = move(lambda W: side(plain_softmax(m.s * (m.X_q @ W) @ m.K.mT)), m.W_Q, t)
    return {
        "lines 1 to 3": Same(_tr(m.dY.mT, concat, m.W_O), true),
        "line 4": Same(_tr(m.W_O, m.dY.mT, weights, blocks(m.V)), true),
        "line 4, when W^V moves": Differs(0.0, np.sum(m.dW_V * z.like(m.W_V))),
    }


@claim(
    "S1-12",
    "l.48-52",
    "S = (softmax(A_1), …, softmax(A_H)), A = (A_1, …, A_H)",
    HOLDS,
    "S are weights and A scores here, the reverse of other texts",
    "#wild-letters",
)
def _(z):
    b = _Softmax(z.m)
    return {"as printed": Same(np.concatenate([softmax(S) for S in z.m.S], axis=1), b.S)}


@claim(
    "S1-13",
    "l.54",
    "V' = diag(VW_1^V, …), size Hn × d_model",
    CONVENTION,
    "n is n_k, and H d_v = d_model, as in the paper. In our copy the last block stands in column 2",
    "#wild-blocks",
)
def _(z):
    m, b = z.m, _Softmax(z.m)
    copied = np.zeros(b.V.shape)
    n_k, d_v = m.V.shape[1:]
    for h in range(m.h):
        column = h if h < m.h - 1 else 1
        copied[h * n_k : (h + 1) * n_k, column * d_v : (column + 1) * d_v] = m.V[h]
    return {
        "block h in column h": Same(b.S @ b.V, m.C),
        "size, where H d_v is not d_model": Differs(b.V.shape, (m.h * n_k, m.X_v.shape[1])),
        "last block in column 2, of three heads": Differs(b.S @ copied, m.C),
    }


@claim("S1-14", "l.56-58", "df = tr(W^O Gᵀ d(SV')) = tr(V'W^O Gᵀ dS)", HOLDS, "V' is constant")
def _(z):
    m, b = z.m, _Softmax(z.m)
    t = z.like(m.W_K)
    tS = move(lambda W: side(plain_softmax(m.s * m.Q @ (m.X_k @ W).mT)), m.W_K, t)
    true = np.sum(m.dW_K * t)
    return {"line 1": Same(_tr(m.W_O, m.dY.mT, tS @ b.V), true), "line 2": Same(_tr(b.V, m.W_O, m.dY.mT, tS), true)}


@claim(
    "S1-15",
    "l.60",
    "S = exp A ∘ Y(exp A II)",
    CONVENTION,
    "(exp A) II, exp by entries; subtract each row's maximum first",
)
def _(z):
    b = _Softmax(z.m)
    return {
        "(exp A) II": Same(b.E / (b.E @ b.ones), b.S),
        "exp(A II)": Differs(b.E / np.exp(b.A @ b.ones), b.S),
        "II the identity": Differs(b.E / (b.E @ np.eye(len(b.ones))), b.S),
        "scores of 800": Differs(lambda: _overflow(800.0), np.array([0.5, 0.5])),
    }


@claim(
    "S1-16",
    "l.64-66",
    "II = diag(I, …, I), Hn × Hn, with I all ones",
    HOLDS,
    "Hn_k × Hn_k; it only adds up each head's row",
    "#wild-letters",
)
def _(z):
    m, b = z.m, _Softmax(z.m)
    sums = side(np.repeat(np.exp(m.S).sum(-1, keepdims=True), m.S.shape[-1], axis=-1))
    return {"exp(A) II": Same(b.E @ b.ones, sums)}


reading("S1-17", "l.68", "Y(X) has the entries 1/x_ij", HOLDS, "a definition; S1-15 and the chain below run it")


def _chain(name, line, says, left_and_right, note=""):
    """One line of the long chain of the text: the change of df along a change of the scores A."""

    @claim(name, f"l.70, line {line}", says, HOLDS, note, "#wild-chain")
    def _(z):
        b = _Softmax(z.m)
        tA = z.like(b.A)
        return {"along a change of A": Same(left_and_right(b, tA), np.sum(b.dA * tA))}


_chain(
    "S1-18a", 1, "tr(V'W^O Gᵀ d(exp A ∘ Y))", lambda b, t: _tr(b.left, move(b.weights, b.A, t)), "one bracket too many"
)
_chain(
    "S1-18b",
    2,
    "tr(V'W^O Gᵀ (d exp A ∘ Y + exp A ∘ dY))",
    lambda b, t: _tr(b.left, move(np.exp, b.A, t) * b.Y + b.E * move(lambda A: 1 / (np.exp(A) @ b.ones), b.A, t)),
)
_chain(
    "S1-18c",
    3,
    "… exp A ∘ Y ∘ dA − exp A ∘ Y ∘ Y ∘ d(exp A II)",
    lambda b, t: _tr(b.left, b.E * b.Y * t - b.E * b.Y * b.Y * move(lambda A: np.exp(A) @ b.ones, b.A, t)),
)
_chain(
    "S1-18d",
    4,
    "… S ∘ dA − S ∘ Y ∘ d(exp A II)",
    lambda b, t: _tr(b.left, b.S * t - b.S * b.Y * move(lambda A: np.exp(A) @ b.ones, b.A, t)),
)
_chain(
    "S1-18e",
    5,
    "tr((M ∘ S)ᵀ dA − (M ∘ S ∘ Y)ᵀ (exp A ∘ dA) II), M = G W^Oᵀ V'ᵀ",
    lambda b, t: _tr((b.G * b.S).mT @ t - (b.G * b.S * b.Y).mT @ (b.E * t) @ b.ones),
    "the two sides are equal under the trace only",
)
_chain(
    "S1-18f",
    6,
    "… − II (M ∘ S ∘ Y)ᵀ (exp A ∘ dA)",
    lambda b, t: _tr((b.G * b.S).mT @ t - b.ones @ (b.G * b.S * b.Y).mT @ (b.E * t)),
    "equal under the trace only",
)
_chain(
    "S1-18g",
    7,
    "tr((M ∘ S)ᵀ dA) − tr((((M ∘ S ∘ Y) IIᵀ) ∘ exp A)ᵀ dA)",
    lambda b, t: _tr((b.G * b.S).mT, t) - _tr((((b.G * b.S * b.Y) @ b.ones.mT) * b.E).mT, t),
    "one opening bracket too few",
)


@claim(
    "S1-19",
    "l.74, line 1",
    "df/dA = M ∘ S − ((M ∘ S ∘ Y) IIᵀ) ∘ exp A, M = G W^Oᵀ V'ᵀ",
    HOLDS,
    "exp A ∘ Y = S, so per head it is P ∘ (dP − rowsum(dP ∘ P))",
    "#wild-chain",
)
def _(z):
    b = _Softmax(z.m)
    return {
        "as printed": Same(b.G * b.S - ((b.G * b.S * b.Y) @ b.ones.mT) * b.E, b.dA),
        "shorter": Same(b.S * (b.G - (b.G * b.S) @ b.ones), b.dA),
    }


@claim(
    "S1-20",
    "l.74, lines 2-4",
    "df = tr((df/dA)ᵀ dA) = tr(γ (df/dA)ᵀ d(QW_1^Q (W_1^K)ᵀ Kᵀ, …))",
    HOLDS,
    "γ = 1/√d_k; a line is printed twice",
)
def _(z):
    m, b = z.m, _Softmax(z.m)
    tQ, tK = z.like(m.W_Q, m.W_K)
    true = np.sum(m.dW_Q * tQ) + np.sum(m.dW_K * tK)
    moved = move(lambda h: _scores(m, m.W_Q + h * tQ, m.W_K + h * tK), 0.0, 1.0)
    return {"all heads move": Same(_tr(b.dA.mT, moved), true)}


@claim(
    "S1-21",
    "l.82-84",
    "P_h = (…, E^h, …), n × nH, the identity in the h-th column",
    CONVENTION,
    "the h-th block column; n is n_k",
)
def _(z):
    m, b = z.m, _Softmax(z.m)
    column = lambda h: np.eye(m.S.shape[-1])[:, [h]]  # noqa: E731
    return {
        "A = Σ_h A_h P_h": Same(sum(m.S[h] @ _select(m, h) for h in range(m.h)), b.A),
        "with one column": Differs(sum(m.S[h] @ column(h) for h in range(m.h)), b.A),
    }


@claim(
    "S1-22",
    "l.86",
    "df = tr(γ (df/dA)ᵀ d(QW_h^Q (W_h^K)ᵀ Kᵀ P_h))",
    CONVENTION,
    "only the weights of head h move; if all move, df is the sum over h",
    "#wild-bracket",
)
def _(z):
    m, b = z.m, _Softmax(z.m)
    t = z.like(m.W_Q)
    terms = [_tr(m.s * b.dA.mT @ m.X_q @ t[h] @ m.W_K[h].mT @ m.X_k.mT @ _select(m, h)) for h in range(m.h)]
    true = np.sum(m.dW_Q * t, axis=(1, 2))
    return {
        "only head h moves": Same(terms[0], true[0]),
        "all heads move": Differs(terms[0], true.sum()),
        "all heads move, summed over h": Same(sum(terms), true.sum()),
    }


@claim("S1-23", "l.88, l.94", "= tr(γ Kᵀ P_h (df/dA)ᵀ Q d(W_h^Q (W_h^K)ᵀ))", HOLDS, "head h alone")
def _(z):
    m, b = z.m, _Softmax(z.m)
    tQ, tK = z.like(m.W_Q, m.W_K)
    moved = [tQ[h] @ m.W_K[h].mT + m.W_Q[h] @ tK[h].mT for h in range(m.h)]
    true = np.sum(m.dW_Q * tQ, axis=(1, 2)) + np.sum(m.dW_K * tK, axis=(1, 2))
    return {
        "each head": Same([_tr(m.s * m.X_k.mT @ _select(m, h) @ b.dA.mT @ m.X_q, moved[h]) for h in range(m.h)], true)
    }


@claim("S1-24", "l.90", "= tr(γ (W_h^K)ᵀ Kᵀ P_h (df/dA)ᵀ Q dW_h^Q)", HOLDS, "W_h^K is fixed")
def _(z):
    m, b = z.m, _Softmax(z.m)
    t = z.like(m.W_Q)
    lines = [_tr(m.s * m.W_K[h].mT @ m.X_k.mT @ _select(m, h) @ b.dA.mT @ m.X_q, t[h]) for h in range(m.h)]
    return {"each head": Same(lines, np.sum(m.dW_Q * t, axis=(1, 2)))}


@claim("S1-25", "l.92", "dW_h^Q = γ Qᵀ (df/dA) P_hᵀ K W_h^K", HOLDS, "Q, K are the inputs; as S0-11", "#wild-letters")
def _(z):
    m, b = z.m, _Softmax(z.m)
    printed = [m.s * m.X_q.mT @ b.dA @ _select(m, h).mT @ m.X_k @ m.W_K[h] for h in range(m.h)]
    return {"as printed": Same(np.stack(printed), m.dW_Q)}


@claim("S1-26", "l.96", "= tr(γ Kᵀ P_h (df/dA)ᵀ Q W_h^Q d((W_h^K)ᵀ))", HOLDS, "W_h^Q is fixed")
def _(z):
    m, b = z.m, _Softmax(z.m)
    t = z.like(m.W_K)
    lines = [_tr(m.s * m.X_k.mT @ _select(m, h) @ b.dA.mT @ m.X_q @ m.W_Q[h], t[h].mT) for h in range(m.h)]
    return {"each head": Same(lines, np.sum(m.dW_K * t, axis=(1, 2)))}


@claim(
    "S1-27",
    "l.98",
    "dW_h^K = γ Kᵀ P_h (df/dA)ᵀ Q W_h^Q d((W_h^K)ᵀ)",
    WRONG,
    "drop the last factor: γ Kᵀ P_h (df/dA)ᵀ Q W_h^Q",
    "#wild-bracket",
    ("left-over-d",),
)
def _(z):
    m, b = z.m, _Softmax(z.m)
    right = np.stack([m.s * m.X_k.mT @ _select(m, h) @ b.dA.mT @ m.X_q @ m.W_Q[h] for h in range(m.h)])
    return {"with the left-over factor": Differs(right @ z.like(m.W_K).mT, m.dW_K), "without it": Same(right, m.dW_K)}


@claim(
    "S1-28",
    "whole",
    "gradients of the inputs, mask, biases, cross-attention: absent",
    MISSING,
    "as S0-14, S0-7, S0-8, S0-5",
    "04_single_head.html#q-10",
)
def _(z):
    m = z.m
    tangents = z.like(m.X_q, m.X_k, m.X_v)
    inputs = m.inputs[:3]
    moved = move(
        lambda h: _concat(m, *(X + h * t for X, t in zip(inputs, tangents, strict=True)), *m.inputs[3:6]), 0.0, 1.0
    )
    return {
        "the three of S0-14": Same(
            sum(np.sum(g * t) for g, t in zip(m.grads[:3], tangents, strict=True)), np.sum(m.dC * moved)
        )
    }


@claim(
    "S1-29",
    "l.74, with a mask",
    "does the formula for df/dA survive a mask of −∞? (an extension)",
    HOLDS,
    "exp A is 0 at masked entries",
    "06_masked.html",
)
def _(z):
    m, b = z.m, _Softmax(z.m)
    keep = np.arange(m.S.shape[2]) <= np.arange(m.S.shape[1])[:, None]
    scores = np.where(keep, m.S, -np.inf)
    E = np.exp(side(scores))
    Y = 1 / (E @ b.ones)
    S = E * Y
    return {
        "with a causal mask": Same(b.G * S - ((b.G * S * Y) @ b.ones) * E, side(softmax_vjp(m.dP, softmax(scores))))
    }


def _select(m, h):
    n_k = m.S.shape[-1]
    return np.eye(m.h * n_k)[h * n_k : (h + 1) * n_k]


def _overflow(score):
    with np.errstate(all="ignore"):
        return plain_softmax(np.array([score, score]))
