"""The seam to the array libraries: namespace, dtype rule, transposes, un-broadcasting, argument errors.

Every other file writes its mathematics once, in the Python array API standard, and asks this one for the rest.
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any

import array_api_compat
import numpy as np

_CHAR = operator.attrgetter("dtype.char")

NAMESPACES: dict[type, Any] = {np.ndarray: np}
"""Namespaces by the exact type of their arrays, where that is known: small tables feel the longer way, and torch's
compiler cannot follow it without a warning. :mod:`attnbook.torch` adds its own."""


def array_namespace(*arrays: Any) -> Any:
    """The namespace of the arrays' library, with the names of the array API standard."""
    kinds = set(map(type, arrays))
    known = NAMESPACES.get(kinds.pop()) if len(kinds) == 1 else None
    return known or array_api_compat.array_namespace(*arrays)


def is_array(T: Any) -> bool:
    """Whether T is an array of some library that has the standard's names. torch's compiler may ask it of a number."""
    if type(T) in NAMESPACES:
        return True
    return hasattr(T, "shape") and not isinstance(T, type) and array_api_compat.is_array_api_obj(T)


def device(T: Any) -> Any:
    """Where T lies."""
    return T.device if type(T) in NAMESPACES else array_api_compat.device(T)


def is_numpy(T: Any) -> bool:
    """Whether T is NumPy's own array. Not a subclass: it may have its own idea of what an operation does."""
    return type(T) is np.ndarray


def on_host(T: Any) -> bool:
    """Whether Python can look at T's numbers without waiting for a device; DLPack's devices 1 and 3 are host memory."""
    if isinstance(T, np.ndarray | np.generic):
        return True
    try:
        return T.__dlpack_device__()[0] in (1, 3)
    except (BufferError, TypeError, ValueError, RuntimeError):  # as torch's on "meta", or under vmap
        return False


quietly = np.errstate(over="ignore", under="ignore")
"""For the passes on NumPy: beside a score of ±1e308 another one may overflow to −∞, and a weight underflow to 0."""


def quietly_on_numpy(f: Callable[..., Any]) -> Callable[..., Any]:
    """As that, for what other libraries run too: torch's compiler cannot look through a decorator of NumPy's."""
    quiet = quietly(f)

    @functools.wraps(f)
    def as_the_library_needs(T: Any, *rest: Any) -> Any:
        return (f if type(T) in NAMESPACES and not is_numpy(T) else quiet)(T, *rest)

    return as_the_library_needs


def scalar(value: float, like: Any) -> Any:
    """``value`` as an array of no axis, of the dtype and on the device of ``like``: written there, not copied to it."""
    return array_namespace(like).full((), value, dtype=like.dtype, device=device(like))


def mT(T: Any) -> Any:
    """Transpose the last two axes, and only these: ``.T`` would reverse the batch axes too."""
    return array_namespace(T).matrix_transpose(T)


def swapaxes(T: Any, a: int, b: int) -> Any:
    """T with two axes exchanged; ``torch.vmap`` has no rule for ``moveaxis``."""
    axes = list(range(T.ndim))
    axes[a], axes[b] = axes[b], axes[a]
    return array_namespace(T).permute_dims(T, tuple(axes))


def cumulative_sum(T: Any, axis: int) -> Any:
    """The running sums along an axis; NumPy 2.0 lacks the standard's name for them."""
    return np.cumsum(T, axis=axis) if is_numpy(T) else array_namespace(T).cumulative_sum(T, axis=axis)


def clip(T: Any, low: float, high: float) -> Any:
    """T, kept between two numbers. The standard's name looks at CuPy's arrays on the way; their own does not."""
    return T.clip(low, high) if library(T) == "cupy" else array_namespace(T).clip(T, low, high)


def inner(A: Any, B: Any) -> float:
    """The Frobenius inner product ⟨A, B⟩ = Σ A∘B, a float (:eq:`def-frobenius`)."""
    return float(array_namespace(A, B).sum(A * B))  # def-frobenius


# --- dtype rule -------------------------------------------------------------------------------------------------


def accumulation_dtype(xp: Any, dtype: Any) -> Any:
    """The dtype in which sums and exponentials are taken: float32 for the 16-bit floats, else the dtype itself."""
    return xp.float32 if xp.finfo(dtype).bits < 32 else dtype


def widen(T: Any) -> Any:
    """T in its accumulation dtype. No copy where it already is."""
    if type(T) is np.ndarray and T.dtype.char in "fd":
        return T
    xp = array_namespace(T)
    return narrow(T, accumulation_dtype(xp, T.dtype))


def narrow(T: Any, dtype: Any) -> Any:
    """T in ``dtype``: the last step of every public function, which hands back the dtype it was given."""
    return T if T.dtype == dtype else array_namespace(T).astype(T, dtype)


# --- broadcasting -----------------------------------------------------------------------------------------------


