"""Claims of a long note (seed_listing) on its two code listings, which ``listed.py`` rebuilds, and on speed."""

import tracemalloc
from types import SimpleNamespace

import numpy as np

from attnbook.attention import attention
from attnbook.checks.differences import complex_step
from attnbook.softmax import softmax, softmax_jacobian, softmax_vjp
from evidence.claims import AMBIGUOUS, CONVENTION, HOLDS, MISSING, WRONG, Differs, Raises, Same, recorder
from evidence.wild.listed import CRASHES, LIMITS, SILENT, Listed, gradient_errors
from evidence.wild.setting import plain_softmax

CLAIMS = []
claim, reading = recorder(CLAIMS)

NAMES = ("query", "key", "value", "W_Q", "W_K", "W_V")


def _rowsum(T):
    return T.sum(-1, keepdims=True)


RAISED = {error.__name__: error for error in (ValueError, AttributeError, UnboundLocalError)}


def _errors(faults, **sizes):
    """The errors of the six gradients of a listing with these faults, as an array; raises what the listing raises."""
    found = gradient_errors(faults, **sizes)
    if "raises" in found:
        raise RAISED[found["raises"]]
    return np.array([found[name] for name in NAMES])


def _listing(*faults, **sizes):
    return lambda: _errors(faults, **sizes)


NONE = np.zeros(6)  # what a right listing's errors are
SILENT_ERRORS = ("dv-not-transposed", "ds-mean", "update-first")


@claim(
    "S2-24",
    "l.112-262",
    "listing 1, an implementation",
    WRONG,
    "four crashes, of which two may come from our copy; then three silent errors, and one limit",
    "#wild-listings",
    ("attribute", "np-softmax", "digit-zero", "all-axes-transposed", *SILENT_ERRORS),
)
def _(z):
    return {
        "as printed": Raises(_listing(*CRASHES, *SILENT, *LIMITS), AttributeError),
        "crashes repaired": Differs(_listing(*SILENT), NONE),
        "silent errors too": Same(_listing(*LIMITS), NONE),
    }


def _crash(name, place, says, fault, error, note, slug):
    @claim(name, place, says, WRONG, note, "#wild-listings", (slug,))
    def _(z):
        return {"with it": Raises(_listing(fault), error), "repaired": Same(_listing(), NONE)}


_crash(
    "S2-25",
    "l.122, l.131",
    "self.wQ is assigned, self.WQ is used",
    "wrong attribute",
    AttributeError,
    "self.WQ; it stands at a page break, and may be an error of our copy",
    "attribute",
)
_crash(
    "S2-26",
    "l.164, l.340",
    "softmax is called as np.softmax",
    "np.softmax",
    AttributeError,
    "NumPy has none",
    "np-softmax",
)
_crash(
    "S2-27",
    "l.182-192",
    "the backward takes dO, and its first line reads d0",
    "digit zero",
    UnboundLocalError,
    "dO: a digit for the letter; it follows a page break, and may be an error of our copy",
    "digit-zero",
)


@claim(
    "S2-28",
    "l.197, l.368",
    "dV = A.transpose(0,1,2,3) @ dO",
    WRONG,
    "A.transpose(0,1,3,2): the printed one changes nothing",
    "#mistake-dv-not-transposed",
    ("dv-not-transposed",),
)
def _(z):
    return {
        "n_q = n_k": Differs(_listing("identity transpose"), NONE),
        "n_q = n_k, gradients of query, key, W_Q, W_K": Same(
            lambda: _errors(["identity transpose"])[[0, 1, 3, 4]], np.zeros(4)
        ),
        "n_k = 7": Differs(_listing("identity transpose", n_k=7), NONE),
        "repaired, n_k = 7": Same(_listing(n_k=7), NONE),
    }


@claim(
    "S2-29",
    "l.200, l.370",
    "dS = dA*A; dS -= np.mean(dS, -1)",
    WRONG,
    "dS -= A * sum(dS)",
    "#mistake-ds-mean",
    ("ds-mean",),
)
def _(z):
    mean = lambda dP, P: dP * P - (dP * P).mean(-1, keepdims=True)  # noqa: E731
    uniform = np.full(z.P.shape, 1 / z.n_k)
    return {
        "as printed": Differs(mean(z.dP, z.P), z.dS),
        "row sums are 0": Same(mean(z.dP, z.P).sum(-1), np.zeros(z.n_q)),
        "uniform weights": Same(mean(z.dP, uniform), softmax_vjp(z.dP, uniform)),
        "when dA grows by 7": Differs(mean(z.dP + 7, z.P), mean(z.dP, z.P)),
        "in the listing": Differs(_listing("mean"), NONE),
        "corrected": Same(z.dP * z.P - z.P * _rowsum(z.dP * z.P), z.dS),
    }


