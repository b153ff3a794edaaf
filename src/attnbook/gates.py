"""Output gates: what a layer's heads return, multiplied by numbers from 0 to 1 that each token chooses for itself.

Chapter: :doc:`/chapters/09_variants`.
"""

from typing import Any, Generic, NamedTuple

from attnbook.arguments import check_shape
from attnbook.arrays import agree, array_namespace, expected, narrow, widen
from attnbook.linear import project, project_vjp
from attnbook.types import Array, described


@described
class Gate(NamedTuple, Generic[Array]):
    """Multiply the heads' outputs C by G = σ(X W + b), before W_O.

    .. math::
       C' = G \\circ C \\qquad G = \\sigma(X W + b) \\qquad dC = G \\circ dC' \\qquad
       dA = dC' \\circ C \\circ G \\circ (1 - G)

    Equation :eq:`eq-var-gate`, with A = X W + b. W has h·d_v columns, one for each column of C, or h,
    one a head: then dA of a head is the sum over its columns. With gradients in their places it is what
    :func:`~attnbook.multi_head.multi_head_attention_vjp` returns. Source: Qiu et al., "Gated Attention for Large
    Language Models", section 2.2; Qwen3-Next's layers have one for each column.

    Examples
    --------
    >>> import numpy as np
    >>> import attnbook as ab
    >>> one = np.ones((1, 1))
    >>> gated = ab.multi_head_attention(one, ab.MultiHeadParams(one, one, one, one), num_heads=1, gate=ab.Gate(0 * one))
    >>> gated[0].tolist()
    [[0.5]]
    """

    W: Array
    """(d_model, h·d_v), a column for each of C, or (d_model, h), one a head."""
    b: Array | None = None
    """(h·d_v,) or (h,), as W has columns."""

    def check(self, X: Any, h: int, d_v: int) -> None:
        """An error where it does not fit a layer of X with so many heads, so wide."""
        agree({"gate, b": self.b}, X=X, **{"gate, W": self.W})
        W = self.W
        if W.ndim != 2 or W.shape[0] != X.shape[-1] or W.shape[1] not in (h, h * d_v):
            wanted = f"{X.shape[-1]} rows, the width of X, and {h} columns, one a head, or {h * d_v}, one for each of "
            raise ValueError(expected("gate, W", wanted + "the heads' columns", f"shape {tuple(W.shape)}"))
        if self.b is not None:
            check_shape("gate, b", self.b, (W.shape[1],))

    def forward(self, C: Any, x: Any) -> tuple[Any, Any]:
        """What W_O is given, and what :meth:`vjp` needs."""
        G = sigmoid(project(x, widen(self.W), None if self.b is None else widen(self.b)))  # eq-var-gate
        return self._spread(G, C) * C, (C, G)

    def vjp(self, dC: Any, saved: Any, x: Any) -> tuple[Any, Any, "Gate[Any]"]:
        """The gradients before it: of C, of X along the gate, and of W and b."""
        C, G = saved
        dG = dC * C
        if G.shape != C.shape:
            dG = array_namespace(dG).sum(_in_heads(dG, G.shape[-1]), axis=-1)
        by_X, dW, db = project_vjp(dG * G * (1 - G), x, widen(self.W))
        dgate = Gate(narrow(dW, self.W.dtype), None if self.b is None else narrow(db, self.W.dtype))
        return self._spread(G, C) * dC, by_X, dgate  # eq-var-gate

    def _spread(self, G: Any, C: Any) -> Any:
        return G if G.shape == C.shape else array_namespace(G).repeat(G, C.shape[-1] // G.shape[-1], axis=-1)


def sigmoid(A: Any) -> Any:
    """1 / (1 + exp(−A)) by a function that never overflows."""
    return 0.5 + 0.5 * array_namespace(A).tanh(0.5 * A)


def _in_heads(T: Any, h: int) -> Any:
    return array_namespace(T).reshape(T, (*T.shape[:-1], h, T.shape[-1] // h))
