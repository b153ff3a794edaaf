"""Forward, vjp and jvp of a call, each by a spine, on tensors that nothing is wrapped around.

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
from attnbook.arrays import widen
from attnbook.plan import resolve
from attnbook.spines import SPINES

WRAPPED = ("Python", "Functionalize", "FuncTorchBatched", "FuncTorchGradWrapper", "Batched", "ZeroTensor")
HIDDEN = reduce(or_, (DispatchKeySet(_parse_dispatch_key(name)).raw_repr() for name in WRAPPED))


@dataclass(slots=True)
class Call:
    """A call without its tensors, which lie flat elsewhere: Q, K, V, then the arrays of the ops in their order."""

    steps: list
    scale: float | None = None
    method: object = "auto"
    with_L: bool = False

    def steps_with(self, arrays):
        """The steps with these arrays."""
        given = iter(arrays)
        return [(by, op.with_arrays(dict(zip(op.arrays, given, strict=False)))) for by, op in self.steps]

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

    spine: str
    kind: type
    rest: tuple
    tensors: tuple = ()


def plain(*tensors):
    """Whether these lie in memory, as they are, and no mode or tracer listens."""
    if torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state():
        return False
    return not [T for T in tensors if T is not None and torch._C._dispatch_keys(T).raw_repr() & HIDDEN]


def forward(call, *tensors, keep=True):
    """O, L where it is asked for, and what is kept."""
    array, res = _forward(call, tensors)
    O, n = _tensor(array), 3 + len(res.kept)
    found = (O.to(tensors[0].dtype), _tensor(res.L)) if call.with_L else (O.to(tensors[0].dtype),)
    if not keep:
        return found
    kept = tuple(O if T is array else _tensor(T) for T in res[3:n])
    return *found, Kept(res.plan.spine, type(res), res[n:], kept)


def vjp(call, kept, needed, dO, dL, *tensors):
    """The gradients of those tensors that need one."""
    if not plain(dO, dL, *tensors):
        return traced_vjp(call, needed, dO, dL, *tensors)
    Q, res = tensors[0], _residuals(call, kept, tensors, needed)
    if dO is None:
        dO = Q.new_zeros((*res.plan.shape[:-1], res.plan.widths[1]))
    with _as_written(Q):
        *grads, dparams = SPINES[res.plan.spine].vjp(*arrays_of((dO, dL), Q, res.plan.spine), res)
    found = dict(enumerate(grads)) | dict(zip(call.learned(), dparams, strict=True))
    return tuple(_tensor(found[place]).to(T.dtype) for place, T in enumerate(tensors) if needed[place])


def jvp(call, kept, *changes):
    """The tangents of O, and of L where it is asked for. ``changes``: the tensors' tangents, or None; these."""
    if not plain(*changes):
        return traced_jvp(call, *changes)
    tangents, tensors = halves(changes)
    Q, res = tensors[0], _residuals(call, kept, tensors, [True] * len(tensors))
    zeros = [torch.zeros_like(T) if t is None else t for t, T in zip(tangents[:3], tensors[:3], strict=True)]
    arrays = arrays_of((*zeros, *tangents[3:]), Q, res.plan.spine)
    with _as_written(Q):
        tparams = [None if place is None else arrays[place] for place in call.learned()]
        tO, tL = SPINES[res.plan.spine].jvp(*arrays[:3], tparams, res)
    return (_tensor(tO).to(Q.dtype), _tensor(tL)) if call.with_L else (_tensor(tO).to(Q.dtype),)


def lines(call, *tensors):
    """O, and L where it is asked for, by torch's own operations; derivatives of every order follow from them."""
    Q = tensors[0]
    with _as_written(Q):
        arrays = widened(tensors)
        plan = settle_on(call, arrays, call.method if call.method == "tiled" else "dense")
        O, res = SPINES[plan.spine].forward(*arrays[:3], plan)
        return (O.to(Q.dtype), res.L) if call.with_L else (O.to(Q.dtype),)


