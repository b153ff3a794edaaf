"""Forward, vjp and jvp on tensors that nothing is wrapped around: each runs a spine.

On the CPU that is the spine of NumPy, on the memory of the tensors themselves. On a GPU it is the fused one where its
kernels can do what is asked for, and the generic one for the rest.
"""

from contextlib import nullcontext
from dataclasses import dataclass

import torch

from attnbook.arguments import broadcast
from attnbook.arrays import array_namespace, device, is_numpy
from attnbook.ops import Bias, Causal, Dropout, Mask, Scale, Step
from attnbook.ops.dropout import _32_BITS, _mix
from attnbook.spines import dense, fused, pick, spine_of, tiled
from attnbook.spines.numpy_tiled import LN2

NO_MEMORY = """a tensor without memory to read. For many gradients at once, use torch.func (vmap, jacrev, jacfwd) \
instead of is_grads_batched or vectorize of torch.autograd; to trace, use torch.compile or torch.export"""
CAUSAL = Step("causal", Causal("top-left"))


@dataclass(slots=True)
class Options:
    """The arguments that are no tensors."""

    factor: float
    is_causal: bool
    dropout_p: float


class Memory:
    """What residuals keep beside the inputs, as tensors: P; or O, M and Z. A class, as torch looks into tuples.

    ``fused`` is the unit of M where the fused kernels made it, else None.
    """

    def __init__(self, *tensors, fused=None):
        self.tensors, self.fused = tensors, fused

    @classmethod
    def of(cls, res, O):
        if isinstance(res, dense.Residuals):
            return cls(*_tensors(res.P))
        return cls(O, *_tensors(res.M, res.Z), fused=res.unit if isinstance(res, fused.Residuals) else None)

    def residuals(self, q, k, v, steps):
        kept = [T.numpy(force=True) for T in self.tensors] if is_numpy(q) else self.tensors
        if len(kept) == 1:
            return dense.Residuals(q, k, v, *kept, steps)
        shape = (*kept[0].shape[:-1], k.shape[-2])
        if self.fused is not None:
            return fused.Residuals(q, k, v, *kept, steps, shape, self.fused)
        return tiled.Residuals(q, k, v, *kept, steps, shape, LN2 if is_numpy(q) else 1.0)


def forward(Q, K, V, mask, seed, options, method="auto"):
    """O, and what its backward needs."""
    with _as_written(Q):
        O, res = _run(Q, K, V, mask, seed, options, method)
    (O,) = _tensors(O)
    return O.to(Q.dtype), Memory.of(res, O)


def vjp(dO, Q, K, V, mask, seed, options, memory=None, of_mask=False, traced=False):
    """dQ, dK, dV and, if it is asked for, that of the mask. ``traced``: in operations that autograd can follow."""
    with _as_written(Q):
        res, (dO,) = _residuals((dO,), Q, K, V, mask, seed, options, memory, of_mask, traced)
        *grads, dparams = spine_of(res).vjp(dO, res)
        grads = tuple(T.to(Q.dtype) for T in _tensors(*grads))
        return (*grads, *(T.to(mask.dtype) for T in _tensors(dparams[1]))) if of_mask else grads


def jvp(tQ, tK, tV, tmask, Q, K, V, mask, seed, options, memory=None, traced=False):
    """The tangent of O, alone in a tuple, likewise."""
    with _as_written(Q):
        tangents = tQ, tK, tV, tmask
        res, (tQ, tK, tV, tmask) = _residuals(tangents, Q, K, V, mask, seed, options, memory, False, traced)
        tparams = [tmask if step.asked_by == "bias" else None for step in res.steps]
        return tuple(T.to(Q.dtype) for T in _tensors(spine_of(res).jvp(tQ, tK, tV, tparams, res)))


def autocasts(T):
    """Whether autocast is on for tensors like T."""
    kind = T.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def accumulation_dtype(dtype):
    return torch.float32 if dtype.itemsize < 4 else dtype


def scores_shape(Q, K, V):
    """(..., n_q, n_k), each head of K and V repeated for the query heads that share it."""
    h = Q.shape[-3] if Q.ndim > 2 else 1

    def lead(T):
        shared = T.ndim > 2 and T.shape[-3] > 1 and h % T.shape[-3] == 0  # also where there is no query head
        return (*T.shape[:-3], h) if shared else T.shape[:-2]

    return (*broadcast(broadcast(lead(Q), lead(K)), lead(V)), Q.shape[-2], K.shape[-2])


def moves(T):
    """Whether a change of T is one of floats: not for a bool mask, a seed, or None."""
    return T is not None and T.is_floating_point()


