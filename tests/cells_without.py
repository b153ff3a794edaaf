"""Runs the chapters as a browser would: through book/_run/runner.py, without torch, SciPy, IPython and threads.

Prints, as JSON, the verdict on each cell of each chapter. tests/test_run_in_page.py starts it, in a process of its own.
"""

import importlib.machinery
import json
import os
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).parents[1]
ABSENT = ("torch", "scipy", "cupy", "IPython")
sys.path[:0] = [str(ROOT / "book" / "_run"), str(ROOT / "book" / "_ext")]

find_spec = importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = staticmethod(
    lambda name, *more: None if name.partition(".")[0] in ABSENT else find_spec(name, *more)
)


def start(_):
    raise RuntimeError("can't start new thread")


threading.Thread.start = start

from run_in_page import cells  # noqa: E402
from runner import Runner  # noqa: E402

os.chdir(ROOT / "chapters")
# What a reader writes below an exercise of chapter 3, whose dK is transposed on purpose.
OF_A_READER = """
def mine(Q, K, V, dO):
    P = ab.softmax(Q @ mT(K) / Q.shape[-1] ** 0.5)
    dS = ab.softmax_vjp(dO @ mT(V), P) / Q.shape[-1] ** 0.5
    return P @ V, dS @ K, mT(mT(Q) @ dS), mT(P) @ dO
print(ab.diagnose(mine))
"""

found = {}
for path in sorted(Path().glob("*.ipynb")):
    runner = Runner()
    found[path.stem] = [{"name": cell["name"], **runner.run(**cell)} for cell in cells(path)]
    if path.stem.startswith("03"):
        found["reader"] = [runner.run("exercise", OF_A_READER)]
print(json.dumps(found))
