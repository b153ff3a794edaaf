"""Multi-head attention: project, split, attend, merge, project. Chapter: :doc:`/chapters/04_multi_head`.

Self-attention and cross-attention are one set of lines: without a memory, keys and values are made from X itself.
"""

import operator
from typing import NamedTuple

from attnbook.arrays import agree, expected
from attnbook.attention import attention, attention_vjp
from attnbook.heads import merge_heads, split_heads
from attnbook.linear import linear, linear_vjp


class MultiHeadParams(NamedTuple):
    """The weights of a multi-head layer, or their gradients. Used as ``X @ W``; a bias may be None.

    W_Q (d_model, h·d_k), W_K (d_mem, h_kv·d_k), W_V (d_mem, h_kv·d_v), W_O (h·d_v, d_out), and the biases of their
    columns. Head i is the columns i·d to (i+1)·d of W_Q, W_K, W_V, and those rows of W_O (:eq:`def-head-blocks`).
    """

    W_Q: object
    W_K: object
    W_V: object
    W_O: object
    b_Q: object = None
    b_K: object = None
    b_V: object = None
    b_O: object = None


class MultiHeadResiduals(NamedTuple):
    """What the backward needs: inputs, weights, the merged heads C (..., n_q, h·d_v), and attention's own residuals."""

    X: object
    memory: object
    params: MultiHeadParams
    C: object
    heads: tuple
    attention: NamedTuple


class MultiHeadGrads(NamedTuple):
    """The gradients of :func:`multi_head_attention`, each with the shape of its variable."""

    dX: object
    dmemory: object
    dparams: MultiHeadParams
    dbias: object
    dops: tuple


def multi_head_attention(
    X,
    p,
    *,
    num_heads,
    num_kv_heads=None,
    memory=None,
    mask=None,
    bias=None,
    causal=False,
    scale=None,
    ops=(),
    method="auto",
):
    """Let every token ask several questions at once, each head with projections of its own.

    .. math::
       Y = \\operatorname{Concat}(O_1, \\dots, O_h)\\,W^O + b^O \\qquad
       O_i = \\operatorname{attention}(X W^Q_i + b^Q_i,\\; M W^K_i + b^K_i,\\; M W^V_i + b^V_i)

    Equation :eq:`def-multi-head`, with M = X in self-attention and M = memory in cross-attention.

    Parameters
    ----------
    X : array (..., n_q, d_model)
        One row a token.
    p : MultiHeadParams
        Weights and biases.
    num_heads, num_kv_heads : int
        h and h_kv, which divides h and is h by default: h / h_kv query heads share one key and value head.
    memory : array (..., n_k, d_mem), optional
        What the queries attend to, such as an encoder's output. X itself by default.
    mask : bool array, optional
        Broadcasts to (..., h, n_q, n_k). True = may attend. A mask for each sequence of a batch, (batch, n_q, n_k),
        needs an axis for the heads: (batch, 1, n_q, n_k).
    bias, causal, scale, ops, method
        As for :func:`attention`; bias broadcasts to (..., h, n_q, n_k), scale is 1/√d_k by default.

    Returns
    -------
    Y : array (..., n_q, d_out), namespace, dtype and device of X
    res : MultiHeadResiduals
        What :func:`multi_head_attention_vjp` needs.

    Raises
    ------
    TypeError, ValueError
        Names the argument whose type, dtype or shape does not fit: widths that the number of heads does not divide,
        a num_kv_heads that does not divide num_heads, a memory of another batch.

    Notes
    -----
    Source: Vaswani et al., "Attention Is All You Need", section 3.2.2. Chapter: :doc:`/chapters/04_multi_head`.
    """
    h, h_kv = _check(X, p, memory, num_heads, num_kv_heads)
    M = X if memory is None else memory
    Q = split_heads(linear(X, p.W_Q, p.b_Q), h)
    K = split_heads(linear(M, p.W_K, p.b_K), h_kv)
    V = split_heads(linear(M, p.W_V, p.b_V), h_kv)
    O, inner = attention(  # noqa: E741 (the book's letter for the output)
        Q, K, V, mask=mask, bias=bias, causal=causal, scale=scale, ops=ops, method=method
    )
    C = merge_heads(O)
    return linear(C, p.W_O, p.b_O), MultiHeadResiduals(X, memory, p, C, (h, h_kv), inner)


