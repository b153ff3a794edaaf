"""The catalogue of parallel mistakes: each as the steps of :class:`OverRanks` that it gets wrong.

Chapter: :doc:`/chapters/08_checking`. What one rank alone gets wrong is in :mod:`attnbook.diagnose.causes.mistakes`.
"""

import numpy as np

from attnbook.diagnose.ranks import _wrong as w
from attnbook.diagnose.ranks._around import AROUND
from attnbook.diagnose.ranks._places import PLACES
from attnbook.diagnose.ranks._wrong import RanksMistake
from attnbook.diagnose.steps import rowsum

_ALL, _GRADS, _QK, _KV = ("O", "dQ", "dK", "dV"), ("dQ", "dK", "dV"), ("dQ", "dK"), ("dK", "dV")
_NOT_DV = ("O", "dQ", "dK")

MISTAKES = (
    *AROUND,
    # --- merging
    RanksMistake(
        "hops-without-factor", "the outputs of the blocks are added up without their factors", _NOT_DV,
        {"factors": lambda a: np.ones_like(a.L_blocks)},
    ),
    RanksMistake(
        "hops-mean", "the outputs of the blocks are averaged", _NOT_DV,
        {"factors": lambda a: np.ones_like(a.L_blocks) / a.B},
    ),
    RanksMistake(
        "merge-factors-swapped", "a merge gives each side the factor of the other", _NOT_DV,
        {"factors": w.merged},
    ),
    RanksMistake(
        "merge-no-rescale", "each block subtracts its own maximum, and sums are not rescaled to a common one", _ALL,
        w.no_rescale(),
    ),
    RanksMistake(
        "merge-l-maximum", "the backward's L is the largest L of a block, not the merged one", _GRADS,
        {"L_backward": lambda a: a.L_blocks.max(axis=-1, keepdims=True)},
    ),
    RanksMistake(
        "l-of-hop", "in the backward each hop uses the L of its own block", _GRADS,
        {"L_backward": lambda a: a.over_columns(w.safe(a, a.L_blocks))},
    ),
    RanksMistake(
        "l-of-own-block", "the backward's L is that of the rank's own keys", _GRADS,
        {"L_backward": lambda a: w.own_column(a, w.safe(a, a.L_blocks))},
    ),
    RanksMistake(
        "l-of-last-hop", "the backward's L is that of the last hop", _GRADS,
        {"L_backward": lambda a: w.last_column(a, w.safe(a, a.L_blocks))},
    ),
    RanksMistake(
        "l-of-neighbor", "the backward uses the L of the rank before", _GRADS,
        {"L_backward": lambda a: w.neighbor(a, a.L)},
    ),
    # --- D and dO
    RanksMistake(
        "d-of-hop", "each hop sums P∘dP over its own keys only: D is local", _QK,
        {"D": lambda a: a.over_columns(w.by_block(a, a.P_backward * a.dP))},
    ),
    RanksMistake(
        "d-of-hop-output", "each hop takes D from the output of its own block, before the merge", _QK,
        {"D": lambda a: a.over_columns(w.block_outputs(a))},
    ),
    RanksMistake(
        "l-and-d-of-hop", "each hop of the backward uses the L and D of its own block", _GRADS,
        {"L_backward": lambda a: a.over_columns(w.safe(a, a.L_blocks)),
        "D": lambda a: a.over_columns(w.block_outputs(a))},
    ),
    RanksMistake(
        "d-of-own-block", "D is the sum over the rank's own keys", _QK,
        {"D": lambda a: w.own_column(a, w.by_block(a, a.P_backward * a.dP))},
    ),
    RanksMistake(
        "d-of-last-hop", "D is taken from the output of the last hop, before the merge", _QK,
        {"D": lambda a: w.last_column(a, w.block_outputs(a))},
    ),
    RanksMistake(
        "d-of-neighbor", "the backward uses the D of the rank before", _QK,
        {"D": lambda a: w.neighbor(a, rowsum(a.dO * a.O))},
    ),
    RanksMistake(
        "d-times-ranks", "D is summed over ranks that all have the whole of it", _QK,
        {"D": lambda a: a.split.ranks * rowsum(a.dO * a.O)},
    ),
    RanksMistake(
        "do-of-neighbor", "the backward uses the dO of the rank before", _GRADS,
        {"dO_read": lambda a: w.neighbor(a, a.dO)},
    ),
    RanksMistake(
        "do-of-neighbor-in-dp", "dP uses the dO of the rank before", _QK,
        {"dO_read": lambda a: w.neighbor(a, a.dO), "dO_of_dV": lambda a: a.dO},
    ),
    RanksMistake(
        "do-of-neighbor-in-dv", "dV uses the dO of the rank before", ("dV",),
        {"dO_of_dV": lambda a: w.neighbor(a, a.dO)},
    ),
    RanksMistake(
        "q-of-neighbor-in-dk", "dK uses the Q of the rank before", ("dK",),
        {"dK_unscaled": lambda a: a.collected(a.dS, w.neighbor(a, a.Q), a.home_k)},
    ),
    # --- the way home
    RanksMistake(
        "dkv-own-queries-only", "dK and dV of other ranks' queries are not sent home: only the own part counts", _KV,
        {"home_k": lambda a, r, s: s if r == s else None},
    ),
    RanksMistake(
        "dkv-kept", "dK and dV do not travel with K and V: each rank keeps what it computed", _KV,
        {"home_k": w.own},
    ),
    RanksMistake(
        "dkv-one-hop-short", "dK and dV come one hop short of home: they are the next rank's", _KV,
        {"home_k": lambda a, r, s: (s - a.turn) % a.B},
    ),
    RanksMistake(
        "dkv-one-hop-far", "dK and dV go one hop too far: they are the rank's before", _KV,
        {"home_k": lambda a, r, s: (s + a.turn) % a.B},
    ),
    RanksMistake(
        "dkv-last-hop-lost", "what the last hop adds to dK and dV is lost", _KV,
        {"home_k": lambda a, r, s: s if w.last(a, r, s) else None},
    ),
    RanksMistake(
        "dkv-first-hop-lost", "what the first hop adds to dK and dV is lost", _KV,
        {"home_k": lambda a, r, s: s if w.not_first(a, r, s) else None},
    ),
    RanksMistake(
        "dkv-last-hop-only", "each hop overwrites dK and dV: only the last part comes home", _KV,
        {"home_k": lambda a, r, s: s if w.is_last_home(a, r, s) else None},
    ),
    RanksMistake(
        "dkv-other-way", "dK and dV go around the other way than K and V", _KV, {"home_k": w.other_way},
    ),
    RanksMistake(
        "dkv-reversed", "parts of dK and dV are sent to the ranks in the reverse order", _KV,
        {"home_k": lambda a, r, s: a.B - 1 - s},
    ),
    RanksMistake(
        "dkv-by-hop", "parts of dK and dV are sent by the number of the hop, not of the rank", _KV,
        {"home_k": lambda a, r, s: a.hop(r, s)},
    ),
    RanksMistake(
        "dk-kept", "dK does not travel with K; dV does", ("dK",),
        {"home_k": w.own, "home_v": lambda a, r, s: s},
    ),
    RanksMistake("dv-kept", "dV does not travel with V; dK does", ("dV",), {"home_v": w.own}),
    RanksMistake(
        "dk-one-hop-short", "dK comes one hop short of home; dV does not", ("dK",),
        {"home_k": lambda a, r, s: (s - a.turn) % a.B, "home_v": lambda a, r, s: s},
    ),
    RanksMistake(
        "dv-one-hop-short", "dV comes one hop short of home; dK does not", ("dV",),
        {"home_v": lambda a, r, s: (s - a.turn) % a.B},
    ),
    RanksMistake(
        "dq-last-hop-only", "each hop overwrites dQ: only the last part is left", ("dQ",),
        {"dQ_unscaled": lambda a: (a.over_table(lambda r, s: int(w.is_last(a, r, s))) * a.dS) @ a.k},
    ),
    RanksMistake(
        "dq-own-block-only", "dQ gets the part of the rank's own keys only", ("dQ",),
        {"dQ_unscaled": lambda a: (a.over_table(lambda r, s: int(r == s)) * a.dS) @ a.k},
    ),
    RanksMistake(
        "dq-of-neighbor", "dQ goes around though Q did not: it is that of the rank before", ("dQ",),
        {"dQ_unscaled": lambda a: w.neighbor(a, a.dS @ a.k)},
    ),
    # --- sums over ranks
    RanksMistake(
        "gradients-times-ranks", "all gradients are multiplied by the number of ranks", _GRADS,
        w.gradients(w.times_ranks, "dQ", "dK", "dV"), ("DeepSpeed#5248",),
    ),
    RanksMistake(
        "dq-times-ranks", "dQ is multiplied by the number of ranks", ("dQ",),
        w.gradients(w.times_ranks, "dQ"),
    ),
    RanksMistake(
        "dkv-times-ranks", "dK and dV are multiplied by the number of ranks", _KV,
        w.gradients(w.times_ranks, "dK", "dV"),
    ),
    RanksMistake(
        "gradients-mean", "all gradients are divided by the number of ranks", _GRADS,
        w.gradients(w.over_ranks, "dQ", "dK", "dV"),
    ),
    RanksMistake("dq-mean", "dQ is divided by the number of ranks", ("dQ",), w.gradients(w.over_ranks, "dQ")),
    RanksMistake(
        "dkv-mean", "the mean over the ranks in dK and dV, not the sum", _KV,
        w.gradients(w.over_ranks, "dK", "dV"),
    ),
    RanksMistake(
        "dkv-sum-of-blocks", "dK and dV are summed over the ranks though each had its own rows", _KV,
        w.gradients(w.sum_of_blocks, "dK", "dV"),
    ),
    *PLACES,
)  # fmt: skip
"""Every parallel mistake, in the order of the calculation."""

OF_RANKS = {mistake.slug: mistake for mistake in MISTAKES}
"""The same by slug."""
