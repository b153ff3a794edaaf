"""Attention as a recurrence: no softmax, and a state that does not grow with the text.

``linear_attention`` and ``delta_rule`` are the faces; ``plan`` checks a call, ``passes`` stands around the scan with
features and normalizer, ``scan`` takes chunk after chunk, and ``chunk`` has the mathematics.
"""

from attnbook.recurrent.delta_rule import delta_rule, delta_rule_jvp, delta_rule_vjp
from attnbook.recurrent.linear_attention import linear_attention, linear_attention_jvp, linear_attention_vjp
from attnbook.recurrent.plan import RecurrentGrads

__all__ = [
    "RecurrentGrads",
    "delta_rule",
    "delta_rule_jvp",
    "delta_rule_vjp",
    "linear_attention",
    "linear_attention_jvp",
    "linear_attention_vjp",
]
