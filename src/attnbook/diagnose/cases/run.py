"""One case that a function was run in: what came, what is right, and how far apart they are."""

from functools import cached_property
from zlib import crc32

import numpy as np

from attnbook.checks.tolerances import DIAGNOSE, DIAGNOSE_MEAN
from attnbook.diagnose.steps import L_of, Steps, mT, rowsum, softmax, unbroadcast

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

LOWER = {"float32": "float32", "TF32 or float16": "float16", "bfloat16": "bfloat16"}
"""Precisions that a function may compute in, while it takes and returns more; and the dtype of such roundings."""

NAMES = ("O", "dQ", "dK", "dV", "dbias", "dsink")
"""All that is compared, where it came."""


class Run:
    """A case, what came, and what is right."""

    def __init__(self, case, came):
        self.case, self.came, self.name, self._how = case, came, case.name, {}

    @property
    def compared(self):
        return self.came.kind == "values"

    @cached_property
    def options(self):
        """All that the steps are told: the options as they came, what dropout kept, and how inputs lie in memory."""
        options = dict(self.came.options)
        if "dropout" in options and self.compared:
            kept = self._told("O", self.came.inputs[2])
            anew = kept if self.case.grouped else self._told("dV", None)
            other = (anew ^ kept) & Steps(*self.came.inputs, **options).allowed
            both_ways = np.any(other & kept) and np.any(other & anew)  # else one of the two only lacks some
            options |= {"kept": kept, "kept_of_dV": anew if both_ways else kept}
        return options | ({"memory": self.case.memory} if self.case.memory else {})

    def _told(self, name, V):
        """Which weights were kept, read off O, or dV: these are the weights themselves, where V and dO are 0 and 1."""
        n_q, n_k = self.came.inputs[0].shape[-2], self.came.inputs[1].shape[-2]
        T = self.came.values[name]
        T = T if V is not None else mT(T)
        lead = self.came.inputs[0].shape[:-2]
        if T.shape[:-2] != lead or T.shape[-2] < n_q or T.shape[-1] < n_k:
            return np.full((*lead, n_q, n_k), True)  # a wrong shape, which is reported as that
        return T[..., :n_q, :n_k] != 0

    @cached_property
    def _key(self):
        """What tells this run's inputs and options from those of other runs of the same case."""
        arrays = (T for T in (*self.came.inputs, *self.options.values()) if isinstance(T, np.ndarray))
        return tuple((T.shape, crc32(np.ascontiguousarray(T).view(np.uint8).data)) for T in arrays)

    def _kept(self, what, compute):
        """``compute()``, or what it gave for the same inputs before."""
        key, seen = (what, self._key), self.case.seen
        if key not in seen:
            if len(seen) >= 256:
                seen.clear()
            seen[key] = compute()
        return seen[key]

    @property
    def right(self):
        """The right results."""
        return self.predicted(Steps)

    def predicted(self, steps):
        """What someone gets who goes through these steps: arrays by name, or None where the shapes do not fit."""

        def predict():
            try:
                return steps(*self.came.inputs, **self.options).results()
            except ValueError:
                return None

        return self._kept(steps, predict)

    @property
    def sizes(self):
        """The size of the terms that each result adds up, by name: rounding can make errors of some EPS of it."""
        return {name: size for name, (size, *_) in self._terms.items()}

    @property
    def _terms(self):
        """Of the terms that each result adds up, by name: the largest and the root of the mean square, and the latter
        as roundings of the scores and of L enlarge it."""
        return self._kept("terms", self._find_terms)

    def _find_terms(self):
        a = Steps(*self.came.inputs, **self.options)
        Q, k, v, dO = (np.abs(T) for T in (a.Q, a.k, a.v, a.dO))
        scale = abs(a.scale)
        dP = a.dropped(dO @ mT(v), a.kept)
        D = rowsum(a.P * dP) + (0.0 if a.dL is None else np.abs(a.dL)[..., None])
        dS = a.P * (dP + D)
        terms = {
            "O": a.weights @ v,
            "dQ": scale * (dS @ k),
            "dK": a.gather(scale * (mT(dS) @ Q)),
            "dV": a.gather(mT(a.weights) @ dO),
        }
        if a.bias is not None:
            terms["dbias"] = unbroadcast(dS, a.bias.shape)
        if a.sink is not None:
            terms["dsink"] = unbroadcast(softmax(a.column)[..., -1:] * D, (*a.sink.shape, 1, 1)).reshape(a.sink.shape)
        beside = a.scores - a.products
        scores = scale * largest(Q @ mT(k)) + largest(beside[np.isfinite(beside)])
        L = L_of(a)  # P is made again from it: rounded, it moves a whole row to one side, and the mean of few rows
        near = _rms(a.scores[np.isfinite(a.scores)]) + _rms(L[np.isfinite(L)]) / max(1, a.Q.shape[-2]) ** 0.5
        return {
            name: ((1 + scores) * largest(size), _rms(size), (1 + near) * _rms(size)) for name, size in terms.items()
        }

    def _is(self, name, wanted, dtype, ease=1):
        """Whether ``name`` came as ``wanted``, up to roundings of ``dtype``; NaN and ∞ meet only their like."""
        came = self.came.values[name]
        if came.shape != wanted.shape:
            return False
        finite = np.isfinite(wanted) & np.isfinite(came)
        if np.isfinite(wanted).all() != np.isfinite(came).all():
            return False
        size = max(self.sizes[name], largest(wanted[finite]) if ease > 1 else 0.0)
        return largest(came[finite] - wanted[finite]) <= ease * DIAGNOSE[dtype] * EPS[dtype] * size

    def _is_in_the_mean(self, name, dtype):
        """Whether the errors of 16 bits are what roundings make in the mean: their bound alone is a loose one."""
        if EPS[dtype] <= EPS["float32"]:
            return True
        off = self.came.values[name] - self.right[name]
        return _rms(off[np.isfinite(off)]) <= DIAGNOSE_MEAN * EPS[dtype] * self._terms[name][2]

    def _precision(self, name):
        """The lower one of the dtypes that went in and that came out."""
        return max((self.case.dtype, self.came.dtypes[name]), key=lambda dtype: EPS.get(dtype, 0.0))

    def right_in(self, name):
        """ "exactly", as also for what did not come; the precision that alone explains the error, or "" for wrong.

        The precisions are those of :data:`LOWER`. float32 for float64 is a convention of many libraries, and taken by
        the largest error that it can make; what is rounded to 16 bits on the way is no more than a suspicion, and must
        lie in the mean where such roundings do.
        """
        if name not in self._how:
            self._how[name] = self._right_in(name)
        return self._how[name]

    def _right_in(self, name):
        precision = self._precision(name) if name in self.came.values else None
        if precision is None or (self._is(name, self.right[name], precision) and self._is_in_the_mean(name, precision)):
            return "exactly"
        eps = EPS[precision]
        if eps < EPS["float32"] and self._is(name, self.right[name], "float32"):
            return "float32"
        came, right = self.came.values[name], self.right[name]
        if came.shape == right.shape and np.isfinite(came).all():
            off = _rms(came - right)
            for words, dtype in LOWER.items():
                if EPS["float32"] < EPS[dtype] > eps and off <= 2 * EPS[dtype] * self._terms[name][1]:
                    return words
        return ""

    def matches(self, name, prediction):
        """Whether the mistake that predicts this would give what came; so does any, where nothing came."""
        if prediction is not None and name not in self.came.values:
            return True
        return prediction is not None and self._is(name, prediction[name], self._precision(name), ease=10)

    def harmless(self, name, prediction):
        """Whether the mistake that predicts this leaves ``name`` right."""
        if name not in self.right:
            return True
        if prediction is None or prediction[name].shape != self.right[name].shape:
            return False
        off = np.abs(prediction[name] - self.right[name])
        return bool(np.all(off <= EPS["float32"] * self.sizes[name]))

    def error(self, name):
        """(how far off, relative to the largest right entry; the same in words)."""
        came, right = self.came.values[name], self.right[name]
        if came.shape != right.shape:
            return None, f"shape {came.shape}, expected {right.shape}"
        if not np.isfinite(came).all():
            return None, "NaN" if np.isnan(came).any() else "infinite entries"
        off, size = largest(came - right), largest(right)
        if size <= self.sizes[name] * EPS["float32"]:
            return None, f"off by {off:.1g} where 0 is right"
        return float(f"{off / size:.1g}"), f"relative error {off / size:.1g}"


