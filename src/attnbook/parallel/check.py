"""Is attention over ranks right on this cluster? Every scheme, held against torch's own attention on one process:

    torchrun --nproc-per-node 4 -m attnbook.parallel.check
    torchrun --nproc-per-node 8 -m attnbook.parallel.check --device cuda --dtype bfloat16 --rows 8192
    torchrun --nproc-per-node 2 -m attnbook.parallel.check --function file.py:fn

Rank 0 prints a table: the largest error of O, dQ, dK and dV, relative to the largest entry of each; the bytes that all
ranks sent, and by formula; milliseconds of the slowest rank. Before it stands what one hop of a ring takes. With
``--function`` the ranks run your attention instead, on the cases of ``diagnose``: ``fn(Q, K, V, **options) -> O`` on
torch tensors, whose backward is autograd's, or ``fn(Q, K, V, dO, **options) -> (O, dQ, dK, dV)``. A rank gets its own
rows; the options, such as causal, are those of ``attnbook.diagnose.Ranks``, and a case whose option fn lacks is not
run. fn gets a mask or bias for its own rows and all keys; the schemes of attnbook.parallel take it whole. What fn sends
and nobody receives is not noticed. The exit status is 1 where anything is wrong, or fewer cases than ``--at-least``
were compared; torchrun then adds a report of its own. Chapter: :doc:`/chapters/14_many_devices`.
"""

import argparse
import os
import re
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise, product
from typing import Any, get_args

from attnbook.parallel.attention import gather_attention, heads_attention, ring_attention, tree_attention
from attnbook.parallel.call import bytes_of
from attnbook.parallel.placement import Placement, split

SCHEMES = {"ring": ring_attention, "gather": gather_attention, "heads": heads_attention, "tree": tree_attention}
MOST = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""Errors that rounding may make, relative to the largest entry, by dtype."""

CAUSAL = {False: "no", True: "yes"}
HOPS = 5
LINE = "{:7} {:10} {:6} {:>8} {:>14} {:>14} {:>10} {:>10}  {}"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; its exit status."""
    parser = _parser()
    args = parser.parse_args(argv)
    sizes = "rows", "heads", "key_heads", "width", "quick"  # diagnose has its own
    for name in sizes if args.function else ("at_least", "split"):
        if getattr(args, name) != parser.get_default(name):
            parser.error(f"--{name.replace('_', '-')}: {'not' if args.function else 'only'} with --function")
    try:
        import torch
    except ModuleNotFoundError:
        print("attention over ranks needs PyTorch: pip install 'attnbook[torch]'", file=sys.stderr)
        return 1

    if not torch.distributed.is_available():
        print("This build of torch has no torch.distributed.", file=sys.stderr)
        return 1
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        print("--device cuda: torch sees no GPU here.", file=sys.stderr)
        return 1
    # diagnose says whom a function waits for, before the group gives up.
    with _group(torch, device, args.timeout + (60 if args.function else 0)) as (rank, ranks):
        try:
            group = torch.distributed.new_group(backend="gloo")
            right = (
                _function(rank, ranks, args, device) if args.function else _schemes(torch, rank, ranks, args, device)
            )
            sys.stdout.flush()
            torch.distributed.barrier(group)  # torchrun ends all with the first that fails
        except (RuntimeError, TypeError, ValueError, ImportError, AttributeError) as error:
            print(f"rank {rank} of {ranks}: {error}", file=sys.stderr)
            return 1
    return 0 if right else 1


