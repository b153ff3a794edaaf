"""Multi-head attention: project, split, attend, merge, project. Chapter: :doc:`/chapters/05_multi_head`.

If asked, queries and keys are normalized and turned on the way, and what the heads return is gated.

Self-attention and cross-attention are one set of lines: without a memory, keys and values are made from X itself.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Literal, NamedTuple

from attnbook.arguments import check_count, check_res, check_shape
from attnbook.arrays import agree, expected, kind, narrow, widen
from attnbook.attention import split_by_asker
from attnbook.gates import Gate
from attnbook.heads import merge_heads, split_heads
from attnbook.linear import project, project_vjp
from attnbook.norms import QKNorm
from attnbook.ops import Op
from attnbook.plan import resolve
from attnbook.rotary import Rotary
from attnbook.spines import SPINES, Way
from attnbook.types import AnyArray, Array, Corner, Method, described


@described
class MultiHeadParams(NamedTuple, Generic[Array]):
    """The weights of a multi-head layer, or their gradients. Used as ``X @ W``; a bias may be None.

    Heads are counted from 0. Head i is the columns from i·d on, up to but without (i+1)·d, of W_Q, W_K, W_V,
    with d = d_k or d_v, and the rows from i·d_v on of W_O (:eq:`def-head-blocks`).
    """

    W_Q: Array
    """(d_model, h·d_k): makes queries of X."""
    W_K: Array
    """(d_mem, h_kv·d_k): makes keys of the memory."""
    W_V: Array
    """(d_mem, h_kv·d_v): makes values of the memory."""
    W_O: Array
    """(h·d_v, d_out): makes of the merged heads the output."""
    b_Q: Array | None = None
    """(h·d_k,)."""
    b_K: Array | None = None
    """(h_kv·d_k,)."""
    b_V: Array | None = None
    """(h_kv·d_v,)."""
    b_O: Array | None = None
    """(d_out,)."""


class MultiHeadResiduals(NamedTuple):
    """What the backward needs: inputs and weights as they came, the merged heads, and attention's own residuals.

    C (..., n_q, h·d_v), which W_O is given, and what attention keeps are in the accumulation dtype. ``steps`` are those
    of queries and keys before they meet, in order, each with what it saved; ``gate`` is such a pair too, or None.
    """

    X: Any
    memory: Any
    params: MultiHeadParams[Any]
    C: Any
    heads: tuple[Any, ...]
    attention: Any
    steps: tuple[Any, ...] = ()
    gate: tuple[Any, ...] | None = None


@described
class MultiHeadGrads(NamedTuple, Generic[Array]):
    """The gradients of :func:`.multi_head_attention`, each with the shape of its variable."""

    dX: Array
    """(..., n_q, d_model), like X; in self-attention all three paths added up."""
    dmemory: Array | None
    """(..., n_k, d_mem), like the memory; None in self-attention."""
    dparams: MultiHeadParams[Array]
    """The gradients of the weights and biases, in their places."""
    dbias: Array | None
    """The shape of bias; None where there was none."""
    dops: tuple[Any, ...]
    """One entry for each of ``ops``."""
    dqk_norm: QKNorm | None = None
    """The gradients of the gains; None where there was no norm."""
    dgate: Gate[Array] | None = None
    """The gradients of the gate's W and b; None where there was no gate."""


