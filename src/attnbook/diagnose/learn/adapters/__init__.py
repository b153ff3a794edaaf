"""Arrays of each library for ``diagnose``: made from NumPy's, and read back. Chapter: :doc:`/chapters/in_the_wild`.

A file each. None imports its library before it is asked for.
"""

from importlib import import_module

LIBRARIES = ("numpy", "torch", "cupy", "jax", "mlx", "tensorflow", "onnx")
"""Whose arrays a function can be given."""


def adapter(library):
    """The arrays of a library. ImportError where it is not installed."""
    return import_module(f"{__name__}.{library}").Arrays()
