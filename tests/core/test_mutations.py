"""The tests, tried by mistakes: each is planted in a line of the package, and the tests beside it must fail.

They are the very tests that stand in their files, each on one case. Wrong formulas for attention and its gradient are
planted by test_mistakes, from the catalogue; here stands what else can go wrong.
"""

import inspect
from functools import cache, partial

import pytest
import test_arrays
import test_attention
import test_checks
import test_diagnose
import test_heads
import test_hvp
import test_layers
import test_linear
import test_merge
import test_mistakes
import test_multi_head
import test_norms
import test_ops
import test_recurrent
import test_rotary
import test_sigmoid
import test_sink
import test_softmax
import test_tiled
import test_top_k
import test_torch_layout
import test_workers
from cases import BLOCKS, CASE, MULTI_HEAD_CASE
from libraries import NumPy
from planting import first_of_each, lines_of, module_of, planted
from routes import on

import attnbook as ab
from attnbook import checks, layers
from attnbook.diagnose.causes.mistakes import MISTAKE
from attnbook.ops import Softcap
from attnbook.spines import cuts
from attnbook.torch import layout

# --- the tests, short ---------------------------------------------------------------------------------------------

ENGINE, SHIFTED = "tiled on NumPy", "tiled on NumPy, shifted"


@cache
def of_a_case(test, table, name, route=None):
    """The test of that case, on a route or on the one that "auto" takes: always the same, so that it passes once."""
    case = {"attention": CASE, "layer": MULTI_HEAD_CASE, "recurrent": test_recurrent.CASE}[table][name]
    return partial(test, case) if route is None else on(route, test, case)


values, gradients, dead_rows, L, fresh_memory = (
    partial(of_a_case, test, "attention")
    for test in (
        test_attention.test_values, test_attention.test_derivatives, test_attention.test_dead_rows_are_exactly_zero,
        test_tiled.test_L_is_the_logsumexp_of_the_scores, test_tiled.test_fresh_memory_is_not_read,
    )
)  # fmt: skip
layer, of_layer = (
    partial(of_a_case, test, "layer") for test in (test_multi_head.test_values, test_multi_head.test_gradients)
)
recurrent = partial(of_a_case, test_recurrent.test_it_is_the_loop_and_so_are_its_derivatives, "recurrent")
plain, gated, delta = map(recurrent, ("the defaults", "gate, normalized, state", "gated delta rule, state"))
to_all = recurrent("to all keys, state, grouped")


@cache
def moves(name, route=None):
    """The tangents of the gradients of a case: by differences on the dense route, on another as on that."""
    test = partial(test_hvp.test_every_spine_gives_the_same, route) if route else test_hvp.test_the_gradients_move_so

    def compared():
        test_hvp.of_dense.cache_clear()
        try:
            test(CASE[name])
        finally:
            test_hvp.of_dense.cache_clear()

    return compared


def alone(op):
    return partial(test_ops.test_derivatives, *test_ops.OPS[op])


def live_tiles(op):
    return partial(test_ops.test_a_mask_knows_its_live_tiles, op, 5, 7)


