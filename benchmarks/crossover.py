"""Where the methods cross: what "auto" should choose, by the number of scores.

    python benchmarks/crossover.py            # 3 minutes; writes results/crossover.json

On NumPy "dense", "tiled", and "tiled" that keeps its exponentials ("kept"), by length and number of heads: from this
follow ``DENSE_UP_TO[True]`` and ``KEEP_BYTES`` of attnbook/spines/__init__.py. On torch tensors "dense" and "tiled" of
the generic spines: from this follows ``DENSE_UP_TO[False]``, which is a matter of memory as well.
"""

import gc
import math
from contextlib import contextmanager

import numpy as np
from common import (
    HOW,
    PAUSE,
    Record,
    cell_name,
    count,
    first_call,
    geometric_mean,
    interleave,
    options,
    output_of,
    problem,
    rounded,
    summary,
    table,
    tell,
    use_threads,
)
from rates import scores
from tqdm import tqdm

import attnbook as ab
from attnbook import spines

SMALL = [(1, h, n, 64) for n in (32, 64, 128, 256, 512) for h in (1, 4, 16)] + [(8, 8, 64, 64), (8, 8, 128, 64)]
LARGE = [(1, 2, 2048, 64), (1, 8, 2048, 64), (1, 4, 4096, 64), (1, 8, 4096, 64)]  # 32 to 512 MiB of float32 scores
ON_TORCH = [(1, h, n, 64) for n in (128, 512, 1024, 2048) for h in (1, 8)]
KINDS = [("float32", False), ("float32", True), ("float64", False)]
QUICK = [(1, 1, 16, 8), (1, 2, 32, 8)]


@contextmanager
def auto_keeps():
    """While it lasts, "auto" is "tiled" that keeps its exponentials, whatever the size."""
    was = spines.DENSE_UP_TO, spines.KEEP_BYTES
    spines.DENSE_UP_TO, spines.KEEP_BYTES = {True: 0, False: 0}, 2**62
    try:
        yield
    finally:
        spines.DENSE_UP_TO, spines.KEEP_BYTES = was


def of_method(name, Q, K, V, dO, causal):
    def plain(method=name):
        O, res = ab.attention(Q, K, V, causal=causal, method=method)
        return O, *ab.attention_vjp(dO, res)[:3]

    def kept():
        with auto_keeps():
            return plain("auto")

    return kept if name == "kept" else plain


def todo(quick):
    """(library, shape, dtype, causal, methods)"""
    every = ("dense", "tiled", "kept")
    cells = [("numpy", s, dtype, c, every) for s in SMALL for dtype, c in KINDS]
    cells += [("numpy", s, "float32", c, every[1:]) for s in LARGE for c in (False, True)]
    cells += [("torch", s, "float32", c, every[:2]) for s in ON_TORCH for c in (False, True)]
    if quick:
        cells = [
            (lib, s, "float32", False, every if lib == "numpy" else every[:2])
            for lib in ("numpy", "torch")
            for s in QUICK
        ]
    return cells


def cell_of(library, shape, dtype, causal, methods, args):
    arrays = problem(shape, dtype)
    if library == "torch":
        import torch

        arrays = [torch.tensor(T) for T in arrays]
    calls = {name: of_method(name, *arrays, causal) for name in methods}
    estimates = {name: first_call(call)[1] for name, call in calls.items()}
    runs = 2 if args.quick else min(count(seconds, 3, 5, 2.0) for seconds in estimates.values())
    seconds = interleave(calls, estimates, dict.fromkeys(calls, runs), 0 if args.quick else PAUSE)
    times = {name: summary(each) for name, each in seconds.items()}
    return {"library": library, "shape": shape, "dtype": dtype, "causal": causal, "seconds": times}


def size(cell):
    return scores(cell["shape"], causal=False)  # as `pick` counts them


def ratio(cell, name, other):
    times = cell["seconds"]
    return times[name]["median"] / times[other]["median"] if name in times and other in times else None


def best_limit(cells, below, above):
    """Up to how many scores to take ``below``, and ``above`` beyond: where the geometric mean of all times is least."""
    points = [(size(cell), ratio(cell, below, above)) for cell in cells]
    points = [(n, math.log(r)) for n, r in points if r]
    loss = {limit: sum(log for n, log in points if n <= limit) for limit in {0, *(n for n, _ in points)}}
    return min(sorted(loss), key=loss.get)


def limits(cells):
    """What follows for attnbook/spines/__init__.py."""
    on_numpy, on_torch = ([c for c in cells if c["library"] == library] for library in ("numpy", "torch"))
    by_bytes = {}
    for cell in on_numpy:
        by_bytes.setdefault(size(cell) * np.dtype(cell["dtype"]).itemsize, []).append(ratio(cell, "kept", "tiled"))
    return {
        "dense up to, on NumPy": best_limit(on_numpy, "dense", "kept"),
        "dense up to, on torch": best_limit(on_torch, "dense", "tiled"),
        "kept ÷ tiled, by bytes kept": {n: rounded(geometric_mean(by_bytes[n])) for n in sorted(by_bytes)},
    }


def main(argv=None):
    args = options(__doc__).parse_args(argv)
    cells = todo(args.quick)
    try:
        import torch  # noqa: F401
    except ImportError:
        print("torch is left out: it is not installed.")
        cells = [cell for cell in cells if cell[0] != "torch"]
    use_threads(args.threads)
    gc.collect()
    gc.freeze()
    record = Record(
        "the methods of attnbook, forward and backward, seconds",
        output_of(args, "crossover.json", True),
        threads=args.threads,
        how=HOW,
    )
    with tqdm(cells, unit="cell") as bar:
        for cell in bar:
            tell(bar, f"{cell[0]} {cell[1]}")
            record.add(**cell_of(*cell, args))
    cells = sorted(record.data["cells"], key=lambda cell: (cell["library"], size(cell)))
    print("\nSeconds of tiled, and the others' medians divided by it")
    rows = []
    for cell in cells:
        others = (ratio(cell, name, "tiled") for name in ("dense", "kept"))
        name = f"{cell['library']} {cell_name(cell)}"
        rows.append([name, f"2^{math.log2(size(cell)):.1f}", cell["seconds"]["tiled"]["median"], *others])
    table(["B,H,n,d", "scores", "tiled", "dense", "kept"], rows)
    record.note(limits=limits(cells))
    for what, found in record.data["limits"].items():
        print(f"{what}: {found}")
    record.close()


if __name__ == "__main__":
    main()
