"""One head and one layer, with random inputs and every true gradient: what the claims are compared with.

The truths are the book's formulas, each checked in its own chapter by differences and autograd; the layer has three
inputs, for queries, keys and values, because some texts write it so.
"""

import numpy as np

from attnbook.softmax import softmax, softmax_vjp


class Layer:
    """A layer of ``h`` heads, no biases. Arrays of heads have the head axis in front."""

    def __init__(self, rng, n_q, n_k, h, d_k, d_v, w_q, w_k, w_v, d_out):
        self.h, self.s = h, d_k**-0.5
        self.X_q, self.X_k, self.X_v = (rng.normal(size=size) for size in ((n_q, w_q), (n_k, w_k), (n_k, w_v)))
        self.W_Q, self.W_K = (rng.normal(size=(h, w, d_k)) / w**0.5 for w in (w_q, w_k))
        self.W_V, self.W_O = rng.normal(size=(h, w_v, d_v)) / w_v**0.5, rng.normal(size=(h * d_v, d_out))
        self.dY = rng.normal(size=(n_q, d_out))
        self.Q, self.K, self.V = self.X_q @ self.W_Q, self.X_k @ self.W_K, self.X_v @ self.W_V
        self.S = self.s * self.Q @ self.K.mT
        self.P = softmax(self.S)
        self.C = side(self.P @ self.V)
        self.Y = self.C @ self.W_O
        self.dC, self.dW_O = self.dY @ self.W_O.mT, self.C.mT @ self.dY
        self.dO = np.stack(np.split(self.dC, h, axis=1))
        self.dP, self.dV = self.dO @ self.V.mT, self.P.mT @ self.dO
        self.dS = softmax_vjp(self.dP, self.P)
        self.dQ, self.dK = self.s * self.dS @ self.K, self.s * self.dS.mT @ self.Q
        self.dW_Q, self.dW_K, self.dW_V = self.X_q.mT @ self.dQ, self.X_k.mT @ self.dK, self.X_v.mT @ self.dV
        self.dX_q, self.dX_k, self.dX_v = (
            (dT @ W.mT).sum(0) for dT, W in ((self.dQ, self.W_Q), (self.dK, self.W_K), (self.dV, self.W_V))
        )

    @property
    def inputs(self):
        """What :meth:`forward` takes."""
        return self.X_q, self.X_k, self.X_v, self.W_Q, self.W_K, self.W_V, self.W_O

    @property
    def grads(self):
        """The true gradient of each of ``inputs``."""
        return self.dX_q, self.dX_k, self.dX_v, self.dW_Q, self.dW_K, self.dW_V, self.dW_O

    def forward(self, X_q, X_k, X_v, W_Q, W_K, W_V, W_O):
        """The layer, for any array library."""
        d_v = W_V.shape[-1]
        O = softmax(self.s * (X_q @ W_Q) @ (X_k @ W_K).mT) @ (X_v @ W_V)
        return sum(O[i] @ W_O[i * d_v : (i + 1) * d_v] for i in range(self.h))


class Setting:
    """A named choice of sizes: one head as attributes, a layer as ``m`` (many heads)."""

    def __init__(self, name, n_q, n_k, d_k, d_v, layer):
        self.name = name
        rng = self.rng()
        self.n_q, self.n_k, self.d_k, self.d_v, self.s = n_q, n_k, d_k, d_v, d_k**-0.5
        shapes = ((n_q, d_k), (n_k, d_k), (n_k, d_v), (n_q, d_v))
        self.Q, self.K, self.V, self.dO = (rng.normal(size=shape) for shape in shapes)
        self.S = self.s * self.Q @ self.K.mT
        self.P = softmax(self.S)
        self.O = self.P @ self.V
        self.dP, self.dV = self.dO @ self.V.mT, self.P.mT @ self.dO
        self.dS = softmax_vjp(self.dP, self.P)
        self.dQ, self.dK = self.s * self.dS @ self.K, self.s * self.dS.mT @ self.Q
        self.m = Layer(rng, n_q, n_k, **layer)

    def rng(self):
        """A fresh generator, so that a claim draws the same numbers whatever ran before it."""
        return np.random.default_rng(7)

    def like(self, *arrays):
        """A random change for each array."""
        rng = np.random.default_rng(11)
        drawn = [rng.normal(size=T.shape) for T in arrays]
        return drawn if len(drawn) > 1 else drawn[0]


def plain_softmax(S):
    """Softmax as it is printed, without the row maximum: analytic, so the complex step can differentiate it."""
    return np.exp(S) / np.exp(S).sum(-1, keepdims=True)


def side(T):
    """Heads (h, n, c) side by side: (n, h·c)."""
    return np.concatenate(list(T), axis=-1)


def blocks(T):
    """Heads (h, r, c) as the blocks of a block-diagonal matrix (h·r, h·c)."""
    h, r, c = T.shape
    out = np.zeros((h, r, h, c), dtype=T.dtype)
    for i in range(h):
        out[i, :, i] = T[i]
    return out.reshape(h * r, h * c)


def diagonal_blocks(M, h):
    """The ``h`` diagonal blocks of a matrix: (h, r, c)."""
    r, c = M.shape[0] // h, M.shape[1] // h
    return np.stack([M[i * r : (i + 1) * r, i * c : (i + 1) * c] for i in range(h)])


DISTINCT = Setting(
    "distinct sizes", 5, 7, 3, 2, {"h": 3, "d_k": 13, "d_v": 2, "w_q": 11, "w_k": 17, "w_v": 19, "d_out": 23}
)
SQUARE = Setting("square sizes", 4, 4, 4, 4, {"h": 2, "d_k": 2, "d_v": 2, "w_q": 4, "w_k": 4, "w_v": 4, "d_out": 4})
