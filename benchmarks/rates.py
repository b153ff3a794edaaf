"""What bounds attention on this machine: the rates of products, exponentials, and memory.

    python benchmarks/rates.py            # about 40 seconds; writes results/rates.json

Products are of tiles such as the NumPy engine visits, in a core's own cache. "2 threads" are two workers, each
with a BLAS of one thread, as in the engine; "2 BLAS threads" would be another thing.

Forward and backward of n × n scores with width d are seven products of 2 n² d operations each: Q Kᵀ (twice: P is made
again), P V, Pᵀ dO, dO Vᵀ, dS K and dSᵀ Q, and two exponentials a score. Under a causal mask there are n (n + 1)/2
scores instead of n². The time of all this at the best rates measured here is the floor: it has no subtraction, no mask,
no sum, no tile that a mask's edge cuts through, and no memory to wait for.
"""

import math
import threading
import time

import numpy as np
from common import Record, options, output_of, rounded, table, use_threads
from tqdm import tqdm

from attnbook.spines.workers import get_num_threads, one_blas_thread, run

TILES = ((512, 256), (1024, 256), (512, 128))
"""Rows and columns of tiles of scores. The floor takes the best of them for each product."""

PRODUCTS = {  # the factors' shapes, for tiles of r × c scores and width d, and the products that are like it
    "Q Kᵀ": lambda r, c, d: ((r, d), (c, d)),  # and dO Vᵀ
    "P V": lambda r, c, d: ((r, c), (c, d)),  # and dS K
    "Pᵀ dO": lambda r, c, d: ((r, c), (r, d)),  # and dSᵀ Q
}
HOW_MANY = {"Q Kᵀ": 3, "P V": 2, "Pᵀ dO": 2}
"""Products of each kind in forward and backward."""

MEGABYTES = 64  # of arrays that no cache holds


def product(name, tile, d, dtype):
    """A call that makes one product on arrays of its own."""
    rng = np.random.default_rng(0)
    A, B = (rng.standard_normal(shape).astype(dtype) for shape in PRODUCTS[name](*tile, d))
    A, B = {"Q Kᵀ": (A, B.T), "P V": (A, B), "Pᵀ dO": (A.T, B)}[name]
    out = np.empty((A.shape[0], B.shape[1]), dtype)
    return lambda: np.matmul(A, B, out=out)


def elementwise(name, tile, dtype):
    T = np.random.default_rng(0).standard_normal(tile).astype(dtype)
    out = np.empty_like(T)
    if name == "multiply":
        return lambda: np.multiply(T, T, out=out)
    return lambda: getattr(np, name)(T, out=out)


