"""Claims of a question on a question site, and of its answer (seed_question)."""

import numpy as np

from attnbook.attention import attention, attention_vjp
from attnbook.checks.differences import complex_step
from attnbook.softmax import softmax, softmax_vjp
from evidence.claims import AMBIGUOUS, CONVENTION, HOLDS, MISSING, WRONG, Differs, Same, recorder
from evidence.wild.setting import blocks, diagonal_blocks, plain_softmax, side

CLAIMS = []
claim, reading = recorder(CLAIMS)


@claim(
    "S0-1",
    "l.1",
    "Q = x W^Q, K = x W^K, V = x W^V",
    CONVENTION,
    "rows of x are tokens; with tokens as columns it is (W^Q)ᵀ x. The answer calls the inputs themselves Q, K, V.",
    "#wild-letters",
)
def _(z):
    m = z.m
    columns = m.X_q.mT
    return {
        "tokens as rows": Same(m.X_q @ m.W_Q, m.Q),
        "tokens as columns, W^Qᵀ x": Same((m.W_Q.mT @ columns).mT, m.Q),
        "tokens as columns, x W^Q": Differs(lambda: columns @ m.W_Q, m.Q),
    }


@claim(
    "S0-2",
    "l.3",
    "softmax(QKᵀ/√d_k) V",
    CONVENTION,
    "the softmax runs over the keys: each row alone",
    "#mistake-softmax-over-queries",
)
def _(z):
    return {
        "over each row": Same(softmax(z.S) @ z.V, attention(z.Q, z.K, z.V)[0]),
        "over each column": Differs(softmax(z.S, axis=0) @ z.V, z.O),
    }


@claim(
    "S0-3",
    "l.3",
    "softmax(x W^Q (W^K)ᵀ x / √d_k) x W^V",
    WRONG,
    "x W^Q (W^K)ᵀ xᵀ: the last transpose is missing",
    "#wild-no-transpose",
    ("x-not-transposed",),
)
def _(z):
    m = z.m
    W_K = m.W_K[0] if m.X_q.shape == m.X_k.shape else z.rng().normal(size=m.W_Q[0].shape)
    true = softmax(m.s * (m.X_q @ m.W_Q[0]) @ (m.X_q @ W_K).mT)
    return {
        "as printed": Differs(lambda: softmax(m.s * m.X_q @ m.W_Q[0] @ W_K.mT @ m.X_q), true),
        "with xᵀ": Same(softmax(m.s * m.X_q @ m.W_Q[0] @ W_K.mT @ m.X_q.mT), true),
    }


reading(
    "S0-4",
    "l.7-9",
    "every layer takes Q, K, V from the input of the encoder, or of the decoder",
    AMBIGUOUS,
    "About the network's wiring, no formula. Only layer 1 reads that input; the others read the layer before.",
    "04_single_head.html#q-10",
)


@claim(
    "S0-5",
    "l.8, l.11",
    "cross-attention: how does the encoder's output enter the gradient? (asked)",
    MISSING,
    "dx_dec = Σ_h dQ_h W_h^Qᵀ; dx_enc = Σ_h (dK_h W_h^Kᵀ + dV_h W_h^Vᵀ), summed over the decoder layers",
    "07_cross.html#q-36",
)
def _(z):
    m = z.m
    W_V = z.rng().normal(size=(m.h, m.X_k.shape[1], m.V.shape[-1]))
    pull = lambda T: np.stack(np.split(T @ m.W_O.mT, m.h, axis=1))  # noqa: E731

    def loss(X, memory):
        return np.sum(m.dY * (side(plain_softmax(m.s * X @ m.W_Q @ (memory @ m.W_K).mT) @ (memory @ W_V)) @ m.W_O))

    X, memory, dO = m.X_q, m.X_k, pull(m.dY)
    dS = softmax_vjp(dO @ (memory @ W_V).mT, m.P)
    dX = (m.s * dS @ m.K @ m.W_Q.mT).sum(0)
    dmemory = (m.s * dS.mT @ m.Q @ m.W_K.mT + m.P.mT @ dO @ W_V.mT).sum(0)
    tX, tmemory = z.like(X, memory)
    return {
        "dx_dec": Same(np.sum(dX * tX), complex_step(lambda X: loss(X, memory), X, tX)),
        "dx_enc": Same(np.sum(dmemory * tmemory), complex_step(lambda M: loss(X, M), memory, tmemory)),
    }


