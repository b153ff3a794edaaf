"""TensorFlow's tensors, with ``tf.GradientTape``. Chapter: :doc:`/chapters/in_the_wild`."""

import numpy as np
import tensorflow as tf

from attnbook.diagnose.learn.adapters.numpy import WithAutograd


class Arrays(WithAutograd):
    """Tensors of TensorFlow; ``autograd`` is a gradient tape."""

    name = "tensorflow"
    memory = ()

    def __init__(self):
        self.type = tf.Tensor

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