@claim(
    "S2-30",
    "l.201",
    "the mean is subtracted for numerical stability",
    WRONG,
    "stability is the row maximum in the forward; nothing is exponentiated in the backward",
    "#mistake-ds-mean",
    ("ds-mean",),
)
def _(z):
    low = softmax_vjp(z.dP.astype(np.float32), z.P.astype(np.float32))
    return {
        "with the mean": Differs(z.dP * z.P - (z.dP * z.P).mean(-1, keepdims=True), z.dS),
        "right formula in float32, error below 1e-6": Same(bool(np.abs(low - z.dS).max() < 1e-6), True),
    }


@claim("S2-31", "l.205, l.373", "dQ = dS @ K / sqrt(depth)", HOLDS, "", "04_single_head.html#equation-eq-dq")
def _(z):
    return {"query and W_Q, in the repaired listing": Same(lambda: _errors(())[[0, 3]], np.zeros(2))}


@claim(
    "S2-32",
    "l.206, l.374",
    "dK = dS.transpose(0,1,3,2) @ Q / sqrt(depth)",
    HOLDS,
    "the reverse of l.72 and l.90 (S2-10)",
    "#mistake-dk-transposed",
)
def _(z):
    return {"key and W_K, in the repaired listing": Same(lambda: _errors(())[[1, 4]], np.zeros(2))}


@claim(
    "S2-33",
    "l.184, l.209-211",
    "dK and dV are reshaped with the length of dO",
    CONVENTION,
    "as many keys as queries: the class is called SelfAttention. Else with the length of key",
    "#wild-listings",
)
def _(z):
    return {
        "n_k = n_q": Same(_listing("one length"), NONE),
        "n_k = 7": Differs(_listing("one length", n_k=7), NONE),
        "repaired, n_k = 7": Same(_listing(n_k=7), NONE),
    }


@claim(
    "S2-34",
    "l.214-216, l.384-386",
    "dWQ = np.dot(query.T, dQ)",
    WRONG,
    "einsum('bni,bnj->ij', query, dQ): .T turns all axes round",
    "#mistake-all-axes-transposed",
    ("all-axes-transposed",),
)
def _(z):
    return {
        "batch 2, length 5": Differs(_listing("transpose of all axes"), NONE),
        "batch 5, length 5": Differs(_listing("transpose of all axes", batch=5), NONE),
        "batch 1, length 1": Differs(_listing("transpose of all axes", batch=1, n_q=1, n_k=1), NONE),
        "repaired": Same(_listing(), NONE),
    }


@claim(
    "S2-35",
    "l.219-226, l.389-396",
    "the weights are updated, then dX = dQ Wᵀ",
    WRONG,
    "gradients first; the error is −lr · dQ dWᵀ",
    "#wild-update-first",
    ("update-first",),
)
def _(z):
    return {
        "rate 0.001": Differs(_listing("update first", learning_rate=1e-3), NONE),
        "rate 0.1": Differs(_listing("update first", learning_rate=0.1), NONE),
        "rate 0": Same(_listing("update first", learning_rate=0.0), NONE),
        "gradients of the weights": Same(lambda: _errors(["update first"])[3:], np.zeros(3)),
    }


@claim(
    "S2-36",
    "l.182, l.357",
    "backward(…, learning_rate) changes the weights itself",
    CONVENTION,
    "a declared design, which takes the step as well; the same call again gives other gradients",
    "#wild-update-first",
)
def _(z):
    layer = Listed(12, 3)
    rng = z.rng()
    query, key, value, dO = rng.normal(size=(4, 2, 5, 12))
    W, calls = layer.weights[0], []
    for _ in range(2):
        layer.forward(query, key, value)
        calls.append((layer.backward(dO, (query, key, value), 0.1)[0], layer.dW[0], layer.WQ.copy()))
    first, second = calls
    return {
        "the first call: a step along −dW": Same(first[2], W - 0.1 * first[1]),
        "the same call twice": Differs(second[0], first[0]),
    }


