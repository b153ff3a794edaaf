"""NumPy's arrays, and what every adapter has. Chapter: :doc:`/chapters/in_the_wild`."""

from contextlib import nullcontext

import numpy as np

from attnbook.diagnose.case import MEMORY


class Arrays:
    """Arrays of one library, made from NumPy's and read back; ``xp`` has its functions by NumPy's names."""

    name = "numpy"
    dtypes = ("float64", "float32", "float16")
    devices = ("",)
    memory = MEMORY
    takes_back = ("vjp", "pair")

    def __init__(self):
        self.xp, self.type = np, np.ndarray | np.generic

    def context(self, dtype):
        """What must hold while arrays of this dtype are made and used."""
        return nullcontext()

    def owns(self, T):
        """Whether T is an array of this library."""
        return isinstance(T, self.type)

    def make(self, T, dtype, memory="", device=""):
        """T in ``dtype``, lying in ``memory`` as asked. NotImplementedError where the library cannot."""
        return laid_out(self.xp, self.xp.asarray(np.asarray(T).astype(dtype, order="C")), memory)

    def dtype_name(self, T):
        """The name of T's dtype."""
        return str(T.dtype)

    def wide(self, T):
        """T in float64 NumPy, a copy; None where it does not hold real floating numbers."""
        return np.array(T, dtype=np.float64) if np.dtype(T.dtype).kind == "f" else None


class WithAutograd(Arrays):
    """Those of a library that differentiates, by ``autograd``."""

    dtypes = (*Arrays.dtypes, "bfloat16")
    takes_back = (*Arrays.takes_back, "autograd")


def laid_out(xp, T, memory):
    """The same values in other memory, for libraries whose arrays have strides. ValueError where it cannot be."""
    if not memory:
        return T
    if memory == "transposed":
        return xp.swapaxes(xp.ascontiguousarray(xp.swapaxes(T, -1, -2)), -1, -2)
    if memory == "heads last":
        if T.ndim < 3:
            raise NotImplementedError("there is no axis of heads")
        return xp.swapaxes(xp.ascontiguousarray(xp.swapaxes(T, -2, -3)), -2, -3)
    if memory == "sliced":
        larger = xp.full((*T.shape[:-1], 2 * T.shape[-1]), xp.nan, dtype=T.dtype)
        larger[..., ::2] = T
        return larger[..., ::2]
    if memory == "reversed":
        return xp.ascontiguousarray(T[..., ::-1, :])[..., ::-1, :]
    if memory == "expanded":
        one = T[equal_axes(T)]
        return xp.broadcast_to(one, T.shape)
    raise ValueError(f"memory: expected one of {', '.join(MEMORY)}, got {memory!r}")


def equal_axes(T):
    """The index that keeps one entry of every axis along which all are equal. NotImplementedError where none is."""
    T = np.asarray(T)
    equal = [T.shape[axis] > 1 and bool((T.take([0], axis) == T).all()) for axis in range(T.ndim)]
    if not any(equal):
        raise NotImplementedError("its entries are equal along no axis")
    return tuple(slice(1) if same else slice(None) for same in equal)
