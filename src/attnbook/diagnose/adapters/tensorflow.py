"""TensorFlow's tensors, with ``tf.GradientTape``. Chapter: :doc:`/chapters/in_the_wild`."""

from contextlib import nullcontext

import numpy as np
import tensorflow as tf


class Arrays:
    """Tensors of TensorFlow; ``autograd`` is a gradient tape."""

    name = "tensorflow"
    dtypes = ("float64", "float32", "float16", "bfloat16")
    devices = ("",)
    memory = ()
    takes_back = ("vjp", "pair", "autograd")

    def __init__(self):
        self.type = tf.Tensor

    def context(self, dtype):
        """Nothing has to hold."""
        return nullcontext()

    def owns(self, T):
        """Whether T is a tensor of TensorFlow."""
        return isinstance(T, tf.Tensor)

    def make(self, T, dtype, memory="", device=""):
        """T as a tensor, which lies densely in memory."""
        if memory:
            raise NotImplementedError("tensors of TensorFlow have no strides")
        return tf.cast(tf.constant(np.asarray(T)), dtype)

    def dtype_name(self, T):
        """The name of T's dtype."""
        return T.dtype.name

    def wide(self, T):
        """T in float64 NumPy, a copy; None where it does not hold real floating numbers."""
        return np.array(tf.cast(T, tf.float64)) if T.dtype.is_floating else None

    def autograd(self, call, inputs, leaves, dO):
        """(O, a gradient or None for each of inputs and leaves); ``call(inputs, leaves)`` gives O."""
        with tf.GradientTape() as tape:
            wanted = [*inputs, *leaves]
            tape.watch(wanted)
            O = call(list(inputs), list(leaves))
        grads = tape.gradient(O, wanted, output_gradients=tf.cast(dO(O), O.dtype))
        return O, [g if g is None else tf.convert_to_tensor(g) for g in grads]
