"""diagnose over several ranks: silent about what is right, and every parallel mistake named, as others write it."""

import json
import threading
import time

import numpy as np
import pytest
import torch
from attentions.over_ranks import RIGHT, gathered, own_heads, ring, ulysses
from attentions.wrong_over_ranks import NOT_SKIPPED, PLANTED, TURNED, F, added, of, planted, returned, turned, visit

import attnbook as ab
from attnbook.diagnose import Ranks
from attnbook.diagnose.causes.mistakes import MISTAKE
from attnbook.diagnose.causes.registry import TITLES
from attnbook.diagnose.learn.results import NAMES
from attnbook.diagnose.ranks._likely_rank import likely
from attnbook.diagnose.ranks.catalogue import MISTAKES, OF_RANKS
from attnbook.diagnose.ranks.comm import simulate
from attnbook.diagnose.ranks.over_ranks import OverRanks
from attnbook.diagnose.ranks.splits import cases


def names(report):
    """The mistakes it names, and what it says is wrong."""
    return report.mistakes, tuple(f.about for f in report.findings if f.kind == "wrong")


def words(report):
    return " ".join(str(report).split())


# --- what is right ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RIGHT)
def test_it_finds_nothing_in_what_is_right(name):
    fn, split = RIGHT[name]
    start = time.process_time()
    report = ab.diagnose(Ranks(fn, split))
    assert time.process_time() - start < 2
    assert report.ok, str(report)
    assert not report.notes
    asked = [case.name for case in cases(split) if not case.words or name == "all-gather"]
    assert list(report.compared) == asked
    assert len(asked) >= 32


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(1, 11))
@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_it_finds_nothing_with_other_numbers(name, dtype, seed):
    assert ab.diagnose(Ranks(*RIGHT[name]), dtype=dtype, seed=seed).ok


def test_other_numbers_of_ranks():
    assert len(ab.diagnose(Ranks(ring, ranks=(5,))).compared) == 10
    assert ab.diagnose(Ranks(ulysses, ranks=6)).ok


def test_a_pair_and_autograd():
    def forward(Q, K, V, comm, causal=False):
        K, V = (np.concatenate(comm.all_gather(T), axis=-2) for T in (K, V))
        first = comm.rank * Q.shape[-2]
        mask = first + np.arange(Q.shape[-2])[:, None] >= np.arange(K.shape[-2]) if causal else None
        return ab.attention(Q, K, V, mask=mask)

    def backward(dO, res, comm):
        dQ, dK, dV = ab.attention_vjp(dO, res)[:3]
        return dQ, *(comm.reduce_scatter(np.split(T, comm.size, axis=-2)) for T in (dK, dV))

    assert len(ab.diagnose(Ranks((forward, backward))).compared) >= 20

    def heads_of_torch(Q, K, V, comm):
        return torch.nn.functional.scaled_dot_product_attention(Q, K, V)

    report = ab.diagnose(Ranks(heads_of_torch, "heads"), library="torch")
    assert report.ok
    assert {"plain, 4 ranks", "large scores, 3 ranks"} <= set(report.compared)


def test_a_lower_precision():
    """float32 is a note, and float16 that is not of a hop has no name."""

    def cast(*dtypes):
        def run(Q, K, V, dO, comm, causal=False, scale=None):
            for dtype in dtypes:
                Q, K, V, dO = (T.astype(dtype) for T in (Q, K, V, dO))
            return ring(Q, K, V, dO, comm, causal, scale)

        return ab.diagnose(Ranks(run, ranks=2))

    single, half = cast("float32"), cast("float16", "float64")
    assert single.ok
    assert "O, dQ, dK, dV are float32 where float64 went in" in single.notes
    assert {(f.about, f.kind) for f in half.findings} == {(name, "precision") for name in NAMES}


# --- what is wrong ------------------------------------------------------------------------------------------------


def test_the_catalogue_is_complete():
    assert PLANTED.keys() == OF_RANKS.keys()
    assert len(MISTAKES) == len(OF_RANKS) == len({mistake.title for mistake in MISTAKES}) >= 100
    assert not OF_RANKS.keys() & TITLES.keys()
    assert all(hasattr(OverRanks, step) for mistake in MISTAKES for step in mistake.steps)


