"""The same derivatives from torch, which runs our forward on its own tensors and is imported when first needed."""

import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np


def has_torch() -> bool:
    """Whether torch is installed."""
    return find_spec("torch") is not None


def has_triton() -> bool:
    """Whether Triton is installed, and torch, whose tensors its kernels take."""
    return has_torch() and find_spec("triton") is not None


def has_flint() -> bool:
    """Whether python-flint is installed, whose balls are the numbers of :mod:`attnbook.checks.balls`."""
    return find_spec("flint") is not None


LEAVES = "a function that leaves its arguments as they are", "one that writes into them"


def output_of(result: Any) -> Any:
    """The output of a function that may hand back residuals beside it, as :func:`attnbook.attention` does."""
    return result[0] if isinstance(result, tuple) and result else result


def autograd_vjp(f: Callable[..., Any], at: Sequence[Any], cotangent: Any) -> list[np.ndarray[Any, Any]]:
    """The gradients of ⟨cotangent, f(at)⟩ by torch's reverse mode, as NumPy arrays.

    Raises
    ------
    ImportError
        torch is not installed.
    """
    import torch

    inputs = [torch.tensor(x, requires_grad=True) for x in at]
    output = output_of(f(*inputs))
    if not output.requires_grad:  # it hangs on no input, as where no key is allowed
        return [np.zeros_like(x) for x in at]
    grads = torch.autograd.grad(output, inputs, torch.tensor(cotangent), allow_unused=True, materialize_grads=True)
    return [grad.detach().numpy() for grad in grads]


def autograd_jvp(f: Callable[..., Any], at: Sequence[Any], tangents: Sequence[Any]) -> np.ndarray[Any, Any]:
    """The change of f(at) along ``tangents`` by torch's forward mode, as a NumPy array.

    Raises
    ------
    ImportError
        torch is not installed.
    """
    import torch

    primals, directions = (tuple(torch.tensor(x) for x in xs) for xs in (at, tangents))
    with warnings.catch_warnings():  # torch's first forward-mode call warns of its own code
        warnings.filterwarnings("ignore", ".*torch.jit.script")  # a DeprecationWarning, and from torch 2.14 on another
        _, tangent = torch.func.jvp(lambda *xs: output_of(f(*xs)), primals, directions)
    return np.asarray(tangent)
