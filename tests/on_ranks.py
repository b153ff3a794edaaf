"""What the ranks of test_parallel_gloo.py run: each of these functions in every process, on the group they are in."""

import os
import sys
import time
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist

from attnbook.ops import ALiBi, Dropout, Segments, Sink
from attnbook.parallel import (
    gather_attention,
    heads_attention,
    over_torch,
    ring_attention,
    split,
    tree_attention,
)
from attnbook.torch import attention

ATTEND = {"ring": ring_attention, "gather": gather_attention, "heads": heads_attention, "tree": tree_attention}


def call(name, _, options):
    """What ``Processes`` asks of each rank."""
    return globals()[name](**options)


def drawn(*shapes, dtype=torch.float64, seed=0):
    """The same on every rank."""
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for shape in shapes]


def worst(came, wanted):
    return max(
        ((a - b).double().abs().max().item() for a, b in zip(came, wanted, strict=True) if a.numel()), default=0.0
    )


def error_of(scheme, causal, placement, h_kv, dtype=torch.float64, ops=False, with_L=True):
    """The largest, of O, L and the gradients of all inputs, against one process on the same numbers."""
    r, R, same = dist.get_rank(), dist.get_world_size(), scheme == "tree"
    Q, K, V, dO, dL, sigma = drawn(
        (2, 9, 13, 5), (2, h_kv, 17, 5), (2, h_kv, 17, 7), (2, 9, 13, 7), (2, 9, 13), (9,), dtype=dtype
    )
    dL = dL.to(torch.promote_types(dtype, torch.float32))

    def extra(sigma):
        return [Sink(sigma), ALiBi(sigma.detach().abs(), "bottom-right"), Dropout(0.2, 3)] if ops else [Sink(sigma)]

    def cut(T, queries=False, axis=-2):
        return T if same and queries else split(T, R, placement, axis)[r]

    def run(f, inputs, arrived, **more):
        inputs = [T.clone().requires_grad_() for T in inputs]
        O, L = f(*inputs[:3], causal=causal, ops=extra(inputs[3]), **more)
        heads, arrived = ((O, L), arrived) if with_L else ((O,), arrived[:1])
        return [O.detach(), L.detach(), *torch.autograd.grad(heads, inputs, arrived)]

    O, L, dQ, dK, dV, dsigma = run(attention, (Q, K, V, sigma), (dO, dL), with_L=True)
    wanted = [cut(O, True), cut(L, True, -1), cut(dQ, True), cut(dK), cut(dV)]
    pieces, arrived = (cut(Q, True), cut(K), cut(V), sigma), (cut(dO, True), cut(dL, True, -1))
    *came, share = run(ATTEND[scheme], pieces, arrived, placement=placement, return_L=True, timeout=60)
    dist.all_reduce(share)
    assert {T.dtype for T in (came[0], *came[2:])} == {dtype}
    return worst([*came, share], [*wanted, dsigma])


def sweep(schemes, placements, grouped):
    """The largest error over all schemes × causal × placements × grouped heads."""
    grid = product(schemes, (False, True, "bottom-right"), placements, grouped)
    return max((error_of(*case, ops=bool(i % 2), with_L=bool(i % 3)), str(case)) for i, case in enumerate(grid))


def sweep_16():
    return max(error_of(scheme, True, "zigzag", 3, torch.bfloat16) for scheme in ATTEND)


def uneven(lengths):
    """Rows as they come, on some ranks none, with packed documents."""
    r, n = dist.get_rank(), sum(lengths)
    Q, K, V, dO = drawn((4, n, 5), (4, n, 5), (4, n, 7), (4, n, 7))
    at = slice(sum(lengths[:r]), sum(lengths[: r + 1]))
    ops = [Segments.packed(torch.tensor([0, min(2, n), n]))]
    errors = []
    for causal, scheme in product((False, True), ("ring", "gather", "heads")):
        whole = [T.clone().requires_grad_() for T in (Q, K, V)]
        O = attention(*whole, causal=causal, ops=ops)
        wanted = [O.detach(), *torch.autograd.grad(O, whole, dO)]
        mine = [T[:, at].clone().requires_grad_() for T in (Q, K, V)]
        O = ATTEND[scheme](*mine, causal=causal, ops=ops, timeout=60)
        errors.append(worst([O, *torch.autograd.grad(O, mine, dO[:, at])], [T[:, at] for T in wanted]))
    return max(errors)


