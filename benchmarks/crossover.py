"""Where the methods cross: what "auto" should choose, by the number of scores.

    python benchmarks/crossover.py            # 9 minutes; writes results/crossover_MAKER.json

On NumPy arrays "dense" and "tiled", by length and number of heads: from this follows ``DENSE_UP_TO[True]`` of
attnbook/spines/__init__.py. On torch tensors the same two, of the generic spines: from this follows
``DENSE_UP_TO[False]``, which is a matter of memory as well.
"""

import importlib.util
import math

from common import cell_name, options, problem, table
from peers import anew, started
from rates import scores
from record import Record, output_of
from timing import HOW, HURRIED, measure

import attnbook as ab

ON_NUMPY = [(1, h, n, 64) for n in (32, 64, 128, 256, 512) for h in (1, 4, 16)] + [(8, 8, 64, 64), (8, 8, 128, 64)]
ON_TORCH = [(1, h, n, 64) for n in (128, 512, 1024, 2048) for h in (1, 8)]
KINDS = [("float32", False), ("float32", True), ("float64", False)]
QUICK = [(1, 1, 16, 8), (1, 2, 32, 8)]
METHODS = ("dense", "tiled")


def ready(method, library, shape, dtype, causal):
    """The call of that method, in a process of its own."""
    Q, K, V, dO = problem(shape, dtype)
    if library == "torch":
        import torch

        Q, K, V, dO = (torch.tensor(T) for T in (Q, K, V, dO))

    def call():
        O, res = ab.attention(Q, K, V, causal=causal, method=method)
        return O, *ab.attention_vjp(dO, res)[:3]

    return call


def todo(quick):
    """(library, shape, dtype, causal)"""
    if quick:
        return [(library, s, "float32", False) for library in ("numpy", "torch") for s in QUICK]
    cells = [("numpy", s, dtype, causal) for s in ON_NUMPY for dtype, causal in KINDS]
    return cells + [("torch", s, "float32", causal) for s in ON_TORCH for causal in (False, True)]


def cell_of(library, shape, dtype, causal, args, record):
    asked = {name: (name, library, shape, dtype, causal) for name in METHODS}
    with started("crossover", asked, args.threads) as (peers, left_out):
        if left_out:
            raise SystemExit(f"{library} {shape}: {left_out}")
        record.saw(peers["dense"].about)
        how = HURRIED if args.quick else {"budget": 2.0, "rounds": (5, 7), "anew": anew}
        seconds, refused = measure(peers, **how)
    about = {"library": library, "shape": shape, "dtype": dtype, "causal": causal}
    return about | {"seconds": seconds, "refused": refused}


def size(cell):
    return scores(cell["shape"], causal=False)  # as `pick` counts them


def ratio(cell):
    """The time of "dense", divided by that of "tiled"; NaN where one was refused."""
    dense, tiled = (cell["seconds"][name] for name in METHODS)
    return dense["median"] / tiled["median"] if dense and tiled else math.nan


def best_limit(cells):
    """Up to how many scores to take "dense", and "tiled" beyond: where the geometric mean of all times is least."""
    points = [(size(cell), math.log(ratio(cell))) for cell in cells if ratio(cell) > 0]  # not if refused
    loss = {limit: sum(log for n, log in points if n <= limit) for limit in {0, *(n for n, _ in points)}}
    return min(sorted(loss), key=loss.get)


def limits(cells):
    """What follows for attnbook/spines/__init__.py."""
    on_numpy, on_torch = ([c for c in cells if c["library"] == library] for library in ("numpy", "torch"))
    return {"dense up to, on NumPy": best_limit(on_numpy), "dense up to, on torch": best_limit(on_torch)}


def main(argv=None):
    parser = options(__doc__)
    args = parser.parse_args(argv)
    cells = todo(args.quick)
    if not importlib.util.find_spec("torch"):
        print("torch is left out: it is not installed.")
        cells = [cell for cell in cells if cell[0] != "torch"]
    output = output_of(parser, args, "crossover", True)
    record = Record("the methods of attnbook, forward and backward, seconds", output, threads=args.threads, how=HOW)
    name = lambda cell: f"{cell[0]} {cell[1]} {cell[2]}"  # noqa: E731
    record.over(cells, lambda cell: [cell_of(*cell, args, record)], args.budget, name)
    cells = sorted(record.data["cells"], key=lambda cell: (cell["library"], size(cell)))
    print("\nSeconds of tiled, and the median of dense divided by it; – is refused")
    rows = []
    for cell in cells:
        name, tiled = f"{cell['library']} {cell_name(cell)}", cell["seconds"]["tiled"]
        rows.append([name, f"2^{math.log2(size(cell)):.1f}", tiled and tiled["median"], ratio(cell)])
    table(["B,H,n,d", "scores", "tiled", "dense"], rows)
    record.note(limits=limits(cells))
    for what, found in record.data["limits"].items():
        print(f"{what}: {found}")
    record.close()


if __name__ == "__main__":
    main()