@pytest.mark.parametrize(
    ("slug", "ranks", "seed"),
    [
        *(
            pytest.param(slug, (1, 2, 3), 0, marks=[pytest.mark.thorough] * (i % 8 > 0))
            for i, slug in enumerate(PLANTED)
        ),
        *(pytest.param(slug, (1, 2, 3, 4), 1, marks=pytest.mark.thorough) for slug in PLANTED),
    ],
)
def test_it_is_named_alone(slug, ranks, seed):
    name, split, edits = PLANTED[slug]
    report = ab.diagnose(Ranks(planted(edits, name), split, ranks=ranks), seed=seed)
    assert names(report) == ((slug,), OF_RANKS[slug].spoils)


@pytest.mark.parametrize(
    "slug",
    ["l-of-last-hop", *(pytest.param(slug, marks=pytest.mark.thorough) for slug in ("hop-missing", "ring-kv-late"))],
)
def test_it_is_named_in_another_ring(slug):
    edits = PLANTED[slug][2]
    rings = turned(planted(edits + TURNED, "ring")), planted(edits + NOT_SKIPPED, "ring")
    back, unskipped = (ab.diagnose(Ranks(ring_, ranks=(1, 2, 3))) for ring_ in rings)
    assert names(back) == names(unskipped) == ((slug,), OF_RANKS[slug].spoils)
    assert "so it is in a ring where K and V go to the rank before" in words(back)


def test_what_stands_in_no_catalogue_has_no_name():
    def unknown(*args, **options):
        O, dQ, dK, dV = ring(*args, **options)
        return O, dQ + 0.3 * np.sin(dQ), dK, dV

    report = ab.diagnose(Ranks(unknown, ranks=(1, 2)))
    assert names(report) == ((), ("dQ",))
    assert "dK is right there, so dS is: the product with K, or the sum over the hops" in words(report)


@pytest.mark.parametrize(
    ("edits", "fn", "name", "lines"),
    [
        (of(F, visit("t != 1")), "ring", "O", [
            "wrong in all cases on more than one rank, and in no other",
            'as if, in "plain, 3 ranks", each rank lacked the part of the keys of the rank before it, with weights '
            "that sum to 1 all the same",
        ]),
        (added("1 + (t == 1)", "dk"), "ring", "dK", [
            "dQ is right there, so dS is: the product with Q, or the way home, is the likeliest",
            "each rank had the part of the queries of the rank after it 2 times",
        ]),
        (returned("dQ, dk, (1.5 * dv if r == 1 else dv)"), "ring", "dV", ["right but for a factor: 1.5"]),
        (returned("(1 + r) * dQ, dk, dv"), "ring", "dQ", [
            "wrong on every rank but rank 0", "right but for a factor: the rank's number plus 1",
        ]),
        (of(F, ("return O,", "return comm.exchange(O),")), "ring", "O", [
            'in "plain, 3 ranks" each rank has the right part of the rank before it',
        ]),
        (PLANTED["dkv-reversed"][2], "gathered", "dV", [
            'in "plain, 3 ranks" rank 0 has the right part of rank 2, rank 2 has the right part of rank 0',
        ]),
        (PLANTED["do-of-neighbor-in-dv"][2], "ring", "dV", [
            "had the part of its own queries with the dO of the rank before it",
        ]),
        (PLANTED["dkv-kept"][2], "ring", "dK", ["had the part of its own queries for the keys of the rank before it"]),
        (returned("dQ, dk + (0.6 * np.sin(dk) if causal and R > 1 else 0), dv"), "ring", "dK", [
            "wrong in all cases with causal on more than one rank, and in no other",
        ]),
        (returned("dQ, dk + (0.6 * np.sin(dk) if r != 1 else 0), dv"), "ring", "dK", [
            'in "plain, 3 ranks" wrong on ranks 0, 2, right on rank 1',
        ]),
    ],
)  # fmt: skip
def test_what_has_no_name_has_clues(edits, fn, name, lines):
    runs = [run for run in Ranks(planted(edits, fn), ranks=(1, 2, 3)).runs()[0] if run.compared]
    said = likely(name, [run for run in runs if not run.right_in(name)], runs)
    assert all(line in said for line in lines), said


