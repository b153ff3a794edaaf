"""What an import costs, and that imports run one way."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import attnbook

PACKAGE = Path(attnbook.__file__).parent
HEAVY = {"torch", "matplotlib", "scipy", "cupy", "jax", "threadpoolctl", "triton", "flint"}
CORE = (
    "arrays types",
    "arguments",
    "softmax linear rotary norms",
    "ops heads merge gates",
    "spines",
    "plan",
    "attention recurrent top_k",
    "multi_head sigmoid",
    "layers torch",
    "parallel",
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(CORE) for room in rooms.split()}
BESIDE = {  # and what each may import
    "checks": {"arrays", "types"},
    "diagnose": {"arrays", "checks", "types"},
    "grade": {"arrays", "checks", "diagnose"},
    "reports": {"diagnose", "grade"},
    "loading": set(),
    "pytest": {"grade"},
    "__main__": {"__version__", "diagnose", "grade", "loading", "reports"},
    "parallel.check": {"diagnose", "loading", "parallel"},  # a command too
}


def python(*args):
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, check=True)


@pytest.mark.parametrize("module", ["attnbook", "attnbook.checks", "attnbook.book.figures", "attnbook.parallel"])
def test_no_heavy_library_is_loaded(module):
    loaded = python("-c", f"import {module}, sys; print(*sys.modules)").stdout.split()
    assert module in loaded
    assert not HEAVY & set(loaded)


def test_what_only_the_book_needs_is_not_loaded():
    loaded = python("-c", "import attnbook, sys; print(*sys.modules)").stdout.split()
    assert "attnbook.diagnose.mistakes" in loaded
    assert not [module for module in loaded if module.startswith("attnbook.book")]


def test_it_takes_few_times_what_numpy_takes():
    """A ratio, in one process: how long either takes alone is the machine's affair. It was 2.7, NumPy not counted."""

    def ratio():
        report = python("-X", "importtime", "-c", "import numpy; import attnbook").stderr.splitlines()
        took = {line.split("|")[2].strip(): int(line.split("|")[1]) for line in report[1:]}
        return took["attnbook"] / took["numpy"]

    assert min(ratio() for _ in range(3)) < 3.5


def room_of(path):
    name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    return name if name in BESIDE else name.split(".")[0]


def may_import(here, there):
    """The core imports downwards, and what stands beside it by its list; the book all, and nothing the book."""
    if here in ("__init__", "book"):
        return there not in ("book", "__main__")
    return there in BESIDE[here] if here in BESIDE else FLOOR_OF.get(there, 99) < FLOOR_OF[here]


def imported(path):
    """The rooms that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}".split(".") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_from_below(path):
    here = room_of(path)
    for package, *rest in imported(path):
        if package == "attnbook":
            there = rest[0] if rest else "__init__"
            assert there == here or may_import(here, there), f"{here} imports {there}"


def test_a_function_that_hides_a_module_leads_to_its_names():
    """``import attnbook.rotary as r`` gives the function, which has that name here; ``r.YaRN`` works all the same."""
    code = "; ".join((
        "import attnbook.rotary as r", "import attnbook.softmax as s", "import attnbook.diagnose as d",
        "import attnbook.diagnose.battery as b", "print(r.YaRN, s.softmax_vjp, d.Report, d.diagnose is d, b.battery)",
    ))  # fmt: skip
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "True" in told.stdout, told.stderr
