"""What a report says, in plain words. Chapter: :doc:`/chapters/in_the_wild`."""

import textwrap

from attnbook.diagnose.learn.results import NAMES
from attnbook.diagnose.links import BOOK, link, title_of

NOT_TAKEN = "it does not take "

SHOWN = 3
"""So many answers are shown, at most, of a function that takes nothing."""

FEW = 5
"""In fewer compared cases than these a name is said with a note."""

WRAP = (
    "nothing could be compared. Wrap it as fn(Q, K, V, dO) that returns (O, dQ, dK, dV), or as fn(Q, K, V) that "
    "returns O and goes back by autograd; what one rank of several runs, as Ranks(fn)"
)
"""What to do with a function that could be asked nothing."""


def in_cases(where):
    first = getattr(where[0], "name", where[0])
    return f'in "{first}"' if len(where) == 1 else f'in {len(where)} cases, first in "{first}"'


def of_what(report):
    """In which cases all is right: what was crossed in them, and what was not asked."""
    pairs = f": every pair of {', '.join(report.crossed)}" if len(report.crossed) > 1 else ""
    yield f"  in {len(report.compared)} of {report.cases} cases{pairs}"
    if report.apart:
        yield f"  but for {', '.join(map(' with '.join, report.apart))}"
    if report.unasked:
        yield f"  not asked: {', '.join(report.unasked)}"


def headline(causes, parts, findings):
    lines = []
    for i, slugs in enumerate(causes):
        for j, slug in enumerate(slugs):
            lines.append(("and: " if j else "or: " if i else "") + title_of(slug))
            lines += [f"  {link(slug)}"] if link(slug) else []
    wrong = len({case for f in findings for case in f.cases})
    lines += [f"  explains {wrong} of {wrong} wrong cases"] if causes and findings[0].kind == "wrong" else []
    for slug, *cases in parts:
        lines.append(
            f"{title_of(slug)}: explains {len(cases)} of {wrong}, {quoted(cases[:3])}{' …' * (len(cases) > 3)}"
        )
        lines += [f"  {link(slug)}"] if link(slug) else []
    if not lines and any(f.kind == "wrong" for f in findings):
        lines.append("no known mistake")
    if not lines and any(f.kind == "precision" for f in findings):
        lines.append("computed in less precision than it takes")
    return lines or ["not as asked"]


def reasons(not_run):
    """Why cases were not run: the options that are not taken on one line, every other reason with its cases."""
    by_reason = grouped((reason, name) for name, reason in not_run.items())
    without = {reason: len(names) for reason, names in by_reason if reason.startswith(NOT_TAKEN)}
    single = [reason.removeprefix(NOT_TAKEN) for reason in without if " together" not in reason]
    single = [each for each in single if each.partition("=")[0] not in set(single) - {each}]  # causal, and its corner
    if single:
        yield f"not run, {NOT_TAKEN}{', '.join(single)}: {sum(without.values())} cases"
    for reason, names in by_reason:
        if not single or reason not in without:
            yield f"not run, {reason}: {quoted(names)}"


def wrapped(line):
    """The line, broken to fit a page; a link stays as it is."""
    if BOOK in line:
        return line
    deeper = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(line, 88, subsequent_indent=deeper, break_long_words=False, break_on_hyphens=False)


def quoted(names):
    return ", ".join(f'"{name}"' for name in names)


def grouped(pairs):
    """(key, [each value that stands beside it]), in the order in which the keys come."""
    groups = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups.items()


# --- what is worth a note ------------------------------------------------------------------------------------------


def precisions(compared):
    notes = []
    how = {name: {run.right_in(name) for run in compared} for name in NAMES}
    low = [name for name in NAMES if "float32" in how[name] and "" not in how[name]]
    if low:
        notes.append(", ".join(low) + ": right to the precision of float32 only, though float64 went in")
    dtypes = grouped(
        ((run.came.dtypes[name], run.case.dtype), name)
        for name in NAMES for run in compared if run.came.dtypes[name] != run.case.dtype
    )  # fmt: skip
    dtypes = [(list(dict.fromkeys(names)), *both) for both, names in dtypes]
    other = (
        f"{', '.join(names)} {'are' if names[1:] else 'is'} {came} where {went} went in" for names, came, went in dtypes
    )
    wider = grouped((run.came.text, run.name) for run in compared if run.came.text)
    more = (f"fewer than four axes raise {why}; four were handed over in {quoted(names)}" for why, names in wider)
    return (*notes, *other, *more)


def takes(call, runs):
    """What it takes, in a line, and where it takes nothing, what was tried."""
    if not call.took:
        tries = list(grouped((why, what) for what, why in call.tries.items()))
        for why, what in tries[:SHOWN]:
            yield f"tried {what[0]}{f' and {len(what) - 1} more' * (len(what) > 1)}: {why}"
        if tries[SHOWN:]:
            yield f"it raised {len(tries) - SHOWN} more, which came less far"
        return
    if words := call.convention.in_words(call.dtype):
        yield "it takes " + "; ".join(words)
    if refused := [run.name for run in runs if "dO" in run.case.memory and run.came.refused]:
        yield f"it refuses {quoted(refused)}: autograd may hand such a dO over, and who calls has no say"
    if never := call.never_given():
        yield "given in no case: " + ", ".join(never)
