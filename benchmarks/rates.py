"""What bounds attention on this machine: the rates of products, exponentials, and memory.

    python benchmarks/rates.py            # 6 minutes; writes results/rates_MAKER.json

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
from common import options, table, use_threads
from peers import anew, started
from record import Record, output_of
from timing import HURRIED, SHORT, measure, rounded

from attnbook.spines.blas import one_blas_thread
from attnbook.spines.threads import get_num_threads
from attnbook.spines.workers import run

TILES = ((512, 256), (1024, 256), (512, 128))
"""Rows and columns of tiles of scores. The floor takes the best of them for each product."""

PRODUCTS = {  # the factors' shapes, for tiles of r × c scores and width d, and the products that are like it
    "Q Kᵀ": lambda r, c, d: ((r, d), (c, d)),  # and dO Vᵀ
    "P V": lambda r, c, d: ((r, c), (c, d)),  # and dS K
    "Pᵀ dO": lambda r, c, d: ((r, c), (r, d)),  # and dSᵀ Q
}
HOW_MANY = {"Q Kᵀ": 3, "P V": 2, "Pᵀ dO": 2}
"""Products of each kind in forward and backward."""

MEGABYTES = 512  # of each array: more than the caches hold


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


def copy(megabytes):
    T, out = (np.ones(megabytes * 2**20, np.uint8) for _ in range(2))
    return lambda: np.copyto(out, T)


def first_touch(megabytes):
    return lambda: np.empty(megabytes * 2**20, np.uint8).fill(1)


def seconds_a_call(make, threads, least=0.015, rounds=3):
    """Seconds from call to call when ``threads`` workers make the same call at once, each on its own arrays.

    The median of a few rounds of at least ``least`` seconds.
    """
    call = at_once(make, threads, least)
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        found.append((time.perf_counter() - start) / call.count)
    return float(np.median(found))


def at_once(make, threads, least=SHORT):
    """A call of ``threads`` workers at once, each making its own call so often that it takes ``least`` seconds; its
    ``count`` says how many calls that are.
    """
    if threads > get_num_threads():
        raise ValueError(f"{threads} workers at once need set_num_threads({threads})")
    calls = [make() for _ in range(threads)]
    with one_blas_thread():
        calls[0]()
        start = time.perf_counter()
        calls[0]()
        repeats = max(1, math.ceil(least / max(time.perf_counter() - start, 1e-7)))

    def all_of_them():
        together = threading.Barrier(threads)

        def work(_, call):
            together.wait()
            for _ in range(repeats):
                call()

        with one_blas_thread():
            run(work, calls)

    all_of_them.count = repeats * threads
    return all_of_them


def floor_rates(shape, dtype, threads, **how):
    """Seconds a score, all threads together: of each kind of product at its best tile, and of the faster
    of exp and exp2. Takes 0.5 s.
    """
    *_, n, d = shape
    tiles = sorted({(min(n, rows), min(n, cols)) for rows, cols in TILES[:2]})
    exponentials = (
        seconds_a_call(lambda name=name: elementwise(name, tiles[0], dtype), threads, **how) for name in ("exp", "exp2")
    )
    found = {"exponential": min(exponentials) / math.prod(tiles[0])}
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
    return scores(shape, causal) * (sum(HOW_MANY[name] * rates[name] for name in PRODUCTS) + 2 * rates["exponential"])


def ready(kind, name, tile, d, dtype, threads, least):
    """The call of that rate, in a process of its own."""
    make = {
        "product": lambda: product(name, tile, d, dtype),
        "elementwise": lambda: elementwise(name, tile, dtype),
        "memory": lambda: (copy if name == "copy" else first_touch)(d),
    }[kind]
    use_threads(threads)
    return at_once(make, threads, least)


def rate_of(kind, name, tile, d, seconds):
    """The amount a second, or seconds an amount, and its unit. ``d``: a width; of memory, the megabytes of an array."""
    if kind == "product":
        return 2 * math.prod(tile) * d / seconds / 1e9, "GFLOP/s"
    if kind == "elementwise":
        return seconds / math.prod(tile) * 1e9, "ns a number"
    return (2 if name == "copy" else 1) * d * 2**20 / seconds / 1e9, "GB/s"


def groups(megabytes=MEGABYTES):
    """What is measured in turns with one another: (threads, dtype), and (kind, name, tile, d) of each rate."""
    for threads in (1, 2):
        for dtype in ("float32", "float64"):
            todo = [("product", name, tile, d) for name in PRODUCTS for tile in TILES for d in WIDTHS]
            yield threads, dtype, todo + [("elementwise", name, TILES[0], None) for name in ("exp", "exp2", "multiply")]
        yield threads, None, [("memory", name, None, megabytes) for name in ("copy", "first touch")]


def cells_of(threads, dtype, todo, args, record):
    """The rates of one group, in turns."""
    todo = todo[::7] if args.quick else todo
    least = 1e-4 if args.quick else SHORT
    how = HURRIED if args.quick else {"rounds": (7, 9), "pause": 0.02, "anew": anew}
    asked = {i: (*one, dtype, threads, least) for i, one in enumerate(todo)}
    with started("rates", asked, threads) as (peers, left_out):
        if left_out:
            raise SystemExit(f"no rate: {left_out}")
        record.saw(peers[0].about)
        seconds, refused = measure(peers, **how)
    for i, (kind, name, tile, d) in enumerate(todo):
        cell = {"what": name, "dtype": dtype, "threads": threads}
        cell |= {"tile": tile} if tile else {}
        cell |= {"megabytes" if kind == "memory" else "d": d} if d else {}
        cell |= {"rate": None, "unit": rate_of(kind, name, tile, d, 1)[1]}
        if one := seconds[i]:
            median, *ends = (rounded(rate_of(kind, name, tile, d, one[at])[0]) for at in ("median", "low", "high"))
            cell |= {"rate": median, "low": min(ends), "high": max(ends)}
        else:
            cell |= {"refused": refused[i]}
        yield cell


WIDTHS = (64, 65)
"""Without the engine's extra column, and with it."""


