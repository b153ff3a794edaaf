"""What a ring gives where it rounds at each hop. Chapter: :doc:`/chapters/08_checking`."""

import numpy as np

# --- a hop at a time


def _hops(a, part, partial, carried):
    """The sum of ``part(r, s)`` over the hops of each rank, each part and each sum rounded: for the queries."""
    out = [None] * a.B
    for r in range(a.B):
        for t in range(a.B):
            new = partial(part(r, a.met(r, t)))
            out[r] = carried(new if t == 0 else out[r] + new)
    whole = np.empty((*out[0].shape[:-2], a.n_q, out[0].shape[-1]))
    for rows, T in zip(a.split.queries, out, strict=True):
        whole[..., rows, :] = T
    return whole


def _hops_home(a, part, partial, carried):
    """The same for the keys: what travels with the keys of s is added to by s first, then by the ranks after it."""
    out = [None] * a.B
    for s in range(a.B):
        for t in range(a.B):
            new = partial(part((s + a.turn * t) % a.B, s))
            out[s] = carried(new if t == 0 else out[s] + new)
    whole = np.empty((*out[0].shape[:-2], a.n_k, out[0].shape[-1]))
    for rows, T in zip(a.split.keys, out, strict=True):
        whole[..., rows, :] = T
    return whole


def _block(a, table, r, s):
    """The block of r and s."""
    return table[..., a.split.queries[r], :][..., a.split.keys[s]]


# --- what is rounded


def cast(dtype):
    """The function that rounds to the dtype, "float16" or "bfloat16"."""
    if dtype == "float16":
        return lambda T: T.astype(np.float16).astype(np.float64)

    def to_bfloat16(T):
        bits = np.asarray(T, dtype=np.float32).view(np.uint32)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return bits.view(np.float32).astype(np.float64)

    return to_bfloat16


def _same_number(T):
    return T


def _rounded_outputs(c):
    """The output of each block is rounded, before it is merged."""

    def outputs(a):
        def part(r, s):
            rows, keys = a.split.queries[r], a.split.keys[s]
            return a.factors[..., rows, s : s + 1] * c(_block(a, a.P_blocks, r, s) @ a.v[..., keys, :])

        return _hops(a, part, _same_number, _same_number)

    return {"O": outputs}


def _rounded_merges(c):
    """What has been merged is rounded at each hop."""

    def outputs(a):
        out = np.empty((*a.Q.shape[:-1], a.d_v))
        for r, rows in enumerate(a.split.queries):
            L, T = np.broadcast_to(a.sink_seen, (*a.Q.shape[:-1], 1))[..., rows, :], 0.0
            for t in range(a.B):
                s = a.met(r, t)
                new = a.L_blocks[..., rows, s : s + 1]
                block = _block(a, a.P_blocks, r, s) @ a.v[..., a.split.keys[s], :]
                both = np.logaddexp(L, new)
                T = c(np.where(np.isneginf(both), 0.0, np.exp(L - both) * T + np.exp(new - both) * block))
                L = both
            out[..., rows, :] = T
        return out

    return {"O": outputs}


def _rounded_gradients(partial, carried):
    """Each hop's part of a gradient, or each sum so far, is rounded."""

    def dQ(a):
        def part(r, s):
            return a.dQ_scale * (_block(a, a.dS, r, s) @ a.k[..., a.split.keys[s], :])

        return _hops(a, part, partial, carried)

    def dK(a):
        def part(r, s):
            return a.gather(a.dK_scale * (a.transpose(_block(a, a.dS, r, s)) @ a.Q[..., a.split.queries[r], :]))

        return _hops_home(a, part, partial, carried)

    def dV(a):
        def part(r, s):
            return a.gather(a.transpose(_block(a, a.P_backward, r, s)) @ a.dO[..., a.split.queries[r], :])

        return _hops_home(a, part, partial, carried)

    return {"dQ": dQ, "dK": dK, "dV": dV}


ROUNDED = (
    ("o-of-blocks", "the output of each block is rounded before it is merged", ("O", "dQ", "dK"), _rounded_outputs),
    ("o-at-each-merge", "the output is rounded at each merge", ("O", "dQ", "dK"), _rounded_merges),
    (
        "gradients-of-blocks", "each hop's part of the gradients is rounded before it is added", ("dQ", "dK", "dV"),
        lambda c: _rounded_gradients(c, _same_number),
    ),
    (
        "gradients-at-each-hop", "the gradients are rounded at each hop", ("dQ", "dK", "dV"),
        lambda c: _rounded_gradients(_same_number, c),
    ),
)  # fmt: skip
"""(slug, title, what is spoiled, steps by the rounding), for each place where a ring may round."""
