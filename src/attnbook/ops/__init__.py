"""Ops: the steps between Q Kᵀ and the softmax, each with forward, vjp and jvp side by side in one file.

A spine runs them in order over tiles of the score table, and their vjps in reverse order on the way back.
The names below are those that ``attention`` itself makes from its arguments; any other op is imported from its file.
"""

from attnbook.ops.bias import Bias
from attnbook.ops.masks import Causal, Mask
from attnbook.ops.op import Op, Step, Tile
from attnbook.ops.scale import Scale

__all__ = ["Bias", "Causal", "Mask", "Op", "Scale", "Step", "Tile"]
