"""torch's own samples of scaled_dot_product_attention: the ones that test its kernels, against its own autograd."""

from functools import cache

import numpy as np
import pytest
import test_torch_sdpa as dropin
import torch
from compare import draw
from torch.nn.functional import scaled_dot_product_attention

import attnbook as ab
from attnbook.checks import close

IN_TORCHS_TABLE = 25


@cache
def samples_of_torch(device="cpu"):
    """Inputs and options of each sample, from torch's table of operators."""
    from torch.testing._internal.common_methods_invocations import op_db  # takes seconds: where it is used

    (op,) = (op for op in op_db if op.name == "nn.functional.scaled_dot_product_attention")
    return [(sample.input, *sample.args, sample.kwargs) for sample in op.sample_inputs(device, torch.float64)]


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


@dropin.ON_EACH_DEVICE
def test_every_sample_through_the_function_of_torchs_signature(device):
    """Dropout's samples, too: the definition with the weights that were kept."""
    samples = samples_of_torch(device)
    for *inputs, options in samples:
        check = dropin.drops_out_as_defined if options["dropout_p"] else dropin.agrees_with_torch
        check(inputs, options)
    assert len(samples) == IN_TORCHS_TABLE, "torch has other samples than it had"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_sample_in_low_precision(dtype):
    """Twice the error of torch's own lines, at most, over all samples without dropout.

    Their scores reach hundreds, so each error is one rounding of one score, on which luck decides: hence the root of
    the mean square over all of them.
    """
    pooled = [torch.zeros(2, dtype=torch.float64) for _ in ("O", "dQ", "dK", "dV", "dmask")]
    for *inputs, options in samples_of_torch():
        if options["dropout_p"] == 0:
            for total, (ours, theirs, _) in zip(pooled, dropin.errors(inputs, options, dtype), strict=False):
                total += torch.stack([ours.square().sum(), theirs.square().sum()])
    for ours, theirs in torch.stack(pooled[:4]).sqrt():
        assert ours <= 2 * theirs, f"off by {ours:.1e}, torch by {theirs:.1e}"


def test_samples_of_our_own():
    """What torch's table lacks: distinct widths, a bool mask with a dead row, a mask to broadcast, groups, a scale."""
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
