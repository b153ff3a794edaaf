"""What eight techniques that are often named for a faster backward do, each measured: see chapter 11.

    python benchmarks/techniques.py                # 5 minutes; writes results/techniques_MAKER.json
    python benchmarks/techniques.py --only T3,T7

T1 products instead of loops. T2 memory used again. T3 the softmax gradient without its Jacobian. T4 heads side by side.
T5 floats of 16 bits. T6 clipping. T7 sparsity. T8 fusion. Each cell has a time, an amount of memory, or an error.
"""

import gc
import importlib.util
import tracemalloc
from typing import Any, NamedTuple

import numpy as np
from common import chosen, error, options, problem, table, use_threads
from peers import anew, started
from record import Record, output_of
from timing import HOW, HURRIED, measure, rounded

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


class Times(NamedTuple):
    """Calls to be timed in turns, each in a process of its own; what is known of them; what is added to each cell."""

    calls: dict
    about: dict
    more: Any = None


class Amounts(NamedTuple):
    """``found()``: bytes or errors, by name."""

    found: Any
    about: dict


def difference(calls, of):
    """The largest of all from what that one gives."""
    found = {name: call() for name, call in calls.items()}
    found = {name: T if isinstance(T, (list, tuple)) else [T] for name, T in found.items()}
    return {"largest difference": {"error": max(error(each, found[of]) for each in found.values())}}


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
    shape = (2, 2, 8, 8) if args.quick else (4, 4, 64, 64)
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
    about = {"shape": shape, "dtype": "float64", "of": "scores"}
    yield Times(calls, about)
    yield Amounts(lambda: difference(calls, "one product for all"), about)

    B, H, n, d = shape = (1, 2, 8, 8) if args.quick else (8, 8, 512, 64)
    X, X2 = (np.random.default_rng(i).standard_normal((B, n, H * d)).astype("float32") for i in range(2))
    views = [T.reshape(B, n, H, d).swapaxes(1, 2) for T in (X, X2)]  # split heads: views, not contiguous
    copies = [np.ascontiguousarray(view) for view in views]
    out = np.ones((B, H, n, n), "float32")
    calls = {  # of two arrays: BLAS has a way of its own for an array and its transpose
        "product of heads as views": lambda: np.matmul(views[0], views[1].mT, out=out),
        "product of heads as copies": lambda: np.matmul(copies[0], copies[1].mT, out=out),
        "split into heads": lambda: X.reshape(B, n, H, d).swapaxes(1, 2),
        "merge the heads: a copy": lambda: copies[0].swapaxes(1, 2).reshape(B, n, H * d),
    }
    yield Times(calls, {"shape": shape, "dtype": "float32", "of": "heads"})


def t2_memory(args):
    """dS from dO, V and P: with a new array for each step, and written over arrays no longer needed."""
    shape = (1, 1, 16, 8) if args.quick else (1, 4, 1024, 64)
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
    yield Times(calls, about)
    yield Amounts(lambda: {name: peak_of(call) for name, call in calls.items()}, about)
    yield Amounts(lambda: difference(calls, "each step a new array"), about)


def t3_softmax(args):
    """dS = J dP, with the Jacobian of each row, and directly."""
    n = 12 if args.quick else 192
    rng = np.random.default_rng(0)
    P, dP = softmax(rng.standard_normal((n, n))), rng.standard_normal((n, n))

    def jacobians():
        J = P[:, :, None] * (np.eye(n) - P[:, None, :])  # J_jk = P_j (δ_jk − P_k), symmetric
        return np.matvec(J, dP)

    def direct():
        return P * (dP - np.sum(dP * P, axis=-1, keepdims=True))

    calls = {"Jacobians": jacobians, "direct": direct}
    about = {"shape": (1, 1, n, n), "dtype": "float64", "of": "dS"}
    yield Times(calls, about)
    yield Amounts(lambda: {name: peak_of(call) for name, call in calls.items()}, about)
    yield Amounts(lambda: difference(calls, "direct"), about)


