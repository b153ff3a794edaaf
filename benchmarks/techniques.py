"""What eight techniques that are often named for a faster backward do, each measured: see chapter 11.

    python benchmarks/techniques.py                # 2 minutes; writes results/techniques.json
    python benchmarks/techniques.py --only T3,T7

T1 products instead of loops. T2 memory used again. T3 the softmax gradient without its Jacobian. T4 heads side by side.
T5 floats of 16 bits. T6 clipping. T7 sparsity. T8 fusion. Each cell has a time, an amount of memory, or an error.
"""

import gc
import tracemalloc

import numpy as np
from common import (
    HOW,
    Record,
    chosen,
    error,
    measure,
    options,
    output_of,
    problem,
    rounded,
    table,
    tell,
    use_threads,
)
from tqdm import tqdm

import attnbook as ab
from attnbook.ops import Window


def peak_of(call):
    """The most bytes that NumPy holds during a call, above what it held before; what the call returns is counted."""
    call()
    gc.collect()
    tracemalloc.start()
    found = call()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del found
    return {"bytes": most}


def times(cells, calls, args, **about):
    """Add a cell with the time of each call, which are interleaved."""
    how = {"runs": 2, "pause": 0} if args.quick else {}
    cells += [about | {"what": name, "seconds": found} for name, found in measure(calls, **how).items()]


def amounts(cells, found, **about):
    """Add cells with bytes or errors."""
    for name, amount in found.items():
        cells.append(about | {"what": name} | {key: rounded(value) for key, value in amount.items()})


def softmax(S):
    E = np.exp(S - np.max(S, axis=-1, keepdims=True))
    return E / np.sum(E, axis=-1, keepdims=True)


def forward_backward(Q, K, V, dO):
    """The textbook's lines, and nothing of the package around them."""
    P = softmax((Q @ K.mT) * (Q.shape[-1] ** -0.5))
    dP = dO @ V.mT
    dS = P * (dP - np.sum(dP * P, axis=-1, keepdims=True)) * (Q.shape[-1] ** -0.5)
    return P @ V, dS @ K, dS.mT @ Q, P.mT @ dO


def both(Q, K, V, dO, **how):
    """Forward and backward of the package."""
    O, res = ab.attention(Q, K, V, **how)
    return O, *ab.attention_vjp(dO, res)[:3]


# --- the techniques -------------------------------------------------------------------------------------------


def t1_products(args):
    """One product for all heads, one a head, and Python loops; np.einsum; heads as a view and as a copy."""
    shape, cells = (2, 2, 8, 8) if args.quick else (4, 4, 64, 64), []
    Q, K, *_ = problem(shape, "float64")

    def loops():
        S = np.zeros((*shape[:3], shape[2]))
        q, k = Q.tolist(), K.tolist()  # lists are faster to index than arrays
        for b in range(shape[0]):
            for h in range(shape[1]):
                for i in range(shape[2]):
                    for j in range(shape[2]):
                        S[b, h, i, j] = sum(x * y for x, y in zip(q[b][h][i], k[b][h][j], strict=True))
        return S

    def a_head():
        return np.stack([np.stack([Q[b, h] @ K[b, h].T for h in range(shape[1])]) for b in range(shape[0])])

    calls = {
        "Python loops": loops,
        "np.einsum": lambda: np.einsum("bhid,bhjd->bhij", Q, K),
        "one product a head": a_head,
        "one product for all": lambda: Q @ K.mT,
    }
    same = max(error([call()], [Q @ K.mT]) for call in calls.values())
    times(cells, calls, args, shape=shape, dtype="float64", of="scores")
    amounts(cells, {"largest difference": {"error": same}}, shape=shape, dtype="float64", of="scores")

    B, H, n, d = shape = (1, 2, 8, 8) if args.quick else (8, 8, 512, 64)
    X = np.random.default_rng(0).standard_normal((B, n, H * d)).astype("float32")
    view = X.reshape(B, n, H, d).swapaxes(1, 2)  # split heads: a view, not contiguous
    copy = np.ascontiguousarray(view)
    out = np.ones((B, H, n, n), "float32")
    calls = {
        "product of heads as a view": lambda: np.matmul(view, view.mT, out=out),
        "product of heads as a copy": lambda: np.matmul(copy, copy.mT, out=out),
        "split into heads": lambda: X.reshape(B, n, H, d).swapaxes(1, 2),
        "merge the heads: a copy": lambda: copy.swapaxes(1, 2).reshape(B, n, H * d),
    }
    times(cells, calls, args, shape=shape, dtype="float32", of="heads")
    return cells


