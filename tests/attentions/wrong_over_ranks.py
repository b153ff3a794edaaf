"""Wrong lines for those of :mod:`attentions.over_ranks`: each mistake of the catalogue as someone writes it."""

from pathlib import Path

SOURCE = Path(__file__).with_name("over_ranks.py").read_text(encoding="utf-8")

F, B = "ring_forward", "ring_backward"

STALE = [("share(k, h), scale", "share(K, h), scale"), ("share(v, h))", "share(V, h))")]
BACK_K = [("share(k, h), scale", "share(K, h), scale"), ("dS @ share(k, h)", "dS @ share(K, h)")]
BACK_V = [("mT(share(v, h))", "mT(share(V, h))")]
GO = "k, v = comm.exchange((k, v))"
SEEN = "seen = [(K, V)] if t == 0 else seen; seen.append(comm.exchange(seen[-1])); "
BACK = "(r - 1) % R, (r + 1) % R"
OTHER_WAY = f"k, v = comm.exchange(k), comm.exchange(v, {BACK})"
VISIT = "if not skipped(causal, zigzag, r, s):"
HOME = "dk, dv = comm.exchange((dk, dv))"
GO_BACK, HOME_BACK = (GO, f"k, v = comm.exchange((k, v), {BACK})"), (HOME, f"dk, dv = comm.exchange((dk, dv), {BACK})")
DK, DV = "dk + gather(", "dv + gather("
RETURN = "return dQ, dk, dv"
D = "D = rowsum(dO * O)"
MERGED = "return np.exp(L - safe) * O + np.exp(L_new - safe) * O_new, both"
TRI = "return places(n_q, r, R, zigzag)[:, None] >= places(n_k, s, R, zigzag)"
SKIP = "return causal and not zigzag and s > r"
BLOCK = "return (E @ v) / np.where(z == 0, 1.0, z), m + np.log(z)"
MERGE = "O, L = merge(O, L, *new)"
DONE = "return O, np.where(np.isneginf(L), np.inf, L)"
OWN_L = "block_forward(S, share(v, h))[1]"


def of(function, *edits):
    return [(function, *edit) for edit in edits]


def visit(condition):
    return (VISIT, f"if {condition} and not skipped(causal, zigzag, r, s):")


def earlier(wrong, skip="return False"):
    """Another causal within a block, where i and j are places within it, r and s the ranks of queries and keys."""
    names = "i, j = np.arange(n_q)[:, None], np.arange(n_k)[None]; "
    return [*of("earlier", (TRI, f"{names}return {wrong}")), *of("skipped", (SKIP, skip))]


def earlier_backward(wrong):
    """The same in the backward only."""
    at = "n_q, n_k = Q.shape[-2], K.shape[-2]; i, j = np.arange(n_q)[:, None], np.arange(n_k)[None]; "
    seen = f"{at}S = np.where(({wrong}) | (not causal), S, -np.inf); P = np.exp(S - L)"
    return of(B, ("mask, bias, causal)\n", "mask, bias, False)\n"), (VISIT, "if True:"), ("P = np.exp(S - L)", seen))


def added(condition, *names):
    """Parts of dK and dV that count under a condition only."""
    edits = {"dk": (DK, f"dk + ({condition}) * gather("), "dv": (DV, f"dv + ({condition}) * gather(")}
    return of(B, *(edits[name] for name in names))


def returned(what):
    return of(B, (RETURN, f"return {what}"))


def to_float16(T):
    return f"({T}).astype(np.float16).astype(np.float64)"


def to_bfloat16(T):
    bits = f"torch.tensor({T}).float().bfloat16().double().numpy()"
    return f"[torch := __import__('torch'), {bits}][1]"


