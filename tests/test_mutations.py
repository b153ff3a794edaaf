"""The checks, proved by mistakes: each is planted in the package, and the law that should notice it must fail.

What must fail is the very test that stands in its file. Wrong formulas for attention and its gradient are planted
by test_mistakes, from the catalogue; here stands what else can go wrong.
"""

import contextlib
import importlib
import inspect
import textwrap
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import test_arrays
import test_attention
import test_checks
import test_heads
import test_linear
import test_multi_head
import test_ops
import test_softmax
import test_tiled
import test_torch_layout
import test_workers
import torch
from cases import CASE, MULTI_HEAD_CASE, Case
from compare import draw, same_everywhere
from libraries import NumPy, Strict
from routes import on

import attnbook as ab
from attnbook import arrays, checks, heads
from attnbook.diagnose import mistakes
from attnbook.ops import Bias, Causal, Dropout, Mask, Scale, Softcap, Tile, Window, chain
from attnbook.spines import cuts, dense, numpy_dense, numpy_tiled, tiled, workers
from attnbook.torch import layout

ATTENTION = importlib.import_module("attnbook.attention")
MASKS = importlib.import_module("attnbook.ops.masks")
BIAS = importlib.import_module("attnbook.ops.bias")
DROPOUT = importlib.import_module("attnbook.ops.dropout")
CHECK = importlib.import_module("attnbook.checks.check")
CAUSES = importlib.import_module("attnbook.diagnose._causes")
RUN_OF_A_CASE = importlib.import_module("attnbook.diagnose._run")
DIAGNOSE = importlib.import_module("attnbook.diagnose.report")
MULTI_HEAD = importlib.import_module("attnbook.multi_head")
SOFTMAX = importlib.import_module("attnbook.softmax")

PLAN, RECURRING = ATTENTION.plan, cuts._recurring
OPERANDS = importlib.import_module("attnbook.spines.operands")
RIGHT = {name: getattr(dense, name) for name in ("forward", "vjp", "jvp")}
RIGHT["share_heads_vjp"] = heads.share_heads_vjp
LINEAR_VJP, CUT, CHECK_VJP, BATTERY = ab.linear_vjp, Tile.cut, checks.check_vjp, DIAGNOSE.battery
FROM_STATE, TO_STATE = layout.from_state_dict, layout.to_state_dict
FROM_TORCH, TO_TORCH = layout.from_multihead_attention, layout.to_multihead_attention
MULTI_HEAD_FORWARD, MULTI_HEAD_VJP = ab.multi_head_attention, ab.multi_head_attention_vjp

SOFTMAX_DEAD = partial(test_softmax.test_rows_of_minus_infinity, "float64")
JACOBIAN = partial(test_softmax.test_the_columns_of_the_jacobian_are_derivatives, (2, 3, 5))
LINEAR_VALUES, LINEAR_GRADIENTS = (
    partial(test_linear.test_values, (2, 3)),
    partial(test_linear.test_derivatives, (2, 3)),
)
SHARED, SHARED_VJP = (
    partial(test, 3, 6)
    for test in (test_heads.test_neighbours_share_a_head, test_heads.test_the_gradient_sums_over_the_group)
)
COLUMNS, ONCE = partial(test_heads.test_heads_are_columns, 3), partial(test_workers.test_every_task_is_done_once, 3)
TORCHS_LAYER = partial(
    test_torch_layout.test_samples_of_our_own, test_torch_layout.MASKS["both"], {"kdim": 13, "vdim": 17}
)
ENGINE, SHIFTED = "tiled on NumPy", "tiled on NumPy, shifted"
values, gradients = test_attention.test_values, test_attention.test_derivatives
LAYER, layer_values, layer_gradients = MULTI_HEAD_CASE, test_multi_head.test_values, test_multi_head.test_gradients


# --- mistakes that take more than a line --------------------------------------------------------------------------


def exponentials_without_row_max(xp, S, axis):
    E = np.exp(S)
    return E, E.sum(axis=axis, keepdims=True), np.zeros_like(E.sum(axis=axis, keepdims=True))


def exponentials_that_forget_dead_rows(xp, S, axis):
    M = S.max(axis=axis, keepdims=True)
    E = np.exp(S - M)
    return E, E.sum(axis=axis, keepdims=True), M


def softmax_vjp_in_place(dP, P):
    P *= dP - np.sum(P * dP, axis=-1, keepdims=True)
    return P


def softmax_in_place(S, axis=-1):
    S -= S.max(axis=axis, keepdims=True)
    return np.exp(S) / np.exp(S).sum(axis=axis, keepdims=True)


def backward(dQ=None, dK=None, dV=None, dbias=None):
    """The backward with one of its results replaced: each is a function of the right result, dO and the residuals."""

    def vjp(dO, res):
        *grads, dparams = RIGHT["vjp"](dO, res)
        grads = [T if wrong is None else wrong(T, dO, res) for wrong, T in zip((dQ, dK, dV), grads, strict=True)]
        if dbias is not None:
            dparams = tuple(T if T is None else dbias(T, dO, res) for T in dparams)
        return *grads, dparams

    return vjp


def factor(res):
    return res.steps[0].op.factor


def causal_on_the_default_device(self, S, tile):
    xp = arrays.array_namespace(S)
    return xp.arange(tile.n_k)[None, :] <= xp.arange(tile.n_q)[:, None]


def compare_that_lets_nan_pass(errors, by, name, came, wanted, size, tolerance):
    error = np.max(np.abs(np.asarray(came) - np.asarray(wanted)), initial=0.0) / (size or 1)
    if error > tolerance:
        raise AssertionError(name)


def runs_on_a_second_device(case):
    try:
        same_everywhere(Strict(), lambda *inputs: case.attend(*inputs)[0], *case.draw())
    except ValueError as error:
        raise AssertionError("arrays met on two devices") from error


def columns_by_turns(T, h):
    """Column c belongs to head c mod h: what a reshape to (..., d, h) gives."""
    return np.moveaxis(T.reshape(*T.shape[:-1], -1, h), -1, -3)


def merged_by_turns(T):
    return np.moveaxis(T, -3, -1).reshape(*T.shape[:-3], T.shape[-2], -1)


def multi_head(params=None, output=None, **options):
    """The layer with its weights, its output or its options replaced."""

    def forward(X, p, **given):
        Y, res = MULTI_HEAD_FORWARD(X, p if params is None else params(p), **{**given, **options})
        return Y if output is None else output(Y, res), res

    return forward


def multi_head_backward(**wrong):
    """The backward with some of its results replaced: each is a function of the right ones and the residuals."""

    def vjp(dY, res):
        grads = MULTI_HEAD_VJP(dY, res)
        of_layer = {name: f(grads, dY, res) for name, f in wrong.items() if name in grads._fields}
        of_weights = {name: f(grads, dY, res) for name, f in wrong.items() if name not in grads._fields}
        return grads._replace(**{"dparams": grads.dparams._replace(**of_weights), **of_layer})

    return vjp


def path(name, dY, res):
    """What arrives at the input through the queries, the keys or the values."""
    dC = dY @ res.params.W_O.T
    dT = getattr(ab.attention_vjp(heads.split_heads(dC, res.heads[0]), res.attention), f"d{name}")
    return heads.merge_heads(dT) @ getattr(res.params, f"W_{name}").T


def parameters_read(**wrong):
    """The weights read from torch's layout, some replaced: each is a function of the right ones."""
    return lambda state: (p := FROM_STATE(state))._replace(**{name: f(p) for name, f in wrong.items()})


