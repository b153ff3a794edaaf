"""PyTorch's tensors, on the device that a function wants, with autograd. Chapter: :doc:`/chapters/in_the_wild`."""

import numpy as np
import torch

from attnbook.diagnose.case import MEMORY
from attnbook.diagnose.learn.adapters.numpy import WithAutograd, equal_axes


class Arrays(WithAutograd):
    """Tensors; ``autograd`` is their way back."""

    name = "torch"
    memory = tuple(kind for kind in MEMORY if kind != "reversed")

    def __init__(self):
        self.type = torch.Tensor
        self.devices = ("", "cuda") if torch.cuda.is_available() else ("",)

    def make(self, T, dtype, memory="", device=""):
        """T as a tensor, lying in ``memory`` as asked. NotImplementedError for strides that torch has not."""
        if memory == "reversed":
            raise NotImplementedError("torch has no negative strides")
        index = equal_axes(T) if memory == "expanded" else ()
        in_order = np.array(np.asarray(T)[index], order="C")  # in the layout of the function: torch keeps strides
        made = torch.tensor(in_order, dtype=getattr(torch, dtype), device=device or "cpu")
        if memory == "expanded":
            return made.expand(np.shape(T))
        if memory == "transposed":
            return made.transpose(-1, -2).contiguous().transpose(-1, -2)
        if memory == "heads last":
            if made.ndim < 3:
                raise NotImplementedError("there is no axis of heads")
            return made.transpose(-2, -3).contiguous().transpose(-2, -3)
        if memory == "sliced":
            larger = torch.full((*made.shape[:-1], 2 * made.shape[-1]), torch.nan, dtype=made.dtype, device=made.device)
            larger[..., ::2] = made
            return larger[..., ::2]
        return made

    def dtype_name(self, T):
        """The name of T's dtype."""
        return str(T.dtype).removeprefix("torch.")

    def wide(self, T):
        """T in float64 NumPy, a copy; None where it does not hold real floating numbers."""
        return T.detach().cpu().double().numpy().copy() if T.dtype.is_floating_point else None

    def beside(self, T, column):
        """T with one more column."""
        return torch.cat([T, column.unsqueeze(-1).to(T.dtype)], dim=-1)

    def autograd(self, call, inputs, leaves, dO):
        """(O, a gradient or None for each of inputs and leaves); ``call(inputs, leaves)`` gives O.

        ``dO(O)`` gives the gradient to start from, or raises where O is not what was expected.
        """
        inputs, leaves = ([T.detach().requires_grad_() for T in each] for each in (inputs, leaves))
        with torch.enable_grad():
            O = call(inputs, leaves)
            start = dO(O)
            wanted = [*inputs, *leaves]
            if not O.requires_grad:
                return O.detach(), [None] * len(wanted)
            grads = torch.autograd.grad(O, wanted, start.to(O.dtype), allow_unused=True)
        return O.detach(), list(grads)
