"""Forward and backward on the CPU: ours, torch, JAX and HIPS autograd, interleaved in one process.

    python benchmarks/cpu.py                                             # 14 minutes; writes results/cpu.json
    python benchmarks/cpu.py --shapes 1,8,2048,64 --dtypes float32       # one shape; prints, and writes nothing
    python benchmarks/cpu.py --contenders "attnbook auto,torch SDPA"

Each call gives the output and the gradients of Q, K and V for a given gradient of the output. Before it is timed, its
results are compared with torch SDPA's; a contender that is wrong ends the run.
"""

import gc
import math

import numpy as np
from common import (
    HOW,
    PAUSE,
    Record,
    cell_name,
    chosen,
    count,
    error,
    first_call,
    geometric_mean,
    interleave,
    options,
    output_of,
    problem,
    rounded,
    shape_of,
    summary,
    table,
    tell,
    use_threads,
)
from contenders import CONTENDERS, MAIN, ready, those_here, to_numpy
from rates import TILES, floor, floor_rates, scores
from tqdm import tqdm

SHAPES = [(1, 1, 128, 64), (8, 8, 128, 64), (4, 8, 512, 64), (1, 8, 2048, 64), (1, 4, 4096, 64), (1, 1, 8192, 64)]
DTYPES = ("float32", "float64")
MASKS = ("full", "causal")
PEER = "torch SDPA"
WRONG = {"float32": 1e-4, "float64": 1e-10}
TOO_SLOW = 5.0  # seconds a call
# Runs of a contender in a cell: at least, at most, and seconds to spend on them.
MAIN_RUNS, OTHER_RUNS, SLOW_RUNS = (5, 9, 2.0), (3, 7, 2.0), (1, 5, 1.0)
SLOW = 2.0  # seconds a call, of another contender


def runs_of(estimates, quick):
    """How often each contender is timed; the main ones equally often."""
    if quick:
        return dict.fromkeys(estimates, 2)
    runs = {
        name: count(seconds, *(MAIN_RUNS if name in MAIN else OTHER_RUNS if seconds < SLOW else SLOW_RUNS))
        for name, seconds in estimates.items()
    }
    least = min((n for name, n in runs.items() if name in MAIN), default=None)
    return {name: least if name in MAIN else n for name, n in runs.items()}


class TooSlow:
    """Leaves a contender out where its time at the shape before says that a call takes too long."""

    def __init__(self):
        self._a_score = {}

    def why(self, name, shape, dtype, causal):
        expected = self._a_score.get((name, dtype, causal), 0) * scores(shape, causal)
        return f"a call would take about {expected:.0f} s" if expected > TOO_SLOW else None

    def saw(self, name, shape, dtype, causal, seconds):
        self._a_score[name, dtype, causal] = seconds / scores(shape, causal)


def cell_of(shape, dtype, causal, names, args, too_slow, bar):
    """All that is measured of one cell."""
    cell = {"shape": shape, "dtype": dtype, "causal": causal}
    where = cell_name(cell)
    rates = floor_rates(shape, dtype, args.threads)
    inputs = problem(shape, dtype)
    calls, estimates, errors, left_out, reference = {}, {}, {}, {}, None
    for name in sorted(names, key=lambda name: name != PEER):
        tell(bar, f"{where}: {name}, compared")
        if name != PEER and (why := too_slow.why(name, shape, dtype, causal)):
            left_out[name] = why
            continue
        call = ready(name, *inputs, causal)
        found, seconds = first_call(call)
        if seconds < 1:  # the first call also starts threads and compiles
            found, seconds = first_call(call)
        found = to_numpy(found)
        reference = reference or found
        errors[name] = rounded(error(found, reference))
        if not errors[name] < WRONG[dtype]:
            raise SystemExit(f"{name} is wrong in {where}: error {errors[name]:.1e}")
        calls[name], estimates[name] = call, seconds
        too_slow.saw(name, shape, dtype, causal, seconds)
    del found, reference
    gc.collect()
    calls = {name: calls[name] for name in names if name in calls}
    runs = runs_of({name: estimates[name] for name in calls}, args.quick)
    pause = 0 if args.quick else PAUSE
    seconds = interleave(calls, estimates, runs, pause, tell=lambda name: tell(bar, f"{where}: {name}"))
    return cell | {
        "seconds": {name: summary(times) for name, times in seconds.items()},
        "rates": rates,
        "errors": errors,
        "left out": left_out,
    }


