"""torch's ``scaled_dot_product_attention`` on the book's lines: one forward, and every derivative of it.

Arguments are checked here. Eager code then goes through ``_autograd``, compiled code through ``_custom_op``, and both
through ``_passes`` into the spines.
"""

from numbers import Real

import torch
from torch.nn.functional import pad

from attnbook.arguments import broadcast, check_scale
from attnbook.arrays import broadcasts_to, expected
from attnbook.torch import _custom_op
from attnbook.torch._autograd import Attention
from attnbook.torch._passes import Options, autocasts

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """Attend as ``torch.nn.functional.scaled_dot_product_attention`` does, with derivatives of every kind and order.

    .. math::
       O = \\frac{R \\circ P}{1 - p}\\,V \\qquad P = \\operatorname{softmax}(S) \\qquad
       S = \\text{scale}\\cdot Q K^{\\mathsf T} + \\text{attn\\_mask}

    Equations :eq:`def-attention` and, for R, :eq:`eq-op-dropout`.

    Parameters
    ----------
    query : tensor (..., n_q, d_k)
        float64, float32, bfloat16 or float16; leading axes (batch, heads) broadcast.
    key : tensor (..., n_k, d_k)
    value : tensor (..., n_k, d_v)
    attn_mask : tensor, optional
        Broadcasts to (..., n_q, n_k). bool: True = may attend. Of query's dtype or float32: added to the scores, and it
        gets a gradient.
    dropout_p : float in [0, 1)
        Drops weights with this probability, always, as torch does: pass 0 in evaluation.
    is_causal : bool
        Forbid later keys, counted from the top left. Not together with ``attn_mask``.
    scale : float, optional
        1/√d_k by default.
    enable_gqa : bool
        Let key and value have fewer heads (axis −3) than query, if their number divides query's.

    Returns
    -------
    O : tensor (..., n_q, d_v), dtype and device of query
        Contiguous. Exactly 0 in a row with no allowed key, as are all gradients through it.

    Raises
    ------
    TypeError, ValueError
        Names the argument whose type, dtype, device, shape or value does not fit.

    Notes
    -----
    Where torch's fused kernels stop, this goes on: second derivatives, forward mode, and the gradient of
    ``attn_mask``. It runs under ``torch.func`` (``vjp``, ``jvp``, ``vmap`` and what is made of them), under autocast,
    and in ``torch.compile`` as one operator that is not looked into; compiled, it has first derivatives only, as
    compiled code has in torch.

    On a GPU the fused kernels of ``attnbook.spines.fused`` run: in float32, bfloat16 and float16, without dropout,
    with heads up to 256 wide, in eager mode. float32 products are rounded to TF32 only where
    ``torch.backends.cuda.matmul`` allows it. For everything else, and without Triton or on an older GPU, the tiled
    lines run in torch's own operations: more slowly, with the same result.

    Not as in torch: dropout draws one number from torch's generator and makes R from it, so ``torch.manual_seed``
    repeats R, but R is not torch's. p = 1 is refused. Tensors on the CPU are read in place by the NumPy engine, which
    has threads of its own: see :func:`~attnbook.spines.workers.set_num_threads`. 16-bit floats are widened to float32
    once, and the results are rounded once. ``is_grads_batched`` and ``vectorize`` of ``torch.autograd`` do not work:
    ``torch.func`` does the same. Memory is linear in n_q and n_k, small tables apart; second derivatives hold whole
    tables. Chapter: :doc:`/chapters/03_single_head`.

    Examples
    --------
    >>> import torch
    >>> from attnbook.torch import scaled_dot_product_attention
    >>> Q, K, V = (torch.randn(2, 3, n, 11, requires_grad=True) for n in (5, 7, 7))
    >>> O = scaled_dot_product_attention(Q, K, V, is_causal=True)
    >>> (dQ,) = torch.autograd.grad(O.square().sum(), Q, create_graph=True)
    >>> dQ.sum().backward()  # a gradient of a gradient
    """
    for name, flag in (("is_causal", is_causal), ("enable_gqa", enable_gqa)):
        if not isinstance(flag, bool):
            raise TypeError(expected(name, "a bool", repr(flag)))
    query, key, value, attn_mask = _as_autocast_does(query, key, value, attn_mask)
    _check_tensors(query, key, value, attn_mask)
    _check_shapes(query, key, value, attn_mask, enable_gqa)
    if is_causal and attn_mask is not None:
        raise ValueError(expected("is_causal", "False where attn_mask is given", "both"))
    if not isinstance(dropout_p, Real) or isinstance(dropout_p, bool):
        raise TypeError(expected("dropout_p", "a probability in [0, 1)", repr(dropout_p)))
    if not 0 <= dropout_p < 1:
        raise ValueError(expected("dropout_p", "a probability in [0, 1)", repr(dropout_p)))
    factor = check_scale(scale, query.shape[-1] or 1)

    d_v = value.shape[-1]
    if query.shape[-1] == 0:  # a column of zeros changes no score
        query, key = pad(query, (0, 1)), pad(key, (0, 1))
    if d_v == 0:
        value = pad(value, (0, 1))
    seed = torch.randint(2**62, (), device=query.device) if dropout_p else None
    tensors = query, key, value, attn_mask, seed
    if torch.compiler.is_compiling():
        O = _custom_op.attention(*tensors, float(dropout_p), is_causal, factor)[0]
    else:
        O = Attention.apply(*tensors, Options(factor, is_causal, float(dropout_p)))[0]
    return O if d_v else O[..., :0]


