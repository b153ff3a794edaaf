"""Incidents about the last tile, about rounding on the way, and about races. Page: :doc:`/book/atlas`."""

from itertools import count

import numpy as np

from attnbook.diagnose.steps import Steps, mT, rowsum
from evidence.atlas.entries import Cause, Setting, Thread
from evidence.atlas.plant import again, forbidden, planted

ALL, BACKWARD = ("O", "dQ", "dK", "dV"), ("dQ", "dK", "dV")
TILE, COLUMNS = 4, 8
BF16, TF32 = 8, 11  # bits of precision, the leading one counted


def rounded(T, bits):
    """T, each number to so many bits."""
    parts, exponents = np.frexp(T)
    return np.ldexp(np.round(np.ldexp(parts, bits)), exponents - bits)


def product(A, B):
    """A B, of factors that are rounded to TF32."""
    return rounded(A, TF32) @ rounded(B, TF32)


def spilled_rows(dV):
    """dV, one head behind the other, in tiles of 4 rows: a last one that is not full covers the next head's first."""
    n = dV.shape[-2]
    if dV.ndim < 3 or n % TILE == 0:
        return dV
    came = dV.copy().reshape(-1, *dV.shape[-2:])
    came[1:, : -n % TILE] = 0
    return came.reshape(dV.shape)


def misplaced_columns(dV):
    """dV written 8 columns at a time, with the last, narrower ones moved by half of that."""
    whole = dV.shape[-1] // COLUMNS * COLUMNS
    return np.concatenate([dV[..., :whole], np.roll(dV[..., whole:], TILE, axis=-1)], axis=-1)


def nan_of_ragged(a):
    """dQ, NaN where a changed score meets a masked, ragged last tile."""
    ragged = a.n_k % TILE and a.bias is not None and a.causal
    return np.full(a.Q.shape, np.nan) if ragged else Steps.dQ.func(a)


def hops(a, make, keys):
    """The sum over two ranks' keys of what ``make`` gives for each; every partial sum rounded to bfloat16."""
    cut = a.n_k // 2
    parts = [rounded(make(part), BF16) for part in (slice(None, cut), slice(cut, None))]
    return np.concatenate(parts, axis=-2) if keys else rounded(sum(parts), BF16)


def racing(wrong, every):
    """The right steps, and in one call of so many the wrong ones: what a race does, with the chance taken out."""
    calls = count(1)
    right = planted()

    def run(Q, K, V, dO, **options):
        return (wrong if next(calls) % every == 0 else right)(Q, K, V, dO, **options)

    run.every, run.from_the_first = every, lambda: racing(wrong, every)
    return run