def _parser() -> argparse.ArgumentParser:
    about, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        "python -m attnbook.parallel.check",
        description=re.sub(":doc:`/(.*)`", r"\1", about + "\n\n" + more).replace("``", ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], help="by default cuda where there is a GPU: then by NCCL")
    parser.add_argument(
        "--dtype",
        choices=list(MOST),
        default="float64",
        help="by default %(default)s; the table says what rounding may make of it",
    )
    parser.add_argument(
        "--rows", type=_at_least(1), help="of the whole sequence; by default 1021, which no number of ranks divides"
    )
    parser.add_argument("--heads", type=_at_least(1), default=6, help="by default %(default)s")
    parser.add_argument(
        "--key-heads", type=_at_least(1), default=2, help="of keys and values, by default %(default)s; divides --heads"
    )
    parser.add_argument("--width", type=_at_least(1), help="of queries and keys, by default 64; values have 8 more")
    parser.add_argument(
        "--timeout",
        type=_at_least(1),
        default=60,
        help="seconds for other ranks, or a case of --function; by default %(default)s",
    )
    parser.add_argument("--quick", action="store_true", help="smaller: 61 rows of width 8, where nothing else is said")
    parser.add_argument("--function", metavar="FILE:NAME", help="your own attention over ranks")
    parser.add_argument(
        "--split",
        choices=["rows", "zigzag", "heads"],
        default="rows",
        help="what a rank of --function has: one run of rows (default), pieces r and 2R - 1 - r of 2R, or some heads",
    )
    parser.add_argument(
        "--at-least",
        type=_at_least(0),
        default=0,
        metavar="N",
        help="fail where --function was compared in fewer cases",
    )
    return parser


def _at_least(least: int) -> Any:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected an integer of at least {least}, got {text!r}")
        return int(text)

    return number


@contextmanager
def _group(torch: Any, device: str, timeout: int) -> Any:
    """(rank, ranks) of torchrun's group; without it, of a group of one."""
    dist = torch.distributed
    backend = "nccl" if device == "cuda" else "gloo"
    more = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout), **more)
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        if not _left_behind():
            dist.destroy_process_group()


def _left_behind() -> bool:
    """Whether a function still runs, in a thread that cannot be ended: what it uses stays."""
    from attnbook.diagnose.ranks.group import LEFT_BEHIND

    return any(thread.name == LEFT_BEHIND for thread in threading.enumerate())


