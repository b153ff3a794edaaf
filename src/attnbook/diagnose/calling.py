"""How ``diagnose`` calls a function that it knows nothing about. Chapter: :doc:`/chapters/in_the_wild`.

The function may raise, return anything, change what it was given, or never come back. Each becomes a plain sentence.
"""

import inspect
import re
import sys
import textwrap
import threading
import warnings
from typing import NamedTuple

import numpy as np

from attnbook.arrays import expected

NAMES = ("O", "dQ", "dK", "dV")
LIBRARIES = ("numpy", "torch", "cupy")


class Came(NamedTuple):
    """What one call gave: ``values``, NumPy arrays by name, or else why there are none.

    ``kind`` is "values", "raised", "returned" (not what was asked for), "too long" or "not run"; ``text`` says more,
    with values what was raised before the case was given four axes. ``inputs`` are Q, K, V, dO and ``options`` the
    options as they were handed over, rounded to the case's dtype, in float64 NumPy; ``changed`` are the names of the
    inputs that the function wrote into; ``dtypes`` those of the values.
    """

    kind: str
    text: str = ""
    values: dict | None = None
    inputs: tuple = ()
    options: dict | None = None
    changed: tuple = ()
    dtypes: dict | None = None


class Caller:
    """A function in one of its three forms, ready to be called on a case.

    ``form`` is "vjp", ``fn(Q, K, V, dO, **options) -> (O, dQ, dK, dV)``; "pair", a forward that returns (O, residuals)
    and a ``backward(dO, residuals) -> (dQ, dK, dV, ...)``; or "autograd", ``fn(Q, K, V, **options) -> O`` on torch
    tensors.
    """

    def __init__(self, fn, library, limit):
        if library not in LIBRARIES:
            raise ValueError(expected("library", "one of " + ", ".join(map(repr, LIBRARIES)), repr(library)))
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0:
            raise ValueError(expected("limit", "a number of seconds above 0", repr(limit)))
        self.form, self.fn, self.limit = _form(fn, library), fn, limit
        self.library = "torch" if self.form == "autograd" else library
        self.arrays = _Arrays(self.library)
        self.known = _options_of(fn[0] if self.form == "pair" else fn)

    def __call__(self, case):
        """The :class:`Came` of this case; never an exception.

        Where fewer than four axes raise, the case is tried with four: a function may take no others.
        """
        came = self._call(case)
        wider = case.with_four_axes()
        if came.kind not in ("raised", "not run") or wider is None:
            return came
        again = self._call(wider)
        if again.kind == "values":
            return again._replace(text=came.text.removeprefix("it raised "))
        return came if again.kind == "not run" else again

    def _call(self, case):
        try:
            handed = [self.arrays.make(T, case.dtype) for T in case.inputs]
        except (TypeError, ValueError, AttributeError) as error:
            return Came("not run", f"{self.library} has no {case.dtype}: {error}")
        originals = tuple(self.arrays.wide(T) for T in handed)
        ways = self._ways(case)
        if not ways:
            return Came("not run", _does_not_take(case))
        for i, options in enumerate(ways):
            came = self._try(case, [self.arrays.copy(T) for T in handed], options, originals)
            if came.kind != "not run" or i == len(ways) - 1:
                return came
        return came

    def _ways(self, case):
        """The option dicts to try: by our names, then by torch's; only those that the signature admits."""
        ours = {name: self._option(value, case.dtype) for name, value in case.options.items()}
        ways = [ours]
        if self.library == "torch":
            theirs = self._in_torch_words(case, ours)
            if theirs is not None and theirs != ours:
                ways.append(theirs)
        if self.known is None:
            return ways
        return [way for way in ways if set(way) <= self.known]

    def _option(self, value, dtype):
        if isinstance(value, np.ndarray):
            return self.arrays.make(value, "bool" if value.dtype == bool else dtype)
        return value

    def _in_torch_words(self, case, ours):
        """The options of torch's scaled_dot_product_attention, or None where it has no words for the case."""
        mask, bias, causal = (ours.get(name) for name in ("mask", "bias", "causal"))
        if causal == "bottom-right" or (causal and (mask is not None or bias is not None)):
            return None
        words = {"scale": ours["scale"]} if "scale" in ours else {}
        if mask is not None and bias is not None:
            words["attn_mask"] = bias.masked_fill(~mask, float("-inf"))
        elif mask is not None or bias is not None:
            words["attn_mask"] = bias if mask is None else mask
        if causal:
            words["is_causal"] = True
        if case.grouped:
            words["enable_gqa"] = True
        return words

    def _try(self, case, handed, options, originals):
        kind, result = within(self.limit, self._run, handed, options)
        if kind == "too long":
            return Came("too long", f"no answer after {self.limit:g} s")
        changed = tuple(
            name
            for name, T, original in zip(("Q", "K", "V", "dO"), handed, originals, strict=True)
            if not np.array_equal(self.arrays.wide(T), original)
        )
        if kind == "raised":
            text = _sentence(result)
            if _is_about_an_option(result, options):
                return Came("not run", _does_not_take(case))
            if isinstance(result, NotImplementedError) or case.optional:
                return Came("not run", "it raised " + text)
            return Came("raised", text, inputs=originals, options=self._rounded(case))
        return self._read(case, result, originals, changed)

    def _run(self, handed, options):
        Q, K, V, dO = handed
        if self.form == "vjp":
            return self.fn(Q, K, V, dO, **options)
        if self.form == "pair":
            forward, backward = self.fn
            both = forward(Q, K, V, **options)
            if not isinstance(both, tuple | list) or len(both) != 2:
                return _Wrong(f"the forward returned {_describe(both)}, expected (O, residuals)")
            grads = backward(dO, both[1])
            if not isinstance(grads, tuple | list) or len(grads) < 3:
                return _Wrong(f"the backward returned {_describe(grads)}, expected (dQ, dK, dV)")
            return (both[0], *grads[:3])
        import torch

        inputs = [T.detach().requires_grad_() for T in (Q, K, V)]
        with torch.enable_grad():
            O = self.fn(*inputs, **options)
            O = O[0] if isinstance(O, tuple) else O
            if not isinstance(O, torch.Tensor):
                return _Wrong(f"returned {_describe(O)}, expected the output O")
            if O.shape != dO.shape:
                return _Wrong(f"O has shape {tuple(O.shape)}, expected {tuple(dO.shape)}")
            grads = torch.autograd.grad(O, inputs, dO.to(O.dtype), allow_unused=True)
        grads = (torch.zeros_like(T) if g is None else g for T, g in zip(inputs, grads, strict=True))
        return (O.detach(), *grads)

    def _rounded(self, case):
        options = dict(case.options)
        if "bias" in options:
            options["bias"] = self.arrays.wide(self._option(options["bias"], case.dtype))
        return options

    def _read(self, case, result, originals, changed):
        if isinstance(result, _Wrong):
            return Came("returned", str(result))
        if not isinstance(result, tuple | list) or len(result) != 4:
            return Came("returned", f"returned {_describe(result)}, expected 4 arrays (O, dQ, dK, dV)")
        values, dtypes = {}, {}
        for name, T in zip(NAMES, result, strict=True):
            if not self.arrays.owns(T):
                return Came("returned", f"{name} is {_a_kind(T)}, expected a {self.library} array")
            values[name], dtypes[name] = self.arrays.wide(T), self.arrays.dtype_name(T)
            if values[name] is None:
                return Came("returned", f"{name} has dtype {dtypes[name]}, expected a floating one")
        if case.grouped and values["dK"].shape[-3:-2] == originals[0].shape[-3:-2]:
            return Came("not run", "it gives each query head a dK of its own")  # broadcast by chance, not meant to
        return Came("values", "", values, originals, self._rounded(case), changed, dtypes)


