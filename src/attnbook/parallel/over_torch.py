"""The same lines on torch.distributed: one process a rank, gloo or NCCL, started by torchrun; for autograd.

Before any work each rank tells all others what it was asked for: where they differ, every rank says so. Chapter:
:doc:`/chapters/14_many_devices`.
"""

import functools
import json
import zlib
from datetime import timedelta
from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.distributed as dist

from attnbook.arrays import expected, widen
from attnbook.multi_head import MultiHeadParams
from attnbook.parallel.call import plan_of
from attnbook.parallel.collectives import Exchange, Wait
from attnbook.parallel.layer import layer, layer_vjp
from attnbook.parallel.schemes import SCHEMES
from attnbook.parallel.score_blocks import Part, Places
from attnbook.plan import name_of, steps_of
from attnbook.torch.attention import as_autocast_does, check_tensors

HEADER = 4096
"""Bytes in which a rank tells what it was asked for."""

NUMBER = "the call that a backward belongs to, by number"
"""Told, so that backwards in another order are noticed."""

SAMPLE = 2**16
"""Numbers of an array that are compared at most."""

DEVICE_OF = {"gloo": "cpu", "nccl": "cuda"}
CALLS = WeakKeyDictionary()
"""How many calls a group has had: so that another order is noticed."""

BROKEN: WeakKeyDictionary = WeakKeyDictionary()
"""Groups in which a message did not come: what comes now may belong to that."""