OF_RING = {
    "ring-kv-stale": of(F, *STALE) + of(B, *BACK_K, *BACK_V),
    "ring-kv-stale-forward": of(F, *STALE),
    "ring-kv-stale-backward": of(B, *BACK_K, *BACK_V),
    "ring-k-stale": of(F, STALE[0]) + of(B, *BACK_K),
    "ring-v-stale": of(F, STALE[1]) + of(B, *BACK_V),
    "ring-v-stale-backward": of(B, *BACK_V),
    "ring-kv-late": of(F, (GO, SEEN + "k, v = seen[-2]")) + of(B, (GO, SEEN + "k, v = seen[-2]")),
    "ring-kv-late-backward": of(B, (GO, SEEN + "k, v = seen[-2]")),
    "ring-v-late": of(F, (GO, SEEN + "k, v = seen[-1][0], seen[-2][1]"))
    + of(B, (GO, SEEN + "k, v = seen[-1][0], seen[-2][1]")),
    "ring-v-other-way": of(F, (GO, OTHER_WAY)) + of(B, (GO, OTHER_WAY)),
    "ring-v-other-way-backward": of(B, (GO, OTHER_WAY)),
    "ring-kv-other-way": of(F, GO_BACK) + of(B, GO_BACK, HOME_BACK),
    "ring-kv-other-way-alone": of(F, GO_BACK) + of(B, GO_BACK),
    "ring-kv-other-way-forward": of(F, GO_BACK),
    "ring-kv-other-way-backward": of(B, GO_BACK, HOME_BACK),
    "ring-kv-other-way-alone-backward": of(B, GO_BACK),
    "ring-kv-ahead": of(F, (GO, "pass"), (VISIT, f"{GO}\n        {VISIT}"))
    + of(B, (GO, "pass"), (HOME, "pass"), (VISIT, f"{GO}; {HOME}\n        {VISIT}")),
    "hop-missing": of(F, ("range(R)", "range(max(1, R - 1))")) + of(B, visit("(t < R - 1 or R == 1)")),
    "hop-missing-forward": of(F, ("range(R)", "range(max(1, R - 1))")),
    "hop-missing-backward": of(B, visit("(t < R - 1 or R == 1)")),
    "hop-twice": of(F, ("range(R)", "range(R + 1)"))
    + of(B, ("range(R)", "range(R + 1)"), (HOME, "if t < R: dk, dv = comm.exchange((dk, dv))")),
    "hop-twice-forward": of(F, ("range(R)", "range(R + 1)")),
    "hop-twice-backward": of(B, ("range(R)", "range(R + 1)"), (HOME, "if t < R: dk, dv = comm.exchange((dk, dv))")),
    "own-block-missing": of(F, visit("(t or R == 1)")) + of(B, visit("(t or R == 1)")),
    "own-block-missing-backward": of(B, visit("(t or R == 1)")),
    "own-block-only": of(F, visit("t == 0")) + of(B, visit("t == 0")),
    "own-block-only-backward": of(B, visit("t == 0")),
    "hops-without-factor": of("merge", (MERGED, "return O + O_new, both")),
    "hops-mean": of("merge", (MERGED, "return O + O_new, both")) + of(F, ("return O,", "return O / R,")),
    "merge-factors-swapped": of(
        "merge",
        (MERGED, "first = np.isneginf(L).all(); a, b = (1, 1) if first else (np.exp(L_new - safe), np.exp(L - safe)); "
                 "return a * O + b * O_new, both"),
    ),
    "merge-no-rescale": of("block_forward", (BLOCK, "return E @ v, (z, m)"))
    + of("merge", ("both = np.logaddexp(L, L_new)", "pass"), ("safe = np.where(np.isneginf(both), 0.0, both)", "pass"),
         (MERGED, "return O + O_new, (L[0] + L_new[0], np.maximum(L[1], L_new[1]))"))
    + of(F, ("np.full((*Q.shape[:-1], 1), -np.inf)", "(0.0, -np.inf)"),
         (DONE, "return O / L[0], L[1] + np.log(L[0])")),
    "merge-l-maximum": of(F, (MERGE, "Ls = [new[1]] if t == 0 else [*Ls, new[1]]; " + MERGE),
                          (DONE, "return O, np.max(np.stack(Ls), axis=0)")),
    "l-of-hop": of(B, ("np.exp(S - L)", f"np.exp(S - {OWN_L})")),
    "l-of-own-block": of(F, (MERGE, "first = new[1] if t == 0 else first; " + MERGE), (DONE, "return O, first")),
    "l-of-last-hop": of(F, (DONE, "return O, new[1]")),
    "l-of-neighbor": of(B, (D, D + "; L = comm.exchange(L)")),
    "d-of-hop": of(B, ("dP - D", "dP - rowsum(P * dP)")),
    "d-of-hop-output": of(B, ("dP - D", "dP - rowsum(dO * block_forward(S, share(v, h))[0])")),
    "l-and-d-of-hop": of(B, ("np.exp(S - L)", f"np.exp(S - {OWN_L})"), ("dP - D", "dP - rowsum(P * dP)")),
    "d-of-own-block": of(B, ("dS = P", "D = rowsum(P * dP) if t == 0 else D; dS = P")),
    "d-of-last-hop": of(F, (DONE, DONE + ", new[0]"))
    + of("ring", ("O, L = ring_forward", "O, L, O_last = ring_forward"), ("V, O, L, dO", "V, O_last, L, dO")),
    "d-of-neighbor": of(B, (D, "D = comm.exchange(rowsum(dO * O))")),
    "d-times-ranks": of(B, (D, "D = sum(comm.all_gather(rowsum(dO * O))[r] for _ in range(R))")),
    "do-of-neighbor": of(B, (D, D + "; dO = comm.exchange(dO)")),
    "do-of-neighbor-in-dp": of(B, (D, D + "; other = comm.exchange(dO)"), ("dP = dO", "dP = other")),
    "do-of-neighbor-in-dv": of(B, (D, D + "; other = comm.exchange(dO)"), ("mT(P) @ dO", "mT(P) @ other")),
    "q-of-neighbor-in-dk": of(B, (D, D + "; other = comm.exchange(Q)"), ("mT(dS) @ Q", "mT(dS) @ other")),
    "dkv-own-queries-only": added("s == r", "dk", "dv"),
    "dkv-kept": of(B, (HOME, "pass")),
    "dkv-other-way": of(B, HOME_BACK),
    "dkv-one-hop-short": of(B, (HOME, "if t < R - 1: dk, dv = comm.exchange((dk, dv))")),
    "dkv-one-hop-far": returned("dQ, *comm.exchange((dk, dv))"),
    "dkv-last-hop-lost": added("t < R - 1 or R == 1", "dk", "dv"),
    "dkv-first-hop-lost": added("t > 0 or R == 1", "dk", "dv"),
    "dkv-last-hop-only": of(B, (DK, "gather("), (DV, "gather(")),
    "dk-kept": of(B, (HOME, "dv = comm.exchange(dv)")),
    "dv-kept": of(B, (HOME, "dk = comm.exchange(dk)")),
    "dk-one-hop-short": of(B, (HOME, "dv = comm.exchange(dv); dk = comm.exchange(dk) if t < R - 1 else dk")),
    "dv-one-hop-short": of(B, (HOME, "dk = comm.exchange(dk); dv = comm.exchange(dv) if t < R - 1 else dv")),
    "dq-last-hop-only": of(B, ("dQ = dQ + ", "dQ = ")),
    "dq-own-block-only": of(B, ("dQ = dQ + ", "dQ = dQ + (t == 0) * ")),
    "dq-of-neighbor": returned("comm.exchange(dQ), dk, dv"),
    "gradients-times-ranks": returned("R * dQ, R * dk, R * dv"),
    "dq-times-ranks": returned("R * dQ, dk, dv"),
    "dkv-times-ranks": returned("dQ, R * dk, R * dv"),
    "gradients-mean": returned("dQ / R, dk / R, dv / R"),
    "dq-mean": returned("dQ / R, dk, dv"),
    "dkv-mean": returned("dQ, dk / R, dv / R"),
    "dkv-sum-of-blocks": returned("dQ, comm.all_reduce(dk), comm.all_reduce(dv)"),
    "causal-local": earlier("i >= j"),
    "causal-local-backward": earlier_backward("i >= j"),
    "causal-local-of-earlier": earlier("i >= j", SKIP),
    "causal-own-block-only": earlier("(i >= j) | (s != r)"),
    "causal-own-block-only-backward": earlier_backward("(i >= j) | (s != r)"),
    "causal-later-blocks": earlier("(i >= j) | (s != r)", "return causal and s < r"),
    "causal-by-blocks": earlier("(i >= j) | True", SKIP),
    "causal-own-block-skipped": earlier("(i >= j) | True", "return causal and s >= r"),
    "causal-first-block-skipped": earlier("(i >= j) | (s != r)", "return causal and (s > r or s == 0 < r)"),
    "causal-all-other-blocks-skipped": earlier("i >= j", "return causal and s != r"),
    "causal-by-hop": earlier("r * n_q + i >= (r - s) % R * n_k + j"),
    "causal-no-offset-of-queries": earlier("i >= s * n_k + j"),
    "causal-no-offset-of-keys": earlier("r * n_q + i >= j"),
    "rows-taken-for-zigzag": earlier("places(n_q, r, R, True)[:, None] >= places(n_k, s, R, True)"),
    "sink-in-every-block": of(
        F,
        ("if sink is not None:", "if False:"),
        (MERGE, "if sink is not None: both = np.logaddexp(new[1], sink[:, None, None]); "
                "new = np.exp(new[1] - both) * new[0], both\n            " + MERGE),
    ),
    "scale-of-split-width": of("ring", ("Q.shape[-1] ** -0.5", "(Q.shape[-1] / comm.size) ** -0.5")),
    "scale-times-root-of-ranks": of("ring", ("Q.shape[-1] ** -0.5", "(Q.shape[-1] * comm.size) ** -0.5")),
    "columns-of-own-rank": of("scores", ("_, s, R, zigzag = at", "s, _, R, zigzag = at")),
    "columns-by-hop": of("scores", ("_, s, R, zigzag = at", "r, s, R, zigzag = at; s = (r - s) % R")),
}  # fmt: skip

