"""grade: each submission in its own process; whatever one does, its row says so, and the others are graded."""

import csv
import io
import json
import socket
import textwrap
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from attentions.cs336 import RIGHT as FLASH

from attnbook.diagnose.cases.battery import battery
from attnbook.grade import BOOK, EXERCISES, Rubric, as_csv, as_json, exercise, feedback, grade, remote, rubric
from attnbook.grade.grading import NOT_APART
from attnbook.grade.judging import assignment
from attnbook.grade.wire import HEAD as HEADER
from attnbook.grade.wire import BrokenError, laid_out, layout, receive, send

HEAD = """
import numpy as np


def head(Q, K, V, dO):
    scale = Q.shape[-1] ** -0.5
    S = scale * Q @ K.mT
    P = np.exp(S - S.max(axis=-1, keepdims=True))
    P /= P.sum(axis=-1, keepdims=True)
    dP = dO @ V.mT
    dS = P * (dP - (P * dP).sum(axis=-1, keepdims=True))
    return P @ V, scale * dS @ K, scale * dS.mT @ Q, P.mT @ dO
"""


def at_the_top(lines):
    return textwrap.dedent(lines) + HEAD


def in_the_call(lines):
    return HEAD.replace("    scale =", textwrap.indent(textwrap.dedent(lines).strip(), "    ") + "\n    scale =", 1)


BAD = {
    "syntax error": ("def head(Q, K, V, dO:\n", "not graded", "could not be imported: SyntaxError"),
    "imports what is not there": (
        at_the_top("import not_there"), "not graded",
        "ModuleNotFoundError: No module named 'not_there' (line 1), which is not installed here",
    ),
    "exits in a call": (in_the_call("raise SystemExit(3)"), "wrong", "raised SystemExit: 3"),
    "exits hard in a call": (in_the_call("import os; os._exit(7)"), "not graded", "by itself, with exit status 7"),
    "crashes": (in_the_call("import ctypes; ctypes.string_at(0)"), "not graded", "SIGSEGV"),
    "sleeps in a call": (in_the_call("import time; time.sleep(1000)"), "not graded", "no answer after"),
    "eats memory": (in_the_call("np.ones(1 << 33)"), "wrong", "MemoryError"),
    "opens a socket": (
        in_the_call("import socket; socket.create_connection(('127.0.0.1', 1), 1)"), "wrong", "has no network",
    ),
    "forks for ever": (
        at_the_top("import os\nwhile True: os.fork()"), "not graded", "may not start that many processes",
    ),
    "nothing in it": ("", "not graded", "expected a function named head (mine, attention"),
    "returns a view": ("def head(Q, K, V, dO):\n    return dO, Q, K[:], V.mT.mT", "wrong", "relative error"),
    "returns objects": (HEAD.replace("P @ V,", "(P @ V).astype(object),"), "wrong", "expected a"),
    "writes into its input": (in_the_call("Q *= 2"), "wrong", "Q, which is its input, is written into"),
    "closes everything": (at_the_top("import os\nos.closerange(0, 200)"), "not graded", "process"),
    "a fake answer": (
        at_the_top("import json, os\nfor fd in range(20):\n    try: os.write(fd, b'{\"ok\": true}' * 9)\n"
                   "    except OSError: pass\n"), "not graded", "no answer",
    ),
}  # fmt: skip
BAD["raises what cannot be printed"] = (
    "class Mute(Exception):\n    def __str__(self): 1 / 0\n\n\ndef head(Q, K, V, dO):\n    raise Mute", "wrong", "Mute",
)  # fmt: skip

LATE = ("sleeps in a call", "a fake answer")

HARMLESS = {
    "prints a million lines": (
        at_the_top("for _ in range(10**6): print('still here' + 9 * ' and here')"),
        'it printed 1000000 lines, first "still here and here and here and here and here and here …"',
    ),
    "leaves children behind": (
        at_the_top("import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(1000)"), "",
    ),
    "deletes its folder": (
        at_the_top("import pathlib\nfor f in pathlib.Path(__file__).parent.glob('*'): f.unlink()"), "",
    ),
    "patches what could judge it": (
        at_the_top("import sys\nimport numpy as np\nimport attnbook\nnp.allclose = lambda *a, **k: True\n"
                   "sys.modules['attnbook.diagnose.report'].Report.ok = True\nnp.max = lambda *a: 0\n"), "attnbook",
    ),
}  # fmt: skip

