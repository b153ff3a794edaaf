"""The command ``torchrun -m attnbook.parallel.check``: on processes that torchrun starts, and what it refuses."""

import subprocess
import sys
from functools import partial

import pytest

from attnbook.parallel import check

OWN = """
import builtins
import os
import time

import torch
import torch.distributed as dist


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, T, home):
        ctx.home, every = home, [torch.empty_like(T) for _ in range(dist.get_world_size())]
        dist.all_gather(every, T.contiguous())
        return torch.cat(every, -2)

    @staticmethod
    def backward(ctx, dT):
        if ctx.home:
            dist.all_reduce(dT := dT.contiguous())
        return dT.chunk(dist.get_world_size(), -2)[dist.get_rank()], None


def attend(home):
    return lambda Q, K, V: torch.nn.functional.scaled_dot_product_attention(
        Q, Gather.apply(K, home), Gather.apply(V, home)
    )


right, kept = attend(True), attend(False)
tell = print


def late(*words, **how):
    time.sleep(3)  # long enough for torchrun to end rank 0, where another has ended
    tell(*words, **how)


def told_late(Q, K, V):
    if dist.get_rank() == 0:
        builtins.print = late
    return kept(Q, K, V)


def broken(Q, K, V):
    if dist.get_rank() == 1:
        raise KeyError("my own fault")
    dist.barrier()  # in which rank 0 waits for it
    return Q


calls = []


def leaves_messages(Q, K, V):
    # The first call fails on both ranks, and each leaves a message that the second one takes for its own.
    calls.append(Q)
    other = 1 - dist.get_rank()
    if len(calls) == 1:
        dist.isend(torch.zeros(1000), other)
        raise ArithmeticError("on each of us")
    dist.isend(K.detach().contiguous(), other)
    dist.recv(torch.empty_like(K), other)
    if len(calls) > 2 and dist.get_rank() == 1:
        raise TimeoutError("gave up")
    return right(Q, K, V)


def without_causal(Q, K, V):
    return right(Q, K, V)


def never(Q, K, V):
    dist.recv(torch.empty_like(K), 1 - dist.get_rank())  # which nobody has sent


def short_on_one(Q, K, V):
    O = right(Q, K, V)
    return O[..., :-1, :] if dist.get_rank() == 1 else O


def ends(Q, K, V):
    if dist.get_rank() == 1:
        os._exit(0)  # with another code torchrun ends rank 0, too, often before it has said a word
    dist.barrier()
"""


def on_two(*words, cwd):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*command, "-m", "attnbook.parallel.check", *words], capture_output=True, text=True, cwd=cwd)
    return done.returncode, done.stdout, done.stderr


def test_every_scheme_is_right_and_sends_what_the_formula_says(tmp_path):
    code, out, err = on_two("--quick", "--dtype", "float32", cwd=tmp_path)
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


more = partial(pytest.param, marks=pytest.mark.thorough)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("kept", "dK and dV of other ranks' queries are not sent home"),
        more("told_late", "dK and dV of other ranks' queries are not sent home"),
        more("broken", "KeyError: 'my own fault', on rank 1 of 2"),
        ("never", "no answer after 3 s from every rank; some may only wait for another"),
        more("short_on_one", "no answer after 3 s from rank 0 of 2; rank 1 has returned: O has shape"),
        more("leaves_messages", "after every rank raised ArithmeticError: on each of us"),
    ],
)
def test_the_users_own_function_gets_the_cause_by_name(tmp_path, name, words):
    """And where only one rank fails, the others don't wait for ever."""
    (tmp_path / "own.py").write_text(OWN)
    compared = name in ("kept", "told_late")
    limit = [] if compared or name == "broken" else ["--timeout", "3"]  # those do not wait, and may be slow under load
    code, out, err = on_two("--function", f"own.py:{name}", *limit, cwd=tmp_path)
    assert code == 1
    assert words in " ".join(out.split()), err
    assert ("right: O, dQ\n" in out) == compared


def test_a_rank_that_ends_is_told(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    code, _, err = on_two("--function", "own.py:ends", cwd=tmp_path)
    assert code == 1
    assert "rank 0 of 2: another rank has ended; torchrun says which, unless it ended with 0" in err


def test_one_row_is_right(capsys):
    """There dQ and dK are 0, and no error can be relative to them."""
    assert check.main(["--quick", "--rows", "1"]) == 0
    assert "WRONG" not in capsys.readouterr().out


@pytest.mark.thorough
def test_too_few_cases_are_no_success(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    code, out, err = on_two("--function", "own.py:without_causal", "--at-least", "1000", cwd=tmp_path)
    assert code == 1
    assert "compared in " in out
    assert "--at-least: expected 1000 cases, got " in err


def test_alone_it_is_a_group_of_one(capsys):
    assert check.main(["--quick", "--rows", "5"]) == 0
    out = capsys.readouterr().out
    assert "Q (6, 5, 8), " in out
    assert "One rank: nothing is sent. Start it by torchrun." in out
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
        (["--dtype", "int8"], "invalid choice: 'int8'"),
        (["--at-least", "3"], "--at-least: only with --function"),
        (["--split", "heads"], "--split: only with --function"),
        (["--function", "own.py:fn", "--rows", "7"], "--rows: not with --function"),
        (["--function", "own.py:fn", "--key-heads", "3"], "--key-heads: not with --function"),
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
