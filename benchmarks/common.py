"""What the scripts share besides their clock, peers and record: options, inputs, comparisons, and tables."""

import argparse
import math
import os
import sys
from pathlib import Path

import numpy as np

# --- options --------------------------------------------------------------------------------------------------


def options(doc, threads=True, device=False):
    """A parser with what every script understands. ``doc`` is the script's own docstring."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run? The figures mean nothing")
    parser.add_argument("--budget", type=float, help="seconds after which no other cell is begun; what is done is kept")
    parser.add_argument("--output", type=Path, help="the file to write; results/ of a whole run, none of a part")
    parser.add_argument("--replace", action="store_true", help="a file in results/ of another machine, too")
    if threads:
        parser.add_argument("--threads", type=int, default=2, help="for NumPy, attnbook and torch (default 2)")
    if device:
        parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: for a trial, with --quick")
    return parser


def on_gpu_or_trial(parser, args):
    """End with a line where there is no GPU to measure on; ``--device cpu`` is for trials, by Triton's interpreter."""
    if args.device == "cpu":
        if not args.quick:
            parser.error("--device cpu is for trials: add --quick")
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported
        return
    import torch

    if not torch.cuda.is_available():
        sys.exit(f"No GPU here: {Path(sys.argv[0]).name} measures on one. Nothing was written.")


def chosen(parser, kind, asked, known):
    """Those of ``known`` whose names are in the comma-separated ``asked``; all without it."""
    if asked is None:
        return list(known)
    names = [name.strip() for name in asked.split(",")]
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no {kind} named {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def shape_of(text):
    """(B, H, n, d) from "1,8,2048,64"."""
    shape = tuple(int(n) for n in text.split(","))
    if len(shape) != 4 or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"expected four positive numbers B,H,n,d, got {text}")
    return shape


def use_threads(n):
    """Let NumPy, attnbook and, where it is loaded, torch use ``n`` threads. JAX uses the cores that it finds."""
    from threadpoolctl import threadpool_limits

    import attnbook as ab

    ab.set_num_threads(n)
    threadpool_limits(n, "blas")
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(n)


# --- inputs and comparisons -----------------------------------------------------------------------------------


def problem(shape, dtype, seed=0):
    """Q, K, V and the gradient dO that arrives at the output: standard normal numbers."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for _ in range(4)]


def error(found, reference):
    """The largest difference in any of the arrays, as a part of that array's largest number."""
    return max(
        float(np.max(np.abs(T - R)) / np.max(np.abs(R))) if np.isfinite(T).all() else math.inf
        for T, R in zip(found, reference, strict=True)
    )


# --- figures made of measured ones ----------------------------------------------------------------------------


def geometric_mean(ratios):
    ratios = list(ratios)
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def exponent(sizes, amounts):
    """p in amount ∝ size^p: the slope of the line through the points in log-log, by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(amounts), 1)[0])


# --- tables ---------------------------------------------------------------------------------------------------


def table(head, rows):
    """Print rows of words and numbers under ``head``, in columns."""
    rows = [[_word(entry) for entry in row] for row in [head, *rows]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *others = row
        print(
            "  ".join([first.ljust(widths[0]), *(w.rjust(n) for w, n in zip(others, widths[1:], strict=True))]).rstrip()
        )


def _word(entry):
    if entry is None or (isinstance(entry, float) and math.isnan(entry)):
        return "–"
    return f"{entry:.3g}" if isinstance(entry, float) else str(entry)


def tell(bar, text):
    """Say on the progress bar what is being done; in a log, only where the bar comes anyway."""
    bar.set_postfix_str(text, refresh=sys.stderr.isatty())


def cell_name(cell):
    return f"{','.join(map(str, cell['shape']))} {cell['dtype']} {'causal' if cell['causal'] else 'full'}"