@claim(
    "S0-6",
    "l.9",
    "the softmax is zeroed for the tokens to the right",
    AMBIGUOUS,
    "−∞ before the softmax, or zero after it and divide each row by its new sum",
    "#mistake-mask-after-softmax",
    ("mask-after-softmax", "mask-multiplies-scores"),
)
def _(z):
    n = z.n_k
    S = z.like(np.zeros((n, n)))
    keep = np.tril(np.ones((n, n), bool))
    true = softmax(np.where(keep, S, -np.inf))
    zeroed = softmax(S) * keep
    return {
        "−∞ before the softmax": Same(attention(S, np.eye(n), np.eye(n), scale=1.0, causal=True)[0], true),
        "zeroed after it": Differs(zeroed, true),
        "scores multiplied by 0": Differs(softmax(S * keep), true),
        "zeroed after it, then renormalized": Same(zeroed / zeroed.sum(-1, keepdims=True), true),
    }


@claim(
    "S0-7",
    "l.9",
    "the gradient at masked entries, and a row with no allowed key: not said",
    MISSING,
    "dS needs no change and is exactly 0 where masked; a row with no allowed key has O = 0 and dS = 0",
    "06_masked.html#q-25",
)
def _(z):
    keep = np.arange(z.n_k) <= np.arange(z.n_q)[:, None] - 1  # the first row may attend to nothing
    O, res = attention(z.Q, z.K, z.V, mask=keep)
    dS = softmax_vjp(z.dP, res.P)
    g = attention_vjp(z.dO, res)
    return {
        "dS where masked": Same(dS[~keep], np.zeros((~keep).sum())),
        "output of the dead row": Same(O[0], np.zeros(z.d_v)),
        "dQ of the dead row": Same(g.dQ[0], np.zeros(z.d_k)),
    }


@claim(
    "S0-8",
    "l.11, l.16",
    "the gradient of the biases (asked twice)",
    MISSING,
    "db_Q = Σ dQ_i; db_K = 0 exactly; db_V = Σ dV_j = Σ dO_i; db_O = Σ dY_i; all summed over the batch too",
    "05_multi_head.html#q-20",
)
def _(z):
    W, dY = z.like(np.zeros((z.d_v, 3)), np.zeros((z.n_q, 3)))
    dO = dY @ W.mT
    dK = attention_vjp(dO, attention(z.Q, z.K, z.V, causal=True)[1]).dK
    g = attention_vjp(dO, attention(z.Q, z.K, z.V)[1])

    def moved(at):  # all four biases are 0; move one
        b = [np.zeros(z.d_k), np.zeros(z.d_k), np.zeros(z.d_v), np.zeros(3)]
        t = z.rng().normal(size=b[at].shape)
        forward = lambda *b: plain_softmax(z.s * (z.Q + b[0]) @ (z.K + b[1]).mT) @ (z.V + b[2]) @ W + b[3]  # noqa: E731
        one = lambda moving: np.sum(dY * forward(*b[:at], moving, *b[at + 1 :]))  # noqa: E731
        return t, complex_step(one, b[at], t)

    (tq, by_q), (_, by_k), (tv, by_v), (to, by_o) = (moved(at) for at in range(4))
    return {
        "db_Q": Same(g.dQ.sum(0) @ tq, by_q),
        "db_V = Σ dV_j": Same(g.dV.sum(0) @ tv, by_v),
        "db_V = Σ dO_i": Same(dO.sum(0) @ tv, by_v),
        "db_O": Same(dY.sum(0) @ to, by_o),
        "db_K = 0": Same(np.append(g.dK.sum(0), by_k), np.zeros(z.d_k + 1)),
        "db_K = 0 with a causal mask": Same(dK.sum(0), np.zeros(z.d_k)),
    }


reading(
    "S0-9",
    "l.13, comment",
    "the authors let the library differentiate; operations need only be differentiable",
    MISSING,
    "True, and no answer: no formula to run. Automatic differentiation composes rules that somebody derived by hand.",
    "03_softmax.html",
)