def _as_autocast_does(query, *others):
    """Under autocast, all in its dtype, as torch casts the arguments of its function; float64 stays."""
    cast = (torch.float32, torch.bfloat16, torch.float16)
    if not isinstance(query, torch.Tensor) or query.dtype not in cast or not autocasts(query):
        return query, *others
    dtype = torch.get_autocast_dtype(query.device.type)
    return tuple(T.to(dtype) if isinstance(T, torch.Tensor) and T.dtype in cast else T for T in (query, *others))


def _check_tensors(query, key, value, attn_mask):
    for name, T in (("query", query), ("key", key), ("value", value), ("attn_mask", attn_mask)):
        if T is None and name == "attn_mask":
            continue
        if not isinstance(T, torch.Tensor):
            raise TypeError(expected(name, "a tensor", type(T).__name__))
        if T.layout != torch.strided or T.is_nested:
            raise TypeError(expected(name, "a dense tensor", "a nested or sparse one"))
        allowed = DTYPES if name == "query" else (query.dtype,)
        if name == "attn_mask":
            allowed = (torch.bool, torch.float32, query.dtype)
        if T.dtype not in allowed:
            raise TypeError(expected(name, " or ".join(dict.fromkeys(map(str, allowed))), T.dtype))
        if T.device != query.device:
            raise ValueError(expected(name, f"device {query.device} like query", T.device))


def _check_shapes(query, key, value, attn_mask, enable_gqa):
    for name, T in (("query", query), ("key", key), ("value", value)):
        if T.ndim < 2 + enable_gqa:
            wanted = "three axes (heads, tokens, width)" if enable_gqa else "two axes (tokens, width)"
            raise ValueError(expected(name, f"at least {wanted}", f"shape {tuple(T.shape)}"))
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(expected("key", f"the width of query, {query.shape[-1]}", f"shape {tuple(key.shape)}"))
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(expected("value", f"a row for each of {key.shape[-2]} keys", f"shape {tuple(value.shape)}"))
    lead = query.shape[:-2]
    for name, T in (("key", key), ("value", value)):
        axes = T.shape[:-2]
        if enable_gqa:
            if axes[-1] == 0 or query.shape[-3] % axes[-1]:
                wanted = f"a number of heads that divides that of query, {query.shape[-3]}"
                raise ValueError(expected(name, wanted, f"shape {tuple(T.shape)}"))
            axes = (*axes[:-1], query.shape[-3])
        lead = broadcast(lead, axes)
        if lead is None:
            wanted = f"leading axes that broadcast with those of query, {tuple(query.shape)}"
            wanted += "" if enable_gqa else " (fewer heads need enable_gqa)"
            raise ValueError(expected(name, wanted, f"shape {tuple(T.shape)}"))
    scores = (*lead, query.shape[-2], key.shape[-2])
    if attn_mask is not None and not broadcasts_to(tuple(attn_mask.shape), scores):
        wanted = f"a shape that broadcasts to the scores, {scores}"
        raise ValueError(expected("attn_mask", wanted, f"shape {tuple(attn_mask.shape)}"))
