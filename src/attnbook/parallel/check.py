"""Check attention over ranks where it will run: ``torchrun --nproc-per-node N -m attnbook.parallel.check``.

Every scheme, placement and causal corner against one process in float64, the bytes that were sent against their
formula, and how long a hop takes. The exit status is 1 on every rank if anything is wrong on one. Chapter:
:doc:`/chapters/14_many_devices`.
"""

import argparse
import inspect
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np

from attnbook.attention import attention, attention_vjp
from attnbook.loading import load
from attnbook.parallel import attention as doors
from attnbook.parallel.call import bytes_of
from attnbook.parallel.placement import split

SCHEMES: dict[str, Any] = {
    "ring": doors.ring_attention,
    "gather": doors.gather_attention,
    "heads": doors.heads_attention,
    "tree": doors.tree_attention,
}
PLACEMENTS = ("contiguous", "zigzag", "striped")
HEADS, HEADS_KV, D_K, D_V = 6, 3, 16, 24
NAMES = ("O", "dQ", "dK", "dV")


class Case(NamedTuple):
    """What is run, and what came of it."""

    name: str
    placement: str
    causal: Any
    errors: list[float]
    """Of O, dQ, dK and dV, over the largest entry of each."""
    sent: Any
    """Bytes, forward and backward."""
    formula: Any


def main(argv: list[str] | None = None) -> int:
    """Run the command; 0 where all is right on all ranks."""
    asked = _parser().parse_args(argv)
    import torch
    import torch.distributed as dist

    from attnbook.arrays import expected

    if not dist.is_available():
        raise SystemExit(expected("torch", "a build with torch.distributed", "one without"))
    if asked.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(expected("--device", "a device that torch sees", "cuda"))
    place = torch.device("cpu")
    if asked.device == "cuda":
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(place)
    own = load(asked.function) if asked.function else None
    backend, limit = ("nccl" if asked.device == "cuda" else "gloo"), timedelta(seconds=asked.timeout)
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=limit)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=limit)
    try:
        return _checked(asked, own, place)
    finally:
        dist.destroy_process_group()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m attnbook.parallel.check",
        description="Check attention over ranks against one process, on these machines. Start it by torchrun.",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cpu is gloo, cuda is NCCL")
    parser.add_argument("--dtype", choices=("float64", "float32", "bfloat16", "float16"), default="float64")
    parser.add_argument("--quick", action="store_true", help="causal and zig-zag alone, and one size of message")
    parser.add_argument("--rows", type=int, default=61, help="queries of all ranks; there are six keys more")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds to wait for a message")
    parser.add_argument(
        "--function",
        metavar="FILE.py:NAME",
        help="your own NAME(Q, K, V, causal=...), on this rank's rows, differentiable; its argument "
        "'placement', if it has one, is told the placement",
    )
    return parser


def _checked(asked: argparse.Namespace, own: Any, place: Any) -> int:
    import torch
    import torch.distributed as dist

    rank, ranks, dtype = dist.get_rank(), dist.get_world_size(), getattr(torch, asked.dtype)
    n_q = max(asked.rows, ranks)
    inputs = _drawn(n_q, n_q + 6, dtype)
    bound = torch.finfo(dtype).eps * (1 if dtype.itemsize == 2 else 64)
    corners, placements = ((True,), ("zigzag",)) if asked.quick else ((False, True, "bottom-right"), PLACEMENTS)
    to_run: dict[str, Any] = {"yours": own} if own is not None else SCHEMES
    if rank == 0:
        machine = f"{ranks} rank{'s' * (ranks > 1)}, {dist.get_backend()}, {asked.dtype}, torch {torch.__version__}"
        print(f"attnbook.parallel.check: {machine}")
        print(
            f"{n_q} queries, {n_q + 6} keys, {HEADS} heads on {HEADS_KV}; error: over the largest entry, of float64\n"
        )
        print(f"{'scheme':8}{'placement':12}{'causal':14}{'O, dQ, dK, dV':40}{'KB sent':>9}{'formula':>9}")
    wrong, started = 0, time.perf_counter()
    for causal in corners:
        wanted = _reference(inputs, causal)
        for placement in placements if own is None or _takes(own, "placement") else ("contiguous",):
            for name, f in to_run.items():
                case = _case(name, f, inputs, wanted, placement, causal, place, asked.timeout)
                wrong += not _say(case, bound, place, counted=own is None)
    for size in (2**20,) if asked.quick else (2**16, 2**20, 2**24):
        _time_hop(size, place)
    if rank == 0:
        seconds = time.perf_counter() - started
        print(
            f"\n{wrong} wrong" if wrong else "\nall right",
            f"on {machine.split(',')[0]}, up to {bound:.1e}; {seconds:.1f} s",
        )
        if wrong and own is not None:
            print("Which mistake: attnbook.diagnose(Ranks(fn)) names it, chapter 8.")
    return int(bool(wrong))


def _takes(f: Callable[..., Any], name: str) -> bool:
    return name in inspect.signature(f).parameters


def _drawn(n_q: int, n_k: int, dtype: Any) -> list[Any]:
    """Q, K, V and dO, the same on every rank."""
    import torch

    g = torch.Generator().manual_seed(14)
    shapes = (HEADS, n_q, D_K), (HEADS_KV, n_k, D_K), (HEADS_KV, n_k, D_V), (HEADS, n_q, D_V)
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for shape in shapes]


