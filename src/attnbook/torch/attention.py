"""The doors to torch: the package's attention with all that it takes, and torch's ``scaled_dot_product_attention``, its
arguments and its errors, on the same lines. Both have every derivative that autograd may be asked for.
"""

import reprlib
from collections.abc import Sequence
from contextlib import nullcontext
from numbers import Real
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch.autograd import forward_ad
from torch.nn.functional import pad
from torch.overrides import handle_torch_function, has_torch_function

from attnbook.arguments import check_broadcasts, check_flags, check_scale, choose, scores_shape
from attnbook.arrays import expected
from attnbook.ops import Dropout, Op
from attnbook.plan import name_of, steps_of
from attnbook.spines import WAYS, Way
from attnbook.torch import _compiled as compiled
from attnbook.torch import _passes as passes
from attnbook.torch._autograd import Attention
from attnbook.torch._passes import Call, autocasts, moves, plain
from attnbook.types import Corner, Method

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
ASKS = attrgetter("requires_grad")


class RefusedError(RuntimeError, ValueError):
    """A value that does not fit: a RuntimeError as torch raises it, a ValueError as the package does."""


class RefusedTypeError(RuntimeError, TypeError):
    """A type or dtype, likewise."""


def attention(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool | Corner = False,
    scale: float | None = None,
    ops: Sequence[Op] = (),
    method: Method | Way = "auto",
    with_L: bool = False,
) -> Any:
    """Attend as :func:`attnbook.attention` does, with derivatives of every kind and order.

    Equation :eq:`def-attention`.

    Parameters
    ----------
    Q : tensor (..., n_q, d_k)
        float64, float32, bfloat16 or float16.
    K : tensor (..., n_k, d_k)
    V : tensor (..., n_k, d_v)
    mask, bias, causal, scale, ops, method
        As there, with tensors for arrays; those of floats also in the accumulation dtype. The bias gets a gradient, and
        so does every tensor of an op.
    with_L : bool
        Also return L.

    Returns
    -------
    O : tensor (..., n_q, d_v), dtype and device of Q; with ``with_L`` a pair, O and L (..., n_q)
        Contiguous. Exactly 0 in a row with no allowed key, and L −∞, as are all gradients through it.

    Raises
    ------
    TypeError
        Q, K or V is no dense tensor of one of these dtypes, or what else has a type that does not fit.
    ValueError
        A shape, a device or an option does not fit.

    Notes
    -----
    Reverse and forward mode nest in any order, through ``torch.autograd`` and ``torch.func``; ``vmap`` is another
    leading axis.
    Tensors on the CPU are read in place by the NumPy engine, with as many threads as ``torch.get_num_threads()``
    says, if :func:`~attnbook.spines.threads.set_num_threads` says nothing else. On a GPU "auto" takes the fused kernels
    for what they can do, in float32 only where TF32 is allowed, else the tiled lines in torch's operations. Memory
    is linear in n_q and n_k, small tables apart, and so it is for second derivatives: a gradient of a gradient, and one
    mode over the other. Forward mode over itself, and third derivatives, hold whole tables; so do second ones of an op
    that saves something and has no ``vjp_jvp``.

    What is no plain tensor (FakeTensor, DTensor, a subclass), or traced (``make_fx``, any dispatch mode), goes through
    the dense lines in torch's own operations, with tables. Under ``torch.compile`` a call without ops is one operator
    that is not looked into (on a GPU the same choice), and compiled code has first derivatives of it; inside of a
    transform, or with ops, it is the dense lines. Chapter: :doc:`/chapters/13_every_order`.

    Examples
    --------
    >>> import torch
    >>> from attnbook.ops import Softcap
    >>> from attnbook.torch import attention
    >>> Q, K, V = (torch.randn(2, 3, n, 11, requires_grad=True) for n in (5, 7, 7))
    >>> O, L = attention(Q, K, V, causal=True, ops=[Softcap(5.0)], with_L=True)
    >>> (dQ,) = torch.autograd.grad(O.square().sum() + L.sum(), Q, create_graph=True)
    >>> dQ.sum().backward()  # a gradient of a gradient
    """
    check_flags(with_L=with_L)
    if not isinstance(method, Way):
        choose("method", method, WAYS)
    options = {"mask": mask, "bias": bias, "causal": causal, "scale": scale, "ops": ops, "method": method}
    if has_torch_function((Q, K, V, mask, bias)):
        return handle_torch_function(attention, (Q, K, V, mask, bias), Q, K, V, **options, with_L=with_L)
    call = Call(steps_of(mask, bias, causal, ops), scale, method, with_L)
    names = [name_of(*step) for step in call.steps for _ in step[1].arrays]
    if torch._C._is_any_autocast_enabled():
        Q, K, V = as_autocast_does(Q, K, V)
    tensors = Q, K, V, *(getattr(op, name) for _, op in call.steps for name in op.arrays)
    check_tensors(("Q", "K", "V", *names), tensors)
    found = attend(call, *tensors)
    return found if with_L else found[0]


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
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
    Chapter: :doc:`/chapters/04_single_head`.

    Examples
    --------
    >>> import torch
    >>> from attnbook.torch import scaled_dot_product_attention
    >>> Q, K, V = (torch.randn(2, 3, n, 11, requires_grad=True) for n in (5, 7, 7))
    >>> O = scaled_dot_product_attention(Q, K, V, is_causal=True)
    >>> (dQ,) = torch.autograd.grad(O.square().sum(), Q, create_graph=True)
    >>> dQ.sum().backward()  # a gradient of a gradient
    """
    causal: bool | Corner
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


def _checked(
    query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: Any, causal: Any, scale: Any, enable_gqa: Any
) -> tuple[Call, tuple[Any, ...]]:
    """The call, and its tensors."""
    p = dropout_p if type(dropout_p) is float else _number("dropout_p", dropout_p)
    if not 0 <= p <= 1:
        raise ValueError(expected("dropout_p", "a probability in [0, 1]", p))
    if torch._C._is_any_autocast_enabled():
        query, key, value, attn_mask = as_autocast_does(query, key, value, attn_mask)
    masks: tuple[Any, ...] = ()
    if attn_mask is not None:
        if isinstance(attn_mask, torch.Tensor) and attn_mask.dtype == torch.float32 and query.dtype == torch.float64:
            attn_mask = attn_mask.double()
        masks = (attn_mask,)
    check_tensors(("query", "key", "value", "attn_mask"), (query, key, value, *masks))
    if not query.numel() and query.shape[-1:] == key.shape[-1:] == (0,):  # a column of zeros changes no score
        query, key = pad(query, (0, 1)), pad(key, (0, 1))
    if not value.numel() and value.shape[-1:] == (0,):
        value = pad(value, (0, 1))
    for name, T in (("key", key), ("value", value)) if enable_gqa else ():
        if min(T.ndim, query.ndim) < 3 or not T.shape[-3] or query.shape[-3] % T.shape[-3]:
            raise ValueError(expected(name, "heads whose number divides that of query", f"shape {tuple(T.shape)}"))
    scores = scores_shape(query, key, value, ("query", "key", "value"), sharing=enable_gqa)
    if masks:
        check_broadcasts("attn_mask", tuple(attn_mask.shape), scores, "the scores")
    if scale is not None:
        scale = check_scale(_number("scale", scale), 1)

    if p == 1:
        value = value * 0
    seeds = (torch.randint(2**62, (), device=query.device),) if 0 < p < 1 else ()
    mask, bias = (attn_mask, None) if masks and attn_mask.dtype == torch.bool else (None, attn_mask)
    steps = steps_of(mask, bias, causal, [Dropout(p, *seeds)] if seeds else ())
    return Call(steps, scale, shape=scores), (query, key, value, *seeds, *masks)


def attend(call: Call, *tensors: Any) -> tuple[Any, ...]:
    """O, and L where it is asked for, of tensors that have passed :func:`check_tensors`."""
    if torch.compiler.is_compiling():
        return compiled.attend(call, *tensors)
    learned: Any
    others: Any
    transformed, learned, others = torch._C._are_functorch_transforms_active(), (), ()
    moving = transformed or forward_ad._current_level >= 0
    if call.steps:
        learned = call.learned()
        others = [T for place, T in enumerate(tensors) if place > 2 and place not in learned and moves(T)]
    one_by_one = moving and (others or not all(op.stacks for _, op in call.steps))
    asked = others and any(map(ASKS, others))  # no spine has their gradients
    if one_by_one or asked or not plain(*(map(_bare, tensors) if transformed else tensors)):
        with getattr(tensors[0], "fake_mode", None) or nullcontext():  # new tensors are fake, too
            return passes.lines(call, *tensors)
    if transformed:  # an error speaks of the shapes that the caller sees
        passes.settle_on(call, passes.arrays_of(tensors, "lines"), "dense")
    elif not moving and not (torch.is_grad_enabled() and any(map(ASKS, tensors))):
        return passes.forward(call, *tensors, keep=False)
    return Attention.apply(call, *tensors)[:-1]


def check_tensors(names: Sequence[str], tensors: Sequence[Any]) -> None:
    """An error that names the first that is no dense tensor, or of another dtype or device than the first."""
    Q = tensors[0]
    for place, (name, T) in enumerate(zip(names, tensors, strict=False)):
        if not isinstance(T, torch.Tensor):
            raise TypeError(expected(name, "a tensor", type(T).__name__))
        if T.layout != torch.strided or T.is_nested:
            raise TypeError(expected(name, "a dense tensor", "a nested or sparse one"))
        if T.dtype != Q.dtype or not place:
            wide = torch.float32 if Q.dtype.itemsize < 4 else Q.dtype
            allowed = (Q.dtype,) if place else DTYPES
            if place > 2:
                allowed = (*(torch.bool,) * name.lower().endswith("mask"), *dict.fromkeys((wide, Q.dtype)))
            number = T.dtype.is_floating_point or T.dtype.is_complex or not name.startswith("ops")
            if number and T.dtype not in allowed:
                raise TypeError(expected(name, " or ".join(map(str, allowed)), T.dtype))
        if T.device != Q.device:
            raise ValueError(expected(name, f"device {Q.device} like {names[0]}", T.device))


def as_autocast_does(*tensors: Any) -> Any:
    """Under autocast, all in its dtype, as torch casts the arguments of its function; float64 stays."""
    Q, cast = tensors[0], DTYPES[1:]
    if not isinstance(Q, torch.Tensor) or Q.dtype not in cast or not autocasts(Q):
        return tensors
    dtype = torch.get_autocast_dtype(Q.device.type)
    return tuple(T.to(dtype) if isinstance(T, torch.Tensor) and T.dtype in cast else T for T in tensors)


def _bare(T: Any) -> Any:
    """What the transforms have wrapped."""
    while _functorch.is_functorch_wrapped_tensor(T) and not _functorch.is_functionaltensor(T):
        T = _functorch.get_unwrapped(T)
    return T


def _corner_of(attn_mask: Any, is_causal: Any) -> Corner | None:
    """What torch's own ``CausalBias`` stands for, None for other masks."""
    from torch.nn.attention.bias import CausalBias, CausalVariant

    if not isinstance(attn_mask, CausalBias):
        return None
    if is_causal:
        raise RefusedError(expected("is_causal", "False where attn_mask is a CausalBias", True))
    return "top-left" if attn_mask.variant == CausalVariant.UPPER_LEFT else "bottom-right"


def _number(name: str, x: Any) -> float:
    """A float, from all that torch takes for one."""
    if isinstance(x, torch.Tensor) and x.ndim == 0 and not x.is_complex():
        wrapped = _functorch.is_functorch_wrapped_tensor(x) or forward_ad.unpack_dual(x).tangent is not None
        x = x if wrapped or x.requires_grad else x.item()  # its derivative would be lost
    if not isinstance(x, Real):
        raise TypeError(expected(name, "a real number", reprlib.repr(x)))
    return float(x)