softmax, logsumexp = test_softmax.softmax_is_right, test_softmax.logsumexp_is_right
softmax_anywhere = partial(test_softmax.test_every_library_gives_the_same, NumPy())
large_softmax = partial(test_softmax.test_large_scores_do_not_overflow, "float32", 1e4)
dead_softmax = partial(test_softmax.test_rows_of_minus_infinity, "float64")
jacobian = partial(test_softmax.test_the_columns_of_the_jacobian_are_derivatives, (2, 3, 5))
linear, of_linear = (partial(test, (2, 3)) for test in (test_linear.test_values, test_linear.test_derivatives))
unbroadcast = partial(test_arrays.unbroadcast_is_the_adjoint, (3, 1), (2, 3, 5))
of_distances = partial(test_ops.test_distances_count_from_their_corner, "bottom-right", 7)
of_t5 = partial(test_ops.test_buckets_are_those_of_hugging_face, True, 16, 100)
of_causal = [
    partial(test_ops.test_an_op_that_is_told_no_corner_counts_from_that_of_causal, door, 7, test_ops.OF_PLACES["ALiBi"])
    for door in test_ops.DOORS.values()
]
global_window, window = (
    partial(test_ops.test_a_window_counts_from_its_corner, *sides, "top-left", 7, first)
    for *sides, first in ((1, 0, 2), (2, 1, 0))
)
merged, of_merge = partial(test_merge.test_two_parts_make_the_whole, "mask", "dense"), test_merge.test_derivatives
turned, in_halves = (partial(test_rotary.rotary_is_right, None, test_rotary.WAYS[way]) for way in ("plain", "half"))
latent = partial(test_layers.test_latent_attention, test_layers.LATENT["all"], False)
differential, of_bias = (
    partial(test_layers.test_differential_attention, *test_layers.DIFFERENTIAL[name])
    for name in ("a head", "bias and op")
)
talking = partial(test_layers.test_talking_heads, test_layers.TALKING["plain"])
of_norms = [partial(test_norms.norm_is_right, kind) for kind in ("rms", "l2")]
sigmoid = partial(test_sigmoid.test_values_and_derivatives, CASE["grouped, masked and biased"], "tiled")
dropped = partial(test_sigmoid.test_values_and_derivatives, CASE["dropout, softcap and bias"], "dense")
once, threads_are_set = partial(test_workers.test_every_task_is_done_once, 3), test_workers.threads_are_set
of_helper = partial(test_workers.test_an_error_reaches_the_caller, True, KeyError)
torchs = partial(test_torch_layout.test_samples_of_our_own, test_torch_layout.MASKS["both"], {"kdim": 13, "vdim": 17})
sinks_at_the_ends = partial(test_sink.test_at_the_ends, "dense")
two_named = partial(test_mistakes.test_diagnose_names_two_at_once, ("ds-mean", "dk-transposed"))

# --- the table ----------------------------------------------------------------------------------------------------
# file: function, what is wrong, the line as it stands, the mistaken one, the tests that must fail

