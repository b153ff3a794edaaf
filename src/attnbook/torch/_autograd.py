"""Attention, its vjp and its jvp as functions that torch differentiates as we say, in every mode and to every order.

Each runs one pass on plain tensors, whatever torch has wrapped around them. So reverse mode, forward mode and ``vmap``
all run the same lines. Derivatives of the last two are taken by autograd, through the dense lines in torch.
"""

from functools import partial

import torch

from attnbook.torch import _passes
from attnbook.torch._passes import Memory, moves


class _Function(torch.autograd.Function):
    @classmethod
    def apply(cls, *args):
        """As torch's, but without a search for default arguments, which takes longer than a small table."""
        if torch._C._are_functorch_transforms_active():
            return super().apply(*args)
        return super(torch.autograd.Function, cls).apply(*args)


class Attention(_Function):
    """O, and a memory for the backward, which torch hands on without looking into it."""

    @staticmethod
    def forward(Q, K, V, mask, seed, options):
        return _passes.forward(Q, K, V, mask, seed, options)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.options = inputs
        remembered, ctx.fused = (output[1].tensors, output[1].fused) if output[1] else ((), None)
        ctx.save_for_backward(*tensors, *remembered)
        ctx.save_for_forward(*tensors, *remembered)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, dO, _):
        if dO is None:
            return (None,) * 6
        tensors, memory = _recall(ctx)
        of_mask = moves(tensors[3]) and ctx.needs_input_grad[3]
        last = not torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active()  # nobody asks for more
        grads = (_passes.vjp if last else VJP.apply)(dO, *tensors, ctx.options, memory, of_mask)
        grads = (T if needed else None for T, needed in zip(grads, ctx.needs_input_grad, strict=False))
        return *grads, *(None,) * (2 if of_mask else 3)

    @staticmethod
    def jvp(ctx, tQ, tK, tV, tmask, *_):
        tensors, memory = _recall(ctx)
        return JVP.apply(*_or_zeros((tQ, tK, tV), tensors[:3]), tmask, *tensors, ctx.options, memory)[0], None

    @staticmethod
    def vmap(info, in_dims, *inputs):
        tensors, _ = _fold(info.batch_size, inputs[:5], in_dims)
        return (Attention.apply(*tensors, inputs[5])[0], None), (0, None)


class _Derivative(_Function):
    """What both derivatives have: a context with the same pass, traced, as ``f``, and their own derivatives."""

    @staticmethod
    def backward(ctx, *cotangents):
        f, primals = _of_those_that_move(ctx)
        grads = iter(torch.func.vjp(f, *primals)[1](cotangents))
        found = [next(grads) if moves(T) else None for T in ctx.saved_tensors]
        return *found, *(None,) * (len(ctx.needs_input_grad) - len(found))

    @staticmethod
    def jvp(ctx, *tangents):
        """The pullback c ↦ Jᵀ c is linear, so its own pullback is t ↦ J t: forward mode for what has only reverse."""
        f, primals = _of_those_that_move(ctx)
        moved = [t for t, T in zip(tangents, ctx.saved_tensors, strict=False) if moves(T)]
        zeros = tuple(torch.zeros_like(T) for T in f(*primals))
        _, push = torch.func.vjp(lambda *c: torch.func.vjp(f, *primals)[1](c), *zeros)
        return push(_or_zeros(moved, primals))


class VJP(_Derivative):
    """dQ, dK, dV and, if it is asked for, that of the mask."""

    @staticmethod
    def forward(dO, Q, K, V, mask, seed, options, memory, of_mask):
        return _passes.vjp(dO, Q, K, V, mask, seed, options, memory, of_mask)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, options, _, of_mask = inputs
        _keep(ctx, tensors, partial(_passes.vjp, options=options, of_mask=of_mask, traced=True))

    @staticmethod
    def vmap(info, in_dims, *inputs):
        tensors, shapes = _fold(info.batch_size, inputs[:6], in_dims)
        options, memory, of_mask = inputs[6:]
        found = VJP.apply(*tensors, options, _for_each(memory, info.batch_size, in_dims[1:6]), of_mask)
        return tuple(T.reshape(s) for T, s in zip(found, shapes[1:5], strict=False)), (0,) * len(found)


class JVP(_Derivative):
    """The tangent of O, alone in a tuple."""

    @staticmethod
    def forward(tQ, tK, tV, tmask, Q, K, V, mask, seed, options, memory):
        return _passes.jvp(tQ, tK, tV, tmask, Q, K, V, mask, seed, options, memory)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, options, _ = inputs
        _keep(ctx, tensors, partial(_passes.jvp, options=options, traced=True))

    @staticmethod
    def vmap(info, in_dims, *inputs):
        tensors, _ = _fold(info.batch_size, inputs[:9], in_dims)
        options, memory = inputs[9:]
        return JVP.apply(*tensors, options, _for_each(memory, info.batch_size, in_dims[4:9])), (0,)


def _recall(ctx):
    """The tensors of a forward, and its memory."""
    saved = ctx.saved_tensors
    return saved[:5], Memory(*saved[5:], fused=ctx.fused) if len(saved) > 5 else None


def _keep(ctx, tensors, f):
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)
    ctx.f = f


def _of_those_that_move(ctx):
    """``ctx.f`` as a function of those of its arguments that move, and these."""
    tensors, f = ctx.saved_tensors, ctx.f

    def of_primals(*primals):
        given = iter(primals)
        return f(*(next(given) if moves(T) else T for T in tensors))

    return of_primals, tuple(T for T in tensors if moves(T))


def _or_zeros(changes, like):
    return tuple(torch.zeros_like(T) if t is None else t for t, T in zip(changes, like, strict=True))


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


def _for_each(memory, n, dims):
    """The memory of one forward for each of ``n`` calls, on a new first axis; None where ``dims`` say that they differ.

    Where they do not, only gradients or tangents are many: a Jacobian.
    """
    if memory is None or any(dim is not None for dim in dims):
        return None
    return Memory(*(T.expand(n, *T.shape) for T in memory.tensors), fused=memory.fused)
