"""torch's ``scaled_dot_product_attention`` on the book's lines: one forward, and every derivative of it.

Three functions that torch differentiates as we say: ``_Attention``, its gradient ``_Pull`` and its tangent
``_Push``. Each runs a spine on plain tensors, whatever torch has wrapped around them: on the CPU the NumPy one, on
the memory of the tensors themselves, elsewhere the generic one. So reverse mode, forward mode and ``vmap`` all run the
same lines. Derivatives of the last two are taken by autograd, through the dense lines in torch.
"""

import inspect
from contextlib import nullcontext
from dataclasses import dataclass, replace
from numbers import Real

import torch
from torch.nn.functional import pad

from attnbook.arguments import check_scale
from attnbook.arrays import array_namespace, broadcasts_to, device, expected, is_numpy
from attnbook.ops import Bias, Causal, Dropout, Mask, Scale, Step
from attnbook.ops.dropout import _32_BITS, _mix
from attnbook.spines import dense, pick, spine_of, tiled
from attnbook.spines.numpy_tiled import LN2

NO_MEMORY = """a tensor without memory to read. For many gradients at once, use torch.func (vmap, jacrev, jacfwd) \
instead of is_grads_batched or vectorize of torch.autograd; to trace, use torch.compile or torch.export"""
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """Attend as ``torch.nn.functional.scaled_dot_product_attention`` does, with derivatives of every kind and order.

    .. math::
       O = \\frac{R \\circ P}{1 - p}\\,V \\qquad P = \\operatorname{softmax}(S) \\qquad
       S = \\text{scale}\\cdot Q K^{\\mathsf T} + \\text{attn\\_mask}

    Equations :eq:`def-attention` and, for R, :eq:`eq-op-dropout`.

    Parameters
    ----------
    query : tensor (..., n_q, d_k)
        float64, float32, bfloat16 or float16; leading axes (batch, heads) broadcast.
    key : tensor (..., n_k, d_k)
    value : tensor (..., n_k, d_v)
    attn_mask : tensor, optional
        Broadcasts to (..., n_q, n_k). bool: True = may attend. Of query's dtype or float32: added to the scores, and it
        gets a gradient.
    dropout_p : float in [0, 1)
        Drops weights with this probability, always, as torch does: pass 0 in evaluation.
    is_causal : bool
        Forbid later keys, counted from the top left. Not together with ``attn_mask``.
    scale : float, optional
        1/√d_k by default.
    enable_gqa : bool
        Let key and value have fewer heads (axis −3) than query, if their number divides query's.

    Returns
    -------
    O : tensor (..., n_q, d_v), dtype and device of query
        Contiguous. Exactly 0 in a row with no allowed key, as are all gradients through it.

    Raises
    ------
    TypeError, ValueError
        Names the argument whose type, dtype, device, shape or value does not fit.

    Notes
    -----
    Where torch's fused kernels stop, this goes on: second derivatives, forward mode, and the gradient of
    ``attn_mask``. It runs under ``torch.func`` (``vjp``, ``jvp``, ``vmap`` and what is made of them), under autocast,
    and in ``torch.compile`` as one operator that is not looked into; compiled, it has first derivatives only, as
    compiled code has in torch.

    Not as in torch: dropout draws one number from torch's generator and makes R from it, so ``torch.manual_seed``
    repeats R, but R is not torch's. p = 1 is refused. Tensors on the CPU are read in place by the NumPy engine, which
    has threads of its own: see :func:`~attnbook.spines.workers.set_num_threads`. 16-bit floats are widened to float32
    once, and the results are rounded once. ``is_grads_batched`` and ``vectorize`` of ``torch.autograd`` do not work:
    ``torch.func`` does the same. Memory is linear in n_q and n_k, small tables apart; second derivatives hold whole
    tables. Chapter: :doc:`/chapters/03_single_head`.

    Examples
    --------
    >>> import torch
    >>> from attnbook.torch import scaled_dot_product_attention
    >>> Q, K, V = (torch.randn(2, 3, n, 11, requires_grad=True) for n in (5, 7, 7))
    >>> O = scaled_dot_product_attention(Q, K, V, is_causal=True)
    >>> (dQ,) = torch.autograd.grad(O.square().sum(), Q, create_graph=True)
    >>> dQ.sum().backward()  # a gradient of a gradient
    """
    for name, flag in (("is_causal", is_causal), ("enable_gqa", enable_gqa)):
        if not isinstance(flag, bool):
            raise TypeError(expected(name, "a bool", repr(flag)))
    query, key, value, attn_mask = _as_autocast_does(query, key, value, attn_mask)
    _check_tensors(query, key, value, attn_mask)
    _check_shapes(query, key, value, attn_mask, enable_gqa)
    if is_causal and attn_mask is not None:
        raise ValueError(expected("is_causal", "False where attn_mask is given", "both"))
    if not isinstance(dropout_p, Real) or isinstance(dropout_p, bool):
        raise TypeError(expected("dropout_p", "a probability in [0, 1)", repr(dropout_p)))
    if not 0 <= dropout_p < 1:
        raise ValueError(expected("dropout_p", "a probability in [0, 1)", repr(dropout_p)))
    factor = check_scale(scale, query.shape[-1] or 1)

    d_v = value.shape[-1]
    if query.shape[-1] == 0:  # a column of zeros changes no score
        query, key = pad(query, (0, 1)), pad(key, (0, 1))
    if d_v == 0:
        value = pad(value, (0, 1))
    seed = torch.randint(2**62, ()) if dropout_p else None
    tensors = query, key, value, attn_mask, seed
    if torch.compiler.is_compiling():
        O = torch.ops.attnbook.attention(*tensors, float(dropout_p), is_causal, factor)[0]
    else:
        O = _Attention.apply(*tensors, _How(factor, is_causal, float(dropout_p)))[0]
    return O if d_v else O[..., :0]


