"""Forward, vjp, jvp and hvp of a call, each by a spine, on tensors that nothing is wrapped around.

On the CPU it is NumPy's, on the memory of the tensors themselves; on a GPU the fused one, where its kernels can do what
is asked for. For all else there are :func:`lines`: the dense spine in torch's own operations, which autograd, a mode or
a subclass can follow.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from itertools import compress
from operator import or_

import numpy as np
import torch
from torch._C import DispatchKeySet, _parse_dispatch_key

from attnbook.arguments import scores_shape
from attnbook.ops.op import UndeclaredError
from attnbook.plan import resolve
from attnbook.spines import SPINES, numpy_work
from attnbook.spines.fused.capability import tf32_is_allowed

WRAPPED = ("Python", "Functionalize", "FuncTorchBatched", "FuncTorchGradWrapper", "Batched", "ZeroTensor")
HIDDEN = reduce(or_, (DispatchKeySet(_parse_dispatch_key(name)).raw_repr() for name in WRAPPED))


@dataclass(slots=True)
class Call:
    """A call without its tensors, which lie flat elsewhere: Q, K, V, then the arrays of the ops in their order.
    ``shape`` is that of the scores, where the door has found it.
    """

    steps: list
    scale: float | None = None
    method: object = "auto"
    with_L: bool = False
    shape: tuple | None = None

    def steps_with(self, arrays):
        """The steps with these arrays."""
        given = iter(arrays)
        return [(by, op.with_arrays({name: next(given) for name in op.arrays})) for by, op in self.steps]

    def learned(self):
        """For each op the place of the tensor that it learns, else None."""
        places, n = [], 3
        for _, op in self.steps:
            places.append(None if op.learns is None else n + op.arrays.index(op.learns))
            n += len(op.arrays)
        return places


@dataclass(slots=True)
class Kept:
    """What a forward keeps: its arrays, and the rest of its residuals. Not a tuple, as torch looks into tuples."""

    home: str
    kind: type
    rest: tuple
    tensors: tuple = ()


def plain(*tensors):
    """Whether these lie in memory, as they are, and no mode or tracer listens."""
    if torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state():
        return False
    keys = 0
    for T in tensors:
        if T is not None:
            keys |= torch._C._dispatch_keys(T).raw_repr()
    return not keys & HIDDEN


def forward(call, *tensors, keep=True, places=None):
    """O, L where it is asked for, and what is kept. ``places``: homes to try instead of those of the call's method."""
    home, array, res = _run(call, tensors, places)
    O = _tensor(array)
    found = (_tensor(O, tensors[0]), _tensor(res.L)) if call.with_L else (_tensor(O, tensors[0]),)
    if not keep:
        return found
    n = 3 + len(res.kept)
    kept = [O if T is array else _tensor(T) for T in res[3:n]]
    return *found, Kept(home, type(res), res[n:], kept)


def vjp(call, kept, needed, dO, dL, *tensors):
    """The gradients of those tensors that need one."""
    if not plain(dO, dL, *tensors):
        return traced_vjp(call, needed, dO, dL, *tensors)
    (dO, dL), res = _recall(call, kept, (_arrived(dO, dL, tensors), dL), tensors)
    places = call.learned() if call.steps else ()
    res = _unasked(res, places, needed)
    with _as_written(tensors[0]):
        *grads, dparams = SPINES[res.plan.spine].vjp(dO, dL, res)
    found = dict(enumerate(grads)) | dict(zip(places, dparams, strict=True))
    return (*[_tensor(found[place], T) for place, T in enumerate(tensors) if needed[place]],)


def jvp(call, kept, *changes):
    """The tangents of O, and of L where it is asked for. ``changes``: the tensors' tangents, or None; these."""
    if not plain(*changes):
        return traced_jvp(call, *changes)
    tangents, tensors = halves(changes)
    zeros = [torch.zeros_like(T) if t is None else t for t, T in zip(tangents[:3], tensors[:3], strict=True)]
    moved, res = _recall(call, kept, (*zeros, *tangents[3:]), tensors)
    with _as_written(tensors[0]):
        tparams = [None if place is None else moved[place] for place in call.learned()]
        tO, tL = SPINES[res.plan.spine].jvp(*moved[:3], tparams, res)
    return (_tensor(tO, tensors[0]), _tensor(tL))[: 1 + call.with_L]


