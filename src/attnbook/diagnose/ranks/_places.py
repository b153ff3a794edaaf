"""The part of the catalogue of parallel mistakes that is about places: who sees whom, heads, padding; and rounding.

Chapter: :doc:`/chapters/08_checking`.
"""

import numpy as np

from attnbook.diagnose.ranks import _rounded
from attnbook.diagnose.ranks import _wrong as w
from attnbook.diagnose.ranks._wrong import RanksMistake

_ALL, _GRADS, _QK, _KV = ("O", "dQ", "dK", "dV"), ("dQ", "dK", "dV"), ("dQ", "dK"), ("dK", "dV")

PLACES = (
    # --- causal
    RanksMistake("causal-local", "causal within every block, with no offset", _ALL, {"earlier": w.local}),
    RanksMistake(
        "causal-local-backward", "in the backward causal within every block, with no offset", _GRADS,
        {"allowed_backward": lambda a: a.mask_allows & (w.local(a) if a.corner else True)},
    ),
    RanksMistake(
        "causal-local-of-earlier", "later blocks are skipped, but causal is within the earlier ones too", _ALL,
        {"earlier": lambda a: w.local(a) & (w.rank_q(a) >= a.split.rank_k)},
    ),
    RanksMistake(
        "causal-own-block-only", "causal in the own block, and all of every other one, later ones too", _ALL,
        {"earlier": lambda a: ~w.same(a) | w.tri(a)},
    ),
    RanksMistake(
        "causal-own-block-only-backward", "in the backward causal in the own block, and all of every other one",
        _GRADS, {"allowed_backward": lambda a: a.mask_allows & (~w.same(a) | w.tri(a) if a.corner else True)},
    ),
    RanksMistake(
        "causal-later-blocks", "later blocks are attended to, and earlier ones skipped", _ALL,
        {"earlier": lambda a: (w.rank_q(a) < a.split.rank_k) | (w.same(a) & w.tri(a))},
    ),
    RanksMistake(
        "causal-by-blocks", "causal by blocks: all of the own block is attended to", _ALL,
        {"earlier": lambda a: w.rank_q(a) >= a.split.rank_k},
    ),
    RanksMistake(
        "causal-own-block-skipped", "causal by blocks: the own block is skipped", _ALL,
        {"earlier": lambda a: (w.rank_q(a) > a.split.rank_k) & w.tri(a)},
    ),
    RanksMistake(
        "causal-first-block-skipped", "one block too many is skipped: the first rank's, by all others", _ALL,
        {"earlier": lambda a: w.tri(a) & ((a.split.rank_k > 0) | (w.rank_q(a) == 0))},
    ),
    RanksMistake(
        "causal-all-other-blocks-skipped", "under causal every block but the own one is skipped", _ALL,
        {"earlier": lambda a: w.tri(a) & w.same(a)},
    ),
    RanksMistake(
        "causal-by-hop", "the place of the keys is reckoned from the hop, not from their rank", _ALL,
        {"earlier": lambda a: np.arange(a.n_q)[:, None] >= w.hop_position(a)},
    ),
    RanksMistake(
        "causal-no-offset-of-queries", "the queries of every rank are taken for the first ones", _ALL,
        {"earlier": lambda a: a.split.local_q[:, None] >= np.arange(a.n_k)},
    ),
    RanksMistake(
        "causal-no-offset-of-keys", "the keys of every rank are taken for the first ones", _ALL,
        {"earlier": lambda a: np.arange(a.n_q)[:, None] >= a.split.local_k},
    ),
    RanksMistake(
        "zigzag-taken-for-rows", "the rows are split as a zigzag, and causal takes them for one piece a rank", _ALL,
        w.in_zigzag(lambda a: w.in_order(a)[:, None] >= w.in_order(a)),
    ),
    RanksMistake(
        "rows-taken-for-zigzag", "there is one piece a rank, and causal takes the rows for a zigzag", _ALL,
        {"earlier": lambda a: w.zigzag(a)[:, None] >= w.zigzag(a)},
    ),
    RanksMistake(
        "zigzag-second-chunk", "the second chunk of a zigzag is taken for number R + r, not 2R − 1 − r", _ALL,
        w.in_zigzag(lambda a: w.zigzag(a, straight=True)[:, None] >= w.zigzag(a, straight=True)),
    ),
    RanksMistake(
        "zigzag-later-skipped", "in a zigzag the blocks of later ranks are skipped", _ALL,
        w.in_zigzag(lambda a: w.tri(a) & (w.rank_q(a) >= a.split.rank_k)),
    ),
    RanksMistake(
        "zigzag-later-whole", "in a zigzag all queries see the blocks of later ranks", _ALL,
        w.in_zigzag(lambda a: w.tri(a) | (w.rank_q(a) < a.split.rank_k)),
    ),
    RanksMistake(
        "zigzag-earlier-whole", "in a zigzag both chunks of an earlier rank's keys are seen", _ALL,
        w.in_zigzag(lambda a: w.tri(a) | (w.rank_q(a) > a.split.rank_k)),
    ),
    # --- what is not split as the rows are
    RanksMistake(
        "scale-of-local-heads", "the scale is made of the width of the rank's own heads together", _ALL,
        {"width": lambda a: max(1, a.h // a.split.ranks) * a.d_k},
    ),
    RanksMistake(
        "scale-of-split-width", "the scale is made of the width divided by the ranks", _ALL,
        {"width": lambda a: a.d_k / a.split.ranks},
    ),
    RanksMistake(
        "scale-times-root-of-ranks", "the scale is made of the width times the ranks", _ALL,
        {"width": lambda a: a.d_k * a.split.ranks},
    ),
    RanksMistake(
        "columns-of-own-rank", "bias and mask are read at the columns of the rank itself at every hop", _ALL,
        {"columns_from": w.own},
    ),
    RanksMistake(
        "columns-by-hop", "bias and mask are read at the columns of the hop's number, not of the rank's", _ALL,
        {"columns_from": lambda a, r, s: a.hop(r, s)},
    ),
    RanksMistake(
        "bias-of-first-heads", "every rank reads the bias of the first rank's heads", _ALL,
        {"bias_seen": lambda a: 0.0 if a.bias is None else w.shared_heads(a, a.bias)},
    ),
    RanksMistake(
        "sink-of-first-heads", "every rank uses the sink of the first rank's heads", _ALL,
        {"sink_seen": lambda a: -np.inf if a.sink is None else w.shared_heads(a, a.of_heads(a.sink))},
    ),
    RanksMistake(
        "sink-in-every-block", "the sink counts in every block, not once", _ALL,
        {"sinks": lambda a: np.where(w.skips(a), w.rank_q(a) + 1.0, a.B)},
    ),
    RanksMistake(
        "heads-mixed", "heads and rows are mixed up by a reshape on both ways of the all-to-all", _ALL,
        {"enter": lambda a, name, T: w.heads_mixed(a, T), "leave": lambda a, name, T: w.heads_mixed(a, T, back=True)},
    ),
    RanksMistake(
        "heads-mixed-home", "heads and rows are mixed up by a reshape on the way home, of O and of gradients", _ALL,
        {"leave": lambda a, name, T: w.heads_mixed(a, T, back=True)},
    ),
    RanksMistake(
        "heads-mixed-in-backward", "heads and rows of the gradients are mixed up by a reshape on the way home",
        _GRADS, {"leave": lambda a, name, T: T if name == "O" else w.heads_mixed(a, T, back=True)},
    ),
    RanksMistake(
        "do-heads-mixed", "heads and rows of dO are mixed up by a reshape on the way to the heads", _GRADS,
        {"enter": lambda a, name, T: w.heads_mixed(a, T) if name == "dO" else T},
    ),
    RanksMistake(
        "padding-counted", "keys of the padding are attended to", _ALL,
        {"run": lambda a: w.padded(a, "K", "V")},
    ),
    RanksMistake(
        "padding-of-queries-counted", "queries of the padding add to dK and dV", _KV,
        {"run": lambda a: w.padded(a, "Q", "dO")},
    ),
    RanksMistake(
        "padding-all-counted", "padding counts, of queries and of keys", _ALL,
        {"run": lambda a: w.padded(a, "Q", "K", "V", "dO")},
    ),
    # --- rounding
    *(
        RanksMistake(f"{what}-{dtype}", f"{words}, in {dtype}", spoils, steps(_rounded.cast(dtype)))
        for dtype in ("float16", "bfloat16")
        for what, words, spoils, steps in _rounded.ROUNDED
    ),
)  # fmt: skip
"""These mistakes, in the order of the calculation."""
