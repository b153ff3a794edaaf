"""Attention and its vjp as operators of ``torch.library``, for the compiler, which does not look into them."""

import torch

from attnbook.torch import _passes
from attnbook.torch._passes import Memory, Options, accumulation_dtype, moves, scores_shape

INPUTS = """Tensor query, Tensor key, Tensor value, Tensor? attn_mask, Tensor? seed, \
float dropout_p, bool is_causal, float scale"""
RESULTS = "(Tensor, Tensor, Tensor, Tensor)"


@torch.library.custom_op("attnbook::attention", mutates_args=(), schema=f"({INPUTS}) -> {RESULTS}")
def attention(query, key, value, attn_mask, seed, dropout_p, is_causal, scale):
    """O, and what the tiled spine keeps: O before it was rounded (empty if it was not), M and Z."""
    options = Options(scale, is_causal, dropout_p)
    O, memory = _passes.forward(query, key, value, attn_mask, seed, options, "tiled")
    unrounded, M, Z = memory.tensors
    return O, unrounded.new_empty(0) if unrounded is O else unrounded, M, Z


@attention.register_fake
def _(query, key, value, attn_mask, seed, dropout_p, is_causal, scale):
    wide, scores = accumulation_dtype(query.dtype), scores_shape(query, key, value)
    O = query.new_empty((*scores[:-1], value.shape[-1]))
    unrounded = query.new_empty(O.shape if wide != O.dtype else 0, dtype=wide)
    return O, unrounded, *(query.new_empty((*scores[:-1], 1), dtype=wide) for _ in "MZ")


@torch.library.custom_op(
    "attnbook::attention_vjp",
    mutates_args=(),
    schema=f"(Tensor grad, {INPUTS}, Tensor O, Tensor M, Tensor Z, bool of_mask) -> {RESULTS}",
)
def attention_vjp(grad, query, key, value, attn_mask, seed, dropout_p, is_causal, scale, O, M, Z, of_mask):
    """dQ, dK, dV, and that of the mask, empty if it was not asked for."""
    options, memory = Options(scale, is_causal, dropout_p), Memory(O, M, Z)
    grads = _passes.vjp(grad, query, key, value, attn_mask, seed, options, memory, of_mask)
    return grads if of_mask else (*grads, query.new_empty(0))


@attention_vjp.register_fake
def _(grad, query, key, value, attn_mask, seed, dropout_p, is_causal, scale, O, M, Z, of_mask):
    dmask = attn_mask.new_empty(attn_mask.shape) if of_mask else query.new_empty(0)
    return *(T.new_empty(T.shape) for T in (query, key, value)), dmask


def _save(ctx, inputs, output):
    *tensors, ctx.dropout_p, ctx.is_causal, ctx.scale = inputs
    O, unrounded, M, Z = output
    ctx.save_for_backward(*tensors, O if unrounded.dtype == O.dtype else unrounded, M, Z)


def _vjp(ctx, dO, *_):
    *tensors, O, M, Z = ctx.saved_tensors
    of_mask = moves(tensors[3]) and ctx.needs_input_grad[3]
    *grads, dmask = attention_vjp(dO, *tensors, ctx.dropout_p, ctx.is_causal, ctx.scale, O, M, Z, of_mask)
    return *grads, dmask if of_mask else None, *(None,) * 4


attention.register_autograd(_vjp, setup_context=_save)