def t4_heads(args):
    """Forward and backward of one head after the other, of all in one expression, and of heads on two threads."""
    for shape in [(1, 2, 8, 8)] if args.quick else [(1, 64, 4, 8), (1, 16, 64, 64), (1, 8, 512, 64)]:
        arrays = problem(shape, "float32")

        def loop(arrays=arrays):
            heads = [forward_backward(*(T[:, h] for T in arrays)) for h in range(arrays[0].shape[1])]
            return [np.stack(found, axis=1) for found in zip(*heads, strict=True)]

        calls = {"a loop over heads": loop, "all heads at once": lambda arrays=arrays: forward_backward(*arrays)}
        about = {"shape": shape, "dtype": "float32", "of": "forward and backward"}
        yield Times(calls, about)
        yield Amounts(lambda calls=calls: difference(calls, "all heads at once"), about)
    shape = (1, 4, 64, 8) if args.quick else (1, 8, 2048, 64)
    arrays = problem(shape, "float32")

    def on(threads):
        ab.set_num_threads(threads)
        return both(*arrays, method="tiled")

    calls = {f"tiled, {n} thread{'s' * (n > 1)}": lambda n=n: on(n) for n in (1, args.threads)}
    yield Times(calls, {"shape": shape, "dtype": "float32", "of": "forward and backward"})


def t5_sixteen_bits(args):
    """Products and attention in 16 bits and in 32."""
    n = 16 if args.quick else 512
    A, B = (np.random.default_rng(i).standard_normal((n, n)) for i in range(2))
    calls = {}
    for dtype in ("float16", "float32"):
        a, b = A.astype(dtype), B.astype(dtype)
        calls[f"NumPy {dtype}"] = lambda a=a, b=b: a @ b
    if importlib.util.find_spec("torch"):
        import torch

        for dtype in ("float16", "bfloat16", "float32"):
            a, b = (torch.tensor(T, dtype=getattr(torch, dtype)) for T in (A, B))
            calls[f"torch {dtype}"] = lambda a=a, b=b: a @ b
    else:
        print("torch is left out of T5: it is not installed.")

    def off(T):
        return {"error": error([np.asarray(T.double() if hasattr(T, "double") else T)], [A @ B])}

    about = {"shape": (1, 1, n, n), "of": "a product"}
    yield Times(calls, about)
    yield Amounts(lambda calls=calls: {name: off(call()) for name, call in calls.items()}, about)

    shape = (1, 2, 16, 8) if args.quick else (1, 8, 512, 64)
    arrays = problem(shape, "float64")
    about = {"shape": shape, "of": "forward and backward"}
    calls, memory = {}, {}
    for dtype in ("float16", "float32", "float64"):
        own = [T.astype(dtype) for T in arrays]
        calls[f"attnbook {dtype}"] = lambda own=own: both(*own)
        memory[f"inputs and outputs, {dtype}"] = {"bytes": 8 * own[0].nbytes}

    def far():
        exact = both(*arrays)
        wide = {name: [T.astype("float64") for T in call()] for name, call in calls.items()}
        return {name: {"error": error(found, exact)} for name, found in wide.items()}

    yield Times(calls, about)
    yield Amounts(far, about)
    yield Amounts(lambda: memory, about)


def t6_clipping(args):
    """The norm of all gradients of a layer, and their scaling, beside the backward that they come from."""
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
    yield Times(calls, about)
    clips = {"the norm of all": by_norm, "the norm of each": each_by_norm, "value": by_value}
    yield Amounts(lambda: {f"1 − cosine, clipped by {name}": turned(f()) for name, f in clips.items()}, about)


