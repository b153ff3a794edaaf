"""The doors to torch: its functional attention on our lines, and its multi-head layer in our layout, there and back.

Nothing else in the package imports this room, so none of it needs torch.
"""

import torch

from attnbook.spines import workers
from attnbook.torch.layout import (
    from_multihead_attention,
    from_state_dict,
    to_multihead_attention,
    to_state_dict,
)
from attnbook.torch.sdpa import scaled_dot_product_attention

__all__ = [
    "from_multihead_attention",
    "from_state_dict",
    "scaled_dot_product_attention",
    "to_multihead_attention",
    "to_state_dict",
]

workers.follow(torch.get_num_threads)
