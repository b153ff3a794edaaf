"""The docstrings of what is public: complete by the house rule, and their examples run."""

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest

import attnbook as ab
from attnbook import checks, grade, layers, ops, reports
from attnbook.diagnose.learn.adapters import LIBRARIES

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
NEEDS = {f"attnbook.diagnose.learn.adapters.{name}": name for name in LIBRARIES}  # the library that a module is about
NEEDS |= dict.fromkeys(("attnbook.checks.balls", "attnbook.checks.enclosed"), "flint")
MODULES = [m.name for m in pkgutil.walk_packages(ab.__path__, "attnbook.") if not m.name.endswith("__main__")]


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


def test_a_sentence_stands_in_one_docstring_only():
    found = {}
    for name in PUBLIC:
        for sentence in re.split(r"(?<=[.!?])\s+", inspect.getdoc(getattr(ROOMS[name], name))):
            words = " ".join(sentence.split())
            if words.endswith(".") and len(words) > 50:
                found.setdefault(words, []).append(name)
    assert {words: names for words, names in found.items() if len(names) > 1} == {}


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_run(module):
    if module in NEEDS:
        pytest.importorskip(NEEDS[module], reason=f"{NEEDS[module]} is not installed")
    assert doctest.testmod(importlib.import_module(module)).failed == 0


def test_there_is_an_example():
    found = doctest.DocTestFinder().find(importlib.import_module("attnbook.attention"))
    assert sum(len(test.examples) for test in found) >= 4
