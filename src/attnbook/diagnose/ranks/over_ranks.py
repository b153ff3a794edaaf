"""Attention and its gradient over several ranks, a step at a time. Chapter: :doc:`/chapters/08_checking`.

The table of scores falls into blocks: the queries of one rank with the keys of another. A mistake replaces one step.
"""

# ruff: noqa: E743, N805 (as in attnbook.diagnose.steps)

import numpy as np

from attnbook.diagnose.steps import Steps, mT, rowsum, step


def _of_ring(i):
    def get(a):
        type(a).asked = True
        return a.ring[i]

    return property(get)


class OverRanks(Steps):
    """:class:`attnbook.diagnose.steps.Steps`, with the steps that only several ranks have.

    ``a.split`` says who has which rows. A rank is called r where it has the queries and s where it has the keys. In a
    ring, r meets s = r first, and then the blocks of the ranks before it: at hop t, s = r − turn · t. ``skipping`` says
    whether under causal it skips the blocks of later ranks, ``guarded`` whether an L of −∞ becomes +∞ in the backward.
    What is right does not depend on these three, which are the ``ring``; what is wrong may, and has then ``asked``.
    """

    split, ring, asked = None, (1, True, True), False
    turn, skipping, guarded = map(_of_ring, range(3))

    def run(a):
        """O, dQ, dK, dV, with no warning."""
        with np.errstate(all="ignore"):
            for name in ("Q", "K", "V", "dO"):
                setattr(a, name, a.enter(name, getattr(a, name)))
            return tuple(a.leave(name, getattr(a, name)) for name in ("O", "dQ", "dK", "dV"))

    # --- what is sent, and where to

    def enter(a, name, T):
        """An input on its way to where it is used, as heads that are exchanged for rows go."""
        return T

    def leave(a, name, T):
        """A result on its way home."""
        return T

    def k_from(a, r, s):
        """Whose K rank r has where it takes it for that of s."""
        return s

    def v_from(a, r, s):
        """Whose V."""
        return a.k_from(r, s)

    def k_from_backward(a, r, s):
        """Whose K, in the backward."""
        return s

    def v_from_backward(a, r, s):
        """Whose V, in the backward."""
        return a.k_from_backward(r, s)

    def columns_from(a, r, s):
        """For which keys rank r reads its bias and mask where those of s are meant."""
        return s

    def times(a, r, s):
        """How often rank r visits the block of s."""
        return 1

    def times_backward(a, r, s):
        """How often in the backward."""
        return 1

    def home_k(a, r, s):
        """To which rank's dK goes what r computed for the keys of s; None for none."""
        return s

    def home_v(a, r, s):
        """To which rank's dV."""
        return a.home_k(r, s)

    # --- tables in blocks

    @property
    def B(a):
        """How many blocks there are each way."""
        return a.split.blocks

    def hop(a, r, s):
        """When r meets s in a ring."""
        return a.turn * (r - s) % a.B

    def met(a, r, t):
        """Whom r meets at hop t."""
        return (r - a.turn * t) % a.B

    def each(a, f):
        """f(r, s) for all r and s; for a method it is computed once."""
        if not hasattr(f, "__func__"):
            return [[f(r, s) for s in range(a.B)] for r in range(a.B)]
        if "seen" not in vars(type(a)):
            type(a).seen = {}
        key = (f.__func__, a.B, a.corner, a.split.kind)
        if key not in a.seen:
            a.seen[key] = [[f(r, s) for s in range(a.B)] for r in range(a.B)]
        return a.seen[key]

    def is_plain(a, f):
        """Whether f(r, s) is s everywhere."""
        return a.each(f) == [list(range(a.B))] * a.B

    def over_table(a, f):
        """(n_q, n_k), f(r, s) at each entry of a block."""
        return np.array(a.each(f))[a.split.rank_q][:, a.split.rank_k]

    def counted(a, T):
        """A table of the backward, each block as often as it is visited; what is not visited is not computed."""
        if a.each(a.times_backward) == [[1] * a.B] * a.B:
            return T
        times = a.over_table(a.times_backward)
        return np.where(times == 0, 0.0, times * T)

    def over_columns(a, T):
        """(..., n_q, B), a number for each query and block, at each key of the block."""
        return T[..., a.split.rank_k]

    def by_query_ranks(a, f, source):
        """f(rows, index) for the queries of each rank, and the rows of keys that it has, put together."""
        if a.is_plain(source):
            return f(slice(None), slice(None))
        wanted, out = a.each(source), None
        for r, rows in enumerate(a.split.queries):
            index = np.empty(a.n_k, dtype=int)
            for s, columns in enumerate(a.split.keys):
                index[columns] = a.split.keys[wanted[r][s]]
            part = f(rows, index)
            out = np.empty((*part.shape[:-2], a.n_q, part.shape[-1])) if out is None else out
            out[..., rows, :] = part
        return out

    def crossed(a, left, right, source):
        """left · right, transposed, with the rows of ``right`` that each rank has."""
        return a.by_query_ranks(lambda rows, index: left[..., rows, :] @ mT(right[..., index, :]), source)

    def mixed(a, weights, values, source):
        """weights · values, with the rows of ``values`` that each rank has."""
        return a.by_query_ranks(lambda rows, index: weights[..., rows, :] @ values[..., index, :], source)

    def collected(a, table, left, home):
        """The table, transposed, times left: each rank's part of it added where it goes."""
        table, wanted = a.counted(table), a.each(home)
        if a.is_plain(home):
            return mT(table) @ left
        out = np.zeros((*table.shape[:-2], a.n_k, left.shape[-1]))
        for r, rows in enumerate(a.split.queries):
            for s, columns in enumerate(a.split.keys):
                if wanted[r][s] is not None:
                    out[..., a.split.keys[wanted[r][s]], :] += (
                        mT(table[..., rows, :][..., columns]) @ left[..., rows, :]
                    )
        return out

    def of_rank(a, T, source):
        """T by rows of queries, with the rows of rank source(r) in the place of those of r."""
        out = np.empty_like(T)
        for r, rows in enumerate(a.split.queries):
            out[..., rows, :] = T[..., a.split.queries[source(r)], :]
        return out

    # --- forward

    @step
    def earlier(a):
        """(n_q, n_k), whether the key is not later than the query, as the ranks reckon it."""
        return np.tri(a.n_q, a.n_k, dtype=bool)

    @step
    def causal_allows(a):
        """(n_q, n_k): ``earlier``, where that is asked for and rows are split."""
        return a.earlier if a.corner and a.split.kind != "heads" else Steps.causal_allows.func(a)

    def arranged(a, T):
        """A mask or bias with the columns that each rank reads."""
        if T is None or a.is_plain(a.columns_from):
            return T
        T = np.broadcast_to(T, (*T.shape[:-2], a.n_q, a.n_k))
        return a.by_query_ranks(lambda rows, index: T[..., rows, :][..., index], a.columns_from)

    @step
    def bias_seen(a):
        """The bias, or 0."""
        return 0.0 if a.bias is None else a.arranged(a.bias)

    @step
    def mask_allows(a):
        """The mask, or True everywhere."""
        mask = True if a.mask is None else a.arranged(a.mask) > 0
        return np.broadcast_to(mask, (*a.Q.shape[:-1], a.n_k))

    @step
    def products(a):
        """scale · Q Kᵀ."""
        return a.scale * a.crossed(a.Q, a.k, a.k_from)

    @step
    def scores(a):
        """scale · Q Kᵀ + bias."""
        return a.products + a.bias_seen

    @step
    def L_blocks(a):
        """(..., n_q, B), the log of the sum of exponentials over each block of keys."""
        blocks = []
        for columns in a.split.keys:
            S = a.S[..., columns]
            M = S.max(axis=-1, keepdims=True, initial=-np.inf)
            M = np.where(np.isneginf(M), 0.0, M)
            blocks.append(M + np.log(rowsum(np.exp(S - M))))
        return np.concatenate(blocks, axis=-1)

    @step
    def sinks(a):
        """(n_q, 1), how often the sink counts."""
        return np.ones((a.n_q, 1))

    @step
    def sink_seen(a):
        """The sink of each head, to be added to a table."""
        return -np.inf if a.sink is None else a.of_heads(a.sink)

    @step
    def L(a):
        """(..., n_q, 1), the blocks' L merged, and the sink; +∞ where no key is allowed."""
        times = np.array(a.each(a.times))[a.split.rank_q]
        seen = np.where(times > 0, a.L_blocks, -np.inf)
        M = np.maximum(seen.max(axis=-1, keepdims=True), a.sink_seen)
        M = np.where(np.isneginf(M), 0.0, M)
        L = M + np.log(rowsum(times * np.exp(seen - M)) + a.sinks * np.exp(a.sink_seen - M))
        return np.where(np.isneginf(L), np.inf, L)

    @step
    def factors(a):
        """(..., n_q, B), the factor with which the output of each block goes into the whole."""
        times = np.array(a.each(a.times))[a.split.rank_q]
        return np.where(times == 0, 0.0, times * np.exp(a.L_blocks - a.L))

    @step
    def P_blocks(a):
        """(..., n_q, n_k), softmax within each block."""
        return np.exp(a.S - a.over_columns(np.where(np.isneginf(a.L_blocks), np.inf, a.L_blocks)))

    @step
    def P(a):
        """The weights of the whole."""
        return a.over_columns(a.factors) * a.P_blocks

    @step
    def O(a):
        """P V."""
        return a.mixed(a.weights, a.v, a.v_from)

    # --- backward

    @step
    def allowed_backward(a):
        """Where mask and causal allow, in the backward."""
        return a.allowed

    @step
    def scores_backward(a):
        """scale · Q Kᵀ + bias, computed again."""
        same = a.each(a.k_from_backward) == a.each(a.k_from)
        return a.scores if same else a.scale * a.crossed(a.Q, a.k, a.k_from_backward) + a.bias_seen

    @step
    def L_backward(a):
        """The L that the backward uses: a column, or one for each block, over its keys."""
        return a.L

    @step
    def P_backward(a):
        """exp(S − L), 0 where a query must not attend."""
        return np.exp(np.where(a.allowed_backward, a.scores_backward, -np.inf) - a.L_backward)

    @step
    def dO_of_dV(a):
        """The dO that the backward uses in dV."""
        return a.dO_read

    @step
    def dP(a):
        """dO Vᵀ."""
        return a.crossed(a.dO_read, a.v, a.v_from_backward)

    @step
    def D(a):
        """rowsum(dO ∘ O)."""
        return rowsum(a.dO * a.O)

    @step
    def dV_heads(a):
        """Pᵀ dO, for every query head."""
        return a.collected(a.P_backward, a.dO_of_dV, a.home_v)

    @step
    def dQ_unscaled(a):
        """dS K."""
        return a.mixed(a.counted(a.dproducts), a.k, a.k_from_backward)

    @step
    def dK_unscaled(a):
        """dSᵀ Q, for every query head."""
        return a.collected(a.dproducts, a.Q, a.home_k)