class Member:
    """This process, as a rank of a group."""

    def __init__(self, group):
        if not dist.is_initialized():
            raise RuntimeError(expected("group", "torch.distributed after init_process_group, as by torchrun", "none"))
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            raise ValueError(expected("group", "a group that this process belongs to", "another one"))
        if not (group is None or isinstance(group, dist.ProcessGroup)):
            raise TypeError(expected("group", "a process group of torch.distributed", repr(group)))
        try:
            self.group = dist.group.WORLD if group is None else group
            self.rank, self.ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
            self.backend = dist.get_backend(self.group)
        except (ValueError, RuntimeError, TypeError, AttributeError) as error:
            raise ValueError(expected("group", "a process group that has not been destroyed", repr(group))) from error
        if self.group in BROKEN:
            raise RuntimeError(expected("group", "one in which every message came", "one after " + BROKEN[self.group]))
        self.limit, self.doing, self.sent = None, "asking", 0
        """Bytes of attention, not of agreeing on it."""

    @property
    def devices(self):
        """The kinds of device that the backend sends from."""
        names = [part.split(":") for part in self.backend.split(",")]
        return {name[0] if len(name) > 1 else DEVICE_OF.get(name[0], "") for name in names}

    def wait_at_most(self, timeout):
        """So many seconds for a message."""
        if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout <= 1e9):
            raise ValueError(expected("timeout", "seconds, more than 0 and at most 1e9, or None", repr(timeout)))
        self.limit = timedelta(seconds=timeout) if timeout is not None else None

    def run(self, lines, doing, asked=None):
        """What the lines return; ``asked`` is what they have asked already."""
        self.doing, answer = doing, None
        while True:
            try:
                asked = lines.send(answer) if asked is None else asked
            except StopIteration as done:
                return done.value
            answer = None  # nothing that came is held here while there is work
            answer, asked = self._post(asked) if isinstance(asked, Exchange) else self._wait(asked.handle), None

    def _post(self, asked):
        """Begin; what has no numbers need not be sent."""
        sent = [(to, _tensor(T)) for to, arrays in asked.sends for T in arrays]
        came = [(source, [_empty(*like) for like in likes], likes) for source, likes in asked.receives]
        legs = [(dist.irecv, source, T) for source, tensors, _ in came for T in tensors]
        legs = [leg for leg in [*legs, *((dist.isend, to, T) for to, T in sent)] if leg[2].numel()]
        self.sent += sum(T.nbytes for f, _, T in legs if f is dist.isend)
        ops = [dist.P2POp(f, T, group=self.group, group_peer=peer) for f, peer, T in legs]
        works = self._told(lambda: dist.batch_isend_irecv(ops), asked.step, legs) if ops else []
        return asked.step, works, legs, came

    def _wait(self, handle):
        step, works, legs, came = handle
        each = len(works) == len(legs)  # NCCL has one handle for all
        for i, work in enumerate(works):
            wait = work.wait if self.limit is None else lambda work=work: work.wait(self.limit)
            self._told(wait, step, legs[i : i + 1] if each else legs)
        return [[_as(T, proto) for T, (_, proto) in zip(tensors, likes, strict=True)] for _, tensors, likes in came]

    def _told(self, act, step, legs):
        try:
            return act()
        except (RuntimeError, ValueError) as error:
            ways: dict = {}
            for f, peer in dict.fromkeys(leg[:2] for leg in legs):
                ways.setdefault(peer, []).append("from" if f is dist.irecv else "to")
            whom = ", ".join(f"{' and '.join(way)} rank {peer}" for peer, way in ways.items())
            limit = "" if self.limit is None else f" within {self.limit.total_seconds():g} s"
            BROKEN[self.group] = (
                f"{self.doing}, step {step}, in which rank {' or '.join(map(str, ways))} was late or gone"
            )
            raise RuntimeError(
                f"{self.doing}, step {step}: rank {self.rank} of {self.ranks} could not send or receive {whom}{limit}, "
                f"which may have ended or be late; {str(error).splitlines()[0]}"
            ) from error

    def agree(self, told, problem=None):
        """What each rank tells; an error on all of them where one has a ``problem``, or where they differ."""
        try:
            dist.get_process_group_ranks(self.group)
        except (ValueError, RuntimeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                expected("group", "a process group that has not been destroyed", "one that was")
            ) from error
        mine = told | {"calls before": CALLS.get(self.group, 0), "problem": str(problem or "")}
        CALLS[self.group] = mine["calls before"] + 1
        text = zlib.compress(json.dumps(mine).encode()).ljust(HEADER, b"\0")
        place = "cuda" if "cuda" in self.devices and "cpu" not in self.devices else "cpu"
        text = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(place)
        others, likes = [r for r in range(self.ranks) if r != self.rank], [((HEADER,), text)]

        def lines():
            handle = yield Exchange(0, [(r, [text]) for r in others], [(r, likes) for r in others])
            return (yield Wait(handle))

        sent = self.sent
        came = iter(self.run(lines(), f"{told['scheme']}, {told['pass']}, agreeing on the call"))
        self.sent = sent
        every = [
            mine
            if r == self.rank
            else json.loads(zlib.decompressobj().decompress(next(came)[0].cpu().numpy().tobytes()))
            for r in range(self.ranks)
        ]
        if problem is not None:
            raise problem
        for r, other in enumerate(every):
            if other["problem"]:
                raise ValueError(f"on rank {r}: {other['problem']}")
        for name in dict.fromkeys(name for other in every for name in other if name != "lengths"):
            found = [other.get(name, "none") for other in every]
            if any(x != found[0] for x in found):
                raise ValueError(expected(name, "the same on all ranks", _by_rank(found)))
        return every


def _by_rank(found):
    by = {}
    for r, x in enumerate(found):
        by.setdefault(str(x), []).append(str(r))
    return "; ".join(f"{x} on rank {' and '.join(ranks)}" for x, ranks in by.items())