NOT_TRANSPOSED = HEAD.replace("dS.mT @ Q", "dS @ Q")
RESULTS = "P @ V, scale * dS @ K, scale * dS.mT @ Q, P.mT @ dO"

EARNS = {
    "=cmd": (HEAD.replace("P.mT @ dO", "3 * P.mT @ dO + 0.1"), 8, "dV: in "),
    "no gradients": (HEAD.replace(RESULTS, "P @ V, None, None, None"), 2, "dQ, dK, dV: in "),
    "dk raises": (NOT_TRANSPOSED, 7, "O, dQ, dV: right where the call returned, and dk-not-transposed"),
    "dk raises, dq is wrong": (NOT_TRANSPOSED.replace("scale * dS @ K", "dS @ K"), 6.5, "scale-missing-in-dq costs"),
    "markup": (in_the_call("raise ValueError('<script>x</script> [a](b)')"), 0, "<script>"),
    "two axes": (HEAD.replace(".mT", ".T"), 0, "with two axes alone: O, dQ, dK, dV right in all 4 cases"),
    "K is written": (
        in_the_call("K[..., 0] = 0"), 0, "line 6: K[..., 0] = 0 writes into K, which the caller still needs",
    ),
    "dq": (HEAD.replace("scale * dS @ K", "dS @ K"), 9.5, "points: scale-missing-in-dq costs 0.5"),
}  # fmt: skip
"""What is wrong, and has points by the rubric below."""

RUBRIC = "[points]\nO = 2\ndQ = 3\ndK = 3\ndV = 2\n[costs]\nscale-missing-in-dq = 0.5\n"


def write(folder, texts):
    files = []
    for name, text in texts.items():
        files.append(folder / f"{name.replace(' ', '_')}.py")
        files[-1].write_text(text, encoding="utf-8")
    return files


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """All of them in one run, with a right one before and after what is not."""
    folder = tmp_path_factory.mktemp("handed_in")
    (folder / "rubric.toml").write_text(RUBRIC, encoding="utf-8")
    texts = {"first": HEAD} | {name: text for name, (text, *_) in (BAD | HARMLESS | EARNS).items()} | {"last": HEAD}
    files = write(folder, texts)
    late = [name for name in texts if name in LATE]
    soon = [name for name in texts if name not in LATE]
    graded = {}
    for names, limit in ((soon, 300), (late, 1)):
        chosen = [file for name, file in zip(texts, files, strict=True) if name in names]
        how = {"rubric": folder / "rubric.toml", "limit": limit, "memory": 512}
        graded |= zip(names, grade(chosen, "attention-vjp", **how), strict=True)
    assert [file.read_text(encoding="utf-8") for file in files] == list(texts.values())
    return graded


@pytest.mark.parametrize("name", BAD | EARNS)
def test_what_it_does_is_said_in_its_row(rows, name):
    _, *verdict, words = (BAD | EARNS)[name]
    row = rows[name]
    assert verdict == ([row.verdict] if name in BAD else [row.points]), row
    assert row.of == 10
    assert words in " ".join(row.why), row


@pytest.mark.parametrize("name", HARMLESS)
def test_what_does_no_harm_is_graded(rows, name):
    assert rows[name].verdict == "right", rows[name]
    assert HARMLESS[name][1] in " ".join(rows[name].notes)


def test_where_the_system_has_no_namespaces(tmp_path, monkeypatch):
    """Children that leave the session end with it too, and what is written stays in the copy."""
    monkeypatch.setattr(remote, "NAMESPACES", False)
    mark = tmp_path / "pid"
    leaves = f"""
        import os, pathlib, time
        pathlib.Path(__file__).unlink()
        if os.fork() == 0:
            os.setsid()
            pathlib.Path({str(mark)!r}).write_text(str(os.getpid()))
            time.sleep(1000)
        while not pathlib.Path({str(mark)!r}).exists(): time.sleep(0.01)
    """
    files = write(tmp_path, {"leaves": at_the_top(leaves), "socket": BAD["opens a socket"][0], "last": HEAD})
    rows = list(grade(files, "attention-vjp"))
    assert [row.verdict for row in rows] == ["right", "wrong", "right"]
    assert all(NOT_APART in row.notes for row in rows)
    assert "has no network" in " ".join(rows[1].why)
    assert files[0].exists()
    assert not Path(f"/proc/{mark.read_text()}").exists()