class _Wrong(str):
    """What is wrong with a result, found while it was being made."""


class _Arrays:
    """Arrays of one library, made from NumPy's and read back."""

    def __init__(self, library):
        self.library = library
        if library == "torch":
            import torch

            self.type = torch.Tensor
        elif library == "cupy":
            import cupy

            self.cupy, self.type = cupy, cupy.ndarray
        else:
            self.type = np.ndarray

    def owns(self, T):
        return isinstance(T, self.type | np.generic if self.library == "numpy" else self.type)

    def make(self, T, dtype):
        if self.library == "torch":
            import torch

            return torch.tensor(T, dtype=getattr(torch, dtype))
        made = np.asarray(T).astype(dtype)
        return self.cupy.asarray(made) if self.library == "cupy" else made

    def copy(self, T):
        return T.clone() if self.library == "torch" else T.copy()

    def dtype_name(self, T):
        return str(T.dtype).removeprefix("torch.")

    def wide(self, T):
        """T in float64 NumPy; None where it does not hold real floating numbers."""
        if self.library == "torch":
            return T.detach().cpu().double().numpy() if T.dtype.is_floating_point else None
        if np.dtype(T.dtype).kind != "f":
            return None
        return np.array(self.cupy.asnumpy(T) if self.library == "cupy" else T, dtype=np.float64)


