"""Attentions with a backward that are right, each in its own way: ``diagnose`` must find nothing in any of them."""

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

import attnbook as ab
from attentions.wrong import eager, kernel
from attnbook.diagnose.steps import Steps
from attnbook.ops import ALiBi, Dropout, Sink, Softcap, Window


def by_steps(Q, K, V, dO, **options):
    return Steps(Q, K, V, dO, **options).run()


def ours(Q, K, V, dO, **options):
    O, res = ab.attention(Q, K, V, **options)
    return O, *ab.attention_vjp(dO, res)[:3]


def with_ops(Q, K, V, dO, *, dropout=0.0, dL=None, cos=None, sin=None, sink=None, bias=None, **options):
    """Ours with every option that ``diagnose`` asks for, made of the package's own ops; (O, dQ, dK, dV, dbias, dsink),
    the last two where there are some.
    """
    names = {"window": lambda pair: Window(*pair), "softcap": Softcap, "slopes": ALiBi}
    ops = [make(options.pop(name)) for name, make in names.items() if name in options]
    ops += [Sink(sink)] if sink is not None else []
    ops += [Dropout(dropout, seed=7)] if dropout else []
    turns = {} if cos is None else {"base": 100.0, "layout": "half"}
    q, k = (ab.rotary(T, **turns) if turns else T for T in (Q, K))
    O, res = ab.attention(q, k, V, bias=bias, ops=ops, **options)
    grads = ab.attention_vjp(dO, res, dL)
    dQ, dK = (ab.rotary_vjp(T, **turns) if turns else T for T in grads[:2])
    dsink = [dT for op, dT in zip(ops, grads.dops, strict=True) if isinstance(op, Sink)]
    return O, dQ, dK, grads.dV, *([] if bias is None else [grads.dbias]), *dsink


def single_precision(Q, K, V, dO, **options):
    """float32 inside, whatever comes; and float32 out."""
    options |= {"bias": options["bias"].astype(np.float32)} if "bias" in options else {}
    return ours(*(T.astype(np.float32) for T in (Q, K, V, dO)), **options)


def single_precision_inside(Q, K, V, dO, **options):
    """float32 inside, and the dtype that came out again."""
    return tuple(T.astype(Q.dtype) for T in single_precision(Q, K, V, dO, **options))


def four_axes_only(fn):
    """fn, for arrays with a batch and heads and for no others, masks and biases too."""

    def strict(*inputs, **options):
        for T in (*inputs, *options.values()):
            if getattr(T, "ndim", 4) != 4:
                raise ValueError(f"expected four axes, got {T.ndim}")
        return fn(*inputs, **options)

    return strict


class Eager(torch.nn.Module):
    """The definition in torch, as a module; autograd is its backward."""

    def forward(self, Q, K, V, *, mask=None, bias=None, causal=False, scale=None):
        return eager(Q, K, V, mask, bias, causal, scale)


OURS = ab.attention, ab.attention_vjp
BOTH, ALL = ("float64", "float32"), ("float64", "float32", "float16")

RIGHT_ONES = {
    "ours": (OURS, "numpy", ALL),
    "ours with ops": (with_ops, "numpy", ALL),
    "ours on torch": (OURS, "torch", (*ALL, "bfloat16")),
    "ours under autograd": (lambda Q, K, V, **options: ab.attention(Q, K, V, **options)[0], "torch", BOTH),
    "the steps of the catalogue": (by_steps, "numpy", ALL),
    "as a kernel does it": (kernel, "numpy", ALL),
    "float32 throughout": (single_precision, "numpy", ("float64",)),
    "float32 inside": (single_precision_inside, "numpy", ("float64",)),
    "torch's": (scaled_dot_product_attention, "torch", (*ALL, "bfloat16")),
    "four axes only": (four_axes_only(by_steps), "numpy", ALL),
    "eager torch": (Eager(), "torch", (*ALL, "bfloat16")),
}
"""name: (what diagnose is given, the library, the dtypes)"""


def configurations(count):
    """``count`` of (name, fn, library, dtype, seed): every implementation in every dtype, each time with a new seed."""
    table = [(name, fn, library, dtype) for name, (fn, library, dtypes) in RIGHT_ONES.items() for dtype in dtypes]
    return [(*table[i % len(table)], i) for i in range(count)]