def attend(scheme, Q, K, V, *, mask, causal, scale, ops, group, placement, method, timeout, return_L):
    """O, or O and L, of this rank's rows."""
    member, told, problem, steps, tensors = Member(group), {"scheme": scheme, "pass": "forward"}, None, [], ()
    try:
        member.wait_at_most(timeout)
        steps = steps_of(mask, None, causal, ops)
        Q, K, V = as_autocast_does(Q, K, V)
        tensors = Q, K, V, *(getattr(op, name) for _, op in steps for name in op.arrays)
        told |= _told_of(member, tensors, steps, (placement, causal, scale, method, return_L))
        told |= {"Q": _of_field(Q)} if SCHEMES[scheme].same_queries else {}
    except Exception as error:  # whatever it is: alone, it would leave the others waiting
        problem = error
    every = member.agree(told, problem)
    lengths = list(zip(*(other["lengths"] for other in every), strict=True))
    call = Call(scheme, member, steps, placement, scale, method, lengths)
    call.number = every[0]["calls before"]
    O, L = OverRanks.apply(call, *tensors)
    return (O, L) if return_L else O


def _told_of(member, tensors, steps, options):
    """What must be alike on all ranks, by name; and the lengths, which need not."""
    names = [name_of(*step) for step in steps for _ in step[1].arrays]
    check_tensors(("Q", "K", "V", *names), tensors)
    Q, K, V = tensors[:3]
    for name, T in zip("QKV", (Q, K, V), strict=True):
        if type(T) not in (torch.Tensor, torch.nn.Parameter):
            raise TypeError(expected(name, "a plain tensor, this rank's rows", type(T).__name__))
        if T.ndim < 2:
            raise ValueError(expected(name, "at least two axes (..., tokens, width)", f"shape {tuple(T.shape)}"))
    if V.shape[-2] != K.shape[-2]:
        raise ValueError(expected("V", f"one row for each of the {K.shape[-2]} keys", f"shape {tuple(V.shape)}"))
    if "" not in member.devices and Q.device.type not in member.devices:
        wanted = f"a tensor on a device of the backend {member.backend}, {' or '.join(sorted(member.devices))}"
        raise ValueError(expected("Q", wanted, Q.device))
    told = {
        f"{name}, but for rows": str([*T.shape[:-2], T.shape[-1]]) for name, T in zip("QKV", (Q, K, V), strict=True)
    }
    told |= {"dtype": str(Q.dtype), "lengths": [Q.shape[-2], K.shape[-2]]}
    told |= dict(zip(("placement", "causal", "scale", "method", "return_L"), map(str, options), strict=True))
    told["gradients"] = torch.is_grad_enabled() and any(T.requires_grad for T in tensors)
    for asked_by, op in steps:
        if asked_by == "causal":
            continue
        fields = {name: _of_field(x) for name, x in vars(op).items()}
        name = name_of(asked_by, op)
        told[name] = told.get(name, "") + _short(f"{type(op).__name__} {fields}", 200)
    return told


def _short(text, length):
    """What is cut off still counts."""
    return text if len(text) <= length else f"{text[:length]}… ({zlib.crc32(text.encode()):x})"