OF_ZIGZAG = {
    "zigzag-taken-for-rows": of("earlier", (TRI, TRI.replace("zigzag", "False"))),
    "zigzag-second-chunk": of("earlier", (TRI, TRI.replace("places", "straight"))),
    "zigzag-later-skipped": of("skipped", (SKIP, "return causal and s > r")),
    "zigzag-later-whole": of("earlier", (TRI, f"{TRI} if s <= r else np.full((n_q, n_k), True)")),
    "zigzag-earlier-whole": of("earlier", (TRI, f"{TRI} if s >= r else np.full((n_q, n_k), True)")),
}  # fmt: skip

SPLIT = "np.split(T, ends, axis=-2)"
OF_GATHERED = {
    "dkv-reversed": of("gathered", (SPLIT, SPLIT + "[::-1]")),
    "dkv-by-hop": of("gathered", (SPLIT, f"[{SPLIT}[(comm.rank - t) % comm.size] for t in range(comm.size)]")),
    "padding-counted": of("gathered", ("there = np.arange(K.shape[-2]) < n", "there = np.arange(K.shape[-2]) > -1")),
    "padding-of-queries-counted": of("gathered", ("first + np.arange(n_q)[:, None] < n, dO", "True, dO")),
    "padding-all-counted": of("gathered", ("if n is not None", "if False")),
}