def traced_vjp(call, needed, *changes):
    """As :func:`vjp`, by torch's own operations."""
    arrived, tensors = [c is not None for c in changes[:2]], changes[2:]
    f = of_some(partial(lines, call), needed, tensors)
    _, pull = torch.func.vjp(lambda *some: tuple(compress(f(*some), arrived)), *compress(tensors, needed))
    return pull(tuple(compress(changes, arrived)))


def traced_jvp(call, *changes):
    """As :func:`jvp`, by torch's own operations."""
    tangents, tensors = halves(changes)
    moving = [t is not None for t in tangents]
    return push(of_some(partial(lines, call), moving, tensors), compress(tensors, moving), compress(tangents, moving))


def push(f, primals, tangents):
    """The tangents of ``f``. c ↦ Jᵀ c is linear, so its own pullback is t ↦ J t: forward mode, where torch has none."""
    primals = tuple(primals)
    zeros = (torch.zeros_like(T) for T in f(*primals))
    return torch.func.vjp(lambda *c: torch.func.vjp(f, *primals)[1](c), *zeros)[1](tuple(tangents))


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
    given, shape, widths = {"Q": Q, "K": K, "V": V}, scores_shape(Q, K, V), (Q.shape[-1], V.shape[-1])
    return resolve(
        given, shape, widths, scale=call.scale, method=method, steps=call.steps_with(rest) if rest else call.steps
    )


def arrays_of(tensors, Q, method):
    """The tensors as arrays without history: NumPy's on the CPU. Kernels take them in the dtype that they have."""
    if method == "fused" or not on_numpy(Q):
        return [T if T is None else T.detach() for T in (tensors if method == "fused" else widened(tensors))]
    return [T if T is None else T.numpy(force=True) for T in widened(tensors)]


def on_numpy(Q):
    """Whether tensors like Q go through the spines of NumPy."""
    return Q.is_cpu


def on_kernels(Q):
    """Whether the kernels are asked first for tensors like Q."""
    return Q.is_cuda


def widened(tensors):
    """The tensors in the accumulation dtype."""
    return [widen(T) if T is not None and T.dtype.itemsize == 2 and moves(T) else T for T in tensors]


def _forward(call, tensors):
    """O and the residuals, as arrays. On a GPU "auto" asks for the kernels first."""
    Q = tensors[0]
    for method in ("fused", "auto") if call.method == "auto" and on_kernels(Q) else (call.method,):
        try:
            arrays = arrays_of(tensors, Q, method)
            plan = settle_on(call, arrays, method)
            break
        except (TypeError, ValueError, ModuleNotFoundError):  # they cannot
            if method == call.method:
                raise
    with _as_written(Q):
        return SPINES[plan.spine].forward(*arrays[:3], plan)


def _residuals(call, kept, tensors, needed):
    """The forward's residuals, as it left them or made again."""
    n = len(tensors)
    if kept is None:
        _, res = _forward(call, tensors)
        ops = res.plan.ops
    else:
        arrays = arrays_of((*tensors, *kept.tensors), tensors[0], kept.spine)
        res = kept.kind(*arrays[:3], *arrays[n:], *kept.rest)
        ops = [op for _, op in call.steps_with(arrays[3:n])]
    needs = [place is None or needed[place] for place in call.learned()]
    ops = [op if need else op.without_gradient() for op, need in zip(ops, needs, strict=True)]
    return res._replace(plan=res.plan.with_ops(ops)) if ops else res


def _tensor(T):
    """What a spine gave, as a tensor in the same memory, if it lies there in order."""
    return (T if isinstance(T, torch.Tensor) else torch.from_numpy(np.asarray(T))).contiguous()


def _as_written(T):
    """Products in the dtype of their factors: autocast has had its say at the door."""
    on = torch._C._is_any_autocast_enabled() and autocasts(T)
    return torch.autocast(T.device.type, enabled=False) if on else nullcontext()