def multi_head_attention(
    X: Array,
    p: MultiHeadParams[Array],
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    memory: Array | None = None,
    mask: AnyArray | None = None,
    bias: AnyArray | None = None,
    causal: bool | Corner = False,
    scale: float | None = None,
    ops: Sequence[Op] = (),
    method: Method | Way = "auto",
    qk_norm: QKNorm | Literal["rms", "l2"] | None = None,
    rotary: Rotary | None = None,
    gate: Gate[Array] | None = None,
) -> tuple[Array, MultiHeadResiduals]:
    """Let every token ask several questions at once, each head with projections of its own.

    .. math::
       Y = (O_0 \\;\\cdots\\; O_{h-1})\\,W_O + b_O \\qquad
       O_r = \\operatorname{attention}(X W^Q_r + b^Q_r,\\; X_{\\mathrm{mem}} W^K_r + b^K_r,\\;
       X_{\\mathrm{mem}} W^V_r + b^V_r)

    Equation :eq:`def-multi-head`. X_mem is X itself in self-attention, and ``memory`` in cross-attention.

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
        As for :func:`~attnbook.attention.attention`; bias broadcasts to (..., h, n_q, n_k), scale is 1/√d_k
        by default.
    qk_norm : QKNorm, "rms" or "l2", optional
        Normalize each head's queries and keys, after the biases.
    rotary : Rotary, optional
        Turn queries and keys by their positions, after the norm. With a cache positions go on: X the new tokens at
        ``positions``, memory all tokens, ``causal="bottom-right"``.
    gate : Gate, optional
        Multiply what the heads return, before W_O.

    Returns
    -------
    Y : array (..., n_q, d_out), namespace, dtype and device of X
    res : MultiHeadResiduals
        What :func:`multi_head_attention_vjp` needs.

    Raises
    ------
    TypeError
        X or memory is no array of floats, p no :class:`MultiHeadParams`, or a weight unlike X in dtype or library; a
        number of heads is no integer; qk_norm, rotary or gate is no object of its class; and as
        :func:`~attnbook.attention.attention`.
    ValueError
        Widths that the number of heads does not divide, a num_kv_heads that does not divide num_heads, weights that do
        not fit each other or X, a memory of another batch, and what does not fit otherwise.

    Notes
    -----
    Source: Vaswani et al., "Attention Is All You Need", section 3.2.2. Chapter: :doc:`/chapters/05_multi_head`.
    """
    h, h_kv, n_k = _check(X, p, memory, num_heads, num_kv_heads)
    shape = (*X.shape[:-2], h, X.shape[-2], n_k)
    widths = p.W_Q.shape[1] // h, p.W_V.shape[1] // h_kv
    options: dict[str, Any] = {
        "mask": mask,
        "bias": bias,
        "causal": causal,
        "scale": scale,
        "ops": ops,
        "method": method,
    }
    plan = resolve({"X": X, "memory": memory, **p._asdict()}, shape, widths, **options)
    plain = qk_norm is rotary is gate is None  # type: ignore[comparison-overlap]
    steps = () if plain else _steps(X, memory, h, widths, qk_norm, rotary, gate)
    x, m, w = _operands(X, memory, p)
    Q = split_heads(project(x, w.W_Q, w.b_Q), h)  # def-projections
    K = split_heads(project(m, w.W_K, w.b_K), h_kv)
    V = split_heads(project(m, w.W_V, w.b_V), h_kv)
    of_steps, of_gate = [], None
    for step in steps:
        (Q, K), saved = step.forward(Q, K)
        of_steps.append((step, saved))
    O, kept = SPINES[plan.spine].forward(Q, K, V, plan)
    C = merge_heads(O)  # def-multi-head
    if gate is not None:
        C, saved = gate.forward(C, x)
        of_gate = gate, saved
    Y = project(C, w.W_O, w.b_O)  # def-projections, def-multi-head
    return narrow(Y, X.dtype), MultiHeadResiduals(X, memory, p, C, (h, h_kv), kept, tuple(of_steps), of_gate)


def multi_head_attention_vjp(dY: Array, res: MultiHeadResiduals) -> MultiHeadGrads[Array]:
    """Pull a gradient back through the whole layer: to its input, its memory, and every weight and bias.

    .. math::
       dC = dY\\,W_O^{\\mathsf T} \\qquad dW_O = C^{\\mathsf T} dY \\qquad
       dX = dQ\\,W_Q^{\\mathsf T} \\qquad
       dX_{\\mathrm{mem}} = dK\\,W_K^{\\mathsf T} + dV\\,W_V^{\\mathsf T}

    Equations :eq:`eq-multi-head-vjp` and :eq:`eq-dmemory`. In self-attention the last two add up to dX:
    three paths into X.

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
        no bias; ``dbias`` and ``dops`` as :func:`~attnbook.attention.attention_vjp` gives them.

    Raises
    ------
    TypeError
        ``res`` is from another function, or dY no array like X.
    ValueError
        dY has not the shape of Y.

    Notes
    -----
    For the memory: :doc:`/chapters/07_cross`.
    """
    check_res(res, "multi_head_attention", MultiHeadResiduals)
    agree(X=res.X, dY=dY)
    check_shape("dY", dY, (*res.C.shape[:-1], res.params.W_O.shape[-1]))
    x, m, w = _operands(res.X, res.memory, res.params)
    plan = res.attention.plan
    dC, dW_O, db_O = project_vjp(widen(dY), res.C, w.W_O)  # eq-multi-head-vjp, eq-concat-vjp, eq-dW-O
    dqk_norm = dgate = None
    if res.gate is not None:
        gate, saved = res.gate
        dC, by_gate, dgate = gate.vjp(dC, saved, x)
    dQ, dK, dV, dparams = SPINES[plan.spine].vjp(split_heads(dC, res.heads[0]), None, res.attention)  # eq-head-vjp
    for step, saved in reversed(res.steps):
        dQ, dK, dqk_norm = step.vjp(dQ, dK, saved)  # the norm is the first step: None if there is none
    dQ, dK, dV = map(merge_heads, (dQ, dK, dV))  # eq-split-merge-vjp
    by_Q, dW_Q, db_Q = project_vjp(dQ, x, w.W_Q)  # eq-multi-head-projections, eq-dW, eq-dW-batch, eq-dX-cross
    by_K, dW_K, db_K = project_vjp(dK, m, w.W_K)  # eq-multi-head-projections, eq-dW
    by_V, dW_V, db_V = project_vjp(dV, m, w.W_V)  # eq-multi-head-projections, eq-dW
    biases = (None if b is None else db for b, db in zip(w[4:], (db_Q, db_K, db_V, db_O), strict=True))
    dX, dmemory = (by_Q + by_K + by_V, None) if res.memory is None else (by_Q, by_K + by_V)  # eq-dX, eq-dmemory
    if res.gate is not None:
        dX = dX + by_gate
    of_layer = MultiHeadParams(*_each(narrow, (dW_Q, dW_K, dW_V, dW_O, *biases), res.X.dtype))
    dX, dmemory, *dparams = _each(narrow, (dX, dmemory, *dparams), res.X.dtype)
    return MultiHeadGrads(dX, dmemory, of_layer, *split_by_asker(dparams, plan), dqk_norm, dgate)


