"""The part of the catalogue of parallel mistakes that is about what goes around in a ring: K and V, and how often.

Chapter: :doc:`/chapters/08_checking`.
"""

from attnbook.diagnose.ranks import _wrong as w
from attnbook.diagnose.ranks._wrong import RanksMistake

_ALL, _GRADS, _QK = ("O", "dQ", "dK", "dV"), ("dQ", "dK", "dV"), ("dQ", "dK")
_NOT_DV = ("O", "dQ", "dK")

AROUND = (
    # --- what goes around
    RanksMistake(
        "ring-kv-stale", "every hop uses the K and V of the first one", _ALL,
        {"k_from": w.own, "k_from_backward": w.own},
    ),
    RanksMistake(
        "ring-kv-stale-forward", "every hop of the forward uses the K and V of the first one", _ALL,
        {"k_from": w.own},
    ),
    RanksMistake(
        "ring-kv-stale-backward", "every hop of the backward uses the K and V of the first one", _GRADS,
        {"k_from_backward": w.own}, ("diffusers#14265",),
    ),
    RanksMistake(
        "ring-k-stale", "every hop uses the K of the first one, with the right V", _ALL,
        {"k_from": w.own, "k_from_backward": w.own, "v_from": lambda a, r, s: s,
        "v_from_backward": lambda a, r, s: s},
    ),
    RanksMistake(
        "ring-v-stale", "every hop uses the V of the first one, with the right K", _NOT_DV,
        {"v_from": w.own, "v_from_backward": w.own},
    ),
    RanksMistake(
        "ring-v-stale-backward", "every hop of the backward uses the V of the first one, with the right K", _QK,
        {"v_from_backward": w.own},
    ),
    RanksMistake(
        "ring-kv-late", "a hop does not wait: it uses the K and V of the hop before", _ALL,
        {"k_from": w.before, "k_from_backward": w.before},
    ),
    RanksMistake(
        "ring-kv-late-backward", "a hop of the backward does not wait: it uses the K and V of the hop before", _GRADS,
        {"k_from_backward": w.before},
    ),
    RanksMistake(
        "ring-kv-other-way",
        "K and V come from the ranks after this one where those before it are meant, as causal, mask and bias have it",
        _ALL, {"k_from": w.other_way, "k_from_backward": w.other_way, "home_k": w.other_way},
    ),
    RanksMistake(
        "ring-kv-other-way-alone", "K and V go around the other way, and dK and dV do not", _ALL,
        {"k_from": w.other_way, "k_from_backward": w.other_way},
    ),
    RanksMistake(
        "ring-kv-other-way-forward",
        "in the forward K and V come from the ranks after this one where those before it are meant", _ALL,
        {"k_from": w.other_way},
    ),
    RanksMistake(
        "ring-kv-other-way-backward",
        "in the backward K and V come from the ranks after this one where those before it are meant", _GRADS,
        {"k_from_backward": w.other_way, "home_k": w.other_way},
    ),
    RanksMistake(
        "ring-kv-other-way-alone-backward", "in the backward K and V go around the other way, and dK and dV do not",
        _GRADS, {"k_from_backward": w.other_way},
    ),
    RanksMistake(
        "ring-kv-ahead", "K and V are sent on before they are used: causal, mask and bias are a hop behind", _ALL,
        {"k_from": w.ahead, "k_from_backward": w.ahead, "home_k": w.ahead},
    ),
    RanksMistake(
        "ring-v-late", "V comes a hop later than K", _NOT_DV,
        {"v_from": w.before, "v_from_backward": w.before},
    ),
    RanksMistake(
        "ring-v-other-way", "V goes around the other way than K", _NOT_DV,
        {"v_from": w.other_way, "v_from_backward": w.other_way},
    ),
    RanksMistake(
        "ring-v-other-way-backward", "in the backward V goes around the other way than K", _QK,
        {"v_from_backward": w.other_way},
    ),
    # --- how often
    RanksMistake(
        "hop-missing", "one hop too few: the last block is not visited", _ALL,
        {"times": w.last, "times_backward": w.last},
    ),
    RanksMistake("hop-missing-forward", "one hop too few in the forward", _ALL, {"times": w.last}),
    RanksMistake("hop-missing-backward", "one hop too few in the backward", _GRADS, {"times_backward": w.last}),
    RanksMistake(
        "hop-twice", "one hop too many: the own block is counted twice", _ALL,
        {"times": w.first_twice, "times_backward": w.first_twice},
    ),
    RanksMistake("hop-twice-forward", "one hop too many in the forward", _ALL, {"times": w.first_twice}),
    RanksMistake("hop-twice-backward", "one hop too many in the backward", _GRADS, {"times_backward": w.first_twice}),
    RanksMistake(
        "own-block-missing", "K and V are sent on before they are used: the own block is not visited", _ALL,
        {"times": w.not_first, "times_backward": w.not_first},
    ),
    RanksMistake(
        "own-block-missing-backward", "in the backward the own block is not visited", _GRADS,
        {"times_backward": w.not_first},
    ),
    RanksMistake(
        "own-block-only", "each rank attends to its own keys only", _ALL,
        {"times": w.first_only, "times_backward": w.first_only},
    ),
    RanksMistake(
        "own-block-only-backward", "in the backward each rank knows its own keys only", _GRADS,
        {"times_backward": w.first_only},
    ),
)  # fmt: skip
"""These mistakes, in the order of the calculation."""
