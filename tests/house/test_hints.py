"""The hints of what is public: complete, and such that a checker lets what is right pass and refuses what is wrong."""

import inspect
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import attnbook

ROOT = Path(__file__).parents[2]
ROOMS = ["attnbook"]
ROOMS += [
    f"attnbook.{room}" for room in ("checks", "diagnose", "grade", "layers", "ops", "parallel", "reports", "torch")
]


def public():
    for room in ROOMS:
        if room.endswith("torch"):
            pytest.importorskip("torch")
        yield from ((f"{room}.{name}", getattr(import_module(room), name)) for name in import_module(room).__all__)


def test_every_public_function_says_what_it_takes_and_returns():
    functions = [(name, inspect.signature(thing)) for name, thing in public() if inspect.isfunction(thing)]
    assert len(functions) > 80
    for name, signature in functions:
        bare = [p.name for p in signature.parameters.values() if p.annotation is p.empty]
        assert not bare, f"{name} says nothing of {', '.join(bare)}"
        assert signature.return_annotation is not signature.empty, name


def test_every_field_of_a_public_result_is_described():
    results = [(name, thing) for name, thing in public() if name.endswith("Grads")]
    assert len(results) >= 8
    for name, thing in results:
        source = inspect.getsource(thing)
        for field in thing._fields:
            found = re.search(rf'^    {field}: .*\n    """([^"]+\.)"""', source, re.MULTILINE)
            assert found, f"{name}.{field}"
            assert getattr(thing, field).__doc__ == found[1], f"help does not show {name}.{field}"


def test_the_types_are_shipped():
    assert Path(attnbook.__file__).with_name("py.typed").exists()


USER = """
import numpy as np

import attnbook as ab
from attnbook.ops import Window

Q, K, V = (np.zeros((n, 5)) for n in (3, 4, 4))
O, res = ab.attention(Q, K, V, causal="bottom-right", ops=[Window(left=2)])
grads = ab.attention_vjp(np.ones_like(O), res)
width: int = (grads.dQ @ grads.dK.T).shape[-1] + res.L.shape[-1]
weights = ab.softmax(np.zeros(3)).sum()
told: bool = ab.diagnose(ab.attention, limit=2.0).ok
"""
WRONG = """ab.softmax([0.0, 1.0])
ab.attention(Q, K, V, causal="bottom")
ab.multi_head_attention(Q, ab.MultiHeadParams(Q, K, V, V))
ab.attention(Q, K, V, ops=[Window])
grads.dW
"""


@pytest.mark.thorough
def test_a_checker_lets_a_users_file_pass_and_refuses_each_wrong_line(tmp_path):
    file = tmp_path / "users.py"
    file.write_text(USER + WRONG, encoding="utf-8")
    asked = [sys.executable, "-m", "mypy", "--no-error-summary", str(file)]
    told = subprocess.run(asked, cwd=ROOT, env=os.environ | {"MYPYPATH": "src"}, capture_output=True, text=True)
    where = {int(number) for number in re.findall(r"users\.py:(\d+): error:", told.stdout)}
    first = USER.count("\n") + 1
    assert where == set(range(first, first + WRONG.count("\n"))), told.stdout + told.stderr
