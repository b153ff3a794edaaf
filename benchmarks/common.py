"""What the benchmarks share: options, inputs, interleaved timing, the record, and tables.

How a time is taken. All contenders of a cell live in one process and take turns, A B C A B C …, so that a machine that
slows down slows them all. Before each turn there is a pause, in which the threads of the one before stop spinning, then
one call that is not timed, then the call that is. Calls shorter than 20 ms are timed several at once, and those of
0.3 s or more go without the untimed call. The record has the median and the quartiles.
"""

import argparse
import json
import math
import os
import platform
import sys
import time
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results"
PAUSE = 0.2  # seconds; the threads of OpenBLAS were seen to spin for 100 ms after their work, OpenMP's for less
SHORT, LONG = 0.02, 0.3  # seconds
HOW = (
    "interleaved in one process; before each timed call a pause of 0.2 s and, for calls under 0.3 s, one untimed call; "
    "calls under 20 ms: mean of several; median, and quartiles as low and high"
)


# --- options --------------------------------------------------------------------------------------------------


def options(doc, threads=True):
    """A parser with what every script understands. ``doc`` is the script's own docstring."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run? The figures mean nothing")
    parser.add_argument("--output", type=Path, help="the file to write; results/ of a whole run, none of a part")
    if threads:
        parser.add_argument("--threads", type=int, default=2, help="for NumPy, attnbook and torch (default 2)")
    return parser


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


# --- time -----------------------------------------------------------------------------------------------------


def first_call(call):
    """What a call returns, and an estimate of its time, from above."""
    start = time.perf_counter()
    found = call()
    seconds = time.perf_counter() - start
    if seconds < LONG:
        seconds = min(seconds, once(call))
    return found, seconds


def once(call, repeats=1):
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def interleave(calls, estimates, runs, pause=PAUSE, tell=lambda name: None):
    """Time the calls in turn: the seconds of each, ``runs[name]`` of them. Fewer runs are spread over all rounds."""
    rounds = max(runs.values())
    when = {name: {(2 * i + 1) * rounds // (2 * n) for i in range(n)} for name, n in runs.items()}
    seconds = {name: [] for name in calls}
    for place in range(rounds):
        for name, call in calls.items():
            if place not in when[name]:
                continue
            tell(name)
            time.sleep(pause)
            if estimates[name] < LONG:
                call()
            seconds[name].append(once(call, max(1, math.ceil(SHORT / max(estimates[name], 1e-7)))))
    return seconds


def measure(calls, runs=7, most=4.0, pause=PAUSE):
    """Time a few calls, interleaved: ``runs`` of each, or as many as fit into ``most`` seconds, at least 3."""
    estimates = {name: first_call(call)[1] for name, call in calls.items()}
    counts = {name: count(estimates[name], 3, runs, most) for name in calls}
    return {name: summary(ts) for name, ts in interleave(calls, estimates, counts, pause).items()}


def count(seconds, least, most, budget):
    """How many runs of a call fit into ``budget`` seconds, between ``least`` and ``most``."""
    cost = seconds * (2 if seconds < LONG else 1) + PAUSE
    return max(least, min(most, int(budget / cost)))


def summary(seconds):
    low, median, high = (rounded(np.percentile(seconds, p)) for p in (25, 50, 75))
    return {"median": median, "low": low, "high": high, "runs": len(seconds)}


def rounded(x):
    """Five digits: what is measured here is not known better."""
    return float(f"{x:.5g}")


# --- figures made of measured ones ----------------------------------------------------------------------------


def geometric_mean(ratios):
    ratios = list(ratios)
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def exponent(sizes, amounts):
    """p in amount ∝ size^p: the slope of the line through the points in log-log, by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(amounts), 1)[0])


# --- the record -----------------------------------------------------------------------------------------------


class Record:
    """The results of one command. It grows in ``PATH.partial``, and becomes PATH in one step at the end."""

    def __init__(self, what, output, **more):
        self.path = output
        self.data = {
            "what": what,
            "command": command(),
            "date": date.today().isoformat(),
            "machine": machine(),
            "versions": {},
            **more,
            "cells": [],
        }

    def add(self, **cell):
        self.data["cells"].append(cell)
        self._write()

    def note(self, **more):
        self.data |= more
        self._write()

    def close(self):
        self._write()
        if self.path:
            self._partial.replace(self.path)
            print(f"Written: {self.path.name}")
        else:
            print("Not written: a part of the whole. --output FILE writes it.")

    def _write(self):
        self.data["versions"] = versions()
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            head = {name: value for name, value in self.data.items() if name != "cells"}
            lines = [json.dumps(head, ensure_ascii=False, indent=1)[:-2] + ',\n "cells": [']
            lines += [",\n".join("  " + json.dumps(cell, ensure_ascii=False) for cell in self.data["cells"])]
            self._partial.write_text("\n".join(lines) + "\n ]\n}\n", encoding="utf-8")

    @property
    def _partial(self):
        return self.path.with_name(self.path.name + ".partial")


def output_of(args, name, whole):
    """Where to write: as asked; else the recorded file, if the run is the whole one."""
    return args.output or (RESULTS / name if whole and not args.quick else None)


def command():
    """The command, with file names for paths: whose folders they were in is nobody's business."""
    words = [Path(word).name if os.sep in word else word for word in sys.argv[1:]]
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])


def machine():
    return {"cpu": _cpu(), "cores": os.cpu_count(), "memory": _memory(), "NumPy's BLAS": _blas()}


def _blas():
    """NumPy's BLAS, and for which kind of processor its kernels are."""
    from threadpoolctl import threadpool_info

    names = {"openblas": "OpenBLAS", "mkl": "MKL", "blis": "BLIS"}
    for found in threadpool_info():  # NumPy is loaded first, and so stands first
        if found["user_api"] == "blas":
            kernels = f", kernels {found['architecture']}" if "architecture" in found else ""
            return f"{names.get(found['internal_api'], found['internal_api'])} {found['version']}{kernels}"
    return "unknown"


def _cpu():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    found = dict(reversed([[part.strip() for part in line.split(":", 1)] for line in lines if ":" in line]))
    wide = next(
        (name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in found.get("flags", "")), ""
    )
    return ", ".join(filter(None, (found.get("model name", platform.machine()), wide)))


def _memory():
    try:
        return f"{round(os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30)} GiB"
    except (ValueError, OSError, AttributeError):
        return "unknown"


def versions():
    """Of Python and of the libraries that are loaded."""
    found = {"python": platform.python_version()}
    for name in ("attnbook", "numpy", "torch", "triton", "cupy", "jax", "jaxlib", "autograd", "threadpoolctl"):
        if name in sys.modules:
            try:
                found[name] = version(name).split("+")[0]
            except PackageNotFoundError:  # not installed by that name, as CuPy, or not at all
                found[name] = getattr(sys.modules[name], "__version__", "unknown")
    return found


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