def _as_written(T):
    """Products in the dtype of their factors: autocast has had its say at the door."""
    return torch.autocast(T.device.type, enabled=False) if autocasts(T) else nullcontext()


def _residuals(changes, Q, K, V, mask, seed, options, memory, of_mask, traced):
    """The forward's residuals, as it left them or made again, and the changes (gradients, tangents) as arrays."""
    if memory:
        fusing = memory.fused is not None
        res = memory.residuals(*_operands(Q, K, V, mask, seed, options, of_mask, traced, fusing))
    else:
        _, res = _run(Q, K, V, mask, seed, options, "dense" if traced else "auto", of_mask, traced)
        fusing = isinstance(res, fused.Residuals)
    return res, _arrays(changes, Q, traced, fusing)


def _operands(Q, K, V, mask, seed, options, of_mask=False, traced=False, fusing=False):
    """q, k, v and the steps, as a spine takes them."""
    q, k, v, m, seed = _arrays((Q, K, V, mask, seed), Q, traced, fusing)
    steps = [Step("scale", Scale(options.factor))]
    if mask is not None and mask.dtype == torch.bool:
        steps.append(Step("mask", Mask(m)))
    elif mask is not None:
        steps.append(Step("bias", Bias(m) if of_mask else _Fixed(m)))
    if options.is_causal:
        steps.append(CAUSAL)
    if options.dropout_p:
        steps.append(Step("ops", _Dropout(options.dropout_p, seed)))
    return q, k, v, tuple(steps)


def _run(Q, K, V, mask, seed, options, method, of_mask=False, traced=False):
    """O and the residuals, by the spine that ``method`` asks for; "auto" asks for the kernels first."""
    given, shape = (Q, K, V, mask, seed, options, of_mask, traced), scores_shape(Q, K, V)
    if method == "auto" and _on_kernels(Q) and not options.dropout_p:
        operands = _operands(*given, fusing=True)
        if fused.refusal(*operands, shape) is None:
            return fused.forward(*operands, shape)
    operands = _operands(*given)
    return pick(method, operands[0], shape)(*operands, shape)


def _on_kernels(T):
    """Whether tensors like T may go through the fused kernels. Not those that only look like tensors on a GPU."""
    return T.is_cuda and type(T) in (torch.Tensor, torch.nn.Parameter)


def _on_numpy(T):
    """Whether tensors like T go through the spines of NumPy."""
    return T.device.type == "cpu"


def _arrays(tensors, Q, traced, fusing=False):
    """The tensors in the accumulation dtype and, unless traced, without history: on the CPU as NumPy arrays.

    ``fusing``: in the dtype that they have, for kernels, which read them where they lie.
    """
    if fusing:
        return [T if T is None else _in_memory(T) for T in tensors]
    wide = accumulation_dtype(Q.dtype)
    tensors = [T if T is None or T.dtype == wide or not moves(T) else T.to(wide) for T in tensors]
    if traced:
        return tensors
    if not _on_numpy(Q):
        return [T if T is None else T.detach().to(Q.device) for T in tensors]
    try:
        return [T if T is None else T.numpy(force=True) for T in tensors]
    except RuntimeError as error:
        raise NotImplementedError(NO_MEMORY) from error


def _in_memory(T):
    try:
        T = T.detach()
        T.data_ptr()
    except RuntimeError as error:
        raise NotImplementedError(NO_MEMORY) from error
    return T


def _tensors(*arrays):
    """What a spine gave, as tensors in the same memory, if it lies there in order."""
    return [(torch.from_numpy(T) if is_numpy(T) else T).contiguous() for T in arrays]


class _Fixed(Bias):
    """A bias whose gradient nobody asks for."""

    parameter = None

    def vjp(self, dS, saved, tile):
        return dS, None


@dataclass(frozen=True, eq=False)
class _Dropout(Dropout):
    """Dropout with a seed for each place on the leading axes that ``vmap`` has added: R is that of one call, apart."""

    def __post_init__(self):
        pass

    def kept(self, T, tile):
        xp = array_namespace(T)
        lead = tile.lead or tuple(range(n) for n in T.shape[:-2])
        added = self.seed.ndim
        seed = self.seed[tuple(slice(r.start, r.stop) for r in lead[:added])]
        number = _mix(seed & _32_BITS ^ _mix(seed >> 32 & _32_BITS))
        for places in (*lead[added:], tile.rows, tile.cols):
            place = xp.arange(places.start, places.stop, dtype=xp.int64, device=device(T))
            number = _mix(number[..., None] ^ _mix(place + 1))
        return number >= int(self.p * 2**32)