@pytest.mark.parametrize("slug", ["dv-not-transposed", "causal-ignored"])
def test_what_one_rank_alone_gets_wrong_is_named_too(slug):
    def run(Q, K, V, dO, comm, causal=False, mask=None, scale=None):
        if slug == "causal-ignored":
            return own_heads(Q, K, V, dO, comm, False, scale, mask)
        return MISTAKE[slug].run(Q, K, V, dO, causal=causal, mask=mask, scale=scale)

    assert ab.diagnose(Ranks(run, "heads", ranks=(1, 2))).mistakes == (slug,)


def test_with_two_ranks_some_are_alike():
    short = planted(PLANTED["dkv-one-hop-short"][2], "ring")
    report = ab.diagnose(Ranks(short, ranks=(1, 2)))
    assert not report.mistakes
    (causes,) = {finding.causes for finding in report.findings}
    assert {("dkv-one-hop-short",), ("dkv-one-hop-far",)} <= set(causes)
    assert "or: dK and dV go one hop too far" in words(report)


def test_what_explains_some_cases_only_is_said_with_them():
    mean, kept = (planted(PLANTED[slug][2], "ring") for slug in ("dkv-mean", "dkv-kept"))

    def run(Q, K, V, dO, comm, causal=False, scale=None):
        return (mean if scale else kept)(Q, K, V, dO, comm, causal, scale)

    report = ab.diagnose(Ranks(run, ranks=(1, 2, 3)))
    parts = {part[0]: part[1:] for part in report.findings[0].parts}
    assert parts["dkv-mean"] == ("scale, 2 ranks", "scale, 3 ranks")
    assert "causal, 3 ranks" in parts["dk-kept"]
    said = json.loads(report.as_json())["mistakes"]
    assert said["dkv-mean"]["title"] == OF_RANKS["dkv-mean"].title


def test_it_says_on_which_ranks():
    def run(Q, K, V, dO, comm):
        O, dQ, dK, dV = ring(Q, K, V, dO, comm)
        return (2 * O if comm.rank == 1 else O), dQ, (dK if comm.rank == 0 else 2 * dK), dV

    report = ab.diagnose(Ranks(run, ranks=3))
    texts = {finding.about: finding.text for finding in report.findings}
    assert texts["O"] == 'in 5 cases, first in "plain, 3 ranks": relative error 0.6, on rank 1 of 3'
    assert "on ranks 1 and 2 of 3" in texts["dK"]
    assert "on every rank" in ab.diagnose(Ranks(planted(PLANTED["dq-times-ranks"][2], "ring"))).findings[0].text


# --- bad input ----------------------------------------------------------------------------------------------------


def on_rank(rank, wrong):
    """The all-gather, with something else on one rank of several."""

    def run(Q, K, V, dO, comm):
        right = gathered(Q, K, V, dO, comm)
        return wrong(comm, *right) if comm.size > 1 and comm.rank == rank else right

    return run


def waits(Q, K, V, dO, comm):
    if comm.size > 1:
        comm.receive(1 - comm.rank)
    return gathered(Q, K, V, dO, comm)


