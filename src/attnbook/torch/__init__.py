"""The doors to torch: attention for autograd, also by the name and signature of torch's own, and its multi-head layer
in our layout, there and back.

Nothing else in the package imports this room, so none of it needs torch.
"""

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError("attnbook.torch needs PyTorch: pip install 'attnbook[torch]'", name="torch") from None
import array_api_compat.torch

from attnbook.arrays import NAMESPACES
from attnbook.spines import threads
from attnbook.torch.attention import attention, scaled_dot_product_attention
from attnbook.torch.layout import (
    from_multihead_attention,
    from_state_dict,
    to_multihead_attention,
    to_state_dict,
)

__all__ = [
    "attention",
    "from_multihead_attention",
    "from_state_dict",
    "scaled_dot_product_attention",
    "to_multihead_attention",
    "to_state_dict",
]

threads.follow(torch.get_num_threads)
NAMESPACES.update(dict.fromkeys((torch.Tensor, torch.nn.Parameter), array_api_compat.torch))