def t2_memory(args):
    """dS from dO, V and P: with a new array for each step, and written over arrays no longer needed."""
    shape, cells = (1, 1, 16, 8) if args.quick else (1, 4, 1024, 64), []
    Q, K, V, dO = problem(shape, "float32")
    P = softmax(Q @ K.mT * 0.125)

    def new():
        dP = dO @ V.mT
        weighted = dP * P
        D = np.sum(weighted, axis=-1, keepdims=True)
        centered = dP - D
        return centered * P

    def terms_freed():
        dP = dO @ V.mT
        return P * (dP - np.sum(dP * P, axis=-1, keepdims=True))

    def in_place():
        dS = dO @ V.mT
        dS -= np.vecdot(dS, P)[..., None]
        dS *= P
        return dS

    calls = {"each step a new array": new, "temporaries freed": terms_freed, "in place": in_place}
    about = {"shape": shape, "dtype": "float32", "of": "dS", "table": P.nbytes}
    times(cells, calls, args, **about)
    amounts(cells, {name: peak_of(call) for name, call in calls.items()}, **about)
    amounts(cells, {"largest difference": {"error": error([in_place()], [new()])}}, **about)
    return cells


def t3_softmax(args):
    """dS = J dP, with the Jacobian of each row, and directly."""
    n, cells = 12 if args.quick else 192, []
    rng = np.random.default_rng(0)
    P, dP = softmax(rng.standard_normal((n, n))), rng.standard_normal((n, n))

    def jacobians():
        J = P[:, :, None] * (np.eye(n) - P[:, None, :])  # J_jk = P_j (δ_jk − P_k), symmetric
        return np.matvec(J, dP)

    def direct():
        return P * (dP - np.sum(dP * P, axis=-1, keepdims=True))

    calls = {"Jacobians": jacobians, "direct": direct}
    about = {"shape": (1, 1, n, n), "dtype": "float64", "of": "dS"}
    times(cells, calls, args, **about)
    amounts(cells, {name: peak_of(call) for name, call in calls.items()}, **about)
    amounts(cells, {"largest difference": {"error": error([jacobians()], [direct()])}}, **about)
    return cells


def t4_heads(args):
    """Forward and backward of one head after the other, of all in one expression, and of heads on two threads."""
    cells = []
    for shape in [(1, 2, 8, 8)] if args.quick else [(1, 64, 4, 8), (1, 16, 64, 64), (1, 8, 512, 64)]:
        arrays = problem(shape, "float32")

        def loop(arrays=arrays):
            heads = [forward_backward(*(T[:, h] for T in arrays)) for h in range(arrays[0].shape[1])]
            return [np.stack(found, axis=1) for found in zip(*heads, strict=True)]

        calls = {"a loop over heads": loop, "all heads at once": lambda arrays=arrays: forward_backward(*arrays)}
        about = {"shape": shape, "dtype": "float32", "of": "forward and backward"}
        times(cells, calls, args, **about)
        amounts(cells, {"largest difference": {"error": error(loop(), forward_backward(*arrays))}}, **about)
    shape = (1, 4, 64, 8) if args.quick else (1, 8, 2048, 64)
    arrays = problem(shape, "float32")

    def on(threads):
        ab.set_num_threads(threads)
        return both(*arrays, method="tiled")

    calls = {f"tiled, {n} thread{'s' * (n > 1)}": lambda n=n: on(n) for n in (1, args.threads)}
    times(cells, calls, args, shape=shape, dtype="float32", of="forward and backward")
    ab.set_num_threads(args.threads)
    return cells


