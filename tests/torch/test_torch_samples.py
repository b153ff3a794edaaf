"""attnbook.attention on torch tensors beside torch's own function and its autograd."""

import numpy as np
import torch
from compare import draw
from torch.nn.functional import scaled_dot_product_attention

import attnbook as ab
from attnbook.checks import close


def agrees_with_torch(Q, K, V, attn_mask=None, is_causal=False, **options):
    """Output and gradients, that of a float mask included, are torch's."""
    inputs = [T.detach().clone().requires_grad_() for T in (Q, K, V)]
    ours = {"causal": is_causal, "scale": options.get("scale")}
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        ours["mask"] = attn_mask
    elif attn_mask is not None:
        attn_mask = attn_mask.detach().clone().requires_grad_()
        ours["bias"] = attn_mask.detach()
        inputs.append(attn_mask)
    wanted = scaled_dot_product_attention(*inputs[:3], attn_mask=attn_mask, is_causal=is_causal, **options)
    O, res = ab.attention(*(T.detach() for T in inputs[:3]), **ours)
    (dO,) = (torch.tensor(T) for T in draw(tuple(O.shape)))
    grads = ab.attention_vjp(dO, res)
    assert close(O, wanted.detach())
    for ours, theirs in zip(grads[: len(inputs)], torch.autograd.grad(wanted, inputs, dO), strict=True):
        assert close(ours, theirs)


def test_samples_of_our_own():
    """Distinct widths, a bool mask with a dead row, a mask to broadcast, groups, a scale."""
    Q, K, V = (torch.tensor(T) for T in draw((2, 3, 5, 11), (2, 3, 7, 11), (2, 3, 7, 13)))
    mask = torch.tensor(np.random.default_rng(7).random((3, 5, 7)) < 0.5)
    mask[:, 1] = False
    (bias,) = (torch.tensor(T) for T in draw((2, 1, 5, 7), seed=1))
    agrees_with_torch(Q, K, V)
    agrees_with_torch(Q, K, V, is_causal=True)
    agrees_with_torch(Q, K, V, attn_mask=mask)
    agrees_with_torch(Q, K, V, attn_mask=bias, scale=0.7)
    agrees_with_torch(Q, K, V, attn_mask=bias.masked_fill(~mask[:1, :, :], -torch.inf))
    agrees_with_torch(torch.cat([Q, -Q], dim=1), K, V, enable_gqa=True)
    agrees_with_torch(Q, K[:, :1], V[:, :1], enable_gqa=True)
