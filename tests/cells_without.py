"""Runs the chapters as a browser would: through book/_run/runner.py, without threads and without torch, Triton, SciPy,
python-flint and IPython.

A browser's Python has 32 bits, and so have the integers that NumPy makes there unasked; here they are cut to as many.

Prints, as JSON, the verdict on each cell of each chapter. tests/test_run_in_page.py starts it, in a process of its own.
"""

import importlib.machinery
import json
import os
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).parents[1]
ABSENT = ("torch", "triton", "scipy", "cupy", "flint", "IPython")
sys.path[:0] = [str(ROOT / "book" / "_run"), str(ROOT / "book" / "_ext")]

find_spec = importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = staticmethod(
    lambda name, *more: None if name.partition(".")[0] in ABSENT else find_spec(name, *more)
)


def start(_):
    raise RuntimeError("can't start new thread")


threading.Thread.start = start

import numpy as np  # noqa: E402


def with_short_integers(make):
    def cut(*given, **options):
        made = make(*given, **options)
        asked = "dtype" in options or any(getattr(T, "dtype", None) == np.int64 for T in given)
        return made if asked or getattr(made, "dtype", None) != np.int64 else made.astype(np.int32)

    return cut


for name in ("arange", "array", "asarray", "full", "where", "argmax", "argsort", "cumsum", "sum", "count_nonzero"):
    setattr(np, name, with_short_integers(getattr(np, name)))

from run_in_page import cells  # noqa: E402
from runner import Runner  # noqa: E402

os.chdir(ROOT / "chapters")
# What a reader writes below an exercise of chapter 4: the scale is forgotten in dK.
OF_A_READER = """
def mine(Q, K, V, dO):
    scale = Q.shape[-1] ** -0.5
    P = ab.softmax(scale * Q @ mT(K))
    dS = ab.softmax_vjp(dO @ mT(V), P)
    return P @ V, scale * dS @ K, mT(dS) @ Q, mT(P) @ dO
print(ab.diagnose(mine))
"""

found = {}
for path in sorted(Path().glob("*.ipynb")):
    runner = Runner()
    found[path.stem] = [{"name": cell["name"], **runner.run(**cell)} for cell in cells(path)]
    if path.stem.startswith("03"):
        found["reader"] = [runner.run("exercise", OF_A_READER)]
print(json.dumps(found))
