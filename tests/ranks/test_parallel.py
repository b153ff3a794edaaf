"""Attention over ranks that are simulated: each scheme is one process to rounding, and all that it sends is counted."""

from itertools import product

import numpy as np
import pytest
from cases import CASES
from compare import draw
from libraries import NumPy, Strict, Torch

import attnbook as ab
from attnbook.diagnose.cases.covering import cover
from attnbook.ops import ALiBi, Bias, RelativeBias, Segments, Window
from attnbook.parallel import bytes_of, join, positions, scores_of_ranks, simulate, split

METHODS = ("auto", "dense")
SCHEMES = ("ring", "gather", "heads", "tree")
PLACEMENTS = ("contiguous", "zigzag", "striped")
UP_TO = 1e-12
"""Float64: of gradients up to 10, in sums of another order."""


def one_process(Q, K, V, dO, dL=None, **options):
    O, res = ab.attention(Q, K, V, **options)
    g = ab.attention_vjp(dO, res, dL)
    return [O, res.L, g.dQ, g.dK, g.dV, *(dop for dop in g.dops if dop is not None)]


def over_ranks(scheme, Q, K, V, dO, dL=None, **options):
    found = simulate(scheme, Q, K, V, dO=dO, dL=dL, **options)
    return found, [*found[:5], *(dop for dop in found.dops if dop is not None)]


def error(came, wanted):
    """The largest, over all results; ∞ where one is not finite where the other is, L of −∞ apart."""
    worst = 0.0
    for a, b in zip(came, wanted, strict=True):
        assert a.shape == b.shape
        same = a == b
        with np.errstate(invalid="ignore"):
            worst = max(worst, np.max(np.where(same, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf)), initial=0.0))
    return worst


def inputs_of(q, k, v):
    """Q, K, V and dO, dL."""
    Q, K, V = draw(q, k, v)
    return Q, K, V, *draw((*q[:-1], v[-1]), q[:-1], seed=1)


# --- one process, to rounding ---------------------------------------------------------------------------------------


EACH = {
    "causal": (False, True, "bottom-right"),
    "h_kv": (9, 3),
    "ranks": (1, 2, 3, 4, 11),  # more than heads; and than rows, of which a rank has two in zigzag
    "placement": PLACEMENTS,
    "with_dL": (False, True),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_is_one_process(scheme):
    """Sizes that no number of ranks divides, and heads that several ranks share; and the bytes are by the formula."""
    for row in cover(EACH, triples=[("causal", "ranks", "placement")]):
        h_kv, with_dL, causal = row.pop("h_kv"), row.pop("with_dL"), row["causal"]
        *inputs, dL = inputs_of((2, 9, 13, 5), (2, h_kv, 17, 5), (2, h_kv, 17, 7))
        arrived = [dL] * with_dL
        found, came = over_ranks(scheme, *inputs, *arrived, **row)
        assert error(came, one_process(*inputs, *arrived, causal=causal)) <= UP_TO, row
        if not with_dL:
            sizes = {"n_q": 13, "n_k": 17, "d_k": 5, "d_v": 7, "h": 9, "h_kv": h_kv, "batch": 2}
            assert np.array_equal(found.traffic.sum(axis=-1), bytes_of(scheme, **sizes, **row)), row


def fits(case):
    """Whether leading axes are those of Q, and K and V have as many heads."""
    return case.q[:-3] == case.k[:-3] == case.v[:-3] and case.k[:-2] == case.v[:-2] and len(case.q) == len(case.k)


@pytest.mark.parametrize("case", [case for case in CASES if fits(case)], ids=str)
def test_every_case_of_the_table(case):
    """All ops, masks and dead rows; every placement that the ops take."""
    inputs = case.draw()
    options = case.options(inputs[0], *inputs[3:])
    Q, K, V = inputs[:3]
    dO, dL = draw((*case.scores[:-1], V.shape[-1]), case.scores[:-1], seed=1)
    wanted = one_process(Q, K, V, dO, dL, **options)
    if "bias" in options:
        wanted.append(ab.attention_vjp(dO, ab.attention(Q, K, V, **options)[1], dL).dbias)
        options["ops"] = [*options["ops"], Bias(options.pop("bias"))]
    strides = all(op.strides for op in options["ops"])
    for i, scheme in enumerate(SCHEMES[: 4 if Q.ndim > 2 else 2]):
        how = {"ranks": 3 - i % 2, "placement": PLACEMENTS[i % (3 if strides else 2)], "method": METHODS[i % 2]}
        assert error(over_ranks(scheme, Q, K, V, dO, dL, **how, **options)[1], wanted) <= UP_TO, (scheme, how)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("library", "dtype"), [(NumPy, "float32"), (NumPy, "float16"), (Torch, "bfloat16"), (Strict, "float32")]
)
def test_sums_are_in_float32(scheme, library, dtype):
    """A result of 16 bits is that of float32, rounded once: it differs by a last bit, where float32 differs by some."""
    xp = library()
    eps = float(xp.namespace.finfo(xp.dtype(dtype)).eps)
    low = [xp.cast(xp.asarray(T), dtype) for T in inputs_of((2, 4, 33, 8), (2, 2, 33, 8), (2, 2, 33, 8))[:4]]
    found, came = over_ranks(scheme, *low, ranks=4, causal=True, placement="zigzag")
    assert all(xp.owns(T) for T in came)
    assert all(T.dtype == xp.dtype(dtype) for T in (found.O, found.dQ, found.dK, found.dV))
    wanted = one_process(*(np.asarray(xp.numpy(T), "float64") for T in low), causal=True)
    for T, right in zip(came, wanted, strict=True):
        assert np.max(np.abs(xp.numpy(T) - right)) <= (eps / 2 + 3e-6) * np.max(np.abs(right))


