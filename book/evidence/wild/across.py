"""What concerns all five texts: an example, the letters, the softmax backward, what is not said."""

import numpy as np

from attnbook.attention import attention, attention_vjp
from attnbook.checks.differences import complex_step
from attnbook.softmax import softmax_jacobian
from evidence.claims import AMBIGUOUS, MISSING, Differs, Same, recorder
from evidence.wild.setting import blocks, plain_softmax, side

CLAIMS = []
claim, reading = recorder(CLAIMS)


@claim(
    "EX",
    "answers S2-66",
    "two tokens of width 1, Q = K = V = (1, 0), dO = (1, 1), scale 1",
    MISSING,
    "with p = e/(e+1): O = (p, ½), dS = ((p(1−p), −p(1−p)), (¼, −¼)), dV = (p+½, 3/2−p)",
    "#wild-example",
)
def _(z):
    Q, dO, p = np.array([[1.0], [0.0]]), np.ones((2, 1)), np.e / (np.e + 1)
    O, res = attention(Q, Q, Q, scale=1.0)
    g = attention_vjp(dO, res)
    c, A, dA = p * (1 - p), res.P, dO @ Q.mT
    dS = np.array([[c, -c], [0.25, -0.25]])
    return {
        "O": Same(O, [[p], [0.5]]),
        "dQ": Same(g.dQ, [[c], [0.25]]),
        "dK": Same(g.dK, [[c], [-c]]),
        "dV": Same(g.dV, [[p + 0.5], [1.5 - p]]),
        "dS by dA ∘ A − A dAᵀ A": Differs(dA * A - A @ dA.mT @ A, dS),
        "dS with the mean": Differs(dA * A - (dA * A).mean(-1, keepdims=True), dS),
        "dQ = dA K": Differs(dA @ Q, g.dQ),
        "dK = Qᵀ dS": Differs(Q.mT @ dS, g.dK),
    }


@claim(
    "X-1",
    "all",
    "the letters A, S, Z, X, Q, K, V, I",
    AMBIGUOUS,
    "each means two or three things; this book's letters are on the notation page",
    "#wild-letters",
)
def _(z):
    m = z.m
    gradient = lambda A: m.s * m.X_q.mT @ A[0] @ m.X_k @ m.W_K[0]  # noqa: E731
    return {
        "A the scores in dW^Q": Same(gradient(m.dS), m.dW_Q[0]),
        "A the weights in dW^Q": Differs(gradient(m.dP), m.dW_Q[0]),
        "A the weights side by side, times W^v": Differs(lambda: side(m.P) @ blocks(m.W_V), m.C),
    }


@claim(
    "X-2",
    "all",
    "seven versions of the softmax backward",
    AMBIGUOUS,
    "three right, two wrong, one ambiguous, one left out",
    "#wild-seven",
)
def _(z):
    P, dP, row = z.P, z.dP, (z.P * z.dP).sum(-1, keepdims=True)
    E = np.exp(z.S)
    ones = np.ones((z.n_k, z.n_k))
    Y = 1 / (E @ ones)
    return {
        "matrix calculus (S1-19)": Same(dP * P - ((dP * P * Y) @ ones) * E, z.dS),
        "long note, two lines (S2-19)": Same(dP * P - (dP * P).sum(-1, keepdims=True) * P, z.dS),
        "explicit note (S3-18)": Same(np.einsum("ij,ijk->ik", dP, softmax_jacobian(P)), z.dS),
        "long note, sum over keys (S2-58)": Same(P * (dP - row), z.dS),
        "long note, sum over queries (S2-58)": Differs(P * (dP - (P * dP).sum(0, keepdims=True)), z.dS),
        "long note, matrices (S2-5)": Differs(dP * P - P @ dP.mT @ P, z.dS),
        "long note, mean (S2-29)": Differs(dP * P - (dP * P).mean(-1, keepdims=True), z.dS),
        "short note, left out (S4-7)": Differs(dP, z.dS),
    }


@claim(
    "X-3",
    "all",
    "batch and head axes: not said",
    MISSING,
    "ᵀ swaps the last two axes; gradients of weights and biases sum over the batch",
    "#mistake-all-axes-transposed",
)
def _(z):
    rng = z.rng()
    n = 4 if z.n_q == z.n_k else 2
    dS, Q = rng.normal(size=(n, n, z.n_q, z.n_k)), rng.normal(size=(n, n, z.n_q, z.d_k))
    one_by_one = np.stack([[dS[b, h].T @ Q[b, h] for h in range(n)] for b in range(n)])
    X, dY = rng.normal(size=(n, z.n_q, 3)), rng.normal(size=(n, z.n_q, 2))
    W, t = rng.normal(size=(2, 3, 2))
    return {
        "ᵀ swaps the last two axes": Same(dS.mT @ Q, one_by_one),
        "NumPy's .T": Differs(lambda: dS.T @ Q, one_by_one),
        "dW summed over the batch": Same(
            np.sum(sum(x.T @ y for x, y in zip(X, dY, strict=True)) * t),
            complex_step(lambda W: np.sum(dY * (X @ W)), W, t),
        ),
    }


@claim(
    "X-4",
    "all",
    "no text checks a gradient by numbers",
    MISSING,
    "differences and automatic differentiation, at sizes that are all distinct",
    "08_checking.html",
)
def _(z):
    t = z.like(z.Q)
    numbers = complex_step(lambda Q: np.sum(z.dO * (plain_softmax(z.s * Q @ z.K.mT) @ z.V)), z.Q, t)
    mean = z.dP * z.P - (z.dP * z.P).mean(-1, keepdims=True)
    one = z.dP[:1] * z.P[:1]
    return {
        "the check on a right dQ": Same(np.sum(z.dQ * t), numbers),
        "on a wrong one, dA K": Differs(np.sum((z.dP @ z.K) * t), numbers),
        "one query lets S2-5 pass": Same(one - z.P[:1] @ z.dP[:1].mT @ z.P[:1], z.dS[:1]),
        "row sums let S2-29 pass": Same(mean.sum(-1), np.zeros(z.n_q)),
    }
