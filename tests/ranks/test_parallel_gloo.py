"""Attention over ranks on torch.distributed: processes of their own that talk by gloo, started once for all tests."""

import re
import time

import on_ranks
import pytest
import torch

from attnbook.diagnose.ranks.processes import Processes
from attnbook.parallel import ring_attention

SCHEMES = tuple(on_ranks.ATTEND)


@pytest.fixture(scope="module")
def processes():
    with Processes(on_ranks.call, limit=120.0) as started:
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


@pytest.mark.parametrize("ranks", [pytest.param(4, marks=pytest.mark.thorough), 3, 2, 1])
def test_every_scheme_is_one_process(on, ranks):
    """O, L and the gradients of all inputs, all causal corners, placements and grouped heads, at uneven lengths."""
    every = ranks == 3
    options = {
        "placements": ("contiguous", "zigzag", "striped") if every else ("zigzag",),
        "grouped": (9, 3)[not every :],
    }
    for error, case in on(ranks, "sweep", schemes=SCHEMES, **options):
        assert error <= 1e-12, case


def test_bfloat16(on):
    """Each is rounded once: half a last bit of what may be 4, and both may have taken the other side."""
    assert max(on(3, "sweep_16")) <= 2**-5


def test_a_compiled_model_may_have_every_door(on):
    assert max(on(2, "compiled")) <= 1e-5


def test_autocast_is_as_if_all_were_cast_by_hand(on):
    """Also where some inputs have its dtype already; and no sum is of 16 bits, wherever the lines run."""
    for on_a_gpu in (False, True):
        assert max(on(2, "autocast", on_a_gpu=on_a_gpu)) == 0


@pytest.mark.parametrize("lengths", [(5, 0, 2), (0, 1, 0), (3, 3, 1)], ids=str)
def test_ranks_with_other_lengths_and_with_no_rows(on, lengths):
    assert max(on(3, "uneven", lengths=lengths)) <= 1e-12


@pytest.mark.parametrize("ranks", [3, 2])
def test_torchs_own_tensors_over_ranks(on, ranks):
    for error, case in on(ranks, "of_dtensor"):
        assert error <= 1e-12, case


def test_a_group_of_some_ranks(on):
    first, other, last = on(3, "of_some", members=[0, 2])
    assert max(first, last) <= 1e-12
    assert other == "ValueError: group: expected a group that this process belongs to, got another one"


