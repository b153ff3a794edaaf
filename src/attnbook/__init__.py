"""attnbook: the gradients of attention, written by hand, one file an op, on any array library.

The book derives every line of it; see the chapter that each docstring names.

For every function: arrays are of one library, floating dtype and device, and so are the results. 16-bit floats are
widened to float32 at the door and narrowed once, at the end. What does not fit is refused before any work: a TypeError
for a type, dtype or library, a ValueError for a shape, device or value, each with the name of the argument, what was
expected, and what came. Inputs are not changed.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from attnbook.attention import AttentionGrads, attention, attention_hvp, attention_jvp, attention_vjp
from attnbook.gates import Gate
from attnbook.linear import LinearGrads, linear, linear_jvp, linear_vjp
from attnbook.merge import MergeGrads, merge, merge_jvp, merge_vjp
from attnbook.multi_head import MultiHeadGrads, MultiHeadParams, multi_head_attention, multi_head_attention_vjp
from attnbook.norms import NormGrads, QKNorm, l2_norm, l2_norm_jvp, l2_norm_vjp, rms_norm, rms_norm_jvp, rms_norm_vjp
from attnbook.recurrent import (
    RecurrentGrads,
    delta_rule,
    delta_rule_jvp,
    delta_rule_vjp,
    linear_attention,
    linear_attention_jvp,
    linear_attention_vjp,
)
from attnbook.rotary import Rotary, rotary, rotary_vjp
from attnbook.sigmoid import sigmoid_attention, sigmoid_attention_jvp, sigmoid_attention_vjp
from attnbook.softmax import (
    logsumexp,
    logsumexp_jvp,
    logsumexp_vjp,
    softmax,
    softmax_jacobian,
    softmax_jvp,
    softmax_vjp,
)
from attnbook.spines.threads import get_num_threads, set_num_threads
from attnbook.top_k import top_k_mask

if TYPE_CHECKING:
    from attnbook.diagnose import diagnose

__version__ = "0.1.0.dev0"

__all__ = [
    "AttentionGrads",
    "Gate",
    "LinearGrads",
    "MergeGrads",
    "MultiHeadGrads",
    "MultiHeadParams",
    "NormGrads",
    "QKNorm",
    "RecurrentGrads",
    "Rotary",
    "attention",
    "attention_hvp",
    "attention_jvp",
    "attention_vjp",
    "delta_rule",
    "delta_rule_jvp",
    "delta_rule_vjp",
    "diagnose",
    "get_num_threads",
    "l2_norm",
    "l2_norm_jvp",
    "l2_norm_vjp",
    "linear",
    "linear_attention",
    "linear_attention_jvp",
    "linear_attention_vjp",
    "linear_jvp",
    "linear_vjp",
    "logsumexp",
    "logsumexp_jvp",
    "logsumexp_vjp",
    "merge",
    "merge_jvp",
    "merge_vjp",
    "multi_head_attention",
    "multi_head_attention_vjp",
    "rms_norm",
    "rms_norm_jvp",
    "rms_norm_vjp",
    "rotary",
    "rotary_vjp",
    "set_num_threads",
    "sigmoid_attention",
    "sigmoid_attention_jvp",
    "sigmoid_attention_vjp",
    "softmax",
    "softmax_jacobian",
    "softmax_jvp",
    "softmax_vjp",
    "top_k_mask",
]


class _Package(ModuleType):
    """``diagnose`` is the function, also after an import of the room of that name; it has the room's names."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "diagnose" and isinstance(value, ModuleType):
            room, value = value, value.diagnose
            vars(value).update((each, thing) for each, thing in vars(room).items() if not each.startswith("_"))
        super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    if name != "diagnose":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("attnbook.diagnose").diagnose  # loaded when it is asked for


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


sys.modules[__name__].__class__ = _Package
