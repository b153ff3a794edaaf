"""Forward and backward on a GPU: the book's lines and its fused kernel beside torch's kernels, interleaved.

    python benchmarks/gpu.py                      # 5 minutes; writes results/gpu.json
    python benchmarks/gpu.py --budget 120         # the first cells of the list; the others are named as skipped
    python benchmarks/gpu.py --quick --device cpu # a trial without a GPU

16384 tokens and 2048 columns in every cell: (B, H, n, d) with B·n = 16384 and H·d = 2048. The cells of most interest
come first (bfloat16, n ≥ 2048, d = 128; then the others at n = 4096), and each is written when it is done. What cannot
run in a cell is left out there, and the record says why; out of memory is such a reason.

Errors are relative, against float64, of the first head and the last, and are given as multiples of those of torch's
eager lines in the same dtype; the worst of the cell's own length and of one that no tile divides. FLOP/s are counted as
FlashAttention does: 4·B·H·n²·d for the forward, 2.5 times that for the backward, half of it under a causal mask.
"""

import gc
import math
import signal
import sys
import time

from common import cell_name, chosen, geometric_mean, on_gpu_or_trial, options, table, tell
from record import RESULTS, Record
from timing import rounded, summary, unsteady
from tqdm import tqdm

START = time.monotonic()
TOKENS, COLUMNS = 16384, 2048
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
WIDTHS, DTYPES, MASKS = (128, 64), ("bfloat16", "float16", "float32"), ("full", "causal")
PASSES = ("forward", "backward", "both")
SETS = 2  # of inputs, in turn
RUNS, SECONDS = (3, 9), 0.25  # a contender in a cell: at least, at most; and the time to spend on them
IN_A_TRIAL = (1, 1)
SHORT = 0.3  # seconds; a call that takes less has one before it that is not timed
COMPILING = 0.25  # of the budget: the most for contenders that are compiled again for every cell
ODD = 999  # the errors are also taken at this length, or one less than the cell's
WRONG = 30.0  # times the error of eager: no rounding
HOW = (
    "CUDA events around forward and backward of one call, begun while the GPU still waits, so that the host runs "
    "ahead; L2 emptied before each, two sets of inputs in turn; contenders interleaved; median, and quartiles as low "
    "and high; peak memory of one call, above inputs and masks"
)
BARS = (
    # what of whom, at most how much of whose, in which passes, at which width. Set by the first run, on an H200: they
    # show in a later one what has become slower.
    ("attnbook fused", 0.8, "SDPA flash", "backward", 128),
    ("attnbook fused", 1.55, "SDPA cuDNN", "backward", 128),
    ("attnbook fused", 0.75, "SDPA flash", "backward", 64),
    ("attnbook fused", 1.25, "SDPA cuDNN", "backward", 64),
    ("attnbook fused", 0.75, "SDPA flash", "forward", 128),
    ("attnbook tiled", 35.0, "fastest SDPA", "both", 128),  # 16 bits are widened: its products are of float32
    ("attnbook tiled", 10.0, "eager", "both", 128),
    ("CuPy dense", 8.0, "eager", "both", 128),  # likewise
)
ERROR_BARS = {"O": 2.0, "dQ": 3.0, "dK": 3.0, "dV": 3.0}


# --- the cells ------------------------------------------------------------------------------------------------


