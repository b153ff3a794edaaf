"""What the kernels can do, and which error says what they cannot. Asked before any work, and by who has another way."""

import importlib.util
import math
from functools import cache
from typing import NamedTuple

from attnbook.arguments import check_fits_scores, scores_shape
from attnbook.arrays import expected, is_array, library
from attnbook.ops import Bias, Causal, Mask, Scale, Softcap, Window

WIDEST = 256
DTYPES = ("float32", "bfloat16", "float16")
OLDEST = (8, 0)
"""The compute capability of Ampere, the first with bfloat16 in its products."""

LONGEST = 2**30
"""Tokens, and blocks of tokens of all heads. Places in memory are counted in 64 bits, tokens in 32."""

FACTORS = 1e-30, 1e30
"""The sizes of a scale or a cap with which float32 neither overflows nor underflows."""


class Plan(NamedTuple):
    """The steps of the scores as the kernels do them: scale, cap, bias, and what is forbidden, each None for none.

    ``low`` and ``high`` are the limits of the band, low ≤ j − i ≤ high; ``bias_at`` is the place of the bias's step.
    """

    factor: float
    cap: float | None
    bias: object
    bias_at: int | None
    mask: object
    low: int | None
    high: int | None


def plan(steps, n_q, n_k):
    """The steps in this form, or None where they are not a scale, then a cap, then a bias and masks."""
    scale, *others = (step.op for step in steps)
    if type(scale) is not Scale:
        return None
    cap = bias = bias_at = mask = None
    low, high = -math.inf, math.inf
    for place, op in enumerate(others, start=1):
        if type(op) is Softcap and place == 1:
            cap = float(op.cap)
        elif isinstance(op, Bias) and type(op).forward is Bias.forward and bias is None:
            bias, bias_at = op.B, place if op.parameter is not None else None
        elif type(op) is Mask and mask is None:
            mask = op.M
        elif type(op) in (Window, Causal):
            shift = n_k - n_q if op.corner == "bottom-right" else 0
            if op.left is not None:
                low = max(low, shift - op.left)
            if op.right is not None:
                high = min(high, shift + op.right)
        else:
            return None
    low = None if low <= 1 - n_q else min(low, n_k)  # what limits nothing costs nothing
    high = None if high >= n_k - 1 else max(high, -n_q)
    return Plan(scale.factor, cap, bias, bias_at, mask, low, high)


def refusal(Q, K, V, steps, shape):
    """The error that tells why the kernels cannot do this; None where they can."""
    for name, T in (("Q", Q), ("K", K), ("V", V)):
        if not is_array(T) or library(T) != "torch":
            came = f"a {library(T)} array" if is_array(T) else type(T).__name__
            return TypeError(expected(name, "a torch tensor for method 'fused'", came))
    if not has_triton():
        return ModuleNotFoundError(expected("method", "Triton for 'fused' (pip install 'attnbook[gpu]')", "none"))
    p = plan(steps, *shape[-2:])
    if p is None:
        kinds = ", ".join(type(step.op).__name__ for step in steps)
        wanted = "a Softcap, then at most one bias and one mask, and Window and causal, for method 'fused'"
        return ValueError(expected("ops", wanted, kinds))
    given = [("Q", Q), ("K", K), ("V", V), ("bias", p.bias), ("mask", p.mask)]
    given = [(name, T) for name, T in given if T is not None]
    return _of_device(Q) or _of_tensors(Q, given) or _of_sizes(Q, K, V, p, shape)


@cache
def has_triton():
    return importlib.util.find_spec("triton") is not None


def _of_device(Q):
    from attnbook.spines.fused import launch

    if launch.INTERPRETED and Q.device.type in ("cpu", "cuda"):
        return None
    if Q.device.type != "cuda":
        wanted = "a tensor on a CUDA device (or TRITON_INTERPRET=1 before Triton is imported) for method 'fused'"
        return ValueError(expected("Q", wanted, f"device {Q.device}"))
    came = _capability(Q.device.index)
    if came is None or came < OLDEST:
        wanted = f"a GPU of NVIDIA's with compute capability {OLDEST[0]}.{OLDEST[1]} or more for method 'fused'"
        return ValueError(expected("Q", wanted, "another" if came is None else f"{came[0]}.{came[1]}"))
    return None


@cache
def _capability(index):
    """Of the CUDA device; None for what only looks like one to torch."""
    import torch

    return None if torch.version.hip else torch.cuda.get_device_capability(index)


def _of_tensors(Q, given):
    import torch

    dtypes = [getattr(torch, name) for name in DTYPES]
    if Q.dtype not in dtypes:
        return TypeError(expected("Q", f"{', '.join(DTYPES)} for method 'fused'", Q.dtype))
    for name, T in given:
        allowed = {"mask": [torch.bool], "bias": [Q.dtype, torch.float32]}.get(name, [Q.dtype])
        if T.dtype not in allowed:
            return TypeError(expected(name, " or ".join(map(str, allowed)), T.dtype))
        if T.device != Q.device:
            return ValueError(expected(name, f"device {Q.device} like Q", T.device))
        if T.requires_grad and torch.is_grad_enabled():
            wanted = "a tensor that needs no gradient of autograd for method 'fused' (attnbook.torch has one)"
            return ValueError(expected(name, wanted, "one with requires_grad"))
    return None


def _of_sizes(Q, K, V, p, shape):
    if (fits := scores_shape(Q, K, V)) != tuple(shape):
        return ValueError(expected("shape", fits, tuple(shape)))
    for name, T in (("bias", p.bias), ("mask", p.mask)):
        check_fits_scores(name, T, tuple(shape))
    for name, T in (("Q", Q), ("V", V)):
        if T.shape[-1] > WIDEST:
            wanted = f"a head width of at most {WIDEST} for method 'fused'"
            return ValueError(expected(name, wanted, T.shape[-1]))
    if math.prod(shape[:-2]) * max(*shape[-2:], 1) > LONGEST:
        wanted = f"at most {LONGEST} tokens, those of all heads together, for method 'fused'"
        return ValueError(expected("Q", wanted, f"scores of shape {tuple(shape)}"))
    for name, size in (("scale", abs(p.factor)), ("ops", p.cap or 1.0)):
        if size and not FACTORS[0] < size < FACTORS[1]:
            wanted = f"a scale or cap between {FACTORS[0]} and {FACTORS[1]} for method 'fused'"
            return ValueError(expected(name, wanted, size))
    return None
