"""The exercises that can be graded: what a file must define, and how it is judged.

Chapter: :doc:`/chapters/08_checking`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnbook.arrays import expected
from attnbook.diagnose.causes.mistakes import MISTAKES
from attnbook.diagnose.learn.results import NAMES
from attnbook.diagnose.steps import Steps, softmax, with_mistakes
from attnbook.grade import judging
from attnbook.grade.formulas import formula

PLAIN = ("plain", "batch and heads", "one query", "one key", "square", "all axes equal", "large scores")
MASKED = ("mask", "mask of padding", "mask with a dead row")


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    ``asks`` says what a file must define, ``names`` how the function may be called (where a file has one function
    only, its name does not matter), ``form`` how it is called, ``parts`` what is judged and has points, ``required``
    the cases that must run, ``libraries`` what is imported beforehand, and ``judge`` decides.
    """

    name: str
    asks: str
    names: tuple[Any, ...]
    judge: Any
    parts: tuple[Any, ...] = NAMES
    required: tuple[Any, ...] = ()
    form: str = "arrays"
    libraries: tuple[Any, ...] = ()


# --- the right results, from the steps ------------------------------------------------------------------------------


def _softmax_cases(rng: Any) -> Iterator[Any]:
    for shape in ((5, 7), (2, 3, 5, 7), (4, 4), (1, 6), (6, 1)):
        yield f"shape {shape}", (3 * rng.standard_normal(shape),), ()
    yield "large scores", (1500 * rng.standard_normal((5, 7)),), ()


def _softmax_vjp_cases(rng: Any) -> Iterator[Any]:
    for shape in ((5, 7), (2, 3, 5, 7), (4, 4), (1, 6), (6, 1)):
        yield f"shape {shape}", (rng.standard_normal(shape), softmax(rng.standard_normal(shape))), ()


def softmax_vjp(dP: Any, P: Any, steps: Any = None) -> tuple[Any, ...]:
    a = object.__new__(steps or Steps)
    a.dP, a.P, a.P_backward, a.n_k = dP, P, P, P.shape[-1]
    return (a.dS,)


def _linear_cases(rng: Any) -> Iterator[Any]:
    for lead in ((5,), (2, 3, 5), (4,)):
        d, c = (4, 4) if lead == (4,) else (7, 11)
        yield f"X of {len(lead) + 1} axes", tuple(rng.standard_normal(s) for s in ((*lead, c), (*lead, d), (d, c))), ()


def linear_vjp(dY: Any, X: Any, W: Any) -> tuple[Any, ...]:
    rows = X.reshape(-1, X.shape[-1]), dY.reshape(-1, dY.shape[-1])
    return dY @ W.T, rows[0].T @ rows[1]


def _layer_cases(rng: Any) -> Iterator[Any]:
    for name, b, n, h, d_model, d_k, d_v, d_out in (
        ("batch", 2, 5, 3, 17, 11, 13, 23), ("one head", 2, 5, 1, 7, 3, 4, 6), ("square", 1, 4, 2, 8, 4, 4, 8),
    ):  # fmt: skip
        W = [rng.standard_normal(s) / 4 for s in ((d_model, h * d_k), (d_model, d_k), (d_model, d_v), (h * d_v, d_out))]
        yield name, (rng.standard_normal((b, n, d_out)), rng.standard_normal((b, n, d_model)), *W), (h,)


def layer_vjp(dY: Any, X: Any, W_Q: Any, W_K: Any, W_V: Any, W_O: Any, h: Any, steps: Any = None) -> tuple[Any, ...]:
    """The gradients of a causal layer with h query heads and one key head."""

    def split(T: Any, heads: Any) -> Any:
        return np.swapaxes(T.reshape(*T.shape[:-1], heads, -1), -2, -3)

    def merge(T: Any) -> Any:
        T = np.swapaxes(T, -2, -3)
        return T.reshape(*T.shape[:-2], -1)

    def outer(A: Any, B: Any) -> Any:
        return A.reshape(-1, A.shape[-1]).T @ B.reshape(-1, B.shape[-1])

    a = (steps or Steps)(split(X @ W_Q, h), split(X @ W_K, 1), split(X @ W_V, 1), split(dY @ W_O.T, h), causal=True)
    O, *grads = a.run()
    dQ, dK, dV = map(merge, grads)
    dX = dQ @ W_Q.T + dK @ W_K.T + dV @ W_V.T
    return dX, outer(X, dQ), outer(X, dK), outer(X, dV), outer(merge(O), dY)


def _with(mistake: Any, f: Any) -> Any:
    return lambda *arrays: f(*arrays, steps=with_mistakes(mistake))


OF_SOFTMAX = {m.slug: _with(m, softmax_vjp) for m in MISTAKES if set(m.steps) <= {"dS", "D"}}
IN_A_LAYER = {m.slug: _with(m, layer_vjp) for m in MISTAKES if m.slug != "causal-top-left"}

