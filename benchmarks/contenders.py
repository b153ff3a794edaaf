"""The contenders: each is made ready for Q, K, V and dO, and is then a call that gives O, dQ, dK and dV.

What a user would write in each library, at its best: masks, compilation and the copies into the library's own arrays
are made beforehand and cost nothing here. A library is loaded when its contender is first asked for.
"""

import importlib
import importlib.util
import math

import numpy as np
from common import problem

import attnbook as ab


def _attnbook(method):
    def ready(Q, K, V, dO, causal):
        def call():
            O, res = ab.attention(Q, K, V, causal=causal, method=method)
            return O, *ab.attention_vjp(dO, res)[:3]

        return call

    return ready


def _tensors(Q, K, V, dO, dtype=None):
    import torch

    *leaves, dO = (torch.tensor(T, dtype=dtype and getattr(torch, dtype)) for T in (Q, K, V, dO))
    return torch, [T.requires_grad_() for T in leaves], dO


def _torch(attention):
    """A call of ``attention(Q, K, V, is_causal)`` on tensors, and autograd."""

    def ready(Q, K, V, dO, causal):
        torch, leaves, dO = _tensors(Q, K, V, dO)
        f = attention(torch, *Q.shape[-2:], leaves[0].dtype, causal)

        def call():
            O = f(*leaves)
            return O, *torch.autograd.grad(O, leaves, dO)

        return call

    return ready


def _attnbook_torch(torch, n, d, dtype, causal):
    sdpa = importlib.import_module("attnbook.torch").scaled_dot_product_attention
    return lambda Q, K, V: sdpa(Q, K, V, is_causal=causal)


def _sdpa(torch, n, d, dtype, causal):
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return lambda Q, K, V: sdpa(Q, K, V, is_causal=causal)


def _sdpa_bfloat16(Q, K, V, dO, causal):
    """The same call on the numbers rounded to bfloat16."""
    torch, leaves, dO = _tensors(Q, K, V, dO, "bfloat16")
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def call():
        O = sdpa(*leaves, is_causal=causal)
        return O, *torch.autograd.grad(O, leaves, dO)

    return call


def _eager(torch, n, d, dtype, causal):
    mask = torch.full((n, n), -math.inf, dtype=dtype).triu(1) if causal else None

    def f(Q, K, V):
        S = (Q @ K.mT) * (1 / math.sqrt(d))
        if causal:
            S = S + mask
        return torch.softmax(S, dim=-1) @ V

    return f


def _compiled(torch, n, d, dtype, causal):
    return torch.compile(_eager(torch, n, d, dtype, causal), dynamic=False)


def _jax(Q, K, V, dO, causal):
    import jax

    jax.config.update("jax_enable_x64", True)  # else float64 becomes float32
    n, d = Q.shape[-2:]

    def f(Q, K, V):
        S = (Q @ K.mT) * (1 / math.sqrt(d))
        if causal:
            i, j = (jax.lax.broadcasted_iota(np.int32, (n, n), axis) for axis in (0, 1))
            S = jax.numpy.where(j <= i, S, -np.inf)
        return jax.nn.softmax(S, axis=-1) @ V

    def both(Q, K, V, dO):
        O, pull = jax.vjp(f, Q, K, V)
        return O, *pull(dO)

    arrays = [jax.numpy.asarray(T) for T in (Q, K, V, dO)]
    compiled = jax.jit(both).lower(*arrays).compile()
    return lambda: jax.block_until_ready(compiled(*arrays))


def _autograd(Q, K, V, dO, causal):
    import autograd
    import autograd.numpy as anp
    from autograd.tracer import getval

    n, d = Q.shape[-2:]
    mask = np.triu(np.full((n, n), -np.inf, Q.dtype), 1) if causal else None

    def f(Q, K, V):
        S = anp.matmul(Q, anp.swapaxes(K, -1, -2)) * (1 / math.sqrt(d))
        if causal:
            S = S + mask
        E = anp.exp(S - np.max(getval(S), axis=-1, keepdims=True))  # the shift needs no gradient
        return anp.matmul(E / anp.sum(E, axis=-1, keepdims=True), V)

    def call():
        pull, O = autograd.make_vjp(f, (0, 1, 2))(Q, K, V)
        return O, *pull(dO)

    return call


CONTENDERS = {
    "attnbook auto": (_attnbook("auto"), "numpy"),
    "attnbook tiled": (_attnbook("tiled"), "numpy"),
    "attnbook dense": (_attnbook("dense"), "numpy"),
    "attnbook.torch": (_torch(_attnbook_torch), "attnbook.torch"),
    "torch SDPA": (_torch(_sdpa), "torch"),
    "torch eager": (_torch(_eager), "torch"),
    "torch.compile": (_torch(_compiled), "torch"),
    "SDPA bfloat16": (_sdpa_bfloat16, "torch"),
    "JAX jit": (_jax, "jax"),
    "HIPS autograd": (_autograd, "autograd"),
}
"""What makes each ready, and the module that it needs."""

ONLY = {"torch.compile": "float32", "SDPA bfloat16": "float32"}
"""Those that run beside one dtype alone: one compiles half a minute for each cell, the other has a dtype of its own."""


def missing(name):
    """Why a contender cannot run here, or None; nothing is loaded."""
    needs = CONTENDERS[name][1].partition(".")[0] if CONTENDERS[name][1] != "attnbook.torch" else "torch"
    return None if importlib.util.find_spec(needs) else f"{needs} is not installed"


def those_here(names):
    """Of the names, those that can run; for each of the others one line says why not."""
    here = []
    for name in names:
        if why := missing(name):
            print(f"{name} is left out: {why}.")
        else:
            here.append(name)
    return here


def ready(name, shape, dtype, causal):
    """The call of that contender, in a process of its own."""
    return CONTENDERS[name][0](*problem(shape, dtype), causal)


def to_numpy(arrays):
    """As NumPy's; bfloat16, which NumPy has not, in float32."""
    found = []
    for T in arrays:
        T = T.detach() if hasattr(T, "detach") else T
        found.append(np.asarray(T.float() if str(T.dtype) == "torch.bfloat16" else T))
    return found
