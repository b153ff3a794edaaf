"""Attention over several devices: by torch.distributed, and the same lines with ranks simulated in one process.

Chapter: :doc:`/chapters/14_many_devices`.
"""

from attnbook.parallel.attention import (
    gather_attention,
    heads_attention,
    layer_attention,
    ring_attention,
    tree_attention,
)
from attnbook.parallel.call import bytes_of, scores_of_ranks
from attnbook.parallel.layer import split_layer
from attnbook.parallel.placement import join, positions, split
from attnbook.parallel.simulated import Simulated, simulate

__all__ = [
    "Simulated",
    "bytes_of",
    "gather_attention",
    "heads_attention",
    "join",
    "layer_attention",
    "positions",
    "ring_attention",
    "scores_of_ranks",
    "simulate",
    "split",
    "split_layer",
    "tree_attention",
]