@dataclass(frozen=True)
class _How:
    """The options that are no tensors."""

    factor: float
    is_causal: bool
    dropout_p: float


# --- the three functions ------------------------------------------------------------------------------------------


def _signed(f):
    """f with its signature read once: torch asks for it at every call."""
    f.__signature__ = inspect.signature(f)
    return f


class _Attention(torch.autograd.Function):
    """O, and a memory for the backward, which torch hands on without looking into it."""

    @staticmethod
    @_signed
    def forward(Q, K, V, mask, seed, how):
        return _attend(Q, K, V, mask, seed, how)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.how = inputs
        ctx.memory = output[1]
        remembered = () if ctx.memory is None else ctx.memory.tensors
        ctx.memory = ctx.memory and replace(ctx.memory, tensors=())
        ctx.save_for_backward(*tensors, *remembered)
        ctx.save_for_forward(*tensors, *remembered)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, dO, _):
        if dO is None:
            return (None,) * 6
        *tensors, memory = _recall(ctx)
        of_mask = _moves(tensors[3]) and ctx.needs_input_grad[3]
        last = not torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active()  # nobody asks for more
        grads = (_pull if last else _Pull.apply)(dO, *tensors, ctx.how, memory, of_mask)
        return *(T if needed else None for T, needed in zip(grads, ctx.needs_input_grad, strict=False)), None, None

    @staticmethod
    def jvp(ctx, tQ, tK, tV, tmask, *_):
        *tensors, memory = _recall(ctx)
        return _Push.apply(*_or_zeros((tQ, tK, tV), tensors[:3]), tmask, *tensors, ctx.how, memory), None

    @staticmethod
    def vmap(info, in_dims, *inputs):
        tensors, _ = _fold(info.batch_size, inputs[:5], in_dims)
        return (_Attention.apply(*tensors, inputs[5])[0], None), (0, None)


