"""The arguments of attention, checked before any work: what fits passes, what does not is named."""

import math
import operator
import reprlib
from numbers import Real
from typing import Any

import numpy as np

from attnbook.arrays import agree_on_place, array_namespace, broadcasts_to, expected, is_array, is_numpy, kind


def scores_shape(
    Q: Any, K: Any, V: Any, names: tuple[str, str, str] = ("Q", "K", "V"), sharing: bool = True
) -> tuple[int, ...]:
    """The shape of the scores, (..., n_q, n_k), or an error that names what does not fit; ``sharing``: K and V may have
    fewer heads.
    """
    of_Q, of_K, of_V = names
    q, k, v = shapes = tuple(Q.shape), tuple(K.shape), tuple(V.shape)
    for name, shape in zip(names, shapes, strict=True):
        if len(shape) < 2:
            raise ValueError(expected(name, "at least two axes (..., tokens, width)", f"shape {shape}"))
        if shape[-1] == 0:
            raise ValueError(expected(name, "a head width of at least 1", f"shape {shape}"))
    if k[-1] != q[-1]:
        raise ValueError(expected(of_K, f"the head width of {of_Q}, {q[-1]}", f"shape {k}"))
    if v[-2] != k[-2]:
        raise ValueError(expected(of_V, f"one row for each of the {k[-2]} keys", f"shape {v}"))
    lead = of_queries = q[:-2]
    for name, shape in ((of_K, k), (of_V, v)):
        axes = shape[:-2]
        if axes == lead:  # most calls
            continue
        lead = broadcast(lead, _shared(axes, of_queries) if sharing else axes)
        if lead is None:
            wanted = f"leading axes that broadcast against those of {of_Q}, {q}"
            wanted += f", or a head count that divides {of_Q}'s" if sharing else " (fewer heads need enable_gqa)"
            raise ValueError(expected(name, wanted, f"shape {shape}"))
    return (*lead, q[-2], k[-2])


def _shared(lead: tuple[int, ...], of_queries: tuple[int, ...]) -> tuple[int, ...]:
    """The leading axes of K or V once each head is repeated for the queries that share it."""
    if lead and of_queries and lead[-1] > 1 and of_queries[-1] % lead[-1] == 0:
        return (*lead[:-1], of_queries[-1])
    return lead


def broadcast(a: Any, b: Any) -> Any:
    """The shape to which ``a`` and ``b`` stretch, None where they do not fit."""
    if a == b:  # most calls, and small tables feel the longer way
        return a
    n = max(len(a), len(b))
    a, b = ((*(1,) * (n - len(x)), *x) for x in (a, b))
    fit = all(x == y or 1 in (x, y) for x, y in zip(a, b, strict=True))
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True)) if fit else None


def check_broadcasts(
    name: str, shape: tuple[int, ...], target: tuple[int, ...], of: str, came: str | None = None
) -> None:
    if not broadcasts_to(shape, target):
        raise ValueError(expected(name, f"a shape that broadcasts to {of}, {target}", came or f"shape {shape}"))


def check_mask(mask: Any, like: Any, like_name: str = "Q", name: str = "mask") -> None:
    if is_numpy(mask) and mask.dtype == bool and is_numpy(like):  # most calls
        return
    if not is_array(mask):
        raise TypeError(expected(name, "a bool array (True = may attend)", kind(mask)))
    if not array_namespace(mask).isdtype(mask.dtype, "bool"):
        wanted = "a bool array (True = may attend); to add numbers to the scores, pass them as bias"
        raise TypeError(expected(name, wanted, f"dtype {mask.dtype}"))
    agree_on_place(name, mask, like_name, like)


def check_scale(scale: Any, d_k: int) -> float:
    if scale is None:
        return 1.0 / math.sqrt(d_k)
    if not is_real(scale):
        raise TypeError(expected("scale", "a real number or None", kind(scale)))
    if not math.isfinite(factor := as_float(scale)):
        raise ValueError(expected("scale", "a finite number", factor))
    return factor


def as_float(x: Any) -> float:
    """A real number as a float; ∞ for an integer of more than 308 digits."""
    try:
        return float(x)
    except OverflowError:
        return math.inf if x > 0 else -math.inf


def is_real(x: Any) -> bool:
    """Whether x is a real number; a bool is none."""
    return isinstance(x, Real) and not isinstance(x, bool)


def check_count(name: str, n: Any) -> int:
    try:
        count = operator.index(n)
    except TypeError:
        count = None
    if count is None or isinstance(n, bool):
        raise TypeError(expected(name, "an integer", kind(n)))
    if count < 1:
        raise ValueError(expected(name, "a number of heads of at least 1", n))
    return count


def check_positive(**numbers: Any) -> None:
    for name, x in numbers.items():
        if not is_real(x) or not 0 < as_float(x) < math.inf:
            raise ValueError(expected(name, "a positive finite number", reprlib.repr(x)))


def check_eps(eps: Any) -> None:
    if not is_real(eps) or not 0 <= as_float(eps) < math.inf:
        raise ValueError(expected("eps", "a finite number of at least 0", reprlib.repr(eps)))


def check_flags(**flags: Any) -> None:
    """An error where one is no bool, NumPy's too: a number or an array there is mostly meant for another argument."""
    for name, flag in flags.items():
        if not isinstance(flag, bool | np.bool_):
            raise TypeError(expected(name, "True or False", reprlib.repr(flag)))


def choose(name: str, came: Any, choices: dict[Any, Any]) -> Any:
    if isinstance(came, np.bool_):
        came = bool(came)
    for choice, meaning in choices.items():
        if came is choice or (isinstance(came, str) and came == choice):
            return meaning
    raise ValueError(expected(name, "one of " + ", ".join(map(repr, choices)), reprlib.repr(came)))


def check_res(res: Any, function: str, *kinds: type) -> None:
    if type(res) not in kinds:
        raise TypeError(expected("res", f"the residuals that {function} returned", type(res).__name__))


def check_shape(name: str, T: Any, shape: tuple[int, ...]) -> None:
    if tuple(T.shape) != shape:
        raise ValueError(expected(name, f"shape {shape}", tuple(T.shape)))