def _schemes(torch: Any, rank: int, ranks: int, args: argparse.Namespace, device: str) -> bool:
    """Print the table; whether all is right."""
    if args.heads % args.key_heads:
        raise ValueError(f"--key-heads: expected a number that divides {args.heads}, got {args.key_heads}")
    n, d = args.rows or (61 if args.quick else 1021), args.width or (8 if args.quick else 64)
    shapes = {
        "Q": (args.heads, n, d),
        "K": (args.key_heads, n, d),
        "V": (args.key_heads, n, d + 8),
        "dO": (args.heads, n, d + 8),
    }
    g = torch.Generator().manual_seed(0)  # the same numbers on every rank
    dtype = getattr(torch, args.dtype)
    whole = [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for shape in shapes.values()]
    wanted = {causal: _one_process(torch, whole, causal) for causal in CAUSAL}
    say = print if rank == 0 else lambda *_: None
    about = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    say(f"{ranks} ranks by {torch.distributed.get_backend()}, on {device}; {args.dtype}; {about}")
    say(_of_a_hop(torch, ranks, [T[:, : max(1, n // ranks)].contiguous().to(device) for T in whole[1:3]]) + "\n")
    say(LINE.format("scheme", "placement", "causal", "error", "bytes sent", "by formula", "forward", "backward", ""))
    right, most = True, MOST[args.dtype]
    for scheme, placement, causal in product(SCHEMES, get_args(Placement), CAUSAL):
        sizes = {"n_q": n, "n_k": n, "d_k": d, "d_v": d + 8, "h": args.heads, "h_kv": args.key_heads}
        formula = bytes_of(scheme, ranks=ranks, **sizes, itemsize=dtype.itemsize, placement=placement, causal=causal)
        error, sent, seconds = _call(torch, scheme, placement, causal, whole, wanted[causal], rank, ranks, device)
        found = torch.tensor([error, sent != formula[:, rank].sum(), *seconds], dtype=torch.float64, device=device)
        total = torch.tensor(sent, dtype=torch.int64, device=device)
        torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX)
        torch.distributed.all_reduce(total)
        error, other_bytes, *seconds = found.tolist()
        verdict = "WRONG" if error > most else "not as by formula" if other_bytes else ""
        right = right and not verdict
        figures = f"{error:.1e}", f"{total.item():,}", f"{formula.sum():,}", *(f"{1e3 * s:.1f} ms" for s in seconds)
        say(LINE.format(scheme, placement, CAUSAL[causal], *figures, verdict).rstrip())
    say(
        f"\n{'All right' if right else 'Something is wrong'}: {args.dtype} may be off by {most:g} of the largest entry."
    )
    return right


def _one_process(torch: Any, whole: list[Any], causal: bool) -> list[Any]:
    """O, dQ, dK, dV by torch's own attention, in float64: none of our lines."""
    *inputs, dO = (T.double() for T in whole)
    inputs = [T.requires_grad_() for T in inputs]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    O = sdpa(*(T[None] for T in inputs), is_causal=causal, enable_gqa=True)[0]
    return [O.detach(), *torch.autograd.grad(O, inputs, dO)]


def _call(
    torch: Any,
    scheme: str,
    placement: Any,
    causal: bool,
    whole: list[Any],
    wanted: list[Any],
    rank: int,
    ranks: int,
    device: str,
) -> tuple[float, int, list[float]]:
    """This rank's error, the bytes it sent, and the seconds of a second call, forward and backward."""

    def mine(T: Any, of_queries: bool) -> Any:
        return T if of_queries and scheme == "tree" else split(T, ranks, placement)[rank]

    Q, K, V, dO = (mine(T, i in (0, 3)).contiguous().to(device) for i, T in enumerate(whole))
    for _ in range(2):
        inputs = [T.detach().requires_grad_() for T in (Q, K, V)]
        torch.distributed.barrier()
        times = [_now(torch, device)]
        O = SCHEMES[scheme](*inputs, causal=causal, placement=placement)
        times.append(_now(torch, device))
        grads = torch.autograd.grad(O, inputs, dO, retain_graph=True)
        times.append(_now(torch, device))
    error = 0.0
    for T, right, of_queries in zip((O.detach(), *grads), wanted, (True, True, False, False), strict=True):
        off = (T.cpu().double() - mine(right, of_queries)).abs().nan_to_num(nan=float("inf"))
        largest = right.abs().max().item() or wanted[0].abs().max().item()  # one key: dQ and dK are 0
        error = max(error, off.max().item() / largest if off.numel() else 0.0)
    return error, O.grad_fn.call.member.sent, [b - a for a, b in pairwise(times)]


def _now(torch: Any, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _of_a_hop(torch: Any, ranks: int, block: list[Any]) -> str:
    """What it takes to hand a block of K and V on to the next rank, all at once."""
    if ranks == 1:
        return "One rank: nothing is sent. Start it by torchrun."
    dist, size = torch.distributed, sum(T.nbytes for T in block)
    rank = dist.get_rank()
    came, seconds = [T.new_empty(T.shape) for T in block], []
    for _ in range(HOPS + 1):
        dist.barrier()
        start = _now(torch, block[0].device.type)
        ops = [dist.P2POp(dist.irecv, T, (rank - 1) % ranks) for T in came]
        ops += [dist.P2POp(dist.isend, T, (rank + 1) % ranks) for T in block]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        seconds.append(_now(torch, block[0].device.type) - start)
    median = torch.tensor(sorted(seconds[1:])[HOPS // 2], dtype=torch.float64, device=block[0].device)
    dist.all_reduce(median, dist.ReduceOp.MAX)
    return f"A hop, {size:,} bytes a rank: {1e3 * median.item():.2f} ms, {size / median.item() / 1e9:.2f} GB/s."


def _function(rank: int, ranks: int, args: argparse.Namespace, device: str) -> bool:
    """Ask ``diagnose`` about the user's function; print its report; whether all is right."""
    from attnbook.diagnose import Ranks, diagnose
    from attnbook.loading import load

    report = diagnose(
        Ranks(load(args.function), args.split, ranks=ranks, backend="group"),
        library="torch",
        dtype=args.dtype,
        limit=args.timeout,
    )
    few = len(report.compared) < args.at_least
    if rank == 0:
        print(report)
        if few:
            print(f"--at-least: expected {args.at_least} cases, got {len(report.compared)}", file=sys.stderr)
    return report.ok and not few


if __name__ == "__main__":
    status = main()
    if _left_behind():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
