"""What an import costs, and that imports run one way."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import attnbook

PACKAGE = Path(attnbook.__file__).parent
HEAVY = {"torch", "matplotlib", "scipy", "cupy", "jax", "threadpoolctl", "triton"}
FLOORS = (
    "arrays",
    "arguments",
    "softmax linear",
    "ops heads",
    "spines",
    "attention",
    "multi_head",
    "checks figures torch",
    "__main__",
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms.split()}


def python(*args):
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, check=True)


@pytest.mark.parametrize("module", ["attnbook", "attnbook.checks", "attnbook.figures"])
def test_no_heavy_library_is_loaded(module):
    loaded = python("-c", f"import {module}, sys; print(*sys.modules)").stdout.split()
    assert module in loaded
    assert not HEAVY & set(loaded)


def test_it_takes_few_times_what_numpy_takes():
    """A ratio, in one process: how long either takes alone is the machine's affair. It was 2.7, NumPy not counted."""

    def ratio():
        report = python("-X", "importtime", "-c", "import numpy; import attnbook").stderr.splitlines()
        took = {line.split("|")[2].strip(): int(line.split("|")[1]) for line in report[1:]}
        return took["attnbook"] / took["numpy"]

    assert min(ratio() for _ in range(3)) < 3.5


def room_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_from_below(path):
    here = room_of(path)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("attnbook."):
            there = node.module.split(".")[1]
            assert there == here or FLOOR_OF[there] < FLOOR_OF[here], f"{here} imports {there}"
