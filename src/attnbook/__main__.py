"""The command ``attnbook``, or ``python -m attnbook``: ``diagnose`` and ``grade`` from a shell.

Exit status: 0 where nothing is wrong, 1 where something is or too few cases were compared, 2 where the command cannot
be understood.
"""

import argparse
import os
import sys
from functools import partial
from pathlib import Path

from attnbook import __version__
from attnbook.diagnose.learn.adapters import LIBRARIES
from attnbook.diagnose.report import DTYPES, diagnose
from attnbook.loading import load

STATUS = "Exit status: 0 nothing is wrong, 1 something is{}, 2 the command cannot be understood."

ENDED = " Where fn ends the process, it is what fn ended with (128 + the signal, of os.abort), and nothing is written."


def main(arguments=None):
    """Run the command with the arguments of the shell; the exit status. From here on only the report goes to stdout."""
    parser = _parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        options.refuse(f"unrecognized arguments: {' '.join(unknown)}")
    if options.junit and options.junit == options.html:
        options.refuse("--junit and --html: the same file")
    out, sys.stdout = sys.stdout, sys.stderr  # for good: a function that takes too long is left behind, and may print
    try:
        return options.run(options, out)
    except (ImportError, AttributeError, TypeError, ValueError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2


def _diagnose(options, out):
    settings = {"dtype": options.dtype, "limit": options.limit, "seed": options.seed}
    report = diagnose(load(options.target), options.library, **settings)
    _print(report.as_json() if options.json else report, out)
    if options.junit or options.html:
        from attnbook import reports

        _write(options, partial(reports.as_junit, at_least=options.at_least), reports.as_html, report, options.target)
    few = len(report.compared) < options.at_least
    if few:
        from attnbook import reports

        print(reports.too_few(report, options.at_least), file=sys.stderr)
    return 1 if few or not report.ok else 0


def _grade(options, out):
    from attnbook import grade

    if options.list:
        for exercise in grade.EXERCISES.values():
            labels = ", ".join(grade.BOOK.get(exercise.name, ()))
            more = f"\n  in the book: {labels}" if labels else ""
            _print(f"{exercise.name}\n  {exercise.asks}\n  parts: {', '.join(exercise.parts)}{more}", out)
        return 0
    if not options.files or not options.exercise:
        raise ValueError("grade: expected FILES and --exercise NAME (or --list)")
    exercise = grade.exercise(options.exercise)
    settings = {"limit": options.limit, "memory": options.memory, "seed": options.seed}
    rows, pages = [], grade.pages(options.files)
    for row in _with_progress(grade.grade(options.files, exercise, rubric=options.rubric, **settings), options.files):
        rows.append(row)
        if options.feedback:
            folder = Path(options.feedback)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / pages[len(rows) - 1]).write_text(grade.feedback(row, exercise), encoding="utf-8")
    text = grade.as_csv(rows) if options.csv else grade.as_json(rows) if options.json else grade.as_table(rows)
    _print(text.rstrip("\n"), out)
    if options.junit or options.html:
        from attnbook import reports

        _write(options, reports.graded_junit, reports.graded_html, rows, exercise)
    return 0 if all(row.verdict == "right" for row in rows) else 1


def _print(text, out):
    """Print, or stop where nobody reads any more, as after ``| head``."""
    try:
        print(text, file=out, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())  # Python flushes once more at its end


def _write(options, as_junit, as_html, *what):
    """Write the files that are asked for."""
    for path, form in ((options.junit, as_junit), (options.html, as_html)):
        if path:
            Path(path).write_text(form(*what), encoding="utf-8")


def _with_progress(rows, files):
    """The rows, with a bar on stderr where that is a terminal, by ``tqdm`` where it is installed."""
    if not sys.stderr.isatty():
        yield from rows
        return
    try:
        from tqdm import tqdm
    except ImportError:
        for i, row in enumerate(rows, start=1):
            print(f"\r{i} of {len(files)} graded", end="", file=sys.stderr)
            yield row
        print(file=sys.stderr)
    else:
        yield from tqdm(rows, total=len(files), unit="file")