MISTAKES = {
    "softmax.py": [
        ("softmax", "16 bits are not widened", "widen(S)", "S", softmax_anywhere),
        ("softmax_vjp", "sum over the wrong axis", "axis=axis,", "axis=axis - 1,", softmax),
        ("softmax_jvp", "no sum", "return softmax_vjp(tS, P, axis)", "return tS * P", softmax),
        ("softmax_jacobian", "plus for minus", "diagonal - p", "diagonal + p", jacobian),
        ("logsumexp", "of the mean", "row_logsumexp(m, Z)", "row_logsumexp(m, Z / S.shape[axis])", logsumexp),
        ("logsumexp_vjp", "not weighted", "* widen(P)", "+ 0 * widen(P)", logsumexp),
        ("logsumexp_jvp", "not weighted", "widen(P) * widen(tS)", "widen(tS)", logsumexp),
        ("normalize", "no row maximum", "xp.exp(S - m)", "xp.exp(S)", large_softmax),
        ("normalize", "0 / 0 in a dead row", "xp.where(Z == 0, xp.full_like(Z, xp.inf), Z)", "Z", dead_softmax),
    ],
    "linear.py": [
        ("linear", "bias forgotten", "None if b is None else widen(b)", "None", linear),
        ("linear_jvp", "half of the product rule", "widen(tX) @ widen(W) +", "", of_linear),
        ("project_vjp", "db without the sum over the batch", ".sum(rows, axis=0)", ".sum(dY[0], axis=0)", of_linear),
    ],
    "arrays.py": [
        ("unbroadcast", "mean, not sum", "xp.sum(", "xp.mean(", unbroadcast),
    ],
    "heads.py": [
        ("share_heads", "repeat for repeat_interleave", "repeat(K, h // K.shape[-3], axis=-3)",
         "tile(K, (h // K.shape[-3], 1, 1))", partial(test_heads.test_neighbours_share_a_head, 3, 6)),
        ("share_heads_vjp", "mean over the group", "xp.sum(", "xp.mean(",
         partial(test_heads.test_the_gradient_sums_over_the_group, 3, 6), of_layer("grouped")),
        ("split_heads", "reshaped without swapping axes", "swapaxes(T, -3, -2)",
         "xp.reshape(T, (*lead, h, n, width // h))", layer("cross")),
    ],
    "arguments.py": [
        ("check_scale", "1/d_k for 1/√d_k", "1.0 / math.sqrt(d_k)", "1.0 / d_k", values("plain")),
    ],
    "ops/op.py": [
        ("Placed.at_corner", "top-left, whatever causal says", '{"corner": corner}', '{"corner": "top-left"}',
         *of_causal),
        ("Tile.shift", "top-left for bottom-right", "self.n_k - self.n_q if", "0 if", of_distances),
    ],
    "ops/chain.py": [
        ("vjp", "the first op first on the way back", "zip(reversed(steps), reversed(saved), strict=True)",
         "zip(steps, saved, strict=True)", gradients("all at once", "dense")),
        ("collect", "a gradient of the last tile alone", "own_axes)] += dparam", "own_axes)] = dparam",
         gradients("bias for all queries", "tiled")),
        ("live", "masked tiles are visited too", "tile = op.live(tile)", "pass",
         on("tiled", test_tiled.test_each_live_tile_is_visited_once, {"causal": True})),
    ],
    "ops/scale.py": [
        ("Scale.vjp", "of the scaled scores", "dS * S", "dS * S * self._factor(tile)",
         gradients("scale that is learned"), gradients("logit scale", "tiled")),
        ("Scale.jvp", "its own tangent forgotten", "tS + self.spread(tile, tparam) * S", "tS",
         gradients("logit scale")),
        ("Scale.vjp_jvp", "the scores stand still", " + dS * tS", "", moves("logit scale")),
    ],
    "ops/alibi.py": [
        ("ALiBi.forward", "far keys count more", "S - self.spread", "S + self.spread",
         test_ops.test_behind_a_causal_mask_alibi_is_that_of_its_paper),
        ("ALiBi.vjp", "the sign of the slopes' gradient", "-dS *", "dS *", alone("ALiBi, op 0"), gradients("ALiBi")),
        ("ALiBi._distances", "later keys are near", "xp.abs(j - i[:, None] -", "-(j - i[:, None] -", of_distances),
        ("alibi_slopes", "from 1 on", "range(2, 2 * lower + 1, 2)", "range(0, 2 * lower, 2)",
         partial(test_ops.test_slopes_are_those_of_the_paper, 8)),
    ],
    "ops/relative_bias.py": [
        ("RelativeBias.vjp", "for all heads: not summed over them", "unbroadcast(diagonals @ hits, table.shape)",
         "(diagonals @ hits)[tuple(0 for _ in diagonals.shape[table.ndim:])]",
         alone("relative bias for all heads")),
        ("RelativeBias._of_diagonals", "the sign of the distance", "clip(distances, -R, R)",
         "clip(-distances, -R, R)", of_distances),
        ("T5Buckets.__call__", "queries for keys", "distances > 0", "distances < 0", of_t5),
    ],
    "ops/bias.py": [
        ("Bias.forward", "subtracted", "S + self.here", "S - self.here", values("bias")),
        ("Bias.vjp", "not summed over the axes it was broadcast on", "unbroadcast(dS, tile.cut(self.B).shape)", "dS",
         alone("bias for all heads")),
    ],
    "ops/masks.py": [
        ("Masking.forward", "a large number for −∞", 'float("-inf")', "-1e9", dead_rows("mask with a dead row",
         "dense")),
        ("Masking.vjp", "forgotten in the backward", "self._keep(dS, tile, elsewhere=0.0)", "dS",
         alone("mask"), alone("causal"), alone("window, op 0")),
        ("Window.allowed", "global keys, but no global queries", "| ((i >= 0) & (i < g))", "", global_window),
        ("Window.allowed", "a query does not see its own key", "j <= i +", "j < i +", window),
        ("Window.live", "the last live key is not visited", "end(rows) - 1 + shift + self.right",
         "end(rows) - 2 + shift + self.right", values("causal, more keys", ENGINE)),
    ],
    "ops/softcap.py": [
        ("Softcap.vjp", "forgotten in the backward", "(1 - saved * saved) * dS", "dS", gradients("softcap", ENGINE)),
    ],
    "ops/dropout.py": [
        ("Dropout.vjp", "drawn anew in the backward", "self._drop", "type(self)(self.p, self.seed + 1)._drop",
         gradients("dropout")),
        ("Dropout._drop", "not divided by 1 − p", "T * (1 / (1 - float(self.p)))", "T",
         test_ops.test_dropout_keeps_its_share),
    ],
    "ops/segments.py": [
        ("Segments.allowed", "another's keys", "return q == k", "return q <= k", values("documents")),
        ("Segments.allowed", "the future", "(q == k) & (j <= i)", "q == k", values("prefix")),
    ],
    "ops/blocks.py": [
        ("BlockMask.allowed", "the blocks in turns", "// size, axis", "% size, axis", values("blocks")),
        ("BlockMask._on", "the last block is not looked at", "-(-p.stop // size)", "p.stop // size",
         live_tiles(BLOCKS())),
    ],
    "ops/sink.py": [
        ("Sink.forward", "subtracted", "S + self", "S - self", values("sink")),
        ("Sink.vjp", "of zeros, as if the sink had a value", "self.summed(dS, tile)", "self.summed(0 * dS, tile)",
         alone("sink, op 0")),
    ],
    "plan.py": [
        ("_with_masks", "−∞ in a bias goes through what comes after", "if moved and", "if False and",
         partial(test_ops.test_a_key_that_a_bias_forbids_stays_forbidden, NumPy(), Softcap(2.0), "dense")),
        ("resolve", "a cap after a mask", "masks if step[1].forbids", "masks if False",
         values("window before softcap", ENGINE)),
    ],
    "top_k.py": [
        ("top_k_mask", "the mask forgotten", '"mask": mask', '"mask": None',
         partial(test_top_k.test_k_are_kept_and_they_are_the_best, CASE["mask with a dead row"], 3)),
    ],
    "attention.py": [
        ("attention", "1/√d_v for 1/√d_k", "(Q.shape[-1], V.shape[-1])", "(V.shape[-1], V.shape[-1])", values("plain")),
        ("attention_vjp", "the gradient of L forgotten", ".vjp(dO, dL, res)", ".vjp(dO, None, res)",
         gradients("plain")),
        ("attention_jvp", "L stands still", "(tO, tL) if", "(tO, 0 * tL) if", gradients("plain")),
    ],
    "merge.py": [
        ("merge", "the other's weights", "W[0] * widen(O1) + W[1] * widen(O2)", "W[1] * widen(O1) + W[0] * widen(O2)",
         merged),
        ("merge_vjp", "D forgotten", "w * (part - D)", "w * part", of_merge),
        ("merge_jvp", "the weights stand still", "(tL1 - tL) * widen(O1)", "0 * widen(O1)", of_merge),
    ],
    "gates.py": [
        ("Gate.forward", "twice", "self._spread(G, C) * C,", "self._spread(G, C) ** 2 * C,", layer("gate a head")),
        ("Gate.vjp", "the slope forgotten", "dG * G * (1 - G)", "dG", of_layer("gate a column, self")),
    ],
    "layers/latent.py": [
        ("latent_attention", "1/√d_n: the turned part forgotten", "check_scale(scale, d_n + d_r)",
         "check_scale(scale, d_n)", latent),
        ("latent_attention_vjp", "c's path through the values is lost", "dc = by_K + by_V", "dc = by_K", latent),
    ],
    "layers/differential.py": [
        ("differential_attention", "added", "O1 - _of_heads(lam)", "O1 + _of_heads(lam)", differential),
        ("differential_attention_vjp", "a bias of the first one alone", "narrow(a + b,", "narrow(a,", of_bias),
        ("differential_attention_jvp", "λ stands still", " - _of_heads(tlam) * res.O2", "", differential),
        ("differential_lambda", "added", "e1 - e2", "e1 + e2", test_layers.test_differential_lambda),
        ("differential_lambda_vjp", "the sign of the second", "(e1, -e2)", "(e1, e2)",
         test_layers.test_differential_lambda),
    ],
    "layers/talking.py": [
        ("talking_heads", "mixed by the transpose", "_mix(P, w_P)", "_mix(P, w_P[::-1])", talking),
        ("talking_heads_vjp", "scores' mixing forgotten", "_inner(res.S, dscores)", "_inner(res.S, res.P)", talking),
        ("talking_heads_jvp", "the mixing stands still", " + _mix(res.S, tw_S)", "", talking),
    ],
    "norms.py": [
        *((f"{kind}_norm{d}", "the other norm", f'"{kind}"', f'"{other}"', partial(test_norms.norm_is_right, kind))
          for kind, other in (("rms", "l2"), ("l2", "rms")) for d in ("", "_vjp", "_jvp")),
        ("_unit", "eps beside the root", "/ m + eps)", "/ m) + eps", *of_norms),
        ("norm_vjp", "a gain's gradient not summed", "unbroadcast(dy * unit, tuple(g.shape))", "dy * unit", *of_norms),
        ("QKNorm.vjp", "gains exchanged", "(dg_Q, dg_K), self", "(dg_K, dg_Q), self", of_layer("norm")),
    ],
    "recurrent/features.py": [
        ("elu_plus_one", "elu, which may be 0 and less", "X + 1, E", "X, E - 1", plain),
    ],
    "recurrent/chunk.py": [
        ("forward", "the state before is not read", "G.since * (x.q @ H) +", "", gated, delta),
        ("vjp", "the state's gradient does not reach the values", "+ G.until * (x.k @ dH)", "", gated),
        ("vjp", "a key only writes", "dk = dk + (dKK + mT(dKK)) @ x.k - (G.since * dv) @ mT(H)", "pass", delta),
        ("jvp", "the system stands still", "- tN @ U", "", delta),
    ],
    "recurrent/scan.py": [
        ("forward", "each chunk from the first state", "_cut(x, rows), H)", "_cut(x, rows), states[0])", plain, delta),
        ("vjp", "from the first to the last", "found.insert(0, dx)", "found.append(dx)", plain, delta),
    ],
    "recurrent/whole.py": [
        ("forward", "the state before is forgotten", "H + mT(x.k) @ x.v", "mT(x.k) @ x.v", to_all),
    ],
    "recurrent/passes.py": [
        ("vjp", "the normalizer's path forgotten", "-xp.sum(dO * res.O, axis=-1, keepdims=True)", "0 * dO[..., :1]",
         plain),
    ],
    "recurrent/linear_attention.py": [
        ("linear_attention", "the gate is not read", "V, None, gate, state", "V, None, None, state", gated),
        ("linear_attention_vjp", "the state's gradient is not read", "dO, dstate, res", "dO, None, res", gated),
        ("linear_attention_jvp", "the gate stands still", "None, tgate, tstate)", "None, None, tstate)", gated),
    ],
    "recurrent/delta_rule.py": [
        ("delta_rule", "without the gate", "beta, gate, state", "beta, None, state", delta),
        ("delta_rule_vjp", "the state's gradient is not read", "dO, dstate, res", "dO, None, res", delta),
        ("delta_rule_jvp", "β stands still", "tbeta, tgate, tstate", "None, tgate, tstate", delta),
    ],
    "sigmoid.py": [
        ("sigmoid_attention", "the last tile alone", "_add(O, tile.rows, W @ v[_at(tile.cols)])",
         "O[tile.rows] = W @ v[_at(tile.cols)]", sigmoid),
        ("sigmoid_attention_vjp", "P for P ∘ (1 − P)", "P * (1 - P) * dP", "P * dP", sigmoid),
        ("sigmoid_attention_vjp", "dV of the weights before dropout", "mT(W) @ dO_i", "mT(P) @ dO_i", dropped),
        ("sigmoid_attention_jvp", "P for P ∘ (1 − P)", "P * (1 - P) * tS", "P * tS", sigmoid),
    ],
    "rotary.py": [
        ("rotary", "turned back", "positions, +1", "positions, -1", turned),
        ("rotary_vjp", "turned on: by +θ", "positions, -1", "positions, +1", turned),
        ("turn", "neighbours in both layouts", "pairs = (slice(0, dims // 2), slice(dims // 2, dims))", "pass",
         in_halves),
    ],
    "spines/operands.py": [
        ("less_dL", "dL is added", "D - xp.where", "D + xp.where", gradients("plain")),
    ],
    "spines/columns.py": [
        ("add", "no shift", "xp.where(C * unit > M * unit + FAR, C, M)", "M", sinks_at_the_ends),
        ("vjp_jvp", "the share stands still", "(before[-1] - tL) * D + tD", "tD", moves("sink")),
        ("vjp", "D is added", "-share * D", "share * D", gradients("sink")),
    ],
    "spines/dense.py": [
        ("forward", "bias added before the scale", "S, saved = chain.forward(plan.scores, S, table)",
         "S, saved = chain.forward(plan.scores, S / plan.scale, table); S = S * plan.scale", values("bias", "dense")),
        ("vjp", "no row sum", "dS = P * (dP - D)", "dS = P * dP", gradients("plain", "dense")),
        ("_pushed", "the values stand still", " + W @ tv", "", gradients("plain", "dense")),
        ("hvp", "the weights stand still", "tdP * P + dP * moved.tP", "tdP * P", moves("plain")),
    ],
    "spines/numpy_dense.py": [
        ("forward", "not scaled", "plan.scale", "1.0", values("plain")),
        ("forward", "a saved array overwritten", "np.empty_like(S)", "S", gradients("op that saves its result")),
        ("vjp", "ops forgotten in the backward", "if not plan.only_forbids:", "if False:", gradients("softcap")),
    ],
    "spines/tiled.py": [
        ("pieces", "the ragged end is left out", "range(0, len(places),", "range(0, len(places) - 1,",
         values("plain", "tiled")),
        ("forward", "Z is not faded", "fade * Z", "Z", values("plain", "tiled")),
        ("_weights", "M forgotten", "S - _at(res.M, tile.rows) * res.unit", "S", gradients("plain", "tiled")),
        ("vjp", "the softmax of dropped weights", "P * (dP - _at", "W * (dP - _at", gradients("dropout", "tiled")),
        ("vjp", "dK of the last queries alone", "dK[j] + mT(dS)", "mT(dS)", gradients("plain", "tiled")),
        ("_pushed", "no mean", "tA - tL * O", "tA", gradients("plain", "tiled")),
        ("hvp", "D stands still", "tdP - _at(tD, rows)", "tdP", moves("plain", "tiled")),
    ],
    "spines/cuts.py": [
        ("cuts_of", "one mask cuts, of two", "in masks:", "in masks[:1]:", values("window and causal", ENGINE)),
        ("_recurring", "a cut without its last row", "rows[-1] + 1", "rows[-1]", values("causal, more keys", ENGINE)),
    ],
    "spines/numpy_tiled.py": [
        ("prepare", "the table is one tile", "cols=cols)", "cols=n_k)",
         partial(test_tiled.test_memory_grows_linearly, ENGINE, {})),
        ("forward", "M in bits, said to be in nats", "Z, plan, unit)", "Z, plan)", L("plain", SHIFTED)),
        *(("_forward_block", *lines, test(case, route)) for *lines, test, case, route in (
            ("0 / 0 in a dead row", "dead = Z == 0", "dead = Z < 0", dead_rows, "mask with a dead row", ENGINE),
            ("masked exponentials stay", "put(E, cuts, 0)", "pass", values, "causal, more keys", ENGINE),
            ("O is not zeroed for the fading", "if shifted or not straight:", "if not straight:",
             fresh_memory, "plain", SHIFTED),
        )),
        ("_backward_block", "ln 2 in dK forgotten", "dK *= work.dtype.type(work.in_dK)", "pass",
         gradients("plain", ENGINE)),
    ],
    "spines/numpy_tangents.py": [
        ("_turn_block", "dO stands still", "if tdO is not None:", "if False:", moves("plain", ENGINE)),
        ("_turn_block", "the first op on the weights for the last", "of_weights[-1]", "of_weights[1]",
         moves("two dropouts", ENGINE)),
    ],
    "spines/numpy_work.py": [
        ("Work.__init__", "nats taken for bits", "np.exp if unit == 1 else plan.kernel or np.exp2", "np.exp2",
         values("plain", "tiled on NumPy, in nats")),
        ("Work.needs_shift", "no shift where one is needed", "self.tiles.bits", "math.inf",
         on(ENGINE, test_attention.test_large_scores_do_not_overflow, "float32", 1e4, small=False)),
    ],
    "spines/sums.py": [
        ("Sums.__init__", "blocks of keys write dQ over one another's", " and n <= 1", "", gradients("plain", ENGINE)),
    ],
    "spines/threads.py": [
        ("get_num_threads", "always one", '_settings["threads"] or', "1 or", threads_are_set),
        ("set_num_threads", "changes nothing", '_count("n", n)', "_default()", threads_are_set),
    ],
    "spines/workers.py": [
        ("run", "a task is done twice", " task(place, entry)\n", " task(place, entry), task(place, entry)\n", once),
        ("run", "a helper's error is lost", "future.result()", "future.exception()", of_helper),
    ],
    "spines/blas.py": [
        ("_lift", "BLAS stays on one thread", "limit.restore_original_limits()", "pass", once),
    ],
    "multi_head.py": [
        *(("multi_head_attention", *row) for row in (
            ("1/√(h·d_k) for 1/√d_k", "p.W_Q.shape[1] // h,", "p.W_Q.shape[1],", layer("cross")),
            ("W_Q for the keys", "project(m, w.W_K,", "project(m, w.W_Q,", layer("all widths equal")),
            ("b_O once for each head", "w.W_O, w.b_O)", "w.W_O, h * w.b_O)", layer("cross")),
            ("turned before the norm", "in steps:", "in steps[::-1]:", layer("norm, rotary and gate, grouped")),
        )),
        *(("multi_head_attention_vjp", *row) for row in (
            ("the path through dK is lost in dX", "(by_Q + by_K + by_V,", "(by_Q + by_V,", of_layer("self")),
            ("dW_Q and dW_K exchanged", "(dW_Q, dW_K,", "(dW_K, dW_Q,", of_layer("all widths equal")),
            ("the gate's path into X is lost", "dX + by_gate", "dX", of_layer("gate a head")),
        )),
    ],
    "torch/layout.py": [
        *((*lines, torchs) for lines in (
            ("from_state_dict", "not transposed", 'W.mT for W in (*weights, state["out_proj.weight"])',
             'W if W is state["out_proj.weight"] else W.mT for W in (*weights, state["out_proj.weight"])'),
            ("to_state_dict", "not transposed", "p.W_O.mT", "p.W_O"),
            ("from_multihead_attention", "True = may attend", "[~T for T in masks", "[T for T in masks"),
            ("to_multihead_attention", "appended tokens give nothing to the biases", "d.b_K - torch.sum(of_K, 0)",
             "d.b_K"),
        )),
    ],
    "checks/check.py": [
        ("check_vjp", "differences count for nothing", "size, DIFFERENCES)", 'size, float("inf"))',
         test_checks.test_differences_see_what_autograd_is_kept_from),
        *((*lines, test_checks.test_what_is_wrong_is_refused) for lines in (
            ("check_vjp", "autograd is not asked", "and has_torch()", "and False"),
            ("check_jvp", "autograd is not asked", "and has_torch()", "and False"),
            ("check_adjoint", "too easy", "size, EXACT)", "size, 1e-6)"),
            ("_compare", "NaN passes", "if not error <= tolerance:", "if error > tolerance:"),
        )),
        ("close", "broadcasts", "if A.shape != B.shape:", "if False:", test_checks.test_close),
    ],
    "checks/differences.py": [
        (*lines, test_checks.test_differences_converge)
        for lines in (
            ("central_difference", "one-sided", "f(x - step * t)) / (2 * step)", "f(x)) / step"),
            ("forward_difference", "divided by two steps", "- f(x)) / step", "- f(x)) / (2 * step)"),
            ("complex_step", "the real part", ".imag", ".real"),
        )
    ],
    "checks/autograd.py": [
        ("autograd_vjp", "ones for the cotangent", "torch.tensor(cotangent)", "torch.ones_like(output)",
         test_checks.test_autograd),
        ("autograd_jvp", "the first input only", "primals, directions)",
         "primals, (directions[0], *(0 * t for t in directions[1:])))", test_checks.test_autograd),
    ],
    "diagnose/cases/run.py": [
        ("Run._is", "nothing is ever off", "return largest(", "return 0 * largest(",
         test_diagnose.test_what_is_not_known),
    ],
    "diagnose/causes/match.py": [
        ("apart", "two at once are one too many", "return len(steps) == len(set(steps))", "return False", two_named),
    ],
    "diagnose/report.py": [
        ("diagnose", "only the simple cases", "in battery(seed, convention.dtypes[0], convention):",
         "in battery(seed, convention.dtypes[0], convention)[:5]:",
         partial(test_mistakes.test_diagnose_names_it, MISTAKE["mask-lowest-number"])),
    ],
}  # fmt: skip