WRONG_SOFTMAX = {
    "softmax-over-queries": lambda S: (softmax(S, axis=-2),),
    "softmax-of-the-table": lambda S: (softmax(S.reshape(*S.shape[:-2], -1)).reshape(S.shape),),
    "no-row-maximum": lambda S: (np.exp(S) / np.exp(S).sum(axis=-1, keepdims=True),),
}

OF_THE_BOOK = ("head", "mine", "attention", "kernel", "suspect", "in_pieces")

EXERCISES = {
    exercise.name: exercise
    for exercise in (
        Exercise(
            "softmax",
            "softmax(S) -> P, over the last axis",
            ("softmax",),
            formula(lambda S: (softmax(S),), _softmax_cases, WRONG_SOFTMAX),
            ("P",),
        ),
        Exercise(
            "softmax-vjp",
            "softmax_vjp(dP, P) -> dS",
            ("softmax_vjp", "softmax_backward", "yours_in_head"),
            formula(softmax_vjp, _softmax_vjp_cases, OF_SOFTMAX),
            ("dS",),
        ),
        Exercise(
            "linear-vjp",
            "linear_vjp(dY, X, W) -> (dX, dW) of Y = X @ W, for X of two to four axes",
            ("linear_vjp", "linear_backward"),
            formula(linear_vjp, _linear_cases),
            ("dX", "dW"),
        ),
        Exercise(
            "attention-vjp",
            "head(Q, K, V, dO) -> (O, dQ, dK, dV), for two to four axes",
            OF_THE_BOOK,
            judging.attention(),
            required=PLAIN,
        ),
        Exercise(
            "masked-attention-vjp",
            "head(Q, K, V, dO, mask=None) -> (O, dQ, dK, dV); True: may attend",
            ("with_mask", "without_weights", *OF_THE_BOOK),
            judging.attention("mask"),
            required=(*PLAIN, *MASKED),
        ),
        Exercise(
            "causal-attention-vjp",
            "head(Q, K, V, dO, causal=False) -> (O, dQ, dK, dV); corner: top left",
            OF_THE_BOOK,
            judging.attention("causal"),
            required=(*PLAIN, "causal, more keys", "causal, fewer keys"),
        ),
        Exercise(
            "grouped-attention-vjp",
            "head(Q, K, V, dO) -> (O, dQ, dK, dV); K and V may have fewer heads",
            ("shared", *OF_THE_BOOK),
            judging.attention(grouped=True),
            required=(*PLAIN, "grouped heads", "one key head"),
        ),
        Exercise(
            "attention-torch",
            "attention(Q, K, V) -> O on torch tensors, by autograd or your own Function; or a torch.nn.Module",
            ("attention", "Attention", "head", "Head"),
            judging.attention(),
            required=PLAIN,
            form="tensors",
            libraries=("torch",),
        ),
        Exercise(
            "multi-head-vjp",
            "backward(dY, X, W_Q, W_K, W_V, W_O, h) -> (dX, dW_Q, dW_K, dW_V, dW_O) of a causal layer with h query "
            "heads and one key head",
            ("backward",),
            formula(layer_vjp, _layer_cases, IN_A_LAYER),
            ("dX", "dW_Q", "dW_K", "dW_V", "dW_O"),
        ),
        Exercise(
            "cs336-flash-torch",
            "get_flashattention_autograd_function_pytorch() -> a torch.autograd.Function with "
            "apply(Q, K, V, is_causal) -> O that saves L (Stanford CS336, assignment 2)",
            ("get_flashattention_autograd_function_pytorch",),
            judging.cs336,
            (*NAMES, "L"),
            required=("plain", "causal", "the course's own", "the course's own, causal"),
            form="cs336",
            libraries=("torch",),
        ),
    )
}
"""By name."""

BOOK = {
    "attention-vjp": (
        "ex-first-write", "ex-gradients-3", "ex-single-diagnose", "ex-single-pieces", "ex-cross-diagnose", "ex-num-2",
        "ex-tile-2", "ex-gpu-3",
    ),
    "softmax-vjp": ("ex-softmax-8",),
    "masked-attention-vjp": ("ex-masked-diagnose", "ex-masked-recompute"),
    "grouped-attention-vjp": ("ex-multi-diagnose", "ex-variants-diagnose"),
    "multi-head-vjp": ("ex-multi-whole",),
}  # fmt: skip
"""The book's own exercises, by label, under the name by which each is graded."""


def exercise(name: str) -> Exercise:
    """The exercise of this name, or of this label of the book.

    Raises
    ------
    ValueError
        There is none; it names all.
    """
    label = {label: known for known, labels in BOOK.items() for label in labels}
    try:
        return EXERCISES[label.get(name, name)]
    except KeyError:
        raise ValueError(expected("exercise", "one of " + ", ".join(EXERCISES), repr(name))) from None
