"""Attention over ranks on torch.distributed: processes of their own that talk by gloo, started once for all tests."""

import re
import time

import on_ranks
import pytest
import torch

from attnbook.diagnose.ranks import processes as of_ranks
from attnbook.parallel import ring_attention


@pytest.fixture(scope="module")
def processes():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_ranks, "multiprocessing", on_ranks.FORKED)
        with of_ranks.Processes(on_ranks.call, limit=120.0) as started:
            yield started


@pytest.fixture
def on(processes):
    """A function of ``on_ranks`` on so many ranks: what each of them returned."""

    def run(ranks, name, **options):
        outcome = processes([name] * ranks, None, [options] * ranks)
        assert outcome is not None, "no answer in time"
        assert outcome.failed is None, outcome.failed
        return outcome.results

    return run


@pytest.mark.parametrize("ranks", [3, 2])
def test_every_scheme_is_one_process(on, ranks):
    """O, L and the gradients of all inputs, all causal corners, placements and grouped heads, at uneven lengths."""
    for error, case in on(ranks, "sweep", placement=("contiguous", "zigzag", "striped"), h_kv=(9, 3)):
        assert error <= 1e-12, case


@pytest.mark.parametrize(
    ("ranks", "name", "options", "most"),
    [
        (3, "sweep_16", {}, 2**-5),  # each is rounded once: half a last bit of what may be 4, and both the other way
        (2, "compiled", {}, 1e-5),
        (2, "autocast", {"on_a_gpu": False}, 0),  # also where some inputs have its dtype already
        (2, "autocast", {"on_a_gpu": True}, 0),  # and no sum is of 16 bits, wherever the lines run
        (3, "uneven", {"lengths": (5, 0, 2)}, 1e-12),
        (3, "uneven", {"lengths": (0, 1, 0)}, 1e-12),
        (3, "of_layer", {"with_memory": False}, 1e-12),
        (3, "of_layer", {"with_memory": True}, 1e-12),
        (2, "of_layer", {"with_memory": True}, 1e-12),
    ],
)
def test_the_same_as_without_ranks(on, ranks, name, options, most):
    """In 16 bits, compiled with every door in one model, under autocast, with other lengths and no rows, as a layer."""
    assert max(on(ranks, name, **options)) <= most


def test_a_group_of_some_ranks(on):
    first, other, last = on(3, "of_some", members=[0, 2])
    assert max(first, last) <= 1e-12
    assert other == "ValueError: group: expected a group that this process belongs to, got another one"


@pytest.mark.parametrize("case", on_ranks.DIFFERENT)
def test_what_differs_is_told_on_every_rank(on, case):
    """In seconds, and the ranks go on together."""
    for came, seconds, shape in on(2, "refused", case=case):
        assert on_ranks.DIFFERENT[case][1] in came
        assert seconds < 5
        assert shape == (4, 6, 7)


@pytest.mark.parametrize(
    ("ranks", "name", "options", "words"),
    [
        (2, "destroyed", {}, "^ValueError: group: expected a process group that has not been destroyed, got"),
        (2, "destroyed", {"before_backward": True}, "^ValueError: group: .* not been destroyed, got one that was"),
        (2, "changed_in_place", {"what": "K"}, "modified by an inplace operation"),
        (2, "changed_in_place", {"what": "O"}, "modified by an inplace operation"),
        (2, "again", {}, "^RuntimeError: ring_attention: expected one backward, got another, as by retain_graph=True"),
        (2, "twice", {}, "^RuntimeError: ring_attention: expected to be differentiated once, got create_graph=True"),
        (
            3,
            "one_loss",
            {"scheme": "ring", "crossed": True},
            "the call that a backward belongs to, by number: expected",
        ),
        (3, "one_loss", {"scheme": "layer", "crossed": True}, "belongs to, by number: expected the same on all ranks,"),
        (2, "one_loss", {"scheme": "tree"}, "ValueError: dO: expected the same on all ranks, got .*, checksum"),
        (2, "one_loss", {"scheme": "layer"}, "ValueError: dY: expected the same on all ranks, got .*, checksum"),
    ],
)
def test_a_backward_that_cannot_be_right_is_refused(on, ranks, name, options, words):
    for came in on(ranks, name, **options):
        assert re.search(words, came), came


def test_without_torch_distributed(monkeypatch):
    Q = torch.zeros(3, 4)
    with pytest.raises(RuntimeError, match=r"group: expected torch\.distributed after init_process_group"):
        ring_attention(Q, Q, Q)
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"torch: expected a build with torch\.distributed, got one without"):
        ring_attention(Q, Q, Q)


@pytest.mark.parametrize("kind", ["DDP", pytest.param("FSDP", marks=pytest.mark.thorough)])
def test_training_follows_one_process_and_resumes_on_fewer_ranks(on, kind, tmp_path):
    """Two rings of two ranks, each on half of the batch; then one ring of two. FSDP2 to the end on four."""
    (alone,) = on(1, "train", rings=1, steps=(0, 16))
    assert alone[-1] < alone[0]
    if kind == "FSDP":
        every = on(4, "train", rings=2, steps=(0, 16), kind=kind)[:1]
    else:
        first = on(4, "train", rings=2, steps=(0, 8), folder=str(tmp_path), save=True)
        second = on(2, "train", rings=1, steps=(8, 16), folder=str(tmp_path), load=True)
        every = first[0] + second[0], first[3] + second[1]
    for losses in every:
        assert max(abs(a - b) for a, b in zip(losses, alone, strict=True)) <= 1e-11


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("stalls, no call", "agreeing on the call, step 0: rank 2 of 3 could not send or receive .*rank 1 within 1 s"),
        ("stalls, forward", "ring, forward, step 1: rank 2 of 3 could not send or receive .*rank 1 within 1 s"),
        ("stalls, backward", "ring, backward, step [01]: rank 2 of 3 could not send or receive .*rank 1 within 1 s"),
        ("ends, forward", "ring, forward, step [01]: rank 2 of 3 could not send or receive .*rank 1"),
    ],
    ids=lambda x: x if x[:5] in ("stall", "ends,") else "",
)
def test_a_rank_that_is_late_or_has_ended(processes, where, words, tmp_path):
    """Which rank, and at which hop, in the time that was given. These come last, as they end the group."""
    processes(["late"] * 3, None, [{"where": where, "folder": str(tmp_path)}] * 3)
    processes.size = None  # a new group for the next
    deadline = time.monotonic() + 10
    while not (tmp_path / "2").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    seconds, came = (tmp_path / "2").read_text(encoding="utf-8").split("\n", 1)
    assert re.search(words, came), came
    assert "\nRuntimeError: group: expected one in which every message came, got one after " in came  # at once
    assert float(seconds) < 5