def copy(dtype):
    T, out = (np.ones(MEGABYTES * 2**20 // np.dtype(dtype).itemsize, dtype) for _ in range(2))
    return lambda: np.copyto(out, T)


def first_touch(dtype):
    return lambda: np.empty(MEGABYTES * 2**20 // np.dtype(dtype).itemsize, dtype).fill(1)


def seconds_a_call(make, threads, least=0.015, rounds=3):
    """Seconds from call to call when ``threads`` workers make the same call at once, each on its own arrays.

    The median of a few rounds of at least ``least`` seconds.
    """
    if threads > get_num_threads():
        raise ValueError(f"{threads} workers at once need set_num_threads({threads})")
    calls = [make() for _ in range(threads)]
    with one_blas_thread():
        calls[0]()
        start = time.perf_counter()
        calls[0]()
        repeats = max(1, math.ceil(least / max(time.perf_counter() - start, 1e-7)))
        found = []
        for _ in range(rounds):
            together = threading.Barrier(threads)

            def work(_, call, together=together):
                together.wait()
                for _ in range(repeats):
                    call()

            start = time.perf_counter()
            run(work, calls)
            found.append((time.perf_counter() - start) / (repeats * threads))
    return float(np.median(found))


def floor_rates(shape, dtype, threads, **how):
    """Seconds a score, all threads together: of each kind of product at its best tile, and of exp2. Takes 0.5 s."""
    *_, n, d = shape
    tiles = sorted({(min(n, rows), min(n, cols)) for rows, cols in TILES[:2]})
    found = {"exp2": seconds_a_call(lambda: elementwise("exp2", tiles[0], dtype), threads, **how) / math.prod(tiles[0])}
    for name in PRODUCTS:
        found[name] = min(
            seconds_a_call(lambda name=name, tile=tile: product(name, tile, d, dtype), threads, **how) / math.prod(tile)
            for tile in tiles
        )
    return {name: rounded(seconds) for name, seconds in found.items()}


def scores(shape, causal):
    """How many scores are made: all, or those on and below the diagonal."""
    B, H, n, _ = shape
    return B * H * (n * (n + 1) // 2 if causal else n * n)


def floor(shape, dtype, causal, threads=2, rates=None):
    """The least seconds for forward and backward of that shape (B, H, n, d), at the rates measured now or given."""
    rates = rates or floor_rates(shape, dtype, threads)
    return scores(shape, causal) * (sum(HOW_MANY[name] * rates[name] for name in PRODUCTS) + 2 * rates["exp2"])


def main(argv=None):
    args = options(__doc__, threads=False).parse_args(argv)
    widths = (64, 65)  # with the engine's extra column, and without
    how = {"least": 1e-4, "rounds": 1} if args.quick else {"least": 0.05, "rounds": 7}
    todo = []
    for threads in (1, 2):
        for dtype in ("float32", "float64"):
            todo += [("product", name, tile, d, dtype, threads) for name in PRODUCTS for tile in TILES for d in widths]
            todo += [("elementwise", name, TILES[0], None, dtype, threads) for name in ("exp", "exp2", "multiply")]
            todo += [("memory", name, None, None, dtype, threads) for name in ("copy", "first touch")]
    record = Record("rates of products, exponentials and memory", output_of(args, "rates.json", True), threads=[1, 2])
    for kind, name, tile, d, dtype, threads in tqdm(todo, unit="rate"):
        use_threads(threads)
        cell = {"what": name, "dtype": dtype, "threads": threads}
        if kind == "product":
            seconds = seconds_a_call(lambda: product(name, tile, d, dtype), threads, **how)  # noqa: B023
            cell |= {"tile": tile, "d": d, "rate": 2 * math.prod(tile) * d / seconds / 1e9, "unit": "GFLOP/s"}
        elif kind == "elementwise":
            seconds = seconds_a_call(lambda: elementwise(name, tile, dtype), threads, **how)  # noqa: B023
            cell |= {"tile": tile, "rate": seconds / math.prod(tile) * 1e9, "unit": "ns a number"}
        else:
            make = copy if name == "copy" else first_touch
            seconds = seconds_a_call(lambda: make(dtype), threads, **how)  # noqa: B023
            cell |= {"rate": (2 if name == "copy" else 1) * MEGABYTES * 2**20 / seconds / 1e9, "unit": "GB/s"}
        cell["rate"] = rounded(cell["rate"])
        record.add(**cell)
    record.note(
        how="all threads together; copy counts what is read and what is written, first touch what is written",
        like={"Q Kᵀ": "dO Vᵀ", "P V": "dS K", "Pᵀ dO": "dSᵀ Q"},
    )
    rows = {}
    for cell in record.data["cells"]:
        size = "×".join(map(str, [*cell.get("tile", ()), *([cell["d"]] if "d" in cell else [])]))
        rows.setdefault((cell["what"], size, cell["unit"]), {})[cell["dtype"], cell["threads"]] = cell["rate"]
    columns = [(dtype, threads) for dtype in ("float32", "float64") for threads in (1, 2)]
    table(
        ["", "size", "unit", *(f"{dtype} {threads}" for dtype, threads in columns)],
        [[*key, *(found[c] for c in columns)] for key, found in rows.items()],
    )
    record.close()


if __name__ == "__main__":
    main()
