"""JAX's arrays, with ``jax.vjp``. Chapter: :doc:`/chapters/in_the_wild`.

Double precision is allowed while a function runs in it, in the thread that runs it, and nowhere else.
"""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np

from attnbook.diagnose.learn.adapters.numpy import WithAutograd

QUICKLY = {"xla_backend_optimization_level": 0}
"""For the compiler: what runs once need not run fast."""


class Arrays(WithAutograd):
    """Arrays of JAX; ``autograd`` is ``jax.vjp``."""

    name = "jax"
    memory = ()

    def __init__(self):
        self.type = jax.Array

    def context(self, dtype):
        """Double precision, for float64."""
        if dtype != "float64":
            return nullcontext()
        if hasattr(jax, "enable_x64"):
            return jax.enable_x64(True)
        from jax.experimental import enable_x64

        return enable_x64()

    def make(self, T, dtype, memory="", device=""):
        """T as an array of JAX, which lies in memory as its compiler likes."""
        if memory:
            raise NotImplementedError("arrays of JAX have no strides")
        return jnp.asarray(np.asarray(T), dtype=dtype)

    def wide(self, T):
        """T in float64 NumPy, a copy; None where it does not hold real floating numbers."""
        return np.asarray(T).astype(np.float64) if jnp.issubdtype(T.dtype, jnp.floating) else None

    def beside(self, T, column):
        """T with one more column."""
        return jnp.concatenate([T, column[..., None].astype(T.dtype)], axis=-1)

    def autograd(self, call, inputs, leaves, dO):
        """(O, a gradient for each of inputs and leaves); ``call(inputs, leaves)`` gives O."""
        cut = len(inputs)

        def both(*Ts):
            O, back = jax.vjp(lambda *Ts: call(list(Ts[:cut]), list(Ts[cut:])), *Ts)
            return O, list(back(dO(O).astype(O.dtype)))

        return self.as_one(both, *inputs, *leaves)

    def as_one(self, f, *Ts):
        """f(*Ts), compiled as one, where Python does not look at values: operation by operation that takes minutes."""
        try:
            return jax.jit(f, compiler_options=QUICKLY)(*Ts)
        except (TypeError, IndexError):  # as all errors of tracing are, and some of the function's own
            return f(*Ts)