class _Pull(torch.autograd.Function):
    """dQ, dK, dV and, if it is asked for, that of the mask."""

    @staticmethod
    @_signed
    def forward(dO, Q, K, V, mask, seed, how, memory, of_mask):
        return _pull(dO, Q, K, V, mask, seed, how, memory, of_mask)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.how, _, ctx.of_mask = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, *cotangents):
        f, primals = _of_those_that_move(_pull_in_torch, ctx.saved_tensors, ctx.how, ctx.of_mask)
        cotangents = _or_zeros(cotangents, primals[1 : 4 + ctx.of_mask])
        return *_in_their_places(torch.func.vjp(f, *primals)[1](cotangents), ctx.saved_tensors), None, None, None

    @staticmethod
    def jvp(ctx, *tangents):
        f, primals = _of_those_that_move(_pull_in_torch, ctx.saved_tensors, ctx.how, ctx.of_mask)
        moved = _or_zeros([t for t, T in zip(tangents, ctx.saved_tensors, strict=False) if _moves(T)], primals)
        found = _push_by_two_pulls(f, primals, moved)
        return *found, *(None,) * (4 - len(found))

    @staticmethod
    def vmap(info, in_dims, *inputs):
        tensors, shapes = _fold(info.batch_size, inputs[:6], in_dims)
        how, memory, of_mask = inputs[6:]
        once = all(dim is None for dim in in_dims[1:6])  # only dO is many: a Jacobian
        memory = memory.for_each(info.batch_size) if once and memory else None
        found = _Pull.apply(*tensors, how, memory, of_mask)
        found = tuple(T if T is None else T.reshape(s) for T, s in zip(found, shapes[1:5], strict=True))
        return found, tuple(T if T is None else 0 for T in found)


class _Push(torch.autograd.Function):
    """The tangent of O."""

    @staticmethod
    @_signed
    def forward(tQ, tK, tV, tmask, Q, K, V, mask, seed, how, memory):
        return _push(tQ, tK, tV, tmask, Q, K, V, mask, seed, how, memory)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.how, _ = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx, cotangent):
        f, primals = _of_those_that_move(_push_in_torch, ctx.saved_tensors, ctx.how)
        return *_in_their_places(torch.func.vjp(f, *primals)[1]((cotangent,)), ctx.saved_tensors), None, None

    @staticmethod
    def jvp(ctx, *tangents):
        f, primals = _of_those_that_move(_push_in_torch, ctx.saved_tensors, ctx.how)
        moved = _or_zeros([t for t, T in zip(tangents, ctx.saved_tensors, strict=False) if _moves(T)], primals)
        return _push_by_two_pulls(f, primals, moved)[0]

    @staticmethod
    def vmap(info, in_dims, *inputs):
        tensors, _ = _fold(info.batch_size, inputs[:9], in_dims)
        how, memory = inputs[9:]
        once = all(dim is None for dim in in_dims[4:9])
        return _Push.apply(*tensors, how, memory.for_each(info.batch_size) if once and memory else None), 0


# --- into the spines, and out of them -----------------------------------------------------------------------------


def _attend(Q, K, V, mask, seed, how, method=None):
    """O, and what its backward needs."""
    with _as_written(Q):
        q, k, v, steps, shape = _operands(Q, K, V, mask, seed, how)
        O, res = _spine(q, shape, method)(q, k, v, steps, shape)
    O = _outside(O)
    return O.to(Q.dtype), _Memory.of(res, O)


def _pull(dO, Q, K, V, mask, seed, how, memory, of_mask):
    """dQ, dK, dV and, if it is asked for, that of the mask."""
    with _as_written(Q):
        q, k, v, steps, shape = _operands(Q, K, V, mask, seed, how, of_mask)
        res = _residuals(q, k, v, steps, shape, memory)
        dQ, dK, dV, dparams = spine_of(res).vjp(_inside(dO, Q), res)
    dmask = _outside(dparams[1]).to(mask.dtype) if of_mask else None
    return *(_outside(T).to(Q.dtype) for T in (dQ, dK, dV)), dmask


