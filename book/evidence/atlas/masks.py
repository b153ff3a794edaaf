"""Incidents about causal, windows, and rows that may see no key. Page: :doc:`/book/atlas`."""

import numpy as np

from attnbook.diagnose.steps import rowsum
from evidence.atlas.entries import Cause, Setting, Thread
from evidence.atlas.plant import again, alive, forbidden, planted

ALL, BACKWARD = ("O", "dQ", "dK", "dV"), ("dQ", "dK", "dV")
CAUSAL, BOTTOM = {"causal": True}, {"causal": "bottom-right"}


def corner_of(a, corner):
    """(n_q, n_k), True where the key is not later, counted from this corner."""
    return np.tri(a.n_q, a.n_k, a.n_k - a.n_q if corner == "bottom-right" else 0, dtype=bool)


def zero_over_zero(a):
    """Softmax as it is written on paper: NaN in a row of −∞."""
    E = np.exp(a.S - a.S.max(axis=-1, keepdims=True))
    return E / rowsum(E)


def blocks_as_halves(a):
    """The mask's blocks of 4 × 4, taken for blocks of 2 × 2; beyond them nothing is allowed."""
    if a.mask is None:
        return a.mask_allows
    blocks = a.mask_allows[..., ::4, ::4].repeat(2, axis=-2).repeat(2, axis=-1)[..., : a.n_q, : a.n_k]
    allowed = np.zeros(a.mask_allows.shape, dtype=bool)
    allowed[..., : blocks.shape[-2], : blocks.shape[-1]] = blocks
    return allowed


def one_wider(a):
    """(n_q, n_k), True where the key is in the window, or one behind it."""
    left, right = (a.n_q + a.n_k,) * 2 if a.window is None else a.window
    return (-left - 1 <= a.later) & (a.later <= right)


def capped_last(a):
    """The scores, forbidden first and capped then: what was −∞ is the lower end of the cap."""
    S = forbidden(a, a.allowed)
    return S if a.softcap is None else a.softcap * np.tanh(S / a.softcap)


def uncapped_last(a):
    """The gradient of the scores, back over a cap that was the last step."""
    return a.dS if a.softcap is None else a.dS * (1 - (a.S / a.softcap) ** 2)


