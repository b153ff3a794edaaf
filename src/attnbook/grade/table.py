"""What came of grading, as a table, CSV, JSON, or a page for each student. Chapter: :doc:`/chapters/08_checking`."""

import csv
import io
import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from attnbook.diagnose.links import link, title_of
from attnbook.grade.exercises import Exercise
from attnbook.grade.grading import Row

WRAP = textwrap.TextWrapper(60, max_lines=3, placeholder=" …", break_long_words=False, break_on_hyphens=False)
"""For the last column of the table; the other formats have all of it."""


def as_table(rows: Sequence[Row]) -> str:
    """The rows as text in columns, and a line that counts them."""
    lines = [("file", "verdict", "points", "wrong", "why")]
    for row in rows:
        names = [*map(named, row.mistakes), *filter(None, [" or: ".join(map(named, row.possible))])]
        text = "; ".join((*names, *row.why) or row.notes)
        why = WRAP.wrap(text) or [""]
        lines.append((row.file, row.verdict, points_of(row), wrong_of(row) or "-", why[0]))
        lines += [("", "", "", "", line) for line in why[1:]]
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    table = ["  ".join((*(cell.ljust(w) for cell, w in zip(line, widths, strict=False)), line[4])) for line in lines]
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in ("right", "wrong", "not graded")}
    return "\n".join([*(line.rstrip() for line in table), "", ", ".join(f"{n} {word}" for word, n in counts.items())])


def points_of(row: Row) -> str:
    """The points in words; what was not graded has none."""
    return "-" if row.verdict == "not graded" else f"{row.points:g} of {row.of:g}"


def outcome(row: Row) -> str:
    """The points, or that it was not graded."""
    return row.verdict if row.verdict == "not graded" else f"{points_of(row)} points"


def wrong_of(row: Row) -> str:
    """The parts that are wrong, or, where nothing else is known of what is not right, those that are not known."""
    unknown = [part for part, verdict in row.parts.items() if verdict == "not known"]
    return ", ".join(row.wrong) or (f"not known: {', '.join(unknown)}" if unknown else "")


def named(slug: str) -> str:
    """What the mistake is, and the name by which a rubric knows it."""
    return f"{title_of(slug)} ({slug})"


def pages(files: Sequence[str | PathLike[str]]) -> list[str]:
    """The name of each file's page, after its path as given, so that it is the same however many are graded."""
    names = {}
    for file in files:
        path = Path(file)
        parts = [part for part in (*path.parent.parts, path.stem) if part not in (path.anchor, "..")]
        stem = name = "-".join(parts).encode(errors="ignore")[-240:].decode(errors="ignore")
        count = 1
        while name.casefold() in names:
            name = f"{stem}-{(count := count + 1)}"
        names[name.casefold()] = f"{name}.md"
    return list(names.values())


def as_csv(rows: Sequence[Row]) -> str:
    """The rows as CSV, with a head; a cell that a spreadsheet would take for a formula begins with a quote.

    The first column is what tells a file from the others, mostly a student's name: that of the file, or of its folder
    where all files have one name.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ("student", "file", "verdict", "points", "of", "wrong", "mistakes", "possible", "why", "notes", "seconds")
    )
    for student, row in zip(_students([row.file for row in rows]), rows, strict=True):
        names = (" ".join(each) for each in (row.wrong, row.mistakes, row.possible))
        cells = (student, row.file, row.verdict, row.points, row.of, *names)
        writer.writerow([_inert(cell) for cell in (*cells, "; ".join(row.why), "; ".join(row.notes), row.seconds)])
    return text.getvalue()


def _students(files: Sequence[str]) -> list[str]:
    paths = [Path(file) for file in files]
    for names in ([path.stem for path in paths], [path.parent.name for path in paths]):
        if len(set(names)) == len(names):
            return names
    return [page.removesuffix(".md") for page in pages(files)]


def _inert(cell: Any) -> Any:
    return "'" + cell if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t") else cell


def as_json(rows: Sequence[Row]) -> str:
    """The rows as JSON."""
    return json.dumps([asdict(row) for row in rows], indent=2, ensure_ascii=False)


def feedback(row: Row, exercise: Exercise) -> str:
    """What a student can read: Markdown, of one submission."""
    lines = [f"# {exercise.name}: {outcome(row)}", ""]
    lines += [f"`{row.file}` was asked for `{exercise.asks}`.", ""]
    if row.parts:
        lines += ["| Part | |", "|---|---|", *(f"| {part} | {verdict} |" for part, verdict in row.parts.items()), ""]
    lines += ["What is not known earns nothing.", ""] if "not known" in row.parts.values() else []
    for slug in row.mistakes:
        lines += [f"**{named(slug)}.**{_read(slug)}", ""]
    if row.possible:
        lines += ["One of these, which give the same here:", ""]
        lines += [*(f"- {named(slug)}.{_read(slug)}" for slug in row.possible), ""]
    if row.why:
        lines += ["What was seen:", "", *(f"- {_plain(line)}" for line in row.why), ""]
    if row.notes:
        lines += ["Also:", "", *(f"- {_plain(line)}" for line in row.notes), ""]
    if row.verdict == "wrong":
        lines += [
            f"Try it yourself: `attnbook grade {Path(row.file).name} --exercise {exercise.name}`. "
            "The simplest case comes first; the others are named by what they have more.",
            "",
        ]
    if row.verdict == "right":
        lines += ["Everything that was asked is right.", ""]
    return "\n".join(lines)


def _read(slug: str) -> str:
    return f" [Read about it]({link(slug)})." if link(slug) else ""


def _plain(line: str) -> str:
    """Text of a submission, without what Markdown or HTML would take for markup."""
    return "".join("\\" + c if c in "\\`*_{}[]<>|#!&" else c for c in " ".join(line.split()))
