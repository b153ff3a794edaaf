"""Incidents about the step through softmax, and about heads that share keys. Page: :doc:`/book/atlas`."""

import numpy as np

from attnbook.diagnose.steps import Steps, mT
from evidence.atlas.entries import Cause, Setting, Thread
from evidence.atlas.plant import planted

ALL, GROUPED = ("O", "dQ", "dK", "dV"), {"heads": 6, "key_heads": 2}
IN_PAPER = "Compare the shapes, then the numbers, where all sizes differ."


def by_rest(T, heads):
    """Key head r mod h for query head r, in the place of its neighbor's."""
    return np.concatenate([T] * (heads // T.shape[-3]), axis=-3) if heads != T.shape[-3] else T


def scattered(dT, h_kv, head_of):
    """What each query head has for its key head, put where ``head_of`` says; NaN where nothing was written."""
    heads = dT.shape[-3]
    if heads == h_kv:
        return dT
    came = np.full((*dT.shape[:-3], h_kv, *dT.shape[-2:]), np.nan)
    for r in range(heads):
        if head_of(r) < h_kv:
            came[..., head_of(r), :, :] = np.nan_to_num(came[..., head_of(r), :, :]) + dT[..., r, :, :]
    return came


def of_some(a, dT):
    """The sum over the first half of the query heads that share a key head: what one of two ranks has."""
    return a.groups(dT)[..., : -(-a.h // a.h_kv // 2), :, :].sum(axis=-3) if a.h != a.h_kv else dT


def spilled(a, T):
    """T by heads, written in tiles of 4 heads: what stands behind the last one goes to the next batch's first."""
    T = T.copy()
    if a.h % 4 and T.ndim > 3:
        T[1:, : -a.h % 4] = 0
    return T


CAUSES = (
    Cause(
        "dk-in-the-wrong-order",
        "A paper prints dK = Q dSᵀ",
        "The two factors stand in the wrong order. Whoever types it in gets an error, or, where the sizes allow it, "
        "other numbers.",
        IN_PAPER,
        "dK = dSᵀ Q.",
        ("dK",),
        planted(dK_unscaled=lambda a: a.Q @ mT(a.dS)),
        Setting(4, 4, 4, 4),
        None,
        (Thread("Dao-AILab/flash-attention", 373, 2023, "a typo"),),
    ),
    Cause(
        "d-along-the-wrong-axis",
        "Two papers give D two shapes",
        "D is one number a query. Summed along the other axis it has one number a column, and where the sizes are "
        "equal "
        "it is subtracted without an error.",
        IN_PAPER,
        "D = rowsum(dO ∘ O), a column.",
        ("dQ", "dK"),
        planted(D=lambda a: (a.dO * a.O).sum(axis=-2, keepdims=True)),
        Setting(4, 4, 4, 4),
        None,
        (
            Thread(
                "Dao-AILab/flash-attention", 2555, 2026,
                "Flash Attention 1 and 2 Papers Backward Formula Shape Mismatch",
                note="It does not say which of the two is wrong.",
            ),
        ),
    ),
    Cause(
        "do-ignored",
        "The gradient that comes in is not used",
        "The backward differentiates the sum of the output. Inside a model the gradient at the output is never all "
        "ones.",
        "A random dO. The test `output.sum().backward()` passes.",
        "Hand dO to the product with the Jacobian.",
        ("dQ", "dK", "dV"),
        planted(
            dV_heads=lambda a: mT(a.P_backward) @ np.ones(a.dO.shape),
            dP=lambda a: np.ones(a.dO.shape) @ mT(a.v),
        ),
        Setting(),
        Setting(ones=True),
        (
            Thread(
                "mindspore-lab/mindone", 1438, 2025,
                "feat(mindone/diffusers): Context parallelism ring & ulysses & unified Attention", "pull",
                note="Found in review.",
            ),
        ),
    ),
    Cause(
        "no-sum-over-the-group",
        "dK and dV are not summed over the query heads that share a key head",
        "Keys and values were broadcast on the way in. The backward of a kernel does not undo that by itself.",
        "Fewer key heads than query heads, and gradients.",
        "Sum over the axis that was broadcast.",
        ("dK", "dV"),
        planted(gather=lambda a, dT: dT),
        Setting(**GROUPED),
        Setting(),
        (Thread("marin-community/levanter", 449, 2024, "Bugfix: GQA with FA", "pull"),),
    ),
    Cause(
        "group-tiled-not-repeated",
        "Query heads share keys with strangers",
        "Key heads are laid out 0 1 0 1 where 0 0 1 1 was meant: tile in place of repeat. All shapes are right.",
        "At least two key heads and two query heads for each, and another forward to compare with.",
        "Repeat each head in its place.",
        ALL,
        planted(
            share=lambda a, T: by_rest(T, a.h),
            gather=lambda a, dT: sum(np.split(dT, a.h // a.h_kv, axis=-3)),
        ),
        Setting(**GROUPED),
        Setting(heads=6, key_heads=1),
        (Thread("ekzhang/jax-js", 180, 2026, "Fix GQA semantics for attention heads", "pull"),),
    ),
    Cause(
        "divided-by-the-wrong-count",
        "The backward divides a head's number by the wrong count",
        "The forward finds the key head with one division, one pass of the backward with another. Some gradients go to "
        "the wrong head, some out of range, and some places are never written.",
        "A number of key heads that is not the number of query heads for each.",
        "One function from query head to key head, for all passes.",
        ("dK", "dV"),
        planted(gather=lambda a, dT: scattered(dT, a.h_kv, lambda r: r // a.h_kv)),
        Setting(**GROUPED),
        Setting(heads=4, key_heads=2),
        (
            Thread(
                "XunhaoLai/native-sparse-attention-triton", 27, 2026,
                "flash_attention_varlen backward: wrong head-count division under gqa_interleave and "
                "wrong v-space extents in backward_dq",
                note="The first of its two defects.",
            ),
        ),
    ),
    Cause(
        "key-gradient-counted-in-query-heads",
        "dK is written as if it had as many heads as Q",
        "The address of a block of dK is computed from the number of the query head.",
        "Fewer key heads than query heads, and gradients.",
        "Count in key heads where keys are written.",
        ("dK",),
        planted(dK=lambda a: scattered(a.dK_scale * a.dK_unscaled, a.h_kv, lambda r: r)),
        Setting(**GROUPED),
        Setting(),
        (
            Thread(
                "fla-org/flash-linear-attention", 384, 2025, "[PaTH] Add PaTH attention model and kernel", "pull",
                note="As a review has it.",
            ),
        ),
    ),
    Cause(
        "values-cut-to-the-width-of-keys",
        "One pass reads V and dO only as far as keys are wide",
        "The block pointers of V and dO in the pass for dQ have the width of the keys. Where values are wider, dP "
        "lacks "
        "the rest.",
        "Values wider than keys.",
        "Two widths, each read from its own array.",
        ("dQ",),
        planted(
            dQ_unscaled=lambda a: (
                (a.P_backward * (a.dO[..., : a.d_k] @ mT(a.v[..., : a.d_k]) - a.D)) @ a.k
            )
        ),
        Setting(),
        Setting(d_v=11),
        (
            Thread(
                "XunhaoLai/native-sparse-attention-triton", 27, 2026,
                "flash_attention_varlen backward: wrong head-count division under gqa_interleave and "
                "wrong v-space extents in backward_dq",
                note="The second of its two defects.",
            ),
        ),
    ),
    Cause(
        "tile-of-heads-too-wide",
        "A tile holds more heads than there are",
        "The kernel copies 16 heads whatever their number is. It writes behind the last head of dQ, into what comes "
        "next: here, the first head of the next batch.",
        "A number of heads below the tile, and a batch above 1.",
        "Pad the heads to the tile and cut off what was added, or mask the copy.",
        ("dQ",),
        planted(dQ=lambda a: spilled(a, Steps.dQ.func(a))),
        Setting(),
        Setting(heads=4),
        (
            Thread(
                "PaddlePaddle/PaddleFleet", 1784, 2026,
                "[BugFix] Pad the tilelang MQA backward heads up to the kernel tile", "pull",
            ),
        ),
    ),
    Cause(
        "shared-key-head-not-reduced",
        "Ranks split the query heads and share the keys, and do not add up",
        "Each rank has some of the query heads and a copy of the key head. Its dK and dV are the part of its own "
        "heads; "
        "nobody sums over the ranks. Training goes wrong slowly, after thousands of steps.",
        "Two ranks against one; fewer key heads than query heads.",
        "A sum over the ranks where the shared keys come in.",
        ("dK", "dV"),
        planted(gather=of_some),
        Setting(**GROUPED),
        Setting(),
        (
            Thread("bigcode-project/Megatron-LM", 35, 2023, "Unstable training with MQA and TP>1", fixed=(37, 39)),
            Thread(
                "NVIDIA/Megatron-LM", 1699, 2025,
                "[BUG] [MLA] k_pos_emb in MLA is not reduced across TP ranks if linear_kv_down_proj is "
                "ColumnParallelLinear",
                note="Of the part of the keys that all heads share.", fixed=(6839,),
            ),
        ),
    ),
)  # fmt: skip
