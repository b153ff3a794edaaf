"""torch's ``scaled_dot_product_attention``, its arguments and its errors, on :mod:`attnbook.torch.attention`."""

import reprlib
from numbers import Real

import torch
from torch.nn.functional import pad
from torch.overrides import handle_torch_function, has_torch_function

from attnbook.arguments import check_broadcasts, check_scale, scores_shape
from attnbook.arrays import expected
from attnbook.ops import Dropout
from attnbook.plan import steps_of
from attnbook.torch._passes import Call
from attnbook.torch.attention import as_autocast_does, attend, check_tensors


class RefusedError(RuntimeError, ValueError):
    """A value that does not fit: a RuntimeError as torch raises it, a ValueError as the package does."""


class RefusedTypeError(RuntimeError, TypeError):
    """A type or dtype, likewise."""


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
    dropout_p : float in [0, 1]
        Drops weights with this probability, always, as torch does: pass 0 in evaluation.
    is_causal : bool
        Forbid later keys, counted from the top left, beside what ``attn_mask`` forbids.
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
        What does not fit; it is a RuntimeError too, as in torch.

    Notes
    -----
    All of it is :func:`~attnbook.torch.attention`. Where torch's fused kernels stop, that goes on: second derivatives,
    forward mode, and the gradient of ``attn_mask``.

    Not as in torch: dropout draws one number from torch's generator and makes R from it, so ``torch.manual_seed``
    repeats R, but R is not torch's. A ``scale`` that is not finite is refused, and so are values of another number of
    rows than the keys. 16-bit floats are widened to float32 once, and the results are rounded once.
    Chapter: :doc:`/chapters/03_single_head`.

    Examples
    --------
    >>> import torch
    >>> from attnbook.torch import scaled_dot_product_attention
    >>> Q, K, V = (torch.randn(2, 3, n, 11, requires_grad=True) for n in (5, 7, 7))
    >>> O = scaled_dot_product_attention(Q, K, V, is_causal=True)
    >>> (dQ,) = torch.autograd.grad(O.square().sum(), Q, create_graph=True)
    >>> dQ.sum().backward()  # a gradient of a gradient
    """
    given, causal = (query, key, value, attn_mask), is_causal
    if attn_mask is not None and type(attn_mask) is not torch.Tensor and (corner := _corner_of(attn_mask, is_causal)):
        given, causal = (query, key, value, None), corner
    if has_torch_function(given):
        args = query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
        return handle_torch_function(scaled_dot_product_attention, given, *args)
    try:
        for name, flag in (("is_causal", is_causal), ("enable_gqa", enable_gqa)):
            if not isinstance(flag, bool):
                raise TypeError(expected(name, "a bool", repr(flag)))
        call, tensors = _checked(*given, dropout_p, causal, scale, enable_gqa)
    except (TypeError, ValueError) as error:
        raise (RefusedTypeError if isinstance(error, TypeError) else RefusedError)(*error.args) from None
    O = attend(call, *tensors)[0]
    return O if value.shape[-1] else O[..., :0]


def _checked(query, key, value, attn_mask, dropout_p, causal, scale, enable_gqa):
    """The call, and its tensors."""
    p = dropout_p if type(dropout_p) is float else _number("dropout_p", dropout_p)
    if not 0 <= p <= 1:
        raise ValueError(expected("dropout_p", "a probability in [0, 1]", p))
    query, key, value, attn_mask = as_autocast_does(query, key, value, attn_mask)
    given = {"query": query, "key": key, "value": value}
    if attn_mask is not None:
        if isinstance(attn_mask, torch.Tensor) and (query.dtype, attn_mask.dtype) == (torch.float64, torch.float32):
            attn_mask = attn_mask.double()
        given["attn_mask"] = attn_mask
    check_tensors(tuple(given), tuple(given.values()))
    if query.shape[-1:] == key.shape[-1:] == (0,):  # a column of zeros changes no score
        query, key = pad(query, (0, 1)), pad(key, (0, 1))
    if value.shape[-1:] == (0,):
        value = pad(value, (0, 1))
    for name, T in (("key", key), ("value", value)) if enable_gqa else ():
        if min(T.ndim, query.ndim) < 3 or not T.shape[-3] or query.shape[-3] % T.shape[-3]:
            raise ValueError(expected(name, "heads whose number divides that of query", f"shape {tuple(T.shape)}"))
    scores = scores_shape(query, key, value, ("query", "key", "value"), sharing=enable_gqa)
    if attn_mask is not None:
        check_broadcasts("attn_mask", tuple(attn_mask.shape), scores, "the scores")
    if scale is not None:
        scale = check_scale(_number("scale", scale), 1)

    if p == 1:
        value = value * 0
    drops = (Dropout(p, torch.randint(2**62, (), device=query.device)),) if 0 < p < 1 else ()
    kind = {} if attn_mask is None else {"mask" if attn_mask.dtype == torch.bool else "bias": attn_mask}
    steps = steps_of(**kind, causal=causal, ops=drops)
    return Call(steps, scale), (query, key, value, *[op.seed for op in drops], *kind.values())


def _corner_of(attn_mask, is_causal):
    """What torch's own ``CausalBias`` stands for, None for other masks."""
    from torch.nn.attention.bias import CausalBias, CausalVariant

    if not isinstance(attn_mask, CausalBias):
        return None
    if is_causal:
        raise RefusedError(expected("is_causal", "False where attn_mask is a CausalBias", True))
    return "top-left" if attn_mask.variant == CausalVariant.UPPER_LEFT else "bottom-right"


def _number(name, x):
    """A float, from all that torch takes for one."""
    if isinstance(x, torch.Tensor) and x.ndim == 0 and not x.requires_grad and not x.is_complex():
        x = x.item()
    if not isinstance(x, Real):
        raise TypeError(expected(name, "a real number", reprlib.repr(x)))
    return float(x)