def fewer_collectives(Q, K, V, dO, comm):
    if comm.rank == 1:
        comm.barrier()
    return gathered(Q, K, V, dO, comm)


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (on_rank(1, lambda comm, *right: None), "returned None, expected 4 arrays (O, dQ, dK, dV), on rank 1 of 2"),
        (on_rank(1, lambda comm, O, dQ, dK, dV: (O, dQ, None, dV)), "dK is None, expected an array, on rank 1 of 2"),
        (on_rank(0, lambda comm, O, dQ, dK, dV: (O, dQ, dK)), "returned 3 things, expected 4 arrays"),
        (
            on_rank(1, lambda comm, O, dQ, dK, dV: (O, dQ, np.concatenate([dK, dK], axis=-2), dV)),
            "dK has shape (2, 4, 8, 3), on rank 1 of 2, expected (2, 4, 4, 3), that of its own rows",
        ),
        (lambda *args: 1 / 0, 'first in "plain, 1 rank": raised ZeroDivisionError: division by zero'),
        (lambda Q, K, V, dO, comm: comm.send(K, comm.rank + 1), "ValueError: to: expected a rank from 0 to 0, got 1"),
        (waits, "deadlock: rank 0 waits to receive from rank 1, rank 1 waits to receive from rank 0"),
        (on_rank(1, lambda comm, *right: comm.receive(0)), "rank 1 waits to receive from rank 0, which has returned"),
        (fewer_collectives, "deadlock: rank 0 calls all_gather where rank 1 calls barrier"),
    ],
)  # fmt: skip
def test_what_is_not_as_asked_is_told_plainly(fn, expected):
    before = threading.active_count()
    report = ab.diagnose(Ranks(fn, ranks=(1, 2)))
    assert threading.active_count() == before  # none is left behind
    assert not report.ok
    assert [finding.about for finding in report.findings] == ["the call"]  # once, however many ranks and cases
    assert expected in words(report)


def test_one_that_does_not_come_back():
    over = threading.Event()

    def stays(Q, K, V, dO, comm):
        if comm.rank == 1:
            over.wait(30)
        return gathered(Q, K, V, dO, comm)

    report = ab.diagnose(Ranks(stays, ranks=(1, 2)), limit=0.3)
    over.set()
    assert [finding.kind for finding in report.findings] == ["too long"]
    assert "two cases took too long before it" in report.not_run.values()


def test_inputs_that_are_written_into():
    def run(Q, K, V, dO, comm):
        result = ring(Q, K, V, dO, comm)
        if comm.rank == 1:
            K *= 2
        return result

    report = ab.diagnose(Ranks(run, ranks=(1, 2)))
    assert [(f.about, f.kind) for f in report.findings] == [("the call", "changed")]
    assert "K, which is its input, is written into" in words(report)


@pytest.mark.parametrize(
    ("make", "error", "expected"),
    [
        (lambda: Ranks(3), TypeError, "fn: expected a function or a pair of functions, got int"),
        (lambda: Ranks(ring, "columns"), ValueError, "split: expected one of 'rows', 'zigzag', 'heads', got 'columns'"),
        (lambda: Ranks(ring, ranks=(0, 1)), ValueError, "ranks: expected numbers from 1 to 16"),
        (lambda: Ranks(ring, backend="nccl"), ValueError, "backend: expected one of 'threads', 'gloo', 'group', got"),
        (lambda: ab.diagnose(Ranks(ring), library="jax"), ValueError, "library: expected 'numpy' or 'torch'"),
        (lambda: ab.diagnose(Ranks(ring), dtype="int8"), ValueError, "dtype: expected one of"),
        (lambda: ab.diagnose(Ranks(ring), dtype="bfloat16"), ValueError, r"\(torch only\)"),
        (lambda: ab.diagnose(Ranks(lambda Q, K, V: Q, backend="gloo")), TypeError, "a function of a module"),
    ],
)  # fmt: skip
def test_bad_arguments(make, error, expected):
    with pytest.raises(error, match=expected):
        make()


# --- the ranks ----------------------------------------------------------------------------------------------------


def test_every_call_does_what_it_says():
    """Those that no attention here makes: the others would be wrong where it is right."""

    def work(comm):
        x = np.array([1.0, 2.0]) * (comm.rank + 1)
        comm.barrier()
        return [comm.all_reduce(x, op).tolist() for op in ("sum", "mean", "max", "min")], comm.broadcast(x, 1).tolist()

    outcome = simulate(3, work)
    assert outcome.failed is None
    assert not outcome.stuck
    assert outcome.results == [([[6, 12], [2, 4], [3, 6], [1, 2]], [2, 4])] * 3
