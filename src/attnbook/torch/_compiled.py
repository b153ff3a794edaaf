"""What the compiler gets: attention and its vjp as operators of ``torch.library``, which it does not look into.

When they run they go where the same call goes without a compiler, and a backward where its forward was. Shapes must be
known before that, so which of O's two forms is kept hangs on the first of the homes alone.
"""

import torch
from torch.autograd import forward_ad

from attnbook.plan import steps_of
from attnbook.spines import SPINES
from attnbook.torch import _passes as passes
from attnbook.torch._passes import Call, Kept

INPUTS = "Tensor Q, Tensor K, Tensor V, Tensor? bias, Tensor? mask, str? causal, float? scale, str method"


def attend(call, *tensors):
    """O and L. The operators have first derivatives in reverse mode, and know no ops; for all else there are lines."""
    asked_by = [asked_by for asked_by, op in call.steps for _ in op.arrays]
    transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    if transformed or "ops" in [by for by, _ in call.steps] or call.method not in ("auto", "tiled", "fused"):
        return passes.lines(call, *tensors)
    given = dict(zip(asked_by, tensors[3:], strict=True))
    causal = next((op.corner for by, op in call.steps if by == "causal"), None)
    options = given.get("bias"), given.get("mask"), causal, call.scale, call.method
    return attention(*tensors[:3], *options)[: 1 + call.with_L]


@torch.library.custom_op(
    "attnbook::attention",
    mutates_args=(),
    schema=f"({INPUTS}) -> (Tensor O, Tensor L, Tensor unrounded, Tensor M, Tensor Z, Tensor unit)",
)
def attention(Q, K, V, bias, mask, causal, scale, method):
    """O, L, and what the tiled spine and the kernels keep: O before it was rounded (empty where it was not, and where
    kernels may take it, whose backward reads the rounded one), M, Z and the unit of M, negative where kernels have
    made it.
    """
    call, tensors = _call(Q, K, V, bias, mask, causal, scale)
    O, L, kept = passes.forward(call, *tensors, places=passes.homes(Q, method))
    (unrounded, M, Z), (_, unit) = kept.tensors, kept.rest
    if unrounded is O or _keeps_rounded(Q, method):
        unrounded = O.new_empty(0, dtype=Z.dtype)
    return O, L, unrounded, M, Z, torch.tensor(-unit if kept.home == "kernels" else unit, dtype=torch.float64)


@attention.register_fake
def _(Q, K, V, bias, mask, causal, scale, method):
    wide, scores = torch.float32 if Q.dtype.itemsize < 4 else Q.dtype, passes.scores_shape(Q, K, V)
    O, L = Q.new_empty((*scores[:-1], V.shape[-1])), Q.new_empty(scores[:-1], dtype=wide)
    unrounded = Q.new_empty(0 if wide == O.dtype or _keeps_rounded(Q, method) else O.shape, dtype=wide)
    M, Z = (Q.new_empty((*scores[:-1], 1), dtype=wide) for _ in "MZ")
    return O, L, unrounded, M, Z, torch.empty((), dtype=torch.float64)


@torch.library.custom_op(
    "attnbook::attention_vjp",
    mutates_args=(),
    schema=f"(Tensor? dO, Tensor? dL, {INPUTS}, Tensor O, Tensor M, Tensor Z, Tensor unit, bool of_bias) -> Tensor[]",
)
def attention_vjp(dO, dL, Q, K, V, bias, mask, causal, scale, method, O, M, Z, unit, of_bias):
    """dQ, dK, dV, and that of the bias if it is asked for."""
    call, tensors = _call(Q, K, V, bias, mask, causal, scale)
    unit = unit.item()
    home, _, plan = passes.settled(call, tensors, passes.homes(Q, "fused" if unit < 0 else "tiled"))
    kept = Kept(home, SPINES[plan.spine].Residuals, (plan, abs(unit)), (O, M, Z))
    needed = [True] * 3 + [of_bias and T is bias for T in tensors[3:]]
    return list(passes.vjp(call, kept, needed, dO, dL, *tensors))


@attention_vjp.register_fake
def _(dO, dL, Q, K, V, bias, mask, causal, scale, method, O, M, Z, unit, of_bias):
    return [T.new_empty(T.shape) for T in (Q, K, V, bias)[: 3 + of_bias]]


def _keeps_rounded(Q, method):
    """Whether kernels are the first to be asked."""
    return passes.homes(Q, method)[0] == "kernels"


def _call(Q, K, V, bias, mask, causal, scale):
    call = Call(steps_of(mask, bias, causal or False), scale, "tiled", True)
    return call, [T for T in (Q, K, V, bias, mask) if T is not None]


def _save(ctx, inputs, output):
    *tensors, ctx.causal, ctx.scale, ctx.method = inputs
    O, _, unrounded, M, Z, unit = output
    ctx.save_for_backward(*tensors, unrounded if unrounded.numel() else O, M, Z, unit)
    ctx.set_materialize_grads(False)


def _vjp(ctx, dO, dL, *_):
    *tensors, O, M, Z, unit = ctx.saved_tensors
    of_bias = ctx.needs_input_grad[3]
    options = ctx.causal, ctx.scale, ctx.method
    grads = attention_vjp(dO, dL, *tensors, *options, O, M, Z, unit, of_bias)
    return *grads, *(None,) * (8 - len(grads))


attention.register_autograd(_vjp, setup_context=_save)