def t5_sixteen_bits(args):
    """Products and attention in 16 bits and in 32."""
    cells = []
    n = 16 if args.quick else 512
    A, B = (np.random.default_rng(i).standard_normal((n, n)) for i in range(2))
    calls = {}
    for dtype in ("float16", "float32"):
        a, b = A.astype(dtype), B.astype(dtype)
        calls[f"NumPy {dtype}"] = lambda a=a, b=b: a @ b
    found = {name: {"error": error([call()], [A @ B])} for name, call in calls.items()}
    try:
        import torch
    except ImportError:
        print("torch is left out of T5: it is not installed.")
    else:
        torch.set_num_threads(args.threads)
        for dtype in ("float16", "bfloat16", "float32"):
            a, b = (torch.tensor(T, dtype=getattr(torch, dtype)) for T in (A, B))
            calls[f"torch {dtype}"] = lambda a=a, b=b: a @ b
            found[f"torch {dtype}"] = {"error": error([(a @ b).double().numpy()], [A @ B])}
    about = {"shape": (1, 1, n, n), "of": "a product"}
    times(cells, calls, args, **about)
    amounts(cells, found, **about)

    shape = (1, 2, 16, 8) if args.quick else (1, 8, 512, 64)
    arrays = problem(shape, "float64")
    exact = both(*arrays)
    about = {"shape": shape, "of": "forward and backward"}
    calls, found, memory = {}, {}, {}
    for dtype in ("float16", "float32", "float64"):
        own = [T.astype(dtype) for T in arrays]
        calls[f"attnbook {dtype}"] = lambda own=own: both(*own)
        found[f"attnbook {dtype}"] = {"error": error([T.astype("float64") for T in both(*own)], exact)}
        memory[f"inputs and outputs, {dtype}"] = {"bytes": 8 * own[0].nbytes}
    times(cells, calls, args, **about)
    amounts(cells, found, **about)
    amounts(cells, memory, **about)
    return cells


