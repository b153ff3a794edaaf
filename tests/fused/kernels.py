"""The fused kernels in tests: on the GPU where there is one, else by Triton's interpreter, on the CPU.

The interpreter has to be asked for before anybody imports Triton, so conftest imports this file first.
"""

import contextlib
import functools
import importlib.util
import inspect
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
NO_TRITON = "Triton is not installed here"


def triton_or_skip():
    """Skip the file that calls this, in one line, where there is no Triton; but not where everything must run."""
    if importlib.util.find_spec("triton") is None:
        if os.environ.get("CI"):
            raise ModuleNotFoundError(NO_TRITON)
        pytest.skip(NO_TRITON, allow_module_level=True)
    if DEVICE == "cpu":
        look_up_builtins_once()


@functools.cache
def look_up_builtins_once():
    """At each call of a function, the interpreter looks through all of Triton's language for the builtins that it must
    replace, and takes a quarter of its time for that. Their names stay the same, so here it is told them.
    """
    from triton import language as tl
    from triton.runtime import interpreter

    @functools.cache
    def names(place):
        return [name for name, member in inspect.getmembers(place) if tl.core.is_builtin(member)]

    for place in (tl, tl.core, tl.math, tl.tensor, tl.core.tensor_descriptor_base):
        assert names(place)  # now, while none of them is replaced

    def members(place):
        return [(name, getattr(place, name)) for name in names(place)]

    interpreter.inspect = SimpleNamespace(**{**vars(inspect), "getmembers": members})


@contextlib.contextmanager
def small_tiles():
    """Tiles so small that small tables have several, of unequal sides, in memory that is full of NaN.

    All but those of "bias" are alike: for other shapes, the interpreter's products sum in other orders.
    """
    from attnbook.spines import WAYS, Way
    from attnbook.spines.fused.sizes import Blocks, Tiles

    empty = torch.empty
    most = Blocks(16, 32, 4, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(WAYS, "fused", Way("fused", Tiles(most, most, most, bias=Blocks(32, 16, 4, 1))))
        patch.setattr(torch, "empty", lambda *args, **options: empty(*args, **options).fill_(torch.nan))
        yield


@contextlib.contextmanager
def upright_and_lying_products_differ():
    """The interpreter's products, with sums in the other order where a tile is higher than wide. NumPy's BLAS rounds a
    product and its transpose otherwise on some processors, and on others not.
    """
    from triton.runtime import interpreter

    def dot(_, a, b, d, *__):
        terms = (a.data[:, :, None] * b.data[None]).astype(d.data.dtype)
        high = terms.shape[0] > terms.shape[2]
        total = np.add.accumulate(terms[:, ::-1] if high else terms, axis=1)[:, -1]
        return interpreter.TensorHandle(total + d.data, d.dtype.scalar)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)
        yield


@contextlib.contextmanager
def wired(calls):
    """``attnbook.torch`` takes the kernels where it can, for all dtypes; ``calls`` gets the name of each pass."""
    from attnbook.spines.fused import launch
    from attnbook.torch import _passes as passes

    with pytest.MonkeyPatch.context() as patch:
        for run in (launch.forward, launch.vjp):
            name = run.__name__
            patch.setattr(launch, name, lambda *args, run=run, name=name: (calls.append(name), run(*args))[1])
        homes = {"auto": ("kernels", "torch"), "fused": ("kernels",)}
        patch.setattr(passes, "homes", lambda Q, method: homes.get(method, ("torch",)))
        yield