def of_some(members):
    """A group of some ranks; the others are told that it is not theirs."""
    group = dist.new_group(members)
    Q, K, V = drawn((4, 6, 5), (4, 6, 5), (4, 6, 7))
    if dist.get_rank() not in members:
        return told(lambda: ring_attention(Q, K, V, group=group))
    mine = [split(T, len(members))[dist.get_rank(group)] for T in (Q, K, V)]
    O = ring_attention(*mine, group=group, timeout=60)
    return worst([O], [split(attention(Q, K, V), len(members))[dist.get_rank(group)]])


def told(f):
    try:
        f()
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def refused(case):
    """What each rank is told, in how many seconds; the call after it works."""
    r = dist.get_rank()
    Q, K, V = drawn((4, 6, 5), (4, 6, 5), (4, 6, 7))
    one, f, options = r == 1, ring_attention, {"timeout": 20}
    if case == "widths":
        Q, K = (T[..., : 5 - one] for T in (Q, K))
    elif case == "heads":
        K, V = (T[: 4 - 2 * one] for T in (K, V))
    elif case == "dtype":
        Q, K, V = (T.float() if one else T for T in (Q, K, V))
    elif case == "scheme":
        f = gather_attention if one else ring_attention
    elif case == "no tensor":
        Q = Q.tolist() if one else Q
    elif case == "lengths":
        Q, options["placement"] = Q[:, : 6 - one], "zigzag"
    elif case == "mask":
        options["mask"] = torch.ones(12, dtype=torch.bool)
        options["mask"][3] = not one
    elif case == "grad":
        Q.requires_grad_(one)
    elif case == "device":
        Q, K, V = (T.to("meta") for T in (Q, K, V))
    elif case == "fits nobody":
        options["ops"] = [Sink(torch.ones(3, dtype=torch.float64))]
    else:
        other = {"causal": True, "scale": 0.7, "placement": "zigzag", "method": "dense"}[case]
        options |= {case: other} if one else {}
    start = time.monotonic()
    came = told(lambda: f(Q, K, V, **options))
    seconds = time.monotonic() - start
    Q, K, V = drawn((4, 6, 5), (4, 6, 5), (4, 6, 7))
    return came, seconds, tuple(ring_attention(Q, K, V, timeout=20).shape)


def destroyed():
    group = dist.new_group([0, 1])
    dist.destroy_process_group(group)
    return told(lambda: ring_attention(*drawn((4, 6, 5), (4, 6, 5), (4, 6, 7)), group=group))


def changed_in_place():
    inputs = [T.requires_grad_() for T in drawn((4, 6, 5), (4, 6, 5), (4, 6, 7))]
    O = ring_attention(*inputs, timeout=20)
    with torch.no_grad():
        inputs[1] *= 2
    return told(O.sum().backward)


def late(where, folder):
    """Rank 1 stalls, or ends: in no call at all, or at the first hop of a pass. What the others are told, in a file."""
    r, (what, at) = dist.get_rank(), where.split(", ")
    inputs = [T.requires_grad_() for T in drawn((4, 6, 5), (4, 6, 5), (4, 6, 7))]
    kept, calls = over_torch.Part, []

    class Slow(kept):
        def meet(self, *given):
            calls.append("forward")
            self.perhaps("forward")
            return kept.meet(self, *given)

        def meet_vjp(self, *given):
            calls.append("backward")
            self.perhaps("backward")
            return kept.meet_vjp(self, *given)

        def perhaps(self, now):
            if r == 1 and at == now and calls.count(now) == 1:
                stop()

    def stop():
        if what == "ends":
            sys.stderr.flush()
            os._exit(3)
        time.sleep(2.5)

    over_torch.Part = Slow
    start = time.monotonic()
    try:
        if r == 1 and at == "no call":
            return stop()
        came = told(lambda: ring_attention(*inputs, timeout=1.0).sum().backward())
    finally:
        over_torch.Part = kept
    return Path(folder, f"{r}").write_text(f"{time.monotonic() - start}\n{came}", encoding="utf-8")
