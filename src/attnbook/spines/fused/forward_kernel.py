"""The forward: for a block of queries one pass over the keys, with the online softmax. It keeps O, and L as M and Z."""

import triton
import triton.language as tl

from attnbook.spines.fused.tile import edge, edges, exponent, load, scores, span, store


@triton.jit
def forward_kernel(
    Q, K, V, O, M_of, Z_of, table,
    D_K: tl.constexpr, D_V: tl.constexpr, WIDE_K: tl.constexpr, WIDE_V: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EXACT: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """O, M and Z of ROWS queries of one head."""
    blocks = tl.cdiv(table.n_q, ROWS)
    head = tl.cast(tl.program_id(0) // blocks, tl.int64)
    b, h = head // table.h, head % table.h
    i0 = (blocks - 1 - tl.program_id(0) % blocks) * ROWS  # the last first: with a causal mask they have the most to do
    q = load(Q, b, h, i0, table.n_q, ROWS, D_K, WIDE_K, True)
    M = tl.full((ROWS,), float("-inf"), tl.float32)
    Z = tl.zeros((ROWS,), tl.float32)
    A = tl.zeros((ROWS, WIDE_V), tl.float32)  # the output, not yet divided by Z
    first, inner_first, inner_last, last = span(
        i0, tl.minimum(i0 + ROWS, table.n_q), table.n_k, table.low, table.high, COLS
    )
    for j0 in tl.range(inner_first, inner_last, COLS):
        M, Z, A = absorb(q, K, V, M, Z, A, table, b, h, i0, j0,
                         D_K, D_V, WIDE_K, WIDE_V, ROWS, COLS, False, EXACT, PRODUCTS)  # fmt: skip
    for t in tl.range(0, edges(first, inner_first, inner_last, last, COLS)):
        j0 = edge(t, first, inner_first, inner_last, COLS)
        M, Z, A = absorb(q, K, V, M, Z, A, table, b, h, i0, j0,
                         D_K, D_V, WIDE_K, WIDE_V, ROWS, COLS, True, EXACT, PRODUCTS)  # fmt: skip
    dead = Z == 0.0
    M, Z = tl.where(dead, 0.0, M), tl.where(dead, float("inf"), Z)
    store(O, b, h, i0, table.n_q, A / Z[:, None], ROWS, D_V, WIDE_V)
    i = i0 + tl.arange(0, ROWS)
    tl.store(M_of + head * table.n_q + i, M, i < table.n_q)
    tl.store(Z_of + head * table.n_q + i, Z, i < table.n_q)


@triton.jit
def absorb(
    q, K, V, M, Z, A, table, b, h, i0, j0,
    D_K: tl.constexpr, D_V: tl.constexpr, WIDE_K: tl.constexpr, WIDE_V: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, EDGE: tl.constexpr, EXACT: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """M, Z and A after one more tile of keys."""
    k = load(K, b, h, j0, table.n_k, COLS, D_K, WIDE_K, EDGE)
    X = tl.dot(q, tl.trans(k), input_precision=PRODUCTS)
    i, j = tl.arange(0, ROWS)[:, None], tl.arange(0, COLS)[None, :]
    U, _ = scores(X, table, b, h, i0, j0, i, j, EDGE)
    highest = tl.maximum(M, tl.max(U, 1))
    shift = highest
    if EDGE or table.has_mask is not None or table.has_bias is not None:  # nothing allowed so far: −∞ − (−∞) is NaN
        shift = tl.where(highest == float("-inf"), 0.0, highest)
    fade = tl.exp2((M - shift) * table.unit)
    if EXACT or table.has_bias is not None:
        E = tl.exp2(exponent(U, shift[:, None], 0.0, table, EXACT))
    else:
        E = tl.exp2(exponent(U, shift[:, None], (shift * table.unit)[:, None], table, EXACT))
    Z = fade * Z + tl.sum(E, 1)
    v = load(V, b, h, j0, table.n_k, COLS, D_V, WIDE_V, EDGE)
    A = tl.dot(E.to(v.dtype), v, A * fade[:, None], input_precision=PRODUCTS)
    return highest, Z, A