def _of_field(x):
    """Short: of an array its shape, and a checksum of its numbers, or of some from all over it."""
    if not isinstance(x, torch.Tensor):
        return _short(repr(x), 40)
    numbers = x.detach().reshape(-1)[:: x.numel() // SAMPLE + 1].contiguous().cpu().view(torch.uint8)
    return f"{tuple(x.shape)}, checksum {zlib.crc32(numbers.numpy().tobytes()):x}"


class Call:
    """A call without its tensors."""

    def __init__(self, scheme, member, steps, placement, scale, method, lengths):
        self.scheme, self.member, self.steps, self.lines = scheme, member, steps, SCHEMES[scheme]
        self.placement, self.scale, self.method, self.lengths = placement, scale, method, lengths

    def part(self, Q, K, V, arrays):
        """What this rank computes; an error where the arguments do not fit, which is the same on all ranks."""
        same, (n_q, n_k) = self.lines.same_queries, self.lengths
        given = iter(arrays)
        steps = [(by, op.with_arrays({name: _inside(next(given)) for name in op.arrays})) for by, op in self.steps]
        wholes = [
            _inside(T.detach().new_zeros(()).expand(*T.shape[:-2], n, T.shape[-1]))
            for T, n in zip((Q, K, V), (n_q[0] if same else sum(n_q), sum(n_k), sum(n_k)), strict=True)
        ]
        plan, _ = plan_of(self.scheme, *wholes, self.placement, scale=self.scale, method=self.method, steps=steps)
        places = Places.of(*plan.shape[-2:], self.member.ranks, self.placement)
        queries = [[range(n_q[0])]] * len(n_q) if same else self._placed("Q", n_q, places.queries)
        return Part(plan, Places(queries, self._placed("K", n_k, places.keys)), self.member.rank, inside=_inside)

    def _placed(self, name, lengths, runs):
        """The runs; "contiguous" takes rows as they come."""
        if self.placement == "contiguous":
            ends = np.cumsum([0, *lengths]).tolist()
            return [[range(*pair)] for pair in pairwise(ends)]
        wanted = [sum(map(len, of)) for of in runs]
        if wanted != list(lengths):
            raise ValueError(
                expected(f"{name}, rows", f'{wanted} on the ranks, as placement="{self.placement}"', list(lengths))
            )
        return runs


def _as_written(f):
    """Without autocast, which has had its say at the door: sums are wider."""

    @functools.wraps(f)
    def run(ctx, *given):
        kind = next((T.device.type for T in given if isinstance(T, torch.Tensor)), "cpu")
        with torch.autocast(kind, enabled=False):
            return f(ctx, *given)

    return run


class OverRanks(torch.autograd.Function):
    """O and L of this rank's rows, and their vjp."""

    @staticmethod
    @_as_written
    def forward(ctx, call, Q, K, V, *arrays):
        """O and L."""
        ctx.call, ctx.part = call, call.part(Q, K, V, arrays)
        ctx.set_materialize_grads(False)
        given = [T.detach() if T.dtype.itemsize == 2 else _inside(T) for T in (Q, K, V)]
        O, L, ctx.kept = call.member.run(call.lines.forward(ctx.part, *given), f"{call.scheme}, forward")
        out = _tensor(O).to(Q.dtype), _tensor(L)
        # With what is kept, saved: so that a change of it in place is noticed.
        shared = [T for T, own in zip(out, (O, L), strict=True) if any(own is x for x in ctx.kept) and _shares(T, own)]
        ctx.save_for_backward(Q, K, V, *arrays, *shared)
        return out

    @staticmethod
    @_as_written
    def backward(ctx, dO, dL):
        """The gradients of all tensors, None where there is none."""
        _refuse_a_graph(f"{ctx.call.scheme}_attention")
        Q, _, V, *_ = ctx.saved_tensors  # an error where they were changed in place
        call, part = ctx.call, ctx.part
        if ctx.kept is None:
            raise RuntimeError(expected(f"{call.scheme}_attention", "one backward", "another, as by retain_graph=True"))
        told = {"scheme": call.scheme, "pass": "backward", NUMBER: call.number, "dL": dL is not None}
        dO = Q.new_zeros(*Q.shape[:-1], V.shape[-1]) if dO is None else dO
        call.member.agree(told | ({"dO": _of_field(dO)} if call.lines.same_queries else {}))
        given = _inside(dO), None if dL is None else _inside(dL)
        found = call.member.run(call.lines.backward(part, ctx.kept, *given), f"{call.scheme}, backward")
        ctx.kept = None
        grads = [_tensor(T).to(Q.dtype) for T in found]
        for (_, op), T in zip(call.steps, part.in_order(), strict=True):
            grads += [
                None if T is None or name != op.learns else _tensor(T).to(getattr(op, name).dtype) for name in op.arrays
            ]
        return None, *grads


def attend_layer(X, p, *, memory, group, timeout, ops, **options):
    """Y of a layer whose heads lie over the ranks."""
    member, told, problem = Member(group), {"scheme": "layer", "pass": "forward"}, None
    try:
        member.wait_at_most(timeout)
        if not isinstance(p, MultiHeadParams):
            raise TypeError(expected("p", "MultiHeadParams, this rank's share", type(p).__name__))
        X, memory, *p = as_autocast_does(X, memory, *p)
        p = MultiHeadParams(*p)
        named = {name: T for name, T in {"X": X, "memory": memory, **p._asdict()}.items() if T is not None}
        check_tensors(list(named), list(named.values()))
        told |= {
            "X": _of_field(X),
            "dtype": str(X.dtype),
            "memory": _of_field(memory),
            "gradients": torch.is_grad_enabled() and any(T.requires_grad for T in named.values()),
        }
        told |= {name: str(options[name]) for name in ("causal", "scale", "method")}
    except Exception as error:  # as above
        problem = error
    return OfLayer.apply(member, told, problem, {**options, "ops": ops}, X, memory, *(() if problem else p))


class OfLayer(torch.autograd.Function):
    """Y, the same on all ranks, and its vjp."""

    @staticmethod
    @_as_written
    def forward(ctx, member, told, problem, options, X, memory, *p):
        """Y. The ranks agree after their own work, so that what fails in it is told to all."""
        asked = None
        if problem is None:
            try:
                lines = _lines_of(member, options, X, memory, p)
                asked = next(lines) if member.ranks > 1 else None
            except Exception as error:  # as above
                problem = error
        ctx.number = member.agree(told, problem)[0]["calls before"]
        Y, ctx.kept = member.run(lines, "layer, forward", asked)
        ctx.member, ctx.dtype = member, X.dtype
        ctx.save_for_backward(*(T for T in (X, memory, *p) if T is not None))
        return _tensor(Y).to(X.dtype)

    @staticmethod
    @_as_written
    def backward(ctx, dY):
        """The gradients of X, the memory and the weights."""
        _refuse_a_graph("layer_attention")
        member, _ = ctx.member, ctx.saved_tensors  # an error where they were changed in place
        member.agree({"scheme": "layer", "pass": "backward", NUMBER: ctx.number, "dY": _of_field(dY)})
        inputs, grads = member.run(layer_vjp(member.rank, member.ranks, _inside(dY), ctx.kept), "layer, backward")
        return *(None,) * 4, *(None if T is None else _tensor(T).to(ctx.dtype) for T in (*inputs, *grads.dparams))


def _lines_of(member, options, X, memory, p):
    """Those of the layer's forward."""
    x, m, *w = (None if T is None else _inside(T) for T in (X, memory, *p))
    ops = [op.with_arrays({name: _inside(getattr(op, name)) for name in op.arrays}) for op in options["ops"]]
    mask = None if options["mask"] is None else _inside(options["mask"])
    options = {**options, "ops": ops, "mask": mask, "memory": m}
    return layer(member.rank, member.ranks, x, MultiHeadParams(*w), **options)


def _refuse_a_graph(name):
    """torch's once_differentiable says nothing where the second gradient goes by another path as well."""
    if torch.is_grad_enabled():
        raise RuntimeError(expected(name, "to be differentiated once", "create_graph=True"))


def _inside(T):
    """As the spines take it: NumPy's on the CPU, and 16 bits widened."""
    if not isinstance(T, torch.Tensor):
        return widen(T)
    T = T.detach()
    T = T.float() if T.is_floating_point() and T.dtype.itemsize == 2 else T
    return T.numpy() if T.is_cpu else T


def _shares(T, own):
    """Whether a tensor lies in the memory of an array."""
    return T.data_ptr() == _tensor(own).data_ptr()


def _tensor(T):
    return T.contiguous() if isinstance(T, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(T))


def _empty(shape, proto):
    like = proto if isinstance(proto, torch.Tensor) else torch.from_numpy(np.empty(0, proto.dtype))
    return like.new_empty(shape)


def _as(T, proto):
    return T if isinstance(proto, torch.Tensor) else T.numpy()