if checks.has_flint():
    import test_balls

    corners = [partial(test_balls.test_a_corner_is_no_place_for_a_derivative, f) for f in test_balls.CORNERS]
    slopes = test_balls.test_each_function_moves_its_tangent
    MISTAKES |= {
        "checks/enclosed.py": [
            ("run", "a tie is believed", "if tied else ()", "if not tied else ()", corners[0], corners[1]),
            ("_sizes", "what is too wide seems large", "a.abs_lower()", "a.abs_upper()",
             test_balls.test_too_wide_is_an_error_and_no_pass),
        ],
        "checks/balls.py": [
            ("_analytic", "the inner slope is forgotten", "slope(T.x, y) * T.t", "slope(T.x, y)", slopes),
            ("widened", "half of it", "size * relative", "0.5 * size * relative",
             partial(test_balls.test_any_rounding_holds_the_nearest, "float16")),
        ],
    }  # fmt: skip

ROWS = [
    (file, function, right, wrong, tests, mistake)
    for file, rows in MISTAKES.items()
    for function, mistake, right, wrong, *tests in rows
]


@cache
def passes(test):
    """As the package stands. Many rows have the same test."""
    test()


def fails(test):
    try:
        test()
    except (AssertionError, pytest.fail.Exception):
        return True
    return False