def _reference(inputs: list[Any], causal: Any) -> list[Any]:
    """O, dQ, dK and dV of one process, in float64, on the numbers that the dtype has."""
    Q, K, V, dO = (T.double().numpy() for T in inputs)
    O, res = attention(Q, K, V, causal=causal)
    return [O, *attention_vjp(dO, res)[:3]]


def _case(
    name: str, f: Any, inputs: list[Any], wanted: list[Any], placement: Any, causal: Any, place: Any, timeout: float
) -> Case:
    import torch
    import torch.distributed as dist

    rank, ranks, same = dist.get_rank(), dist.get_world_size(), name == "tree"

    def mine(T: Any, rows: bool) -> Any:
        return T if same and rows else split(T, ranks, placement)[rank]

    Q, K, V, dO = (mine(T, i in (0, 3)).to(place) for i, T in enumerate(inputs))
    leaves = [T.clone().requires_grad_() for T in (Q, K, V)]
    options = {"causal": causal, "placement": placement, "timeout": timeout}
    if name == "yours":
        options = {key: x for key, x in options.items() if key == "causal" or _takes(f, key)}
    with _counted() as counted:
        O = f(*leaves, **options)
        grads = torch.autograd.grad(O, leaves, dO, allow_unused=True)
    came = [O.detach(), *(torch.zeros_like(T) if g is None else g for g, T in zip(grads, leaves, strict=True))]
    right = [mine(torch.from_numpy(T), i < 2) for i, T in enumerate(wanted)]
    errors = [_error(a, b, T) for a, b, T in zip(came, right, wanted, strict=True)]
    formula = None
    if name != "yours":
        sizes = {"n_q": inputs[0].shape[-2], "n_k": inputs[1].shape[-2], "d_k": D_K, "d_v": D_V, "h": HEADS}
        by_rank = bytes_of(
            name,
            ranks=ranks,
            h_kv=HEADS_KV,
            itemsize=inputs[0].dtype.itemsize,
            placement=placement,
            causal=causal,
            **sizes,
        )
        formula = by_rank[:, rank]
    return Case(name, placement, causal, errors, np.array([counted["forward"], counted["backward"]]), formula)


def _error(came: Any, right: Any, whole: Any) -> float:
    if tuple(came.shape) != tuple(right.shape):
        return float("inf")
    away = (came.detach().cpu().double() - right).abs()
    worst = float(away.max()) if away.numel() else 0.0
    return worst / float(np.abs(whole).max()) if worst == worst else float("inf")


@contextmanager
def _counted() -> Iterator[Counter[str]]:
    """The bytes that this rank gives to the backend in each pass; what ranks tell each other before is no part."""
    from attnbook.parallel import over_torch

    total: Counter[str] = Counter()
    post = over_torch.Member._post

    def counting(self: Any, asked: Any) -> Any:
        total[self.doing.split(", ")[-1]] += sum(T.nbytes for _, arrays in asked.sends for T in arrays)
        return post(self, asked)

    over_torch.Member._post = counting  # type: ignore[method-assign]
    try:
        yield total
    finally:
        over_torch.Member._post = post  # type: ignore[method-assign]


def _say(case: Case, bound: float, place: Any, *, counted: bool) -> bool:
    """A line on rank 0; whether all is right on all ranks."""
    import torch
    import torch.distributed as dist

    miscounted = counted and not np.array_equal(case.sent, case.formula)
    worst = torch.tensor([*case.errors, float(miscounted)], dtype=torch.float64, device=place)
    both = torch.tensor([case.sent.sum(), case.formula.sum() if counted else 0], device=place)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    dist.all_reduce(both)
    *errors, miscounts = worst.tolist()
    off = [f"{name} is off" for name, error in zip(NAMES, errors, strict=True) if not error <= bound]
    off += ["the bytes are not those of the formula"] * bool(miscounts)
    if dist.get_rank() == 0:
        numbers = " ".join(f"{error:9.1e}" for error in errors)
        sent, formula = (f"{n / 1e3:9.1f}" for n in both.tolist())
        line = f"{case.name:8}{case.placement:12}{case.causal!s:14}{numbers:40}"
        print((line + (sent + formula if counted else "")).rstrip() + (f"  WRONG: {', '.join(off)}" if off else ""))
    return not off


def _time_hop(size: int, place: Any) -> None:
    """How long a message to the next rank takes while one comes from the rank before: the median of 7."""
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    if ranks == 1:
        if rank == 0 and size == 2**20:
            print("\none rank: no hop to time")
        return
    out, into = (torch.zeros(size, dtype=torch.uint8, device=place) for _ in range(2))
    times = []
    for _ in range(8):
        dist.barrier()
        start = time.perf_counter()
        ops = [
            dist.P2POp(dist.isend, out, (rank + 1) % ranks),
            dist.P2POp(dist.irecv, into, (rank - 1) % ranks),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        times.append(time.perf_counter() - start)
    slowest = torch.tensor([float(np.median(times[1:]))], dtype=torch.float64, device=place)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if rank == 0:
        seconds = slowest.item()
        print(f"a hop of {size / 1e6:.2f} MB: {seconds * 1e3:.2f} ms, {size / seconds / 1e9:.2f} GB/s")


if __name__ == "__main__":
    sys.exit(main())
