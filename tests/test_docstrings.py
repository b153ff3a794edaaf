"""The docstrings of what is public: complete by the house rule, and their examples run."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import attnbook as ab

PUBLIC = [name for name in ab.__all__ if inspect.isfunction(getattr(ab, name))]
MODULES = [m.name for m in pkgutil.walk_packages(ab.__path__, "attnbook.") if not m.name.endswith("__main__")]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_function_says_all_that_the_rule_asks_for(name):
    text = inspect.getdoc(getattr(ab, name))
    for part in ("Parameters\n", "Returns\n", "Raises\n", ":doc:`/chapters/"):
        assert part in text, f"{name} lacks {part.strip()}"
    if name != "diagnose":  # a tool, not a formula
        assert ":eq:`" in text
        assert ".. math::" in text


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_run(module):
    assert doctest.testmod(importlib.import_module(module)).failed == 0


def test_there_is_an_example():
    found = doctest.DocTestFinder().find(importlib.import_module("attnbook.attention"))
    assert sum(len(test.examples) for test in found) >= 4
