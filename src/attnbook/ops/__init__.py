"""Ops: the steps between Q Kᵀ and the output, each with forward, vjp and jvp side by side in one file.

Where a vjp moves with the scores, ``vjp_jvp`` stands beside them.

A spine runs them in order over tiles of the score table, and their vjps in reverse order on the way back.
"""

from attnbook.ops.alibi import ALiBi, alibi_slopes
from attnbook.ops.bias import Bias
from attnbook.ops.blocks import BlockMask
from attnbook.ops.dropout import Dropout
from attnbook.ops.masks import Causal, Mask, Masking, Window
from attnbook.ops.op import Kernel, Op, Placed, Tile
from attnbook.ops.relative_bias import RelativeBias, T5Buckets
from attnbook.ops.scale import LogitScale, Scale
from attnbook.ops.segments import Segments
from attnbook.ops.sink import Sink
from attnbook.ops.softcap import Softcap

__all__ = [
    "ALiBi",
    "Bias",
    "BlockMask",
    "Causal",
    "Dropout",
    "Kernel",
    "LogitScale",
    "Mask",
    "Masking",
    "Op",
    "Placed",
    "RelativeBias",
    "Scale",
    "Segments",
    "Sink",
    "Softcap",
    "T5Buckets",
    "Tile",
    "Window",
    "alibi_slopes",
]