DIFFERENT = {
    "widths": "Q, but for rows: expected the same on all ranks, got [4, 5] on rank 0; [4, 4] on rank 1",
    "heads": "K, but for rows: expected the same on all ranks, got [4, 5] on rank 0; [2, 5] on rank 1",
    "dtype": "dtype: expected the same on all ranks, got torch.float64 on rank 0; torch.float32 on rank 1",
    "scheme": "scheme: expected the same on all ranks, got ring on rank 0; gather on rank 1",
    "causal": "causal: expected the same on all ranks, got False on rank 0; True on rank 1",
    "scale": "scale: expected the same on all ranks, got None on rank 0; 0.7 on rank 1",
    "placement": "placement: expected the same on all ranks, got contiguous on rank 0; zigzag on rank 1",
    "method": "method: expected the same on all ranks, got auto on rank 0; dense on rank 1",
    "mask": "mask: expected the same on all ranks, got Mask",
    "grad": "gradients: expected the same on all ranks, got False on rank 0; True on rank 1",
    "no tensor": "Q: expected a tensor, got list",
    "mask on one": "mask: expected the same on all ranks, got none on rank 0; Mask",
    "queries of a tree": "Q: expected the same on all ranks, got (4, 6, 5), checksum",
    "group": "TypeError: group: expected a process group of torch.distributed, got 'gloo'",
    "values": "V: expected one row for each of the 6 keys, got shape (4, 5, 7)",
    "lengths": 'Q, rows: expected [5, 6] on the ranks, as placement="zigzag", got',
    "device": "Q: expected a tensor on a device of the backend gloo, cpu, got meta",
    "one number": "ops, Sink: expected the same on all ranks, got Sink",
    "far in an op": "ops, RelativeBias: expected the same on all ranks, got RelativeBias",
    "timeout": "timeout: expected seconds, more than 0 and at most 1e9, or None, got 0",
    "fits nobody": "ops, Sink: expected a shape that broadcasts to the leading axes of the scores",
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_differs_is_told_on_every_rank(on, case):
    """In seconds, and the ranks go on together."""
    for came, seconds, shape in on(2, "refused", case=case):
        assert DIFFERENT[case] in came
        assert seconds < 5
        assert shape == (4, 6, 7)


def test_a_group_that_was_destroyed(on):
    for came in on(2, "destroyed"):
        assert came.startswith("ValueError: group: expected a process group that has not been destroyed, got")


@pytest.mark.parametrize("what", ["K", "O"])
def test_what_was_changed_in_place_is_noticed(what, on):
    for came in on(2, "changed_in_place", what=what):
        assert "modified by an inplace operation" in came


def test_a_second_backward_is_refused(on):
    for came in on(2, "again"):
        assert came == "RuntimeError: ring_attention: expected one backward, got another, as by retain_graph=True"


@pytest.mark.parametrize("scheme", ["ring", "layer"])
def test_backwards_in_another_order_are_noticed(scheme, on):
    """Calls that are alike but for their numbers: what came for the one would be added to the other."""
    for came in on(3, "crossed", scheme=scheme):
        assert "the call that a backward belongs to, by number: expected the same on all ranks, got" in came


@pytest.mark.parametrize("scheme", ["tree", "layer"])
def test_one_loss_computed_everywhere(scheme, on):
    """What arrives must be the same on all ranks, where their results are."""
    for came in on(2, "another_loss", scheme=scheme):
        assert re.search("ValueError: d[OY]: expected the same on all ranks, got .*, checksum", came)


def test_a_backward_after_the_group_has_gone(on):
    for came in on(2, "destroyed", before_backward=True):
        assert came == "ValueError: group: expected a process group that has not been destroyed, got one that was"


OF_LAYERS = {
    "share": "p: expected MultiHeadParams, this rank's share, got list",
    "inputs": "X: expected the same on all ranks, got (2, 5, 12), checksum",
    "heads": "W_Q: expected a number of columns that its 5 heads divide",
    "timeout": "timeout: expected seconds, more than 0 and at most 1e9, or None, got 0",
    "frozen": "gradients: expected the same on all ranks, got True on rank 0; False on rank 1",
    "widths": "W_O",
}


@pytest.mark.parametrize("case", OF_LAYERS)
def test_a_layer_that_does_not_fit_on_one_rank_is_told_on_all(case, on):
    for came, seconds in on(2, "layer_refused", case=case):
        assert OF_LAYERS[case] in came
        assert seconds < 5


def test_second_derivatives_are_refused(on):
    for came in on(2, "twice"):
        assert came == "RuntimeError: ring_attention: expected to be differentiated once, got create_graph=True"


def test_without_torch_distributed(monkeypatch):
    Q = torch.zeros(3, 4)
    with pytest.raises(RuntimeError, match=r"group: expected torch\.distributed after init_process_group"):
        ring_attention(Q, Q, Q)
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"torch: expected a build with torch\.distributed, got one without"):
        ring_attention(Q, Q, Q)


@pytest.mark.parametrize("ranks", [3, 2])
def test_a_layer_with_its_heads_over_ranks(on, ranks):
    for with_memory in (False, True):
        assert max(on(ranks, "of_layer", with_memory=with_memory)) <= 1e-12


@pytest.fixture(scope="module")
def one_process(processes):
    """The losses of 50 steps."""
    return processes(["train"], None, [{"rings": 1, "steps": (0, 50)}]).results[0]


def test_training_follows_one_process_and_resumes_on_fewer_ranks(on, one_process, tmp_path):
    """Two rings of two ranks, each on half of the batch; from step 25 on one ring of two."""
    assert one_process[-1] < one_process[0]
    first = on(4, "train", rings=2, steps=(0, 25), folder=str(tmp_path), save=True)
    second = on(2, "train", rings=1, steps=(25, 50), folder=str(tmp_path), load=True)
    for losses in (first[0] + second[0], first[3] + second[1]):
        assert max(abs(a - b) for a, b in zip(losses, one_process, strict=True)) <= 1e-11


@pytest.mark.thorough
def test_training_with_sharded_weights(on, one_process):
    """FSDP2 around the model, on two rings of two."""
    losses = on(4, "train", rings=2, steps=(0, 50), kind="FSDP")[0]
    assert max(abs(a - b) for a, b in zip(losses, one_process, strict=True)) <= 1e-11


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
