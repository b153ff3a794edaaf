"""How a case is handed over: in a function's axes, layout, library, device, memory and words, and back.

Chapter: :doc:`/chapters/in_the_wild`.
"""

from copy import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from attnbook.diagnose.case import INPUTS
from attnbook.diagnose.learn.options import NoWordsError, say, vocabularies
from attnbook.diagnose.learn.results import Came
from attnbook.diagnose.learn.signature import takes_dL
from attnbook.diagnose.steps import Steps


def fitted(case, convention):
    """The case with as many axes, batches and heads as a function takes; or why not, as what came of it."""
    b, h = convention.batch, convention.heads
    if case.inputs[0].ndim not in convention.axes:
        more = [axes for axes in convention.axes if axes > case.inputs[0].ndim]
        case = _of_axes(case, min(more) if more else max(convention.axes))
        if case is None:
            return _not(f"it takes {max(convention.axes)} axes only")
    for axis, only, name in ((-4, b, "batch"), (-3, h, "heads")):
        Q, K = case.inputs[:2]
        if only and Q.ndim >= -axis and not Q.shape[axis] == K.shape[axis] == only:
            if Q.shape[axis] < only or K.shape[axis] != Q.shape[axis]:
                return _not(f"it takes a {name} of {only} only")
            case = _cut(case, axis, only)
    axes = case.inputs[0].ndim
    if any(case.options[name].ndim not in convention.axes for name in ("mask", "bias") if name in case.options):
        case = _changed(case, lambda T, core=2: T.reshape((1,) * (axes - 2 + core - T.ndim) + T.shape))
    return case


def _not(why):
    return Came("not run", why)


def _of_axes(case, axes):
    """The case with axes of length 1 in front, or with batch and heads as one axis, or with the first of them alone."""
    now = case.inputs[0].ndim
    if now < axes:

        def change(T, core=2):
            return T.reshape((1,) * (axes - 2 + core - T.ndim) + T.shape)
    elif any(name in case.options for name in ("sink", "slopes")) or case.grouped:
        return None
    elif axes == 3:
        b = case.inputs[0].shape[0]

        def change(T, core=2):
            if T.ndim < 2 + core:
                return np.tile(T, (b,) + (1,) * core) if T.ndim == 1 + core and T.shape[0] > 1 else T
            heads = np.broadcast_to(T, (b, case.inputs[0].shape[1], *T.shape[2:]))
            return heads.reshape(-1, *T.shape[2:])
    else:

        def change(T, core=2):
            return T[(0,) * max(0, T.ndim - axes + 2 - core)]

    return _changed(case, change)


def _cut(case, axis, count):
    """The first ``count`` along an axis."""

    def change(T, core=2):
        at = T.ndim + axis + 2 - core
        return T if at < 0 or T.shape[at] == 1 else T[(slice(None),) * at + (slice(count),)]

    options = {name: T[:count] for name, T in case.options.items() if name in ("sink", "slopes") and axis == -3}
    case = _changed(case, change)
    return replace(case, options=case.options | options)


def _changed(case, change):
    """The case with ``change`` done to every array whose leading axes are its batch and heads."""
    options = {name: change(T) for name, T in case.options.items() if name in ("mask", "bias")}
    if "dL" in case.options:
        options["dL"] = change(case.options["dL"], core=1)
    return replace(case, inputs=tuple(map(change, case.inputs)), options=case.options | options)