def with_floors(cells):
    """The cells, each with the floor at the best rates of the run for tiles of that length: what slows a machine down
    for a moment, while rates are taken, must not raise the floor.
    """
    best = {}
    for cell in cells:
        of = best.setdefault(kind_of(cell), dict(cell["rates"]))
        of |= {name: min(seconds, of[name]) for name, seconds in cell["rates"].items()}
    for cell in cells:
        rates = best[kind_of(cell)]
        yield cell | {"floor": rounded(floor(cell["shape"], cell["dtype"], cell["causal"], rates=rates))}


def kind_of(cell):
    """Dtype, and the length as far as it matters for tiles."""
    return cell["dtype"], min(cell["shape"][2], max(rows for rows, _ in TILES))


def ratios(cells, name, peer=PEER):
    """Median over median, cell by cell, where both were measured."""
    found = []
    for cell in cells:
        times = cell["seconds"]
        both = name in times and peer in times
        found.append(times[name]["median"] / times[peer]["median"] if both else math.nan)
    return found


def report(cells, names):
    print(f"\nSeconds of {PEER}; the others' medians divided by it; the floor as a part of the time of tiled")
    names = [name for name in names if name != PEER]
    columns = [ratios(cells, name) for name in names]
    rows = []
    for i, cell in enumerate(cells):
        peer, tiled = (cell["seconds"].get(name, {}).get("median", math.nan) for name in (PEER, "attnbook tiled"))
        rows.append([cell_name(cell), peer, *(column[i] for column in columns), cell["floor"] / tiled])
    for dtype in dict.fromkeys(cell["dtype"] for cell in cells):
        rows.append([f"geometric mean, {dtype}", None, *(mean(cells, column, dtype) for column in columns), None])
    table(["B,H,n,d", PEER, *names, "floor ÷ tiled"], rows)
    for name, column in zip(names, columns, strict=True):
        if not np.isnan(column).all():
            worst = int(np.nanargmax(column))
            print(f"{name}: worst {column[worst]:.3g}, in {cell_name(cells[worst])}")


def mean(cells, column, dtype):
    return geometric_mean(r for r, cell in zip(column, cells, strict=True) if cell["dtype"] == dtype and r == r)


def main(argv=None):
    parser = options(__doc__)
    parser.add_argument("--shapes", type=shape_of, nargs="+", help="B,H,n,d; several with spaces between")
    parser.add_argument("--dtypes", help="float32, float64, or both with a comma")
    parser.add_argument("--masks", help="full, causal, or both with a comma")
    parser.add_argument("--contenders", help=", ".join(CONTENDERS))
    args = parser.parse_args(argv)
    dtypes, masks = chosen(parser, "dtype", args.dtypes, DTYPES), chosen(parser, "mask", args.masks, MASKS)
    shapes = args.shapes or ([(1, 2, 32, 8)] if args.quick else SHAPES)
    whole = not (args.shapes or args.dtypes or args.masks or args.contenders)
    names = those_here(chosen(parser, "contender", args.contenders, CONTENDERS))
    use_threads(args.threads)
    gc.collect()
    gc.freeze()  # the libraries' own objects need no second look
    record = Record(
        "forward and backward on the CPU, seconds", output_of(args, "cpu.json", whole), threads=args.threads, how=HOW
    )
    grid = [(shape, dtype, mask == "causal") for shape in shapes for dtype in dtypes for mask in masks]
    if args.quick:
        grid = grid[:1] + grid[-1:]
    too_slow = TooSlow()
    with tqdm(grid, unit="cell") as bar:
        for shape, dtype, causal in bar:
            record.add(**cell_of(shape, dtype, causal, names, args, too_slow, bar))
    record.note(cells=list(with_floors(record.data["cells"])))
    report(record.data["cells"], names)
    record.close()


if __name__ == "__main__":
    main()