def within(limit, f, *args):
    """("done", result), ("raised", exception) or ("too long", None), after at most ``limit`` seconds.

    f runs in a thread of its own, because anything can be called there, and a thread cannot be ended: one that takes
    too long is left behind, and ends with the process. Where there are no threads, as in a browser, f has no limit.
    """
    box = []

    def work():
        try:
            with np.errstate(all="ignore"):
                box.append(("done", f(*args)))
        except BaseException as error:  # whatever it is, it is the answer
            box.append(("raised", error))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        thread = threading.Thread(target=work, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            work()
        else:
            thread.join(min(limit, threading.TIMEOUT_MAX))
    return box[0] if box else ("too long", None)


def _form(fn, library):
    if isinstance(fn, tuple | list):
        if len(fn) != 2 or not all(map(callable, fn)):
            raise TypeError(expected("fn", "a function, a pair of functions, or a torch module", f"{fn!r}"))
        return "pair"
    if not callable(fn):
        raise TypeError(expected("fn", "a function, a pair of functions, or a torch module", type(fn).__name__))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(fn, torch.nn.Module):
        return "autograd"
    if library != "torch":
        return "vjp"
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return "autograd"  # written in C, as torch's own is: it knows nothing of dO
    needed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
    return "vjp" if len(needed) > 3 else "autograd"


def _options_of(fn):
    """The names that fn takes by keyword; None where any may be tried."""
    try:
        parameters = inspect.signature(getattr(fn, "forward", fn)).parameters.values()  # a module shows *args only
    except (TypeError, ValueError):
        return None
    if any(p.kind == p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}


def _is_about_an_option(error, options):
    """Whether a TypeError says that an option is not known; one about another name is a fault inside the function."""
    if not isinstance(error, TypeError) or not options:
        return False
    named = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if named:
        return named[1] in options
    return bool(re.search(r"keyword|combination of arguments", str(error)))


def _does_not_take(case):
    *others, last = case.options or ["key heads that are shared"]
    return f"it does not take {', '.join(others)} and {last} together" if others else f"it does not take {last}"


def _sentence(error):
    """The exception in one short line."""
    words = textwrap.shorten(str(error), 100, placeholder=" …")
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _describe(result):
    if isinstance(result, tuple | list):
        return f"{len(result)} things" if len(result) != 1 else "1 thing"
    return _a_kind(result)


def _a_kind(result):
    name = type(result).__name__
    return "None" if result is None else f"an {name}" if name[0] in "aeiou" else f"a {name}"
