"""CuPy's arrays, on the GPU. Chapter: :doc:`/chapters/in_the_wild`."""

import cupy
import numpy as np

from attnbook.diagnose.learn.adapters import numpy as of_numpy


class Arrays(of_numpy.Arrays):
    """Arrays of CuPy."""

    name = "cupy"

    def __init__(self):
        self.xp, self.type = cupy, cupy.ndarray

    def make(self, T, dtype, memory="", device=""):
        """T on the GPU."""
        if memory == "expanded":
            one = np.asarray(T)[of_numpy.equal_axes(T)]
            return cupy.broadcast_to(cupy.asarray(one.astype(dtype)), np.shape(T))
        return super().make(T, dtype, memory)

    def wide(self, T):
        """T in float64 NumPy."""
        return super().wide(cupy.asnumpy(T))