def main(argv=None):
    parser = options(__doc__, threads=False)
    args = parser.parse_args(argv)
    output = output_of(parser, args, "rates", True)
    record = Record(
        "rates of products, exponentials and memory",
        output,
        threads=[1, 2],
        how="each rate in two processes of its own, one after the other, in turns with the others of its dtype; all "
        "threads together; copy counts what is read and what is written, first touch what is written; median and "
        "quartiles, null where unsteady",
        like={"Q Kᵀ": "dO Vᵀ", "P V": "dS K", "Pᵀ dO": "dSᵀ Q"},
    )
    todo = list(groups(4 if args.quick else MEGABYTES))
    name = lambda group: f"{group[1]}, {group[0]} threads"  # noqa: E731
    record.over(todo, lambda group: cells_of(*group, args, record), args.budget, name, "group")
    rows = {}
    for cell in record.data["cells"]:
        size = "×".join(map(str, [*cell.get("tile", ()), *([cell["d"]] if "d" in cell else [])]))
        shown = f"{cell['rate']:.3g} ({cell['low']:.3g}–{cell['high']:.3g})" if cell["rate"] else None
        rows.setdefault((cell["what"], size, cell["unit"]), {})[cell["dtype"], cell["threads"]] = shown
    columns = [(dtype, threads) for dtype in ("float32", "float64", None) for threads in (1, 2)]
    table(
        ["", "size", "unit", *(f"{dtype or 'bytes'} {threads}" for dtype, threads in columns)],
        [[*key, *(found.get(c) for c in columns)] for key, found in rows.items()],
    )
    record.close()


if __name__ == "__main__":
    main()
