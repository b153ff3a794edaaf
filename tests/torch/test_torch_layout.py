"""torch's own multi-head layer, through the converter: outputs, weights, and the gradient of everything it is given."""

import itertools

import pytest
import torch
from compare import draw, quietly

import attnbook as ab
from attnbook.checks import close
from attnbook.torch import layout


def agrees_with_torchs_layer(module, query, key, value, **options):
    """Output, weights and all gradients of a ``torch.nn.MultiheadAttention`` are ours, through the converter."""
    others = {name: option for name, option in options.items() if name not in ("key_padding_mask", "attn_mask")}
    masks = {name: options[name] for name in ("key_padding_mask", "attn_mask") if options.get(name) is not None}
    named = {"query": query, "key": key, "value": value, **{k: T for k, T in masks.items() if T.dtype != torch.bool}}
    named = {name: T.detach().clone().requires_grad_() for name, T in named.items()}
    Y, weights = module(**named | {k: T for k, T in masks.items() if k not in named}, **others)
    named |= dict(module.named_parameters())

    X, p, ours = layout.from_multihead_attention(module, query, key, value, **masks)
    came, res = quietly(ab.multi_head_attention, X, p, **ours)
    turned = not module.batch_first and query.ndim == 3
    (dY,) = (torch.tensor(T) for T in draw(tuple(came.shape)))
    grads = layout.to_multihead_attention(quietly(ab.multi_head_attention_vjp, dY, res), module, **masks)

    wanted = torch.autograd.grad(Y, list(named.values()), dY.transpose(0, 1) if turned else dY)
    assert grads.keys() == named.keys()
    pairs = [(came.transpose(0, 1) if turned else came, Y.detach())]
    pairs += [(grads[name], T) for name, T in zip(named, wanted, strict=True)]
    if weights is not None:
        P = res.attention.P
        pairs.append((P.mean(dim=-3) if options.get("average_attn_weights", True) else P, weights.detach()))
    for ours, theirs in pairs:
        assert close(ours, theirs)