def _operands(X: Any, memory: Any, p: Any) -> tuple[Any, Any, MultiHeadParams[Any]]:
    """Inputs and weights in the accumulation dtype; without a memory, keys and values are made from X."""
    x = widen(X)
    return x, x if memory is None else widen(memory), MultiHeadParams(*_each(widen, p))


def _each(f: Callable[..., Any], arrays: Iterable[Any], *args: Any) -> Iterator[Any]:
    """f of each array; None stays None."""
    return (None if T is None else f(T, *args) for T in arrays)


def _steps(X: Any, memory: Any, h: int, widths: tuple[int, int], qk_norm: Any, rotary: Any, gate: Any) -> list[Any]:
    """The steps of queries and keys, or an error where one of them or the gate does not fit."""
    qk_norm = QKNorm(kind=qk_norm) if isinstance(qk_norm, str) else qk_norm
    for name, came, wanted in (("qk_norm", qk_norm, QKNorm), ("rotary", rotary, Rotary), ("gate", gate, Gate)):
        if came is not None and not isinstance(came, wanted):
            raise TypeError(expected(name, f"a {wanted.__name__}", kind(came)))
    if gate is not None:
        gate.check(X, h, widths[1])
    return [step.for_heads(X, memory, widths[0]) for step in (qk_norm, rotary) if step is not None]


def _check(X: Any, p: Any, memory: Any, num_heads: Any, num_kv_heads: Any) -> tuple[int, int, int]:
    """h, h_kv and n_k, or an error that names what does not fit."""
    if not isinstance(p, MultiHeadParams):
        raise TypeError(expected("p", "a MultiHeadParams", kind(p)))
    weights = {name: getattr(p, name) for name in ("W_Q", "W_K", "W_V", "W_O")}
    biases = {name: getattr(p, name) for name in ("b_Q", "b_K", "b_V", "b_O")}
    agree({"memory": memory, **biases}, X=X, **weights)
    h = check_count("num_heads", num_heads)
    h_kv = h if num_kv_heads is None else check_count("num_kv_heads", num_kv_heads)
    if h % h_kv:
        raise ValueError(expected("num_kv_heads", f"a divisor of num_heads, {h}", h_kv))
    for name, T in (("X", X), ("memory", memory)):
        if T is not None and T.ndim < 2:
            raise ValueError(expected(name, "at least two axes (..., tokens, width)", f"shape {tuple(T.shape)}"))
    if memory is not None and memory.shape[:-2] != X.shape[:-2]:
        wanted = f"the leading axes of X, {tuple(X.shape[:-2])}"
        raise ValueError(expected("memory", wanted, f"shape {tuple(memory.shape)}"))
    n_k, d_mem = X.shape[-2:] if memory is None else memory.shape[-2:]
    rows = {"W_Q": X.shape[-1], "W_K": d_mem, "W_V": d_mem}
    heads = {"W_Q": h, "W_K": h_kv, "W_V": h_kv}
    for name, W in weights.items():
        if W.ndim != 2:
            raise ValueError(expected(name, "two axes (rows, columns)", f"shape {tuple(W.shape)}"))
        if name in rows and W.shape[0] != rows[name]:
            of = "memory" if memory is not None and name != "W_Q" else "X"
            raise ValueError(expected(name, f"{rows[name]} rows, the width of {of}", f"shape {tuple(W.shape)}"))
        if name in heads and (W.shape[1] % heads[name] or W.shape[1] == 0):
            wanted = f"a number of columns that its {heads[name]} heads divide" if W.shape[1] else "at least one column"
            raise ValueError(expected(name, wanted, f"shape {tuple(W.shape)}"))
    if p.W_K.shape[1] * h != p.W_Q.shape[1] * h_kv:
        raise ValueError(expected("W_K", f"{p.W_Q.shape[1] // h * h_kv} columns", f"shape {tuple(p.W_K.shape)}"))
    if p.W_O.shape[0] * h_kv != p.W_V.shape[1] * h:
        raise ValueError(expected("W_O", f"{p.W_V.shape[1] // h_kv * h} rows", f"shape {tuple(p.W_O.shape)}"))
    for (name, b), W in zip(biases.items(), weights.values(), strict=True):
        if b is not None:
            check_shape(name, b, (W.shape[1],))
    return h, h_kv, n_k
