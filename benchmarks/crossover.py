"""Where the methods cross: what "auto" should choose, by the number of scores.

    python benchmarks/crossover.py            # 3 minutes; writes results/crossover.json

On NumPy arrays "dense" and "tiled", by length and number of heads: from this follows ``DENSE_UP_TO[True]`` of
attnbook/spines/__init__.py. On torch tensors the same two, of the generic spines: from this follows
``DENSE_UP_TO[False]``, which is a matter of memory as well.
"""

import gc
import math

from common import (
    HOW,
    PAUSE,
    Record,
    cell_name,
    count,
    first_call,
    interleave,
    options,
    output_of,
    problem,
    summary,
    table,
    tell,
    use_threads,
)
from rates import scores
from tqdm import tqdm

import attnbook as ab

ON_NUMPY = [(1, h, n, 64) for n in (32, 64, 128, 256, 512) for h in (1, 4, 16)] + [(8, 8, 64, 64), (8, 8, 128, 64)]
ON_TORCH = [(1, h, n, 64) for n in (128, 512, 1024, 2048) for h in (1, 8)]
KINDS = [("float32", False), ("float32", True), ("float64", False)]
QUICK = [(1, 1, 16, 8), (1, 2, 32, 8)]
METHODS = ("dense", "tiled")


def of_method(name, Q, K, V, dO, causal):
    def call():
        O, res = ab.attention(Q, K, V, causal=causal, method=name)
        return O, *ab.attention_vjp(dO, res)[:3]

    return call


def todo(quick):
    """(library, shape, dtype, causal)"""
    if quick:
        return [(library, s, "float32", False) for library in ("numpy", "torch") for s in QUICK]
    cells = [("numpy", s, dtype, causal) for s in ON_NUMPY for dtype, causal in KINDS]
    return cells + [("torch", s, "float32", causal) for s in ON_TORCH for causal in (False, True)]


def cell_of(library, shape, dtype, causal, args):
    arrays = problem(shape, dtype)
    if library == "torch":
        import torch

        arrays = [torch.tensor(T) for T in arrays]
    calls = {name: of_method(name, *arrays, causal) for name in METHODS}
    estimates = {name: first_call(call)[1] for name, call in calls.items()}
    runs = 2 if args.quick else min(count(seconds, 3, 5, 2.0) for seconds in estimates.values())
    seconds = interleave(calls, estimates, dict.fromkeys(calls, runs), 0 if args.quick else PAUSE)
    times = {name: summary(each) for name, each in seconds.items()}
    return {"library": library, "shape": shape, "dtype": dtype, "causal": causal, "seconds": times}


def size(cell):
    return scores(cell["shape"], causal=False)  # as `pick` counts them


def ratio(cell):
    """The time of "dense", divided by that of "tiled"."""
    dense, tiled = (cell["seconds"][name]["median"] for name in METHODS)
    return dense / tiled


def best_limit(cells):
    """Up to how many scores to take "dense", and "tiled" beyond: where the geometric mean of all times is least."""
    points = [(size(cell), math.log(ratio(cell))) for cell in cells]
    loss = {limit: sum(log for n, log in points if n <= limit) for limit in {0, *(n for n, _ in points)}}
    return min(sorted(loss), key=loss.get)


def limits(cells):
    """What follows for attnbook/spines/__init__.py."""
    on_numpy, on_torch = ([c for c in cells if c["library"] == library] for library in ("numpy", "torch"))
    return {"dense up to, on NumPy": best_limit(on_numpy), "dense up to, on torch": best_limit(on_torch)}


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
    print("\nSeconds of tiled, and the median of dense divided by it")
    rows = []
    for cell in cells:
        name = f"{cell['library']} {cell_name(cell)}"
        rows.append([name, f"2^{math.log2(size(cell)):.1f}", cell["seconds"]["tiled"]["median"], ratio(cell)])
    table(["B,H,n,d", "scores", "tiled", "dense"], rows)
    record.note(limits=limits(cells))
    for what, found in record.data["limits"].items():
        print(f"{what}: {found}")
    record.close()


if __name__ == "__main__":
    main()
