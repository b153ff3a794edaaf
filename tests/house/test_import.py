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
IN_DIAGNOSE = {room: floor for floor, rooms in enumerate(IN_DIAGNOSE) for room in rooms.split()}


# --- what is loaded -----------------------------------------------------------------------------------------------


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_no_heavy_library_is_loaded_and_by_the_package_its_core_alone():
    loaded = python("import attnbook, sys; print(*sys.modules)").split()
    rooms = {module.split(".")[1] for module in loaded if module.startswith("attnbook.")}
    assert {"attention", "multi_head"} < rooms <= FLOOR_OF.keys() - {"parallel", "torch", "layers"}
    every = "import attnbook.checks, attnbook.diagnose, attnbook.figures, attnbook.parallel, sys; print(*sys.modules)"
    assert not HEAVY & {*loaded, *python(every).split()}


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("import attnbook.torch", "attnbook.torch"),
        ("import attnbook.parallel as p; p.ring_attention(1, 2, 3)", "attention over ranks"),
        ("import attnbook.parallel.check as c; c.main([])", "attention over ranks"),
    ],
)
def test_without_torch_its_doors_say_what_to_install(code, what):
    code = f"import sys; sys.modules['torch'] = None\n{code}"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr.splitlines()
    assert f"{what} needs PyTorch: pip install 'attnbook[torch]'" in told[-1]


DOORS = (
    "from attnbook import diagnose as f",
    "import attnbook as ab; import attnbook.diagnose.steps; f = ab.diagnose",
    "import attnbook.diagnose as f",
)


def test_diagnose_is_the_function_through_every_door():
    """Also after the room of that name was loaded, which Python puts over it; and it has the room's public names."""
    python(f"""
import inspect, pickle, sys
for door in {DOORS}:
    for name in [name for name in sys.modules if name.partition(".")[0] == "attnbook"]:
        del sys.modules[name]
    exec(door)
    from attnbook.diagnose import Ranks, diagnose
    assert inspect.isfunction(f) and pickle.loads(pickle.dumps(f)) is f is diagnose and f.Ranks is Ranks, door
    assert str(inspect.signature(f)).startswith("(fn"), door""")


def test_what_completion_offers_is_what_is_public():
    assert set(dir(attnbook)) == {*attnbook.__all__, "__version__"}
    assert all(hasattr(attnbook, name) for name in dir(attnbook))
    with pytest.raises(AttributeError, match="no attribute 'Diagnose'"):
        _ = attnbook.Diagnose


# --- imports run one way ------------------------------------------------------------------------------------------


def imported(path):
    """The names that a file imports, at its top or in a function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


MODULES = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
MODULES = {name.removesuffix(".__init__"): path for name, path in MODULES.items()}
IMPORTED = {name: list(imported(path)) for name, path in MODULES.items()}


def room_of(module):
    name = module.partition(".")[2] or "__init__"
    return name if name in BESIDE else name.split(".")[0]


def may_import(here, there):
    """The core imports downwards, and what stands beside it by its list; the door all of the core, and diagnose."""
    if here == "__init__":
        return there in FLOOR_OF or there == "diagnose"
    return there in BESIDE[here] if here in BESIDE else FLOOR_OF.get(there, 99) < FLOOR_OF[here]


@pytest.mark.parametrize("module", MODULES)
def test_a_room_imports_only_from_below(module):
    """In diagnose a room is a folder, with floors of its own."""
    here = room_of(module)
    for package, *rest in (name.split(".") for name in IMPORTED[module]):
        assert package != "evidence", "no wheel has it"
        if package == "attnbook":
            there = rest[0] if rest else "__init__"
            assert there == here or may_import(here, there), f"{here} imports {there}"
        if package == "attnbook" and here == there == "diagnose":
            inner, outer = ([*module.split("."), ""][2], [*rest, ""][1])
            assert outer == inner or IN_DIAGNOSE.get(outer, -1) < IN_DIAGNOSE.get(inner, 99), f"{inner} imports {outer}"


def test_no_file_imports_what_imports_it():
    """Not by way of others either, and not in a function."""
    nearest = {  # of each name, or else the module that has it
        module: {name if name in MODULES else name.rpartition(".")[0] for name in names} & MODULES.keys() - {module}
        for module, names in IMPORTED.items()
    }
    list(TopologicalSorter(nearest).static_order())  # CycleError says the way around


def test_what_has_an_underscore_is_used_in_its_own_folder_only():
    """Modules, and names in them."""
    for module, path in MODULES.items():
        folder = ".".join(path.parent.relative_to(PACKAGE.parent).parts) + "."
        for name in IMPORTED[module]:
            home = name[: private.start()] if (private := re.search(r"(?<=\.)_[^_]", name)) else ""
            if name.startswith("attnbook.") and home:
                is_folder = PACKAGE.parent.joinpath(*home.split(".")).is_dir()
                home = home if is_folder else home[:-1].rpartition(".")[0] + "."  # of a name in a module
                assert folder.startswith(home), f"{module} imports {name}"


def test_files_of_one_name_mean_one_thing():
    """The same here and there: a door for arrays, tensors, ranks; what a call is resolved into; the passes of a call;
    what torch's autograd does; and whether something is right, for a formula and for a cluster.
    """
    found = [path.stem.lstrip("_") for path in PACKAGE.rglob("*.py")]
    twice = {stem for stem in found if found.count(stem) > 1}
    assert twice == {"init__", "attention", "plan", "passes", "autograd", "check", "compiled"}
