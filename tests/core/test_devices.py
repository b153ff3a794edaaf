"""No array leaves its device: shown on a stand-in for a GPU, which every machine has.

Torch's "meta" tensors have a device and no numbers, so whoever looks at one raises. What only a GPU can tell stands in
test_gpu; and libraries runs all of array-api-strict on a second device, which no other array may meet.
"""

import contextlib
from types import SimpleNamespace

import array_api_compat.torch
import array_api_strict
import numpy as np
import pytest
import torch
from planting import by_turns
from public_calls import CALLS, PASSES, READ, flat
from routes import taking
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import attnbook as ab
from attnbook import arrays

FROM_HOST = ("asarray", "as_tensor", "from_numpy", "tensor")  # they copy numbers that Python has to the device
SPINES = ("dense", "tiled")
OF_CALLS = [pytest.param("dense", call, id=f"dense-{call}") for call in CALLS]
NOT_HERE = 4 * (None,)  # two of three cases are left to `make thorough`: meta tensors cost much
OF_PASSES = [p for p in by_turns((*NOT_HERE, *SPINES), PASSES) if p.values[0]]


def test_every_public_function_is_called():
    called = {call.name.partition(",")[0].partition(" of")[0] for call in CALLS}
    called |= {"attention", *(f"attention_{name}" for name in ("vjp", "jvp", "hvp"))}
    called |= {"multi_head_attention", "multi_head_attention_vjp"}
    functions = {name for name in ab.__all__ if not isinstance(getattr(ab, name), type)}
    assert called | set(READ) == functions
    assert not called & set(READ)


# --- one device -------------------------------------------------------------------------------------------------------


class OnlyOnMeta(TorchDispatchMode):
    """Refuses each of torch's operations that touches a tensor elsewhere, or another floating dtype than allowed."""

    def __init__(self, *dtypes):
        super().__init__()
        self.dtypes = dtypes

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        result = op(*args, **(kwargs or {}))
        for T in tree_leaves((args, kwargs, result)):
            if isinstance(T, torch.Tensor):
                assert T.device.type == "meta", f"{op} on {T.device}"
                counts = T.is_floating_point() and T.numel()  # array-api-compat makes an empty arange in any dtype
                assert not counts or T.dtype in self.dtypes, f"{op} in {T.dtype}"
        return result


@contextlib.contextmanager
def only_on_meta(*dtypes):
    """Nothing leaves the device, nothing comes to it, nothing is looked at, and no other floating dtype is made."""

    def refuse(*args, **kwargs):
        raise AssertionError("an array is made of Python's numbers, and copied to its device")

    with pytest.MonkeyPatch.context() as patch, OnlyOnMeta(*dtypes):
        for library in (torch, array_api_compat.torch):
            for name in FROM_HOST:
                patch.setattr(library, name, refuse)
        yield


@pytest.fixture
def default_dtype():
    """What torch makes where nobody says, which must show nowhere."""
    yield torch.set_default_dtype
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("dtype", "wide", "other"),
    [
        (torch.bfloat16, torch.float32, torch.float64),
        pytest.param(torch.float32, torch.float32, torch.float64, marks=pytest.mark.thorough),
        pytest.param(torch.float64, torch.float64, torch.float32, marks=pytest.mark.thorough),
    ],
    ids=["bfloat16", "float32", "float64"],
)
@pytest.mark.parametrize(("spine", "call"), [*OF_CALLS, *OF_PASSES])
def test_torch_stays_on_its_device_and_in_its_dtype(spine, call, dtype, wide, other, default_dtype):
    drawn = call.draw()
    with taking("dense"):
        shapes = [T.shape for T in flat(call.ready(drawn)())]
    default_dtype(other)
    run = call.ready([torch.empty(T.shape, dtype=dtype, device="meta") for T in drawn])
    with taking(spine), only_on_meta(dtype, wide, *(getattr(torch, name) for name in call.makes)):
        came = flat(run())
    assert [(T.dtype, tuple(T.shape)) for T in came] == [(dtype, shape) for shape in shapes]


# --- two devices --------------------------------------------------------------------------------------------------


def _on_two_devices(name):
    """Arrays of a library on the device that is asked for."""
    if name == "torch":
        return lambda shape, second: torch.empty(shape, device="meta" if second else "cpu")
    devices = map(array_api_strict.Device, ("CPU_DEVICE", "device1"))
    first, other = devices
    return lambda shape, second: array_api_strict.ones(shape, device=other if second else first)


TWO_ARRAYS = [call for call in CALLS if len(call.shapes) > 1]
PLACED = [p for p in PASSES if p.case.name in ("plain", "bias", "cross")]


@pytest.mark.parametrize(("library", "call"), by_turns(("torch", "array-api-strict"), [*TWO_ARRAYS, *PLACED], PLACED))
def test_two_devices_are_refused(call, library):
    make = _on_two_devices(library)
    shapes = [T.shape for T in call.draw()]
    for odd in range(len(shapes)):
        with pytest.raises(ValueError, match=r"expected device .* like .*, got"):
            call.ready([make(shape, place == odd) for place, shape in enumerate(shapes)])()


def test_a_device_that_is_not_known_yet_agrees_with_all(monkeypatch):
    Q, K, mask = np.ones((3, 2), np.float32), np.ones((5, 2), np.float32), np.ones((3, 5), bool)
    monkeypatch.setattr(arrays, "device", lambda T: None if T is Q else "here")
    arrays.agree_on_place("mask", mask, "Q", Q)
    arrays.agree_on_place("Q", Q, "K", K)
    monkeypatch.setattr(arrays, "device", lambda T: "there" if T is Q else "here")
    with pytest.raises(ValueError, match="mask: expected device there like Q, got here"):
        arrays.agree_on_place("mask", mask, "Q", Q)


def test_cupy_arrays_of_another_device_than_the_current_are_refused(monkeypatch):
    """CuPy puts results on the current device, whatever the arrays' own. Shown on array-api-strict under its name. And
    nobody looks at numbers that are on a GPU, as DLPack says.
    """
    assert not arrays.on_host(SimpleNamespace(__dlpack_device__=lambda: (2, 0)))  # CUDA's
    first, second = map(array_api_strict.Device, ("CPU_DEVICE", "device1"))
    names = {name: getattr(array_api_strict, name) for name in ("isdtype", "sum", "finfo", "where", "max", "exp")}
    cupy = SimpleNamespace(
        **names, __name__="array_api_compat.cupy", cuda=SimpleNamespace(Device=lambda: SimpleNamespace())
    )
    monkeypatch.setattr(arrays, "array_namespace", lambda *_: cupy)
    T = array_api_strict.ones((3, 5), device=second)
    cupy.cuda.Device = lambda: first
    wanted = r"an array on the current device, .*CPU_DEVICE.*, where CuPy puts all results; set it by cupy.cuda.Device"
    with pytest.raises(ValueError, match=f"^T: expected {wanted}, got .*device1"):
        arrays.agree(T=T)
    cupy.cuda.Device = lambda: second
    assert arrays.agree(T=T) is cupy
