"""The multi-head layer that a long note lists, rebuilt small, with each of its faults as a switch.

It is seed_listing in the bibliography. Chapter: :doc:`/chapters/in_the_wild`. Without faults it is right.
"""

import numpy as np

from attnbook.attention import attention, attention_vjp
from attnbook.heads import merge_heads, split_heads

CRASHES = ("wrong attribute", "np.softmax", "digit zero", "transpose of all axes")
SILENT = ("identity transpose", "mean", "update first")
LIMITS = ("one length",)  # right in self-attention


class Listed:
    """Projections, heads, attention; no W^O. Two of the crashes are only in the first of the two listings.

    Those two, an attribute and a digit, stand beside page breaks of our copy, and may be errors of the copy.
    """

    def __init__(self, width, heads, faults=(), seed=0):
        unknown = set(faults) - {*CRASHES, *SILENT, *LIMITS}
        if unknown:
            raise ValueError(f"faults: no such fault as {', '.join(sorted(unknown))}")
        self.heads, self.depth, self.faults = heads, width // heads, set(faults)
        self.scale = self.depth**-0.5
        weights = np.random.default_rng(seed).normal(scale=(2 / width) ** 0.5, size=(3, width, width))
        self.wQ, self.WK, self.WV = weights.copy()
        if "wrong attribute" not in self.faults:
            self.WQ = self.wQ
        self.weights = (self.WQ.copy(), self.WK.copy(), self.WV.copy())

    def _split(self, X):
        return X.reshape(len(X), -1, self.heads, self.depth).swapaxes(1, 2)

    def forward(self, query, key, value):
        Q, K, V = (self._split(X @ W) for X, W in ((query, self.WQ), (key, self.WK), (value, self.WV)))
        S = self.scale * Q @ K.mT
        A = np.softmax(S, axis=-1) if "np.softmax" in self.faults else _softmax(S)
        self.Q, self.K, self.V, self.A = Q, K, V, A
        return self._merge(A @ V, query.shape[1])

    def backward(self, dO, inputs, rate):
        """The gradients of the inputs: query, key and value. Leaves those of the weights in dW, and takes a step."""
        faults = self.faults
        if "digit zero" in faults:
            d0 = d0.reshape(dO.shape)  # noqa: F821, F841
        length = dO.shape[1]
        dO = self._split(dO)
        dA = dO @ self.V.mT
        axes = (0, 1, 2, 3) if "identity transpose" in faults else (0, 1, 3, 2)
        dV = self.A.transpose(*axes) @ dO
        dS = dA * self.A
        if "mean" in faults:
            dS -= dS.mean(-1, keepdims=True)
        else:
            dS -= self.A * dS.sum(-1, keepdims=True)
        dQ, dK = self.scale * dS @ self.K, self.scale * dS.mT @ self.Q
        key_length = length if "one length" in faults else inputs[1].shape[1]
        dQ, dK, dV = self._merge(dQ, length), self._merge(dK, key_length), self._merge(dV, key_length)
        pairs = ((inputs[0], dQ), (inputs[1], dK), (inputs[2], dV))
        if "transpose of all axes" in faults:
            self.dW = [np.dot(X.T, dT) for X, dT in pairs]
        else:
            self.dW = [np.einsum("bni,bnj->ij", X, dT) for X, dT in pairs]
        if "update first" in faults:
            self._update(rate)
        grads = [dT @ W.T for dT, W in ((dQ, self.WQ), (dK, self.WK), (dV, self.WV))]
        if "update first" not in faults:
            self._update(rate)
        return grads

    def _update(self, rate):
        for W, dW in zip((self.WQ, self.WK, self.WV), self.dW, strict=True):
            W -= rate * dW

    def _merge(self, T, length):
        return T.swapaxes(1, 2).reshape(len(T), length, self.heads * self.depth)


def gradient_errors(faults=(), *, batch=2, n_q=5, n_k=5, d_model=12, num_heads=3, learning_rate=0.1):
    """Run the layer with these faults once. The error of each gradient, or the exception's name under "raises"."""
    rng = np.random.default_rng(1)
    query, dO = rng.normal(size=(2, batch, n_q, d_model))
    key, value = rng.normal(size=(2, batch, n_k, d_model))
    try:
        layer = Listed(d_model, num_heads, faults)
        layer.forward(query, key, value)
        came = [*layer.backward(dO, (query, key, value), learning_rate), *layer.dW]
    except Exception as error:  # what a listing raises is its outcome
        return {"raises": type(error).__name__}
    truth = _truth(layer.weights, query, key, value, dO, num_heads)
    names = ("query", "key", "value", "W_Q", "W_K", "W_V")
    return {
        name: float(np.max(np.abs(a - b)) / np.max(np.abs(b))) for name, a, b in zip(names, came, truth, strict=True)
    }


def _truth(weights, query, key, value, dO, num_heads):
    """The same six gradients from the book's own backward."""
    inputs = (query, key, value)
    heads = [split_heads(X @ W, num_heads) for X, W in zip(inputs, weights, strict=True)]
    inner = attention_vjp(split_heads(dO, num_heads), attention(*heads)[1])
    grads = [merge_heads(dT) for dT in (inner.dQ, inner.dK, inner.dV)]
    to_inputs = [dT @ W.T for dT, W in zip(grads, weights, strict=True)]
    return [*to_inputs, *(np.einsum("bni,bnj->ij", X, dT) for X, dT in zip(inputs, grads, strict=True))]


def _softmax(S):
    E = np.exp(S - S.max(-1, keepdims=True))
    return E / E.sum(-1, keepdims=True)
