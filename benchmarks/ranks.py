"""A ring on several processes, against one process with as many threads; and what each rank's memory grows by.

    python benchmarks/ranks.py            # a minute, on an idle machine; prints a table

Forward and backward of shape (1, 8, n, 64), float32, by gloo on this machine. Time is the median of the rounds, with
its quartiles. Memory is the peak of the process (Linux) above what it was before the rank's share of the inputs was
there, in one round: freed blocks are given back at once for it, so it counts what is held and not what was once held.
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import numpy as np


def peak():
    """Peak of the resident memory in MB since the last call, and what it is now."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    found = {line.split(":")[0]: int(line.split()[1]) for line in status.splitlines() if line.startswith("Vm")}
    return found["VmHWM"] / 1024, found["VmRSS"] / 1024


def rank(r, ranks, threads, store, n, causal, rounds, placement, answers):
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo"}
    import torch
    import torch.distributed as dist

    from attnbook.parallel import ring_attention, split
    from attnbook.torch import attention

    torch.set_num_threads(threads)
    dist.init_process_group("gloo", f"file://{store}", rank=r, world_size=ranks)
    rng = np.random.default_rng(0)

    def share(rows):
        whole = (rng.standard_normal((1, 8, rows, 64), dtype=np.float32) for _ in range(4))
        return [torch.tensor(split(T, ranks, placement)[r]).requires_grad_() for T in whole]

    def once(*inputs, dO):
        dist.barrier()
        start = time.perf_counter()
        if ranks > 1:
            O = ring_attention(*inputs, causal=causal, placement=placement)
        else:
            O = attention(*inputs, causal=causal)
        gradients = torch.autograd.grad(O, inputs, dO)
        dist.barrier()
        return time.perf_counter() - start, gradients

    *inputs, dO = share(16 * ranks)
    once(*inputs, dO=dO)  # the first call loads libraries
    before = peak()[1]
    *inputs, dO = share(n)
    peak()
    took = [once(*inputs, dO=dO)[0] for _ in range(rounds)]
    answers.put((r, took, peak()[0] - before))
    dist.destroy_process_group()


def measured(ranks, threads, n, causal, rounds, placement="zigzag", *, exact_memory=False):
    """Quartiles of the seconds of a round, of the slowest rank in each; and MB a rank."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    if exact_memory:  # glibc's: larger blocks come from the system and go back to it
        os.environ |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    with tempfile.TemporaryDirectory() as folder:
        given = (ranks, threads, f"{folder}/store", n, causal, rounds, placement, answers)
        started = [context.Process(target=rank, args=(r, *given)) for r in range(ranks)]
        for process in started:
            process.start()
        found = sorted(answers.get(timeout=150) for _ in started)
        for process in started:
            process.join()
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX"):
        os.environ.pop(name, None)
    slowest = np.max([took for _, took, _ in found], axis=0)
    return np.percentile(slowest, (25, 50, 75)), [round(grew, 1) for *_, grew in found]


def _said(quartiles):
    low, median, high = quartiles
    return f"{median:.3f} ({low:.3f}–{high:.3f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="small sizes: the figures mean nothing")
    args = parser.parse_args()
    if args.quick:
        args.n, args.rounds = 64, 1
    for causal in (False, True):
        one, _ = measured(1, 2, args.n, causal, args.rounds)
        two, _ = measured(2, 1, args.n, causal, args.rounds)
        print(f"n = {args.n}, causal {causal}: one process, 2 threads {_said(one)} s; ring of 2 × 1 thread "
              f"{_said(two)} s; ratio {two[1] / one[1]:.2f}")  # fmt: skip
    for ranks in (1, 2, 4, 8):
        for placement in ("zigzag", "contiguous") if ranks > 1 else ("contiguous",):
            grew = measured(ranks, 1, 2 * args.n, True, 1, placement, exact_memory=True)[1]
            print(f"{ranks} ranks, {placement}, n = {2 * args.n}, causal: {max(grew)} MB a rank at most, {grew}")


if __name__ == "__main__":
    main()
