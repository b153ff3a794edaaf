"""A MODEL, no measurement: the cycles that the machine code of a loop may take on an H100, and TFLOP/s from them.

    python benchmarks/gpu_model.py                                    # two minutes on one core
    python benchmarks/gpu_model.py --tutorial 06-fused-attention.py   # from a file, where the network is away

Of the loop over whole tiles, as `gpu_compiled.json` has it: cycles of the matrix units, at their peak, and cycles in
which instructions are issued, added up. For a program that is alone on its multiprocessor waits for its products before
it goes on; that two programs may fill each other's waits is left out.

One number is fitted: the part of the model's speed that is reached, by what others measured with the forward of
Triton's tutorial, d 128, full, at long n. Of its tiles those count for which the model is fastest, as its tuner takes
those that are.
"""

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
ISSUE = 4  # instructions of a multiprocessor a cycle

PUBLISHED = {
    "https://github.com/facebookexperimental/triton/pull/205": {"4096": 459.61, "8192": 464.42, "16384": 486.99},
    "https://github.com/meta-pytorch/tritonbench/issues/141": {"8192": 469.11},
}
"""TFLOP/s by n, float16: 4 × 32 heads on a Hopper GPU, by the tutorial's own benchmark; 8 × 16 heads on an H100."""

PRODUCTS = {"forward_kernel": 2, "backward_keys": 4, "backward_queries": 3, "_attn_fwd": 2}
"""What a walk over the tiles makes for each score. What counts, by custom, is 2 in the forward, 5 in the backward."""


def of_tile(cell):
    """The cycles of one tile: of the matrix units, and of issuing."""
    rows, cols = cell["tile"]
    tensor = PRODUCTS[cell["kernel"]] * 2 * rows * cols * cell["d"] / PEAK
    return {"tensor": tensor, "issue": round(cell["instructions a score"] * rows * cols / 32 / ISSUE, 1)}


def a_score(cell):
    """Seconds of the whole GPU."""
    rows, cols = cell["tile"]
    return sum(of_tile(cell).values()) / (rows * cols) / CLOCK / PROCESSORS


def speed(cells, products):
    """TFLOP/s, before the fit, of walks that follow each other."""
    return 1e-12 * products * 2 * cells[0]["d"] / sum(map(a_score, cells))


def fitted(modelled):
    """The part that is reached, at the median of what is published, and its ends."""
    parts = sorted(measured / modelled for by_length in PUBLISHED.values() for measured in by_length.values())
    return {"median": statistics.median(parts), "low": parts[0], "high": parts[-1]}


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
        best, *_ = tuned(path)
    part = fitted(speed([best], 2))
    record.note(part=part)
    walks = {"forward, tutorial": ([best], 2)}
    for d in (128, 64):
        of = {cell["kernel"]: cell for cell in ours if cell["d"] == d}
        walks[f"forward, d {d}"] = [of["forward_kernel"]], 2
        walks[f"backward, d {d}"] = [of["backward_keys"], of["backward_queries"]], 5
    for name, (cells, products) in walks.items():
        modelled = {end: round(speed(cells, products) * share) for end, share in part.items()}
        loops = [{key: cell[key] for key in ("kernel", "tile", "warps", "stages")} | of_tile(cell) for cell in cells]
        record.add(name=name, **{"TFLOP/s": modelled}, loops=loops)
    head = ["name", "median", "low", "high"]
    table(head, [[cell["name"], *(cell["TFLOP/s"][end] for end in head[1:])] for cell in record.data["cells"]])
    record.close()


if __name__ == "__main__":
    main()
