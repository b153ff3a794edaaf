"""The backward: D first, then dK and dV with the keys outside, then dQ with the queries outside.

Each tile's P is made again, twice: seven products where five would do. In return every sum has one writer and one
order, so the same call gives the same bits, and nothing is added to memory by two programs at once.
"""

import triton
import triton.language as tl

from attnbook.spines.fused.tile import before_cap, edge, edges, load, span, store, weights


@triton.jit
def row_sums(
    dO, O, M_of, Z_of, D_of, G_of, h, n_q, unit,
    D_V: tl.constexpr, WIDE_V: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """D = rowsum(dO ∘ O), and G = log₂ Z: all that a tile has to know of the rest of its rows, beside M. With a
    ``unit`` G = M · unit + log₂ Z, and no M is needed.
    """
    blocks = tl.cdiv(n_q, ROWS)
    head = tl.cast(tl.program_id(0) // blocks, tl.int64)
    i0 = tl.program_id(0) % blocks * ROWS
    o = load(O, head // h, head % h, i0, n_q, ROWS, D_V, WIDE_V, True).to(tl.float32)
    do = load(dO, head // h, head % h, i0, n_q, ROWS, D_V, WIDE_V, True).to(tl.float32)
    i = i0 + tl.arange(0, ROWS)
    at = head * n_q + i
    tl.store(D_of + at, tl.sum(do * o, 1), i < n_q)
    G = tl.log2(tl.load(Z_of + at, i < n_q, other=1.0))
    if unit is not None:
        G += tl.load(M_of + at, i < n_q, other=0.0) * unit
    tl.store(G_of + at, G, i < n_q)


@triton.jit
def of_rows(M_of, G_of, D_of, head, i0, n_q, ROWS: tl.constexpr):
    """M, G and D of a block of queries. Where M is None, G has it, and stands in for what nobody reads."""
    i = i0 + tl.arange(0, ROWS)
    at = head * n_q + i
    G = tl.load(G_of + at, i < n_q, other=0.0)
    M = G
    if M_of is not None:
        M = tl.load(M_of + at, i < n_q, other=0.0)
    D = tl.load(D_of + at, i < n_q, other=0.0)
    return M, G, D


# --- dK and dV: keys outside, tiles transposed --------------------------------------------------------------------


@triton.jit
def backward_keys(
    Q, K, V, dO, dK_of, dV_of, M_of, G_of, D_of, table, scale, group,
    D_K: tl.constexpr, D_V: tl.constexpr, WIDE_K: tl.constexpr, WIDE_V: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EXACT: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """dK and dV of COLS keys of one head, added up over the ``group`` query heads that share it."""
    blocks = tl.cdiv(table.n_k, COLS)
    shared = tl.cast(tl.program_id(0) // blocks, tl.int64)
    heads = table.h // group
    b, h_kv = shared // heads, shared % heads
    j0 = tl.program_id(0) % blocks * COLS
    k = load(K, b, h_kv * group, j0, table.n_k, COLS, D_K, WIDE_K, True)
    v = load(V, b, h_kv * group, j0, table.n_k, COLS, D_V, WIDE_V, True)
    dK = tl.zeros((COLS, WIDE_K), tl.float32)
    dV = tl.zeros((COLS, WIDE_V), tl.float32)
    low, high = None, None  # seen from the keys
    if table.high is not None:
        low = -table.high
    if table.low is not None:
        high = -table.low
    first, inner_first, inner_last, last = span(j0, tl.minimum(j0 + COLS, table.n_k), table.n_q, low, high, ROWS)
    for place in tl.range(0, group):
        h = h_kv * group + place
        for i0 in tl.range(inner_first, inner_last, ROWS):
            dK, dV = tile_of_keys(Q, k, v, dO, dK, dV, M_of, G_of, D_of, table, b, h, i0, j0,
                                  D_K, D_V, WIDE_K, WIDE_V, ROWS, COLS, False, EXACT, PRODUCTS)  # fmt: skip
        for t in tl.range(0, edges(first, inner_first, inner_last, last, ROWS)):
            i0 = edge(t, first, inner_first, inner_last, ROWS)
            dK, dV = tile_of_keys(Q, k, v, dO, dK, dV, M_of, G_of, D_of, table, b, h, i0, j0,
                                  D_K, D_V, WIDE_K, WIDE_V, ROWS, COLS, True, EXACT, PRODUCTS)  # fmt: skip
    store(dK_of, b, h_kv, j0, table.n_k, dK * scale, COLS, D_K, WIDE_K)
    store(dV_of, b, h_kv, j0, table.n_k, dV, COLS, D_V, WIDE_V)


@triton.jit
def tile_of_keys(
    Q, k, v, dO, dK, dV, M_of, G_of, D_of, table, b, h, i0, j0,
    D_K: tl.constexpr, D_V: tl.constexpr, WIDE_K: tl.constexpr, WIDE_V: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EDGE: tl.constexpr, EXACT: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """dK and dV after one more tile. Pᵀ and dSᵀ are what the two sums need, so the tile is made transposed."""
    q = load(Q, b, h, i0, table.n_q, ROWS, D_K, WIDE_K, EDGE)
    do = load(dO, b, h, i0, table.n_q, ROWS, D_V, WIDE_V, EDGE)
    M, G, D = of_rows(M_of, G_of, D_of, b * table.h + h, i0, table.n_q, ROWS)
    i, j = tl.arange(0, ROWS)[None, :], tl.arange(0, COLS)[:, None]
    if EXACT:  # the very product of the forward: only then is U − M 0 where M was found
        X = tl.trans(tl.dot(q, tl.trans(k), input_precision=PRODUCTS))
    else:
        X = tl.dot(k, tl.trans(q), input_precision=PRODUCTS)
    P, T = weights(X, M[None, :], G[None, :], table, b, h, i0, j0, i, j, EDGE, EXACT)
    dV = tl.dot(P.to(do.dtype), do, dV, input_precision=PRODUCTS)  # O = P V
    dP = tl.dot(v, tl.trans(do), input_precision=PRODUCTS)
    dS = before_cap(P * (dP - D[None, :]), T, table)  # P = softmax(S)
    dK = tl.dot(dS.to(q.dtype), q, dK, input_precision=PRODUCTS)  # S = Q Kᵀ
    return dK, dV


# --- dQ: queries outside ------------------------------------------------------------------------------------------


@triton.jit
def backward_queries(
    Q, K, V, dO, dQ_of, M_of, G_of, D_of, table, scale,
    D_K: tl.constexpr, D_V: tl.constexpr, WIDE_K: tl.constexpr, WIDE_V: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EXACT: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """dQ of ROWS queries of one head."""
    blocks = tl.cdiv(table.n_q, ROWS)
    head = tl.cast(tl.program_id(0) // blocks, tl.int64)
    b, h = head // table.h, head % table.h
    i0 = (blocks - 1 - tl.program_id(0) % blocks) * ROWS
    q = load(Q, b, h, i0, table.n_q, ROWS, D_K, WIDE_K, True)
    do = load(dO, b, h, i0, table.n_q, ROWS, D_V, WIDE_V, True)
    M, G, D = of_rows(M_of, G_of, D_of, head, i0, table.n_q, ROWS)
    dQ = tl.zeros((ROWS, WIDE_K), tl.float32)
    first, inner_first, inner_last, last = span(
        i0, tl.minimum(i0 + ROWS, table.n_q), table.n_k, table.low, table.high, COLS
    )
    for j0 in tl.range(inner_first, inner_last, COLS):
        dS, T, k = tile_of_dS(q, K, V, do, M, G, D, table, b, h, i0, j0,
                              D_K, D_V, WIDE_K, WIDE_V, ROWS, COLS, False, EXACT, PRODUCTS)  # fmt: skip
        dQ = tl.dot(before_cap(dS, T, table).to(k.dtype), k, dQ, input_precision=PRODUCTS)  # S = Q Kᵀ
    for t in tl.range(0, edges(first, inner_first, inner_last, last, COLS)):
        j0 = edge(t, first, inner_first, inner_last, COLS)
        dS, T, k = tile_of_dS(q, K, V, do, M, G, D, table, b, h, i0, j0,
                              D_K, D_V, WIDE_K, WIDE_V, ROWS, COLS, True, EXACT, PRODUCTS)  # fmt: skip
        dQ = tl.dot(before_cap(dS, T, table).to(k.dtype), k, dQ, input_precision=PRODUCTS)
    store(dQ_of, b, h, i0, table.n_q, dQ * scale, ROWS, D_K, WIDE_K)


@triton.jit
def tile_of_dS(
    q, K, V, do, M, G, D, table, b, h, i0, j0,
    D_K: tl.constexpr, D_V: tl.constexpr, WIDE_K: tl.constexpr, WIDE_V: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EDGE: tl.constexpr, EXACT: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """dS on a tile as the softmax leaves it, the cap's tanh, and the keys that dS is to be multiplied with."""
    k = load(K, b, h, j0, table.n_k, COLS, D_K, WIDE_K, EDGE)
    v = load(V, b, h, j0, table.n_k, COLS, D_V, WIDE_V, EDGE)
    i, j = tl.arange(0, ROWS)[:, None], tl.arange(0, COLS)[None, :]
    X = tl.dot(q, tl.trans(k), input_precision=PRODUCTS)
    P, T = weights(X, M[:, None], G[:, None], table, b, h, i0, j0, i, j, EDGE, EXACT)
    dP = tl.dot(do, tl.trans(v), input_precision=PRODUCTS)
    return P * (dP - D[:, None]), T, k  # P = softmax(S)


# --- dbias: the places of the bias outside ------------------------------------------------------------------------


@triton.jit
def backward_bias(
    Q, K, V, dO, dB_of, M_of, G_of, D_of, table, batches, heads, shift,
    D_K: tl.constexpr, D_V: tl.constexpr, WIDE_K: tl.constexpr, WIDE_V: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EXACT: tl.constexpr, PRODUCTS: tl.constexpr,
    BY_ROW: tl.constexpr, BY_COL: tl.constexpr,
):  # fmt: skip
    """dS added up over all that share an entry of the bias: ``batches`` × ``heads`` heads; all queries, unless BY_ROW;
    all keys, unless BY_COL. With a ``shift`` each dS times −|j − i − shift|.
    """
    row_blocks, col_blocks = 1, 1
    if BY_ROW:
        row_blocks = tl.cdiv(table.n_q, ROWS)
    if BY_COL:
        col_blocks = tl.cdiv(table.n_k, COLS)
    own = tl.cast(tl.program_id(0) // (row_blocks * col_blocks), tl.int64)
    i_first, i_last, j_first, j_last = 0, table.n_q, 0, table.n_k
    if BY_ROW:
        i_first = tl.program_id(0) // col_blocks % row_blocks * ROWS
        i_last = tl.minimum(i_first + ROWS, table.n_q)
    if BY_COL:
        j_first = tl.program_id(0) % col_blocks * COLS
        j_last = tl.minimum(j_first + COLS, table.n_k)
    of_b, of_h = own // (table.h // heads), own % (table.h // heads)
    dB = tl.zeros((ROWS, COLS), tl.float32)
    for t in tl.range(0, batches * heads):
        b, h = of_b * batches + t // heads, of_h * heads + t % heads
        for i0 in tl.range(i_first, i_last, ROWS):
            q = load(Q, b, h, i0, table.n_q, ROWS, D_K, WIDE_K, True)
            do = load(dO, b, h, i0, table.n_q, ROWS, D_V, WIDE_V, True)
            M, G, D = of_rows(M_of, G_of, D_of, b * table.h + h, i0, table.n_q, ROWS)
            first, _inner_first, _inner_last, last = span(
                i0, tl.minimum(i0 + ROWS, table.n_q), table.n_k, table.low, table.high, COLS
            )
            for j0 in tl.range(tl.maximum(first, j_first), tl.minimum(last, j_last), COLS):
                dS, _T, _k = tile_of_dS(q, K, V, do, M, G, D, table, b, h, i0, j0,
                                      D_K, D_V, WIDE_K, WIDE_V, ROWS, COLS, True, EXACT, PRODUCTS)  # fmt: skip
                if shift is not None:
                    dS = -dS * tl.abs(j0 + tl.arange(0, COLS)[None, :] - i0 - tl.arange(0, ROWS)[:, None] - shift)
                dB += dS
    i, j = i_first + tl.arange(0, ROWS), j_first + tl.arange(0, COLS)
    if BY_ROW and BY_COL:
        at = (own * table.n_q + i[:, None]) * table.n_k + j[None, :]
        tl.store(dB_of + at, dB, (i[:, None] < table.n_q) & (j[None, :] < table.n_k))
    elif BY_ROW:
        tl.store(dB_of + own * table.n_q + i, tl.sum(dB, 1), i < table.n_q)
    else:
        tl.store(dB_of + own * table.n_k + j, tl.sum(dB, 0), j < table.n_k)
