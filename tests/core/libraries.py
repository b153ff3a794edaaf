"""The array libraries that the tests run on: each makes arrays from NumPy's, and brings them back."""

import importlib.util

import numpy as np
from array_api_compat import array_namespace, device


class NumPy:
    name, module, dtypes = "NumPy", "numpy", ("float16", "float32", "float64")

    def __init__(self):
        self.namespace = importlib.import_module(self.module)

    @classmethod
    def missing(cls):
        """Why this library cannot run here, if it cannot."""

    def asarray(self, T):
        return np.array(T)

    def numpy(self, T):
        return np.asarray(T)

    def dtype(self, name):
        return getattr(self.namespace, name)

    def cast(self, T, dtype):
        """T, an array of this library, in the floating dtype of that name."""
        return self.asarray(self.numpy(T).astype(dtype))

    def owns(self, T):
        """Whether T is of this library and on this device."""
        like = self.asarray(np.zeros(1))
        return array_namespace(T) is array_namespace(like) and device(T) == device(like)


class ReadOnlyNumPy(NumPy):
    """Whoever writes into an argument raises."""

    name = "read-only NumPy"

    def asarray(self, T):
        T = np.array(T)
        T.flags.writeable = False
        return T


class Strict(NumPy):
    """Has nothing but the array API standard, and here lives on a second device, which no array reaches by default."""

    name, module, dtypes = "array-api-strict", "array_api_strict", ("float32", "float64")

    def asarray(self, T):
        return self.namespace.asarray(np.array(T), device=self.namespace.Device("device1"))

    def numpy(self, T):
        return np.asarray(T.to_device(self.namespace.Device("CPU_DEVICE")))


class Torch(NumPy):
    name, module, dtypes = "torch", "torch", ("float16", "bfloat16", "float32", "float64")
    on = "cpu"

    def __init__(self):
        super().__init__()
        self.namespace.set_num_threads(1)

    @classmethod
    def missing(cls):
        return None if importlib.util.find_spec("torch") else "torch is not installed: what needs it is skipped"

    def asarray(self, T):
        return self.namespace.tensor(T, device=self.on)

    def numpy(self, T):
        return (T.float() if T.dtype == self.namespace.bfloat16 else T).cpu().numpy()

    def cast(self, T, dtype):
        return T.to(self.dtype(dtype))


class TorchCUDA(Torch):
    name, on = "torch CUDA", "cuda"

    @classmethod
    def missing(cls):
        here = super().missing() is None and importlib.import_module("torch").cuda.is_available()
        return None if here else "torch CUDA: no GPU here"


class CuPy(NumPy):
    name, module = "CuPy", "cupy"

    @classmethod
    def missing(cls):
        try:
            importlib.import_module("cupy").cuda.runtime.getDevice()
        except Exception:  # not installed, or no driver, for which CuPy has errors of its own
            return "CuPy: no GPU here"

    def asarray(self, T):
        return self.namespace.asarray(T)

    def numpy(self, T):
        return self.namespace.asnumpy(T)


LIBRARIES = (NumPy, ReadOnlyNumPy, Strict, Torch, CuPy, TorchCUDA)