def torchs_layer(*, seed=0, **options):
    """A float64 module whose parameters are all random: torch starts its biases at 0, where mistakes hide."""
    module = torch.nn.MultiheadAttention(**options, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    return module


# --- what torch's samples lack: a batch, a width that is not 1, key ≠ value, masks of floats -----------------------

L, S, BATCH, HEADS, E, KDIM, VDIM = 5, 7, 2, 3, 33, 13, 17


def bool_mask(*shape):
    """True = may not attend; the first key may always be seen."""
    mask = torch.tensor(draw(shape, seed=7)[0] > 0.5)
    mask[..., 0] = False
    return mask


def float_mask(*shape):
    return torch.tensor(draw(shape, seed=8)[0]).masked_fill(bool_mask(*shape), -torch.inf)


MASKS = {
    "no mask": {},
    "of scores": {"attn_mask": bool_mask(L, S)},
    "both": {"key_padding_mask": bool_mask(BATCH, S), "attn_mask": bool_mask(BATCH * HEADS, L, S)},
    "floats for each head": {"attn_mask": float_mask(BATCH * HEADS, L, S)},
    "both of floats": {"key_padding_mask": float_mask(BATCH, S), "attn_mask": float_mask(L, S)},
}
BUILT = [
    dict(zip(("bias", "add_bias_kv", "add_zero_attn"), flags, strict=True))
    for flags in itertools.product((True, False), repeat=3)
]


@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("widths", [{}, {"kdim": KDIM}, {"kdim": KDIM, "vdim": VDIM}], ids=str)
def test_samples_of_our_own(masks, widths):
    inputs = [(BATCH, L, E), (BATCH, S, widths.get("kdim", E)), (BATCH, S, widths.get("vdim", E))]
    inputs = [torch.tensor(T) for T in draw(*inputs)]
    for built, batch_first in itertools.product(BUILT, (True, False)):
        module = torchs_layer(embed_dim=E, num_heads=HEADS, batch_first=batch_first, **built, **widths)
        given = inputs if batch_first else [T.transpose(0, 1) for T in inputs]
        agrees_with_torchs_layer(module, *given, **masks, average_attn_weights=False)
    first = {(BATCH, S): 0, (BATCH * HEADS, L, S): slice(HEADS), (L, S): slice(None)}  # without a batch
    alone = {name: mask[first[tuple(mask.shape)]] for name, mask in masks.items()}
    agrees_with_torchs_layer(module, *(T[0] for T in inputs), **alone)


def test_a_dead_row_is_zero_before_the_last_projection():
    """As in torch's fused path; with ``need_weights`` torch gives NaN."""
    module = torchs_layer(embed_dim=E, num_heads=HEADS, batch_first=True)
    X, memory = (torch.tensor(T) for T in draw((BATCH, L, E), (BATCH, S, E)))
    mask = bool_mask(L, S)
    mask[1] = True
    agrees_with_torchs_layer(module, X, memory, memory, attn_mask=mask, need_weights=False)
    Y, _ = module(X, memory, memory, attn_mask=mask)
    assert torch.all(torch.isnan(Y[:, 1]))
    X, p, options = layout.from_multihead_attention(module, X, memory, memory, attn_mask=mask)
    assert torch.equal(ab.multi_head_attention(X, p, **options)[0][0, 1], module.out_proj.bias.detach())


# --- bad input ----------------------------------------------------------------------------------------------------

MODULE = torchs_layer(embed_dim=6, num_heads=2, batch_first=True)
T = torch.zeros(2, 3, 6, dtype=torch.float64)
PARAMS = layout.from_state_dict(MODULE.state_dict())
DROPS_OUT = torchs_layer(embed_dim=6, num_heads=2, dropout=0.1)
ALONE = ab.MultiHeadGrads(dX=T, dmemory=None, dparams=PARAMS, dbias=None, dops=())


def read(module=MODULE, query=T, key=T, value=T, **masks):
    return layout.from_multihead_attention(module, query, key, value, **masks)


REFUSED = [
    (lambda: layout.from_state_dict({}), ValueError, "state: expected the names q_proj_weight, .*, got "),
    (lambda: layout.to_state_dict(PARAMS._replace(W_Q=T[0])), ValueError, r"W_Q: expected shape \(3, 3\), .* \(3, 6\)"),
    (lambda: layout.to_state_dict(PARAMS._replace(b_K=None)), ValueError, "p: expected all four biases or none, .* 3"),
    (lambda: read(torch.nn.Linear(6, 6)), TypeError, "module: expected a torch.nn.MultiheadAttention, got Linear"),
    (lambda: read(DROPS_OUT), ValueError, r"module: expected no dropout, or eval\(\), got dropout=0.1"),
    (lambda: read(query=T[..., :5]), ValueError, r"query: expected shape \(2, 3, 6\), batch first, got \(2, 3, 5\)"),
    (lambda: read(query=[0.0]), TypeError, "query: expected a tensor, got list"),
    (lambda: read(key_padding_mask=[True]), TypeError, "key_padding_mask: expected a tensor, got list"),
    (lambda: read(value=T[:, :2]), ValueError, r"value: expected shape \(2, 3, 6\), batch first, got \(2, 2, 6\)"),
    (lambda: read(attn_mask=T), ValueError, r"attn_mask: expected shape \(4, 3, 3\), got \(2, 3, 6\)"),
    (lambda: read(key_padding_mask=T[0]), ValueError, r"key_padding_mask: expected shape \(2, 3\), got \(3, 6\)"),
    (lambda: layout.to_multihead_attention(ALONE, MODULE), TypeError, "grads: expected the gradients .* with a memory"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED, ids=[row[2] for row in REFUSED])
def test_it_is_refused(call, error, message):
    read(torchs_layer(embed_dim=6, num_heads=2, dropout=0.1).eval(), T, T, T)  # in eval it is not
    with pytest.raises(error, match=message):
        call()
