"""The backward in one walk, with dQ added up by atomics, beside the two walks of the package: seconds on a GPU.

    python benchmarks/gpu_one_walk.py             # a minute; writes results/gpu_one_walk.json
    TRITON_INTERPRET=1 python benchmarks/gpu_one_walk.py --quick --device cpu  # a trial without a GPU

Five products in place of seven; in return every program adds its part of dQ to the large memory, in float32, by plain
atomics or by the copy engine of Hopper GPUs (TMA). bfloat16, 16384 tokens and 2048 columns at n = 4096. The kernel is
for this comparison alone: no mask but the causal one, no bias, one width, whole blocks. Its gradients are compared with
those of the two walks.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from common import on_gpu_or_trial, options, table
from record import RESULTS, Record
from timing import summary
from tqdm import tqdm

import attnbook as ab
from attnbook.spines.fused import backward_kernels, launch
from attnbook.spines.fused.backward_kernels import of_rows
from attnbook.spines.fused.sizes import Blocks
from attnbook.spines.fused.tile import edge, edges, load, span, store, weights

SIZES = "64x128.8.2", "64x128.8.1", "64x64.4.2", "64x64.4.1", "32x128.8.2", "32x64.4.3"
WIDTHS = 128, 64
RUNS = 9
ALLOWED = 0.01
"""How far a gradient may be from that of the two walks, as a part of its norm: they round in other places."""


@triton.jit
def walk(
    Q, K, V, dO, dK_of, dV_of, dQ_of, G_of, D_of, table, scale, rows_of_all,
    D_K: tl.constexpr, D_V: tl.constexpr, WIDE_K: tl.constexpr, WIDE_V: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EXACT: tl.constexpr, PRODUCTS: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """dK and dV of COLS keys of one head, and what these keys add to dQ."""
    blocks = tl.cdiv(table.n_k, COLS)
    head = tl.cast(tl.program_id(0) // blocks, tl.int64)
    b, h = head // table.h, head % table.h
    j0 = tl.program_id(0) % blocks * COLS
    k = load(K, b, h, j0, table.n_k, COLS, D_K, WIDE_K, True)
    v = load(V, b, h, j0, table.n_k, COLS, D_V, WIDE_V, True)
    dK = tl.zeros((COLS, WIDE_K), tl.float32)
    dV = tl.zeros((COLS, WIDE_V), tl.float32)
    to = dQ_of
    if TMA:
        to = tl.make_tensor_descriptor(dQ_of, [rows_of_all, WIDE_K], [WIDE_K, 1], [ROWS, WIDE_K])
    low = None
    if table.high is not None:
        low = -table.high
    first, inner_first, inner_last, last = span(j0, tl.minimum(j0 + COLS, table.n_k), table.n_q, low, None, ROWS)
    for i0 in tl.range(inner_first, inner_last, ROWS):
        dK, dV = one_tile(Q, k, v, dO, dK, dV, to, G_of, D_of, table, scale, head, i0, j0,
                          D_K, WIDE_K, ROWS, COLS, False, TMA)  # fmt: skip
    for t in tl.range(0, edges(first, inner_first, inner_last, last, ROWS)):
        i0 = edge(t, first, inner_first, inner_last, ROWS)
        dK, dV = one_tile(Q, k, v, dO, dK, dV, to, G_of, D_of, table, scale, head, i0, j0,
                          D_K, WIDE_K, ROWS, COLS, True, TMA)  # fmt: skip
    store(dK_of, b, h, j0, table.n_k, dK * scale, COLS, D_K, WIDE_K)
    store(dV_of, b, h, j0, table.n_k, dV, COLS, D_V, WIDE_V)


@triton.jit
def one_tile(
    Q, k, v, dO, dK, dV, to, G_of, D_of, table, scale, head, i0, j0,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    EDGE: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """dK and dV after one more tile, and its part of dQ added where the others' are."""
    b, h = head // table.h, head % table.h
    q = load(Q, b, h, i0, table.n_q, ROWS, WIDTH, WIDE, EDGE)
    do = load(dO, b, h, i0, table.n_q, ROWS, WIDTH, WIDE, EDGE)
    M, G, D = of_rows(None, G_of, D_of, head, i0, table.n_q, ROWS)
    i, j = tl.arange(0, ROWS)[None, :], tl.arange(0, COLS)[:, None]
    P, _ = weights(tl.dot(k, tl.trans(q)), M[None, :], G[None, :], table, b, h, i0, j0, i, j, EDGE, False)
    dV = tl.dot(P.to(do.dtype), do, dV)
    dS = (P * (tl.dot(v, tl.trans(do)) - D[None, :])).to(q.dtype)
    dK = tl.dot(dS, q, dK)
    dQ = tl.dot(tl.trans(dS), k) * scale
    place = head * table.n_q + i0
    if TMA:
        to.atomic_add([tl.cast(place, tl.int32), 0], dQ)
    else:
        at = (place + tl.arange(0, ROWS))[:, None] * WIDE + tl.arange(0, WIDE)[None, :]
        tl.atomic_add(to + at, dQ, sem="relaxed")
    return dK, dV


