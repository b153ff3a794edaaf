"""Plant a mistake: the package with one of its lines wrong, for as long as a test runs."""

import contextlib
import importlib
import inspect
from operator import attrgetter
from pathlib import Path

import pytest


def module_of(file):
    """The name of the module that a file of the package is."""
    return "attnbook." + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def first_of_each(rows, kind=lambda row: row[0]):
    """The rows as parameters: by default the first of each kind, such as of each function, and the others thorough."""
    seen, params = set(), []
    for row in rows:
        marks = [pytest.mark.thorough] * (kind(row) in seen)
        params.append(pytest.param(*row, marks=marks))
        seen.add(kind(row))
    return params


def by_turns(values, cases, whole=()):
    """Pairs of a value and a case as parameters, case by case. By default each case has one of the values, by turns,
    and those of ``whole`` have all: so each value has its share of the cases; the other pairs are thorough.
    """
    params = []
    for i, case in enumerate(cases):
        for j, value in enumerate(values):
            marks = () if i % len(values) == j or str(case) in whole else pytest.mark.thorough
            params.append(pytest.param(value, case, marks=marks, id=f"{getattr(value, 'name', value)}-{case}"))
    return params


def lines_of(file, name):
    """A function of a file of the package, as it lives, and its lines."""
    function = attrgetter(name)(importlib.import_module(module_of(file)))
    function = inspect.unwrap(getattr(function, "fget", function))
    function = getattr(function, "__func__", function)  # of a class method
    return function, inspect.getsource(function)


@contextlib.contextmanager
def planted(file, name, right, wrong):
    """The function ``name`` of a file of the package, with ``wrong`` where ``right`` stands; the function itself is
    changed, so that everybody who has imported it runs the mistake.
    """
    function, lines = lines_of(file, name)
    assert lines.count(right) == 1, f"{file}, {name}: no such line, or more than one: {right}"
    path = inspect.getsourcefile(function)
    source = Path(path).read_text(encoding="utf-8")
    assert source.count(lines) == 1
    with pytest.MonkeyPatch.context() as patch:
        mistaken = compile(source.replace(lines, lines.replace(right, wrong)), path, "exec")
        patch.setattr(function, "__code__", _code(mistaken, function.__qualname__))
        yield


def _code(of, qualname):
    """The code of the function of that name, somewhere in compiled code."""
    for each in of.co_consts:
        if inspect.iscode(each):
            if each.co_qualname == qualname:
                return each
            if (found := _code(each, qualname)) is not None:
                return found
    return None