@claim(
    "S0-10",
    "l.25",
    "dW_h^K = γ Kᵀ P_h (df/dA)ᵀ Q W_h^Q",
    CONVENTION,
    "Q, K are the inputs; A the scaled scores side by side; P_h picks block h; γ = 1/√d_k; X is the output",
    "#wild-letters",
)
def _(z):
    m, dA, select = z.m, side(z.m.dS), _selectors(z.m)
    as_printed = [m.s * m.X_k.mT @ select[h] @ dA.mT @ m.X_q @ m.W_Q[h] for h in range(m.h)]
    return {
        "Q, K the inputs": Same(np.stack(as_printed), m.dW_K),
        "Q, K projected, as the question has them": Differs(
            lambda: np.stack([m.s * side(m.K).mT @ select[h] @ dA.mT @ side(m.Q) @ m.W_Q[h] for h in range(m.h)]),
            m.dW_K,
        ),
        "A the weights": Differs(
            np.stack([m.s * m.X_k.mT @ select[h] @ side(m.dP).mT @ m.X_q @ m.W_Q[h] for h in range(m.h)]), m.dW_K
        ),
    }


@claim("S0-11", "l.25", "dW_h^Q = γ Qᵀ (df/dA) P_hᵀ K W_h^K", CONVENTION, "as S0-10", "#wild-letters")
def _(z):
    m, dA, select = z.m, side(z.m.dS), _selectors(z.m)
    return {
        "Q, K the inputs": Same(
            np.stack([m.s * m.X_q.mT @ dA @ select[h].mT @ m.X_k @ m.W_K[h] for h in range(m.h)]), m.dW_Q
        ),
        "Q, K projected": Differs(
            lambda: np.stack([m.s * side(m.Q).mT @ dA @ select[h].mT @ side(m.K) @ m.W_K[h] for h in range(m.h)]),
            m.dW_Q,
        ),
    }


@claim(
    "S0-12",
    "l.25",
    "dW^v = Aᵀ (df/dX) (W^O)ᵀ",
    CONVENTION,
    "this A is (softmax_h V)_h, not the A of the lines before; only the diagonal blocks are gradients",
    "#wild-blocks",
)
def _(z):
    m = z.m
    full = side(m.P @ m.X_v).mT @ m.dY @ m.W_O.mT
    return {
        "its diagonal blocks": Same(diagonal_blocks(full, m.h), m.dW_V),
        "the whole matrix": Differs(full, blocks(m.dW_V)),
        "A the scores, as in the lines before": Differs(
            lambda: diagonal_blocks(side(m.S).mT @ m.dY @ m.W_O.mT, m.h), m.dW_V
        ),
    }


@claim(
    "S0-13", "l.25", "dW^O = Concat(heads)ᵀ df/dX", HOLDS, "X is the layer's output here", "04_single_head.html#q-10"
)
def _(z):
    return {"as printed": Same(z.m.C.mT @ z.m.dY, z.m.dW_O)}


@claim(
    "S0-14",
    "l.25",
    "df/dx, df/dA itself, biases, cross-attention and masks: not in the answer",
    MISSING,
    "dx_q = γ Σ_h dS_h K_h W_h^Qᵀ; dx_k = γ Σ_h dS_hᵀ Q_h W_h^Kᵀ; dx_v = Σ_h A_hᵀ dO_h W_h^Vᵀ; they add when x is one",
    "04_single_head.html#q-10",
)
def _(z):
    m = z.m
    by_head = range(m.h)
    return {
        "dx_q": Same(sum(m.s * m.dS[h] @ m.X_k @ m.W_K[h] @ m.W_Q[h].mT for h in by_head), m.dX_q),
        "dx_k": Same(sum(m.s * m.dS[h].mT @ m.X_q @ m.W_Q[h] @ m.W_K[h].mT for h in by_head), m.dX_k),
        "dx_v": Same(sum(m.P[h].mT @ m.dO[h] @ m.W_V[h].mT for h in by_head), m.dX_v),
    }


def _selectors(m):
    """P_h: an identity in block h of zeros, (n_k, h·n_k)."""
    n_k = m.S.shape[-1]
    return [np.eye(m.h * n_k)[h * n_k : (h + 1) * n_k] for h in range(m.h)]