HEADS = "np.concatenate(comm.all_to_all(np.split(T, comm.size, axis=-3)), axis=-2)"
ROWS = "np.split(T, comm.size, axis=-2)"
MIXED_HEADS = (
    "h, n, d = T.shape[-3] // comm.size, T.shape[-2] * comm.size, T.shape[-1]; "
    "return np.stack(comm.all_to_all(np.split(T, comm.size, axis=-3)), axis=-4).reshape(*T.shape[:-3], h, n, d)"
)
MIXED_ROWS = (
    "T = T.reshape(*T.shape[:-3], comm.size, T.shape[-3], -1, T.shape[-1]); "
    "return np.concatenate(comm.all_to_all([T[..., i, :, :, :] for i in range(comm.size)]), axis=-3)"
)
RIGHT_ROWS = "return np.concatenate(comm.all_to_all(np.split(T, comm.size, axis=-2)), axis=-3)"
ALL_MIXED = of("to_heads", ("return " + HEADS, MIXED_HEADS))
HOME_MIXED = of("to_rows", (RIGHT_ROWS, MIXED_ROWS))
BIAS_RIGHT = of("ulysses", ("bias = to_heads(bias, comm)", "bias = right_heads(bias, comm)"))
OF_ULYSSES = {
    "scale-of-local-heads": of("ulysses", (
        "O, res = ", "scale = (Q.shape[-3] * Q.shape[-1]) ** -0.5 if scale is None else scale; O, res = "
    )),
    "bias-of-first-heads": of("ulysses", (
        "bias = to_heads(bias, comm)",
        "bias = np.concatenate(comm.all_gather(bias), axis=-2)[..., : bias.shape[-3] // comm.size, :, :]",
    )),
    "sink-of-first-heads": of("ulysses", ("np.split(sink, comm.size)[comm.rank]", "np.split(sink, comm.size)[0]")),
    "heads-mixed": ALL_MIXED + HOME_MIXED + BIAS_RIGHT,
    "heads-mixed-home": HOME_MIXED,
    "heads-mixed-in-backward": of("ulysses", (
        "tuple(to_rows(T, comm) for T in (O, dQ, dK, dV))",
        "to_rows(O, comm), *(mixed_rows(T, comm) for T in (dQ, dK, dV))",
    )),
    "do-heads-mixed": of("ulysses", ("dO = (to_heads(T, comm) for T in (Q, K, V, dO))",
                                     "dO = *(to_heads(T, comm) for T in (Q, K, V)), mixed_heads(dO, comm)")),
}  # fmt: skip


