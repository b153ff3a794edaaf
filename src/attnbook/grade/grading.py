"""``grade``: one row for each submission, whatever it does. Chapter: :doc:`/chapters/08_checking`."""

import ast
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from textwrap import shorten
from typing import Any

from attnbook.arrays import expected, whole
from attnbook.grade.exercises import Exercise
from attnbook.grade.exercises import exercise as exercise_of
from attnbook.grade.remote import ForkServer, Submission
from attnbook.grade.rubric import Rubric
from attnbook.grade.rubric import rubric as rubric_of

READ_BY_HAND = ("attnbook", "ctypes", "multiprocessing", "socket", "subprocess", "threading")
"""Modules that a solution can do without; that it imports one is noted, for whoever grades to read."""


NOT_APART = "the system gave it no namespaces: it could write the files of this user"
"""A note where nothing but a copy of its folder and Python's own hooks kept a submission from doing harm."""


@dataclass(frozen=True)
class Row:
    """One submission.

    ``verdict`` is "right", "wrong", or "not graded" where it did not run to the end; ``parts`` is {part: "right",
    "wrong" or "not known"}; ``mistakes`` are slugs of the catalogue, sure ones only, and ``possible`` those that the
    cases cannot tell apart; ``why`` and ``notes`` are text.
    """

    file: str
    verdict: str
    points: float
    of: float
    parts: dict[str, Any]
    mistakes: tuple[Any, ...]
    why: tuple[Any, ...]
    notes: tuple[Any, ...]
    seconds: float
    possible: tuple[Any, ...] = ()

    @property
    def wrong(self) -> tuple[Any, ...]:
        """The parts that are wrong."""
        return tuple(part for part, verdict in self.parts.items() if verdict == "wrong")


def grade(
    files: Sequence[str | PathLike[str]],
    exercise: str | Exercise,
    *,
    rubric: Rubric | str | PathLike[str] | None = None,
    limit: float = 60.0,
    memory: int = 2048,
    seed: int = 0,
) -> Iterator[Row]:
    """Grade files one after the other; yields a :class:`~attnbook.grade.grading.Row` for each, in their order.

    Each file runs in a process of its own, in a copy of its folder, with limits of time and memory and without a
    network. Where Linux lets a user have namespaces, all else is read-only for it, and all that it starts ends with
    it. That guards against accidents: it is no sandbox against malice, so use a container or a virtual machine too.
    What it returns is compared here; what it prints counts for nothing.

    Parameters
    ----------
    files : sequence of str or Path
        Python files. Those of one folder do not see each other; a file that is alone there has its neighbors with it.
    exercise : str or Exercise
        A name of ``EXERCISES``, or a label of the book.
    rubric : Rubric, str or Path, optional
        Points; a TOML file (see :mod:`attnbook.grade.rubric`). A point for each part without one.
    limit : float
        Seconds that a file may take in all.
    memory : int
        Megabytes that it may take, beside what numpy and torch take.
    seed : int
        Other numbers, and other sizes, for another seed.

    Raises
    ------
    TypeError, ValueError, OSError
        One path alone, no such exercise, a rubric that does not fit, or a system without fork. What files do is never
        raised.
    """
    chosen = exercise_of(exercise) if isinstance(exercise, str) else exercise
    scale = rubric if isinstance(rubric, Rubric) else rubric_of(chosen, rubric)
    for name, value in (("limit", limit), ("memory", memory)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise ValueError(expected(name, "a number above 0", repr(value)))
    if isinstance(files, str | Path):
        raise TypeError(expected("files", "a sequence of paths", repr(files)))
    seed, paths = whole("seed", seed, 0, "an integer of at least 0"), [Path(file) for file in files]
    folders = Counter(path.resolve().parent for path in paths)
    settings = {"limit": limit, "memory": int(memory)}

    def rows() -> Iterator[Row]:
        with ForkServer(chosen.libraries) as server:
            for path in paths:
                alone = folders[path.resolve().parent] > 1
                yield _row(server, path, chosen, scale, seed, settings | {"alone": alone})

    return rows()


def _row(server: Any, path: Any, exercise: Any, scale: Any, seed: int, settings: Any) -> Row:
    started = time.monotonic()

    def row(verdict: Any, parts: Any, mistakes: Any, why: Any, notes: Any, points: Any, possible: Any = ()) -> Row:
        seconds = round(time.monotonic() - started, 2)
        what = scale.total, parts, mistakes, tuple(why), tuple(notes)
        return Row(str(path), verdict, points, *what, seconds, possible)

    if not path.is_file():
        return row("not graded", {}, (), ["there is no such file"], (), 0)
    judged: Any
    try:
        with (
            Submission(server, path.resolve(), exercise.form, exercise.names, **settings) as submission,
            warnings.catch_warnings(action="ignore"),
        ):
            judged = None if submission.end else exercise.judge(submission, exercise, seed)
            end = submission.end
    except Exception as error:  # ours: it costs one row, and not those of the others
        return row("not graded", {}, (), [f"it could not be judged: {type(error).__name__}: {error}"], (), 0)
    notes = [*_imports(path), *_of_process(submission, exercise)]
    if end:
        return row("not graded", {}, (), [end], notes, 0)
    right = all(verdict == "right" for verdict in judged.parts.values())
    verdict = "right" if right else "wrong"
    why = [*judged.why, *(_writes(path) if any("is written into" in line for line in judged.why) else ())]
    why += scale.why(judged)
    return row(verdict, judged.parts, judged.mistakes, why, notes, scale.of(judged), judged.possible)


def _tree(path: Any) -> ast.AST:
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _writes(path: Any) -> Iterator[str]:
    """The lines that write into what a function was handed: ``Q *= s`` and ``Q[...] = s``."""
    for f in (f for f in ast.walk(_tree(path)) if isinstance(f, ast.FunctionDef)):
        handed = {each.arg for each in (*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs)}
        for node in (n for n in ast.walk(f) if isinstance(n, ast.Assign | ast.AugAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                part = isinstance(target, ast.Subscript)
                into = target.value if isinstance(target, ast.Subscript) else target
                if isinstance(into, ast.Name) and into.id in handed and (part or isinstance(node, ast.AugAssign)):
                    line = shorten(ast.unparse(node), 60, placeholder=" …")
                    yield f"line {node.lineno}: {line} writes into {into.id}, which the caller still needs"


def _imports(path: Any) -> list[Any]:
    """What to read a file for, by what it imports."""
    tree = _tree(path)
    names = {
        name.partition(".")[0]
        for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    }  # fmt: skip
    found = [name for name in READ_BY_HAND if name in names]
    return [f"it imports {', '.join(found)}: read it"] if found else []


def _of_process(submission: Any, exercise: Any) -> Any:
    """What the process did beside its answers."""
    notes = [] if submission.apart else [NOT_APART]
    if submission.lines or submission.printed:
        first = shorten(submission.printed.strip().partition("\n")[0], 60, placeholder=" …")
        notes.append(f'it printed {submission.lines} line{"" if submission.lines == 1 else "s"}, first "{first}"')
    for at, i in sorted(submission.shared.items()):
        part = exercise.parts[at] if at < len(exercise.parts) else f"result {at}"
        notes.append(f"{part} shares memory with input {i}: a view, and no new array")
    return notes