@claim(
    "S2-37",
    "l.228, l.398",
    "a class for self-attention returns three input gradients",
    MISSING,
    "in self-attention they add: dX is their sum",
    "#wild-paths",
)
def _(z):
    layer = Listed(12, 3)
    rng = z.rng()
    X, dO = rng.normal(size=(2, 2, 5, 12))
    t = rng.normal(size=X.shape)
    weights = layer.weights

    def forward(X):
        Q, K, V = (layer._split(X @ W) for W in weights)
        return layer._merge(plain_softmax(Q @ K.transpose(0, 1, 3, 2) / 2.0) @ V, 5)

    layer.forward(X, X, X)
    parts = layer.backward(dO, (X, X, X), 0.1)
    true = np.sum(dO * complex_step(forward, X, t))
    return {"their sum": Same(np.sum(sum(parts) * t), true), "one of them": Differs(np.sum(parts[0] * t), true)}


@claim(
    "S2-38",
    "l.143-147, l.170",
    "split_heads, and combining the heads",
    HOLDS,
    "head h is columns h·depth to (h+1)·depth",
    "05_multi_head.html",
)
def _(z):
    layer = Listed(12, 3)
    T = z.rng().normal(size=(2, 5, 12))
    return {
        "there and back": Same(layer._merge(layer._split(T), 5), T),
        "head 1": Same(layer._split(T)[:, 1], T[:, :, 4:8]),
    }


@claim(
    "S2-39",
    "l.119, l.269",
    "depth = d_model // num_heads",
    CONVENTION,
    "d_model must be divisible by num_heads, and nothing checks it",
    "#wild-listings",
)
def _(z):
    length = lambda n: Listed(10, 3)._split(np.zeros((1, n, 10))).shape[2]  # noqa: E731
    return {
        "d_model 12, 3 heads: number of tokens": Same(Listed(12, 3)._split(np.zeros((1, 9, 12))).shape[2], 9),
        "d_model 10, 3 heads, 9 tokens become 10": Differs(lambda: length(9), 9),
        "d_model 10, 3 heads, 7 tokens": Differs(lambda: length(7), 7),
    }


@claim(
    "S2-40",
    "l.122, l.127",
    "weights randn * sqrt(2 / d_model)",
    AMBIGUOUS,
    "a matter of taste: variance 1/d_model gives scores of variance 1; the factor 2 is for a ReLU, which is not here",
)
def _(z):
    rng = z.rng()
    X = rng.normal(size=(600, 32))
    spread = lambda c: np.std((X @ (rng.normal(size=(32, 32)) * c)) @ (X @ (rng.normal(size=(32, 32)) * c)).T / 32**0.5)  # noqa: E731
    return {
        "standard deviation of the scaled scores, rounded, with 1/d_model": Same(round(spread(32**-0.5)), 1),
        "with 2/d_model": Differs(round(spread((2 / 32) ** 0.5)), 1),
    }


reading(
    "S2-41",
    "l.177-178",
    "S and O are stored for the backward",
    WRONG,
    "the backward never reads them, which one sees in its text; keep A, or the log-sum-exp and O",
    "04_single_head.html#q-13",
    ("stored-not-read",),
)
reading(
    "S2-42",
    "listings",
    "no W^O, mask, bias, dropout or checks",
    MISSING,
    "absent, so nothing to run; see chapters 5 and 6",
    "05_multi_head.html",
)


@claim(
    "S2-43",
    "l.259",
    'print("Output shape:", d0.shape)',
    HOLDS,
    "the gradient of the output has the output's shape; the second listing prints O.shape",
)
def _(z):
    layer, (X, dO) = Listed(12, 3), z.rng().normal(size=(2, 2, 5, 12))
    return {"the two shapes": Same(dO.shape, layer.forward(X, X, X).shape)}


@claim(
    "S2-44",
    "l.274",
    "heads are split to compute in parallel",
    WRONG,
    "heads are another function: one softmax each",
    "05_multi_head.html",
    ("heads-to-be-parallel",),
)
def _(z):
    X = z.rng().normal(size=(2, 5, 12))
    return {
        "the same weights with 1 and 3 heads": Differs(Listed(12, 1).forward(X, X, X), Listed(12, 3).forward(X, X, X))
    }