def test_with_namespaces_nothing_else_can_be_written(tmp_path):
    """And there is no network below Python either."""
    text = f"""
        import os
        here = open("here", "w")
        try: open({str(tmp_path / "there")!r}, "w")
        except OSError as error: print("kept out:", error.strerror)
        print("network:", *os.listdir("/sys/class/net"), os.getpid())
    """
    files = write(tmp_path, {"writes": at_the_top(text)})
    (row,) = grade(files, "attention-vjp")
    assert row.verdict == "right"
    if NOT_APART in row.notes:
        pytest.skip("the system lets nobody have namespaces")
    assert 'it printed 2 lines, first "kept out: Read-only file system"' in row.notes
    assert not (tmp_path / "there").exists()


def test_more_that_a_row_says(rows):
    assert rows["first"].verdict == rows["last"].verdict == "right"
    assert rows["first"].notes in ((), (NOT_APART,))
    assert "O shares memory with input 3" in " ".join(rows["returns a view"].notes)
    assert "earns nothing" not in feedback(rows["dk raises"], EXERCISES["attention-vjp"])
    assert "line 6: Q *= 2 writes into Q, which the caller still needs" in rows["writes into its input"].why
    assert "all-axes-transposed" in rows["two axes"].mistakes


def test_a_fault_of_the_grader_costs_one_row(tmp_path):
    def faulty(submission, one, seed):
        submission.call([np.zeros((2, 2))] * 4)
        warnings.warn("a warning is no error here", stacklevel=1)
        raise KeyError("ours")

    files = write(tmp_path, {"first": HEAD})
    (row,) = grade(files, replace(EXERCISES["attention-vjp"], judge=faulty))
    assert row.verdict == "not graded"
    assert row.why == ("it could not be judged: KeyError: 'ours'",)


# --- the exercises ------------------------------------------------------------------------------------------------


def planted(form, slug):
    """The text of a file that makes the mistake in a function of this form."""
    return f"""
from attnbook.diagnose.causes.mistakes import MISTAKE
from attnbook.diagnose.steps import Steps, with_mistakes

from attnbook.grade import exercises as e

steps = {f"with_mistakes(MISTAKE[{slug!r}])" if slug else "Steps"}
{form}
"""


FORMS = {
    "softmax-vjp": "softmax_vjp = lambda dP, P: e.softmax_vjp(dP, P, steps)[0]",
    "multi-head-vjp": "backward = lambda *inputs: e.layer_vjp(*inputs, steps=steps)",
    "masked-attention-vjp": "head = lambda *inputs, mask=None: steps(*inputs, mask=mask).run()",
    "causal-attention-vjp": "head = lambda *inputs, causal=False: steps(*inputs, causal=causal).run()",
    "grouped-attention-vjp": "head = lambda *inputs: steps(*inputs).run()",
    "linear-vjp": "linear_vjp = e.linear_vjp",
    "softmax": "softmax = lambda S: e.softmax(S)",
}


@pytest.mark.parametrize(
    ("name", "mistakes"),
    [
        ("softmax", []),
        ("softmax-vjp", ["ds-mean", "ds-column-sum"]),
        ("linear-vjp", []),
        ("masked-attention-vjp", ["mask-inverted", "mask-minus-1e9"]),
        ("causal-attention-vjp", ["mask-forgotten-in-backward"]),
        ("grouped-attention-vjp", ["group-mean"]),
        ("multi-head-vjp", ["scale-missing-in-dk", "group-mean", "mask-forgotten-with-l"]),
    ],
)
def test_an_exercise_passes_what_is_right_and_names_what_is_wrong(name, mistakes, tmp_path):
    texts = {slug or "right": planted(FORMS[name], slug) for slug in [None, *mistakes]}
    right, *wrong = grade(write(tmp_path, texts), name)
    assert right.verdict == "right", right
    assert [row.verdict for row in wrong] == ["wrong"] * len(mistakes)
    for slug, row in zip(mistakes, wrong, strict=True):
        named = slug.replace("mask-", "causal-") if name == "causal-attention-vjp" else slug
        assert row.mistakes == (named,), row
        assert named in feedback(row, EXERCISES[name])


def test_a_head_that_takes_no_mask_is_not_right_where_masks_are_asked_for(tmp_path):
    (row,) = grade(write(tmp_path, {"head": HEAD}), "masked-attention-vjp")
    assert row.verdict == "wrong"
    assert set(row.parts.values()) == {"not known"}
    assert "not run, and required: mask" in row.why[-1]
    assert row.points == 0


SAVED = "        L, Q, K, V, O = ctx.saved_tensors\n"
FORWARD = FLASH.partition(SAVED)[0]
RAISES = FORWARD + "        raise NotImplementedError('later')\n"
SAVES, AGAIN = "save_for_backward(L,", "P = torch.exp(S - L[..., None])"
DETACHED = "def attention(Q, K, V):\n    return (Q @ K.mT * Q.shape[-1] ** -0.5).softmax(-1).detach() @ V"

