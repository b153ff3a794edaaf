"""What the ranks of test_parallel_gloo.py run: each of these functions in every process, on the group they are in."""

import os
import sys
import time
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist

from attnbook.multi_head import MultiHeadParams, multi_head_attention, multi_head_attention_vjp
from attnbook.ops import ALiBi, Dropout, RelativeBias, Segments, Sink, T5Buckets
from attnbook.parallel import (
    gather_attention,
    heads_attention,
    layer_attention,
    over_torch,
    positions,
    ring_attention,
    split,
    split_layer,
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
    """NaN is no agreement, and is larger than all."""

    def apart(a, b):
        a, b = a.double(), b.double()
        return torch.where(a == b, 0.0, a - b).abs().nan_to_num(nan=torch.inf).max().item()

    return max((apart(a, b) for a, b in zip(came, wanted, strict=True) if a.numel()), default=0.0)


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


def of_dtensor():
    """The largest error against torch's own DTensor, which redistributes, forward and backward: keys made whole on each
    rank for its rows (an all-gather; a reduce-scatter), or heads for rows (an all-to-all; its transpose).
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    r, R, errors = dist.get_rank(), dist.get_world_size(), []
    mesh, rows, heads, whole = init_device_mesh("cpu", (R,)), [Shard(2)], [Shard(1)], [Replicate()]
    *inputs, dO = (split(T, R)[r] for T in drawn((2, 6, 12, 5), (2, 6, 18, 5), (2, 6, 18, 7), (2, 6, 12, 7)))
    bias = torch.full((1, 1, 12, 18), -torch.inf, dtype=torch.float64).triu(1)
    for scheme, causal in product(("ring", "gather", "heads"), (False, True)):
        theirs = [DTensor.from_local(T, mesh, rows).requires_grad_() for T in inputs]
        wanted = [heads] * 3 if scheme == "heads" else [rows, whole, whole]
        Q, K, V = (T.redistribute(placements=there) for T, there in zip(theirs, wanted, strict=True))
        S = Q @ K.mT * 5**-0.5
        if causal:
            S = S + DTensor.from_local(bias, mesh, whole).redistribute(placements=rows if wanted[0] == rows else whole)
        O = (torch.softmax(S, -1) @ V).redistribute(placements=rows)
        grads = torch.autograd.grad(O, theirs, DTensor.from_local(dO, mesh, rows))
        mine = [T.clone().requires_grad_() for T in inputs]
        found = ATTEND[scheme](*mine, causal=causal, timeout=60)
        found = [found, *torch.autograd.grad(found, mine, dO)]
        given = [T.redistribute(placements=rows).to_local() for T in (O, *grads)]
        errors.append((worst(found, given), f"{scheme}, causal {causal}"))
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
    elif case == "mask on one":
        options["mask"] = torch.ones(12, 12, dtype=torch.bool) if one else None
    elif case == "queries of a tree":
        f, Q = tree_attention, Q + one
    elif case == "group":
        options["group"] = "gloo"
    elif case == "values":
        V = V[:, : 6 - one]
    elif case == "lengths":
        Q, options["placement"] = Q[:, : 6 - one], "zigzag"
    elif case == "mask":
        options["mask"] = torch.ones(12, dtype=torch.bool)
        options["mask"][3] = not one
    elif case == "grad":
        Q.requires_grad_(one)
    elif case == "one number":
        options["ops"] = [Sink(torch.tensor(1.0 * one, dtype=torch.float64))]
    elif case == "far in an op":
        options["ops"] = [RelativeBias(torch.zeros(4, 32, dtype=torch.float64), T5Buckets(max_distance=128 - one))]
    elif case == "timeout":
        options["timeout"] = 0 if one else 20
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


def destroyed(before_backward=False):
    group, (Q, K, V) = dist.new_group([0, 1]), drawn((4, 6, 5), (4, 6, 5), (4, 6, 7))
    O = ring_attention(Q.requires_grad_(), K, V, group=group) if before_backward else None
    dist.barrier()  # a rank that is still connecting to a new group fails where another has left it
    dist.destroy_process_group(group)
    return told(O.sum().backward if before_backward else lambda: ring_attention(Q, K, V, group=group))


def crossed(scheme):
    """What each rank is told where one takes two calls' backwards in the other order."""
    X, *weights = drawn((3, 6, 12), *[(12, 12)] * 4)
    p = MultiHeadParams(*(T.requires_grad_() for T in weights))
    calls = {
        "ring": lambda X: ring_attention(X.requires_grad_(), X, X, timeout=20),
        "layer": lambda X: layer_attention(X, p, num_heads=3, timeout=20),
    }
    losses = [calls[scheme](T).sum() for T in (X.clone(), 2 * X)]
    return told((losses[::-1] if dist.get_rank() == 1 else losses)[0].backward)


def changed_in_place(what):
    inputs = [T.requires_grad_() for T in drawn((4, 6, 5), (4, 6, 5), (4, 6, 7))]
    O = ring_attention(*inputs, timeout=20)
    with torch.no_grad():
        (O if what == "O" else inputs[1]).mul_(2)
    return told(O.sum().backward)


def again():
    """What a second backward is told."""
    inputs = [T.requires_grad_() for T in drawn((4, 6, 5), (4, 6, 5), (4, 6, 7))]
    loss = ring_attention(*inputs, timeout=20).sum()
    loss.backward(retain_graph=True)
    return told(loss.backward)


def of_doors(inputs, cast=lambda T: T):
    """O of each scheme, and Y of the layer, in one function; each casts what it is given."""
    every = [f(*map(cast, inputs[:3]), causal=True, timeout=60) for f in ATTEND.values()]
    X, *p = map(cast, inputs[3:])
    return [*every, layer_attention(X, MultiHeadParams(*p), num_heads=3, timeout=60)]


def shared_inputs(*dtypes):
    """Q, K, V, X and the weights of a layer."""
    shapes = (3, 4, 5), (3, 4, 5), (3, 4, 5), (4, 12), *[(12, 12)] * 4
    given = zip(drawn(*shapes), (*dtypes, *[torch.float32] * 5), strict=True)
    return [T.to(dtype).requires_grad_() for T, dtype in given]


def compiled():
    """The largest error of a model with every door in it, compiled against not."""
    inputs = shared_inputs(*[torch.float32] * 3)

    def run(f):
        loss = sum((T * T.sin()).sum() for T in f([2 * T for T in inputs]))
        return [loss.detach(), *torch.autograd.grad(loss, inputs)]

    return worst(run(torch.compile(of_doors, backend="aot_eager")), run(of_doors))


def autocast(on_a_gpu=False):
    """The largest error of all doors under autocast, of O and of gradients with their dtypes, against inputs that were
    cast by hand. ``on_a_gpu``: the lines stay in torch, as there.
    """
    inputs, kept = shared_inputs(torch.float32, torch.float32, torch.bfloat16), over_torch._inside

    def inside(T):
        return (
            kept(T) if not isinstance(T, torch.Tensor) else T.detach().float() if T.dtype.itemsize == 2 else T.detach()
        )

    def run(*cast):
        out = of_doors(inputs, *cast)
        return [*out, *torch.autograd.grad(sum(T.float().square().sum() for T in out), inputs)]

    over_torch._inside = inside if on_a_gpu else kept
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            came = run()
        wanted = run(torch.Tensor.bfloat16)
    finally:
        over_torch._inside = kept
    assert [T.dtype for T in came] == [T.dtype for T in wanted]
    return worst(came, wanted)


def another_loss(scheme):
    """What each rank is told where one has twice the loss of the others."""
    X, *weights = drawn((3, 6, 12), *[(12, 12)] * 4)
    X.requires_grad_()
    if scheme == "tree":
        O = tree_attention(X, X, X, timeout=20)
    else:
        O = layer_attention(X, MultiHeadParams(*weights), num_heads=3, timeout=20)
    return told((O.sum() * (1 + dist.get_rank())).backward)


def layer_refused(case):
    """What each rank is told of a layer that does not fit on one of them."""
    one, (X, *weights) = dist.get_rank() == 1, drawn((2, 5, 12), *[(12, 12)] * 4, *[(12,)] * 4)
    options = {"num_heads": 5 if case == "heads" and one else 3, "timeout": 0 if case == "timeout" and one else 20}
    weights[0].requires_grad_(case == "frozen" and not one)
    if case == "widths" and one:
        weights[3] = weights[3][:7]
    X = X + one if case == "inputs" else X
    p = weights if case == "share" and one else MultiHeadParams(*weights)
    start = time.monotonic()
    came = told(lambda: layer_attention(X, p, **options))
    return came, time.monotonic() - start


def twice():
    """What a second derivative is told, of which one path goes around the call."""
    Q, K, V = (T.requires_grad_() for T in drawn((4, 6, 5), (4, 6, 5), (4, 6, 7)))
    loss = (ring_attention(Q, K, V, timeout=20) ** 2).sum() + (Q**3).sum()
    return told(lambda: torch.autograd.grad(loss, Q, create_graph=True))


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
        came += "\n" + told(lambda: ring_attention(*inputs))
    finally:
        over_torch.Part = kept
    return Path(folder, f"{r}").write_text(f"{time.monotonic() - start}\n{came}", encoding="utf-8")


# --- layers and training --------------------------------------------------------------------------------------------


def of_layer(with_memory):
    """A layer with its heads over the ranks: Y, dX, dmemory and each rank's columns of the weights' gradients."""
    r, R = dist.get_rank(), dist.get_world_size()
    shapes = (17, 30), (19, 12), (19, 15), (30, 23), (30,), (12,), (15,), (23,)  # 6 heads, 3 of keys
    X, memory, *weights = drawn((2, 5, 17), (2, 7, 19), *shapes)
    if not with_memory:
        X, weights[1], weights[2] = X, *drawn((17, 12), (17, 15), seed=1)
        memory = None
    widths = [(17, 24), *(T.shape for T in weights[1:3]), (30, 23), (24,), *(T.shape for T in weights[5:])]
    weights = [T[tuple(slice(n) for n in w)] for T, w in zip(weights, widths, strict=True)]
    p, (dY,) = MultiHeadParams(*weights), drawn((2, 5, 23), seed=2)
    heads = {"num_heads": 6, "num_kv_heads": 3}
    Y, res = multi_head_attention(X, p, memory=memory, causal=True, **heads)
    g = multi_head_attention_vjp(dY, res)
    wanted = split_layer(g.dparams, R, **heads)[r][0]
    share, h, h_kv = split_layer(p, R, **heads)[r]
    inputs = [None if T is None else T.clone().requires_grad_() for T in (X, memory, *share)]
    found = layer_attention(
        inputs[0],
        MultiHeadParams(*inputs[2:]),
        memory=inputs[1],
        num_heads=h,
        num_kv_heads=h_kv,
        causal=True,
        timeout=60,
    )
    came = torch.autograd.grad(found, [T for T in inputs if T is not None], dY)
    return worst([found, *came], [T for T in (Y, g.dX, g.dmemory, *wanted) if T is not None])


class Model(torch.nn.Module):
    """A Transformer of two blocks; ``attend`` is one process's attention, or that of ranks."""

    def __init__(self, attend, d=12, h=3, vocabulary=11, n=24):
        super().__init__()
        self.attend, self.h = attend, h
        self.tokens, self.places = torch.nn.Embedding(vocabulary, d), torch.nn.Embedding(n, d)
        self.blocks = torch.nn.ModuleList(torch.nn.ModuleDict(self.of_block(d)) for _ in range(2))
        self.last = torch.nn.Linear(d, vocabulary)

    def of_block(self, d):
        mlp = torch.nn.LayerNorm(d), torch.nn.Linear(d, 2 * d), torch.nn.GELU(), torch.nn.Linear(2 * d, d)
        named = {"norm": torch.nn.LayerNorm(d), "qkv": torch.nn.Linear(d, 3 * d), "out": torch.nn.Linear(d, d)}
        return named | {"mlp": torch.nn.Sequential(*mlp)}

    def forward(self, tokens, places):
        X = self.tokens(tokens) + self.places(places)
        for block in self.blocks:
            Q, K, V = (
                T.unflatten(-1, (self.h, -1)).movedim(-2, -3) for T in block["qkv"](block["norm"](X)).chunk(3, -1)
            )
            X = X + block["out"](self.attend(Q, K, V).movedim(-3, -2).flatten(-2))
            X = X + block["mlp"](X)
        return self.last(X)


def train(rings, steps, folder=None, load=False, save=False, kind="DDP"):
    """The losses of these steps, of all tokens: ``rings`` groups of ranks train on a part of the batch each, and in a
    group each rank has its rows. Without ranks enough, one process.
    """
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.nn.parallel import DistributedDataParallel

    r, R = dist.get_rank(), dist.get_world_size()
    size = R // rings
    groups = [dist.new_group(list(range(i * size, (i + 1) * size))) for i in range(rings)]
    group, mine = groups[r // size], positions(24, size, "zigzag")[r % size]
    torch.manual_seed(0)
    if size == 1:
        model = Model(lambda *T: attention(*T, causal=True))
    else:
        model = Model(lambda *T: ring_attention(*T, causal=True, placement="zigzag", group=group, timeout=60))
    model = model.double()
    if kind == "DDP" and R > 1:
        model = DistributedDataParallel(model)  # data parallel in one line, and over the rows of a ring too
    elif kind == "FSDP":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if load:
        of_model, of_optimizer = get_state_dict(model, optimizer)
        state = {"model": of_model, "optimizer": of_optimizer}
        checkpoint.load(state, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    g, losses = torch.Generator().manual_seed(1), []
    for step in range(steps[1]):
        tokens, targets = torch.randint(11, (2, 4, 24), generator=g)
        if step < steps[0]:
            continue
        part = slice(r // size * 4 // rings, (r // size + 1) * 4 // rings)
        scores = model(tokens[part][:, mine], torch.as_tensor(mine))
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), targets[part][:, mine].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss = loss.detach()
        dist.all_reduce(loss)
        losses.append(loss.item() / R)
    if save:
        of_model, of_optimizer = get_state_dict(model, optimizer)
        checkpoint.save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=folder)
    return losses
