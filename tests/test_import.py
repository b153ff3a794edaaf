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
    "figures": {"attention", "linear", "ops", "softmax", "spines"},
    "loading": set(),
    "__main__": {"__version__", "diagnose", "grade", "loading", "reports"},
    "parallel.check": {"diagnose", "loading", "parallel"},  # a command too
}


def python(*args):
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, check=True)


@pytest.mark.parametrize(
    "module", ["attnbook", "attnbook.checks", "attnbook.diagnose", "attnbook.figures", "attnbook.parallel"]
)
def test_no_heavy_library_is_loaded(module):
    loaded = python("-c", f"import {module}, sys; print(*sys.modules)").stdout.split()
    assert module in loaded
    assert not HEAVY & set(loaded)


def test_the_package_loads_its_core_and_no_more():
    loaded = python("-c", "import attnbook, sys; print(*sys.modules)").stdout.split()
    assert not HEAVY & set(loaded)
    rooms = {module.split(".")[1] for module in loaded if module.startswith("attnbook.")}
    assert {"attention", "multi_head"} < rooms <= FLOOR_OF.keys() - {"parallel", "torch", "layers"}


def test_it_takes_few_times_what_numpy_takes():
    """A ratio, in one process: how long either takes alone is the machine's affair. It was 1.3, NumPy not counted."""

    def ratio():
        report = python("-X", "importtime", "-c", "import numpy; import attnbook").stderr.splitlines()
        took = {line.split("|")[2].strip(): int(line.split("|")[1]) for line in report[1:]}
        return took["attnbook"] / took["numpy"]

    assert min(ratio() for _ in range(3)) < 2


def room_of(path):
    name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    return name if name in BESIDE else name.split(".")[0]


def may_import(here, there):
    """The core imports downwards, and what stands beside it by its list; the door all of the core, and diagnose."""
    if here == "__init__":
        return there in FLOOR_OF or there == "diagnose"
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
        assert package != "evidence", "no wheel has it"
        if package == "attnbook":
            there = rest[0] if rest else "__init__"
            assert there == here or may_import(here, there), f"{here} imports {there}"


DOORS = (
    "import attnbook as ab; f = ab.diagnose",
    "from attnbook import diagnose as f",
    "import attnbook as ab; from attnbook.diagnose import Ranks; f = ab.diagnose",
    "import attnbook as ab; import attnbook.diagnose.steps; f = ab.diagnose",
    "import attnbook.diagnose as f",
    "import attnbook.diagnose.battery as b; assert b.battery; import attnbook as ab; f = ab.diagnose",
)


@pytest.mark.parametrize("door", DOORS)
def test_diagnose_is_the_function_through_every_door(door):
    """Also after the room of that name was loaded, which Python puts over it; and it has the room's public names."""
    code = f"""{door}
import inspect, pickle
from attnbook.diagnose import Ranks, diagnose
assert inspect.isfunction(f) and pickle.loads(pickle.dumps(f)) is f is diagnose and f.Ranks is Ranks, f
help(f)"""
    assert "diagnose(fn" in python("-c", code).stdout


def test_what_completion_offers_is_what_is_public():
    assert set(dir(attnbook)) == {*attnbook.__all__, "__version__"}
    assert all(hasattr(attnbook, name) for name in dir(attnbook))
    with pytest.raises(AttributeError, match="no attribute 'Diagnose'"):
        _ = attnbook.Diagnose


def test_without_torch_its_room_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None\nimport attnbook.torch"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr.splitlines()
    assert told[-1] == "ModuleNotFoundError: attnbook.torch needs PyTorch: pip install 'attnbook[torch]'"
