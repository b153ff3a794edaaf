"""The command that checks attention over ranks, as a user starts it."""

import os
import subprocess
import sys

import pytest

from attnbook.parallel import check

MINE = """
from attnbook.parallel import ring_attention

def right(Q, K, V, causal, placement):
    return ring_attention(Q, K, V, causal=causal, placement=placement, timeout=60)

def times_ranks(Q, K, V, causal, placement):
    K.register_hook(lambda dK: 2 * dK)
    return right(Q, K, V, causal, placement)
"""


def run(ranks, *arguments):
    start = [sys.executable, "-m"]
    if ranks > 1:
        start += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"]
    known = {**os.environ, "OMP_NUM_THREADS": "1"}
    call = [*start, "attnbook.parallel.check", *arguments]
    return subprocess.run(call, capture_output=True, text=True, timeout=120, check=False, env=known)


def test_two_processes():
    found = run(2)
    assert found.returncode == 0, found.stderr
    lines = [line.split() for line in found.stdout.splitlines()]
    cases = [line for line in lines if line and line[0] in check.SCHEMES]
    assert len({tuple(case[:3]) for case in cases}) == 36
    assert all(sent == formula != "0.0" for *_, sent, formula in cases)
    assert found.stdout.count("a hop of") == 3
    assert "all right on 2 ranks" in found.stdout


def test_one_process_without_torchrun():
    found = run(1, "--quick", "--dtype", "bfloat16")
    assert found.returncode == 0, found.stderr
    assert "1 rank, gloo, bfloat16" in found.stdout
    assert "no hop to time" in found.stdout


@pytest.mark.parametrize("name", ["right", "times_ranks"])
def test_a_function_of_ones_own(name, tmp_path):
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    found = run(2, "--quick", "--function", f"{tmp_path}/mine.py:{name}")
    assert (found.returncode != 0) == (name == "times_ranks"), found.stdout + found.stderr
    assert ("WRONG: dK is off\n" in found.stdout) == (name == "times_ranks")


def test_bytes_that_are_not_those_of_the_formula(monkeypatch, capsys):
    """A formula that is off is no matter of rounding, and ends the command with 1."""
    monkeypatch.delenv("RANK", raising=False)
    counted = check.bytes_of
    assert check.main(["--quick", "--rows", "5"]) == 0
    monkeypatch.setattr(check, "bytes_of", lambda *scheme, **sizes: counted(*scheme, **sizes) + 8)
    assert check.main(["--quick", "--rows", "5"]) == 1
    assert capsys.readouterr().out.count("the bytes are not those of the formula") == 4


def test_what_cannot_be_run_is_refused(capsys):
    for arguments, said in ((["--dtype", "int8"], "invalid choice: 'int8'"), (["--rows", "many"], "invalid int value")):
        with pytest.raises(SystemExit) as stopped:
            check.main(arguments)
        assert stopped.value.code == 2
        assert said in capsys.readouterr().err
