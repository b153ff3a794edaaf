"""Time and memory of first, second and third derivatives of one head, and how they grow with n. Linux.

    python benchmarks/orders.py      # 18 minutes; writes results/orders_MAKER.json

Forward, backward, jvp, double backward and the Hessian product of ½‖O‖² in NumPy, all from residuals; and in torch,
double backward of attnbook.torch and of SDPA's own operations (its "math" backend), and a third order of both, where
tables of n × n do not grow too large. Those that are compared take turns. A peak is that of one call and of what it
needs, residuals or graph, above what was held when only the inputs were there: the median of three. ``ratios`` are
those of medians.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from common import exponent, options, table, use_threads
from memory import RUNS, forget, held
from peers import anew, started
from record import Record, output_of
from timing import HOW, HURRIED, measure, rounded

import attnbook as ab

SIZES = (512, 1024, 2048, 4096, 8192, 16384)
D = 64
MOST = {"third, attnbook.torch": 2048, "double backward, SDPA math": 4096, "third, SDPA math": 2048}  # n; then tables
GROUPS = (  # those of a group take turns
    ("forward", "backward", "jvp", "double backward", "Hessian product"),
    ("double backward, attnbook.torch", "double backward, SDPA math"),
    ("third, attnbook.torch", "third, SDPA math"),
)
OVER = {  # what each is compared with
    "backward": "forward",
    "jvp": "forward",
    "double backward": "backward",
    "Hessian product": "forward",
    "double backward, attnbook.torch": "double backward, SDPA math",
    "third, attnbook.torch": "third, SDPA math",
}


# --- in the child ---------------------------------------------------------------------------------------------


def calls(n, dtype):
    """Each order as a call, made when it is asked for."""
    rng = np.random.default_rng(0)
    Q, K, V, dO, tQ, tK, tV = (rng.standard_normal((1, 1, n, D)).astype(dtype) for _ in range(7))

    def of_residuals(f):
        O, res = ab.attention(Q, K, V, method="tiled")
        return lambda: f(O, res)

    def of_torch(attend, order):
        import torch

        leaves = [torch.from_numpy(T).requires_grad_() for T in (Q, K, V)]  # no copy: inputs are not in a peak
        along, cotangent = [torch.from_numpy(T) for T in (tQ, tK, tV)], torch.from_numpy(dO).requires_grad_()
        found = torch.autograd.grad(attend(torch)(*leaves), leaves, cotangent, create_graph=True)
        for _ in range(order - 2):
            turned = sum((dT * t).sum() for dT, t in zip(found, along, strict=True))
            found = torch.autograd.grad(turned, leaves, create_graph=True)
        return lambda: torch.autograd.grad(found, [*leaves, cotangent][: 5 - order + 1], along, retain_graph=True)

    def ours(torch):
        from attnbook.torch import attention

        return attention

    def theirs(torch):
        def attend(*tensors):
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                return torch.nn.functional.scaled_dot_product_attention(*tensors)

        return attend

    return {
        "forward": lambda: lambda: ab.attention(Q, K, V, method="tiled"),
        "backward": lambda: of_residuals(lambda O, res: ab.attention_vjp(dO, res)),
        "jvp": lambda: of_residuals(lambda O, res: ab.attention_jvp(tQ, tK, tV, res)),
        "double backward": lambda: of_residuals(lambda O, res: ab.attention_hvp(tQ, tK, tV, dO, res, with_O=True)),
        "Hessian product": lambda: of_residuals(lambda O, res: ab.attention_hvp(tQ, tK, tV, O, res, tdO=lambda t: t)),
        "double backward, attnbook.torch": lambda: of_torch(ours, 2),
        "double backward, SDPA math": lambda: of_torch(theirs, 2),
        "third, attnbook.torch": lambda: of_torch(ours, 3),
        "third, SDPA math": lambda: of_torch(theirs, 3),
    }


def ready(name, n, dtype):
    """That order's call, in a process of its own."""
    return calls(n, dtype)[name]()


def child(names, n, dtype, threads):
    """Print for each of the names the peak in bytes, from the inputs on, and its quartiles, as JSON."""
    for name in names:
        calls(64, dtype)[name]()()  # loads what it needs
    use_threads(threads)
    made, peaks = calls(n, dtype), {}
    for name in names:
        several = []
        for _ in range(RUNS):
            forget()
            before = held("VmRSS")
            made[name]()()
            several.append(held("VmHWM") - before)
        low, peak, high = map(int, np.percentile(several, (25, 50, 75)))
        peaks[name] = {"peak_bytes": peak, "low": low, "high": high}
    print(json.dumps(peaks))