class LaidOut:
    """The inputs and options of a case as a function gets them.

    ``originals`` are the inputs as they were rounded, in float64 NumPy, heads first; ``inputs``, ``dO`` and ``ours``,
    the options by our names, are of the function's library; ``options`` the keywords of the call.
    """

    def __init__(self, caller, case, convention):
        self.arrays, self.case, self.convention, self.known = caller.arrays, case, convention, caller.known
        self.form, self.fn = caller.form, caller.fn
        self.inputs, self.dO = self._inputs()
        self.originals = tuple(self._read())
        self.ours = {name: self._option(name, value) for name, value in case.options.items()}
        self.options = {}

    def ways(self):
        """This, by each set of words that may do; NotImplementedError where there are none."""
        found, why = [], ""
        for names in vocabularies(self.known.names, self.arrays.name):
            way = copy(self)
            way.names = names
            try:
                way.options = way.asked({})
            except NoWordsError as error:
                why = why or str(error)
                continue
            if found:
                way.inputs, way.dO = self._inputs()
            if not found or self.ours or way.options != found[-1].options:
                found.append(way)
        if not found:
            raise NotImplementedError(self.does_not_take(why))
        return found

    def asked(self, leaves):
        """The keywords of the call, with ``leaves`` in the place of options of these names."""
        options = self.ours | leaves
        dL = {"dL": options.pop("dL")} if "dL" in options else {}
        if dL and not takes_dL(self.fn, self.form, self.known):
            raise NoWordsError("it does not take dL")
        said = say(self.names, options, self._about()) | (dL if self.form != "autograd" else {})
        return said | self._packed()

    def _about(self):
        Q, K = self.case.inputs[:2]
        mask, causal = self.case.options.get("mask"), self.case.options.get("causal", False)
        allowed = None
        known = causal in (False, True, "top-left", "bottom-right")
        bias = self.case.options.get("bias")
        infinite = bias is not None and np.isneginf(bias).any()
        if mask is not None or (known and causal) or infinite:
            allowed = np.asarray(Steps(*self.case.inputs, mask=mask, causal=causal if known else False).allowed)
            allowed = allowed & np.isfinite(bias) if infinite else allowed

        def added(allowed, bias):
            """What to add to the scores: the bias, or 0, where ``allowed``, and −∞ elsewhere."""
            if allowed is None:
                return bias
            none = self.arrays.make(np.where(allowed, 0.0, -np.inf), self.case.dtype, device=self.convention.device)
            return none if bias is None else bias + none

        return SimpleNamespace(
            shape=(*Q.shape[:-1], K.shape[-2]), n_q=Q.shape[-2], n_k=K.shape[-2], d_k=Q.shape[-1],
            grouped=self.case.grouped, needed=self.known.needed, on=self.known.on, library=self.arrays.name,
            corner=self.convention.corner, allowed=allowed, added=added,
        )  # fmt: skip

    def _packed(self):
        if self.convention.layout != "packed":
            return {}
        said, device = {}, self.convention.device
        for letter, T in (("q", self.case.inputs[0]), ("k", self.case.inputs[1])):
            b, n = T.shape[0], T.shape[-2]
            said[f"cu_seqlens_{letter}"] = self.arrays.make(np.arange(b + 1) * n, "int32", device=device)
            said[f"max_seqlen_{letter}"] = n
        return {name: value for name, value in said.items() if self.known.names and name in self.known.names}

    def _inputs(self):
        memory = getattr(self.case, "memory", None) or {}
        *inputs, dO = (self._make(T, memory.get(name, "")) for name, T in zip(INPUTS, self.case.inputs, strict=True))
        return inputs, dO

    def _read(self):
        """The inputs as they are now, in float64 NumPy, heads first."""
        Ts = zip(INPUTS, (*self.inputs, self.dO), strict=True)
        return [self.heads_first(name, self.arrays.wide(T)) for name, T in Ts]

    def _make(self, T, memory):
        if self.convention.layout == "heads third" and T.ndim == 4:
            T = np.swapaxes(T, -2, -3)
        elif self.convention.layout == "packed":
            T = np.swapaxes(T, -2, -3).reshape(-1, T.shape[-3], T.shape[-1])
        return self.arrays.make(T, self.case.dtype, memory, self.convention.device)

    def _option(self, name, value):
        if not isinstance(value, np.ndarray):
            return value
        dtype = "bool" if value.dtype == bool else self.case.dtype
        if name == "slopes" and "alibi_slopes" in (self.known.names or ()):
            dtype = "float32"  # whatever the inputs are
        return self.arrays.make(value, dtype, "", self.convention.device)

    def heads_first(self, name, T):
        """T, of the shape of O, dQ, dK or dV in the function's layout, heads first; as it is, in a wrong shape."""
        like = dict(
            zip(("Q", "K", "V", "dO", "dQ", "dK", "dV", "O"), (*self.case.inputs, *self.case.inputs), strict=True)
        )
        if T is None or name not in like or self.convention.layout == "heads first":
            return T
        if self.convention.layout == "heads third":
            return np.swapaxes(T, -2, -3) if T.ndim == 4 else T
        b, _, n, _ = like[name].shape
        return np.swapaxes(T.reshape(b, n, *T.shape[1:]), -2, -3) if T.ndim == 3 and len(T) == b * n else T

    def changed(self):
        """The names of the inputs that were written into."""
        both = zip(INPUTS, self._read(), self.originals, strict=True)
        return tuple(name for name, T, original in both if not np.array_equal(T, original, equal_nan=True))

    def rounded(self):
        """The options in float64 NumPy, as they were handed over."""
        floats = {name for name, T in self.case.options.items() if isinstance(T, np.ndarray) and T.dtype != bool}
        always = {"causal": self.convention.always} if self.convention.always else {}
        return always | self.case.options | {name: self.arrays.wide(self.ours[name]) for name in floats}

    def zero(self, name):
        """0 in the shape of an input's gradient."""
        like = dict(zip(("dQ", "dK", "dV"), self.inputs, strict=True))[name]
        return self.arrays.make(np.zeros(tuple(like.shape)), self.case.dtype, "", self.convention.device)

    def does_not_take(self, why=""):
        """What it has no words for."""
        options = self.case.options.items()
        named = [f'{name}="{value}"' if isinstance(value, str) else name for name, value in options]
        named = named or ["key heads that are shared"]
        if why and why != f"it does not take {named[-1]}" and not why.startswith("it does not take"):
            return why
        *others, last = named
        return f"it does not take {', '.join(others)} and {last} together" if others else f"it does not take {last}"

    # --- the gradient of L, where O and L come together

    def with_L(self, both):
        """O with L as one more column."""
        self._rows(both)
        L = both[1] if self.convention.layout == "heads first" else both[1].swapaxes(-1, -2)
        return self.arrays.beside(both[0], L)

    def _rows(self, both):
        rows = tuple(self.case.inputs[0].shape[:-1])
        if len(both) < 2 or not self.arrays.owns(both[1]) or tuple(both[1].shape) != rows:
            raise NoWordsError("it does not return L")
        if not hasattr(self.arrays, "beside"):
            raise NoWordsError("it is not asked there for a loss that uses L")

    @property
    def start(self):
        """dO with dL as one more column."""
        dL = self.ours["dL"] if self.convention.layout == "heads first" else self.ours["dL"].swapaxes(-1, -2)
        return self.arrays.beside(self.dO, dL)
