"""Forward and backward on the CPU: ours, torch, JAX and HIPS autograd, in turns.

    python benchmarks/cpu.py                                             # 75 minutes; writes results/cpu_MAKER.json
    python benchmarks/cpu.py --shapes 1,8,2048,64 --dtypes float32       # one shape; prints, and writes nothing
    python benchmarks/cpu.py --contenders "attnbook auto,torch SDPA"

Each call gives the output and the gradients of Q, K and V for a given gradient of the output. Before it is timed, its
results are compared with torch SDPA's; a contender that is wrong ends the run.
"""

import math
import tempfile
from pathlib import Path

import numpy as np
from common import cell_name, chosen, error, geometric_mean, options, shape_of, table, use_threads
from contenders import CONTENDERS, ONLY, those_here
from peers import anew, started
from rates import TILES, floor, floor_rates, scores
from record import Record, output_of
from timing import HOW, HURRIED, measure, rounded

SHAPES = [(1, 1, 128, 64), (8, 8, 128, 64), (4, 8, 512, 64), (1, 8, 2048, 64), (1, 4, 4096, 64), (1, 1, 8192, 64)]
DTYPES = ("float32", "float64")
MASKS = ("full", "causal")
PEER = "torch SDPA"
WRONG = {"float32": 1e-4, "float64": 1e-10}
BFLOAT16_WRONG = 0.05
TOO_SLOW = 2.5  # seconds a call


class TooSlow:
    """Leaves a contender out where its time at the shape before says that a call takes too long."""

    def __init__(self):
        self._a_score = {}

    def why(self, name, shape, dtype, causal):
        expected = self._a_score.get((name, dtype, causal), 0) * scores(shape, causal)
        return f"a call would take about {expected:.1g} s" if expected > TOO_SLOW else None

    def saw(self, name, shape, dtype, causal, seconds):
        self._a_score[name, dtype, causal] = seconds / scores(shape, causal)


def cell_of(shape, dtype, causal, names, args, too_slow, record):
    """All that is measured of one cell."""
    cell = {"shape": shape, "dtype": dtype, "causal": causal}
    rates = floor_rates(shape, dtype, args.threads)
    slow = {name: too_slow.why(name, shape, dtype, causal) for name in names if name != PEER}
    slow = {name: why for name, why in slow.items() if why}
    asked = {
        name: (name, shape, dtype, causal) for name in names if name not in slow and ONLY.get(name, dtype) == dtype
    }
    with started("contenders", asked, args.threads) as (peers, left_out):
        for peer in peers.values():
            record.saw(peer.about)
        errors = compared(peers, dtype, cell_name(cell))
        how = HURRIED if args.quick else {"anew": anew}
        seconds, refused = measure(peers, **how)
    for name, one in seconds.items():
        if one:
            too_slow.saw(name, shape, dtype, causal, one["median"])
    return cell | {
        "seconds": seconds,
        "refused": refused,
        "rates": rates,
        "errors": errors,
        "left out": slow | left_out,
    }


def compared(peers, dtype, where):
    """The largest difference of each from SDPA's results; from ours, where SDPA is not among them."""
    errors, reference = {}, None
    with tempfile.TemporaryDirectory() as folder:
        for name in sorted(peers, key=lambda name: name != PEER):
            found = peers[name].save(Path(folder, "found.npz"))
            reference = reference or found
            errors[name] = rounded(error(found, reference))
            if not errors[name] < (BFLOAT16_WRONG if "bfloat16" in name else WRONG[dtype]):
                raise SystemExit(f"{name} is wrong in {where}: error {errors[name]:.1e}")
    return errors


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
    """Median over median, cell by cell, where both were measured, and neither refused."""
    found = []
    for cell in cells:
        ours, others = (cell["seconds"].get(which) for which in (name, peer))
        found.append(ours["median"] / others["median"] if ours and others else math.nan)
    return found


def spreads(cells, name, peer=PEER):
    """As ratios: the least and the largest that the quartiles allow."""
    found = []
    for cell in cells:
        ours, others = (cell["seconds"].get(which) for which in (name, peer))
        both = ours and others
        found.append((ours["low"] / others["high"], ours["high"] / others["low"]) if both else (math.nan,) * 2)
    return found


def report(cells, names, peer=PEER):
    print(f"\nSeconds of {peer}; the others' medians divided by it, and what the quartiles allow; – is refused")
    names = [name for name in names if name != peer]
    columns = [ratios(cells, name, peer) for name in names]
    around = [spreads(cells, name, peer) for name in names]
    rows = []
    for i, cell in enumerate(cells):
        seconds = (cell["seconds"].get(peer) or {}).get("median", math.nan)
        shown = [with_spread(*each) for each in ((c[i], *a[i]) for c, a in zip(columns, around, strict=True))]
        rows.append([cell_name(cell), seconds, *shown])
    for dtype in dict.fromkeys(cell["dtype"] for cell in cells):
        rows.append([f"geometric mean, {dtype}", None, *(mean(cells, column, dtype) for column in columns)])
    table(["B,H,n,d", peer, *names], rows)
    for name, column in zip(names, columns, strict=True):
        if not np.isnan(column).all():
            worst = int(np.nanargmax(column))
            print(f"{name}: worst {column[worst]:.3g}, in {cell_name(cells[worst])}")


def with_spread(ratio, low, high):
    return f"{ratio:.2f} ({low:.2f}–{high:.2f})" if ratio == ratio else math.nan


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
    output = output_of(parser, args, "cpu", whole)
    names = those_here(chosen(parser, "contender", args.contenders, CONTENDERS))
    if args.quick and not args.contenders:
        names = [name for name in names if name != "torch.compile"]  # it takes its time at any size
    use_threads(args.threads)  # of the rates for the floor
    record = Record("forward and backward on the CPU, seconds", output, threads=args.threads, how=HOW)
    grid = [(shape, dtype, mask == "causal") for shape in shapes for dtype in dtypes for mask in masks]
    if args.quick:
        grid = grid[:1] + grid[-1:]
    too_slow = TooSlow()
    record.over(grid, lambda cell: [cell_of(*cell, names, args, too_slow, record)], args.budget, name_of)
    record.note(cells=list(with_floors(record.data["cells"])))
    report(record.data["cells"], names)
    record.close()


def name_of(cell):
    return cell_name(dict(zip(("shape", "dtype", "causal"), cell, strict=True)))


if __name__ == "__main__":
    main()