def half_written(dO):
    """dO with its second half of rows not there yet."""
    return np.where(np.arange(dO.shape[-2])[:, None] < -(-dO.shape[-2] // 2), dO, 0.0)


D_TOO_EARLY = planted(D=lambda a: rowsum(half_written(a.dO) * a.O))
LOST_SUM = planted(dQ_unscaled=lambda a: a.dS[..., a.n_k // 2 :] @ a.k[..., a.n_k // 2 :, :])

CAUSES = (
    Cause(
        "last-tile-spills",
        "The last tile writes over the next head",
        "A length is padded to whole tiles, and the padded rows are written too. Behind the last row of a head lies "
        "the "
        "first of the next.",
        "A length that is no multiple of the tile, and two heads. The first head is right.",
        "Mask what is written, not only what is read.",
        ("dV",),
        planted(dV=lambda a: spilled_rows(Steps.dV.func(a))),
        Setting(),
        Setting(n_k=8),
        (
            Thread(
                "flagos-ai/FlagGems", 898, 2025, "[WIP] add `scaled_dot_product_attention_backward`", "pull",
                note="Its author measured which rows: as many as were padded, of every head but the first.",
                stated=False,
            ),
        ),
    ),
    Cause(
        "last-columns-misplaced",
        "One pattern of columns serves two widths",
        "The pattern in which a kernel stores columns is made from the width of the keys, and used for dV as well. "
        "Where "
        "it does not divide the width of the values, some columns land elsewhere.",
        "Values of a width that the pattern does not divide, such as 96 beside keys of 128.",
        "A pattern for each width; refuse what does not fit.",
        ("dV",),
        planted(dV=lambda a: misplaced_columns(Steps.dV.func(a))),
        Setting(),
        Setting(d_v=16),
        (
            Thread(
                "Dao-AILab/flash-attention", 2552, 2026,
                "[Bug] SM100 backward kernel produces incorrect dV for MLA shapes whose `head_dim_v` isn't aligned to "
                "`dK_reduce_ncol`",
            ),
        ),
    ),
    Cause(
        "nan-in-ragged-tile",
        "NaN where a mask, a changed score and a ragged length meet",
        "Each alone is right. Together, the derivative of the changed score is taken at padded places, where it is not "
        "finite, and is multiplied by a weight of 0.",
        "All options at once, with a length that is no multiple of the tile.",
        "Select with `where`, not with a product by 0.",
        ("dQ",),
        planted(dQ=nan_of_ragged),
        Setting(options={"causal": True, "bias": lambda at, rng: rng.standard_normal((at.n_q, at.n_k))}),
        Setting(n_k=8, options={"causal": True, "bias": lambda at, rng: rng.standard_normal((at.n_q, at.n_k))}),
        (
            Thread(
                "pytorch/pytorch", 153799, 2025,
                "FlexAttention causes nun in backward if sequence length is not multiple of 128 and both block_mask "
                "and "
                "score_mod used",
                stated=False,
            ),
        ),
    ),
    Cause(
        "tf32-products",
        "Products in TF32 where float32 is asked for",
        "float32 goes in and float32 comes out, but the factors of every product are rounded to 11 bits. The forward "
        "stays within the tolerance of its test, the gradients do not.",
        "float32, and a tolerance for float32; not the 1e-2 of 16-bit kernels.",
        "Ask for full precision in every product, or compare with a float64 reference and say which precision is "
        "meant.",
        ALL,
        planted(
            scores=lambda a: a.scale * product(a.Q, mT(a.k)) + (0.0 if a.bias is None else a.bias),
            O=lambda a: product(a.P, a.v),
            dV_heads=lambda a: product(mT(a.P_backward), a.dO),
            dP=lambda a: product(a.dO, mT(a.v)),
            dQ_unscaled=lambda a: product(a.dS, a.k),
            dK_unscaled=lambda a: product(mT(a.dS), a.Q),
        ),
        Setting(),
        None,
        (
            Thread("evintunador/triton_docs_tutorials", 6, 2026, "FlashAttention | 4090 TF32 Problem"),
            Thread("triton-lang/triton", 1671, 2023, "fused attention has issues with FP32 when allow_tf32 is enabled"),
        ),
    ),
    Cause(
        "keys-scaled-then-rounded",
        "The backward scales keys in 16 bits before the product",
        "The scale is multiplied into the keys, which rounds them, and the scores come out other than in the forward. "
        "Their difference to L is exponentiated: the larger the scores, the wronger the weights.",
        "Scores of the size that real activations have. With unit normal numbers every test passes.",
        "Scale the product, in float32, as the forward does.",
        BACKWARD,
        planted(
            P_backward=lambda a: again(
                a, forbidden(a, a.allowed, a.scores + a.Q @ mT(rounded(a.scale * a.k, BF16) - a.scale * a.k))
            )
        ),
        Setting(),
        None,
        (
            Thread(
                "hao-ai-lab/FastVideo", 1730, 2026,
                "[bugfix] fastvideo-kernel: fix Triton block-sparse backward logit scaling (bf16 K pre-scaling)",
                "pull",
            ),
        ),
    ),
    Cause(
        "partial-sums-in-16-bits",
        "Every partial sum of a ring is rounded to 16 bits",
        "The kernel returns 16 bits for each block of keys, and the sum over the blocks, though kept in 32, is a sum "
        "of "
        "rounded numbers. The error grows with the number of ranks.",
        "A comparison with one rank in float32, at several numbers of ranks.",
        "Let the kernel return float32 for partial results.",
        BACKWARD,
        planted(
            dQ_unscaled=lambda a: hops(a, lambda j: a.dS[..., j] @ a.k[..., j, :], False),
            dK_unscaled=lambda a: hops(a, lambda j: mT(a.dS[..., j]) @ a.Q, True),
            dV_heads=lambda a: hops(a, lambda j: mT(a.P_backward[..., j]) @ a.dO, True),
        ),
        Setting(),
        None,
        (
            Thread("zhuzilin/ring-flash-attention", 42, 2024, "Numerical errors in backward"),
            Thread("zhuzilin/ring-flash-attention", 22, 2024, "精度问题"),
            Thread(
                "Dao-AILab/flash-attention", 2723, 2026,
                "[FA3 ring attn support] Ring-attention primitives that keep partials & gradients in fp32, eliminating "
                "the per-hop bf16↔fp32 round-trips a naive ring pays (faster + more accurate)",
                "pull",
            ),
        ),
    ),
    Cause(
        "d-from-a-half-written-do",
        "D is made before dO is there",
        "The kernel that makes D may start while the one before it still writes dO. D is then a sum of old and new "
        "numbers. dV does not use D. Here one call of twenty has the bad luck.",
        "The same call many times, right behind what writes dO.",
        "Wait for the kernel before, where its result is read.",
        ("dQ", "dK"),
        racing(D_TOO_EARLY, 20),
        Setting(),
        None,
        (
            Thread(
                "Dao-AILab/flash-attention", 2481, 2026,
                "[cute,bwd] fix PDL race in bwd_preprocess, which corrupting dpsum on SM90+", "pull",
                note="On one GPU within the first steps, on another once in 3,000.",
            ),
        ),
        in_fact=racing(D_TOO_EARLY, 3000),
    ),
    Cause(
        "sums-of-dq-collide",
        "Two blocks add to dQ at once, and one sum is lost",
        "Every block of keys adds its part to the same dQ. Without an atomic sum or a wait, one of two that read the "
        "same "
        "old value wins. Here one call of twenty loses the first half of the keys.",
        "The same call many times, compared bit by bit.",
        "Atomic sums, or one block for each row of dQ; a wait until what was stored is there.",
        ("dQ",),
        racing(LOST_SUM, 20),
        Setting(),
        None,
        (
            Thread(
                "speedinghzl/CCNet", 62, 2019, "The backward function in cc_attention seems incorrect",
                note="The thread asks for atomic sums; it does not say which result is wrong.",
            ),
            Thread(
                "Dao-AILab/flash-attention", 359, 2023, "[flashv2/BW] Potential race condition?",
                note="Only with another level of optimization.",
            ),
            Thread("hao-ai-lab/FastVideo", 735, 2025, "Fix vsa backward gQ", "pull"),
            Thread(
                "Dao-AILab/flash-attention", 2033, 2025,
                "[Cute,Bwd,Sm100] enable deterministic mode for sm100 bwd and fix race conditions", "pull",
                note="Several races at once.",
            ),
            Thread(
                "Dao-AILab/flash-attention", 2244, 2026,
                "FA3 deterministic=True gives non-deterministic gradients in backward "
                "(flash_attn_func / flash_attn_qkvpacked_func)",
                note="A later comment could not bring it about again.", stated=False,
            ),
        ),
    ),
)  # fmt: skip
