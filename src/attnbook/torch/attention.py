"""The package's attention for torch: all that it takes, and every derivative that autograd may be asked for."""

from contextlib import nullcontext

import torch
from torch._C import _functorch
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function

from attnbook.arrays import expected
from attnbook.plan import name_of, steps_of
from attnbook.torch import _compiled as compiled
from attnbook.torch import _passes as passes
from attnbook.torch._autograd import Attention
from attnbook.torch._passes import Call, autocasts, moves, plain

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def attention(Q, K, V, *, mask=None, bias=None, causal=False, scale=None, ops=(), method="auto", with_L=False):
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

    Notes
    -----
    Reverse and forward mode nest in any order, through ``torch.autograd`` and ``torch.func``; ``vmap`` is another
    leading axis.
    Tensors on the CPU are read in place by the NumPy engine, with as many threads as ``torch.get_num_threads()``
    says, if :func:`~attnbook.spines.workers.set_num_threads` says nothing else. On a GPU "auto" takes the fused kernels
    for what they can do, and the tiled lines in torch's operations for the rest. Memory is linear in n_q and n_k, small
    tables apart; second derivatives hold whole tables.

    What is no plain tensor (FakeTensor, DTensor, a subclass), or traced (``make_fx``, any dispatch mode), goes through
    the dense lines in torch's own operations, with tables. Under ``torch.compile`` a call without ops is one operator
    that is not looked into, and compiled code has first derivatives of it; inside of a transform, or with ops, it is
    the dense lines. Chapter: :doc:`/chapters/03_single_head`.

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
    options = {"mask": mask, "bias": bias, "causal": causal, "scale": scale, "ops": ops, "method": method}
    if has_torch_function((Q, K, V, mask, bias)):
        return handle_torch_function(attention, (Q, K, V, mask, bias), Q, K, V, **options, with_L=with_L)
    call = Call(steps_of(mask, bias, causal, ops), scale, method, with_L)
    names = [name_of(*step) for step in call.steps for _ in step[1].arrays]
    Q, K, V = as_autocast_does(Q, K, V)
    tensors = Q, K, V, *(getattr(op, name) for _, op in call.steps for name in op.arrays)
    check_tensors(("Q", "K", "V", *names), tensors)
    found = attend(call, *tensors)
    return found if with_L else found[0]


def attend(call, *tensors):
    """O, and L where it is asked for, of tensors that have passed :func:`check_tensors`."""
    if torch.compiler.is_compiling():
        return compiled.attend(call, *tensors)
    transformed, learned = torch._C._are_functorch_transforms_active(), call.learned() if call.steps else ()
    moving = transformed or forward_ad._current_level >= 0
    others = [T for place, T in enumerate(tensors[3:], 3) if moves(T) and place not in learned]  # no spine has theirs
    one_by_one = moving and (others or not all(op.stacks for _, op in call.steps))
    if (
        one_by_one
        or any(T.requires_grad for T in others)
        or not plain(*(map(_bare, tensors) if transformed else tensors))
    ):
        with getattr(tensors[0], "fake_mode", None) or nullcontext():  # new tensors are fake, too
            return passes.lines(call, *tensors)
    if transformed:  # an error speaks of the shapes that the caller sees
        passes.settle_on(call, passes.widened(tensors), "dense")
    elif not moving and not (torch.is_grad_enabled() and any(T.requires_grad for T in tensors)):
        return passes.forward(call, *tensors, keep=False)
    return Attention.apply(call, *tensors)[:-1]


def check_tensors(names, tensors):
    """An error that names the first that is no dense tensor, or of another dtype or device than the first."""
    Q = tensors[0]
    for place, (name, T) in enumerate(zip(names, tensors, strict=True)):
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


def as_autocast_does(*tensors):
    """Under autocast, all in its dtype, as torch casts the arguments of its function; float64 stays."""
    if not torch._C._is_any_autocast_enabled():  # most calls
        return tensors
    Q, cast = tensors[0], DTYPES[1:]
    if not isinstance(Q, torch.Tensor) or Q.dtype not in cast or not autocasts(Q):
        return tensors
    dtype = torch.get_autocast_dtype(Q.device.type)
    return tuple(T.to(dtype) if isinstance(T, torch.Tensor) and T.dtype in cast else T for T in tensors)


def _bare(T):
    """What the transforms have wrapped."""
    while _functorch.is_functorch_wrapped_tensor(T) and not _functorch.is_functionaltensor(T):
        T = _functorch.get_unwrapped(T)
    return T