def _push(tQ, tK, tV, tmask, Q, K, V, mask, seed, how, memory):
    """The tangent of O."""
    with _as_written(Q):
        q, k, v, steps, shape = _operands(Q, K, V, mask, seed, how)
        res = _residuals(q, k, v, steps, shape, memory)
        tq, tk, tv, tbias = (_inside(T, Q) for T in (tQ, tK, tV, tmask))
        tO = spine_of(res).jvp(tq, tk, tv, [tbias if s.asked_by == "bias" else None for s in steps], res)
    return _outside(tO).to(Q.dtype)


def _as_written(T):
    """Products in the dtype of their factors: autocast has had its say at the door."""
    return torch.autocast(T.device.type, enabled=False) if _autocasts(T) else nullcontext()


def _wide(dtype):
    return torch.float32 if dtype.itemsize < 4 else dtype


def _widen(T, Q):
    """T in the accumulation dtype of Q; a bool mask, a seed or None as it is."""
    wide = _wide(Q.dtype)
    return T if T is None or T.dtype == wide or not _moves(T) else T.to(wide)


def _on_numpy(T):
    """Whether tensors like T go through the NumPy engine."""
    return T.device.type == "cpu"


def _inside(T, Q):
    """T widened and without history, on the CPU as a NumPy array in the same memory."""
    if T is None:
        return None
    if not _on_numpy(Q):
        return _widen(T, Q).detach().to(Q.device)
    try:
        return _widen(T, Q).numpy(force=True)
    except RuntimeError as error:
        raise NotImplementedError(NO_MEMORY) from error


def _outside(T):
    """What a spine gave, as a tensor in the same memory."""
    return torch.as_tensor(T).contiguous()


def _pull_in_torch(dO, Q, K, V, mask, seed, how, of_mask):
    """:func:`_pull` in torch's own operations, which autograd can follow: the dense lines."""
    with _as_written(Q):
        q, k, v, steps, shape = _operands(Q, K, V, mask, seed, how, of_mask, widen=_widen)
        _, res = dense.forward(q, k, v, steps, shape)
        dQ, dK, dV, dparams = dense.vjp(_widen(dO, Q), res)
    dmask = (dparams[1].to(mask.dtype),) if of_mask else ()
    return *(T.to(Q.dtype) for T in (dQ, dK, dV)), *dmask


def _push_in_torch(tQ, tK, tV, tmask, Q, K, V, mask, seed, how):
    """:func:`_push` likewise."""
    with _as_written(Q):
        q, k, v, steps, shape = _operands(Q, K, V, mask, seed, how, widen=_widen)
        _, res = dense.forward(q, k, v, steps, shape)
        tq, tk, tv, tbias = (_widen(T, Q) for T in (tQ, tK, tV, tmask))
        tO = dense.jvp(tq, tk, tv, [tbias if s.asked_by == "bias" else None for s in steps], res)
    return (tO.to(Q.dtype),)


def _operands(Q, K, V, mask, seed, how, of_mask=False, widen=_inside):
    """q, k, v, the steps and the shape of the scores, as a spine takes them."""
    q, k, v, m, seed = (widen(T, Q) for T in (Q, K, V, mask, seed))
    steps = [Step("scale", Scale(how.factor))]
    if mask is not None and mask.dtype == torch.bool:
        steps.append(Step("mask", Mask(m)))
    elif mask is not None:
        steps.append(Step("bias", Bias(m) if of_mask else _Fixed(m)))
    if how.is_causal:
        steps.append(Step("causal", Causal("top-left")))
    if how.dropout_p:
        steps.append(Step("ops", _Dropout(how.dropout_p, seed)))
    return q, k, v, tuple(steps), _scores_shape(Q, K, V)


class _Fixed(Bias):
    """A bias whose gradient nobody asks for."""

    parameter = None

    def vjp(self, dS, saved, tile):
        return dS, None