def grid(dtypes, widths, lengths, masks, tokens=TOKENS, columns=COLUMNS):
    """The cells, those of most interest first."""
    cells = [
        {"shape": (tokens // n, columns // d, n, d), "dtype": dtype, "causal": mask == "causal"}
        for dtype in dtypes
        for d in widths
        for n in lengths
        for mask in masks
    ]

    def interest(cell):
        *_, n, d = cell["shape"]
        most = cell["dtype"] == "bfloat16" and d == 128
        return n < 2048, not most, n != 4096, cell["dtype"] != "bfloat16", d != 128

    return sorted(cells, key=interest)


def flops(shape, causal):
    """As FlashAttention counts."""
    B, H, n, d = shape
    forward = 4 * B * H * n * n * d // (2 if causal else 1)
    return {"forward": forward, "backward": forward * 5 // 2, "both": forward * 7 // 2}


def inputs(torch, shape, dtype, device, seed):
    """Q, K, V and dO: standard normal numbers."""
    maker = torch.Generator(device).manual_seed(seed)
    return [torch.randn(shape, generator=maker, device=device, dtype=torch.float32).to(dtype) for _ in range(4)]


class Reference:
    """O, dQ, dK and dV of the first head and the last in float64, and how far eager lines in the cell's own dtype are
    from them. One head after the other: at 16384 tokens a table in float64 has 2 GB.
    """

    def __init__(self, torch, eager, given, causal):
        self.torch = torch
        heads = list(zip(*map(self._heads, given), strict=True))
        self.exact = self._all(eager, [[T.double() for T in head] for head in heads], causal)
        self.of_eager = self._errors(self._all(eager, heads, causal))

    def _heads(self, T):
        return T[:1, :1], T[-1:, -1:]

    def _all(self, eager, heads, causal):
        found = []
        for head in heads:
            contender = eager(*head, causal)
            O, memory = contender.forward()
            found.append([T.detach() for T in (O, *contender.backward(memory))])
        return list(map(self.torch.cat, zip(*found, strict=True)))

    def _errors(self, found):
        norm = self.torch.linalg.vector_norm
        pairs = zip(found, self.exact, strict=True)
        errors = [float(norm(T.double() - R) / norm(R)) for T, R in pairs]
        return dict(zip(ERROR_BARS, errors, strict=True))

    def ratios(self, found):
        """Those of ``found``, of whole arrays, as multiples."""
        errors = self._errors([self.torch.cat(self._heads(T)) for T in found])
        return {of: rounded(error / self.of_eager[of]) for of, error in errors.items()}


def cell_of(cell, names, clock, deadline, spent, bar, runs=RUNS):
    """All that is measured of one cell. ``spent`` counts the seconds that compiling took so far."""
    import torch
    from gpu_contenders import CONTENDERS, reason

    shape, dtype, causal = cell["shape"], getattr(torch, cell["dtype"]), cell["causal"]
    where = cell_name(cell)
    sets = [inputs(torch, shape, dtype, clock.device, seed) for seed in range(SETS)]
    tell(bar, f"{where}: float64")
    *_, n, d = shape
    odd = inputs(torch, (1, 2, min(ODD, n - 1), d), dtype, clock.device, SETS)
    reference, of_odd = (Reference(torch, CONTENDERS["eager"], given, causal) for given in (sets[0], odd))
    clock.forget()
    ready, estimates, errors, peaks, left_out = {}, {}, {}, {}, {}
    for name in names:
        tell(bar, f"{where}: {name}, compared")
        kind = CONTENDERS[name]
        if why := no_time(kind, deadline, spent):
            left_out[name] = why
            continue
        began = time.monotonic()
        try:
            of_sets = [kind(*given, causal) for given in sets]
            found = reference.ratios(results(of_sets[0], dtype, clock.device))
            if kind.fresh:  # the others would compile once more
                odder = of_odd.ratios(results(kind(*odd, causal), dtype, clock.device))
                found = {of: max(ratio, odder[of]) for of, ratio in found.items()}
            if not all(ratio < WRONG for ratio in found.values()):  # a NaN is not
                raise ArithmeticError(f"wrong: errors of {found}, as multiples of those of eager lines")
            clock.passes(of_sets[0].forward, of_sets[0].backward)
            estimates[name] = clock.passes(of_sets[0].forward, of_sets[0].backward)[2]
            peaks[name] = clock.peaks(of_sets[0].forward, of_sets[0].backward)
            ready[name], errors[name] = of_sets, found
        except Exception as error:  # whatever a library raises where it cannot: the others are still measured
            left_out[name] = reason(error)
        gc.collect()
        clock.forget()
        if not kind.fresh:
            spent["compiling"] += time.monotonic() - began
    seconds = interleaved(ready, estimates, clock, left_out, lambda name: tell(bar, f"{where}: {name}"), runs)
    ready.clear()
    clock.forget()
    return cell | {
        "flops": flops(shape, causal),
        "seconds": {p: {name: summary(times[p]) for name, times in seconds.items()} for p in PASSES},
        "peak_bytes": {p: {name: of[p] for name, of in peaks.items() if p in of} for p in ("forward", "both")},
        "errors": errors,
        "errors of eager": {of: rounded(error) for of, error in reference.of_eager.items()},
        "left out": left_out,
    }


def results(contender, dtype, device):
    """O, dQ, dK and dV as torch tensors."""
    O, memory = contender.forward()
    found = [contender.to_torch(T).detach() for T in (O, *contender.backward(memory))]
    if any(T.device.type != device or T.dtype != dtype for T in found):
        raise TypeError("results of another device or dtype")
    return found


def no_time(kind, deadline, spent):
    """Why a contender is not begun, or None."""
    if time.monotonic() > deadline:
        return "no time left"
    if not kind.fresh and spent["compiling"] > spent["most"]:
        return "no time left to compile it"
    return None


def interleaved(ready, estimates, clock, left_out, tell, runs):
    """Seconds of each contender and pass, taken in turns A B C A B C …; fewer runs are spread over all rounds."""
    from gpu_contenders import reason

    least, most = runs
    counts = {name: max(least, min(most, int(SECONDS / max(estimates[name], 1e-6)))) for name in ready}
    rounds = max(counts.values(), default=0)
    seconds = {name: {p: [] for p in PASSES} for name in ready}
    for place in range(rounds):
        for name in list(seconds):
            turns = {(2 * i + 1) * rounds // (2 * counts[name]) for i in range(counts[name])}
            if place not in turns:
                continue
            tell(name)
            of_set = ready[name][place % SETS]
            try:
                if estimates[name] < SHORT:
                    clock.passes(of_set.forward, of_set.backward)
                for p, found in zip(PASSES, clock.passes(of_set.forward, of_set.backward), strict=True):
                    seconds[name][p].append(found)
            except Exception as error:
                left_out[name] = reason(error)
                del seconds[name]
                clock.forget()
    return seconds


# --- what comes of it -----------------------------------------------------------------------------------------


def medians(cell, which):
    """Seconds of each contender that was steady, and of the fastest backend of SDPA."""
    found = {name: one["median"] for name, one in cell["seconds"][which].items() if not unsteady(one)}
    if of_torch := [seconds for name, seconds in found.items() if name.startswith("SDPA")]:
        found["fastest SDPA"] = min(of_torch)
    return found


def against_bars(cells):
    """For each bar: what was asked, the geometric mean and the worst ratio where both were measured, and where."""
    rows = []
    for name, most, of, which, d in BARS:
        dtype = "float16" if "CuPy" in name else "bfloat16"  # CuPy has no bfloat16
        ratios = {}
        for cell in cells:
            if cell["dtype"] == dtype and cell["shape"][2] >= 2048 and cell["shape"][3] == d:
                times = medians(cell, which)
                if name in times and of in times:
                    ratios[cell_name(cell)] = times[name] / times[of]
        worst = max(ratios, key=ratios.get, default=None)
        what = f"{name}, {which}, ÷ {of}, d {d}, {dtype}"
        rows.append([what, most, geometric_mean(ratios.values()), ratios.get(worst, math.nan), worst or "not measured"])
    for of, most in ERROR_BARS.items():
        found = {
            f"{cell_name(cell)}: {name}": errors[of]
            for cell in cells
            for name, errors in cell["errors"].items()
            if name.startswith(("attnbook", "CuPy"))
        }
        worst = max(found, key=found.get, default=None)
        mean = geometric_mean(found.values())
        rows.append([f"our error of {of} ÷ eager's", most, mean, found.get(worst, math.nan), worst or "not measured"])
    return rows


def report(data):
    print("\nTFLOP/s, forward + backward")
    names = list(dict.fromkeys(name for cell in data["cells"] for name in cell["seconds"]["both"]))
    rows = []
    for cell in data["cells"]:
        rate = cell["flops"]["both"] / 1e12
        times = medians(cell, "both")
        rows.append([cell_name(cell), *(rate / times[name] if name in times else None for name in names)])
    table(["B,H,n,d", *names], rows)
    print("\nn ≥ 2048: asked at most, geometric mean, worst, where")
    table(["", "at most", "mean", "worst", "where"], against_bars(data["cells"]))
    if data["skipped"]:
        print(f"\nNo time for {len(data['skipped'])} cells.")


def main(argv=None):
    parser = options(__doc__, threads=False, device=True)
    parser.set_defaults(budget=300.0)
    parser.add_argument("--dtypes", help=", ".join(DTYPES))
    parser.add_argument("--masks", help=", ".join(MASKS))
    parser.add_argument("--widths", help="128, 64, or both with a comma")
    parser.add_argument("--contenders", help="names with commas; all without it")
    args = parser.parse_args(argv)
    on_gpu_or_trial(parser, args)
    import torch

    run(parser, args, torch)


def run(parser, args, torch):
    from gpu_clock import OnCPU, OnGPU, rates
    from gpu_contenders import CONTENDERS, reason

    names = chosen(parser, "contender", args.contenders, CONTENDERS)
    dtypes, masks = chosen(parser, "dtype", args.dtypes, DTYPES), chosen(parser, "mask", args.masks, MASKS)
    widths = [int(d) for d in chosen(parser, "width", args.widths, [str(d) for d in WIDTHS])]
    cells = grid(dtypes, widths, LENGTHS, masks)
    if args.quick:
        cells = [c for c in grid(dtypes, (16,), (32,), masks, tokens=32, columns=16) if c["dtype"] != "bfloat16"][-2:]
        torch.set_num_threads(1)
    whole = not (args.dtypes or args.masks or args.widths or args.contenders)
    deadline = START + args.budget
    clock = OnGPU() if args.device == "cuda" else OnCPU()
    signal.signal(signal.SIGTERM, _interrupt)
    with tqdm(cells, unit="cell") as bar:
        tell(bar, "rates of products and of a copy")
        measured = [getattr(torch, dtype) for dtype in dtypes]
        record = Record(
            "forward and backward on a GPU, seconds",
            args.output or (RESULTS / "gpu.json" if whole and not args.quick else None),
            gpu=clock.about(),
            rates=rates(clock, measured, n=64 if args.quick else 8192),
            state=clock.state(),
            how=HOW,
            budget=args.budget,
            skipped=[],
        )
        spent = {"compiling": 0.0, "most": COMPILING * args.budget}
        done, stopped = 0, None
        try:
            for cell in bar:
                if time.monotonic() > deadline:
                    stopped = "the budget was spent"
                    break
                record.add(**cell_of(cell, names, clock, deadline, spent, bar, IN_A_TRIAL if args.quick else RUNS))
                done += 1
        except KeyboardInterrupt:
            stopped = "cut off"
        except Exception as error:  # after some errors a GPU answers no more; what was measured stays
            stopped = reason(error)
    if not done:
        sys.exit(f"No cell was measured: {stopped}. Nothing was written.")
    record.note(skipped=[cell_name(cell) for cell in cells[done:]], stopped=stopped, state_at_end=clock.state())
    record.note(host_late={"calls": clock.calls, "late": clock.late})
    if stopped in (None, "the budget was spent"):
        record.note(rates_at_end=rates(clock, measured, n=64 if args.quick else 8192))
    report(record.data)
    record.close()
    if stopped not in (None, "the budget was spent"):
        sys.exit(f"Not all was measured: {stopped}.")


def _interrupt(*_):
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