CAUSES = (
    Cause(
        "causal-forced-in-backward",
        "The backward is causal, whether the forward was or not",
        "The backward was written for the causal case. The flag reaches the forward; the backward masks in any case.",
        "Gradients with causal off.",
        "Hand the flag on to the backward; test both of its values.",
        BACKWARD,
        planted(P_backward=lambda a: again(a, forbidden(a, a.mask_allows & corner_of(a, "top-left")))),
        Setting(),
        Setting(options=CAUSAL),
        (
            Thread(
                "triton-lang/triton", 5660, 2025, "FusedAttention Bug (at backward with causal=False)",
                stated=False,
            ),
            Thread(
                "triton-lang/triton", 4541, 2024,
                "[Tutorial] Fused-attention `bwd` tutorial incorrect for `causal=True`",
                note="The title says True, the text that the flag is ignored.",
            ),
            Thread(
                "triton-lang/triton", 4174, 2024, "flash-attention gradient calculation fail due to numerical error",
                stated=False,
            ),
        ),
    ),
    Cause(
        "causal-missing-in-backward",
        "The forward is causal or has a window, the backward sees all keys",
        "The backward makes the weights again and leaves the mask out: a flag is not handed on, or compared with "
        "something that it never is. With the L of the forward, forbidden keys get weights of any size.",
        "Gradients with causal on.",
        "One function for the mask, called by both passes.",
        BACKWARD,
        planted(P_backward=lambda a: again(a, forbidden(a, a.mask_allows))),
        Setting(options=CAUSAL),
        Setting(),
        (
            Thread(
                "meta-pytorch/MSLK", 263, 2026,
                "Use FA4 CuteDSL backward for compressed + sliding window; fix causal bug", "pull",
            ),
            Thread(
                "triton-lang/triton", 7216, 2025, "Why fused attn tutorial cannot pass bwd testop?",
                note="As a comment explains it.",
            ),
        ),
    ),
    Cause(
        "causal-other-corner-in-backward",
        "Forward and backward line causal up at different corners",
        "The forward lines the last query up with the last key, the backward the first with the first. Where n_q = n_k "
        "these are the same.",
        "Causal with fewer queries than keys.",
        "The offset n_k − n_q in both passes, in the bounds of the loops too.",
        BACKWARD,
        planted(
            P_backward=lambda a: again(
                a, forbidden(a, a.mask_allows & (corner_of(a, "top-left") | (a.corner is None)))
            )
        ),
        Setting(options=BOTTOM),
        Setting(n_q=7, options=BOTTOM),
        (
            Thread("xlite-dev/ffpa-attn", 300, 2026, "Fix causal cross-attention alignment in Triton backward", "pull"),
        ),
    ),
    Cause(
        "causal-other-corner",
        "Two libraries mean different corners by causal",
        "One counts from the first query and key, the other from the last. Each is consistent; who moves code from one "
        "to the other, or compares them, gets other numbers without a warning.",
        "Causal with n_q ≠ n_k.",
        "Say which corner; or hand over a mask.",
        ALL,
        planted(corner=lambda a: "bottom-right" if a.causal is True else a.causal or None),
        Setting(options=CAUSAL),
        Setting(n_q=7, options=CAUSAL),
        (
            Thread(
                "ml-explore/mlx", 2835, 2025,
                "[BUG] Result of scaled_dot_product_attention does not match PyTorch when S_Q != S_KV, "
                'mask="causal"',
            ),
            Thread(
                "pytorch/executorch", 22426, 2026,
                "MLX backend returns wrong numbers for causal attention when query and key lengths differ",
            ),
            Thread(
                "pytorch/pytorch", 103082, 2023,
                "Ambiguitiy in causal-mask in scaled_dot_product_attention",  # codespell:ignore ambiguitiy
                note="The other way round: the first corner came, the last was expected.",
            ),
            Thread(
                "pytorch/pytorch", 144858, 2025,
                "torch.nn.functional.scaled_dot_product_attention is_causal fails for kv-cache case "
                "(sequential and further parallel attention)",
                note="The same, with one query and a cache of keys.",
            ),
        ),
    ),
    Cause(
        "window-one-too-wide",
        "The window holds one key more",
        "One library counts the query itself, the other only what lies behind it. The number is handed on as it is.",
        "A window shorter than the sequence, and another forward to compare with.",
        "Subtract 1, and test at the edge of the window.",
        ALL,
        planted(window_allows=one_wider),
        Setting(options=CAUSAL | {"window": (1, 0)}),
        Setting(options=CAUSAL | {"window": (6, 0)}),
        (
            Thread(
                "huggingface/transformers", 39408, 2025,
                "Off-by-one error when using flash_attention with a sliding window",
            ),
            Thread("huggingface/transformers", 29623, 2024, "Attention sliding window implementation"),
        ),
        planted(),
    ),
    Cause(
        "window-not-there",
        "The window is handed over with the wrong sign, and is none",
        "To the kernel a negative width means: no window. So attention is global, and no error is raised.",
        "A window shorter than the sequence, and another forward to compare with.",
        "Hand over the width as it is documented; let a wrapper refuse a negative one.",
        ALL,
        planted(window_allows=lambda a: np.full((a.n_q, a.n_k), True)),
        Setting(options=CAUSAL | {"window": (1, 0)}),
        Setting(options=CAUSAL | {"window": (6, 0)}),
        (Thread("proger/hippogriff", 7, 2024, "sliding window attention bug?"),),
        planted(),
    ),
    Cause(
        "dead-row",
        "A query that may see no key makes everything NaN",
        "Its scores are all −∞, and softmax is 0/0. That the loss does not look at the row is no help: 0 · NaN is NaN, "
        "and the projections are shared by all rows.",
        "A mask that forbids one query all keys: padding and causal together do.",
        "Weights of 0 in such a row, in the forward.",
        ALL,
        planted(P=zero_over_zero),
        Setting(padding=1),
        Setting(),
        (
            Thread(
                "pytorch/pytorch", 41508, 2020,
                "nn.MultiheadAttention causes gradients to become NaN under some use cases",
                fixed=(189045, 196170),
            ),
            Thread("pytorch/pytorch", 42323, 2020, "NaN masking in multihead attention", "pull"),
            Thread("pytorch/pytorch", 131060, 2024, "Add a private _safe_softmax", "pull"),
            Thread(
                "pytorch/pytorch", 160064, 2025,
                "MultiheadAttention returns all NaN when using attn_mask to fully mask some heads, "
                "and using `need_weights=True`",
            ),
            Thread("lucidrains/nGPT-pytorch", 11, 2024, "Boolean mask doe snot work"),
            Thread("tracel-ai/burn", 4697, 2026, "Fix attention_fallback NaN for fully-masked rows", "pull"),
            Thread(
                "iree-org/iree", 24175, 2026,
                "[SDPA] `iree_linalg_ext.attention` produces NaN for fully masked inputs, instead of zeros",
            ),
        ),
    ),
    Cause(
        "dead-row-in-backward",
        "The forward is 0 in a row without keys, the gradient NaN",
        "The forward has a guard for such a row, the backward has none: it subtracts an L of −∞ from scores of −∞, or "
        "from scores that it reads past the end.",
        "Causal with more queries than keys, lined up at the end, or a row of padding.",
        "In the backward too: weights of 0 where L is −∞.",
        ("dQ",),
        planted(dQ=lambda a: np.where(alive(a), a.dQ_scale * a.dQ_unscaled, np.nan)),
        Setting(n_q=7, n_k=5, options=BOTTOM),
        Setting(n_q=7, options=BOTTOM),
        (
            Thread("Dao-AILab/flash-attention", 443, 2023, "[flashv2/BW] `nan` in some configurations", stated=False),
            Thread(
                "NVIDIA/cudnn-frontend", 676, 2026,
                "[Bug]: DSA sparse_attention_backward (SM90/SM100): NaN gradients on invalid/empty/all-sink top-k "
                "rows, "
                "GPU deadlock on empty rows, wrong d_sink, and accuracy loss under large logits",
                note="One of the five symptoms that it lists.",
            ),
        ),
    ),
    Cause(
        "cap-after-mask",
        "The cap is applied after the mask",
        "tanh turns the −∞ of a forbidden key into the cap's lower end, a finite score. With a low cap the key gets a "
        "weight that counts: later tokens leak into earlier ones.",
        "A cap of a few units and a mask, together.",
        "Scale, cap, mask, softmax, in this order.",
        ALL,
        planted(capped=lambda a: a.products, S=capped_last, dproducts=uncapped_last),
        Setting(options=CAUSAL | {"softcap": 1.5}),
        Setting(options={"softcap": 1.5}),
        (
            Thread(
                "Dao-AILab/flash-attention", 1025, 2024, "[WIP] First draft for softcapping.", "pull",
                note="Found in review, before it was merged.",
            ),
        ),
        planted(),
    ),
    Cause(
        "blocks-of-another-size",
        "Blocks of the mask are read with another size",
        "The mask is a table of blocks that a kernel may skip. The forward cuts it into blocks of one size, the "
        "backward walks in tiles of another.",
        "Gradients with a mask of blocks, for each width that has tiles of its own.",
        "One size for both passes, or a table for each; refuse a table that does not fit.",
        BACKWARD,
        planted(P_backward=lambda a: again(a, forbidden(a, blocks_as_halves(a)))),
        Setting(8, 8, options={"mask": np.kron(np.tri(2), np.ones((4, 4))).astype(bool)}),
        Setting(8, 8),
        (
            Thread(
                "Dao-AILab/flash-attention", 2623, 2026,
                "[CuTe/SM90] Block-sparse backward returns silently-wrong gradients for head_dim=64 (forward is exact)",
                stated=False,
            ),
        ),
    ),
)  # fmt: skip
