"""Right attentions that take little, as the libraries' kernels do: ``diagnose`` must ask them in what they take.

Each refuses as its model does. What is wrong is made from them by :func:`never_causal_back`.
"""

from functools import cache

import numpy as np
import torch

from attentions.right import by_steps
from attnbook.diagnose.steps import Steps


def demand(holds, words, error=RuntimeError):
    if not holds:
        raise error(words)


def forward_of(q, k, v, options):
    """O, computed in double precision."""
    return torch.tensor(Steps(*(T.double().numpy() for T in (q, k, v)), np.zeros(1), **options).O, dtype=q.dtype)


class _Flash(torch.autograd.Function):
    """(b, h, n, d), computed in double precision inside, with a backward of its own that can be wrong."""

    @staticmethod
    def forward(ctx, q, k, v, bias, options, backward):
        ctx.save_for_backward(q, k, v, bias)
        ctx.options, ctx.back = options | ({} if bias is None else {"bias": bias.double().numpy()}), backward
        return forward_of(q, k, v, ctx.options)

    @staticmethod
    def backward(ctx, dO):
        *Ts, bias = ctx.saved_tensors
        Ts = [T.double().numpy() for T in (*Ts, dO)]
        grads = [torch.tensor(g, dtype=dO.dtype) for g in ctx.back(*Ts, **ctx.options)[1:]]
        dbias = None if bias is None else torch.tensor(Steps(*Ts, **ctx.options).dbias, dtype=dO.dtype)
        return *grads, dbias, None, None


def never_causal_back(Q, K, V, dO, causal=False, **options):
    """The backward forgets that the forward was causal."""
    O = by_steps(Q, K, V, dO, causal=causal, **options)[0]
    return O, *by_steps(Q, K, V, dO, **options)[1:]


@cache
def flash_attn(backward=by_steps):
    """flash_attn_func: 16 bits, (b, n, h, d), widths equal and a multiple of 8, causal at the bottom right."""

    def flash_attn_func(
        q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
        deterministic=False,
    ):  # fmt: skip
        if q.dtype not in (torch.float16, torch.bfloat16):
            raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
        demand(q.ndim == 4, "q must have shape (batch_size, seqlen_q, num_heads, head_size)")
        demand(q.shape[-1] % 8 == 0 and q.shape[-1] <= 256, "head_size should be a multiple of 8, and at most 256")
        same = k.shape == v.shape and (q.shape[0], q.shape[-1]) == (k.shape[0], k.shape[-1])
        demand(same, "k and v must have shape (batch_size, seqlen_k, num_heads_k, head_size)")
        demand(q.shape[2] % k.shape[2] == 0, "Number of heads in key/value must divide number of heads in query")
        demand(not dropout_p, "this build has no dropout")
        options = {"causal": "bottom-right" if causal else False, "scale": softmax_scale}
        if tuple(window_size) != (-1, -1):
            options["window"] = tuple(10**6 if bound < 0 else bound for bound in window_size)
        if softcap:
            options["softcap"] = softcap
        if alibi_slopes is not None:
            demand(alibi_slopes.dtype == torch.float32, "ALiBi slopes must have dtype fp32")
            options["slopes"] = alibi_slopes.double().numpy()
        O = _Flash.apply(*(T.transpose(1, 2) for T in (q, k, v)), None, options, backward)
        return O.transpose(1, 2)

    return flash_attn_func


def flash_attn_varlen(backward=by_steps):
    """flash_attn_varlen_func: sequences one after another, (n, h, d), and where each begins."""
    one = flash_attn(backward)

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
        causal=False, window_size=(-1, -1),
    ):  # fmt: skip
        if q.ndim != 3 or cu_seqlens_q.dtype != torch.int32 or cu_seqlens_q[-1] != len(q) or cu_seqlens_k[-1] != len(k):
            raise RuntimeError("q must have shape (total_q, num_heads, head_size)")
        options = {"dropout_p": dropout_p, "softmax_scale": softmax_scale, "causal": causal, "window_size": window_size}
        starts = [list(map(int, cu)) for cu in (cu_seqlens_q, cu_seqlens_k)]
        longest = [max(np.diff(each)) for each in starts]
        demand(longest[0] <= max_seqlen_q and longest[1] <= max_seqlen_k, "a sequence is longer than max_seqlen")
        parts = []
        for a, b, c, d in zip(starts[0], starts[0][1:], starts[1], starts[1][1:], strict=False):
            parts.append(one(q[None, a:b], k[None, c:d], v[None, c:d], **options)[0])
        return torch.cat(parts)

    return flash_attn_varlen_func


def xformers(backward=by_steps):
    """memory_efficient_attention: (b, n, h, d), a bias of all axes that is added, float64 refused."""

    def memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None):
        if query.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise NotImplementedError("No operator found: dtype=torch.float64 (supported: bf16, f16, f32)")
        fits = query.ndim == 4 and query.shape[2] == key.shape[2] and query.shape[-1] % 4 == 0
        demand(fits, "Invalid shape for query", ValueError)
        demand(not p, "dropout", NotImplementedError)
        Q, K, V = (T.transpose(1, 2) for T in (query, key, value))
        scores = (*Q.shape[:-1], K.shape[-2])
        demand(attn_bias is None or attn_bias.shape == scores, "Invalid shape for attention bias", ValueError)
        return _Flash.apply(Q, K, V, attn_bias, {"scale": scale}, backward).transpose(1, 2)

    return memory_efficient_attention


def triton_tutorial(backward=by_steps):
    """``attention(q, k, v, causal, sm_scale)``, which is the ``apply`` of an autograd function."""

    class Attention(_Flash):
        @staticmethod
        def forward(ctx, q, k, v, causal, sm_scale):
            assert q.dtype == torch.float16
            assert q.shape == k.shape == v.shape
            assert q.ndim == 4
            assert q.shape[-1] in {16, 32, 64, 128, 256}
            assert q.shape[2] % 128 == 0
            return _Flash.forward(ctx, q, k, v, None, {"causal": causal, "scale": sm_scale}, backward)

        @staticmethod
        def backward(ctx, dO):
            return *_Flash.backward(ctx, dO)[:3], None, None

    return Attention.apply


def limited(backward=by_steps, *, dtypes=("float16",), axes=(4,), width_of=1, length_of=1, equal=(), widths=None):
    """In NumPy, ``fn(Q, K, V, dO, ...)``, with limits that are checked."""

    def fn(Q, K, V, dO, *, causal=False, scale=None):
        demand(Q.dtype.name in dtypes, f"{Q.dtype} is not supported", TypeError)
        demand(Q.ndim in axes, f"{Q.ndim} axes", ValueError)
        fits = not any(T.shape[-1] % width_of or (widths and T.shape[-1] not in widths) for T in (Q, V))
        demand(fits, "head dimension is not supported", ValueError)
        demand(not any(T.shape[-2] % length_of for T in (Q, K)), "sequence length is not supported", ValueError)
        alike = {"widths": Q.shape[-1] == V.shape[-1], "lengths": Q.shape[-2] == K.shape[-2]}
        demand(all(alike[name] for name in equal), "sizes differ", ValueError)
        wide = (T.astype(np.float64) for T in (Q, K, V, dO))
        return tuple(T.astype(Q.dtype) for T in backward(*wide, causal=causal, scale=scale))

    return fn
