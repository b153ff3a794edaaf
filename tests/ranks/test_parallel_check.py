"""The command ``torchrun -m attnbook.parallel.check``: on two ranks, as torchrun starts them, and what it refuses."""

import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import on_ranks
import over_gloo
import pytest

from attnbook.parallel import check

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


more = partial(pytest.param, marks=pytest.mark.thorough)
KEPT = "dK and dV of other ranks' queries are not sent home"


@pytest.mark.parametrize(
    ("start", "name", "words"),
    [
        (on_two, "kept", KEPT),
        more(by_torchrun, "kept_and_told_late", KEPT),
        (on_two, "raises_on_one", "KeyError: 'my own fault', on rank 1 of 2"),
        (on_two, "waits", "no answer after 2 s from every rank; some may only wait for another"),
        (on_two, "short_on_one", "no answer after 2 s from rank 0 of 2; rank 1 has returned: O has shape"),
        more(on_two, "leaves_messages", "after every rank raised ArithmeticError: on each of us"),
        (on_two, "ends", "rank 0 of 2: another rank has ended; torchrun says which, unless it ended with 0"),
    ],
)
def test_the_users_own_function_gets_the_cause_by_name(tmp_path, start, name, words):
    """And where only one rank fails, the others don't wait for ever."""
    limit = (
        ["--timeout", "2"] if name in ("waits", "short_on_one", "leaves_messages") else []
    )  # the others may be slow under load
    code, out, err = start("--function", f"{OWN}:{name}", *limit, cwd=tmp_path)
    assert code == 1
    assert words in " ".join((err if name == "ends" else out).split()), err
    assert ("right: O, dQ\n" in out) == name.startswith("kept")


def test_too_few_cases_are_no_success(tmp_path):
    code, out, err = on_two("--function", f"{OWN}:ring", "--at-least", "1000", cwd=tmp_path)
    assert code == 1
    assert "compared in " in out
    assert "--at-least: expected 1000 cases, got " in err


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
