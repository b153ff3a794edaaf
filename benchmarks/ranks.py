"""A ring on several processes, against one process with as many threads; and what each rank's memory grows by.

    python benchmarks/ranks.py            # a minute, on an idle machine; prints a table

Forward and backward of shape (1, 8, n, 64), float32, by gloo on this machine; the least of so many rounds. Memory is
the peak of the process (Linux), from after the inputs are there.
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import numpy as np


def peak():
    """Peak of the resident memory in MB since the last call."""
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
    whole = [rng.standard_normal((1, 8, n, 64), dtype=np.float32) for _ in range(4)]
    *inputs, dO = (torch.tensor(split(T, ranks, placement)[r]) for T in whole)
    del whole
    for T in inputs:
        T.requires_grad_()
    took, grew = [], 0.0
    for _ in range(rounds):
        dist.barrier()
        peak()
        before, start = peak()[1], time.perf_counter()
        if ranks > 1:
            O = ring_attention(*inputs, causal=causal, placement=placement)
        else:
            O = attention(*inputs, causal=causal)
        torch.autograd.grad(O, inputs, dO)
        dist.barrier()
        took.append(time.perf_counter() - start)
        grew = peak()[0] - before  # of the last round: the first loads libraries
    answers.put((r, min(took), grew))
    dist.destroy_process_group()


def measured(ranks, threads, n, causal, rounds, placement="zigzag"):
    """Seconds, and MB a rank."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        given = (ranks, threads, f"{folder}/store", n, causal, rounds, placement, answers)
        started = [context.Process(target=rank, args=(r, *given)) for r in range(ranks)]
        for process in started:
            process.start()
        found = sorted(answers.get(timeout=150) for _ in started)
        for process in started:
            process.join()
    return max(t for _, t, _ in found), [round(grew, 1) for *_, grew in found]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small sizes: the figures mean nothing")
    args = parser.parse_args()
    if args.quick:
        args.n, args.rounds = 64, 1
    for causal in (False, True):
        one, grew = measured(1, 2, args.n, causal, args.rounds)
        two, grew_two = measured(2, 1, args.n, causal, args.rounds)
        print(f"n = {args.n}, causal {causal}: 1 process, 2 threads {one:.3f} s, {grew} MB; "
              f"ring of 2 × 1 thread {two:.3f} s, {grew_two} MB; ratio {two / one:.2f}")  # fmt: skip
    for ranks in (1, 2, 4):
        print(f"ring of {ranks}, n = {2 * args.n}, causal: {measured(ranks, 1, 2 * args.n, True, 2)[1]} MB a rank")


if __name__ == "__main__":
    main()