def t7_sparsity(args):
    """Time beside the share of scores that are allowed; and what it costs to drop weights that are only small."""
    *_, n, d = shape = (1, 2, 64, 8) if args.quick else (1, 2, 4096, 64)
    arrays = problem(shape, "float32")
    kinds = {"full": {}, "causal": {"causal": True}}
    for keys in (n // 4, n // 16, n // 64):
        kinds[f"window of {keys}"] = {"ops": (Window(keys - 1, 0),)}
    calls = {name: lambda how=how: both(*arrays, method="tiled", **how) for name, how in kinds.items()}
    share = {"full": 1.0, "causal": (n + 1) / (2 * n)}
    share |= {f"window of {w}": (w * (w + 1) / 2 + (n - w) * w) / n**2 for w in (n // 4, n // 16, n // 64)}
    about = {"shape": shape, "dtype": "float32", "of": "forward and backward"}
    yield Times(calls, about, {name: {"allowed": rounded(part)} for name, part in share.items()})

    n = 16 if args.quick else 512

    def dropped(sharp):
        Q, K, V, dO = (T[0, 0] for T in problem((1, 1, n, d), "float64"))
        P = softmax(sharp * (Q @ K.T) * d**-0.5)
        dP = dO @ V.T
        eighth = np.sort(P, axis=-1)[:, -8, None]
        exact = P * (dP - np.sum(dP * P, axis=-1, keepdims=True))
        found = {}
        for name, keep in (("below 1e-3", P >= 1e-3), ("outside the largest 8", eighth <= P)):
            Pk = np.where(keep, P, 0)
            Pk /= np.maximum(np.sum(Pk, axis=-1, keepdims=True), 1e-300)
            dS = Pk * (dP - np.sum(dP * Pk, axis=-1, keepdims=True))
            off = float(np.linalg.norm(dS - exact) / np.linalg.norm(exact))
            found[f"weights {name} dropped, the rest scaled up"] = {"error": off, "kept": keep.mean()}
        return found

    for sharp in (1.0, 4.0):
        about = {"shape": (1, 1, n, d), "dtype": "float64", "of": "dS", "sharp": sharp}
        yield Amounts(lambda sharp=sharp: dropped(sharp), about)


def t8_fusion(args):
    """The whole table of scores, and a tile at a time."""
    shape = (1, 2, 64, 8) if args.quick else (1, 8, 1024, 64)
    arrays = problem(shape, "float32")
    calls = {
        "the textbook's lines": lambda: forward_backward(*arrays),
        "dense": lambda: both(*arrays, method="dense"),
        "tiled": lambda: both(*arrays, method="tiled"),
    }
    about = {"shape": shape, "dtype": "float32", "of": "forward and backward"}
    yield Times(calls, about)
    yield Amounts(lambda: {name: peak_of(call) for name, call in calls.items()}, about)

    def from_dense():
        found = {name: {"error": error(call(), calls["dense"]())} for name, call in calls.items()}
        return {f"{name}, from dense": off for name, off in found.items() if name != "dense"}

    def kept():
        for name in ("dense", "tiled"):
            _, res = ab.attention(*arrays[:3], method=name)
            own = [T for T in res if isinstance(T, np.ndarray) and not any(T is given for given in arrays)]
            yield f"kept by {name}, besides Q, K and V", {"bytes": sum(T.nbytes for T in own)}

    yield Amounts(from_dense, about)
    yield Amounts(lambda: dict(kept()), about)


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


class Asked(NamedTuple):
    """What the functions above look at."""

    quick: bool
    threads: int


def ready(technique, place, name, quick, threads):
    """That call of the technique's group at that place, in a process of its own."""
    groups = TECHNIQUES[technique](Asked(quick, threads))
    return next(group for i, group in enumerate(groups) if i == place).calls[name]


def cells_of(technique, args, record):
    """What is measured of one technique, cell by cell."""
    how = HURRIED if args.quick else {"budget": 3.0, "rounds": (5, 7), "anew": anew}
    for place, group in enumerate(TECHNIQUES[technique](args)):
        about = {"technique": technique} | group.about
        if isinstance(group, Amounts):
            for name, found in group.found().items():
                yield about | {"what": name} | {key: rounded(value) for key, value in found.items()}
            continue
        asked = {name: (technique, place, name, args.quick, args.threads) for name in group.calls}
        with started("techniques", asked, args.threads) as (peers, left_out):
            if left_out:
                raise SystemExit(f"{technique}: {left_out}")
            for peer in peers.values():
                record.saw(peer.about)
            seconds, refused = measure(peers, **how)
        for name, one in seconds.items():
            more = (group.more or {}).get(name, {}) | ({} if one else {"refused": refused[name]})
            yield about | {"what": name, "seconds": one} | more


def main(argv=None):
    parser = options(__doc__)
    parser.add_argument("--only", help="T1 to T8, with commas")
    args = parser.parse_args(argv)
    output = output_of(parser, args, "techniques", not args.only)
    use_threads(args.threads)
    record = Record(
        "eight techniques, each measured: seconds, bytes, or errors",
        output,
        threads=args.threads,
        how=HOW + "; bytes are the most that NumPy held during a call, above what it held before",
    )
    asked = chosen(parser, "technique", args.only, TECHNIQUES)
    record.over(asked, lambda name: cells_of(name, args, record), args.budget, str, "technique")
    table(["", "B,H,n,d", "dtype", "", ""], [row_of(cell) for cell in record.data["cells"]])
    record.close()


def row_of(cell):
    about = f"{cell['technique']} {cell['of']}: {cell['what']}", ",".join(map(str, cell["shape"])), cell.get("dtype")
    if "seconds" in cell:
        one = cell["seconds"]
        return [*about, f"{one['median']:.3g} ({one['low']:.3g}–{one['high']:.3g})" if one else None, "s"]
    unit = "bytes" if "bytes" in cell else "error"
    return [*about, float(cell[unit]), unit]


if __name__ == "__main__":
    main()