@dataclass(frozen=True, eq=False)
class _Dropout(Dropout):
    """Dropout with a seed for each place on the leading axes that ``vmap`` has added: R is that of one call, apart."""

    def __post_init__(self):
        pass

    def kept(self, T, tile):
        xp = array_namespace(T)
        lead = tile.lead or tuple(range(n) for n in T.shape[:-2])
        added = self.seed.ndim
        seed = self.seed[tuple(slice(r.start, r.stop) for r in lead[:added])]
        number = _mix(seed & _32_BITS ^ _mix(seed >> 32 & _32_BITS))
        for places in (*lead[added:], tile.rows, tile.cols):
            place = xp.arange(places.start, places.stop, dtype=xp.int64, device=device(T))
            number = _mix(number[..., None] ^ _mix(place + 1))
        return number >= int(self.p * 2**32)


def _scores_shape(Q, K, V):
    """(..., n_q, n_k), each head of K and V repeated for the query heads that share it."""
    h = Q.shape[-3] if Q.ndim > 2 else 1
    a, b, c = (tuple(T.shape[:-2]) for T in (Q, K, V))
    b, c = ((*axes[:-1], h) if axes and 1 < axes[-1] < h else axes for axes in (b, c))
    lead = a if a == b == c else torch.broadcast_shapes(a, b, c)  # which takes longer than a small table
    return (*lead, Q.shape[-2], K.shape[-2])


def _spine(q, shape, method=None):
    """The forward of the spine that "auto" picks; without data, the dense one, which looks at none."""
    return pick("dense" if device(q) == torch.device("meta") else method or "auto", q, shape)


def _residuals(q, k, v, steps, shape, memory):
    """The residuals of the forward: as it left them, or made again."""
    if memory is None:
        return _spine(q, shape)(q, k, v, steps, shape)[1]
    return memory.residuals(q, k, v, steps, shape)


@dataclass(frozen=True, eq=False)
class _Memory:
    """What residuals keep beside the inputs, as tensors, for torch to save: P; or O, M and Z, with the unit of M."""

    tensors: tuple
    unit: float | None = None

    @classmethod
    def of(cls, res, O):
        if isinstance(res, dense.Residuals):
            return cls((_outside(res.P),))
        return cls((O, *map(torch.as_tensor, (res.M, res.Z))), res.unit)

    def residuals(self, q, k, v, steps, shape):
        kept = [T.numpy(force=True) if is_numpy(q) else T for T in self.tensors]
        if self.unit is None:
            return dense.Residuals(q, k, v, *kept, steps)
        return tiled.Residuals(q, k, v, *kept, steps, shape, self.unit)

    def for_each(self, n):
        """The same for each of ``n`` calls, on a new first axis."""
        return replace(self, tensors=tuple(T.expand(n, *T.shape) for T in self.tensors))


def _recall(ctx):
    """The tensors of a forward, and its memory."""
    saved = ctx.saved_tensors
    return *saved[:5], ctx.memory and replace(ctx.memory, tensors=saved[5:])


# --- what the derivatives and vmap share --------------------------------------------------------------------------


def _moves(T):
    """Whether a change of T is one of floats: not for a bool mask, a seed, or None."""
    return T is not None and T.is_floating_point()


def _or_zeros(changes, like):
    return tuple(torch.zeros_like(T) if t is None else t for t, T in zip(changes, like, strict=False))


def _of_those_that_move(f, tensors, *options):
    """f as a function of those of its arguments that move, and these."""

    def of_primals(*primals):
        given = iter(primals)
        return f(*(next(given) if _moves(T) else T for T in tensors), *options)

    return of_primals, tuple(T for T in tensors if _moves(T))


def _in_their_places(grads, tensors):
    """The gradients of the arguments that move, and None for the others."""
    grads = iter(grads)
    return tuple(next(grads) if _moves(T) else None for T in tensors)


