"""The pytest plugin of attnbook, for who asks for it: a course's repository grades an exercise by one line.

``pytest -p attnbook.pytest`` asks, as do ``addopts = -p attnbook.pytest`` in ``pytest.ini`` and
``pytest_plugins = ["attnbook.pytest"]`` in the topmost ``conftest.py``; any pytest from 7.0 on. Then one line of
``pytest.ini`` names the exercise::

    [pytest]
    attnbook_exercise = cs336-flash-torch: student.py

or one at the top of the file itself::

    # attnbook: cs336-flash-torch

Then ``pytest`` has a test for the file, which fails with the feedback that ``python -m attnbook grade`` writes; so has
``pytest FOLDER``, whatever the folder. Given files only, pytest says in a line what of the ini file it does not grade.
"""

import re
from pathlib import Path

import pytest

from attnbook.grade import exercise, feedback, grade

LINE = re.compile(r"^#\s*attnbook:\s*([\w-]+)\s*$", re.MULTILINE)
"""The comment at the top of a file that names its exercise."""

TOP = 500
"""How many characters of a file are looked through for it."""


def pytest_addoption(parser):
    """The settings, all for the ini file."""
    parser.addini("attnbook_exercise", "exercises to grade, a line each: NAME: FILE", type="linelist")
    parser.addini("attnbook_limit", "seconds that a file may take", default="60")
    parser.addini("attnbook_memory", "megabytes that a file may take", default="2048")


def pytest_configure(config):
    """End here where a line of the ini file cannot be read."""
    _of_the_ini(config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session, config, items):
    """Add what the ini file names and pytest did not collect, but where pytest is told to collect files only."""
    if not _files_only(config):
        collected = {item.path for item in items if isinstance(item, Graded)}
        for path, names in _of_the_ini(config).items():
            if path not in collected:
                items += Submission.from_parent(session, path=path, exercises=names).collect()


def pytest_terminal_summary(terminalreporter, config):
    """Say which files of the ini file were not asked for."""
    given = {(config.invocation_params.dir / arg.partition("::")[0]).resolve() for arg in config.option.file_or_dir}
    left = [path.name for path in _of_the_ini(config) if path not in given]
    if left and _files_only(config):
        terminalreporter.write_line(
            f"attnbook: not graded: {', '.join(left)}, which pytest was not given: name it too, or a folder"
        )


def _files_only(config):
    given = config.option.file_or_dir
    return bool(given) and not any((config.invocation_params.dir / arg).is_dir() for arg in given)


def pytest_collect_file(file_path, parent):
    """A test for a file of the ini file, or one that says at its top which exercise it is."""
    names = _of_the_ini(parent.config).get(file_path) or (_at_the_top(file_path) if file_path.suffix == ".py" else ())
    return Submission.from_parent(parent, path=file_path, exercises=names) if names else None


class Submission(pytest.File):
    """A file that was handed in."""

    def __init__(self, exercises, **kwargs):
        super().__init__(**kwargs)
        self.exercises = exercises

    def collect(self):
        for name in self.exercises:
            yield Graded.from_parent(self, name=name)


class Graded(pytest.Item):
    """Its exercise: right, or not."""

    def runtest(self):
        limit, memory = (float(self.config.getini(f"attnbook_{name}")) for name in ("limit", "memory"))
        (row,) = grade([self.path], self.name, limit=limit, memory=memory)
        if row.verdict != "right":
            raise NotRightError(row)

    def repr_failure(self, excinfo, style=None):
        if not isinstance(excinfo.value, NotRightError):
            return f"attnbook: {excinfo.value}"
        return feedback(excinfo.value.args[0], exercise(self.name))

    def reportinfo(self):
        return self.path, 0, f"attnbook: {self.name}"


class NotRightError(Exception):
    """What came of grading, where it is not right: a row."""


def _of_the_ini(config):
    """{file: the names of its exercises}, from the ini file."""
    found, lines = {}, [line.partition(":") for line in config.getini("attnbook_exercise")]
    for name, colon, file in lines:
        if not (name.strip() and colon and file.strip()):
            raise pytest.UsageError(f"attnbook_exercise: expected NAME: FILE, got {name + colon + file!r}")
        found.setdefault((config.rootpath / file.strip()).resolve(), []).append(name.strip())
    return found


def _at_the_top(path):
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as opened:
            found = LINE.search(opened.read(TOP))
    except OSError:
        return ()
    return (found[1],) if found else ()
