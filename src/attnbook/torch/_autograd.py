"""Attention, its vjp and its jvp as functions that torch differentiates as we say, in every mode and to every order.

Each runs one pass on plain tensors, whatever torch has wrapped around them: so reverse mode, forward mode and ``vmap``
all reach the spines. Derivatives of the last two are taken by autograd, through the dense lines in torch.
"""

from dataclasses import replace
from functools import partial
from itertools import compress

import torch
from torch._functorch.utils import unwrap_dead_wrappers
from torch.autograd import forward_ad

from attnbook.torch import _passes as passes
from attnbook.torch._passes import Kept, moves, pull, push


class _Function(torch.autograd.Function):
    @classmethod
    def apply(cls, *args):
        """As torch's, but without a search for default arguments, which takes longer than a small table."""
        if torch._C._are_functorch_transforms_active():
            return super().apply(*args)
        return super(torch.autograd.Function, cls).apply(*args)


class Attention(_Function):
    """O, L or None, and what is kept, which torch hands on without looking into it."""

    @staticmethod
    def forward(call, *tensors):
        return passes.forward(call, *tensors)

    @staticmethod
    def setup_context(ctx, inputs, output):
        (ctx.call, *tensors), (O, *_, kept) = inputs, output
        ctx.n, ctx.kept = len(tensors), (kept.home, kept.kind, kept.rest)
        # O, whatever is kept: so that a change of it in place is noticed at every size, as torch's own function does.
        _save(ctx, (*tensors, *kept.tensors, *(() if kept.tensors[0] is O else (O,))))
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, *grads):
        needed, (dO, dL) = ctx.needs_input_grad[1:], (*grads[:-1], None)[:2]
        if dO is None and dL is None:
            return None, *[None] * len(needed)
        last = not torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active()  # nobody asks for more
        tensors, kept = _recalled(ctx, ctx.saved_tensors)
        found = iter((passes.vjp if last else VJP.apply)(ctx.call, kept, needed, dO, dL, *tensors))
        return None, *[next(found) if need else None for need in needed]

    @staticmethod
    def jvp(ctx, _, *tangents):
        tensors, kept = _recalled(ctx, map(_primal, ctx.saved_tensors))
        return *JVP.apply(ctx.call, kept, *tangents, *tensors), None

    @staticmethod
    def vmap(info, in_dims, call, *tensors):
        return Attention.apply(*_stacked(call, info.batch_size, tensors, in_dims[1:], *_places(call))), 0


class _Derivative(_Function):
    """What both derivatives have: a context with the same pass, traced, as ``f``, and their own derivatives."""

    @classmethod
    def apply(cls, *args):
        """Where a transform has ended, what it kept may still be in its wrappers."""
        return super().apply(*unwrap_dead_wrappers(args))

    @staticmethod
    def backward(ctx, *cotangents):
        inputs, needed = ctx.saved_tensors, ctx.needs_input_grad
        found = iter(pull(ctx.f, needed[-len(inputs) :], inputs, cotangents))
        return (*[next(found) if need else None for need in needed],)

    @staticmethod
    def jvp(ctx, *tangents):
        with forward_ad._set_fwd_grad_enabled(True):
            inputs = [_primal(T) for T in ctx.saved_tensors]
            return push(ctx.f, inputs, tangents[-len(inputs) :])


class VJP(_Derivative):
    """The gradients of the tensors that need one."""

    forward = staticmethod(passes.vjp)

    @staticmethod
    def setup_context(ctx, inputs, output):
        call, _, needed, *changes = inputs
        ctx.f = partial(passes.traced_vjp, call, needed)
        _save(ctx, changes)

    @staticmethod
    def vmap(info, in_dims, call, kept, needed, *changes):
        n, dims = info.batch_size, in_dims[3:]
        call, *stacked = _stacked(call, n, changes, dims, _rows, _row, *_places(call))
        found = VJP.apply(call, None, needed, *stacked)
        likes = compress(zip(changes[2:], dims[2:], strict=True), needed)
        return tuple(dT.reshape(_first(n, *like).shape) for dT, like in zip(found, likes, strict=True)), 0


class JVP(_Derivative):
    """The tangents of O, and of L where it is asked for."""

    forward = staticmethod(passes.jvp)

    @staticmethod
    def setup_context(ctx, inputs, output):
        call, _, *changes = inputs
        ctx.f = partial(passes.traced_jvp, call)
        _save(ctx, changes)

    @staticmethod
    def vmap(info, in_dims, call, kept, *changes):
        call, *stacked = _stacked(call, info.batch_size, changes, in_dims[2:], *_places(call) * 2)
        return JVP.apply(call, None, *stacked), 0


def _save(ctx, tensors):
    ctx.save_for_backward(*tensors)
    if forward_ad._current_level >= 0:
        ctx.save_for_forward(*tensors)


def _recalled(ctx, saved):
    """The tensors of a forward, and what it kept."""
    saved, kind = list(saved), ctx.kept[1]
    return saved[: ctx.n], Kept(*ctx.kept, saved[ctx.n : ctx.n + len(kind.kept)])


def _primal(T):
    """T without its tangent at this level, so that those of the levels outside stay on."""
    return forward_ad.unpack_dual(T, level=0).primal if moves(T) else T


def _stacked(call, n, inputs, dims, *places):
    """``n`` calls as one, and their inputs as its: leading axes are free in attention, and that of ``vmap`` becomes the
    first, with as many others after it as let it stay the first.
    """
    first = [T if T is None else _first(n, T, dim) for T, dim in zip(inputs, dims, strict=True)]
    rank = max(T.ndim for T, place in zip(first, places, strict=True) if T is not None and place is _rows)
    stacked = [T if T is None else place(T, rank) for T, place in zip(first, places, strict=True)]
    return replace(call, shape=None), *stacked


def _first(n, T, dim):
    return T.expand(n, *T.shape) if dim is None else T.movedim(dim, 0)


def _places(call):
    """How each tensor of a call is placed among scores of a rank."""
    return [_rows] * 3 + [partial(op.stacked, name) for _, op in call.steps for name in op.arrays]


def _rows(T, rank):
    """Queries, keys, values, and what is like them."""
    return T[(slice(None), *(None,) * (rank - T.ndim))]


def _row(T, rank):
    """What is one number a query."""
    return T[(slice(None), *(None,) * (rank - 1 - T.ndim))]
