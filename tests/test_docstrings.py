"""The docstrings of what is public: complete by the house rule, and their examples run."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import attnbook as ab

SETTINGS = {"get_num_threads", "set_num_threads"}
TOOLS = {"diagnose", *SETTINGS}  # no formula is behind them
PUBLIC = [name for name in ab.__all__ if inspect.isfunction(getattr(ab, name))]
MODULES = [m.name for m in pkgutil.walk_packages(ab.__path__, "attnbook.") if not m.name.endswith("__main__")]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_function_says_all_that_the_rule_asks_for(name):
    text = inspect.getdoc(getattr(ab, name))
    parts = () if name in SETTINGS else ("Parameters\n", "Returns\n", "Raises\n")
    for part in (*parts, ":doc:`/chapters/"):
        assert part in text, f"{name} lacks {part.strip()}"
    if name not in TOOLS:
        assert ":eq:`" in text
        assert ".. math::" in text


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_run(module):
    assert doctest.testmod(importlib.import_module(module)).failed == 0


def test_there_is_an_example():
    found = doctest.DocTestFinder().find(importlib.import_module("attnbook.attention"))
    assert sum(len(test.examples) for test in found) >= 4
