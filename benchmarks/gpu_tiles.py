"""Sizes of the fused kernels' tiles, timed on a GPU: those of ``attnbook.spines.fused.sizes`` beside others.

    python benchmarks/gpu_tiles.py                # two minutes; writes results/gpu_tiles.json
    python benchmarks/gpu_tiles.py --dtypes float32 --masks full --budget 60  # what is compiled by then
    python benchmarks/gpu_tiles.py --quick --device cpu  # a trial without a GPU

One kernel's tiles are changed at a time, the others stay: the forward's time tells of the forward, that of the backward
of the two walks. 16384 tokens and 2048 columns, as in gpu.py. Each size is compiled by one of several processes first.
"""

import contextlib
import gc
import multiprocessing
import os
import time

from common import chosen, on_gpu_or_trial, options, table, tell
from record import RESULTS, Record
from timing import summary
from tqdm import tqdm

START = time.monotonic()
RUNS = 9
COMPILING = 0.6  # of the budget, at most
WALKS = "forward", "keys", "queries"
TRIED = {
    # rows × columns, warps, stages; beside those in use
    ("bfloat16", 128): {
        "forward": "128x128.8.3 128x64.8.3 128x64.8.4 128x32.4.4 64x64.4.2 64x64.4.4 64x32.4.3 64x32.4.4 64x128.8.3",
        "keys": "64x128.8.3 64x128.8.2 64x64.4.2 64x64.4.1 32x128.8.3 32x64.4.2 32x64.4.4 32x32.4.3 16x64.4.3",
        "queries": "64x64.4.2 64x64.4.1 64x32.4.2 64x32.4.3 64x32.4.4 128x32.4.3 128x128.8.2 64x16.4.3",
    },
    ("bfloat16", 64): {
        "forward": "128x64.4.2 128x64.4.3 128x64.4.4 128x64.8.3 64x128.4.3 128x128.8.3 64x64.4.2 64x64.4.4 64x32.4.4",
        "keys": "64x64.4.2 64x64.4.4 32x128.4.3 64x128.8.3 128x128.8.3 32x64.4.3 32x64.4.4 64x32.4.3",
        "queries": "128x64.8.3 64x128.4.3 64x64.4.2 64x64.4.4 64x32.4.3 64x32.4.4 128x32.4.3 128x128.8.3",
    },
    ("float32", 128): {
        "forward": "64x32.8.1 32x32.8.1 32x32.4.1 32x128.8.1 32x64.4.1",
        "keys": "32x32.8.1 32x64.8.1 64x32.8.1 16x64.4.1",
        "queries": "32x32.8.1 64x32.8.1 32x64.8.1 64x16.4.1",
    },
    ("float32", 64): {
        "forward": "64x32.8.1 32x64.8.1 32x64.4.1 64x64.8.1",
        "keys": "32x32.8.1 32x64.8.1 32x64.4.1 64x64.8.1",
        "queries": "32x32.8.1 64x32.8.1 32x64.8.1 64x32.4.1",
    },
}
LENGTH, MASKS = {"bfloat16": 4096, "float32": 1024}, ("full", "causal")


def blocks(text):
    """Blocks from "128x64.8.3"."""
    from attnbook.spines.fused.sizes import Blocks

    return Blocks(*map(int, text.replace("x", ".").split(".")))


def written(size):
    return f"{size.rows}x{size.cols}.{size.warps}.{size.stages}"


def in_use(dtype, d):
    """The tiles that are taken without asking."""
    from attnbook.spines.fused.sizes import ROOM, tiles

    return tiles(4 if dtype == "float32" else 2, (d, d), False, ROOM)


def cases(quick, dtypes=tuple(LENGTH), masks=MASKS):
    """(dtype, d, causal, kernel, tiles): that in use, and each tried one."""
    for (dtype, d), tried in TRIED.items():
        if dtype not in dtypes:
            continue
        used = in_use(dtype, d)
        for causal in (mask == "causal" for mask in masks):
            for walk in WALKS:
                for size in dict.fromkeys([written(getattr(used, walk)), *tried[walk].split()][: 2 if quick else None]):
                    yield dtype, d, causal, walk, used._replace(**{walk: blocks(size)})


