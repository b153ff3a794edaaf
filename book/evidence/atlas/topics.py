"""The words of the field for what a cause is about: what readers look for. Page: :doc:`/book/atlas`."""

TOPICS = {
    "attention sinks": ("sink-not-in-l", "sink-gradient-dropped", "sink-reads-another-l"),
    "attn_bias, ALiBi": (
        "bias-not-in-base-two", "bias-without-gradient", "bias-gradient-not-summed", "bias-alone-asks",
    ),
    "block-sparse masks": ("blocks-of-another-size",),
    "context parallelism, ring attention": (
        "strides-of-o-for-do", "partial-sums-in-16-bits", "keys-of-the-first-step", "l-and-d-of-one-rank",
        "lengths-divided-evenly", "compared-with-itself",
    ),
    "delta (D, dPsum)": (
        "d-along-the-wrong-axis", "strides-of-do-in-d", "d-from-a-half-written-do", "l-and-d-of-one-rank",
        "dropout-in-d",
    ),
    "dropout": ("dropout-in-d", "dropout-scaled-by-p", "dropout-drawn-again"),
    "FlexAttention": ("strides-of-dk", "nan-in-ragged-tile"),
    "fully masked rows": ("dead-row", "dead-row-in-backward"),
    "GQA, MQA": (
        "no-sum-over-the-group", "group-tiled-not-repeated", "divided-by-the-wrong-count",
        "key-gradient-counted-in-query-heads", "shared-key-head-not-reduced",
    ),
    "is_causal, top-left or bottom-right": (
        "causal-forced-in-backward", "causal-missing-in-backward", "causal-other-corner-in-backward",
        "causal-other-corner",
    ),
    "KV cache": ("causal-other-corner", "merged-without-the-gradient-of-l"),
    "LSE (log-sum-exp)": (
        "padding-of-l-never-written", "l-and-d-of-one-rank", "merged-without-the-gradient-of-l", "l-without-gradient",
        "l-of-the-weights", "sink-not-in-l", "sink-reads-another-l",
    ),
    "MLA, head_dim_v": ("scale-twice-everywhere", "values-cut-to-the-width-of-keys", "last-columns-misplaced"),
    "non-contiguous tensors": (
        "strides-of-do", "strides-of-do-in-d", "strides-of-o-for-do", "strides-of-dk", "strides-of-dv-promised",
        "packed-projection", "do-must-be-contiguous", "inputs-must-be-contiguous",
    ),
    "nondeterminism, race conditions": ("d-from-a-half-written-do", "sums-of-dq-collide"),
    "RoPE, rotary embeddings": ("rotation-taken-back-in-the-wrong-order", "rotation-cuts-the-graph"),
    "sliding window (SWA)": ("causal-missing-in-backward", "window-one-too-wide", "window-not-there"),
    "softcap": ("cap-after-mask",),
    "softmax_scale": (
        "scale-of-padded-backward", "scale-ignored-by-fusion", "scale-twice-everywhere", "scale-of-all-heads",
        "keys-scaled-then-rounded",
    ),
    "tensor parallelism": ("shared-key-head-not-reduced", "times-the-number-of-ranks"),
    "TF32, BF16": ("tf32-products", "keys-scaled-then-rounded", "partial-sums-in-16-bits"),
    "Ulysses, sequence parallelism": ("times-the-number-of-ranks",),
    "varlen, packed sequences (THD, cu_seqlens)": (
        "rows-never-written", "padding-of-l-never-written", "address-overflows", "lengths-divided-evenly",
        "sink-reads-another-l", "nothing-to-do",
    ),
}  # fmt: skip
"""{words: the slugs of the causes that are about that}."""


def topics(slug):
    """The words for a cause."""
    return [words for words, slugs in TOPICS.items() if slug in slugs]