def hvp(call, kept, asked, tdO, tdL, dO, dL, *changes):
    """The tangents of O, L and the gradients of the tensors, of those that are asked for; by symmetry what :func:`vjp`
    gives to dO, dL and the tensors, pulled back. ``changes``: the tensors' tangents, or None; these.
    """
    if not plain(tdO, tdL, dO, dL, *changes):
        return traced_hvp(call, asked, tdO, tdL, dO, dL, *changes)
    tangents, tensors = halves(changes)
    zeros = [torch.zeros_like(T) if t is None else t for t, T in zip(tangents[:3], tensors[:3], strict=True)]
    changed = tdO, tdL, _arrived(dO, dL, tensors), dL
    arrays, res = _recall(call, kept, (*changed, *zeros, *tangents[3:]), tensors)
    turns, arrived, moved = arrays[:2], arrays[2:4], arrays[4:]
    places = call.learned()
    res = _unasked(res, places, [need or t is not None for need, t in zip(asked[2:], tangents, strict=True)])
    tparams = [None if place is None else moved[place] for place in places]
    try:
        with _as_written(tensors[0]):
            *grads, tdparams, tO, tL = SPINES[res.plan.spine].hvp(*moved[:3], tparams, *arrived, turns, res)
    except UndeclaredError:  # autograd knows what an op does not say
        return traced_hvp(call, asked, tdO, tdL, dO, dL, *changes)
    found = dict(enumerate(grads)) | dict(zip(places, tdparams, strict=True))
    likes = (tensors[0], None, *tensors)
    every = (tO, tL, *map(found.get, range(len(tensors))))
    return (*[_tensor(T, like) for T, like, need in zip(every, likes, asked, strict=True) if need],)


def lines(call, *tensors):
    """O, and L where it is asked for, by torch's own operations; derivatives of every order follow from them."""
    Q = tensors[0]
    with _as_written(Q):
        arrays = arrays_of(tensors, "lines")
        plan = settle_on(call, arrays, call.method if call.method == "tiled" else "dense")
        O, res = SPINES[plan.spine].forward(*arrays[:3], plan)
        return (O.to(Q.dtype), res.L)[: 1 + call.with_L]


def traced_vjp(call, needed, *changes):
    """As :func:`vjp`, by torch's own operations."""
    arrived = [c is not None for c in changes[:2]]
    f = lambda *tensors: tuple(compress(lines(call, *tensors), arrived))  # noqa: E731
    return pull(f, needed, changes[2:], tuple(compress(changes, arrived)))


def traced_jvp(call, *changes):
    """As :func:`jvp`, by torch's own operations."""
    tangents, tensors = halves(changes)
    return push(partial(lines, call), tensors, tangents)


def traced_hvp(call, asked, tdO, tdL, dO, dL, *changes):
    """As :func:`hvp`, by torch's own operations: the backward is symmetric, so where dO and dL stay, it may as well be
    pulled back.
    """
    tangents, tensors = halves(changes)
    if tdO is tdL is None:
        moving = [t is not None for t in tangents]
        backward = partial(traced_vjp, call, moving)
        return pull(backward, asked, (dO, dL, *tensors), tuple(compress(tangents, moving)))
    return push(partial(traced_vjp, call, asked[2:]), (dO, dL, *tensors), (tdO, tdL, *tangents))


def pull(f, needed, inputs, cotangents):
    """The gradients of those inputs of ``f`` that need one."""
    return torch.func.vjp(of_some(f, needed, inputs), *compress(inputs, needed))[1](cotangents)


def push(f, inputs, tangents):
    """The tangents of ``f``. c ↦ Jᵀ c is linear, so its own pullback is t ↦ J t: forward mode, where torch has none."""
    moving = [t is not None for t in tangents]
    zeros = (torch.zeros_like(T) for T in f(*inputs))
    return torch.func.vjp(lambda *c: pull(f, moving, inputs, c), *zeros)[1](tuple(compress(tangents, moving)))


def of_some(f, which, inputs):
    """``f`` as a function of some of its inputs, with the others as they are."""

    def of_these(*some):
        given = iter(some)
        return f(*(next(given) if these else T for these, T in zip(which, inputs, strict=True)))

    return of_these