# --- what is counted ------------------------------------------------------------------------------------------------


def test_work_is_what_the_ranks_have_met():
    Q, K, V = draw((2, 3, 16, 4), (2, 3, 16, 4), (2, 3, 16, 4))
    for scheme, placement in product(SCHEMES, PLACEMENTS):
        found = simulate(scheme, Q, K, V, ranks=4, placement=placement, causal=True)
        assert found.work.sum() == 6 * 16 * 17 // 2
        if scheme in ("ring", "gather"):
            of_rows = scores_of_ranks(16, 16, 4, placement, causal=True)
            assert np.array_equal(found.work.sum(axis=-1), 6 * of_rows)


def test_hops_that_see_nothing_are_skipped():
    """Under a window of 3 keys, at 4 rows a rank, keys go one rank further and no more."""
    Q, K, V = draw((32, 4), (32, 4), (32, 4))
    O = ab.attention(Q, K, V, causal=True, ops=[Window(3)])[0]
    found = simulate("ring", Q, K, V, ranks=8, causal=True, ops=[Window(3)], dO=O)
    assert found.traffic[0].sum(axis=-1).tolist() == [256] * 7 + [0]
    assert found.work.shape == (8, 2)
    everywhere = simulate("ring", Q, K, V, ranks=8)
    assert everywhere.traffic[0].sum() == 8 * found.traffic[0].sum()
    far = simulate("ring", Q, K, V, ranks=8, ops=[Segments(np.arange(32) // 4, np.arange(32) // 4)])
    assert far.traffic.sum() == 0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_messages_may_be_late_and_out_of_order(scheme):
    *inputs, dL = inputs_of((2, 4, 13, 5), (2, 4, 13, 5), (2, 4, 13, 7))
    options = {"ranks": 4, "placement": "zigzag", "causal": True}
    prompt, wanted = over_ranks(scheme, *inputs, dL, **options)
    rng = np.random.default_rng(0)
    late, came = over_ranks(scheme, *inputs, dL, **options, network=lambda source, to, step: int(rng.integers(9)))
    assert all(np.array_equal(a, b) for a, b in zip(came, wanted, strict=True))
    assert np.array_equal(late.traffic, prompt.traffic)
    assert late.waits.sum() > prompt.waits.sum()


@pytest.mark.parametrize(
    ("scheme", "lost", "nth", "words"),
    [
        ("ring", (1, 2, 1), 1, "ring, forward: rank 2 waits at step 1 for rank 1, rank 3 waits at step 2 for rank 2"),
        ("gather", (0, 3, 0), 1, "gather, forward: rank 3 waits at step 0 for rank 0"),
        ("heads", (2, 1, 1), 1, "heads, forward: rank 1 waits at step 1 for rank 2"),
        ("tree", (2, 0, 1), 1, "tree, forward: rank 0 waits at step 1 for rank 2"),
        ("ring", (2, 3, 1), 2, "ring, backward: .*rank 3 waits at step 1 for rank 2"),
    ],
)
def test_a_lost_message_is_told(scheme, lost, nth, words):
    sent = []
    Q, K, V = draw((4, 8, 3), (4, 8, 3), (4, 8, 3))

    def network(*where):
        sent.append(where)
        return None if where == lost and sent.count(lost) == nth else 0

    with pytest.raises(RuntimeError, match=words):
        simulate(scheme, Q, K, V, ranks=4, dO=V, network=network)


# --- placements -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_placement_deals_out_all_rows_once(placement):
    for n, ranks in product((0, 1, 7, 12), (1, 2, 5)):
        where = positions(n, ranks, placement)
        assert sorted(np.concatenate(where).tolist()) == list(range(n))
        assert max(map(len, where)) - min(map(len, where)) <= 2
        X = np.random.default_rng(0).standard_normal((3, n, 2))
        for axis, T in ((-2, X), (0, X[0]), (2, X.mT)):
            parts = split(T, ranks, placement, axis)
            assert all(np.array_equal(p, np.take(T, w, axis)) for p, w in zip(parts, where, strict=True))
            assert np.array_equal(join(parts, placement, axis), T)


# --- bad input ------------------------------------------------------------------------------------------------------

Q, K, V = draw((2, 4, 8, 5), (2, 4, 8, 5), (2, 4, 8, 7))
BY = {"scheme": "ring", "ranks": 2, "n_q": 4, "n_k": 4, "d_k": 2, "d_v": 2}
ON = {"scheme": "ring", "Q": Q, "K": K, "V": V, "ranks": 2}
FLAT = {"Q": Q[0, 0], "K": K[0, 0], "V": V[0, 0]}
BAD = [  # a function, what differs from a call that is right, and what is told
    (simulate, {"scheme": "star"}, "scheme: expected one of 'ring', 'gather', 'heads', 'tree', got 'star'"),
    (simulate, {"ranks": 0}, "ranks: expected a number of ranks, at least 1, got 0"),
    (simulate, {"placement": "ring"}, "placement: expected one of 'contiguous', 'zigzag', 'striped', got 'ring'"),
    (simulate, {"method": "fused"}, "method: expected one of 'auto', 'tiled', 'dense', got 'fused'"),
    (simulate, {"K": K[0], "V": V[0]},
     "K: expected the leading axes of Q, (2, 4, 8, 5), but for heads, got shape (4, 8, 5)"),
    (simulate, {"V": V[:, :2]}, "V: expected as many heads as K, of shape (2, 4, 8, 5), got shape (2, 2, 8, 7)"),
    (simulate, {"K": K[..., :3]}, "K: expected the head width of Q, 5, got shape (2, 4, 8, 3)"),
    (simulate, {"V": np.float32(V)}, "V: expected dtype float64 like Q, got float32"),
    (simulate, {"scheme": "heads"} | FLAT, "Q: expected an axis of heads, (..., h, n_q, d_k), got shape (8, 5)"),
    (simulate, {"dO": Q}, "dO: expected shape (2, 4, 8, 7), got (2, 4, 8, 5)"),
    (simulate, {"dL": V[..., 0]}, "dL: expected None without dO, got an array"),
    (simulate, {"ops": [ALiBi(np.ones(3))]},
     "ops, ALiBi: expected a shape that broadcasts to the leading axes of the scores, (2, 4), got shape (3,)"),
    (simulate, {"placement": "striped", "ops": [RelativeBias(np.ones(3))]},
     'ops, RelativeBias: expected strides = True for placement="striped", got False'),
    (simulate, {"network": 5}, "network: expected a function of (source, to, step)"),
    (positions, {"n": -1, "ranks": 2}, "n: expected a number of rows, got -1"),
    (split, {"X": 3.0, "ranks": 2}, "X: expected an array, got float"),
    (split, {"X": Q, "ranks": 2, "axis": 7}, "axis: expected an axis of X, of shape (2, 4, 8, 5), got 7"),
    (join, {"parts": []}, "parts: expected arrays, one a rank, got []"),
    (join, {"parts": [Q, Q[..., :2, :]], "placement": "zigzag"},
     "parts: expected [5, 5] rows, as zigzag gives, got [8, 2]"),
    (join, {"parts": [Q, Q[:1]]},
     "parts: expected the same sizes but for axis 2, got [(2, 4, 8, 5), (1, 4, 8, 5)]"),
    (bytes_of, {"d_k": 2.5}, "d_k: expected an integer of at least 1, got 2.5"),
    (bytes_of, {"scheme": "heads", "h": 4, "h_kv": 3}, "h_kv: expected a number that divides h, 4, got 3"),
    (scores_of_ranks, {"n_q": 4, "n_k": 4, "ranks": 2, "placement": "zigzag", "causal": "left"},
     "causal: expected one of False, True, 'top-left', 'bottom-right', got 'left'"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "options", "words"), BAD, ids=[words[:50] for *_, words in BAD])
def test_bad_input(call, options, words):
    with pytest.raises((TypeError, ValueError)) as told:
        call(**{simulate: ON, bytes_of: BY}.get(call, {}) | options)
    assert words in str(told.value)