def _push_by_two_pulls(f, primals, tangents):
    """J t. The pullback c ↦ Jᵀ c is linear, so its own pullback is t ↦ J t: forward mode for what has only reverse."""
    zeros = tuple(torch.zeros_like(T) for T in f(*primals))
    _, push = torch.func.vjp(lambda *c: torch.func.vjp(f, *primals)[1](c), *zeros)
    return push(tangents)


def _fold(n, tensors, dims):
    """The tensors with the axis of ``vmap`` first, and the shapes that their gradients have with it.

    Leading axes are free in attention, so n calls are one. Axes are added after the new one until all have one rank,
    and the new one stays first where tensors broadcast. The last tensor is the seed, which has no axes of its own.
    """
    apart = [
        T if T is None else T.expand(n, *T.shape) if dim is None else T.movedim(dim, 0)
        for T, dim in zip(tensors, dims, strict=False)
    ]
    rank = max(T.ndim for T in apart[:-1] if T is not None)
    folded = [T if T is None else T[(slice(None), *(None,) * (rank - T.ndim))] for T in apart[:-1]]
    return (*folded, apart[-1]), [T if T is None else T.shape for T in apart]


# --- at the door --------------------------------------------------------------------------------------------------


def _autocasts(T):
    kind = T.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def _as_autocast_does(query, *others):
    """Under autocast, all in its dtype, as torch casts the arguments of its function; float64 stays."""
    cast = (torch.float32, torch.bfloat16, torch.float16)
    if not isinstance(query, torch.Tensor) or query.dtype not in cast or not _autocasts(query):
        return query, *others
    dtype = torch.get_autocast_dtype(query.device.type)
    return tuple(T.to(dtype) if isinstance(T, torch.Tensor) and T.dtype in cast else T for T in (query, *others))


def _check_tensors(query, key, value, attn_mask):
    for name, T in (("query", query), ("key", key), ("value", value), ("attn_mask", attn_mask)):
        if T is None and name == "attn_mask":
            continue
        if not isinstance(T, torch.Tensor):
            raise TypeError(expected(name, "a tensor", type(T).__name__))
        if T.layout != torch.strided or T.is_nested:
            raise TypeError(expected(name, "a dense tensor", "a nested or sparse one"))
        allowed = DTYPES if name == "query" else (query.dtype,)
        if name == "attn_mask":
            allowed = (torch.bool, torch.float32, query.dtype)
        if T.dtype not in allowed:
            raise TypeError(expected(name, " or ".join(dict.fromkeys(map(str, allowed))), T.dtype))
        if T.device != query.device:
            raise ValueError(expected(name, f"device {query.device} like query", T.device))


def _check_shapes(query, key, value, attn_mask, enable_gqa):
    for name, T in (("query", query), ("key", key), ("value", value)):
        if T.ndim < 2 + enable_gqa:
            wanted = "three axes (heads, tokens, width)" if enable_gqa else "two axes (tokens, width)"
            raise ValueError(expected(name, f"at least {wanted}", f"shape {tuple(T.shape)}"))
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(expected("key", f"the width of query, {query.shape[-1]}", f"shape {tuple(key.shape)}"))
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(expected("value", f"a row for each of {key.shape[-2]} keys", f"shape {tuple(value.shape)}"))
    lead = tuple(query.shape[:-2])
    for name, T in (("key", key), ("value", value)):
        axes = tuple(T.shape[:-2])
        if enable_gqa:
            if axes[-1] == 0 or query.shape[-3] % axes[-1]:
                wanted = f"a number of heads that divides that of query, {query.shape[-3]}"
                raise ValueError(expected(name, wanted, f"shape {tuple(T.shape)}"))
            axes = (*axes[:-1], query.shape[-3])
        n = max(len(lead), len(axes))
        lead, axes = ((1,) * (n - len(x)) + x for x in (lead, axes))
        if any(a != b and 1 not in (a, b) for a, b in zip(lead, axes, strict=True)):
            wanted = f"leading axes that broadcast with those of query, {tuple(query.shape)}"
            wanted += "" if enable_gqa else " (fewer heads need enable_gqa)"
            raise ValueError(expected(name, wanted, f"shape {tuple(T.shape)}"))
        lead = tuple(b if a == 1 else a for a, b in zip(lead, axes, strict=True))
    scores = (*lead, query.shape[-2], key.shape[-2])
    if attn_mask is not None and not broadcasts_to(tuple(attn_mask.shape), scores):
        wanted = f"a shape that broadcasts to the scores, {scores}"
        raise ValueError(expected("attn_mask", wanted, f"shape {tuple(attn_mask.shape)}"))