def halves(changes):
    return changes[: len(changes) // 2], changes[len(changes) // 2 :]


def moves(T):
    """Whether a change of T is one of floats: not for a bool mask, a seed, or None."""
    return T is not None and T.is_floating_point()


def autocasts(T):
    """Whether autocast is on for tensors like T."""
    kind = T.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def settle_on(call, arrays, method):
    """The plan of a call with these arrays, or an error where they do not fit."""
    Q, K, V, *rest = arrays
    shape, steps = call.shape or scores_shape(Q, K, V), call.steps_with(rest) if rest else call.steps
    widths = Q.shape[-1], V.shape[-1]
    return resolve({"Q": Q, "K": K, "V": V}, shape, widths, scale=call.scale, method=method, steps=steps)


def homes(Q, method):
    """Where to work on a call, best first: NumPy's spines, the "kernels", or "torch", faster in true float32."""
    if method == "fused":
        return ("kernels",)
    if Q.is_cpu:
        return ("numpy",)
    fast = Q.is_cuda and (Q.dtype.itemsize == 2 or tf32_is_allowed())
    return ("kernels", "torch") if fast and method == "auto" else ("torch",)


def arrays_of(tensors, home):
    """The tensors as arrays without history, NumPy's at that home; with it for "lines". Only kernels take 16 bits."""
    found = []
    for T in tensors:
        if T is not None:
            if home != "kernels" and T.dtype.itemsize == 2 and moves(T):
                T = T.float()
            T = T.numpy(force=True) if home == "numpy" else T if home == "lines" else T.detach()
        found.append(T)
    return found


def exp2(T, out):
    """In place, in parts so small that torch starts no threads. NumPy without vector code takes twice as long."""
    for part in torch.from_numpy(T.reshape(-1)).split(2**15):
        part.exp2_()
    return out


def settled(call, tensors, places=None):
    """The first home that can do it, the tensors as its arrays, and the plan."""
    home, *others = places or homes(tensors[0], call.method)
    try:
        arrays = arrays_of(tensors, home)
        plan = settle_on(call, arrays, "fused" if home == "kernels" else call.method)
        if home == "numpy" and not numpy_work.BITS:
            plan = plan._replace(kernel=exp2)
        return home, arrays, plan
    except (TypeError, ValueError, ModuleNotFoundError):  # it cannot
        if not others:
            raise
    return settled(call, tensors, others)


def _run(call, tensors, places=None):
    """Its home, and O and the residuals, as arrays."""
    home, arrays, plan = settled(call, tensors, places)
    with _as_written(tensors[0]):
        return home, *SPINES[plan.spine].forward(*arrays[:3], plan)


def _recall(call, kept, changes, tensors):
    """The changes as arrays, and the forward's residuals, as it left them or made again."""
    n = len(changes)
    if kept is None:
        home, _, res = _run(call, tensors)
        return arrays_of(changes, home), res
    arrays = arrays_of((*changes, *tensors[:3], *kept.tensors), kept.home)
    return arrays[:n], kept.kind(*arrays[n:], *kept.rest)


def _arrived(dO, dL, tensors):
    """dO, zeros where nothing arrives at O."""
    return tensors[0].new_zeros((*dL.shape, tensors[2].shape[-1])) if dO is None else dO


def _unasked(res, places, needed):
    """The residuals, with ops that need not find the gradient of their parameter where nobody asks for it."""
    if unasked := [i for i, place in enumerate(places) if place is not None and not needed[place]]:
        ops = [op.without_gradient() if i in unasked else op for i, op in enumerate(res.plan.ops)]
        res = res._replace(plan=res.plan.with_ops(ops))
    return res


def _tensor(T, like=None):
    """What a spine gave, as a tensor in the same memory, if it lies there in order, and has the dtype of ``like``."""
    T = (T if isinstance(T, torch.Tensor) else torch.from_numpy(np.asarray(T))).contiguous()
    return T if like is None or T.dtype == like.dtype else T.to(like.dtype)


def _as_written(T):
    """Products in the dtype of their factors: autocast has had its say at the door."""
    on = torch._C._is_any_autocast_enabled() and autocasts(T)
    return torch.autocast(T.device.type, enabled=False) if on else nullcontext()