reading(
    "S2-45",
    "l.268-285",
    "the rest of the description in words",
    HOLDS,
    "nothing to run; its two wrong sentences have rows of their own, S2-44 and S2-64",
)


@claim(
    "S2-46",
    "l.291-419",
    "listing 2, optimized",
    WRONG,
    "the same listing with the same three silent errors",
    "#wild-listings",
    ("np-softmax", "all-axes-transposed", *SILENT_ERRORS),
)
def _(z):
    return {
        "as printed": Raises(_listing("np.softmax", "transpose of all axes", *SILENT, *LIMITS), AttributeError),
        "crashes repaired": Differs(_listing(*SILENT), NONE),
        "silent errors too": Same(_listing(*LIMITS), NONE),
    }


reading(
    "S2-47",
    "l.459, l.287",
    "listing 2 reduces computation time",
    MISSING,
    "no figure is given. Both do the same arithmetic; one subtraction in place saves memory (S2-T2)",
    "#wild-optimizations",
)


@claim(
    "S2-T1",
    "l.426-427, l.461",
    "matmul instead of loops; reshape and transpose give contiguous access",
    WRONG,
    "matmul: the same result; contiguity: no, a transpose is a view out of order, and the reshape after it copies",
    "#wild-optimizations",
    ("transposed-is-contiguous",),
)
def _(z):
    heads = Listed(12, 3)._split(np.zeros((2, 5, 12)))
    loop = np.array([[sum(z.Q[i, l] * z.K[j, l] for l in range(z.d_k)) for j in range(z.n_k)] for i in range(z.n_q)])
    packed = heads.copy()  # as a product of heads comes out
    merged = Listed(12, 3)._merge(packed, 5)
    return {
        "heads contiguous": Differs(heads.flags["C_CONTIGUOUS"], True),
        "loops and matmul": Same(loop, z.Q @ z.K.mT),
        "combining them copies": Same(not np.shares_memory(packed, merged), True),
    }


@claim(
    "S2-T2",
    "l.431, l.366",
    "dA and dS are reused, which saves memory and computations",
    AMBIGUOUS,
    "memory, yes: dS is written over, which saves one table of scores; dA is kept, and no computation is saved",
    "#wild-optimizations",
)
def _(z):
    (first, work), (second, same_work) = softmax_cost(PRINTED["listing 1"]), softmax_cost(PRINTED["listing 2"])
    return {
        "tables at the peak, listing 1 as printed": Same(first, 3),
        "listing 2 as printed": Same(second, 2),
        "fewer calls of NumPy's functions": Differs(same_work < work, True),
        "both reused": Same(softmax_cost(REUSE)[0], 1),
    }


@claim(
    "S2-T3",
    "l.435, l.463, l.368",
    "softmax gradient by entries, without a Jacobian",
    HOLDS,
    "as S2-23; the code beside it computes something else, S2-29",
    "#mistake-ds-mean",
)
def _(z):
    direct = z.P * (z.dP - _rowsum(z.P * z.dP))
    return {"by entries and by Jacobians": Same(direct, np.einsum("ij,ijk->ik", z.dP, softmax_jacobian(z.P)))}


@claim(
    "S2-T4",
    "l.439",
    "keep the heads in the batch axes",
    HOLDS,
    "the same numbers; the gain depends on the machine",
    "#wild-optimizations",
)
def _(z):
    m = z.m
    return {
        "batched and one by one": Same(
            attention(m.Q, m.K, m.V)[0], np.stack([attention(*head)[0] for head in zip(m.Q, m.K, m.V, strict=True)])
        )
    }


@claim(
    "S2-T5",
    "l.441-443",
    "half precision saves memory and time, with care",
    CONVENTION,
    "float32 sums, and for float16 a loss scale: small gradients underflow",
    "#wild-optimizations",
)
def _(z):
    tiny = 1e-8 * z.dS
    lost = lambda scale: bool(np.mean((scale * tiny).astype(np.float16) == 0) > 0.5)  # noqa: E731
    return {
        "dS of size 1e-8 in float16: most of it is 0": Same(lost(1.0), True),
        "with a loss scale of 2^20": Same(lost(2.0**20), False),
        "without one, mostly kept": Differs(not lost(1.0), True),
    }


