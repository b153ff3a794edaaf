"""Faults of kernels: what goes wrong where a right formula is cut into blocks, handed about, or computed again.

Chapter: :doc:`/chapters/in_the_wild`. None has a page of its own there: the catalogue ``mistakes`` has the wrong
formulas.
"""

from itertools import chain

import numpy as np

from attnbook.diagnose.causes import _option_faults as options
from attnbook.diagnose.causes._block_faults import SIZES, of_blocks
from attnbook.diagnose.causes._fault import (
    D_of_O,
    Fault,
    faults,
    in_backward,
    in_forward,
    made_again,
    right,
    throughout,
    weights,
    without,
)
from attnbook.diagnose.causes.mistakes import MISTAKE
from attnbook.diagnose.steps import L_of, Steps, as_if_contiguous, exponentials, mT, rowsum

# --- what belongs to something else -------------------------------------------------------------------------------


def moved(axis, how):
    """K and V, K, or V of another head or batch."""

    def other(a, T):
        T = a.share(T)
        if T.ndim < -axis:
            return T
        first = np.take(T, [0], axis=axis)
        return np.roll(T, 1, axis=axis) if how == "next" else np.broadcast_to(first, T.shape)

    k, v = {"k": lambda a: other(a, a.K)}, {"v": lambda a: other(a, a.V)}
    late = {"dQ_unscaled": lambda a: a.dproducts @ other(a, a.K)}, {"dP": lambda a: a.dO @ mT(other(a, a.V))}
    return {**k, **v}, k, v, *late


def seen_as(dO):
    """The backward takes this for dO; D is made from it, or from the real one."""
    steps = {"dO_read": dO}
    dP = {"dP": lambda a: a.dropped(dO(a) @ mT(a.v), a.kept_backward)}
    return steps, {**steps, "D": D_of_O}, dP, {**dP, "D": D_of_O}, {"D": lambda a: rowsum(dO(a) * a.O)}


def in_memory(a, name, right=""):
    """An input, read as if it lay in memory in order; but for one way to lie there, that is read right."""
    kind = a.memory.get(name)
    return as_if_contiguous(getattr(a, name), None if kind == right else kind)