def t6_clipping(args):
    """The norm of all gradients of a layer, and their scaling, beside the backward that they come from."""
    cells = []
    B, n, d, h = (2, 8, 8, 2) if args.quick else (8, 512, 512, 8)
    rng = np.random.default_rng(0)
    X, dY = (rng.standard_normal((B, n, d)).astype("float32") for _ in range(2))
    weights = [(rng.standard_normal((d, d)) * d**-0.5).astype("float32") for _ in range(4)]
    p = ab.MultiHeadParams(*weights, *(np.zeros(d, "float32") for _ in range(4)))
    _, res = ab.multi_head_attention(X, p, num_heads=h)
    grads = list(ab.multi_head_attention_vjp(dY, res).dparams)

    def norm(arrays):
        return np.sqrt(sum(np.vdot(T, T) for T in arrays))

    most = norm(grads) / 2

    def by_norm():
        factor = min(1.0, most / norm(grads))
        return [T * T.dtype.type(factor) for T in grads]

    def each_by_norm():
        return [T * T.dtype.type(min(1.0, most / len(grads) ** 0.5 / norm([T]))) for T in grads]

    def by_value():
        bound = np.float32(np.mean([np.mean(np.abs(T)) for T in grads]))
        return [np.clip(T, -bound, bound) for T in grads]

    def turned(clipped):
        inner = sum(np.vdot(A, B) for A, B in zip(clipped, grads, strict=True))
        return {"error": max(0.0, 1 - float(inner / (norm(clipped) * norm(grads))))}

    about = {"shape": (B, h, n, d // h), "dtype": "float32", "of": "gradients of a layer"}
    calls = {"the backward": lambda: ab.multi_head_attention_vjp(dY, res), "clip by the norm of all": by_norm}
    times(cells, calls, args, **about)
    clips = {"the norm of all": by_norm, "the norm of each": each_by_norm, "value": by_value}
    amounts(cells, {f"1 − cosine, clipped by {name}": turned(f()) for name, f in clips.items()}, **about)
    return cells


def t7_sparsity(args):
    """Time beside the share of scores that are allowed; and what it costs to drop weights that are only small."""
    cells = []
    *_, n, d = shape = (1, 2, 64, 8) if args.quick else (1, 2, 4096, 64)
    arrays = problem(shape, "float32")
    kinds = {"full": {}, "causal": {"causal": True}}
    for keys in (n // 4, n // 16, n // 64):
        kinds[f"window of {keys}"] = {"ops": (Window(keys - 1, 0),)}
    calls = {name: lambda how=how: both(*arrays, method="tiled", **how) for name, how in kinds.items()}
    share = {"full": 1.0, "causal": (n + 1) / (2 * n)}
    share |= {f"window of {w}": (w * (w + 1) / 2 + (n - w) * w) / n**2 for w in (n // 4, n // 16, n // 64)}
    first = len(cells)
    times(cells, calls, args, shape=shape, dtype="float32", of="forward and backward")
    for cell in cells[first:]:
        cell["allowed"] = rounded(share[cell["what"]])

    n = 16 if args.quick else 512
    for sharp in (1.0, 4.0):
        Q, K, V, dO = (T[0, 0] for T in problem((1, 1, n, d), "float64"))
        P = softmax(sharp * (Q @ K.T) * d**-0.5)
        dP = dO @ V.T
        eighth = np.sort(P, axis=-1)[:, -8, None]
        exact = P * (dP - np.sum(dP * P, axis=-1, keepdims=True))
        for name, keep in (("below 1e-3", P >= 1e-3), ("outside the largest 8", eighth <= P)):
            Pk = np.where(keep, P, 0)
            Pk /= np.maximum(np.sum(Pk, axis=-1, keepdims=True), 1e-300)
            dS = Pk * (dP - np.sum(dP * Pk, axis=-1, keepdims=True))
            off = float(np.linalg.norm(dS - exact) / np.linalg.norm(exact))
            about = {"shape": (1, 1, n, d), "dtype": "float64", "of": "dS", "sharp": sharp}
            cells.append(
                about
                | {
                    "what": f"weights {name} dropped, the rest scaled up",
                    "error": rounded(off),
                    "kept": rounded(keep.mean()),
                }
            )
    return cells


def t8_fusion(args):
    """The whole table of scores, and a tile at a time."""
    shape, cells = (1, 2, 64, 8) if args.quick else (1, 8, 1024, 64), []
    arrays = problem(shape, "float32")
    calls = {
        "the textbook's lines": lambda: forward_backward(*arrays),
        "dense": lambda: both(*arrays, method="dense"),
        "tiled": lambda: both(*arrays, method="tiled"),
    }
    about = {"shape": shape, "dtype": "float32", "of": "forward and backward"}
    times(cells, calls, args, **about)
    amounts(cells, {name: peak_of(call) for name, call in calls.items()}, **about)
    found = {name: {"error": error(call(), calls["dense"]())} for name, call in calls.items()}
    amounts(cells, {f"{name}, from dense": e for name, e in found.items() if name != "dense"}, **about)
    for name in ("dense", "tiled"):
        _, res = ab.attention(*arrays[:3], method=name)
        kept = [T for T in res if isinstance(T, np.ndarray) and not any(T is own for own in arrays)]
        amounts(cells, {f"kept by {name}, besides Q, K and V": {"bytes": sum(T.nbytes for T in kept)}}, **about)
    return cells


TECHNIQUES = {
    "T1": t1_products,
    "T2": t2_memory,
    "T3": t3_softmax,
    "T4": t4_heads,
    "T5": t5_sixteen_bits,
    "T6": t6_clipping,
    "T7": t7_sparsity,
    "T8": t8_fusion,
}


def main(argv=None):
    parser = options(__doc__)
    parser.add_argument("--only", help="T1 to T8, with commas")
    args = parser.parse_args(argv)
    use_threads(args.threads)
    record = Record(
        "eight techniques, each measured: seconds, bytes, or errors",
        output_of(args, "techniques.json", not args.only),
        threads=args.threads,
        how=HOW + "; bytes are the most that NumPy held during a call, above what it held before",
    )
    with tqdm(chosen(parser, "technique", args.only, TECHNIQUES), unit="technique") as bar:
        for name in bar:
            tell(bar, TECHNIQUES[name].__doc__)
            for cell in TECHNIQUES[name](args):
                record.add(technique=name, **cell)
    rows = []
    for cell in record.data["cells"]:
        amount = cell["seconds"]["median"] if "seconds" in cell else cell.get("bytes", cell.get("error"))
        unit = "s" if "seconds" in cell else "bytes" if "bytes" in cell else "error"
        shape = ",".join(map(str, cell["shape"]))
        rows.append(
            [f"{cell['technique']} {cell['of']}: {cell['what']}", shape, cell.get("dtype"), float(amount), unit]
        )
    table(["", "B,H,n,d", "dtype", "", ""], rows)
    record.close()


if __name__ == "__main__":
    main()