def unbroadcast(dT: Any, shape: Sequence[int]) -> Any:
    """Sum ``dT`` back to ``shape``: the vjp of broadcasting (:eq:`eq-broadcast-vjp`).

    Broadcasting uses one number many times; its gradient is the sum over all of its uses.
    """
    if tuple(dT.shape) == tuple(shape):
        return dT
    extra = dT.ndim - len(shape)
    stretched = (extra + i for i, n in enumerate(shape) if n == 1 and dT.shape[extra + i] != 1)
    axes = (*range(extra), *stretched)
    xp = array_namespace(dT)
    return xp.reshape(xp.sum(dT, axis=axes, keepdims=True), shape)  # eq-broadcast-vjp


def broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether an array of ``shape`` stretches to ``target`` without making it larger."""
    tail = target[len(target) - len(shape) :]
    return len(shape) <= len(target) and (shape == tail or all(n in (1, m) for n, m in zip(shape, tail, strict=True)))


# --- argument errors --------------------------------------------------------------------------------------------


def expected(name: str, wanted: Any, came: Any) -> str:
    """The one form of our error messages: which argument, what was expected, what came."""
    return f"{name}: expected {wanted}, got {came}"


def whole(name: str, n: Any, least: int, wanted: str) -> int:
    """``n`` as an int, NumPy's too; an error where it is none, or less."""
    if not isinstance(n, int | np.integer) or isinstance(n, bool) or n < least:
        raise ValueError(expected(name, wanted, repr(n)))
    return int(n)


def kind(x: Any) -> str:
    """What came, in messages: its type, but a class or a function by its name, as it may be there uncalled."""
    if isinstance(x, type | FunctionType | BuiltinFunctionType):
        return f"the {'class' if isinstance(x, type) else 'function'} {x.__name__} itself"
    return type(x).__name__


def library(T: Any) -> str:
    """The name of the array library that ``T`` comes from, for messages."""
    return array_namespace(T).__name__.removeprefix("array_api_compat.")


def an_array_of(T: Any) -> str:
    """The library of T, in messages."""
    name = library(T)
    return f"a{'n' * (name[0] in 'aeiou')} {name} array"


def is_floating(T: Any) -> bool:
    """Whether T holds real floats; of a dtype that others gave to NumPy, as ml_dtypes', NumPy does not know."""
    of_others = isinstance(T, np.ndarray) and T.dtype.isbuiltin == 2
    return not of_others and array_namespace(T).isdtype(T.dtype, "real floating")


def agree_on_place(name: str, T: Any, like_name: str, like: Any) -> None:
    """An error that names T, where it is no array, of another library or on another device than ``like``."""
    if not is_array(T) or isinstance(T, np.ma.MaskedArray | np.matrix):  # whose operations are not the standard's
        raise TypeError(expected(name, "an array", kind(T)))
    if library(T) != library(like):
        raise TypeError(expected(name, f"{an_array_of(like)} like {like_name}", an_array_of(T)))
    places = device(T), device(like)  # None: JAX is tracing, and will say
    if None not in places and places[0] != places[1]:
        raise ValueError(expected(name, f"device {places[1]} like {like_name}", places[0]))


def agree(optional: dict[str, Any] | None = None, **arrays: Any) -> Any:
    """The namespace of the named arrays, which must share library, floating dtype and device.

    Those in the dict ``optional`` may be None; they are left out then.

    Raises a ``TypeError`` or ``ValueError`` that names the first argument that differs from the first one arrays.
    """
    for name, T in (optional or {}).items():
        if T is not None:
            arrays[name] = T
    if set(map(type, arrays.values())) == {np.ndarray} and set(map(_CHAR, arrays.values())) in ({"f"}, {"d"}):
        return np  # most calls, and small tables feel the longer way
    first, reference = next(iter(arrays.items()))
    for name, T in arrays.items():
        agree_on_place(name, T, first, reference)
        xp = array_namespace(T)
        if not is_floating(T):
            raise TypeError(expected(name, "a floating dtype", T.dtype))
        if T.dtype != reference.dtype:
            raise TypeError(expected(name, f"dtype {reference.dtype} like {first}", T.dtype))
    if library(reference) == "cupy" and device(reference) != (current := xp.cuda.Device()):
        wanted = f"an array on the current device, {current}, where CuPy puts all results; set it by cupy.cuda.Device"
        raise ValueError(expected(first, wanted, device(reference)))
    return xp


def axis_of(name: str, T: Any, axis: Any) -> int:
    """``axis`` as a non-negative integer, or an error where ``T`` has no such axis."""
    try:
        index = operator.index(axis)
    except TypeError:
        raise TypeError(expected("axis", "an integer", repr(axis))) from None
    if not -T.ndim <= index < T.ndim:
        raise ValueError(expected("axis", f"an axis of {name}, of shape {tuple(T.shape)}", index))
    return index % T.ndim


def rows_of(T: Any) -> Any:
    """T with all its leading axes folded into one: (…, n) → (rows, n)."""
    return array_namespace(T).reshape(T, (math.prod(T.shape[:-1]), T.shape[-1]))