def rounded(c):
    sums = {
        "dQ": "dQ + scale * (dS @ share(k, h))",
        "dk": "dk + gather(scale * (mT(dS) @ Q), K)",
        "dv": "dv + gather(mT(P) @ dO, V)",
    }
    parts = {name: (text.partition(" + ")[2], c(text.partition(" + ")[2])) for name, text in sums.items()}
    return {
        "o-of-blocks": of("block_forward", (BLOCK, f"return {c('(E @ v) / np.where(z == 0, 1.0, z)')}, m + np.log(z)")),
        "o-at-each-merge": of(
            "merge", (MERGED, f"return {c('np.exp(L - safe) * O + np.exp(L_new - safe) * O_new')}, both")
        ),
        "gradients-of-blocks": of(B, *parts.values()),
        "gradients-at-each-hop": of(B, *((text, c(text)) for text in sums.values())),
    }


OF_RING |= {f"{slug}-float16": edits for slug, edits in rounded(to_float16).items()}
OF_RING |= {f"{slug}-bfloat16": edits for slug, edits in rounded(to_bfloat16).items()}

EXTRA = f"""

def right_heads(T, comm):
    return {HEADS}


def straight(n, rank, size, zigzag):
    chunk = np.arange(n // 2)
    return np.concatenate([rank * (n // 2) + chunk, (size + rank) * (n // 2) + chunk])


def mixed_heads(T, comm):
    {MIXED_HEADS}


def mixed_rows(T, comm):
    {MIXED_ROWS}
"""

PLANTED = {
    **{slug: ("ring", "rows", edits) for slug, edits in OF_RING.items()},
    **{slug: ("zigzag_ring", "zigzag", edits) for slug, edits in OF_ZIGZAG.items()},
    **{slug: ("gathered", "rows", edits) for slug, edits in OF_GATHERED.items()},
    **{slug: ("ulysses", "rows", edits) for slug, edits in OF_ULYSSES.items()},
}
"""slug: (the function that is spoiled, its split, [(a function that it calls, a right line, a wrong one), …])."""


NOT_SKIPPED = of("skipped", (SKIP, "return False"))
TURNED = [*of(F, ("s = (r - t)", "s = (r + t)")), *of(B, ("s = (r - t)", "s = (r + t)"))]


def turned(fn):
    """The same, where what goes around goes to the rank before."""

    class Comm:
        def __init__(self, comm):
            self.comm, self.rank, self.size = comm, comm.rank, comm.size

        def exchange(self, x):
            return self.comm.exchange(x, (self.rank - 1) % self.size, (self.rank + 1) % self.size)

    def run(Q, K, V, dO, comm, causal=False, scale=None, mask=None, bias=None):
        return fn(Q, K, V, dO, Comm(comm), causal, scale, mask, bias)

    return run


def planted(edits, name):
    """The function of that name in :mod:`attentions.over_ranks`, with wrong lines in the place of the right ones."""
    text = SOURCE
    for function, right, wrong in edits:
        start = text.index(f"def {function}(")
        end = text.find("\ndef ", start + 1)
        body = text[start:end]
        assert body.count(right) == 1, f"{function}: {body.count(right)} times: {right}"
        text = text[:start] + body.replace(right, wrong) + text[end:]
    names = {"__name__": "planted"}
    exec(compile(text + EXTRA, "planted", "exec"), names)
    return names[name]