# --- in the parent --------------------------------------------------------------------------------------------


def peaks_of(names, n, dtype, threads):
    """What the child printed."""
    asked = json.dumps([names, n, dtype, threads])
    done = subprocess.run(
        [sys.executable, __file__, "--child", asked], capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode:
        raise RuntimeError(f"{names}, n = {n}, {dtype} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def exponents(cells):
    """p in amount ∝ n^p of memory and time, for each order in float32."""
    found = {}
    for name in dict.fromkeys(cell["order"] for cell in cells):
        own = [c for c in cells if c["order"] == name and c["dtype"] == "float32"]
        timed = [c for c in own if c["seconds"]]
        if min(len(own), len(timed)) > 1:
            found[name] = {
                "memory": rounded(exponent([c["shape"][2] for c in own], [max(c["peak_bytes"], 1) for c in own])),
                "time": rounded(exponent([c["shape"][2] for c in timed], [c["seconds"]["median"] for c in timed])),
            }
    return found


def ratios(cells):
    """Each order's time by that of what it is compared with, of medians."""
    times = {(c["order"], c["shape"][2], c["dtype"]): c["seconds"]["median"] for c in cells if c["seconds"]}
    return [
        {"order": name, "over": over, "n": n, "dtype": dtype, "ratio": rounded(seconds / times[over, n, dtype])}
        for (name, n, dtype), seconds in times.items()
        for over in [OVER.get(name)]
        if (over, n, dtype) in times
    ]


def main(argv=None):
    parser = options(__doc__)
    parser.add_argument("--sizes", help="of n, with commas")
    parser.add_argument("--child", help="what the parent asks of a child; not for you")
    args = parser.parse_args(argv)
    if args.child:
        return child(*json.loads(args.child))
    if not Path("/proc/self/clear_refs").exists():
        parser.error("this needs Linux, which can forget the most memory that a process has held")
    sizes = (64, 128) if args.quick else tuple(map(int, args.sizes.split(","))) if args.sizes else SIZES
    record = Record(
        "time of a call of each order, seconds; and most memory above the inputs, bytes, with what it returns",
        output_of(parser, args, "orders", not args.sizes),
        threads=args.threads,
        how=f"{HOW}; peaks: each group in a process, the median of {RUNS} calls, and quartiles as low and high",
        exponents={},
        ratios=[],
    )
    todo = [(group, n, "float32") for n in sizes for group in GROUPS]
    todo += [(GROUPS[0], n, "float64") for n in sizes if n == 2048]

    def measured(one):
        group, n, dtype = one
        names = [name for name in group if n <= MOST.get(name, n)]
        if not names:
            return []
        peaks = peaks_of(names, n, dtype, args.threads)
        with started("orders", {name: (name, n, dtype) for name in names}, args.threads) as (peers, left_out):
            if left_out:
                raise SystemExit(f"n = {n}, {dtype}: {left_out}")
            record.saw(peers[names[0]].about)
            seconds, refused = measure(peers, **(HURRIED if args.quick else {"anew": anew}))
        about = {"shape": (1, 1, n, D), "dtype": dtype}
        why = {name: {"refused": refused[name]} if name in refused else {} for name in names}
        return [about | {"order": name, **peaks[name], "seconds": seconds[name]} | why[name] for name in names]

    record.over(todo, measured, args.budget, lambda one: f"{one[0][0]}, n = {one[1]}", "process")
    cells = record.data["cells"]
    record.note(exponents=exponents(cells), ratios=ratios(cells))
    table(
        ["n", "", "", "ms", "low", "high", "MiB"],
        [
            [str(c["shape"][2]), c["dtype"], c["order"]]
            + [c["seconds"] and 1e3 * c["seconds"][key] for key in ("median", "low", "high")]
            + [c["peak_bytes"] / 2**20]
            for c in cells
        ],
    )
    print()
    for name, found in record.data["exponents"].items():
        print("{}, float32: memory ∝ n^{memory:.2f}, time ∝ n^{time:.2f}".format(name, **found))
    for found in record.data["ratios"]:
        print("{order} ÷ {over}, n = {n}, {dtype}: {ratio:.2f}".format(**found))
    record.close()
    return None


if __name__ == "__main__":
    main()