def multi_head_attention_vjp(dY, res):
    """Pull a gradient back through the whole layer: to its input, its memory, and every weight and bias.

    .. math::
       dC = dY\\,W^{O\\mathsf T} \\qquad dW^O = C^{\\mathsf T} dY \\qquad
       dX = dQ\\,W^{Q\\mathsf T} \\;(+\\; dK\\,W^{K\\mathsf T} + dV\\,W^{V\\mathsf T}) \\qquad
       d\\text{memory} = dK\\,W^{K\\mathsf T} + dV\\,W^{V\\mathsf T}

    Equations :eq:`eq-multi-head-vjp` and :eq:`eq-dmemory`. In self-attention the two add up: three paths into X.

    Parameters
    ----------
    dY : array (..., n_q, d_out)
        The gradient that arrives at the output.
    res : MultiHeadResiduals
        As :func:`multi_head_attention` returned it.

    Returns
    -------
    MultiHeadGrads
        ``dX``; ``dmemory``, None in self-attention; ``dparams``, a :class:`MultiHeadParams` with None where there was
        no bias; ``dbias`` and ``dops`` as :func:`attention_vjp` gives them.

    Raises
    ------
    TypeError, ValueError
        ``dY`` does not fit the output, or ``res`` is not a residual.

    Notes
    -----
    Chapter: :doc:`/chapters/04_multi_head`, and for the memory :doc:`/chapters/06_cross`.
    """
    if not isinstance(res, MultiHeadResiduals):
        raise TypeError(expected("res", "the residuals that multi_head_attention returned", type(res).__name__))
    agree(X=res.X, dY=dY)
    wanted = (*res.C.shape[:-1], res.params.W_O.shape[-1])
    if tuple(dY.shape) != wanted:
        raise ValueError(expected("dY", f"shape {wanted}", tuple(dY.shape)))
    p, M = res.params, res.X if res.memory is None else res.memory
    dC, dW_O, db_O = linear_vjp(dY, res.C, p.W_O)
    inner = attention_vjp(split_heads(dC, res.heads[0]), res.attention)
    by_Q, dW_Q, db_Q = linear_vjp(merge_heads(inner.dQ), res.X, p.W_Q)
    by_K, dW_K, db_K = linear_vjp(merge_heads(inner.dK), M, p.W_K)
    by_V, dW_V, db_V = linear_vjp(merge_heads(inner.dV), M, p.W_V)
    biases = (None if b is None else db for b, db in zip(p[4:], (db_Q, db_K, db_V, db_O), strict=True))
    dparams = MultiHeadParams(dW_Q, dW_K, dW_V, dW_O, *biases)
    dX, dmemory = (by_Q + by_K + by_V, None) if res.memory is None else (by_Q, by_K + by_V)
    return MultiHeadGrads(dX, dmemory, dparams, inner.dbias, inner.dops)


def _check(X, p, memory, num_heads, num_kv_heads):
    """h and h_kv, or an error that names what does not fit. Attention and linear check the rest."""
    if not isinstance(p, MultiHeadParams):
        raise TypeError(expected("p", "a MultiHeadParams", type(p).__name__))
    weights = {name: getattr(p, name) for name in ("W_Q", "W_K", "W_V", "W_O")}
    biases = {name: getattr(p, name) for name in ("b_Q", "b_K", "b_V", "b_O")}
    agree({"memory": memory, **biases}, X=X, **weights)
    h = _count("num_heads", num_heads)
    h_kv = h if num_kv_heads is None else _count("num_kv_heads", num_kv_heads)
    if h % h_kv:
        raise ValueError(expected("num_kv_heads", f"a divisor of num_heads, {h}", h_kv))
    for name, T in (("X", X), ("memory", memory)):
        if T is not None and T.ndim < 2:
            raise ValueError(expected(name, "at least two axes (..., tokens, width)", f"shape {tuple(T.shape)}"))
    if memory is not None and memory.shape[:-2] != X.shape[:-2]:
        wanted = f"the leading axes of X, {tuple(X.shape[:-2])}"
        raise ValueError(expected("memory", wanted, f"shape {tuple(memory.shape)}"))
    d_mem = X.shape[-1] if memory is None else memory.shape[-1]
    rows = {"W_Q": X.shape[-1], "W_K": d_mem, "W_V": d_mem}
    heads = {"W_Q": h, "W_K": h_kv, "W_V": h_kv}
    for name, W in weights.items():
        if W.ndim != 2:
            raise ValueError(expected(name, "two axes (rows, columns)", f"shape {tuple(W.shape)}"))
        if name in rows and W.shape[0] != rows[name]:
            of = "memory" if memory is not None and name != "W_Q" else "X"
            raise ValueError(expected(name, f"{rows[name]} rows, the width of {of}", f"shape {tuple(W.shape)}"))
        if name in heads and (W.shape[1] % heads[name] or W.shape[1] == 0):
            wanted = f"a number of columns that its {heads[name]} heads divide"
            raise ValueError(expected(name, wanted, f"shape {tuple(W.shape)}"))
    if p.W_K.shape[1] * h != p.W_Q.shape[1] * h_kv:
        raise ValueError(expected("W_K", f"{p.W_Q.shape[1] // h * h_kv} columns", f"shape {tuple(p.W_K.shape)}"))
    if p.W_O.shape[0] * h_kv != p.W_V.shape[1] * h:
        raise ValueError(expected("W_O", f"{p.W_V.shape[1] // h_kv * h} rows", f"shape {tuple(p.W_O.shape)}"))
    for (name, b), W in zip(biases.items(), weights.values(), strict=True):
        if b is not None and tuple(b.shape) != (W.shape[1],):
            raise ValueError(expected(name, f"shape {(W.shape[1],)}", tuple(b.shape)))
    return h, h_kv


def _count(name, n):
    try:
        count = operator.index(n)
    except TypeError:
        raise TypeError(expected(name, "an integer", type(n).__name__)) from None
    if isinstance(n, bool) or count < 1:
        raise ValueError(expected(name, "a number of heads of at least 1", n))
    return count