def call_read(weight=lambda W, b: W, mask=lambda M: M):
    """A call of torch's layer read with W_K, W_V, or the mask, replaced."""

    def read(*args, **masks):
        X, p, options = FROM_TORCH(*args, **masks)
        p = p._replace(W_K=weight(p.W_K, p.b_K), W_V=weight(p.W_V, p.b_V))
        return X, p, options | {"mask": mask(options["mask"])}

    return read


def tokens_keep_the_bias(W, b):
    """The rows of the two appended tokens without the bias taken back."""
    return torch.cat([W[:-2], W[-2:] + b])


def gradients_of_projections_as_they_are(grads, module, **masks):
    d = grads.dparams
    return TO_TORCH(grads, module, **masks) | {"in_proj_bias": torch.cat([d.b_Q, d.b_K, d.b_V])}


def cuts_remembered_by_tile(found):
    """As the engine remembers them, but whatever mask they are of."""
    return lambda op, tile, dtype: found.setdefault((tile, dtype), RECURRING(op, tile, dtype))


def tile_heads(K, h):
    return np.tile(K, (h // K.shape[-3], 1, 1))


class Lines:
    """What stands in a function, and what stands there by mistake."""

    def __init__(self, *pairs):
        self.pairs = list(zip(pairs[::2], pairs[1::2], strict=True))

    def in_(self, function):
        """The function with these mistakes, in the module that it is from."""
        function = inspect.unwrap(function)
        source = textwrap.dedent(inspect.getsource(function))
        for right, wrong in self.pairs:
            assert source.count(right) == 1, f"{function.__name__} has no such line, or more than one: {right}"
            source = source.replace(right, wrong)
        made = {}
        exec(compile(source, "mistake", "exec"), function.__globals__, made)
        return made[function.__name__]


def dropout_at(**changed):
    """A pass of dropout with another seed or another p."""
    return lambda self, T, *_: (replace(self, **{name: f(self) for name, f in changed.items()})._drop(T, _[-1]), None)


def diagnose_tells_right_from_wrong():
    """Silent about the package; a mistake in a gradient, one that needs a dead row, and two at once are named."""
    assert ab.diagnose((ab.attention, ab.attention_vjp)).ok
    for slugs in (("dk-transposed",), ("mask-lowest-number",), ("ds-mean", "dk-transposed")):
        steps = mistakes.with_mistakes(*(mistakes.MISTAKE[slug] for slug in slugs))
        report = ab.diagnose(lambda *inputs, steps=steps, **options: steps(*inputs, **options).run())
        assert set(report.mistakes) == set(slugs)


CAPPED = Case("softcap and mask", mask=(3, 5, 7), ops=((partial(Softcap, 1.5), None),))


# --- the table ----------------------------------------------------------------------------------------------------
# what it is a mistake in; the mistake; the object and its attribute that are replaced; by what; the law that notices

MISTAKES = [
    # softmax and log-sum-exp
    ("softmax", "no row maximum", SOFTMAX, "_exponentials", exponentials_without_row_max,
     partial(test_softmax.test_large_scores_do_not_overflow, "float32", 1e4)),
    ("softmax", "dead rows forgotten", SOFTMAX, "_exponentials", exponentials_that_forget_dead_rows,
     SOFTMAX_DEAD),
    ("softmax", "over all rows together", ab, "softmax", lambda S, axis=-1: np.exp(S) / np.exp(S).sum(),
     test_softmax.softmax_is_right),
    ("softmax", "sums in float16", SOFTMAX, "widen", lambda T: T,
     lambda: same_everywhere(NumPy(), ab.softmax, *draw((5, 67)))),
    ("softmax", "works in its argument", ab, "softmax", softmax_in_place,
     lambda: same_everywhere(NumPy(), ab.softmax, *draw((5, 7)))),
    ("softmax_vjp", "sum over the wrong axis", ab, "softmax_vjp",
     lambda dP, P, axis=-1: P * (dP - np.sum(dP * P, axis - 1, keepdims=True)), test_softmax.softmax_is_right),
    ("softmax_jvp", "no sum", ab, "softmax_jvp", lambda tS, P, axis=-1: P * tS, test_softmax.softmax_is_right),
    ("softmax_jacobian", "diagonal only", ab, "softmax_jacobian",
     lambda P: (P * (1 - P))[..., None] * np.eye(P.shape[-1]), JACOBIAN),
    ("softmax_jacobian", "plus for minus", ab, "softmax_jacobian",
     lambda P: P[..., None] * np.eye(P.shape[-1]) + P[..., None] * P[..., None, :],
     JACOBIAN),
    ("logsumexp", "of the mean", ab, "logsumexp", lambda S, axis=-1: np.log(np.mean(np.exp(S), axis)),
     test_softmax.logsumexp_is_right),
    ("logsumexp", "no row maximum", ab, "logsumexp", lambda S, axis=-1: np.log(np.sum(np.exp(S), axis)),
     partial(test_softmax.test_large_scores_do_not_overflow, "float32", 1e4)),
    ("logsumexp_vjp", "not weighted", ab, "logsumexp_vjp", lambda dL, P, axis=-1: np.expand_dims(dL, axis) + 0 * P,
     test_softmax.logsumexp_is_right),
    ("logsumexp_jvp", "not weighted", ab, "logsumexp_jvp", lambda tS, P, axis=-1: tS.mean(axis),
     test_softmax.logsumexp_is_right),
    # linear, broadcasting, shared heads
    ("linear", "bias forgotten", ab, "linear", lambda X, W, b=None: X @ W, LINEAR_VALUES),
    ("linear_vjp", "db without the sum over the batch", ab, "linear_vjp",
     lambda dY, X, W: LINEAR_VJP(dY, X, W)._replace(db=dY[0].sum(axis=0)), LINEAR_GRADIENTS),
    ("linear_vjp", "dW without the sum over the batch", ab, "linear_vjp",
     lambda dY, X, W: LINEAR_VJP(dY, X, W)._replace(dW=X[0].T @ dY[0]), LINEAR_GRADIENTS),
    ("linear_vjp", "db as a mean", ab, "linear_vjp",
     lambda dY, X, W: LINEAR_VJP(dY, X, W)._replace(db=dY.mean(axis=(0, 1))), LINEAR_GRADIENTS),
    ("linear_jvp", "half of the product rule", ab, "linear_jvp", lambda tX, tW, tb, X, W: tX @ W + tb,
     LINEAR_GRADIENTS),
    ("unbroadcast", "mean, not sum", arrays, "unbroadcast",
     lambda dT, shape: np.mean(dT, axis=(0, 2), keepdims=True).reshape(shape),
     partial(test_arrays.unbroadcast_is_the_adjoint, (3, 1), (2, 3, 5))),
    ("unbroadcast", "the first of all uses", arrays, "unbroadcast", lambda dT, shape: dT[0, :, :1],
     partial(test_arrays.unbroadcast_is_the_adjoint, (3, 1), (2, 3, 5))),
    ("share_heads", "repeat for repeat_interleave", heads, "share_heads", tile_heads,
     SHARED),
    ("share_heads_vjp", "mean over the group", heads, "share_heads_vjp",
     lambda dK, shape: RIGHT["share_heads_vjp"](dK, shape) * shape[-3] / dK.shape[-3],
     SHARED_VJP),
    ("share_heads_vjp", "one head of the group, in attention", OPERANDS, "share_heads_vjp",
     lambda dK, shape: dK[..., :: dK.shape[-3] // shape[-3], :, :], partial(gradients, CASE["grouped queries"])),
    ("split_heads", "reshaped without swapping axes", heads, "split_heads",
     lambda T, h: T.reshape(*T.shape[:-2], h, T.shape[-2], -1), COLUMNS),
    ("split_heads", "columns dealt out by turns", heads, "split_heads", columns_by_turns, COLUMNS),
    ("merge_heads", "reshaped without swapping axes", heads, "merge_heads",
     lambda T: T.reshape(*T.shape[:-3], T.shape[-2], -1), COLUMNS),
    ("merge_heads", "columns dealt out by turns", heads, "merge_heads", merged_by_turns, COLUMNS),
    ("merge_heads", "summed, not side by side", heads, "merge_heads", lambda T: T.sum(axis=-3),
     COLUMNS),
    # ops
    ("Scale.forward", "not scaled", Scale, "forward", lambda self, S, tile: (S, None),
     on("dense", values, CASE["plain"])),
    ("Scale.forward", "1/d_k for 1/√d_k", ATTENTION, "check_scale", lambda scale, d_k: 1 / d_k,
     partial(values, CASE["plain"])),
    ("Scale.forward", "a NumPy scalar, which widens float32", Scale, "forward",
     lambda self, S, tile: (S * np.float64(self.factor), None),
     on("dense", test_attention.test_weights_are_in_the_accumulation_dtype, "plain")),
    ("Scale.vjp", "not scaled", Scale, "vjp", lambda self, dS, saved, tile: (dS, None),
     partial(test_ops.test_derivatives, *test_ops.OPS["scale"])),
    ("Scale.vjp", "divided, not multiplied", Scale, "vjp", lambda self, dS, saved, tile: (dS / self.factor, None),
     on("dense", gradients, CASE["scale"])),
    ("Scale.jvp", "not scaled", Scale, "jvp", lambda self, tS, saved, tile, tparam=None: tS,
     partial(test_ops.test_derivatives, *test_ops.OPS["scale"])),
    ("Bias.forward", "subtracted", Bias, "forward", lambda self, S, tile: (S - self.B, None),
     partial(values, CASE["bias"])),
    ("Bias.forward", "the part at the table's corner, on every tile", Tile, "cut",
     lambda self, T: CUT(Tile.whole(len(self.rows), len(self.cols)), T),
     partial(test_ops.test_on_tiles, *test_ops.OPS["bias"])),
    ("Bias.vjp", "not summed over the axes it was broadcast on", Bias, "vjp", lambda self, dS, saved, tile: (dS, dS),
     partial(gradients, CASE["bias for all heads"])),
    ("Bias.vjp", "mean over the axes it was broadcast on", BIAS, "unbroadcast",
     lambda dT, shape: dT.mean(axis=1, keepdims=True), partial(gradients, CASE["bias for all heads"])),
    ("Bias.jvp", "its own tangent forgotten", Bias, "jvp", lambda self, tS, saved, tile, tparam=None: tS,
     partial(test_ops.test_derivatives, *test_ops.OPS["bias"])),
    ("Mask.forward", "a product, which NaN survives", Mask, "forward",
     lambda self, S, tile: (S * self.M + np.where(self.M, 0.0, -np.inf), None),
     lambda: test_ops.test_garbage_stays_behind_a_mask(Mask(np.tri(5, 7, dtype=bool)))),
    ("Mask.vjp", "forgotten in the backward", Mask, "vjp", lambda self, dS, saved, tile: (dS, None),
     partial(test_ops.test_derivatives, *test_ops.OPS["mask"])),
    ("Mask.jvp", "forgotten along tangents", Mask, "jvp", lambda self, tS, saved, tile, tparam=None: tS,
     partial(test_ops.test_derivatives, *test_ops.OPS["mask"])),
    ("Causal.forward", "top-left for bottom-right", Causal, "allowed",
     lambda self, S, tile: np.tri(tile.n_q, tile.n_k, dtype=bool),
     partial(test_ops.test_causal_counts_from_its_corner, "bottom-right", 7)),
    ("Causal.forward", "a query does not see its own key", Causal, "allowed",
     lambda self, S, tile: np.tri(tile.n_q, tile.n_k, -1, dtype=bool),
     partial(test_ops.test_causal_counts_from_its_corner, "top-left", 7)),
    ("Causal.forward", "positions counted within the tile", Causal, "allowed",
     lambda self, S, tile: np.tri(len(tile.rows), len(tile.cols), dtype=bool),
     partial(test_ops.test_on_tiles, *test_ops.OPS["causal"])),
    ("Causal.forward", "positions on another device", Causal, "allowed", causal_on_the_default_device,
     partial(runs_on_a_second_device, CASE["causal, more keys"])),
    ("Causal.vjp", "forgotten in the backward", Causal, "vjp", lambda self, dS, saved, tile: (dS, None),
     partial(test_ops.test_derivatives, *test_ops.OPS["causal"])),
    ("Causal.jvp", "forgotten along tangents", Causal, "jvp", lambda self, tS, saved, tile, tparam=None: tS,
     partial(test_ops.test_derivatives, *test_ops.OPS["causal"])),
    # attention
    ("attention", "a row that sees the future", Causal, "allowed", lambda self, S, tile: np.ones((5, 7), dtype=bool),
     partial(test_attention.test_what_is_forbidden_is_unseen, CASE["causal, more keys"])),
    ("attention", "bias added before the scale", dense, "forward",
     lambda Q, K, V, steps, shape: RIGHT["forward"](Q, K, V, steps[::-1], shape), on("dense", values, CASE["bias"])),
    ("attention_vjp", "rows of dS that do not sum to 0", dense, "softmax_vjp", lambda dP, P: P * dP,
     on("dense", test_attention.test_rows_of_dS_sum_to_zero, CASE["bias"])),
    ("attention_vjp", "keys out of balance", dense, "softmax_vjp", lambda dP, P: P * dP,
     on("dense", test_attention.test_the_gradients_of_keys_balance, CASE["plain"])),
    ("attention_vjp", "scale in dbias", dense, "vjp", backward(dbias=lambda dB, dO, res: dB * factor(res)),
     on("dense", gradients, CASE["bias"])),
    ("attention_vjp", "P overwritten", dense, "softmax_vjp", softmax_vjp_in_place,
     on("dense", test_attention.test_a_backward_may_run_twice_and_is_linear, CASE["plain"])),
    ("attention_vjp", "order of keys lost", dense, "vjp", backward(dK=lambda dK, *_: np.sort(dK, axis=-2)),
     on("dense", test_attention.test_keys_have_no_order, CASE["plain"])),
    ("attention_jvp", "the values stand still", dense, "jvp",
     lambda tQ, tK, tV, tparams, res: RIGHT["jvp"](tQ, tK, 0 * tV, tparams, res),
     on("dense", gradients, CASE["plain"])),
    ("attention_jvp", "half of the product rule", dense, "jvp",
     lambda tQ, tK, tV, tparams, res: RIGHT["jvp"](tQ, 0 * tK, tV, tparams, res),
     on("dense", gradients, CASE["plain"])),
    ("attention_jvp", "the bias stands still", dense, "jvp",
     lambda tQ, tK, tV, tparams, res: RIGHT["jvp"](tQ, tK, tV, [None] * len(tparams), res),
     on("dense", gradients, CASE["bias"])),
    # window, softcap, dropout
    ("Window.forward", "top-left for bottom-right", Window, "_shift", lambda self, tile: 0,
     partial(test_ops.test_a_window_counts_from_its_corner, 1, 1, "bottom-right", 7)),
    ("Window.forward", "left and right exchanged", Window, "allowed",
     Lines("i + min(self.right", "i + min(self.left", "i - min(self.left", "i - min(self.right"),
     partial(test_ops.test_a_window_counts_from_its_corner, 2, 1, "top-left", 7)),
    ("Window.forward", "one key too few to the left", Window, "allowed", Lines("j >= i", "j > i"),
     partial(test_ops.test_a_window_counts_from_its_corner, 2, 1, "top-left", 7)),
    ("Window.forward", "a tile that it cuts through is taken for whole", Window, "allows_all",
     Lines("tile.cols.stop - 1 <=", "tile.cols.stop - 2 <="),
     lambda: test_ops.test_a_mask_knows_its_live_tiles(Window(2, 1))),
    ("Window.forward", "a pattern of another place", Window, "pattern",
     lambda self, tile: Tile(range(len(tile.rows)), range(len(tile.cols)), 0, 0),
     lambda: test_ops.test_a_mask_knows_its_live_tiles(Window(2, 1))),
    ("Window.forward", "a pattern of the other corner", Window, "pattern", Lines("self._shift(tile)", "0"),
     lambda: test_ops.test_a_mask_knows_its_live_tiles(Window(2, 1, "bottom-right"))),
    ("Window.forward", "the last live key is not visited", Window, "live",
     Lines("rows.stop + shift + self.right", "rows.stop - 1 + shift + self.right"),
     on(ENGINE, values, CASE["causal, more keys"])),
    ("Window.forward", "the first live query is not visited", Window, "live",
     Lines("cols.start - shift - self.right", "cols.start + 1 - shift - self.right"),
     on(ENGINE, values, CASE["window"])),
    ("Window.vjp", "forgotten in the backward", Window, "vjp", lambda self, dS, saved, tile: (dS, None),
     partial(test_ops.test_derivatives, *test_ops.OPS["window, op 0"])),
    ("Window.jvp", "forgotten along tangents", Window, "jvp", lambda self, tS, saved, tile, tparam=None: tS,
     partial(test_ops.test_derivatives, *test_ops.OPS["window, op 0"])),
    ("Mask.forward", "the last live key is not visited", MASKS, "_around",
     Lines("live.shape[0] - int(", "live.shape[0] - 1 - int("), on(ENGINE, values, CASE["mask of padding"])),
    ("Softcap.forward", "not multiplied by the cap", Softcap, "forward",
     lambda self, S, tile: (np.tanh(S / self.cap), np.tanh(S / self.cap)), test_ops.test_softcap_bounds_the_scores),
    ("Softcap.forward", "after the mask", dense, "forward",
     lambda Q, K, V, steps, shape: RIGHT["forward"](Q, K, V, [steps[0], *steps[:0:-1]], shape),
     on("dense", values, CAPPED)),
    ("Softcap.vjp", "the slope at the capped score", Softcap, "vjp",
     lambda self, dS, saved, tile: (dS * (1 - (self.cap * saved) ** 2), None), partial(gradients, CASE["softcap"])),
    ("Softcap.vjp", "forgotten in the backward", Softcap, "vjp", lambda self, dS, saved, tile: (dS, None),
     on(ENGINE, gradients, CASE["softcap"])),
    ("Softcap.jvp", "forgotten along tangents", Softcap, "jvp", lambda self, tS, saved, tile, tparam=None: tS,
     partial(test_ops.test_derivatives, *test_ops.OPS["softcap, op 0"])),
    ("Dropout.forward", "the share p is kept", Dropout, "kept", Lines("number >=", "number <"),
     test_ops.test_dropout_keeps_its_share),
    ("Dropout.forward", "not divided by 1 − p", Dropout, "_drop", Lines("(1 / (1 - float(self.p)))", "1.0"),
     test_ops.test_dropout_keeps_its_share),
    ("Dropout.forward", "numbers that are hardly stirred", DROPOUT, "_mix", lambda x: x,
    test_ops.test_dropout_is_unrelated_from_place_to_place),
    ("Dropout.forward", "the same in every batch", Dropout, "kept",
     Lines("_mix(place + 1)", "_mix(0 * place + (place if number.ndim else 0) + 1)"),
     test_ops.test_dropout_is_unrelated_from_place_to_place),
    ("Dropout.forward", "heads counted within the block", Dropout, "kept", Lines("tile.lead or tuple", "tuple"),
     test_ops.test_dropout_is_the_same_on_any_tile),
    ("Dropout.forward", "places counted within the tile", Dropout, "kept",
     Lines("tile.rows, tile.cols)", "range(len(tile.rows)), range(len(tile.cols)))"),
     test_ops.test_dropout_is_the_same_on_any_tile),
    ("Dropout.vjp", "drawn anew in the backward", Dropout, "vjp", dropout_at(seed=lambda self: self.seed + 1),
     partial(gradients, CASE["dropout"])),
    ("Dropout.vjp", "not divided by 1 − p in the backward", Dropout, "vjp",
     lambda self, dW, saved, tile: (np.where(self.kept(dW, tile), dW, 0.0), None), partial(gradients, CASE["dropout"])),
    ("Dropout.jvp", "forgotten along tangents", Dropout, "jvp", lambda self, tP, saved, tile, tparam=None: tP,
     partial(gradients, CASE["dropout"])),
    # the dense spine on NumPy
    ("numpy_dense.forward", "dead rows forgotten", numpy_dense, "_softmax", Lines("Z[Z == 0] = 1", "pass"),
     partial(test_attention.test_dead_rows_are_exactly_zero, CASE["mask with a dead row"])),
    *(("numpy_dense.forward", mistake, numpy_dense, "forward", Lines(right, wrong), partial(law, CASE[case]))
      for mistake, right, wrong, law, case in (
          ("not scaled", "q * found.factor", "q", values, "plain"),
          ("the mask forgotten", "put(S, cuts_of(found.masks, tile, S.dtype), -np.inf)", "pass", values, "mask"),
          ("a saved array overwritten", "out=np.empty_like(S)", "out=S", gradients, "op that saves its result"),
      )),
    ("numpy_dense.forward", "a bias taken for nothing", numpy_dense, "scale_and_masks",
     Lines("all(isinstance(op, Masking) for op in others)", "True",
           "tuple(others)", "tuple(op for op in others if isinstance(op, Masking))"),
     partial(values, CASE["bias"])),
    *(("numpy_dense.vjp", mistake, numpy_dense, "vjp", Lines(right, wrong), partial(gradients, CASE[case]))
      for mistake, right, wrong, case in (
          ("no row sum", "np.subtract(dP, np.vecdot(dP, res.P)[..., None], out=dP)", "dP", "plain"),
          ("the scale in dQ forgotten", "dQ *= found.factor", "pass", "plain"),
          ("the scale in dK forgotten", "dK *= found.factor", "pass", "plain"),
          ("as if nothing were dropped", "if not found:", "if False:", "dropout"),
          ("ops forgotten in the backward", "if found:", "found = found or res.steps[0].op\n    if True:", "softcap"),
      )),
    ("numpy_dense.vjp", "P overwritten", numpy_dense, "vjp",
     Lines("dS *= res.P", "dS = np.multiply(dS, res.P, out=res.P)"),
     partial(test_tiled.test_residuals_are_left_alone, CASE["plain"])),
    # the tiled spine
    ("tiled.forward", "a tile is visited twice", tiled, "forward",
     Lines("in pieces(range(n_k), n_cols):", "in [range(min(n_k, n_cols)), *pieces(range(n_k), n_cols)]:"),
     on("tiled", values, CASE["plain"])),
    ("tiled.forward", "every tile is visited twice", tiled, "forward",
     Lines("for cols in pieces(range(n_k), n_cols):", "for cols in 2 * pieces(range(n_k), n_cols):"),
     on("tiled", test_tiled.test_L_is_the_logsumexp_of_the_scores, CASE["plain"])),
    ("tiled.forward", "the ragged end is left out", tiled, "pieces", Lines("len(places), max", "len(places) - 1, max"),
     on("tiled", values, CASE["plain"])),
    ("tiled.forward", "Z is not faded", tiled, "forward", Lines("fade * Z", "Z"), on("tiled", values, CASE["plain"])),
    ("tiled.forward", "the output is not faded", tiled, "forward", Lines("fade * A", "A"),
     on("tiled", values, CASE["plain"])),
    ("tiled.forward", "∞ − ∞ in a dead row", tiled, "forward",
     Lines("xp.where(highest == -xp.inf, xp.zeros_like(highest), highest)", "highest"),
     on("tiled", test_attention.test_dead_rows_are_exactly_zero, CASE["mask with a dead row"])),
    ("tiled.forward", "0 / 0 in a dead row", tiled, "forward", Lines("dead = Z == 0", "dead = Z < 0"),
     on("tiled", test_attention.test_dead_rows_are_exactly_zero, CASE["mask with a dead row"])),
    ("tiled.forward", "masked tiles are visited too", chain, "live", lambda steps, tile: tile,
     on("tiled", test_tiled.test_each_live_tile_is_visited_once, {"causal": True})),
    ("tiled.forward", "dropped weights are missing from Z", tiled, "forward",
     Lines("xp.sum(E, axis", "xp.sum(chain.forward(steps, E, tile, 'weights')[0], axis"),
     on("tiled", values, CASE["dropout"])),
    *(("tiled.vjp", mistake, tiled, name, Lines(right, wrong), on("tiled", gradients, CASE[case]))
      for mistake, name, right, wrong, case in (
          ("M forgotten", "_weights", "S - _at(res.M, tile.rows) * res.unit", "S", "plain"),
          ("Z forgotten", "_weights", " / _at(res.Z, tile.rows)", "", "plain"),
          ("the mask forgotten where P is made again", "_weights", "res.steps, tile",
           "[s if s.asked_by == 'scale' else s._replace(op=type(res.steps[0].op)(1.0)) for s in res.steps], tile",
           "mask"),
          ("D is added", "vjp", "dP - _at(D, rows)", "dP + _at(D, rows)", "plain"),
          ("D left out", "vjp", "(dP - _at(D, rows))", "dP", "plain"),
          ("D from dO alone", "vjp", "xp.sum(dO * res.O,", "xp.sum(dO,", "plain"),
          ("the softmax of dropped weights", "vjp", "P * (dP - _at", "W * (dP - _at", "dropout"),
          ("dP as if nothing were dropped", "vjp", "P * (dP - _at", "P * (dW - _at", "dropout"),
          ("dV as if nothing were dropped", "vjp", "mT(W) @ dO_i", "mT(P) @ dO_i", "dropout"),
          ("dQ of the last keys alone", "vjp", "dQ_i + dS", "dS", "plain"),
          ("dK of the last queries alone", "vjp", "dK[j] + mT(dS)", "mT(dS)", "plain"),
          ("dV of the last queries alone", "vjp", "dV[j] + mT(W)", "mT(W)", "plain"),
      )),
    *(("tiled.vjp", f"dbias of the last tile alone, {route}", chain, "collect",
       Lines("dparams[place][at] += dparam", "dparams[place][at] = dparam"),
       on(route, gradients, CASE["bias for all queries"])) for route in ("tiled", ENGINE)),
    ("tiled.jvp", "no mean", tiled, "jvp", Lines("tA - mean * _at(res.O, rows)", "tA"),
     on("tiled", gradients, CASE["plain"])),
    ("tiled.jvp", "the values stand still", tiled, "jvp", Lines(" + W @ _at(tv, cols)", ""),
     on("tiled", gradients, CASE["plain"])),
    # the tiled spine on NumPy
    *(("numpy_tiled.forward", mistake, numpy_tiled._Work, name, Lines(*lines), on(route, law, CASE[case]))
      for mistake, name, lines, route, law, case in (
          ("log₂e forgotten", "__init__", ("found.factor * LOG2E,", "found.factor,"), ENGINE, values, "plain"),
          ("Z is not faded", "forward_block", ("z *= fade", "pass"), SHIFTED, values, "plain"),
          ("the output is not faded", "forward_block", ("A *= fade", "pass"), SHIFTED, values, "plain"),
          ("0 / 0 in a dead row", "forward_block", ("dead = Z == 0", "dead = Z < 0"), ENGINE,
           test_attention.test_dead_rows_are_exactly_zero, "mask with a dead row"),
          ("∞ − ∞ in a dead row", "forward_block",
           ("np.where(highest == -np.inf, self.dtype.type(0), highest)", "highest"), SHIFTED,
           test_attention.test_dead_rows_are_exactly_zero, "bias with a dead row"),
          ("masked exponentials stay", "forward_block", ("put(E, cuts, 0)", "pass"), ENGINE, values,
           "causal, more keys"),
          ("masked scores stay", "forward_block", ("put(E, cuts, -np.inf)", "pass"), SHIFTED,
           values, "causal, more keys"),
          ("O is not zeroed for the fading", "forward_block", ("if shifted or not straight:", "if not straight:"),
           SHIFTED, test_tiled.test_fresh_memory_is_not_read, "plain"),
          ("O is not zeroed where the first tile leaves out rows", "forward_block",
           ("if shifted or not straight:", "if shifted:"), ENGINE, test_tiled.test_fresh_memory_is_not_read,
           "mask with a dead row"),
          ("O is not zeroed where no tile is live", "forward_block",
           ("if shifted or not straight:", "if shifted or strips[0][1] and not straight:"), ENGINE,
           test_tiled.test_fresh_memory_is_not_read, "bottom-right, fewer keys"),
          ("a first tile that leaves out rows is taken for whole", "forward_block",
           ("_starts_with(strips, block.rows)", "bool(strips[0][1])"), ENGINE, test_tiled.test_fresh_memory_is_not_read,
           "mask with a dead row"),
      )),
    ("numpy_tiled.forward", "the fast lane with a bias", numpy_tiled, "scale_and_masks",
     Lines("all(isinstance(op, Masking) for op in others)", "True",
           "tuple(others)", "tuple(op for op in others if isinstance(op, Masking))"),
     on(ENGINE, values, CASE["bias"])),
    ("numpy_tiled.forward", "no tile adds to what is there", numpy_tiled, "_add",
     Lines("return False", "return straight"), on(ENGINE, values, CASE["causal, more keys"])),
    ("numpy_tiled.forward", "one mask cuts, of two", numpy_tiled, "cuts_of", Lines("in masks:", "in masks[:1]:"),
     on(ENGINE, values, CASE["window and causal"])),
    *(("numpy_tiled.forward", mistake, where, name, Lines(*lines), on(route, values, CASE["causal, more keys"]))
      for mistake, where, name, lines, route in (
          ("a cut at the corner of the tile", cuts, "_recurring",
           ("Cut(at,", "Cut((..., *(slice(0, s.stop - s.start) for s in at[1:])),"), ENGINE),
          ("a cut without its last row", cuts, "_recurring", ("rows[-1] + 1", "rows[-1]"), ENGINE),
          ("a cut without its last column", cuts, "_recurring", ("cols[-1] + 1", "cols[-1]"), ENGINE),
          ("1 where it is forbidden, 0 elsewhere", cuts, "_recurring", ("(~forbidden[at])", "forbidden[at]"), ENGINE),
          ("forbidden exponentials stay where a pattern recurs", numpy_tiled, "put",
           ("T[cut.at] *= cut.allowed", "pass"), ENGINE),
          ("forbidden scores become 0", numpy_tiled, "put", ("value == 0 and cut", "cut"), SHIFTED),
          ("a cut is taken for the whole tile", numpy_tiled, "put", ("T[cut.at], value", "T, value"), SHIFTED),
      )),
    ("numpy_tiled.forward", "no shift where one is needed", numpy_tiled, "BITS_WITHOUT_SHIFT", np.inf,
     on(ENGINE, test_attention.test_large_scores_do_not_overflow, "float32", 1e4, small=False)),
    ("numpy_tiled.forward", "masked tiles are visited too", chain, "live", lambda steps, tile: tile,
     on(ENGINE, test_tiled.test_masked_exponentials_are_not_made, {"causal": True})),
    ("numpy_tiled.forward", "two masks share their cuts", cuts, "_recurring", cuts_remembered_by_tile({}),
     on(ENGINE, values, CASE["window and causal"])),
    ("numpy_tiled.forward", "the table is one tile", numpy_tiled, "_cols", lambda *_, **__: 2**20,
     partial(test_tiled.test_memory_grows_linearly, ENGINE, {})),
    ("numpy_tiled.forward", "a head of keys for the wrong queries", numpy_tiled, "_heads",
     Lines("slice(r.start * own // size, (r.stop - 1) * own // size + 1)", "slice(r.start % own, r.start % own + 1)"),
     on(ENGINE, values, CASE["keys and values grouped apart"])),
    *(("numpy_tiled.vjp", mistake, numpy_tiled._Work, name, Lines(*lines), on(route, law, CASE[case]))
      for mistake, name, lines, route, law, case in (
          ("M forgotten", "backward_block", ("M_i = M[at]", "M_i = 0 * M[at]"),
           SHIFTED, gradients, "plain"),
          ("Z forgotten", "backward_block", ("np.divide(dO[at], Z[at],", "np.divide(dO[at], 1,"), ENGINE,
           gradients, "plain"),
          ("D is added", "backward_block", ("np.negative(np.vecdot", "np.positive(np.vecdot"), ENGINE, gradients,
           "plain"),
          ("ln 2 in dK forgotten", "backward_block", ("dK *= self.dtype.type(self.in_dK)", "pass"), ENGINE, gradients,
           "plain"),
          ("the scale in dQ forgotten", "backward_block", ("dQ *= self.dtype.type(self.in_dQ)", "pass"), ENGINE,
           gradients, "plain"),
          ("ln 2 in dQ, the scale in dK", "__init__", ("self.in_dQ, self.in_dK =", "self.in_dK, self.in_dQ ="), ENGINE,
           gradients, "plain"),
          ("masked exponentials stay", "exponentials", ("put(E, cuts, 0)", "pass"), ENGINE, gradients,
           "causal, more keys"),
          ("masked scores stay", "exponentials", ("put(S, cuts, -np.inf)", "pass"), SHIFTED,
           gradients, "causal, more keys"),
          ("rows in the wrong place", "strips", ("_slice(tile.rows, rows),", "slice(len(tile.rows)),"), ENGINE,
           gradients, "causal, more keys"),
          ("dQ begins with anything", "backward_block", ("if not first:", "if False:"), ENGINE,
           test_tiled.test_fresh_memory_is_not_read, "mask with a dead row"),
          ("a first tile that leaves out rows is taken for whole", "backward_block",
           ("_starts_with([(rows, visits)], rows)", "bool(visits)"), ENGINE, test_tiled.test_fresh_memory_is_not_read,
           "mask with a dead row"),
          ("a strip without a live tile is passed over", "backward_block", ("sums.give(strip, place, [])", "pass"),
           ENGINE, gradients, "causal, more keys"),
          ("O is overwritten", "backward_block",
           ("np.vecdot(dO1[..., :-1], O[at])", "np.sum(np.multiply(dO1[..., :-1], O[at], out=O[at]), -1)"),
           ENGINE, test_tiled.test_residuals_are_left_alone, "plain"),
          ("sums are not zeroed", "backward_block", ("if not straight:", "if False:"), ENGINE,
           test_tiled.test_fresh_memory_is_not_read, "plain"),
          ("sums are not zeroed where the only tile is cut down", "backward_block",
           ("tiles == [(block.rows, block.cols)]", "len(tiles) == 1"), ENGINE, test_tiled.test_fresh_memory_is_not_read,
           "one tile, cut down"),
          ("the first of many tiles is taken for the only one", "backward_block",
           ("tiles == [(block.rows, block.cols)]", "bool(tiles)"), ENGINE, gradients, "plain"),
          ("one buffer for three", "backward_block",
           ("(_Buffer(self.dtype) for _ in range(3))", "[_Buffer(self.dtype)] * 3"),
           ENGINE, gradients, "plain"),
          ("dP as if nothing were dropped", "dS", ("np.add(dP, dO1", "np.add(dW, dO1"), ENGINE, gradients,
           "dropout"),
          ("ops forgotten in the backward", "dS", ("if not self.fast:", "if False:"), ENGINE, gradients, "softcap"),
      )),
    *(("numpy_tiled.vjp", mistake, numpy_tiled._Sums, "__init__", Lines(right, wrong), on(ENGINE, law, CASE[case]))
      for mistake, right, wrong, law, case in (
          ("blocks of keys write dQ over one another's", " and n <= 1", "", gradients, "plain"),
          ("the sums of several blocks begin with anything", "(np.empty_like if self._alone[name] else np.zeros_like)",
           "np.empty_like", test_tiled.test_fresh_memory_is_not_read, "plain"),
      )),
    ("numpy_tiled.vjp", "blocks of keys overwrite one another's sums", workers.InOrder, "give",
     Lines("where += what", "where[...] = what"), on(ENGINE, gradients, CASE["plain"])),
    ("numpy_tiled.vjp", "a shift that only other heads needed is forgotten", numpy_tiled._Work, "backward_block",
     Lines("shifted or bool(", "shifted and bool("), test_tiled.test_heads_may_be_grouped_anew),
    ("numpy_tiled.vjp", "sums as the tasks end", workers.InOrder, "give",
     lambda self, key, place, adds: [where.__iadd__(what) for where, what in adds],
     test_workers.test_sums_are_in_order),
    ("numpy_tiled.jvp", "M in bits for M in nats", numpy_tiled, "jvp",
     lambda tQ, tK, tV, tparams, res: tiled.jvp(tQ, tK, tV, tparams, res._replace(unit=1.0)),
     on(SHIFTED, gradients, CASE["plain"])),
    # workers
    ("get_num_threads", "always one", ab, "get_num_threads", lambda: 1, test_workers.test_threads_are_as_many_as_set),
    ("set_num_threads", "changes nothing", ab, "set_num_threads", lambda n: None,
    test_workers.test_threads_are_as_many_as_set),
    ("run", "BLAS keeps its threads", workers, "one_blas_thread", contextlib.nullcontext, ONCE),
    ("run", "BLAS stays on one thread", workers, "_lift", lambda *_: None, ONCE),
    ("run", "a task is done twice", workers, "run",
     Lines("task(place, entry)\n", "task(place, entry), task(place, entry)\n"),
     ONCE),
    ("run", "a helper's error is lost", workers, "run", Lines("future.result()", "future.exception()"),
     partial(test_workers.test_an_error_reaches_the_caller, True, ZeroDivisionError)),
    ("run", "a worker is left", workers, "stop_after", lambda *_: None,
     partial(test_workers.test_an_error_reaches_the_caller, False, ZeroDivisionError)),
    ("run", "an interrupt leaves a worker", workers, "stop_after", lambda futures, stop: workers.wait(futures),
     test_workers.test_an_interrupt_while_waiting_leaves_no_worker),
    # multi-head attention
    ("multi_head_attention", "heads split without swapping axes", MULTI_HEAD, "split_heads",
     lambda T, h: T.reshape(*T.shape[:-2], h, T.shape[-2], -1), partial(layer_values, LAYER["cross"])),
    ("multi_head_attention", "heads split by turns", MULTI_HEAD, "split_heads", columns_by_turns,
     partial(layer_values, LAYER["cross"])),
    ("multi_head_attention", "heads merged without swapping axes", MULTI_HEAD, "merge_heads",
     lambda T: T.reshape(*T.shape[:-3], T.shape[-2], -1), partial(layer_values, LAYER["cross"])),
    ("multi_head_attention", "heads merged by turns", MULTI_HEAD, "merge_heads", merged_by_turns,
     partial(layer_values, LAYER["self"])),
    ("multi_head_attention", "1/√(h·d_k) for 1/√d_k", MULTI_HEAD, "plan",
     lambda X, shape, d_k, **options: PLAN(X, shape, d_k=d_k * shape[-3], **options),
     partial(layer_values, LAYER["cross"])),
    ("multi_head_attention", "W_Q for the keys", ab, "multi_head_attention",
     multi_head(params=lambda p: p._replace(W_K=p.W_Q)), partial(layer_values, LAYER["all widths equal"])),
    ("multi_head_attention", "W_O transposed", ab, "multi_head_attention",
     multi_head(params=lambda p: p._replace(W_O=p.W_O.T)), partial(layer_values, LAYER["all widths equal"])),
    ("multi_head_attention", "memory ignored", ab, "multi_head_attention", multi_head(memory=None),
     partial(layer_values, LAYER["all widths equal"])),
    ("multi_head_attention", "biases forgotten", ab, "multi_head_attention",
     multi_head(params=lambda p: p._replace(b_V=None)), partial(layer_values, LAYER["cross"])),
    ("multi_head_attention", "b_O once for each head", ab, "multi_head_attention",
     multi_head(output=lambda Y, res: Y + 2 * res.params.b_O), partial(layer_values, LAYER["cross"])),
    ("multi_head_attention", "mask forgotten", ab, "multi_head_attention", multi_head(mask=None),
     partial(layer_values, LAYER["mask of padding"])),
    ("multi_head_attention", "hidden tokens leak", ab, "multi_head_attention", multi_head(mask=None),
     test_multi_head.test_forbidden_tokens_get_no_gradient),
    ("multi_head_attention", "NaN in a dead row", ab, "multi_head_attention",
     multi_head(output=lambda Y, res: np.where(np.arange(Y.shape[-2])[:, None] == 1, np.nan, Y)),
     test_multi_head.test_dead_queries_give_the_bias),
    ("multi_head_attention", "16-bit floats rounded at each step", MULTI_HEAD, "widen", lambda T: T,
     partial(test_multi_head.test_every_library_gives_the_same, NumPy(), LAYER["cross"])),
    ("multi_head_attention_vjp", "heads of dC split without swapping axes", MULTI_HEAD, "attention_vjp",
     lambda dO, res: ab.attention_vjp(np.swapaxes(dO, -2, -3).reshape(dO.shape), res),
     partial(layer_gradients, LAYER["cross"])),
    *(("multi_head_attention_vjp", f"the path through d{name} is lost in dX", ab, "multi_head_attention_vjp",
       multi_head_backward(dX=lambda g, dY, res, name=name: g.dX - path(name, dY, res)),
       partial(layer_gradients, LAYER["self"])) for name in "QKV"),
    ("multi_head_attention_vjp", "memory's gradient is not added to dX", ab, "multi_head_attention_vjp",
     multi_head_backward(dX=lambda g, dY, res: path("Q", dY, res)),
     partial(test_multi_head.test_self_attention_is_cross_attention_with_itself, LAYER["self"])),
    *(("multi_head_attention_vjp", f"the path through d{name} is lost in dmemory", ab, "multi_head_attention_vjp",
       multi_head_backward(dmemory=lambda g, dY, res, name=name: g.dmemory - path(name, dY, res)),
       partial(layer_gradients, LAYER["cross"])) for name in "KV"),
    ("multi_head_attention_vjp", "dW_Q and dW_K exchanged", ab, "multi_head_attention_vjp",
     multi_head_backward(W_Q=lambda g, *_: g.dparams.W_K, W_K=lambda g, *_: g.dparams.W_Q),
     partial(layer_gradients, LAYER["all widths equal"])),
    *(("multi_head_attention_vjp", f"d{name} transposed", ab, "multi_head_attention_vjp",
       multi_head_backward(**{name: lambda g, dY, res, name=name: getattr(g.dparams, name).T.copy()}),
       partial(layer_gradients, LAYER["all widths equal"])) for name in ("W_Q", "W_K", "W_V", "W_O")),
    *(("multi_head_attention_vjp", f"d{name}, a mean over the batch", ab, "multi_head_attention_vjp",
       multi_head_backward(**{name: lambda g, dY, res, name=name: getattr(g.dparams, name) / 2}),
       partial(layer_gradients, LAYER["cross"]))
      for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_V", "b_O")),
    ("multi_head_attention_vjp", "db_K is not 0", ab, "multi_head_attention_vjp",
     multi_head_backward(b_K=lambda g, *_: g.dparams.b_Q),
     partial(test_multi_head.test_keys_need_no_bias, LAYER["cross"])),
    ("multi_head_attention_vjp", "heads of dW_Q in another order", ab, "multi_head_attention_vjp",
     multi_head_backward(W_Q=lambda g, *_: np.roll(g.dparams.W_Q, 11, axis=1)),
     partial(test_multi_head.test_projections_balance, LAYER["cross"])),
    ("multi_head_attention_vjp", "heads of dW_V in another order", ab, "multi_head_attention_vjp",
     multi_head_backward(W_V=lambda g, *_: np.roll(g.dparams.W_V, 13, axis=1)),
     partial(test_multi_head.test_projections_balance, LAYER["cross"])),
    ("multi_head_attention_vjp", "heads of dW_O sorted", ab, "multi_head_attention_vjp",
     multi_head_backward(W_O=lambda g, *_: np.sort(g.dparams.W_O, axis=0)),
     partial(test_multi_head.test_heads_have_no_order, "cross")),
    ("multi_head_attention_vjp", "mean over the heads that share", OPERANDS, "share_heads_vjp",
     lambda dK, shape: RIGHT["share_heads_vjp"](dK, shape) / 2, partial(layer_gradients, LAYER["grouped"])),
    ("multi_head_attention_vjp", "the first of the heads that share", OPERANDS, "share_heads_vjp",
     lambda dK, shape: dK[..., :: dK.shape[-3] // shape[-3], :, :],
     partial(test_multi_head.test_shared_heads_add_up, "grouped")),
    ("multi_head_attention_vjp", "dbias of the first head", ab, "multi_head_attention_vjp",
     multi_head_backward(dbias=lambda g, *_: 0 * g.dbias + g.dbias[:1]),
     partial(layer_gradients, LAYER["bias for all batches"])),
    ("multi_head_attention_vjp", "the residuals are overwritten", dense, "softmax_vjp", softmax_vjp_in_place,
     on("dense", test_multi_head.test_a_backward_may_run_twice_and_is_linear, LAYER["cross"])),
    # torch's layout
    ("from_state_dict", "not transposed", layout, "from_state_dict", parameters_read(W_O=lambda p: p.W_O.mT),
     TORCHS_LAYER),
    ("from_state_dict", "queries and keys exchanged", layout, "from_state_dict",
     parameters_read(b_Q=lambda p: p.b_K), TORCHS_LAYER),
    ("to_state_dict", "not transposed", layout, "to_state_dict",
     lambda p: TO_STATE(p) | {"out_proj.weight": p.W_O}, TORCHS_LAYER),
    ("to_state_dict", "keys, values, queries", layout, "to_state_dict",
     lambda p: TO_STATE(p._replace(b_Q=p.b_K, b_K=p.b_V, b_V=p.b_Q)), TORCHS_LAYER),
    ("from_multihead_attention", "True = may attend", layout, "from_multihead_attention", call_read(mask=lambda M: ~M),
     TORCHS_LAYER),
    ("from_multihead_attention", "appended tokens are forbidden", layout, "from_multihead_attention",
     call_read(mask=lambda M: M & torch.tensor([True] * 7 + [False] * 2)), TORCHS_LAYER),
    ("from_multihead_attention", "appended tokens are projected too", layout, "from_multihead_attention",
     call_read(weight=tokens_keep_the_bias), TORCHS_LAYER),
    ("to_multihead_attention", "appended tokens give nothing to the biases", layout, "to_multihead_attention",
     gradients_of_projections_as_they_are, TORCHS_LAYER),
    ("to_multihead_attention", "the appended key and value exchanged", layout, "to_multihead_attention",
     lambda grads, *args, **masks: (
         (found := TO_TORCH(grads, *args, **masks)) | {"bias_k": found["bias_v"], "bias_v": found["bias_k"]}),
     TORCHS_LAYER),
    # the checks themselves
    ("check_vjp", "autograd is not asked", CHECK, "has_torch", lambda: False,
    test_checks.test_check_vjp_refuses_what_is_wrong),
    ("check_vjp", "differences count for nothing", CHECK, "DIFFERENCES", np.inf,
     test_checks.test_differences_see_what_autograd_is_kept_from),
    ("check_vjp", "only the first input", checks, "check_vjp",
     lambda f, grads, at, cotangent: CHECK_VJP(f, [grads[0], None], at=at, cotangent=cotangent),
     test_checks.test_check_vjp_refuses_what_is_wrong),
    ("check_vjp", "NaN passes", CHECK, "_compare", compare_that_lets_nan_pass,
    test_checks.test_check_vjp_refuses_what_is_wrong),
    ("check_vjp", "refuses all", CHECK, "EXACT", 0.0, test_checks.test_they_accept_what_is_right),
    ("check_jvp", "autograd is not asked", CHECK, "has_torch", lambda: False,
    test_checks.test_check_jvp_refuses_what_is_wrong),
    ("check_jvp", "NaN passes", CHECK, "_compare", compare_that_lets_nan_pass,
    test_checks.test_check_jvp_refuses_what_is_wrong),
    ("check_adjoint", "too easy", CHECK, "EXACT", 1e-6, test_checks.test_check_adjoint_refuses_what_is_wrong),
    ("check_adjoint", "NaN passes", CHECK, "_compare", compare_that_lets_nan_pass,
     test_checks.test_check_adjoint_refuses_what_is_wrong),
    ("close", "broadcasts", checks, "close", lambda A, B: bool(np.allclose(A, B, rtol=1e-12, atol=1e-12)),
     test_checks.test_close),
    ("close", "too easy", CHECK, "EXACT", 1e-6, test_checks.test_close),
    ("diagnose", "nothing is ever off", RUN_OF_A_CASE, "_largest", lambda T: 0.0, diagnose_tells_right_from_wrong),
    ("diagnose", "rounding is a mistake", RUN_OF_A_CASE, "EPS", dict.fromkeys(RUN_OF_A_CASE.EPS, 0.0),
     diagnose_tells_right_from_wrong),
    ("diagnose", "only the simple cases", DIAGNOSE, "battery", lambda *args: BATTERY(*args)[:5],
     diagnose_tells_right_from_wrong),
    ("diagnose", "knows no wrong formula", DIAGNOSE, "KNOWN", {m.slug: m for m in DIAGNOSE.IGNORED},
     diagnose_tells_right_from_wrong),
    ("diagnose", "two at once are one too many", CAUSES, "_apart", lambda mistakes: False,
     diagnose_tells_right_from_wrong),
    ("central_difference", "one-sided", checks, "central_difference", checks.forward_difference,
     test_checks.test_differences_converge),
    ("central_difference", "divided by h", checks, "central_difference",
     lambda f, x, t, h=1e-5: (f(x + h * t) - f(x - h * t)) / h, test_checks.test_differences_converge),
    ("forward_difference", "divided by 2h", checks, "forward_difference",
     lambda f, x, t, h=1e-8: (f(x + h * t) - f(x)) / (2 * h), test_checks.test_differences_converge),
    ("complex_step", "the real part", checks, "complex_step", lambda f, x, t, h=1e-200: f(x + 1j * h * t).real / h,
     test_checks.test_differences_converge),
    ("autograd_vjp", "ones for the cotangent", checks, "autograd_vjp",
     lambda f, at, cotangent: CHECK.autograd_vjp(f, at, np.ones_like(cotangent)), test_checks.test_autograd),
    ("autograd_jvp", "the first input only", checks, "autograd_jvp",
     lambda f, at, tangents: CHECK.autograd_jvp(f, at, [tangents[0], 0 * tangents[1]]), test_checks.test_autograd),
]  # fmt: skip


@pytest.mark.parametrize(
    ("where", "attribute", "wrong", "law"),
    [pytest.param(*row, id=f"{of}-{mistake}") for of, mistake, *row in MISTAKES],
)
def test_it_is_noticed(where, attribute, wrong, law, monkeypatch):
    law()
    RECURRING.cache_clear()  # what right lines left there could hide a mistake, and a mistake outlive its test
    monkeypatch.setattr(where, attribute, wrong.in_(getattr(where, attribute)) if isinstance(wrong, Lines) else wrong)
    with pytest.raises(AssertionError):
        law()
    RECURRING.cache_clear()


OPS = ("Scale", "Bias", "Mask", "Causal", "Window", "Softcap", "Dropout")


def test_every_function_has_a_mistake():
    public = {name for name in ab.__all__ if inspect.isfunction(getattr(ab, name))}
    of_checks = {name for name in checks.__all__ if inspect.isfunction(getattr(checks, name))}
    of_checks -= {"has_torch", "has_triton"}
    of_ops = {f"{op}.{method}" for op in OPS for method in ("forward", "vjp", "jvp")}
    of_torch = {name for name in vars(layout) if name.startswith(("from_", "to_"))}
    of_spines = {f"{spine}.{f}" for spine in ("tiled", "numpy_tiled") for f in ("forward", "vjp", "jvp")}
    of_spines |= {"numpy_dense.forward", "numpy_dense.vjp", "run"}
    needed = of_spines | public | of_checks | of_ops | of_torch | {"unbroadcast", *heads.__all__}
    assert needed == {of for of, *_ in MISTAKES}
