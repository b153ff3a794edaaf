"""Starts the kernels on torch tensors: folds leading axes, makes room for the results."""

import math
from contextlib import nullcontext
from typing import NamedTuple

import torch
import triton

from attnbook.spines.fused import backward_kernels as kernels
from attnbook.spines.fused.capability import tf32_is_allowed
from attnbook.spines.fused.forward_kernel import forward_kernel
from attnbook.spines.fused.sizes import Blocks
from attnbook.spines.fused.tile import INTERPRETED, Pairs, Rows, Table
from attnbook.spines.operands import less_dL

LN2, LOG2E = math.log(2), math.log2(math.e)
FAR = 2**23
"""Rows that lie this far apart are copied: within a tile of 128 rows, places are counted in 32 bits."""


class Call(NamedTuple):
    """A call in the form that the kernels take. ``sign`` is what was taken out of the scale, and put into Q."""

    Q: Rows
    K: Rows
    V: Rows
    table: Table
    lead: tuple
    widths: dict
    scale: float
    sign: int
    like: torch.Tensor
    plan: NamedTuple


def forward(Q, K, V, plan):
    """O, not yet of the dtype of Q, M and Z (..., n_q, 1), and the unit of M in nats. All asked for is possible."""
    *lead, n_q, _ = plan.shape
    if 0 in plan.shape:
        O, M = (torch.zeros((*lead, n_q, width), dtype=torch.float32, device=Q.device) for width in (V.shape[-1], 1))
        return O, M, torch.full_like(M, torch.inf), 1.0
    call = prepare(Q, K, V, plan)
    dtype = torch.float32 if plan.columns else call.like.dtype  # to be rounded after what these do to it
    O = torch.empty((*lead, n_q, V.shape[-1]), dtype=dtype, device=Q.device)
    M, Z = (torch.empty((*lead, n_q, 1), dtype=torch.float32, device=Q.device) for _ in "MZ")
    size = plan.tiles.forward
    start(forward_kernel, heads(call) * triton.cdiv(n_q, size.rows), size, call,
          call.Q, call.K, call.V, rows(O, call.lead), M, Z, call.table)  # fmt: skip
    return O, M, Z, call.table.unit * LN2