def _parser():
    prog = "python -m attnbook" if Path(sys.argv[0]).stem == "__main__" else "attnbook"
    parser = argparse.ArgumentParser(prog=prog, description="The gradients of attention.", epilog=STATUS.format(""))
    parser.add_argument("--version", action="version", version=f"attnbook {__version__}")
    commands = parser.add_subparsers(required=True, metavar="diagnose, grade")
    command = _command(
        commands, "diagnose", _diagnose,
        "say whether an attention with a backward is right, and which known mistake it makes if not",
        " or fewer cases than --at-least were compared",
        ENDED,
    )  # fmt: skip
    command.add_argument(
        "target",
        metavar="module:function",
        help="or file.py:function: fn(Q, K, V, dO, **options) -> (O, dQ, dK, dV); module:forward,backward for a pair, "
        "(O, residuals) and backward(dO, residuals), which gets dL, the gradient of the log-sum-exp L, where it takes "
        "a third argument; a class for an instance of it; what Ranks(fn) made in the file, by its name; with torch "
        "also fn(Q, K, V, **options) -> O, whose backward is autograd's. Q is (n_q, d_k), K (n_k, d_k), V (n_k, d_v), "
        "all with axes (h,) or (b, h) before, or as fn is found to take them. Options: mask (True: may attend), bias, "
        "causal, scale, window, softcap, sink, slopes, cos and sin, dropout, dL, or the library's names for them; "
        "cases whose option fn does not take are left out",
    )
    command.add_argument("--library", choices=LIBRARIES, help="whose arrays it is given; found out by default")
    command.add_argument("--dtype", choices=DTYPES, default="float64", help="of these arrays")
    command.add_argument("--limit", type=float, default=30.0, metavar="SECONDS", help="for each case, 30 by default")
    command.add_argument(
        "--at-least", type=_count, default=0, metavar="N",
        help="fail where fewer than N cases were compared: an option that raises reads as one that is not taken",
    )  # fmt: skip
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    command = _command(commands, "grade", _grade, "grade files that were handed in, each in a process of its own")
    command.add_argument("files", nargs="*", metavar="FILE", help="Python files, one for each submission")
    command.add_argument("--exercise", metavar="NAME", help="which exercise: a name of --list, or a label of the book")
    command.add_argument("--list", action="store_true", help="say which exercises there are, and what each asks for")
    command.add_argument("--rubric", metavar="FILE", help="TOML: [points] for each part, [costs] of known mistakes")
    command.add_argument("--limit", type=float, default=60.0, metavar="SECONDS", help="for each file, 60 by default")
    command.add_argument("--memory", type=int, default=2048, metavar="MB", help="for each file, 2048 by default")
    command.add_argument("--feedback", metavar="DIR", help="write a Markdown page for each file there")
    how = command.add_mutually_exclusive_group()
    how.add_argument("--csv", action="store_true", help="print the table as CSV")
    how.add_argument("--json", action="store_true", help="print it as JSON")
    return parser


def _count(text):
    """A number of cases."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected 0 or more, got {text!r}")
    return int(text)


def _file(path):
    """The path of a file to write, in a folder that is there."""
    if not Path(path).parent.is_dir():
        raise argparse.ArgumentTypeError(f"No such file or directory: {str(Path(path).parent)!r}")
    return path


def _command(commands, name, run, text, or_else="", more=""):
    status = STATUS.format(or_else) + more
    command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", epilog=status)
    command.set_defaults(run=run, refuse=command.error)
    command.add_argument("--junit", type=_file, metavar="FILE", help="write the report as JUnit XML too, for CI")
    command.add_argument("--html", type=_file, metavar="FILE", help="write it as one HTML file too, with pictures")
    command.add_argument("--seed", type=int, default=0, help="other numbers and sizes for another seed")
    return command


if __name__ == "__main__":
    sys.exit(main())