def padded(width):
    """The width of the scale, made up to a multiple; 0: to a power of two."""
    up = (lambda a: 2 ** int(np.ceil(np.log2(a.d_k)))) if width == 0 else (lambda a: -(-a.d_k // width) * width)
    return {"width": up}


LN2 = np.log(2)


def shifted_causal(by_):
    """Causal with its edge moved: 1 allows one key more, −1 forbids the query's own."""

    def allows(a):
        shift = {None: a.n_k, "top-left": by_, "bottom-right": a.n_k - a.n_q + by_}[a.corner]
        return np.tri(a.n_q, a.n_k, shift, dtype=bool)

    return {"causal_allows": allows}


def L_without_maximum(a):
    """The logarithm of the sum of exponentials, in which the maximum is missing; +∞ for a dead row."""
    Z = rowsum(exponentials(a.S if a.sink is None else a.column))
    return np.where(Z == 0, np.inf, np.log(np.where(Z == 0, 1.0, Z)))


def exp_before_mask(a):
    """What autograd makes of a mask put on the exponentials: 0 · ∞ where a masked one overflows."""
    M = a.S.max(axis=-1, keepdims=True, initial=-np.inf)
    E = np.exp(a.scores - np.where(np.isneginf(M), 0.0, M))
    return np.where(a.allowed, Steps.dS.func(a), 0.0 * E)


def less_maximum(M, dead=np.nan):
    """exp(S − M) over its sum, where M may be too large: 0/0, or what is put there."""

    def weights_(a):
        E = np.where(a.allowed, np.exp(a.S - M(a)), 0.0)
        sum_ = rowsum(E)
        live = a.allowed.any(axis=-1, keepdims=True)
        return np.where(sum_ > 0, E / np.where(sum_ > 0, sum_, 1.0), np.where(live, dead, 0.0) * np.ones_like(E))

    return {"P": weights_}


def first_tile(size):
    """NaN in the rows that may attend to nothing in the first tile, and to something later."""

    def weights_(a):
        late = a.allowed.any(axis=-1, keepdims=True) & ~a.allowed[..., :size].any(axis=-1, keepdims=True)
        return np.where(late, np.nan, Steps.P.func(a))

    return {"P": weights_}


def masked_by(number):
    """A finite number, added in place of −∞, or put there."""
    return (
        ("mask-minus-1e9", {"S": lambda a: a.scores + np.where(a.allowed, 0.0, number)}),
        (
            "mask-lowest-number",
            {"S": lambda a: np.where(a.allowed, a.scores, number), "dS": lambda a: a.allowed * Steps.dS.func(a)},
        ),
        ("mask-lowest-number", {"S": lambda a: np.where(a.allowed, a.scores, number)}),
    )


FINITE = (
    *(-(10.0**n) for n in (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 15, 18, 20, 30, 38)),
    -2e4, -32768.0, -5e4, -65500.0, -65504.0, -99999.0, -(2.0**31), 1 - 2.0**32,
    *(float(np.finfo(dtype).min) for dtype in (np.float32, np.float64)),
)  # fmt: skip
"""The numbers that are found in place of −∞."""


def summed(a, name):
    """dQ + dK + dV, where their shapes are one."""
    a = right(a)
    return a.dQ + a.dK + a.dV if a.dQ.shape == a.dK.shape == a.dV.shape else getattr(a, name)


def rolled(T, axis, by_):
    """T with the entries of an axis in each other's places; T itself, where it has no such axis."""
    return np.roll(T, by_, axis) if T.ndim >= -axis else T


def of_heads_third(T):
    """T as who takes memory in the order (b, n, h, d) for (b, h, n, d) reads it."""
    return np.swapaxes(T, -2, -3).reshape(T.shape) if T.ndim > 3 else T


def at_largest(a):
    """1 at the largest score of each row."""
    return np.arange(a.n_k) == a.S.argmax(axis=-1)[..., None] if a.n_k else a.S


STRIDES = "the strides of {} are ignored: it is read as if it lay in memory in order"

SCALES = (
    *((slug, MISTAKE[slug].title, MISTAKE[slug].steps, slug)
      for slug in ("no-scale", "scale-without-root", "scale-of-values", "scale-of-model", "scale-of-padding")),
    *(("scale-of-padding", MISTAKE["scale-of-padding"].title.replace(" to a multiple of 8", ""), padded(width),
       "scale-of-padding") for width in (16, 32, 64, 128, 0)),
    ("given-scale-forgotten", "the scale that is given is forgotten", {"scale": lambda a: a.width**-0.5}, None),
    ("given-scale-times-default", "the scale that is given is multiplied by 1/√d_k",
     {"scale": lambda a: a.width**-0.5 * (1 if a.given_scale is None else a.given_scale)}, None),
)  # fmt: skip

TILED = MISTAKE["group-tiled"].steps

OTHER = {None: None, "top-left": "bottom-right", "bottom-right": "top-left"}

MASKS = (
    *((slug, MISTAKE[slug].title, MISTAKE[slug].steps, slug)
      for slug in ("causal-bottom-right", "causal-top-left", "mask-inverted", "mask-added", "mask-minus-1e9",
                   "mask-lowest-number", "mask-multiplies-scores", "softmax-over-queries")),
    ("causal-forgotten", "causal is forgotten", {"corner": lambda a: None}, None),
    ("bias-forgotten", "the bias is forgotten", {"scores": lambda a: Steps.scores.func(without(a, "bias"))}, None),
)  # fmt: skip

FAULTS = (
    # --- the scale
    *chain.from_iterable(chain(in_backward(*row), in_forward(*row)) for row in SCALES),
    *(Fault("scale-of-padding", "the scale is made of a padded width", padded(width), "scale-of-padding")
      for width in (16, 32, 64, 128, 0)),
    *faults("given-scale-times-default", "the scale that is given is multiplied by 1/√d_k", SCALES[-1][2]),
    *throughout("scale-and-default", "the scores are multiplied by 1/√d_k once more",
                {"scale": lambda a: a.width**-0.5 * Steps.scale.func(a)}),
    *faults("scale-squared", "the scale is applied twice to the scores", {"scale": lambda a: Steps.scale.func(a) ** 2}),
    # --- masks
    *chain.from_iterable(chain(in_backward(*row), in_forward(*row)) for row in MASKS),
    *(Fault(slug, MISTAKE[slug].title, steps, slug) for number in FINITE for slug, steps in masked_by(number)),
    *faults("mask-forgotten-with-l", MISTAKE["mask-forgotten-with-l"].title,
            {"P_backward": lambda a: np.exp(a.scores - L_of(a))}),
    *throughout("causal-forced", "causal, whether asked for or not", {"corner": lambda a: "top-left"}),
    *throughout("causal-other-corner", "causal is lined up at the other corner",
                {"corner": lambda a: OTHER[Steps.corner.func(a)]}),
    *throughout("causal-own-key-forbidden", "causal forbids a query its own key too", shifted_causal(-1)),
    *throughout("causal-one-key-more", "causal allows one key too many", shifted_causal(1)),
    # --- scores far away
    *faults("exp-before-mask", "the mask is put on the exponentials: one that is masked overflows, and 0 · ∞ is NaN",
            {"dS": exp_before_mask}),
    *faults("maximum-of-masked", "the row's maximum counts what is masked: all that is left is 0/0",
            *(less_maximum(lambda a: a.scores.max(axis=-1, keepdims=True, initial=-np.inf), dead)
              for dead in (np.nan, 0.0))),
    *faults("maximum-from-zero", "the row's maximum is never below 0: where all scores are far below, 0/0",
            *(less_maximum(lambda a: a.S.max(axis=-1, keepdims=True, initial=0.0), dead) for dead in (np.nan, 0.0))),
    *faults("first-tile-masked", "a row whose first tile of keys is masked gives −∞ − (−∞), which is NaN",
            *map(first_tile, (16, 32, 64, 128))),
    # --- the weights of the backward
    *faults("l-in-bits", "L is in bits, and taken for nats, or the other way round",
            *weights(lambda a: np.exp(a.S - L_of(a) / LN2)), *weights(lambda a: np.exp(a.S - L_of(a) * LN2)),
            *weights(lambda a: np.exp2(a.S - L_of(a))), *weights(lambda a: np.exp2(a.S / LN2 - L_of(a)))),
    *faults("l-without-maximum", "the largest score is missing in L",
            *weights(lambda a: np.exp(a.S - np.log(rowsum(exponentials(a.S))))),
            *weights(lambda a: np.exp(a.S - L_without_maximum(a)))),
    *faults("l-is-maximum", "the weights of the backward are never divided by their sum",
            *weights(lambda a: exponentials(a.S))),
    # --- D, dP, dS
    *faults("d-unweighted", "D is rowsum(dP), without the weights", {"D": lambda a: rowsum(a.dP)}),
    *faults("d-mean", "D is a mean over the keys, not the weighted sum",
            {"D": lambda a: Steps.D.func(a) / max(a.n_k, 1)}, {"D": lambda a: rowsum(a.dP) / max(a.n_k, 1)}),
    *faults("d-unnormalized", "D is made from an O that is not yet divided by the row's sum",
            {"D": lambda a: D_of_O(a) * rowsum(exponentials(a.S))},
            {"D": lambda a: rowsum(a.dO * a.O * np.exp(L_of(a)))}),
    *faults("d-not-scaled", "the scale is put on dP, but not on D",
            {"D_less_dL": lambda a: Steps.D_less_dL.func(a) / a.scale}),
    *faults("d-scaled", "the scale is put on D, but not on dP",
            {"D_less_dL": lambda a: Steps.D_less_dL.func(a) * a.scale}),
    *faults("d-half", "D is half of what it should be", {"D": lambda a: 0.5 * Steps.D.func(a)}),
    *faults("d-twice", "D is twice what it should be", {"D": lambda a: 2 * Steps.D.func(a)}),
    *faults("d-of-first-row", "every row has the first one's D",
            {"D": lambda a: 0 * a.S[..., :1] + Steps.D.func(a)[..., :1, :]}),
    *faults("weights-twice", "the weights are put on dP twice",
            {"dS": lambda a: a.P_backward * (a.P_backward * a.dP - a.D_less_dL)}),
    *faults("maximum-half-detached", "the row's maximum is detached in the sum, but not in the exponentials",
            {"dS": lambda a: Steps.dS.func(a) - at_largest(a) * a.D},
            {"dS": lambda a: Steps.dS.func(a) + at_largest(a) * a.D}),
    # --- dO
    *faults("do-ignored", "dO is ignored: ones are taken", *seen_as(lambda a: np.ones_like(a.dO))),
    *faults("do-averaged", "dO is averaged", *seen_as(lambda a: 0 * a.dO + (a.dO.mean() if a.dO.size else 0))),
    *faults("strides-of-do", STRIDES.format("dO"),
            *seen_as(lambda a: in_memory(a, "dO")), *seen_as(lambda a: in_memory(a, "dO", "reversed")),
            *seen_as(lambda a: of_heads_third(a.dO))),
    *chain.from_iterable(
        throughout(f"strides-of-{name}", STRIDES.format(name.upper()),
                   *({name: lambda a, name=name, right=right: a.share(in_memory(a, name.upper(), right))}
                     for right in ("", "reversed"))) for name in "kv"),
    *throughout("strides-of-q", STRIDES.format("Q"),
                {"products": lambda a: a.scale * (in_memory(a, "Q") @ mT(a.k)),
                 "dK_unscaled": lambda a: mT(a.dproducts) @ in_memory(a, "Q")}),
    # --- blocks
    *chain.from_iterable(map(of_blocks, SIZES)),
    *options.FAULTS,
    # --- heads and batches
    *chain.from_iterable(
        made_again(slug, title, steps)
        for axis, thing in ((-3, "head"), (-4, "batch"))
        for how, slug, title in (
            ("next", f"kv-of-another-{thing}", f"K or V is that of another {thing}"),
            ("first", f"kv-of-first-{thing}", f"K or V is that of the first {thing} for all"),
        )
        for steps in moved(axis, how)),
    *(Fault(f"gradient-of-another-{thing}", f"a gradient is that of another {thing}",
            {T: lambda a, T=T, axis=axis, by_=by_: rolled(vars(Steps)[T].func(a), axis, by_)})
      for axis, thing in ((-3, "head"), (-4, "batch")) for T in ("dQ", "dK", "dV") for by_ in (1, -1)),
    *faults("group-sum-missing", "each query head has a dK and a dV of its own: the sum over the group is missing",
            {"gather": lambda a, dT: dT}),
    *faults("group-sum-tiled", "summed over strangers, not over the query heads that share a key head",
            {"gather": TILED["gather"]}),
    *chain.from_iterable(
        in_backward("group-tiled", MISTAKE["group-tiled"].title, steps, "group-tiled")
        for shared in (TILED, {"share": TILED["share"]})
        for steps in (shared, {**shared, "P_backward": lambda a: right(a).P})),
    *in_forward("group-tiled", MISTAKE["group-tiled"].title, TILED, "group-tiled"),
    *faults("group-overwritten", "of the query heads that share a key head, one alone counts",
            {"gather": lambda a, dT: a.groups(dT)[..., -1, :, :] if a.h != a.h_kv else dT},
            {"gather": lambda a, dT: a.groups(dT)[..., 0, :, :] if a.h != a.h_kv else dT}),
    # --- in each other's place
    *faults("dq-dk-swapped", "dQ and dK are in each other's place",
            {"dQ": lambda a: right(a).dK, "dK": lambda a: right(a).dQ}),
    *faults("dq-dv-swapped", "dQ and dV are in each other's place",
            {"dQ": lambda a: right(a).dV, "dV": lambda a: right(a).dQ}),
    *faults("gradients-turned-round", "dQ, dK, dV come in another order",
            {"dQ": lambda a: right(a).dK, "dK": lambda a: right(a).dV, "dV": lambda a: right(a).dQ},
            {"dQ": lambda a: right(a).dV, "dK": lambda a: right(a).dQ, "dV": lambda a: right(a).dK}),
    *faults("gradients-summed", "dQ + dK + dV comes for each: right for X in self-attention alone",
            {name: lambda a, name=name: summed(a, name) for name in ("dQ", "dK", "dV")}),
    *faults("gradient-is-input", "what comes is the input itself, and no gradient",
            *({name: lambda a, name=name: getattr(right(a), name[1:])} for name in ("dQ", "dK", "dV")),
            {name: lambda a, name=name: getattr(right(a), name[1:]) for name in ("dQ", "dK", "dV")}),
    # --- nothing comes
    *faults("dq-zero", "dQ is zero: the graph is cut before Q", {"dQ": lambda a: 0 * Steps.dQ.func(a)}),
    *faults("dk-zero", "dK is zero: the graph is cut before K", {"dK": lambda a: 0 * Steps.dK.func(a)}),
    *faults("dv-zero", "dV is zero: the graph is cut before V", {"dV": lambda a: 0 * Steps.dV.func(a)}),
    *faults("nothing-comes", "all gradients are zero: the graph is cut at the output",
            {name: lambda a, name=name: 0 * vars(Steps)[name].func(a) for name in ("dQ", "dK", "dV")}),
)  # fmt: skip
"""Every way of every fault."""

_IGNORING = {
    "mask": {"mask_allows": lambda a: np.full((a.n_q, a.n_k), True)},
    "bias": {"scores": lambda a: Steps.scores.func(without(a, "bias"))},
    "causal": {"corner": lambda a: None},
    "scale": {"scale": lambda a: a.width**-0.5},
}

IGNORED = (
    *(Fault(f"{name}-ignored", f"{name} is taken, and ignored", steps)
      for name, steps in (_IGNORING | options.IGNORING).items()),
    Fault("options-ignored", "mask, bias, causal and scale are taken, and ignored",
          {name: step for steps in _IGNORING.values() for name, step in steps.items()}),
)  # fmt: skip
"""Functions that take an option and do nothing with it. That is no wrong formula, but is recognized too."""
