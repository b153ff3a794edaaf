"""The docstrings of what is public: complete by the house rule, and their examples run."""

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import attnbook as ab
from attnbook import checks, grade, layers, ops, reports

SETTINGS = {"get_num_threads", "set_num_threads"}
TOOLS = {"diagnose", *SETTINGS}  # no formula is behind them
ROOMS = {name: room for room in (layers, ab) for name in room.__all__}
TAKES_ALL = {
    **dict.fromkeys(("central_difference", "complex_step", "forward_difference"), "raises what f raises"),
    "close": "is False where nothing can be compared",
    **dict.fromkeys(("as_csv", "as_json", "as_table", "feedback", "pages"), "writes what grade made"),
    **dict.fromkeys(("as_html", "as_junit", "graded_html", "graded_junit", "picture", "too_few"), "writes a report"),
    "wrong_entries": "compares what diagnose ran",
}
"""The public functions that refuse nothing, and why."""
PUBLIC = [name for name, room in ROOMS.items() if inspect.isfunction(getattr(room, name))]
ROOT = Path(ab.__file__).parent
TAUGHT = [path.relative_to(ROOT.parent) for path in sorted(ROOT.rglob("*.py")) if ">>> " in path.read_text("utf-8")]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_function_says_all_that_the_rule_asks_for(name):
    text = inspect.getdoc(getattr(ROOMS[name], name))
    for part in () if name in SETTINGS else ("Parameters\n", "Returns\n"):
        assert part in text, f"{name} lacks {part.strip()}"
    assert ":doc:`/chapters/" in text + inspect.getmodule(getattr(ROOMS[name], name)).__doc__
    if name not in TOOLS:
        assert ":eq:`" in text
        assert ".. math::" in text


def test_a_public_function_says_what_it_raises():
    """All that take an argument; what the errors are, test_bad_input compares with what is drawn from them."""
    rooms = [checks, grade, layers, ops, reports, ab]
    if checks.has_torch():
        rooms.append(importlib.import_module("attnbook.torch"))
    functions = [(name, getattr(room, name)) for room in rooms for name in room.__all__]
    functions = {name: f for name, f in functions if inspect.isfunction(f) and inspect.signature(f).parameters}
    assert {name for name, f in functions.items() if "\nRaises\n------\n" not in inspect.getdoc(f)} == set(TAKES_ALL)


@pytest.mark.parametrize("path", TAUGHT, ids=str)
def test_examples_in_docstrings_run(path):
    module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    failed, tried = doctest.testmod(importlib.import_module(module))
    assert failed == 0
    assert tried >= 4 or module != "attnbook.attention"