def vjp(dO, dL, res):
    """dQ, dK, dV, not yet summed over the axes that were broadcast, and dbias, if it is asked for."""
    bias = next((op.parameter for _, op in res.plan.scores if op.parameter is not None), None)
    if 0 in res.plan.shape:
        return *map(torch.zeros_like, (res.Q, res.K, res.V)), None if bias is None else torch.zeros_like(bias)
    call = prepare(res.Q, res.K, res.V, res.plan)
    table, lead = call.table, call.lead
    h, n_q, n_k, d_v = table.h, table.n_q, table.n_k, res.V.shape[-1]
    wide = {"dtype": torch.float32, "device": dO.device}
    dO, O = (rows(T.to(call.like.dtype), lead) for T in (dO, res.O))

    M, Z = res.M.contiguous(), res.Z.contiguous()
    D, G = (torch.empty((*lead, n_q), **wide) for _ in "DG")
    size = Blocks(64, 0, 4, 1)
    shape = {"D_V": d_v, "WIDE_V": call.widths["WIDE_V"], "ROWS": size.rows}
    in_one = call.like.dtype != torch.float32 and not res.plan.kernel.biased  # as ``exponent`` has it
    unit = table.unit if in_one else None
    run(kernels.row_sums, heads(call) * triton.cdiv(n_q, size.rows), size, dO, O, M, Z, D, G, h, n_q, unit, **shape)
    if dL is not None:
        D = less_dL(D[..., None], dL, Z)[..., 0]
    of_rows = None if in_one else M, G, D

    # Query heads that share a head of K and V add up in the kernel, if they share both; else, and over a batch, here.
    group = call.K.group if call.K.group == call.V.group else 1
    of_keys = (*lead[:-1], h // group) if lead else ()
    dK = empty((*of_keys, n_k, res.K.shape[-1]), res.K, call)
    dV = empty((*of_keys, n_k, d_v), res.V, call)
    size = res.plan.tiles.keys
    start(kernels.backward_keys, heads(call) // group * triton.cdiv(n_k, size.cols), size, call,
          call.Q, call.K, call.V, dO, rows(dK, of_keys), rows(dV, of_keys), *of_rows, table, call.scale,
          group)  # fmt: skip

    dQ = empty((*lead, n_q, res.Q.shape[-1]), res.Q, call)
    size = res.plan.tiles.queries
    start(kernels.backward_queries, heads(call) * triton.cdiv(n_q, size.rows), size, call,
          call.Q, call.K, call.V, dO, rows(dQ, lead), *of_rows, table, call.scale * call.sign)  # fmt: skip

    return dQ, dK, dV, None if bias is None else bias_vjp(dO, of_rows, call).reshape(bias.shape)


def bias_vjp(dO, of_rows, call):
    """``dbias``, of the shape and dtype of the bias; or that of slopes, which are a bias of no axis of the table.

    A bias with both axes of the table is added up in the kernel over the heads that share it, and no larger array is
    made. One with a single axis, or none, is added up there over the other axis, and over the heads here.
    """
    p, table, lead = call.plan.kernel, call.table, call.lead
    bias = p.bias if p.slopes is None else p.slopes
    wide = {"dtype": torch.float32, "device": bias.device}
    own = (*(1,) * (len(lead) + 2 - bias.ndim), *bias.shape)
    by_col = own[-1] == table.n_k
    by_row = own[-2] == table.n_q or not by_col
    of_bias, batches, of_heads = lead, 1, 1  # what dB is made for, and how many heads an entry of it adds up
    if lead and by_row and by_col:
        if math.prod(own[:-3]) == 1:
            of_bias, batches = (*own[:-3], lead[-1]), math.prod(lead[:-1])
        if own[-3] == 1:
            of_bias, of_heads = (*of_bias[:-1], 1), table.h
    dB = torch.empty((*of_bias, table.n_q if by_row else 1, table.n_k if by_col else 1), **wide)
    size = call.plan.tiles.bias
    tiles = triton.cdiv(dB.shape[-2], size.rows) * triton.cdiv(dB.shape[-1], size.cols)
    start(kernels.backward_bias, math.prod(of_bias) * tiles, size, call,
          call.Q, call.K, call.V, dO, dB, *of_rows, table, batches, of_heads, p.shift,
          BY_ROW=by_row, BY_COL=by_col)  # fmt: skip
    return dB.sum_to_size(own).to(bias.dtype)


# --- from tensors to what the kernels take ------------------------------------------------------------------------


def prepare(Q, K, V, plan):
    """The call, with a scale that is positive: its sign goes into Q."""
    (*lead, n_q, n_k), p = plan.shape, plan.kernel
    # The interpreter multiplies bfloat16 as if they were whole numbers.
    like = Q.float() if INTERPRETED and Q.dtype == torch.bfloat16 else Q
    sign = (plan.scale > 0) - (plan.scale < 0)
    q = like if sign == 1 else like * sign
    scale = abs(plan.scale) or 1.0
    h = lead[-1] if lead else 1
    factor = scale if p.cap is None else p.cap
    table = Table(
        h=h, n_q=n_q, n_k=n_k, low=p.low, high=p.high,
        inner=None if p.cap is None else scale / p.cap,
        factor=factor, unit=LOG2E * (1.0 if p.biased else factor),
        bias=pairs(p.bias, lead, n_q, n_k) if p.slopes is None else distances(p, lead, n_q, n_k),
        mask=pairs(p.mask, lead, n_q, n_k),
        has_bias=1 if p.biased else None, has_mask=None if p.mask is None else 1,
    )  # fmt: skip
    d_k, d_v = Q.shape[-1], V.shape[-1]
    wide_k, wide_v = (max(16, triton.next_power_of_2(width)) for width in (d_k, d_v))
    widths = {"D_K": d_k, "D_V": d_v, "WIDE_K": wide_k, "WIDE_V": wide_v}
    q, k, v = (rows(T.to(like.dtype), lead) for T in (q, K, V))
    return Call(q, k, v, table, tuple(lead), widths, scale, sign, like, plan)


def rows(T, lead):
    """T (..., n, width) for the kernels: no copy, unless its rows or its leading axes lie in no even steps."""
    if (T.shape[-1] > 1 and T.stride(-1) != 1) or T.stride(-2) >= FAR:
        T = T.contiguous()
    data, (batch, head) = folded(T, lead)
    own = data.shape[1]
    return Rows(data, batch, head, data.stride(2), (lead[-1] if lead else 1) // max(own, 1))


def pairs(T, lead, n_q, n_k):
    """A mask or a bias for the kernels: an axis along which it is broadcast has a step of 0, and is not copied."""
    if T is None:
        return None
    T = T.view(torch.uint8) if T.dtype == torch.bool else T
    T = T[(*(None,) * (2 - T.ndim), ...)]
    T = T.contiguous() if max(T.stride()[-2:]) >= FAR else T
    data, (batch, head) = folded(T, lead)
    head, row, col = (0 if n == 1 else step for n, step in zip(data.shape[1:], (head, *data.stride()[2:]), strict=True))
    return Pairs(data, batch, head, row, col)


def distances(p, lead, n_q, n_k):
    """−slope · distance for the kernels: one number a diagonal, and each row begins one before the row above it."""
    far = torch.arange(1 - n_q, n_k, device=p.slopes.device).sub(p.shift).abs()
    data, (batch, head) = folded(-p.slopes.float() * far, lead)
    return Pairs(data[..., n_q - 1 :], batch, 0 if data.shape[1] == 1 else head, -1, 1)


def folded(T, lead):
    """T with all leading axes but the heads folded into one, (B, heads, ., .), and the steps of these two."""
    own = (*(1,) * (len(lead) - T.ndim + 2), *T.shape[:-2])
    last = T.shape[-2:]
    T = T.reshape(*own, *last) if len(own) != T.ndim - 2 else T
    batch, heads = (own[:-1], own[-1]) if own else ((), 1)
    B = math.prod(lead[:-1])
    if math.prod(batch) == 1:
        T = T.reshape(1, heads, *last)
        return T, (0, T.stride(1))
    T = T.expand(*lead[:-1], heads, *last).reshape(B, heads, *last)
    return T, (T.stride(0), T.stride(1))


def heads(call):
    return math.prod(call.lead)


def empty(shape, T, call):
    """Room for the gradient of T: wide, if it is still to be summed or rounded."""
    dtype = call.like.dtype if shape == tuple(T.shape) else torch.float32
    return torch.empty(shape, dtype=dtype, device=T.device)


def start(kernel, programs, size, call, *args, **constants):
    """Run a kernel that visits tiles."""
    float32 = call.like.dtype == torch.float32
    run(kernel, programs, size, *args, **call.widths, **constants, ROWS=size.rows, COLS=size.cols, EXACT=float32,
        PRODUCTS="tf32" if float32 and tf32_is_allowed() else "ieee")  # fmt: skip


def run(kernel, programs, size, *args, **constants):
    """Run that many programs on the device of the results."""
    tensor = next(T for T in args if isinstance(T, torch.Tensor))
    with torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext():
        kernel[(programs,)](*args, **constants, num_warps=size.warps, num_stages=size.stages, enable_fp_fusion=True)