def wrong_in(compared):
    """{result: the runs in which it is wrong}, for what is wrong anywhere."""
    wrong = {name: [run for run in compared if run.right_in(name) not in ("exactly", "float32")] for name in NAMES}
    return {name: where for name, where in wrong.items() if where}


def imprecise(wrong, compared):
    """({result: how precise it is, in words}, [results that are sums kept in 16 bits]), for what is wrong by no more
    than a lower precision would make it.

    It must be so wherever the result is wrong, and roundings show in most cases; but sums in 16 bits only in long ones.
    The results of one function are taken to be computed in one precision, the lowest that any of them shows: where it
    does not explain all that is wrong, it explains nothing.
    """
    labels = {name: {run.right_in(name) for run in where} for name, where in wrong.items()}
    low = [name for name, words in labels.items() if "" not in words and 2 * len(wrong[name]) > len(compared)]
    low = low if len(low) == len(wrong) else []
    if low:
        words = max(set().union(*(labels[name] for name in low)), key=lambda each: EPS[LOWER[each]])
        low = dict.fromkeys(low, f"right to the precision of {words} only, though {compared[0].case.dtype} went in")
    return dict(low), [name for name, where in wrong.items() if name not in low and _sums_in_16_bits(name, where)]


def _sums_in_16_bits(name, where):
    """Whether the result is wrong only where its sum is long, and by little: who adds up in 16 bits loses that."""
    (run, *others), eps = where, EPS[where[0]._precision(name)]
    if (
        others
        or run.name != "long sums"
        or eps <= EPS["float32"]
        or run.came.values[name].shape != run.right[name].shape
    ):
        return False
    return _rms(run.came.values[name] - run.right[name]) <= 32 * eps * run._terms[name][1]  # and no NaN


def largest(T):
    return float(np.max(np.abs(T), initial=0.0))


def _rms(T):
    return float(np.sqrt(np.mean(T * T))) if T.size else 0.0