OF_TORCH = {
    ("cs336-flash-torch", "right"): (FLASH, 10, ""),
    ("cs336-flash-torch", "backward raises"): (
        RAISES, 5, 'dQ, dK, dV: in 25 cases, first in "plain": the backward raised NotImplementedError: later (line',
    ),
    ("cs336-flash-torch", "raises at times"): (
        FLASH.replace(SAVED, SAVED + "        assert not ctx.is_causal\n"), 5,
        'first in "causal": the backward raised AssertionError',
    ),
    ("cs336-flash-torch", "forward wrong too"): (
        RAISES.replace("O = ", "O = 2 * "), 1, 'O: in 25 cases, first in "plain": relative error 1',
    ),
    ("cs336-flash-torch", "L in bits"): (
        FLASH.replace(SAVES, "save_for_backward(L / 0.6931,").replace(AGAIN, AGAIN.replace("L", "0.6931 * L")),
        9, "L: the saved tensor is not the log-sum-exp of the scores",
    ),
    ("cs336-flash-torch", "no L"): (
        FLASH.replace(SAVES, "save_for_backward(L[..., None],").replace(AGAIN, "P = torch.exp(S - L)"),
        9, "L: str, expected one saved tensor",
    ),
    ("cs336-flash-torch", "mean for sum"): (
        FLASH.replace("(dO * O).sum(-1, keepdim=True)", "(P * (dO @ V.mT)).mean(-1, keepdim=True)"), 6, "d-mean",
    ),
    ("cs336-flash-torch", "nothing"): ("import torch\n\n\nclass A(torch.autograd.Function):\n    pass", 0, ""),
    ("attention-torch", "detached"): (DETACHED, 4, 'first in "plain": None, expected an array'),
}  # fmt: skip


@pytest.fixture(scope="module")
def of_torch(tmp_path_factory):
    """The row of each, those of an exercise graded in one run."""
    graded = {}
    for name, points in (("cs336-flash-torch", (4, 2, 2, 1, 1)), ("attention-torch", (2, 3, 3, 2))):
        texts = {which: text for (of, which), (text, *_) in OF_TORCH.items() if of == name}
        mine = Rubric(dict(zip(EXERCISES[name].parts, points, strict=True)))
        came = grade(write(tmp_path_factory.mktemp(name), texts), name, rubric=mine, limit=300)
        graded |= zip(((name, which) for which in texts), came, strict=True)
    return graded


@pytest.mark.parametrize("which", OF_TORCH, ids=": ".join)
def test_in_torch_a_right_forward_counts_where_the_backward_is_missing(of_torch, which):
    _, points, words = OF_TORCH[which]
    row = of_torch[which]
    assert (row.verdict, row.points) == ("right" if points == 10 else "wrong", points), row
    assert words in "\n".join((*row.why, *row.mistakes))
    if "first in" in words:
        assert ("O: right in all cases, so it counts" in row.why) == (points > 1)


def test_the_names_and_labels():
    assert exercise("ex-multi-whole") is EXERCISES["multi-head-vjp"]
    with pytest.raises(ValueError, match="exercise: expected one of softmax, softmax-vjp"):
        exercise("ex-nowhere")
    labels = [label for labels in BOOK.values() for label in labels]
    chapters = "".join(p.read_text(encoding="utf-8") for p in (Path(__file__).parents[2] / "chapters").glob("*.ipynb"))
    assert len(labels) == len(set(labels))
    assert all(f":label: {label}" in chapters for label in labels)
    known = {case.name for case in battery()} | {case.name for case in assignment()}
    assert all(set(one.required) <= known for one in EXERCISES.values())


# --- points, tables, feedback -------------------------------------------------------------------------------------


