"""Every public function that computes, as a call on arrays made beforehand: for the tests of where arrays live."""

from typing import NamedTuple

import numpy as np
from cases import CASES, MULTI_HEAD, Case

import attnbook as ab
from attnbook.arrays import narrow, widen
from attnbook.rotary import YaRN

READ = {
    "diagnose": "its report is in words, so it reads what it compares",
    "get_num_threads": "has no array",
    "set_num_threads": "has no array",
}
"""The public functions that are no call below, and why. ``inner`` and the checks, which return floats, read as well."""


class Call(NamedTuple):
    """``run`` of as many arrays as ``shapes``; the drawn numbers may be replaced by those of ``draw``.

    ``makes`` names the floating dtypes that it makes whatever theirs is.
    """

    name: str
    shapes: tuple
    run: object
    makes: tuple = ()

    def __str__(self):
        return self.name

    def draw(self, seed=0):
        rng = np.random.default_rng(seed)
        return [rng.standard_normal(shape) for shape in self.shapes]

    def ready(self, arrays):
        """The call, with all but the work done."""
        return lambda: self.run(*arrays)


class Passes(NamedTuple):
    """Forward, vjp and, for a head alone, jvp and hvp of a case of attention."""

    case: object

    @property
    def makes(self):
        return ("float64",) if getattr(self.case, "rotary", None) else ()

    def __str__(self):
        return f"{'a head' if isinstance(self.case, Case) else 'the layer'}, {self.case}"

    def draw(self, seed=0):
        drawn = self.case.draw(seed)
        heads = self.case if isinstance(self.case, Case) else self.case.heads
        width = heads.v[-1:] if heads is self.case else (self.case.d_out,)
        lead = heads.scores[:-1] if heads is self.case else (*heads.q[:-3], heads.q[-2])
        tangents = [np.where(np.isfinite(T), T, 0.0) for T in drawn] if heads is self.case else []
        return [*drawn, *tangents, np.random.default_rng(seed + 1).standard_normal((*lead, *width))]

    def ready(self, arrays):
        *inputs, cotangent = arrays
        return (self._of_a_head if isinstance(self.case, Case) else self._of_the_layer)(inputs, cotangent)

    def _of_a_head(self, inputs, cotangent):
        (Q, K, V, *parameters), tangents = inputs[: len(inputs) // 2], inputs[len(inputs) // 2 :]
        options = self.case.options(Q, *parameters)

        def passes():
            O, res = ab.attention(Q, K, V, **options)
            pulled, pushed = self.case.pull(cotangent, res, dL=res.L), self.case.push(tangents, res)
            return [O, *pulled, pushed, *self.case.push_pull(tangents, cotangent, res, dL=res.L)[:-1]]

        return passes

    def _of_the_layer(self, inputs, cotangent):
        X, memory, p, rest = self.case.sort(inputs)
        options = self.case.options(X, *rest)
        heads = {"num_heads": self.case.h, "num_kv_heads": self.case.h_kv}

        def passes():
            Y, res = ab.multi_head_attention(X, p, **heads, memory=memory, **options)
            return [Y, *self.case.pull(cotangent, res)]

        return passes


def with_L(f):
    """f of pairs like O and L: L is in the accumulation dtype, whatever that of O."""

    def run(*pairs):
        O = pairs[0]
        return [narrow(T, O.dtype) for T in f(*(widen(T) if T.ndim < O.ndim else T for T in pairs))]

    return run


def three(name, **shapes):
    """A function, its vjp and its jvp, of arrays by name. A state is in the accumulation dtype, whatever theirs."""
    f, vjp, jvp = (getattr(ab, f"{name}{which}") for which in ("", "_vjp", "_jvp"))

    def named(arrays, t=""):
        return {t + of: widen(T) if of == "state" else T for of, T in zip(shapes, arrays, strict=True)}

    def pull(*arrays):
        O, res = f(**named(arrays))
        return [narrow(T, O.dtype) for T in flat(vjp(O, res)) if T is not None]

    def push(*arrays):
        return jvp(**named(arrays, "t"), res=f(**named(arrays))[1])

    runs = {"": lambda *arrays: f(**named(arrays))[0], "_vjp": pull, "_jvp": push}
    return [Call(f"{name}{which}", tuple(shapes.values()), run) for which, run in runs.items()]


TABLE, ROWS = (2, 3, 5), (2, 3)
CALLS = (
    Call("softmax", (TABLE,), ab.softmax),
    Call("softmax, first axis", (TABLE,), lambda S: ab.softmax(S, axis=0)),
    Call("softmax of empty rows", ((3, 0),), ab.softmax),
    Call("softmax_vjp", (TABLE, TABLE), ab.softmax_vjp),
    Call("softmax_jvp", (TABLE, TABLE), ab.softmax_jvp),
    Call("softmax_jacobian", (TABLE,), ab.softmax_jacobian),
    Call("logsumexp", (TABLE,), ab.logsumexp),
    Call("logsumexp of empty rows", ((3, 0),), ab.logsumexp),
    Call("logsumexp_vjp", (ROWS, TABLE), ab.logsumexp_vjp),
    Call("logsumexp_jvp", (TABLE, TABLE), ab.logsumexp_jvp),
    Call("linear", (TABLE, (5, 7), (7,)), ab.linear),
    Call("linear_vjp", ((2, 3, 7), TABLE, (5, 7)), ab.linear_vjp),
    Call("linear_jvp", (TABLE, (5, 7), (7,), TABLE, (5, 7)), ab.linear_jvp),
    Call("rms_norm", (TABLE, (5,)), ab.rms_norm),
    Call("rms_norm_vjp", (TABLE, TABLE, (5,)), ab.rms_norm_vjp),
    Call("rms_norm_jvp", (TABLE, (5,), TABLE, (5,)), ab.rms_norm_jvp),
    Call("l2_norm", (TABLE, (5,)), ab.l2_norm),
    Call("l2_norm_vjp", (TABLE, TABLE, (5,)), ab.l2_norm_vjp),
    Call("l2_norm_jvp", (TABLE, (5,), TABLE, (5,)), ab.l2_norm_jvp),
    Call("rotary", ((2, 3, 6),), ab.rotary, makes=("float64",)),
    Call(
        "rotary of a part",
        ((2, 3, 7),),
        lambda X: ab.rotary(X, dims=4, layout="half", scaling=YaRN(8.0, 64)),
        makes=("float64",),
    ),
    Call("rotary_vjp", ((2, 3, 6),), ab.rotary_vjp, makes=("float64",)),
    Call("merge", 2 * (TABLE, ROWS), with_L(ab.merge)),
    Call("merge_vjp", 3 * (TABLE, ROWS), with_L(ab.merge_vjp)),
    Call("top_k_mask", 2 * (TABLE,), lambda Q, K: [ab.attention(Q, K, K, mask=ab.top_k_mask(Q, K, 2, causal=True))[0]]),
    Call("merge_jvp", 4 * (TABLE, ROWS), with_L(ab.merge_jvp)),
    *three("linear_attention", Q=TABLE, K=TABLE, V=(2, 3, 7), gate=ROWS, state=(5, 8)),
    *three("delta_rule", Q=TABLE, K=TABLE, V=(2, 3, 7), beta=ROWS, state=(5, 7)),
    *three("sigmoid_attention", Q=TABLE, K=TABLE, V=(2, 3, 7), bias=(3, 3)),
)
PASSES = tuple(map(Passes, (*CASES, *MULTI_HEAD)))
"""These go through ``attention``, its vjp, jvp and hvp, ``multi_head_attention`` and its vjp."""


def flat(result):
    """All arrays of a result."""
    return [T for part in result for T in flat(part)] if isinstance(result, tuple | list) else [result]
