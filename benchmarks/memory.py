"""Peak memory of forward and backward, and how time and memory grow with n. Each call in a process of its own; Linux.

    python benchmarks/memory.py            # 4 minutes; writes results/memory.json

The child loads its libraries, makes a small call, makes its inputs (and compiles), then has the system forget the most
memory it has held. The peak is the most that the one call then holds, above what was held when it began: the output and
the gradients count, and the inputs do not. After that, the call is timed.
"""

import ctypes
import gc
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from common import (
    PAUSE,
    Record,
    chosen,
    exponent,
    once,
    options,
    output_of,
    problem,
    rounded,
    table,
    tell,
    use_threads,
)
from contenders import CONTENDERS, ready, those_here, to_numpy
from tqdm import tqdm

GROWTH = [(1, 1, n, 64) for n in (1024, 2048, 4096, 8192)]  # of these the exponents
EIGHT_HEADS = (1, 8, 2048, 64)
IN_FULL = ("attnbook auto", "attnbook tiled", "attnbook.torch", "torch SDPA")  # in float64 and causal, too
RUNS = 3


def grid(names, quick):
    """(contender, shape, dtype, causal) of each process."""
    if quick:
        return [(name, (1, 1, n, 8), "float32", False) for name in names for n in (64, 128)]
    todo = [(name, shape, "float32", False) for shape in (*GROWTH, EIGHT_HEADS) for name in names]
    for dtype, causal in (("float32", True), ("float64", False)):
        todo += [(name, s, dtype, causal) for s in (EIGHT_HEADS, GROWTH[-1]) for name in names if name in IN_FULL]
    return todo


# --- in the child ---------------------------------------------------------------------------------------------


def child(name, shape, dtype, causal, threads):
    """Print the peak in bytes, and the median time of later calls, as JSON."""
    ready(name, *problem((1, 1, 64, 64), dtype), causal)()
    use_threads(threads)
    call = ready(name, *problem(shape, dtype), causal)
    forget()
    before = held("VmRSS")
    start = time.perf_counter()
    found = call()
    first = time.perf_counter() - start
    most = held("VmHWM")
    assert all(np.isfinite(T).all() for T in to_numpy(found))
    del found
    seconds = []
    for _ in range(RUNS if first < 3 else 1):
        time.sleep(PAUSE)
        seconds.append(once(call))
    print(json.dumps({"peak_bytes": most - before, "seconds": rounded(statistics.median(seconds))}))


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


def exponents(cells):
    """p in amount ∝ n^p of memory and time, over the full float32 cells of one head."""
    found = {}
    for name in dict.fromkeys(cell["method"] for cell in cells):
        own = [c for c in cells if c["method"] == name and c["shape"][1] == 1 and not c["causal"]]
        own = [c for c in own if c["dtype"] == "float32"]
        sizes = [c["shape"][2] for c in own]
        if len(sizes) > 1:
            amounts = {"memory": "peak_bytes", "time": "seconds"}
            found[name] = {
                what: rounded(exponent(sizes, [max(c[key], 1e-9) for c in own])) for what, key in amounts.items()
            }
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
        "most memory above the start of forward and backward, outputs included, bytes; and seconds",
        output_of(args, "memory.json", not args.contenders),
        threads=args.threads,
        exponents={},
    )
    with tqdm(grid(names, args.quick), unit="process") as bar:
        for name, shape, dtype, causal in bar:
            tell(bar, f"{name} {shape}")
            found = in_a_process(name, shape, dtype, causal, args.threads)
            record.add(shape=shape, dtype=dtype, causal=causal, method=name, **found)
    cells = record.data["cells"]
    record.note(exponents=exponents(cells))
    rows = {}
    for cell in cells:
        key = ",".join(map(str, cell["shape"])), cell["dtype"], "causal" if cell["causal"] else "full"
        rows.setdefault(key, {})[cell["method"]] = cell["peak_bytes"] / 2**20
    print("\nMiB, and the exponents of n")
    table(["B,H,n,d", "", "", *names], [[*key, *(found.get(name) for name in names)] for key, found in rows.items()])
    for what in ("memory", "time"):
        shown = (f"{name} {found[what]:.2f}" for name, found in record.data["exponents"].items())
        print(f"{what}: " + ", ".join(shown))
    record.close()
    return None


if __name__ == "__main__":
    main()