class Call:
    """A forward and a backward with these tiles, as gpu_clock times them."""

    def __init__(self, case, device, quick):
        import torch

        from attnbook.spines import Way

        dtype, d, self.causal, _, tiles = case
        n, tokens, columns = (64, 64, d) if quick else (LENGTH[dtype], 16384, 2048)
        maker = torch.Generator(device).manual_seed(0)
        shape = (tokens // n, columns // d, n, d)
        self.given = [
            torch.randn(shape, generator=maker, device=device).to(getattr(torch, dtype)) for _ in range(4)
        ]  # fmt: skip
        self.way = Way("fused", tiles)

    def forward(self):
        import attnbook as ab

        return ab.attention(*self.given[:3], causal=self.causal, method=self.way)

    def backward(self, memory):
        import attnbook as ab

        return ab.attention_vjp(self.given[3], memory)[:3]


def compile_one(case, device, quick):
    """In another process: what Triton makes stays in its cache. Why it cannot, or None."""
    try:
        call = Call(case, device, quick)
        memory = call.forward()[1]
        if case[3] != "forward":
            call.backward(memory)
        if device == "cuda":
            import torch

            torch.cuda.synchronize()
    except Exception as error:  # of the compiler: the others are still timed
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}"
    return None


def compile_all(todo, device, quick, deadline):
    """For each case whose tiles were compiled in time, why they cannot run, or None."""
    processes = max(1, min(14, len(os.sched_getaffinity(0)) - 2))
    if device == "cpu":
        return dict.fromkeys(range(len(todo)))
    said = {}
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        waiting = [pool.apply_async(compile_one, (case, device, quick)) for case in todo]
        with tqdm(waiting, unit="size", desc="compiling") as bar:
            for place, one in enumerate(bar):
                with contextlib.suppress(multiprocessing.TimeoutError):
                    said[place] = one.get(max(0.01, deadline - time.monotonic()))
        pool.terminate()
    return said


def used_and_best(taken, places, todo):
    """The size in use and the fastest, each with its milliseconds."""
    medians = {size: 1e3 * one["median"] for size, one in taken.items()}
    first = todo[places[0]]
    used = written(getattr(first[4], first[3]))
    best = min(medians, key=medians.get, default="–")
    return [used, medians.get(used), best, medians.get(best)]


def main(argv=None):
    parser = options(__doc__, threads=False, device=True)
    parser.set_defaults(budget=120.0)
    parser.add_argument("--dtypes", help=", ".join(LENGTH))
    parser.add_argument("--masks", help=", ".join(MASKS))
    args = parser.parse_args(argv)
    asked = chosen(parser, "dtype", args.dtypes, LENGTH), chosen(parser, "mask", args.masks, MASKS)
    on_gpu_or_trial(parser, args)
    from gpu_clock import OnCPU, OnGPU

    todo = list(cases(args.quick, *asked))
    todo = todo[:2] if args.quick else todo
    said = compile_all(todo, args.device, args.quick, START + COMPILING * args.budget)
    clock = OnGPU() if args.device == "cuda" else OnCPU()
    record = Record(
        "sizes of tiles on a GPU, seconds of the pass that each is in",
        args.output or (None if args.quick else RESULTS / "gpu_tiles.json"),
        gpu=clock.about(),
        state=clock.state(),
        how=__doc__.rpartition("\n\n")[2].strip().replace("\n", " "),
    )
    groups = {}
    for place, case in enumerate(todo):
        groups.setdefault(case[:4], []).append(place)
    rows = []
    with tqdm(groups.items(), unit="kernel") as bar:
        for (dtype, d, causal, walk), places in bar:
            if time.monotonic() > START + args.budget:
                break
            tell(bar, f"{walk} {dtype} d {d}")
            ready, seconds, cannot = {}, {}, {}
            for place in places:
                size = written(getattr(todo[place][4], walk))
                if place not in said or said[place]:
                    cannot[size] = said.get(place, "not compiled in time")
                    continue
                ready[size] = Call(todo[place], clock.device, args.quick)
                seconds[size] = []
            backward = (lambda _: lambda memory: None) if walk == "forward" else (lambda call: call.backward)
            for _ in range(2 if args.quick else RUNS):
                for size, call in ready.items():
                    seconds[size].append(clock.passes(call.forward, backward(call))[walk != "forward"])
            taken = {size: summary(times[1:]) for size, times in seconds.items()}
            record.add(dtype=dtype, d=d, causal=causal, kernel=walk, n=LENGTH[dtype], seconds=taken, cannot=cannot)
            rows.append([f"{walk} {dtype} d {d} {'causal' if causal else 'full'}", *used_and_best(taken, places, todo)])
            ready.clear()
            gc.collect()
            clock.forget()
    table(["", "in use", "ms", "fastest", "ms"], rows)
    record.close()


if __name__ == "__main__":
    main()
