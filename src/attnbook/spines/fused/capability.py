"""What the kernels can do, and which error says what they cannot. Asked before any work, and by who has another way."""

import importlib.util
import math
from functools import cache

from attnbook.arrays import an_array_of, expected, library
from attnbook.ops import Kernel, Tile

WIDEST = 256
DTYPES = ("float32", "bfloat16", "float16")
OLDEST = (8, 0)
"""The compute capability of Ampere, the first with bfloat16 in its products."""

LONGEST = 2**30
"""Tokens, and blocks of tokens of all heads. Places in memory are counted in 64 bits, tokens in 32."""

FACTORS = 1e-30, 1e30
"""The sizes of a scale or a cap with which float32 neither overflows nor underflows."""


def kernel_of(plan):
    """What the kernels do for these ops, as the ops say in their order; None where one of them cannot be done so."""
    n_q, n_k = plan.shape[-2:]
    kernel, table = Kernel(), Tile.whole(n_q, n_k)
    for _, op in (*plan.scores, *plan.weights):
        if kernel is not None:
            kernel = op.in_kernel(kernel, table)
    if kernel is None:
        return None
    low, high = kernel.low, kernel.high  # what limits nothing costs nothing
    low = None if low is None or low <= 1 - n_q else min(low, n_k)
    high = None if high is None or high >= n_k - 1 else max(high, -n_q)
    return kernel._replace(low=low, high=high)


def refusal(plan, given):
    """The error that tells why the kernels cannot do this; None where they can."""
    name, like = next(iter(given.items()))
    if library(like) != "torch":
        return TypeError(expected(name, "a torch tensor for method 'fused'", an_array_of(like)))
    if not has_triton():
        return ModuleNotFoundError(expected("method", "Triton for 'fused' (pip install 'attnbook[gpu]')", "none"))
    if plan.kernel is None:
        kinds = ", ".join(type(op).__name__ for op in plan.ops)
        wanted = "a Softcap, then at most one bias or ALiBi, one mask, and Window, Sink and causal"
        wanted += ", or another op that declares in_kernel, for method 'fused'"
        return ValueError(expected("ops", wanted, kinds))
    given = {**given, "bias": plan.kernel.bias, "ops, ALiBi": plan.kernel.slopes}
    given |= {f"ops, {type(op).__name__}": op.parameter for _, op in plan.columns}
    given = {name: T for name, T in given.items() if T is not None}
    return _of_device(name, like) or _of_tensors(name, like, given) or _of_sizes(name, plan)


@cache
def has_triton():
    return importlib.util.find_spec("triton") is not None


def tf32_is_allowed():
    """Whether torch has been told, in the newer way or the older, that products of float32 may be rounded."""
    from torch.backends.cuda import matmul

    return matmul.fp32_precision == "tf32" if hasattr(matmul, "fp32_precision") else matmul.allow_tf32


def _of_device(name, Q):
    from attnbook.spines.fused import tile

    if tile.INTERPRETED and Q.device.type in ("cpu", "cuda"):
        return None
    if Q.device.type != "cuda":
        wanted = "a tensor on a CUDA device (or TRITON_INTERPRET=1 before Triton is imported) for method 'fused'"
        return ValueError(expected(name, wanted, f"device {Q.device}"))
    came = _capability(Q.device.index)
    if came is None or came < OLDEST:
        wanted = f"a GPU of NVIDIA's with compute capability {OLDEST[0]}.{OLDEST[1]} or more for method 'fused'"
        return ValueError(expected(name, wanted, "another" if came is None else f"{came[0]}.{came[1]}"))
    return None


@cache
def _capability(index):
    """Of the CUDA device; None for what only looks like one to torch."""
    import torch

    return None if torch.version.hip else torch.cuda.get_device_capability(index)


def _of_tensors(like_name, Q, given):
    import torch

    dtypes = [getattr(torch, name) for name in DTYPES]
    if Q.dtype not in dtypes:
        return TypeError(expected(like_name, f"{', '.join(DTYPES)} for method 'fused'", Q.dtype))
    for name, T in given.items():
        if T.dtype not in (Q.dtype, torch.float32):
            return TypeError(expected(name, f"{Q.dtype} or {torch.float32}", T.dtype))
        if T.requires_grad and torch.is_grad_enabled():
            wanted = "a tensor that needs no gradient of autograd for method 'fused' (attnbook.torch has one)"
            return ValueError(expected(name, wanted, "one with requires_grad"))
    return None


def _of_sizes(name, plan):
    shape, kernel = plan.shape, plan.kernel
    if max(plan.widths) > WIDEST:
        wanted = f"a head width of at most {WIDEST} for method 'fused'"
        which = "Q" if plan.widths[0] > WIDEST else "V"
        return ValueError(expected(which if name == "Q" else f"W_{which}", wanted, max(plan.widths)))
    if math.prod(shape[:-2]) * max(*shape[-2:], 1) > LONGEST:
        wanted = f"at most {LONGEST} tokens, those of all heads together, for method 'fused'"
        return ValueError(expected(name, wanted, f"scores of shape {tuple(shape)}"))
    for name, size in (("scale", abs(plan.scale)), ("ops", kernel.cap or 1.0)):
        if size and not FACTORS[0] < size < FACTORS[1]:
            wanted = f"a scale or cap between {FACTORS[0]} and {FACTORS[1]} for method 'fused'"
            return ValueError(expected(name, wanted, size))
    return None
