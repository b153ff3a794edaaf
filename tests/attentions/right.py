"""Attentions with a backward that are right, each in its own way: ``diagnose`` must find nothing in any of them."""

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

import attnbook as ab
from attentions.wrong import eager, kernel
from attnbook.arrays import mT
from attnbook.diagnose.steps import Steps
from attnbook.ops import ALiBi, Dropout, Sink, Softcap, Window


def by_steps(Q, K, V, dO, **options):
    return Steps(Q, K, V, dO, **options).run()


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


def allowed_of(S, mask, causal):
    """Which scores count, as a bool array of the library of S."""
    n_q, n_k = S.shape[-2:]
    shift = {False: n_k, True: 0, "bottom-right": n_k - n_q}[causal]
    corner = np.tri(n_q, n_k, shift, dtype=bool)
    if isinstance(S, torch.Tensor):
        corner = torch.from_numpy(corner)
    return corner if mask is None else mask & corner


def by_jacobian(Q, K, V, dO, *, mask=None, bias=None, causal=False, scale=None):
    """The long way, with softmax's Jacobian of every row, for equal heads."""
    S = (Q.shape[-1] ** -0.5 if scale is None else scale) * np.einsum("...id,...jd->...ij", Q, K)
    S = np.where(allowed_of(S, mask, causal), S + (0 if bias is None else bias), -np.inf).astype(Q.dtype)
    P = ab.softmax(S)
    dP = np.einsum("...ic,...jc->...ij", dO, V)
    dS = np.einsum("...ijk,...ik->...ij", ab.softmax_jacobian(P), dP)
    s = np.asarray(Q.shape[-1] ** -0.5 if scale is None else scale, dtype=Q.dtype)
    O, dV = np.einsum("...ij,...jc->...ic", P, V), np.einsum("...ij,...ic->...jc", P, dO)
    return O, s * np.einsum("...ij,...jd->...id", dS, K), s * np.einsum("...ij,...id->...jd", dS, Q), dV


def single_precision(Q, K, V, dO, **options):
    """float32 inside, whatever comes; and float32 out."""
    bias = {"bias": options.pop("bias").astype(np.float32)} if "bias" in options else {}
    O, res = ab.attention(*(T.astype(np.float32) for T in (Q, K, V)), **options, **bias)
    return O, *ab.attention_vjp(dO.astype(np.float32), res)[:3]


def single_precision_inside(Q, K, V, dO, **options):
    """float32 inside, and the dtype that came out again."""
    return tuple(T.astype(Q.dtype) for T in single_precision(Q, K, V, dO, **options))


def plain_steps(Q, K, V, dO, scale=None):
    """A reader's exercise: no masks, no biases, no shared heads, every step in the dtype of Q."""
    s = np.asarray(Q.shape[-1] ** -0.5 if scale is None else scale, dtype=Q.dtype)
    S = s * (Q @ mT(K))
    E = np.exp(S - S.max(axis=-1, keepdims=True))
    P = E / E.sum(axis=-1, keepdims=True)
    dP = dO @ mT(V)
    dS = P * (dP - (P * dP).sum(axis=-1, keepdims=True))
    return P @ V, s * (dS @ K), s * (mT(dS) @ Q), mT(P) @ dO


def four_axes_only(fn):
    """fn, for arrays with a batch and heads and for no others, masks and biases too."""

    def strict(*inputs, **options):
        for T in (*inputs, *options.values()):
            if getattr(T, "ndim", 4) != 4:
                raise ValueError(f"expected four axes, got {T.ndim}")
        return fn(*inputs, **options)

    return strict


def with_einsum(Q, K, V, *, mask=None, bias=None, causal=False, scale=None):
    """The definition in torch, for a batch of heads."""
    S = torch.einsum("bhid,bhjd->bhij", Q, K) * (Q.shape[-1] ** -0.5 if scale is None else scale)
    allowed = allowed_of(S, mask, causal)
    P = (S if bias is None else S + bias).masked_fill(~allowed, torch.finfo(S.dtype).min).softmax(-1)
    return torch.einsum("bhij,bhjc->bhic", P * allowed.any(-1, keepdim=True), V)


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
    "by Jacobians": (by_jacobian, "numpy", BOTH),
    "float32 throughout": (single_precision, "numpy", ("float64",)),
    "float32 inside": (single_precision_inside, "numpy", ("float64",)),
    "a reader's": (plain_steps, "numpy", ALL),
    "torch's": (scaled_dot_product_attention, "torch", (*ALL, "bfloat16")),
    "four axes only": (four_axes_only(by_steps), "numpy", ALL),
    "four axes only, einsum": (with_einsum, "torch", BOTH),
    "eager torch": (Eager(), "torch", (*ALL, "bfloat16")),
}
"""name: (what diagnose is given, the library, the dtypes)"""


def configurations(count):
    """``count`` of (name, fn, library, dtype, seed): every implementation in every dtype, each time with a new seed."""
    table = [(name, fn, library, dtype) for name, (fn, library, dtypes) in RIGHT_ONES.items() for dtype in dtypes]
    return [(*table[i % len(table)], i) for i in range(count)]
