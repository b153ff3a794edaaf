"""Attention, its vjp and its jvp as functions that torch differentiates as we say, in every mode and to every order.

Each runs one pass on plain tensors, whatever torch has wrapped around them: so reverse mode, forward mode and ``vmap``
all reach the spines, and so do two derivatives, unless both are in forward mode. Those, and what comes third, are taken
by autograd, through the dense lines in torch.
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
        tensors, kept = _recalled(ctx, ctx.saved_tensors)
        found = (passes.vjp if _last() else VJP.apply)(_let_go(ctx), kept, needed, dO, dL, *tensors)
        return _spread((False, *needed), found)

    @staticmethod
    def jvp(ctx, _, *tangents):
        tensors, kept = _recalled(ctx, map(_primal, ctx.saved_tensors))
        return *JVP.apply(ctx.call, kept, *tangents, *tensors), None

    @staticmethod
    def vmap(info, in_dims, call, *tensors):
        return Attention.apply(*_stacked(call, info.batch_size, tensors, in_dims[1:], *_places(call))), 0


class _Derivative(_Function):
    """What all derivatives have. In their context ``f`` is the same pass, traced, where its derivatives need that."""

    @classmethod
    def apply(cls, *args):
        """Where a transform has ended, what it kept may still be in its wrappers."""
        return super().apply(*unwrap_dead_wrappers(args))

    @staticmethod
    def jvp(ctx, *tangents):
        with forward_ad._set_fwd_grad_enabled(True):
            inputs = [_primal(T) for T in ctx.saved_tensors[: ctx.n]]
            return push(ctx.f, inputs, tangents[-ctx.n :])


class VJP(_Derivative):
    """The gradients of the tensors that need one."""

    forward = staticmethod(passes.vjp)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.call, kept, ctx.needed, *changes = inputs
        _save_with(ctx, changes, kept)

    @staticmethod
    def backward(ctx, *cotangents):
        (dO, dL, *tensors), kept = _recalled(ctx, ctx.saved_tensors)
        given = iter(cotangents)
        along, asked = [next(given) if need else None for need in ctx.needed], ctx.needs_input_grad[3:]
        return _spread(ctx.needs_input_grad, _hvp()(_let_go(ctx), kept, asked, None, None, dO, dL, *along, *tensors))

    @staticmethod
    def jvp(ctx, *tangents):
        with forward_ad._set_fwd_grad_enabled(True):
            (dO, dL, *tensors), kept = _recalled(ctx, map(_primal, ctx.saved_tensors))
            tdO, tdL, *along = tangents[3:]
            return HVP.apply(ctx.call, kept, (False, False, *ctx.needed), tdO, tdL, dO, dL, *along, *tensors)

    @staticmethod
    def vmap(info, in_dims, call, kept, needed, *changes):
        n, dims = info.batch_size, in_dims[3:]
        call, *stacked = _stacked(call, n, changes, dims, _rows, _row, *_places(call))
        found = VJP.apply(call, None, needed, *stacked)
        return _alike(n, found, changes[2:], dims[2:], needed), 0


class JVP(_Derivative):
    """The tangents of O, and of L where it is asked for."""

    forward = staticmethod(passes.jvp)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.call, kept, *changes = inputs
        ctx.f = partial(passes.traced_jvp, ctx.call)
        _save_with(ctx, changes, kept)

    @staticmethod
    def backward(ctx, *cotangents):
        changes, kept = _recalled(ctx, ctx.saved_tensors)
        (tangents, tensors), (dO, dL) = passes.halves(changes), (*cotangents, None)[:2]
        of_tangents, of_tensors = passes.halves(ctx.needs_input_grad[2:])
        call, found = _let_go(ctx), ()
        if any(of_tangents):
            found += (passes.vjp if _last() else VJP.apply)(call, kept, of_tangents, dO, dL, *tensors)
        if any(of_tensors):
            asked = False, False, *of_tensors
            found += _hvp()(call, kept, asked, None, None, dO, dL, *tangents, *tensors)
        return _spread(ctx.needs_input_grad, found)

    @staticmethod
    def vmap(info, in_dims, call, kept, *changes):
        call, *stacked = _stacked(call, info.batch_size, changes, in_dims[2:], *_places(call) * 2)
        return JVP.apply(call, None, *stacked), 0


class HVP(_Derivative):
    """How the gradients move: the derivative of :class:`VJP` in both modes, as it is symmetric, and part of that of
    :class:`JVP`. Its own is taken by autograd, through the dense lines.
    """

    forward = staticmethod(passes.hvp)

    @staticmethod
    def setup_context(ctx, inputs, output):
        call, _, asked, *changes = inputs
        ctx.f = partial(passes.traced_hvp, call, asked)
        _save_with(ctx, changes, None)

    @staticmethod
    def backward(ctx, *cotangents):
        inputs, needed = unwrap_dead_wrappers(ctx.saved_tensors), ctx.needs_input_grad
        return _spread(needed, pull(ctx.f, needed[-ctx.n :], inputs, unwrap_dead_wrappers(cotangents)))

    @staticmethod
    def vmap(info, in_dims, call, kept, asked, *changes):
        n, dims = info.batch_size, in_dims[3:]
        call, *stacked = _stacked(call, n, changes, dims, _rows, _row, _rows, _row, *_places(call) * 2)
        found = HVP.apply(call, None, asked, *stacked)
        of = [[*pairs[2:4], *passes.halves(pairs[4:])[1]] for pairs in (changes, dims)]
        return _alike(n, found, *of, asked), 0


def _last():
    """Whether nobody asks for a derivative of what is done now."""
    return not torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active()


def _hvp():
    return passes.hvp if _last() else HVP.apply


def _let_go(ctx):
    """The call. Its arrays, and those of what was kept, are gone with the rest of the graph."""
    call = ctx.call
    if not torch._C._autograd._get_current_graph_task_keep_graph():
        ctx.call = ctx.kept = ctx.f = None
    return call


def _spread(needed, found):
    """A gradient for each input, None for those that need none."""
    found = iter(found)
    return (*[next(found) if need else None for need in needed],)


def _alike(n, found, tensors, dims, asked):
    """What ``n`` calls as one have found, in the shapes of the tensors that it belongs to."""
    likes = compress(zip(tensors, dims, strict=True), asked)
    return tuple(dT.reshape(_first(n, *like).shape) for dT, like in zip(found, likes, strict=True))


def _save_with(ctx, tensors, kept):
    """The tensors, and what the forward kept; inside of a transform that is wrapped, and will be made again."""
    if torch._C._are_functorch_transforms_active():
        kept = None
    ctx.n, ctx.kept = len(tensors), kept and (kept.home, kept.kind, kept.rest)
    _save(ctx, (*tensors, *(kept.tensors if kept else ())))


def _save(ctx, tensors):
    ctx.save_for_backward(*tensors)
    if forward_ad._current_level >= 0:
        ctx.save_for_forward(*tensors)


def _recalled(ctx, saved):
    """The tensors of a forward, and what it kept."""
    saved = list(saved)
    if ctx.kept is None:
        return saved, None
    return saved[: ctx.n], Kept(*ctx.kept, saved[ctx.n : ctx.n + len(ctx.kept[1].kept)])


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
