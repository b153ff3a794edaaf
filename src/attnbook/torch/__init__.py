"""The door to torch: its multi-head layer in our layout, there and back.

Nothing else in the package imports this room, so none of it needs torch.
"""

from attnbook.torch.layout import (
    from_multihead_attention,
    from_state_dict,
    to_multihead_attention,
    to_state_dict,
)

__all__ = [
    "from_multihead_attention",
    "from_state_dict",
    "to_multihead_attention",
    "to_state_dict",
]
