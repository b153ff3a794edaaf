"""MLX's arrays, with ``mx.vjp``. Chapter: :doc:`/chapters/in_the_wild`.

MLX has double precision on its CPU only; where it is refused, a function is asked in less.
"""

from contextlib import nullcontext

import mlx.core as mx
import numpy as np

from attnbook.diagnose.learn.adapters.numpy import WithAutograd, equal_axes

DTYPES = {
    "float64": mx.float64,
    "float32": mx.float32,
    "float16": mx.float16,
    "bfloat16": mx.bfloat16,
    "bool": mx.bool_,
}


class Arrays(WithAutograd):
    """Arrays of MLX; ``autograd`` is ``mx.vjp``."""

    name = "mlx"
    memory = ("transposed", "heads last", "expanded", "sliced")

    def __init__(self):
        self.type = mx.array

    def context(self, dtype):
        """The CPU's stream, for float64."""
        return mx.stream(mx.cpu) if dtype == "float64" else nullcontext()

    def make(self, T, dtype, memory="", device=""):
        """T as an array of MLX, lying in ``memory`` as asked."""
        if memory == "reversed":
            raise NotImplementedError("MLX keeps no negative strides")
        T = np.asarray(T)
        index = equal_axes(T) if memory == "expanded" else ()
        made = mx.array(T[index], dtype=DTYPES[dtype])
        if memory == "expanded":
            return mx.broadcast_to(made, T.shape)
        if memory in ("transposed", "heads last"):
            if T.ndim < 3 and memory == "heads last":
                raise NotImplementedError("there is no axis of heads")
            axes = (-1, -2) if memory == "transposed" else (-2, -3)
            return mx.swapaxes(mx.contiguous(mx.swapaxes(made, *axes)), *axes)
        if memory == "sliced":
            larger = mx.repeat(made, 2, axis=-1)
            mx.eval(larger)
            return larger[..., ::2]
        return made

    def dtype_name(self, T):
        """The name of T's dtype."""
        return str(T.dtype).removeprefix("mlx.core.")

    def wide(self, T):
        """T in float64 NumPy, a copy; None where it does not hold real floating numbers."""
        if not mx.issubdtype(T.dtype, mx.floating):
            return None
        with mx.stream(mx.cpu):
            return np.array(T.astype(mx.float64)).astype(np.float64)

    def autograd(self, call, inputs, leaves, dO):
        """(O, a gradient for each of inputs and leaves); ``call(inputs, leaves)`` gives O."""
        cut = len(inputs)
        start = dO(call(list(inputs), list(leaves)))

        def forward(*Ts):
            O = call(list(Ts[:cut]), list(Ts[cut:]))
            return [O]

        (O,), grads = mx.vjp(forward, [*inputs, *leaves], [start.astype(DTYPES[self.dtype_name(start)])])
        mx.eval(O, *grads)
        return O, list(grads)
