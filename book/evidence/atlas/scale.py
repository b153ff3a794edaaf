"""Incidents about the factor of the scores. Page: :doc:`/book/atlas`."""

import numpy as np

from evidence.atlas.entries import Cause, Setting, Thread
from evidence.atlas.plant import again, forbidden, planted

ALL = ("O", "dQ", "dK", "dV")


def padded(a):
    """1/√d_k with d_k padded to a multiple of 16."""
    return (-(-a.d_k // 16) * 16) ** -0.5


CAUSES = (
    Cause(
        "scale-of-padded-backward",
        "The backward takes the scale of a padded width",
        "The forward pads queries and keys to a width that the hardware likes, and scales by the width before padding. "
        "The backward reads the width off the padded array. So it makes other weights than the forward did.",
        "A width that is no multiple of 16.",
        "Hand the width before padding to the backward.",
        ("dQ", "dK", "dV"),
        planted(
            P_backward=lambda a: again(a, forbidden(a, a.allowed, a.scores * (padded(a) / a.scale))),
            dQ_scale=padded,
            dK_scale=padded,
        ),
        Setting(),
        Setting(d_k=16),
        (
            Thread(
                "tile-ai/tilelang-ascend", 1669, 2026,
                "[Bug] GQA backward 的 padding scale 错误，且 PyTorch Autograd 兼容性不完整",
                note="Width 129, padded to 144. The thread also tells of a dO that is expanded, and refused.",
            ),
        ),
    ),
    Cause(
        "scale-ignored-by-fusion",
        "A given scale is dropped when the code is fused",
        "A compiler recognizes attention in the user's code and puts a fused kernel in its place. It checks the form "
        "of the code, not the number in it, and the kernel takes 1/√d_k.",
        "A scale that is not 1/√d_k, and the compiled function.",
        "Compare the number too, or hand it over.",
        ALL,
        planted(scale=lambda a: a.d_k**-0.5),
        Setting(options={"scale": 0.7}),
        Setting(),
        (
            Thread(
                "pytorch/pytorch", 174049, 2026, "[inductor] sdpa pattern matcher ignores scale and get wrong result",
                fixed=(174361,),
            ),
        ),
    ),
    Cause(
        "scale-twice-everywhere",
        "Queries are scaled, and then the kernel scales",
        "A layer multiplies its queries by the scale; the kernel that it calls scales as well. Forward and backward "
        "agree with each other, so a check of the gradient against differences of this forward passes.",
        "Another forward to compare with; any width above 1.",
        "Tell the kernel that the scale is 1.",
        ALL,
        planted(scale=lambda a: a.width**-1.0 if a.given_scale is None else a.given_scale**2),
        Setting(),
        Setting(options={"scale": 1.0}),
        (
            Thread(
                "AI-Hypercomputer/maxtext", 3138, 2026, "MLA with `cudnn_flash_jax` leads to double scaling",
                fixed=(3312,),
            ),
        ),
    ),
    Cause(
        "scale-of-all-heads",
        "The scale is made of the width of all heads together",
        "√d_model stands where √d_k belongs: the width of the layer, not that of one head. All scores are too small by "
        "√h, and the weights too flat. The gradient is right for that forward.",
        "Two heads, and another forward to compare with.",
        "1/√d_k, the width of one head.",
        ALL,
        planted(width=lambda a: a.h * a.d_k),
        Setting(),
        Setting(heads=1),
        (
            Thread(
                "lucidrains/vit-pytorch", 65, 2021,
                "doubt about scale in Attantion",  # codespell:ignore attantion
            ),
            Thread("FrancescoSaverioZuppichini/ViT", 1, 2021, "Scaling is wrong"),
            Thread("chelsea0x3b/dfdx", 171, 2022, "MultiHeadAttention dividing by wrong scalar value"),
            Thread("karpathy/ng-video-lecture", 6, 2023, "We should scale attention by head size", "pull"),
            Thread(
                "omihub777/ViT-CIFAR", 11, 2026,
                "fix: use per-head dimension (d_k) for attention scaling in MHSA", "pull",
            ),
            Thread("Graylab/DL4Proteins-notebooks", 12, 2026, "WS04: Attention uses the wrong scaling dimension"),
        ),
    ),
    Cause(
        "bias-not-in-base-two",
        "The scores are counted in powers of two, the bias is not",
        "The kernel folds log₂ e into the scale and takes powers of 2. The bias is added as it came, so it counts only "
        "ln 2 of what it should.",
        "A bias that is not 0.",
        "Multiply the bias by log₂ e as well.",
        (*ALL, "dbias"),
        planted(scores=lambda a: a.scale * (a.Q @ a.transpose(a.k)) + (0 if a.bias is None else np.log(2) * a.bias)),
        Setting(options={"bias": lambda at, rng: rng.standard_normal((at.n_q, at.n_k))}),
        Setting(),
        (
            Thread("meta-pytorch/segment-anything-fast", 71, 2023, "fix triton attention bug", "pull"),
        ),
    ),
)  # fmt: skip
