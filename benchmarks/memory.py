"""Peak memory of forward and backward, and how it grows with n. Each call in a process of its own; Linux.

    python benchmarks/memory.py            # 6 minutes; writes results/memory_MAKER.json

The child loads its libraries, makes a small call, makes its inputs (and compiles), then has the system forget the most
memory it has held. The peak is the most that the one call then holds, above what was held when it began: the output and
the gradients count, and the inputs do not. This is done three times; a peak that differs by more than a quarter is
measured again in another process, and at last refused.
"""

import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from common import chosen, exponent, options, problem, table, use_threads
from contenders import CONTENDERS, those_here, to_numpy
from record import Record, blas, output_of, versions
from timing import TRIES, rounded, summary, unsteady

GROWTH = [(1, 1, n, 64) for n in (1024, 2048, 4096, 8192)]  # of these the exponents
LONG = (1, 1, 16384, 64)  # and of this, for those that keep no table: what grows is by then more than what does not
EIGHT_HEADS = (1, 8, 2048, 64)
CONTENDERS = {name: one for name, one in CONTENDERS.items() if name not in ("torch.compile", "SDPA bfloat16")}
IN_FULL = ("attnbook auto", "attnbook tiled", "attnbook.torch", "torch SDPA")  # long, in float64, and causal, too
RUNS = 3


def grid(names, quick):
    """(contender, shape, dtype, causal) of each process."""
    if quick:
        return [(name, (1, 1, n, 8), "float32", False) for name in names for n in (64, 128)]
    todo = [(name, shape, "float32", False) for shape in (*GROWTH, EIGHT_HEADS) for name in names]
    todo += [(name, LONG, "float32", False) for name in names if name in IN_FULL]
    for dtype, causal in (("float32", True), ("float64", False)):
        todo += [(name, s, dtype, causal) for s in (EIGHT_HEADS, GROWTH[-1]) for name in names if name in IN_FULL]
    return todo


# --- in the child ---------------------------------------------------------------------------------------------


def child(name, shape, dtype, causal, threads):
    """Print the peaks of a few calls in bytes, and what is loaded, as JSON."""
    make = CONTENDERS[name][0]
    make(*problem((1, 1, 64, 64), dtype), causal)()
    use_threads(threads)
    call, peaks = make(*problem(shape, dtype), causal), []
    for _ in range(RUNS):
        forget()
        before = held("VmRSS")
        found = call()
        peaks.append(held("VmHWM") - before)
        assert all(np.isfinite(T).all() for T in to_numpy(found))
        del found
    print(json.dumps({"peaks": peaks, "about": {"versions": versions(), "blas": blas()}}))


def forget():
    """Hand freed memory back to the system, else the call could use it unseen; "the most so far" is what is left."""
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def held(what):
    """Resident memory in bytes: VmRSS now, VmHWM at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what + ":"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status does not have {what}")


# --- in the parent --------------------------------------------------------------------------------------------


def in_a_process(name, shape, dtype, causal, threads):
    """What the child printed."""
    asked = json.dumps([name, shape, dtype, causal, threads])
    done = subprocess.run(
        [sys.executable, __file__, "--child", asked], capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode:
        raise RuntimeError(f"{name} {shape} {dtype} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def peak_of(name, shape, dtype, causal, threads, record):
    """The median and quartiles of the peaks; None, and why, where they stay apart."""
    for _ in range(TRIES):
        found = in_a_process(name, shape, dtype, causal, threads)
        record.saw(found["about"])
        peaks = summary([max(1, peak) for peak in found["peaks"]])
        if not unsteady(peaks):
            return {"peak_bytes": int(peaks["median"]), "low": peaks["low"], "high": peaks["high"]}
    return {"peak_bytes": None, "refused": f"peaks from {peaks['low']:.3g} to {peaks['high']:.3g} bytes"}


def exponents(cells):
    """p in memory ∝ n^p, over the full float32 cells of one head."""
    found = {}
    for name in dict.fromkeys(cell["method"] for cell in cells):
        own = [c for c in cells if c["method"] == name and c["shape"][1] == 1 and not c["causal"]]
        own = [c for c in own if c["dtype"] == "float32" and c["peak_bytes"]]
        if len(own) > 1:
            p = exponent([c["shape"][2] for c in own], [c["peak_bytes"] for c in own])
            found[name] = {"memory": rounded(p)}
    return found


def main(argv=None):
    parser = options(__doc__)
    parser.add_argument("--contenders", help=", ".join(CONTENDERS))
    parser.add_argument("--child", help="what the parent asks of a child; not for you")
    args = parser.parse_args(argv)
    if args.child:
        return child(*json.loads(args.child))
    if not Path("/proc/self/clear_refs").exists():
        parser.error("this needs Linux, which can forget the most memory that a process has held")
    names = those_here(chosen(parser, "contender", args.contenders, CONTENDERS))
    record = Record(
        "most memory above the start of forward and backward, outputs included, bytes",
        output_of(parser, args, "memory", not args.contenders),
        threads=args.threads,
        how=f"each in a process of its own; the median of {RUNS} calls, and quartiles as low and high",
        exponents={},
    )

    def measured(one):
        about = dict(zip(("method", "shape", "dtype", "causal"), one, strict=True))
        return [about | peak_of(*one, args.threads, record)]

    todo = grid(names, args.quick)
    record.over(todo, measured, args.budget, lambda one: f"{one[0]} {one[1]}", "process")
    cells = record.data["cells"]
    record.note(exponents=exponents(cells))
    rows = {}
    for cell in cells:
        key = ",".join(map(str, cell["shape"])), cell["dtype"], "causal" if cell["causal"] else "full"
        rows.setdefault(key, {})[cell["method"]] = cell["peak_bytes"] and cell["peak_bytes"] / 2**20
    print("\nMiB, and the exponents of n; – is refused")
    table(["B,H,n,d", "", "", *names], [[*key, *(found.get(name) for name in names)] for key, found in rows.items()])
    print("memory: " + ", ".join(f"{name} {found['memory']:.2f}" for name, found in record.data["exponents"].items()))
    record.close()
    return None


if __name__ == "__main__":
    main()