# --- for the compiler: one operator that it does not look into ----------------------------------------------------

_OPTIONS = "Tensor? attn_mask, Tensor? seed, float dropout_p, bool is_causal, float scale"
_SCHEMA = f"(Tensor query, Tensor key, Tensor value, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)"
_SCHEMA_VJP = _SCHEMA.replace("(Tensor query", "(Tensor grad, Tensor query", 1).replace(
    ") ->", ", Tensor O, Tensor M, Tensor Z, bool of_mask) ->"
)


@torch.library.custom_op("attnbook::attention", mutates_args=(), schema=_SCHEMA)
def _attention_op(query, key, value, attn_mask, seed, dropout_p, is_causal, scale):
    """O, and what the tiled spine keeps: O before it was rounded (empty if it was not), M and Z."""
    how = _How(scale, is_causal, dropout_p)
    O, memory = _attend(query, key, value, attn_mask, seed, how, "tiled")
    unrounded, M, Z = memory.tensors
    return O, unrounded.new_empty(0) if unrounded is O else unrounded, M, Z


@_attention_op.register_fake
def _(query, key, value, attn_mask, seed, dropout_p, is_causal, scale):
    wide, scores = _wide(query.dtype), _scores_shape(query, key, value)
    O = query.new_empty((*scores[:-1], value.shape[-1]))
    unrounded = query.new_empty(O.shape if wide != O.dtype else 0, dtype=wide)
    return O, unrounded, *(query.new_empty((*scores[:-1], 1), dtype=wide) for _ in "MZ")


@torch.library.custom_op("attnbook::attention_vjp", mutates_args=(), schema=_SCHEMA_VJP)
def _attention_vjp_op(grad, query, key, value, attn_mask, seed, dropout_p, is_causal, scale, O, M, Z, of_mask):
    """dQ, dK, dV, and that of the mask, empty if it was not asked for."""
    unit = LN2 if _on_numpy(query) else 1.0
    how, memory = _How(scale, is_causal, dropout_p), _Memory((O, M, Z), unit)
    dQ, dK, dV, dmask = _pull(grad, query, key, value, attn_mask, seed, how, memory, of_mask)
    return dQ, dK, dV, query.new_empty(0) if dmask is None else dmask


@_attention_vjp_op.register_fake
def _(grad, query, key, value, attn_mask, seed, dropout_p, is_causal, scale, O, M, Z, of_mask):
    dmask = attn_mask.new_empty(attn_mask.shape) if of_mask else query.new_empty(0)
    return *(T.new_empty(T.shape) for T in (query, key, value)), dmask


def _save(ctx, inputs, output):
    *tensors, ctx.dropout_p, ctx.is_causal, ctx.scale = inputs
    O, unrounded, M, Z = output
    ctx.save_for_backward(*tensors, O if unrounded.dtype == O.dtype else unrounded, M, Z)


def _vjp_of_op(ctx, dO, *_):
    *tensors, O, M, Z = ctx.saved_tensors
    of_mask = _moves(tensors[3]) and ctx.needs_input_grad[3]
    options = ctx.dropout_p, ctx.is_causal, ctx.scale
    *grads, dmask = torch.ops.attnbook.attention_vjp(dO, *tensors, *options, O, M, Z, of_mask)
    return *grads, dmask if of_mask else None, *(None,) * 4


_attention_op.register_autograd(_vjp_of_op, setup_context=_save)