@pytest.fixture
def graded(rows):
    (absent,) = grade([Path("=1+1.py")], "attention-vjp")
    return [rows["dq"], rows["=cmd"], rows["first"], replace(absent, of=10)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("points = 3", r"rubric \[points\]: expected a table"),
        ("[points]\nP = 3", r"rubric \[points\]: expected names of O, dQ, dK, dV, got 'P'"),
        ("[points]\nO = -1", "rubric, O: expected a number of at least 0"),
        ("[costs]\nds-men = 3", r"rubric \[costs\]: .*names of known mistakes.*got 'ds-men' \(is it ds-mean\?\)"),
        ("[bonus]\nO = 3", "rubric: expected names of points, costs"),
        ("", r"\[points\] for O, dQ, dK, dV, got none"),
    ],
)
def test_a_rubric_that_cannot_be_used(text, words, tmp_path):
    (tmp_path / "r.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        rubric(EXERCISES["attention-vjp"], tmp_path / "r.toml")


def test_csv_and_json(graded):
    first, second, *_ = csv.DictReader(io.StringIO(as_csv(graded)))
    assert (first["verdict"], first["wrong"], first["mistakes"]) == ("wrong", "dQ", "scale-missing-in-dq")
    assert second["points"] == "8"
    assert [row["points"] for row in json.loads(as_json(graded))] == [9.5, 8, 10, 0]
    assert as_csv(graded[3:]).splitlines()[1].startswith("'=1+1,'=1+1.py")  # a cell is no formula


def test_feedback_can_be_read(rows):
    one = EXERCISES["attention-vjp"]
    text = feedback(rows["dq"], one)
    assert text.startswith("# attention-vjp: 9.5 of 10 points")
    assert "| dQ | wrong |" in text
    assert "[Read about it](https://attnbook.github.io/attnbook/chapters/in_the_wild.html#mistake-scale-miss" in text
    assert "Try it yourself: `attnbook grade dq.py --exercise attention-vjp`." in text
    assert "Everything that was asked is right." in feedback(rows["first"], one)
    assert "\\<script\\>x" in feedback(rows["markup"], one)  # no markup of the submission


@pytest.mark.parametrize(
    ("files", "options", "error", "words"),
    [
        ([], {"limit": 0}, ValueError, "limit: expected a number above 0"),
        ([], {"memory": -1}, ValueError, "memory: expected a number above 0"),
        ("mine.py", {}, TypeError, "files: expected a sequence of paths, got"),
        *(([], {"seed": seed}, ValueError, f"seed: expected an integer of at least 0, got {seed}")
          for seed in (-1, 1.5)),
    ],
)  # fmt: skip
def test_bad_arguments(files, options, error, words):
    with pytest.raises(error, match=words):
        grade(files, "softmax", **options)


def test_its_folder_comes_with_it_where_it_is_alone(tmp_path):
    (tmp_path / "helper.py").write_text(HEAD, encoding="utf-8")
    (tmp_path / "mine.py").write_text("from helper import head", encoding="utf-8")
    (tmp_path / "link").symlink_to("/etc")
    (row,) = grade([tmp_path / "mine.py"], "attention-vjp")
    assert row.verdict == "right", row
    both = list(grade([tmp_path / "mine.py", tmp_path / "helper.py"], "attention-vjp"))
    assert [row.verdict for row in both] == ["not graded", "right"]


# --- what grader and submission say to each other -----------------------------------------------------------------


@pytest.mark.parametrize(
    "T",
    [
        np.arange(24.0).reshape(2, 3, 4), np.arange(24.0).reshape(4, 6).T, np.arange(24.0)[::-1],
        np.broadcast_to(np.arange(3.0), (2, 3)), np.arange(24.0).reshape(4, 6)[::2, 1::2], np.zeros((0, 3)),
        np.float64(3),
    ],
    ids=["plain", "transposed", "reversed", "expanded", "sliced", "empty", "one number"],
)  # fmt: skip
def test_arrays_lie_in_memory_as_they_did(T):
    T = np.asarray(T)
    made = laid_out(*layout(T))
    assert np.array_equal(made, T)
    assert T.size == 0 or made.strides == T.strides


def test_messages_are_no_pickles_and_need_the_nonce():
    here, there = socket.socketpair()
    with here, there:
        send(here, b"n" * 16, {"a": 1}, [np.arange(3)])
        message, (T,) = receive(there, b"n" * 16)
        assert message == {"a": 1}
        assert T.tolist() == [0, 1, 2]
        send(here, b"x" * 16, {})
        with pytest.raises(BrokenError, match="no answer"):
            receive(there, b"n" * 16)
    here, there = socket.socketpair()
    with here, there:
        body = io.BytesIO()
        np.savez(body, np.frombuffer(b"{}", dtype=np.uint8), np.array([print], dtype=object))
        here.sendall(HEADER.pack(b"n" * 16, body.tell()) + body.getvalue())
        with pytest.raises(BrokenError, match="no answer"):
            receive(there, b"n" * 16)
        with pytest.raises(BrokenError, match="too late"):
            receive(there, b"n" * 16, time.monotonic() - 1)