@pytest.mark.parametrize(
    ("file", "function", "right", "wrong", "tests", "mistake"), first_of_each(ROWS, lambda row: row[:2])
)
def test_it_is_noticed(file, function, right, wrong, tests, mistake):
    for test in tests:
        passes(test)
        cuts._recurring.cache_clear()  # what right lines left there could hide a mistake, and a mistake its test
        with planted(file, function, right, wrong):
            assert fails(test), f"planted, and not noticed by {test}"
        cuts._recurring.cache_clear()


def test_every_line_is_there():
    """Also of the rows that are thorough: a line that was changed or renamed takes its row with it."""
    assert not [row[:3] for row in ROWS if lines_of(*row[:2])[1].count(row[2]) != 1]


def test_every_public_function_has_a_mistake():
    functions = [getattr(room, name) for room in (ab, checks, layers) for name in room.__all__]
    functions += [f for name, f in vars(layout).items() if name.startswith(("from_", "to_"))]
    needed = {(f.__module__, f.__qualname__) for f in functions if inspect.isfunction(f)} - ELSEWHERE
    of = {(module_of(file), name) for file, rows in MISTAKES.items() for name, *_ in rows}
    assert needed <= of, f"without a mistake: {needed - of}"


ELSEWHERE = {
    ("attnbook.linear", "linear_vjp"),  # project_vjp
    ("attnbook.attention", "attention_hvp"),  # of each spine
    ("attnbook.checks.autograd", "has_flint"),
    ("attnbook.checks.autograd", "has_torch"),
    ("attnbook.checks.autograd", "has_triton"),
}
