"""Processes that talk by gloo: attention on torch.distributed, ``torchrun -m attnbook.parallel.check``, and diagnose.

They fork from one process, which all tests of this file share.
"""

import multiprocessing
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import on_ranks
import over_gloo
import pytest
import torch

import attnbook as ab
from attnbook.diagnose import Ranks
from attnbook.diagnose.ranks import processes as of_ranks
from attnbook.parallel import check, ring_attention


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


def test_no_rank_begins_while_another_is_connecting(on):
    """It could end, and cut the other off before diagnose hears of it."""
    connected, begun = on(2, "begins")
    assert begun >= connected


@pytest.mark.parametrize("case", on_ranks.DIFFERENT)
def test_what_differs_is_told_on_every_rank(on, case):
    """In seconds, and the ranks go on together."""
    for came, seconds, shape in on(2, "refused", case=case):
        assert on_ranks.DIFFERENT[case][1] in came
        assert seconds < 5
        assert shape == (4, 6, 7)


NUMBERED = "the call that a backward belongs to, by number: expected the same on all ranks,"


@pytest.mark.parametrize(
    ("ranks", "name", "options", "words"),
    [
        (2, "destroyed", {}, "^ValueError: group: .* not been destroyed, got one that was"),
        (2, "changed_in_place", {"what": "K"}, "modified by an inplace operation"),
        (2, "changed_in_place", {"what": "O"}, "modified by an inplace operation"),
        (2, "again", {}, "^RuntimeError: ring_attention: expected one backward, got another, as by retain_graph=True"),
        (2, "twice", {}, "^RuntimeError: ring_attention: expected to be differentiated once, got create_graph=True"),
        *((3, "one_loss", {"scheme": scheme, "crossed": True}, NUMBERED) for scheme in ("ring", "layer")),
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


def test_training_follows_one_process(on):
    """Two rings of two ranks, each on half of the batch."""
    (alone,) = on(1, "train", rings=1)
    assert alone[-1] < alone[0]
    for losses in on(4, "train", rings=2):
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


# --- the command ----------------------------------------------------------------------------------------------------

OWN = Path(over_gloo.__file__)


def on_two(*words, cwd):
    """The status, and what the ranks say."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    ranks = [on_ranks.SERVER.Process(target=on_ranks.as_torchrun, args=(r, 2, port, words, cwd)) for r in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
        process.kill()  # of one that hangs the status is no number of its own
    said = ("".join((cwd / f"{name}-{r}").read_text(encoding="utf-8") for r in range(2)) for name in ("out", "err"))
    return max(abs(process.exitcode or 0) for process in ranks), *said


def by_torchrun(*words, cwd):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*command, "-m", "attnbook.parallel.check", *words], capture_output=True, text=True, cwd=cwd)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("start", [on_two, pytest.param(by_torchrun, marks=pytest.mark.thorough)])
def test_every_scheme_is_right_and_sends_what_the_formula_says(start, tmp_path):
    code, out, err = start("--quick", "--dtype", "float32", cwd=tmp_path)
    assert code == 0, err
    assert "2 ranks by gloo, on cpu; float32" in out
    assert " ms, " in out.splitlines()[1]  # a hop
    lines = [line for line in out.splitlines() if line.split(" ")[0] in check.SCHEMES]
    assert len(lines) == 4 * 3 * 2
    for line in lines:
        _, _, _, error, sent, formula, *_ = line.split()
        assert float(error) < 1e-5
        assert sent == formula
    assert "All right" in out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("kept", "dK and dV of other ranks' queries are not sent home"),
        ("raises_on_one", "KeyError: 'my own fault', on rank 1 of 2"),
        ("waits", "no answer after 2 s from every rank; some may only wait for another"),
        ("short_on_one", "no answer after 2 s from rank 0 of 2; rank 1 has returned: O has shape"),
        ("ends", "rank 0 of 2: another rank has ended; torchrun says which, unless it ended with 0"),
        ("ring", "--at-least: expected 1000 cases, got "),  # too few are no success
    ],
)
def test_the_users_own_function_gets_the_cause_by_name(tmp_path, name, words):
    """And where only one rank fails, the others don't wait for ever."""
    more = {"ring": ["--at-least", "1000"], "waits": ["--timeout", "2"], "short_on_one": ["--timeout", "2"]}
    code, out, err = on_two("--function", f"{OWN}:{name}", *more.get(name, ()), cwd=tmp_path)  # others may be slow
    assert code == 1
    assert words in " ".join((err if name in ("ends", "ring") else out).split()), err
    assert ("right: O, dQ\n" in out) == (name == "kept")


@pytest.mark.parametrize("rows", ["1", "5"])
def test_alone_it_is_a_group_of_one(rows, capsys):
    """With one row dQ and dK are 0, and no error can be relative to them."""
    assert check.main(["--quick", "--rows", rows]) == 0
    out = capsys.readouterr().out
    assert f"Q (6, {rows}, 8), " in out
    assert "One rank: nothing is sent. Start it by torchrun." in out
    assert "WRONG" not in out
    assert out.count(" 0 ") == 4 * 3 * 2 * 2


def test_a_wrong_scheme_is_told_and_the_status_says_so(capsys, monkeypatch):
    def wrong(Q, K, V, **options):
        return check.ring_attention(Q, K, V * 1.001, **options)

    monkeypatch.setitem(check.SCHEMES, "heads", wrong)
    monkeypatch.setattr(check, "bytes_of", lambda scheme, **sizes: BYTES(scheme, **sizes) + (scheme == "tree"))
    assert check.main(["--quick"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("heads") and line.endswith("WRONG") for line in lines) == 6
    assert sum(line.startswith("tree") and line.endswith("not as by formula") for line in lines) == 6
    assert not any(line.endswith(("WRONG", "formula")) for line in lines if line.startswith(("ring", "gather")))


BYTES = check.bytes_of


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rows", "0"], "expected an integer of at least 1, got '0'"),
        (["--heads", "3", "--key-heads", "2"], "--key-heads: expected a number that divides 3, got 2"),
        (["--device", "cuda"], "torch sees no GPU here"),
        (["--function", "nowhere.py:fn"], "there is no file nowhere.py"),
        (["--at-least", "3"], "--at-least: only with --function"),
        (["--function", "own.py:fn", "--quick"], "--quick: not with --function"),
    ],
)
def test_what_does_not_fit_is_told(words, said, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    try:
        code = check.main(words)
    except SystemExit as error:
        code = error.code
    assert code
    assert said in capsys.readouterr().err


# --- diagnose over processes ----------------------------------------------------------------------------------------


@pytest.fixture(params=[pytest.param("spawned", marks=pytest.mark.thorough), "forked"])
def over_processes(request, monkeypatch):
    """``diagnose`` over processes of their own; each asked, as it does, or from one that has imported torch."""
    if request.param == "forked":
        monkeypatch.setattr(of_ranks, "multiprocessing", on_ranks.FORKED)
    return lambda fn, ranks=(1, 2), **options: ab.diagnose(Ranks(fn, ranks=ranks, backend="gloo"), **options)


def test_a_rank_that_has_ended_is_the_cause_where_another_tells_of_it_first():
    started, pipes = of_ranks.Processes(print, limit=1.0), [multiprocessing.Pipe() for _ in range(2)]
    started.folder.cleanup()
    started.alive = [(None, ours) for ours, _ in pipes]
    pipes[0][1].send(("failed", ("RuntimeError", "[...]/gloo/transport/tcp/pair.cc:553] Connection closed by peer")))
    pipes[1][1].close()
    assert min(started._answers(2, 1.0), key=started._when.get) == 1


def test_gloo_right(over_processes):
    report = over_processes(over_gloo.ring, (2, 3))
    assert report.ok, str(report)
    assert {"plain, 2 ranks", "causal, 2 ranks", "float32, 3 ranks"} <= set(report.compared)


def test_gloo_wrong(over_processes):
    report = over_processes(over_gloo.kept, (2, 3))
    assert report.mistakes == ("dkv-own-queries-only",)
    assert [f.about for f in report.findings if f.kind == "wrong"] == ["dK", "dV"]


@pytest.mark.parametrize(
    ("fn", "limit", "expected"),
    [
        (over_gloo.raises_on_one, 5.0, "raised KeyError: 'my own fault', on rank 1 of 2"),
        (over_gloo.ends, 60.0, "raised ProcessEnded: the process of the rank has ended, on rank 1 of 2"),
        (over_gloo.one_waits, 2.0, "no answer after 2 s from rank 1 of 2"),
    ],
)
def test_gloo_not_as_asked(fn, limit, expected, over_processes):
    report = over_processes(fn, limit=limit)
    assert not report.ok
    assert expected in " ".join(str(report).split())
