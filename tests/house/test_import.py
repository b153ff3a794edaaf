"""What an import costs, and that imports run one way."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
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
    "pytest": {"grade"},
    "__main__": {"__version__", "diagnose", "grade", "loading", "reports"},
    "parallel.check": {"diagnose", "loading", "parallel"},  # a command too
}
IN_DIAGNOSE = ("case steps", "learn", "cases", "causes", "ranks", "links", "wording", "report")


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


def modules():
    """{module: the modules that it imports}, at its top or in a function."""
    paths = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    paths = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    return {name: nearest(paths, path) - {name} for name, path in paths.items()}


def nearest(paths, path):
    """Of what a file imports, each name or else the module that has it."""
    names = map(".".join, imported(path))
    return {name if name in paths else name.rpartition(".")[0] for name in names} & paths.keys()


def test_no_file_imports_what_imports_it():
    """Not by way of others either, and not in a function."""
    list(TopologicalSorter(modules()).static_order())  # CycleError says the way around


def test_in_diagnose_too_a_room_imports_only_from_below():
    """An op of the core is a file, so that its floors are those of files; here a room is a folder."""
    floor = {room: i for i, rooms in enumerate(IN_DIAGNOSE) for room in rooms.split()}
    for name, others in modules().items():
        for other in others if name.startswith("attnbook.diagnose.") else ():
            here, there = ([*each.split("."), ""][2] for each in (name, other))
            if other.startswith("attnbook.diagnose") and here != there:
                assert floor[there] < floor[here], f"{name} imports {other}"


def test_what_has_an_underscore_is_used_in_its_own_folder_only():
    """Modules, and names in them."""
    for path in sorted(PACKAGE.rglob("*.py")):
        folder = ".".join(path.parent.relative_to(PACKAGE.parent).parts) + "."
        for name in map(".".join, imported(path)):
            home = name[: private.start()] if (private := re.search(r"(?<=\.)_[^_]", name)) else ""
            if name.startswith("attnbook.") and home:
                paths = PACKAGE.parent.joinpath(*home.split("."))
                home = home if paths.is_dir() else home[:-1].rpartition(".")[0] + "."  # of a name in a module
                assert folder.startswith(home), f"{path.relative_to(PACKAGE)} imports {name}"


def test_files_of_one_name_mean_one_thing():
    """The same here and there: a door for arrays, tensors, ranks; what a call is resolved into; the passes of a call;
    what torch's autograd does; and whether something is right, for a formula and for a cluster.
    """
    found = [path.stem.lstrip("_") for path in PACKAGE.rglob("*.py") if "book" not in path.parts]
    twice = {stem for stem in found if found.count(stem) > 1}
    assert twice == {"init__", "attention", "plan", "passes", "autograd", "check", "compiled"}


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
    "import attnbook.diagnose.cases.battery as b; assert b.battery; import attnbook as ab; f = ab.diagnose",
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