def backward(dO, res, size, tma):
    """dQ, dK and dV, launched as ``launch.vjp`` does, with one walk for its two."""
    call = launch.prepare(res.Q, res.K, res.V, res.plan)
    lead, (*_, n_q, width) = call.lead, res.Q.shape
    if n_q % size.rows:
        raise ValueError(f"res: expected a number of queries that {size.rows} divides, got {n_q}")
    D, G = (torch.empty((*lead, n_q), dtype=torch.float32, device=dO.device) for _ in "DG")
    cotangent, small = launch.rows(dO.to(call.like.dtype), lead), Blocks(64, 0, 4, 1)
    O = launch.rows(res.O.to(call.like.dtype), lead)
    shape = {"D_V": width, "WIDE_V": call.widths["WIDE_V"], "ROWS": small.rows}
    programs = launch.heads(call) * triton.cdiv(n_q, small.rows)
    launch.run(backward_kernels.row_sums, programs, small, cotangent, O, res.M.contiguous(), res.Z.contiguous(), D, G,
               call.table.h, n_q, call.table.unit, **shape)  # fmt: skip
    dQ = torch.zeros((*lead, n_q, width), dtype=torch.float32, device=dO.device)
    dK, dV = (launch.empty(tuple(T.shape), T, call) for T in (res.K, res.V))
    programs = launch.heads(call) * triton.cdiv(call.table.n_k, size.cols)
    launch.start(walk, programs, size, call, call.Q, call.K, call.V, cotangent, launch.rows(dK, lead),
                 launch.rows(dV, lead), dQ, G, D, call.table, call.scale, dQ.numel() // width, TMA=tma)  # fmt: skip
    return dQ.to(res.Q.dtype), dK, dV


def cell_of(d, causal, clock, quick):
    """The two walks, and one walk with each size of tiles, in turn."""
    tokens, columns, n = (64, d, 64) if quick else (16384, 2048, 4096)
    maker = torch.Generator(clock.device).manual_seed(0)
    shape = tokens // n, columns // d, n, d
    Q, K, V, dO = (torch.randn(shape, generator=maker, device=clock.device).bfloat16() for _ in range(4))
    _, res = ab.attention(Q, K, V, causal=causal, method="fused")
    wanted = ab.attention_vjp(dO, res)[:3]
    ready = {"two walks": lambda: ab.attention_vjp(dO, res)}
    for how in ("atomics",) if quick else ("atomics", "TMA"):  # the interpreter has no such copies
        for size in SIZES[:1] if quick else SIZES:
            tiles = Blocks(*map(int, size.replace("x", ".").split(".")))
            run = partial(backward, dO, res, tiles, how == "TMA")
            off = max(
                float((T.float() - R.float()).norm() / R.float().norm()) for T, R in zip(run(), wanted, strict=True)
            )
            if not off < ALLOWED:
                raise ArithmeticError(f"one walk, {how}, {size}: off by {off:.1e}")
            ready[f"one walk, {how}, {size}"] = run
    seconds = {name: [] for name in ready}
    for _ in range(2 if quick else RUNS):
        for name, run in ready.items():
            seconds[name].append(clock.passes(lambda: (None, None), lambda _, run=run: run())[1])
    return {"d": d, "causal": causal, "n": n, "seconds": {name: summary(times) for name, times in seconds.items()}}


def main(argv=None):
    parser = options(__doc__, threads=False, device=True)
    args = parser.parse_args(argv)
    on_gpu_or_trial(parser, args)
    if args.device == "cpu" and not launch.INTERPRETED:
        parser.error("--device cpu: set TRITON_INTERPRET=1 before")
    from gpu_clock import OnCPU, OnGPU

    clock = OnGPU() if args.device == "cuda" else OnCPU()
    triton.set_allocator(lambda size, *_: torch.empty(size, dtype=torch.int8, device=clock.device))
    record = Record(
        "the backward in one walk and in two, seconds on a GPU",
        args.output or (None if args.quick else RESULTS / "gpu_one_walk.json"),
        gpu=clock.about(),
        state=clock.state(),
        how="the calls in turn; CUDA events; L2 emptied before each; median, and quartiles as low and high",
    )
    for d, causal in tqdm([(d, causal) for d in WIDTHS for causal in (False, True)][: 2 if args.quick else None]):
        record.add(**cell_of(d, causal, clock, args.quick))
    names = record.data["cells"][0]["seconds"]
    head = [f"d {cell['d']} {'causal' if cell['causal'] else 'full'}, ms" for cell in record.data["cells"]]
    table(["", *head], [[n, *(1e3 * c["seconds"][n]["median"] for c in record.data["cells"])] for n in names])
    record.close()


if __name__ == "__main__":
    main()
