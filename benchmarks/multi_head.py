"""The whole layer, forward and backward: ours on NumPy, torch's functions, and torch's module.

    python benchmarks/multi_head.py            # 4 minutes; writes results/multi_head_MAKER.json

Self-attention with d_model 512, 8 heads, 512 tokens and 8 sequences. Each call gives the output and the gradients of
the input, the weights and the biases. "F.linear + SDPA" makes queries, keys and values with one product, as torch's
module does; it is the fairer peer, because it has no checks of arguments.
"""

import importlib.util
import tempfile
from pathlib import Path

import numpy as np
from common import cell_name, chosen, error, options
from cpu import DTYPES, MASKS, WRONG, report
from peers import anew, started
from record import Record, output_of
from timing import HOW, HURRIED, measure, rounded

import attnbook as ab

SIZES = {"batch": 8, "heads": 8, "n": 512, "d_model": 512}
QUICK = {"batch": 2, "heads": 2, "n": 16, "d_model": 8}
PEER = "F.linear + SDPA"


def problem(sizes, dtype, seed=0):
    """X, dY, and the weights and biases of the layer; weights as large as keeps the size of X."""
    rng = np.random.default_rng(seed)
    X, dY = (rng.standard_normal((sizes["batch"], sizes["n"], sizes["d_model"])).astype(dtype) for _ in range(2))
    d = sizes["d_model"]
    weights = [(rng.standard_normal((d, d)) / np.sqrt(d)).astype(dtype) for _ in range(4)]
    biases = [rng.standard_normal(d).astype(dtype) for _ in range(4)]
    return X, dY, ab.MultiHeadParams(*weights, *biases)


def ours(X, dY, p, sizes, causal):
    def call():
        Y, res = ab.multi_head_attention(X, p, num_heads=sizes["heads"], causal=causal)
        grads = ab.multi_head_attention_vjp(dY, res)
        return Y, grads.dX, grads.dparams

    def compared(found):
        Y, dX, d = found
        in_weight = np.concatenate([W.T for W in d[:3]])
        return Y, dX, in_weight, np.concatenate(d[4:7]), d.W_O.T, d.b_O

    return call, compared


def _tensors(X, dY, p):
    """X and the weights in torch's layout, as leaves, and dY."""
    import torch

    in_weight, in_bias = np.concatenate([W.T for W in p[:3]]), np.concatenate(p[4:7])
    leaves = [torch.tensor(T).requires_grad_() for T in (X, in_weight, in_bias, np.ascontiguousarray(p.W_O.T), p.b_O)]
    return torch, leaves, torch.tensor(dY)


def functions(X, dY, p, sizes, causal):
    torch, leaves, dY = _tensors(X, dY, p)
    F, h = torch.nn.functional, sizes["heads"]

    def layer(X, in_weight, in_bias, out_weight, out_bias):
        *lead, d = X.shape
        heads = F.linear(X, in_weight, in_bias).view(*lead, 3, h, d // h)
        Q, K, V = (T.transpose(1, 2) for T in heads.unbind(-3))
        O = F.scaled_dot_product_attention(Q, K, V, is_causal=causal)
        return F.linear(O.transpose(1, 2).reshape(*lead, d), out_weight, out_bias)

    def call():
        Y = layer(*leaves)
        return Y, *torch.autograd.grad(Y, leaves, dY)

    return call, lambda found: [T.detach().numpy() for T in found]


def module(X, dY, p, sizes, causal):
    torch, (X, *weights), dY = _tensors(X, dY, p)
    layer = torch.nn.MultiheadAttention(sizes["d_model"], sizes["heads"], batch_first=True, dtype=X.dtype)
    own = [layer.in_proj_weight, layer.in_proj_bias, layer.out_proj.weight, layer.out_proj.bias]
    with torch.no_grad():
        for mine, T in zip(own, weights, strict=True):
            mine.copy_(T)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(sizes["n"], dtype=X.dtype) if causal else None

    def call():
        Y, _ = layer(X, X, X, need_weights=False, attn_mask=mask, is_causal=causal)
        return Y, *torch.autograd.grad(Y, (X, *own), dY)

    return call, lambda found: [T.detach().numpy() for T in found]


CONTENDERS = {"attnbook": ours, "F.linear + SDPA": functions, "nn.MultiheadAttention": module}


def ready(name, sizes, dtype, causal):
    """The call of that contender, in a process of its own."""
    call, compared = CONTENDERS[name](*problem(sizes, dtype), sizes, causal)

    def the_call():
        return call()

    the_call.compared = compared
    return the_call


def cell_of(sizes, dtype, causal, args, record):
    cell = {
        "shape": [sizes["batch"], sizes["heads"], sizes["n"], sizes["d_model"] // sizes["heads"]],
        "d_model": sizes["d_model"],
        "dtype": dtype,
        "causal": causal,
    }
    errors, reference = {}, None
    asked = {name: (name, sizes, dtype, causal) for name in CONTENDERS}
    with started("multi_head", asked, args.threads) as (peers, left_out), tempfile.TemporaryDirectory() as folder:
        for name in sorted(peers, key=lambda name: name != PEER):
            record.saw(peers[name].about)
            found = peers[name].save(Path(folder, "found.npz"))
            reference = reference or found
            errors[name] = rounded(error(found, reference))
            if not errors[name] < WRONG[dtype]:
                raise SystemExit(f"{name} is wrong in {cell_name(cell)}: error {errors[name]:.1e}")
        how = HURRIED if args.quick else {"anew": anew}
        seconds, refused = measure(peers, **how)
    return cell | {"seconds": seconds, "refused": refused, "errors": errors, "left out": left_out}


def main(argv=None):
    parser = options(__doc__)
    parser.add_argument("--dtypes", help="float32, float64, or both with a comma")
    parser.add_argument("--masks", help="full, causal, or both with a comma")
    args = parser.parse_args(argv)
    dtypes, masks = chosen(parser, "dtype", args.dtypes, DTYPES), chosen(parser, "mask", args.masks, MASKS)
    if not importlib.util.find_spec("torch"):
        parser.error("this compares with torch, which is not installed")
    output = output_of(parser, args, "multi_head", not (args.dtypes or args.masks))
    record = Record(
        "a multi-head layer, forward and backward on the CPU, seconds", output, threads=args.threads, how=HOW
    )
    sizes = QUICK if args.quick else SIZES
    grid = [(dtype, mask == "causal") for dtype in dtypes for mask in masks]
    grid = grid[:1] + grid[-1:] if args.quick else grid
    name = lambda cell: f"{cell[0]} {'causal' if cell[1] else 'full'}"  # noqa: E731
    record.over(grid, lambda cell: [cell_of(sizes, *cell, args, record)], args.budget, name)
    report(record.data["cells"], list(CONTENDERS), PEER)
    record.close()


if __name__ == "__main__":
    main()
