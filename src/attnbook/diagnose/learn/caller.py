"""How ``diagnose`` calls a function that it knows nothing about. Chapter: :doc:`/chapters/in_the_wild`.

The function may raise, return anything, change what it was given, or never come back. Each becomes a plain sentence.
"""

import re
from copy import copy
from dataclasses import replace
from functools import cached_property

import numpy as np

from attnbook.arrays import expected
from attnbook.diagnose.learn import signature
from attnbook.diagnose.learn.adapters import LIBRARIES, adapter
from attnbook.diagnose.learn.convention import Convention
from attnbook.diagnose.learn.laid_out import LaidOut, fitted
from attnbook.diagnose.learn.learner import Learner
from attnbook.diagnose.learn.options import NoWordsError
from attnbook.diagnose.learn.results import NAMES, Came, ReturnedError, a_kind, backward_of, gradients_of, named
from attnbook.diagnose.learn.safely import reached, refuses, sentence, within


class Caller:
    """A function in one of its three forms, ready to be called on a case.

    ``form`` is "vjp", ``fn(Q, K, V, dO, **options) -> (O, dQ, dK, dV)``; "pair", a forward that returns (O, residuals)
    and a ``backward(dO, residuals) -> (dQ, dK, dV, ...)``; or "autograd", ``fn(Q, K, V, **options) -> O`` on arrays
    whose library has a way back of its own. ``library`` None is found out. ``convention`` is what it takes, learned
    when it is first asked for; ``tries`` then are the calls that it refused, with what it raised, that which came
    furthest first.
    """

    def __init__(self, fn, library=None, limit=30.0, dtype="float64"):
        if library is not None and library not in LIBRARIES:
            raise ValueError(expected("library", "one of " + ", ".join(map(repr, LIBRARIES)), repr(library)))
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0:
            raise ValueError(expected("limit", "a number of seconds above 0", repr(limit)))
        signature.check(fn)
        self.given, self.limit, self.dtype = fn, limit, dtype
        guessed, sure = signature.guesses(fn)
        self.libraries = guessed[: 1 if sure else None] if library is None else (library,)
        self.learner, self.tries, self.given_names = None, {}, set()
        self._settle(self.libraries[0])

    def _settle(self, library):
        """Take fn for a function of this library."""
        fn = self.given
        if library == "onnx" and not callable(fn) and not isinstance(fn, tuple | list):
            from attnbook.diagnose.learn.adapters.onnx import runner

            fn = runner(fn)
        self.known = signature.signature(fn[0] if isinstance(fn, tuple | list) else fn)
        if next(iter(self.known.needed), "") == "module":
            from attnbook.diagnose.learn.adapters.transformers import without_module

            fn, self.known = without_module(fn, self.known)
        self.arrays = adapter(library)
        self.form = signature.form(fn, library, self.known, self.arrays.takes_back)
        if self.form == "autograd" and "autograd" not in self.arrays.takes_back:
            self.arrays = adapter("torch")
        if {"score_mod", "block_mask"} <= (self.known.names or set()):
            from attnbook.diagnose.learn.adapters.flex import in_our_words

            fn, self.known = in_our_words(fn)
        elif isinstance(fn, type):
            fn = fn.apply
            self.known = signature.signature(fn)
        self.fn = fn if self.known.order is None else signature.by_place(fn, self.known)
        self.library = self.arrays.name

    def with_fn(self, fn):
        """The caller of another function of the same form, which takes what this one takes."""
        other = copy(self)
        other.fn = fn
        return other

    @cached_property
    def convention(self):
        """What it takes, and of a function that takes nothing, all; :class:`.Convention`."""
        several = len(self.libraries) > 1
        for quick in (True, False) if several else (False,):
            for library in self.libraries:
                try:
                    self._settle(library)
                except ImportError:
                    if several:
                        continue
                    raise
                learner = Learner(self.call, self.arrays, self.known, self.dtype)
                convention = learner.convention(quick)
                self.tries |= {f"{self.library}, {what}": why for what, why in learner.whys().items()}
                if convention is not None:
                    self.learner = learner
                    return replace(convention, always=learner.always(convention))
                self.learner = self.learner or learner
        self._settle(self.libraries[0])
        return Convention(dtypes=(self.dtype,))

    @property
    def took(self):
        """Whether anything was taken when it was asked what it takes."""
        return any(came.kind not in ("raised", "not run") for came in self.learner.answers.values())

    def __call__(self, case):
        """The :class:`Came` of this case; never an exception."""
        if case.why_not:
            return Came("not run", case.why_not)
        case = fitted(case, self.convention)
        return case if isinstance(case, Came) else self.call(case, self.convention)

    def call(self, case, convention):
        """The same, of a case as it is, handed over by this convention."""
        with self.arrays.context(case.dtype):
            try:
                ways = LaidOut(self, case, convention).ways()
            except NotImplementedError as error:
                return Came("not run", str(error))
            except (TypeError, ValueError, AttributeError, RuntimeError) as error:
                return Came("not run", f"{self.library} has no {case.dtype}: {error}")
            came = None
            for laid in ways:
                came = self._try(case, laid)
                if came.kind != "not run":
                    break
        return came

    def never_given(self):
        """The names of its arguments for which diagnose has no words."""
        known = self.known.names or frozenset()
        return sorted(known - self.given_names - set(self.known.needed) - {"dO", "dout", "grad_output"})

    def _try(self, case, laid):
        self.given_names |= laid.options.keys()
        kind, result = within(self.limit, self._run, case, laid)
        if kind == "too long":
            return Came("too long", f"no answer after {self.limit:g} s")
        changed = laid.changed()
        if kind == "raised":
            if isinstance(result, ReturnedError):
                return Came("returned", str(result))
            if isinstance(result, NoWordsError):
                return Came("not run", str(result))
            if _is_about_an_option(result, laid.options):
                return Came("not run", laid.does_not_take())
            if isinstance(result, NotImplementedError) or case.optional:
                return Came("not run", "it raised " + sentence(result))
            memory = case.memory
            if memory and ("dO" not in memory or refuses(result)):  # who calls can lay out inputs, but not dO
                return Came("not run", "it raised " + sentence(result), refused=refuses(result))
            return Came("raised", sentence(result), inputs=laid.originals, options=laid.rounded(),
                        refused=refuses(result), reached=reached(result))  # fmt: skip
        return self._read(case, laid, result, changed)

    def _run(self, case, laid):
        """What the function gave, by name, in its thread."""
        with self.arrays.context(case.dtype):
            if self.form == "autograd":
                return gradients_of(self.fn, self.arrays, laid, case)

            def by_name(*inputs):
                if self.form == "vjp":
                    return named(self.fn(*inputs, **laid.options), case)
                return backward_of(self.fn, inputs, laid.options, case)

            run = getattr(self.arrays, "as_one", lambda f, *Ts: f(*Ts))
            return run(by_name, *laid.inputs, laid.dO)

    def _read(self, case, laid, result, changed):
        values, dtypes, absent = {}, {}, []
        for name, T in result.items():
            if T is None and name not in NAMES:
                absent.append(name)
                continue
            if T is None and self.form == "autograd":
                absent.append(name)
                T = laid.zero(name)
            if not self.arrays.owns(T):
                return Came("returned", f"{name} is {a_kind(T)}, expected a {self.library} array")
            wide = self.arrays.wide(T)
            dtypes[name] = self.arrays.dtype_name(T)
            if wide is None:
                return Came("returned", f"{name} has dtype {dtypes[name]}, expected a floating one")
            values[name] = laid.heads_first(name, wide)
        if self.form == "autograd" and hasattr(self.arrays, "dtype_of_gradient"):
            dtypes |= {name: self.arrays.dtype_of_gradient(dtypes[name]) for name in dtypes if name != "O"}
        if case.grouped and values["dK"].shape[-3:-2] == laid.originals[0].shape[-3:-2] and not self._shares(case):
            return Came("not run", "it gives each query head a dK of its own")  # broadcast by chance, not meant to
        return Came("values", "", values, laid.originals, laid.rounded(), changed, dtypes, tuple(absent))

    def _shares(self, case):
        """Whether heads are shared on purpose: one key head may broadcast by chance, several cannot."""
        if case.inputs[1].shape[-3] > 1:
            return True
        Q, *others = case.inputs
        Q, dO = (np.concatenate([T] * 4, axis=-3) for T in (Q, others[2]))
        K, V = (np.concatenate([T, T], axis=-3) for T in others[:2])
        more = replace(case, inputs=(Q, K, V, dO), options={}, memory={})
        return self.call(more, self.convention).kind == "values"


def _is_about_an_option(error, options):
    """Whether a TypeError says that an option is not known; one about another name is a fault inside the function."""
    if not isinstance(error, TypeError) or not options:
        return False
    unexpected = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if unexpected:
        return unexpected[1] in options
    return bool(re.search(r"keyword|combination of arguments|incompatible function arguments", str(error)))