@claim(
    "S2-T6",
    "l.445-447",
    "clip the gradient if its norm exceeds a threshold",
    CONVENTION,
    "one norm over all parameters; it keeps the direction; it saves nothing, and does not cure NaN",
    "#wild-optimizations",
)
def _(z):
    g = np.concatenate([T.ravel() for T in (1 * z.dQ, 10 * z.dK, 0.1 * z.dV)])
    cosine = lambda a: float(a @ g / np.linalg.norm(a) / np.linalg.norm(g))  # noqa: E731
    sizes = (z.dQ.size, z.dQ.size + z.dK.size)
    each = np.concatenate([T / np.linalg.norm(T) for T in np.split(g, sizes)])
    return {
        "cosine with the gradient, one norm": Same(cosine(g / np.linalg.norm(g)), 1.0),
        "one norm a tensor": Differs(cosine(each), 1.0),
        "entry by entry": Differs(cosine(np.clip(g, -0.1, 0.1)), 1.0),
        "with one NaN": Differs(np.append(g, np.nan) / np.linalg.norm(np.append(g, np.nan)), np.append(g, 0.0)),
    }


@claim(
    "S2-T7",
    "l.449-451",
    "sparse operations; attention is dense, so less useful",
    CONVENTION,
    "zeros of a mask are exact and free; zeros by a threshold are an approximation",
    "#wild-optimizations",
)
def _(z):
    keep = np.tril(np.ones(z.S.shape, bool))
    P = softmax(np.where(keep, z.S, -np.inf))
    dS = softmax_vjp(z.dP, P)
    cut = z.P * (np.median(z.P) < z.P)
    return {
        "dS is 0 where A is masked": Same(dS[~keep], np.zeros((~keep).sum())),
        "no zeros without a mask": Same(float(np.sum(z.P == 0)), 0.0),
        "small weights cut": Differs(softmax_vjp(z.dP, cut), z.dS),
    }


@claim(
    "S2-T8",
    "l.453-455",
    "fuse operations into one kernel",
    HOLDS,
    "needs rowsum(dA ∘ A) = rowsum(dO ∘ O) and A = exp(S − L)",
    "04_single_head.html#q-13",
)
def _(z):
    L = np.log(_rowsum(np.exp(z.S)))
    return {"D": Same(_rowsum(z.dP * z.P), _rowsum(z.dO * z.O)), "A": Same(np.exp(z.S - L), z.P)}


PRINTED = {
    "listing 1": ("dS = dA * self.A", "dS = dS - np.mean(dS, axis=-1, keepdims=True)"),
    "listing 2": ("dS = self.A * dA", "dS -= np.mean(dS, axis=-1, keepdims=True)"),
}
"""The lines of the softmax backward, as the two listings print them."""

REUSE = ("dA -= np.einsum('...j,...j->...', dA, self.A)[..., None]", "dA *= self.A")


def softmax_cost(lines, n=512):
    """Run lines like those of ``PRINTED``: the most memory they hold at once, with dA, in tables of scores, rounded;
    and how many of NumPy's universal functions they call."""
    rng = np.random.default_rng(0)
    layer, source = SimpleNamespace(A=softmax(rng.normal(size=(n, n)))), rng.normal(size=(n, n))
    code = compile("\n".join(lines), "the listing", "exec")
    tracemalloc.start()
    exec(code, {"np": np, "self": layer, "dA": source.copy()})
    peak = tracemalloc.get_traced_memory()[1] / source.nbytes
    tracemalloc.stop()
    counted = SimpleNamespace(A=layer.A.view(_Counted))
    _Counted.ran = 0
    exec(code, {"np": np, "self": counted, "dA": source.view(_Counted)})
    return round(peak), _Counted.ran


class _Counted(np.ndarray):
    """An array that counts what NumPy does with it."""

    ran = 0

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        _Counted.ran += 1
        bare = [T.view(np.ndarray) if isinstance(T, _Counted) else T for T in inputs]
        if out := kwargs.get("out"):
            kwargs["out"] = tuple(T.view(np.ndarray) for T in out)
        came = getattr(ufunc, method)(*bare, **kwargs)
        return came.view(_Counted) if isinstance(came, np.ndarray) else came
