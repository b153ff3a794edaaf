"""A MODEL, no measurement: the cycles that the machine code of a loop may take on an H100, and TFLOP/s from them.

    python benchmarks/gpu_model.py                                    # two minutes on one core
    python benchmarks/gpu_model.py --tutorial 06-fused-attention.py   # from a file, where the network is away

Of the loop over whole tiles, as `gpu_compiled.json` has it: cycles of the matrix units, at their peak, and those of the
rest, in which instructions are issued or exponentials made, whichever takes longer; added up, as if a program waited
for its products before it went on. Memory, the ends of loops and the small kernel before the backward are left out.

One number is fitted, and nothing is held out to test it: the part of the model's speed that is reached, by what others
measured with the forward of Triton's tutorial, d 128, full, at long n. Which of its tiles their tuner took is not
published; the model's fastest is taken. Another such model, in which the programs on a multiprocessor overlap, fits the
same figures and gives a third less in the forward. So this is an order of size, no forecast.
"""

import hashlib
import itertools
import os
import statistics
import tempfile
from pathlib import Path

if __name__ == "__main__":
    os.environ.pop("TRITON_INTERPRET", None)  # before anything imports Triton

import json

import gpu_compiled
from common import options, table
from record import RESULTS, Record
from tqdm import tqdm

CAPABILITY, PROCESSORS, CLOCK = 90, 132, 1.83e9
PEAK = 4096  # floating-point operations of a multiprocessor's matrix units a cycle, in 16 bits
ISSUE, EXPONENTIALS = 4, 16  # of a multiprocessor a cycle: instructions of a warp, exponentials of a number

PUBLISHED = {"4096": 459.61, "8192": 464.42, "16384": 486.99}
"""TFLOP/s by n, batch 4, 32 heads, float16, on a Hopper GPU that is not named, by the tutorial's own benchmark:
https://github.com/facebookexperimental/triton/pull/205."""

PRODUCTS = {"forward_kernel": 2, "backward_keys": 4, "backward_queries": 3, "_attn_fwd": 2}
"""What a walk over the tiles makes for each score. What counts, by custom, is 2 in the forward, 5 in the backward."""


def of_tile(cell):
    """The cycles of one tile: of the matrix units, and of the rest."""
    rows, cols = cell["tile"]
    tensor = PRODUCTS[cell["kernel"]] * 2 * rows * cols * cell["d"] / PEAK
    issue = cell["instructions a score"] * rows * cols / 32 / ISSUE
    return {"tensor": tensor, "rest": round(max(issue, rows * cols / EXPONENTIALS), 1)}


def a_score(cell):
    """Seconds of the whole GPU."""
    rows, cols = cell["tile"]
    return sum(of_tile(cell).values()) / (rows * cols) / CLOCK / PROCESSORS


def speed(cells, products):
    """TFLOP/s, before the fit, of walks that follow each other."""
    return 1e-12 * products * 2 * cells[0]["d"] / sum(map(a_score, cells))


def fitted(modelled):
    """The part that is reached, at the median of what is published."""
    return statistics.median(PUBLISHED.values()) / modelled


def tuned(path):
    """The tutorial's forward with each of its tuner's tiles that compiles, the model's fastest first."""
    found = []
    names = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")
    for values in tqdm(list(itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4))), unit="config"):
        config = dict(zip(names, values, strict=True))
        try:
            made, constants = gpu_compiled.tutorial(path, CAPABILITY, 128, False, config, backward=False)[0]
        except StopIteration:  # the tuner leaves these out
            continue
        (cell,) = gpu_compiled.figures(made, constants)
        if "tile" in cell and cell["shared"] <= gpu_compiled.SHARED[CAPABILITY]:
            found.append({"d": 128} | cell)
    return sorted(found, key=a_score)


def main(argv=None):
    parser = options(__doc__, threads=False)
    parser.add_argument("--tutorial", type=Path, metavar="FILE", help="Triton's tutorial; fetched where none is given")
    args = parser.parse_args(argv)
    ours = [
        cell
        for cell in json.loads((RESULTS / "gpu_compiled.json").read_text(encoding="utf-8"))["cells"]
        if (cell["source"], cell["capability"], cell["dtype"]) == ("attnbook", CAPABILITY, "bfloat16")
        and not cell["causal"]
        and "tile" in cell
    ]
    gpu_compiled.compile_only()
    how = __doc__.partition("\n\n")[2].partition("\n\n")[2].strip().replace("\n", " ")
    record = Record(
        "a MODEL of the fused kernels on an H100, no measurement: TFLOP/s at long n, full, 16 bits",
        args.output or (None if args.quick else RESULTS / "gpu_model.json"),
        gpu={"name": "none: modelled, not run"},
        how=how,
        published=PUBLISHED,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = args.tutorial or gpu_compiled.fetched(folder)
        if not path:
            raise SystemExit("Without the tutorial there is nothing to fit the model to.")
        record.data["tutorial"] = hashlib.sha256(path.read_bytes()).hexdigest()
        best, *_ = tuned(path)
    part = fitted(speed([best], 2))
    record.note(part=round(part, 3))
    walks = {"forward, tutorial": ([best], 2)}
    for d in (128, 64):
        of = {cell["kernel"]: cell for cell in ours if cell["d"] == d}
        walks[f"forward, d {d}"] = [of["forward_kernel"]], 2
        walks[f"backward, d {d}"] = [of["backward_keys"], of["backward_queries"]], 5
    for name, (cells, products) in walks.items():
        loops = [{key: cell[key] for key in ("kernel", "tile", "warps", "stages")} | of_tile(cell) for cell in cells]
        record.add(name=name, **{"TFLOP/s": round(speed(cells, products) * part)}, loops=loops)
    table(["a MODEL", "TFLOP/s"], [[cell["name"], cell["TFLOP/s"]] for cell in record.data["cells"]])
    record.close()


if __name__ == "__main__":
    main()
