"""A report as one HTML file that needs no other: words, a table, pictures. Chapter: :doc:`/chapters/in_the_wild`."""

from collections.abc import Iterable, Iterator
from html import escape
from typing import Any

import numpy as np

from attnbook.diagnose import Report
from attnbook.diagnose.learn.results import MORE, NAMES
from attnbook.diagnose.links import link, symptom, title_of
from attnbook.reports.picture import AXES, in_words, picture, wrong_entries

PICTURES = 6
"""How many results are drawn at most, each in the simplest case in which it is wrong."""

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1b1b1f; --faint: #5c5c66; --line: #c9c9d1; --wrong: #b3261e;
  --right: #1a6b35; --link: #0b57a4 }
@media (prefers-color-scheme: dark) { :root { --paper: #16161a; --ink: #ececf1; --faint: #a9a9b4; --line: #45454f;
  --wrong: #ff8a80; --right: #7fd49a; --link: #8ec5ff } }
body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; overflow-wrap: break-word }
a { color: var(--link) } .wrong { color: var(--wrong) } .right { color: var(--right) } .faint { color: var(--faint) }
table { border-collapse: collapse } th, td { border-bottom: 1px solid var(--line); padding: .2rem .8rem .2rem 0;
  text-align: left; vertical-align: top }
.name { overflow-wrap: anywhere }
.wide { overflow-x: auto } figure { margin: 1rem 0 } figcaption { color: var(--faint) }
svg text { font: 11px ui-monospace, monospace; fill: var(--faint) } svg .frame { fill: none; stroke: var(--line) }
svg .wrong { fill: var(--wrong) }
@media (max-width: 40rem) { th, td { font-size: .8rem; padding-right: .3rem } }
"""


def as_html(report: Report, target: str) -> str:
    """The report as the text of one HTML file: no scripts, and no links but to the book.

    Parameters
    ----------
    report : attnbook.diagnose.Report
    target : str
        What was diagnosed, for the heading.
    """
    verdict = "Nothing is wrong, as far as it ran." if report.ok else "Something is wrong."
    body = [
        f"<h1>{escape(target)}</h1>",
        f'<p class="{"right" if report.ok else "wrong"}"><strong>{verdict}</strong> '
        f"Compared in {len(report.compared)} of {report.cases} cases.</p>",
        *_findings(report),
        *_pictures(report),
        *(f"<p>Note: {escape(note)}</p>" for note in report.notes),
        *_cases(report),
    ]
    return page(f"{'right' if report.ok else 'wrong'}: {escape(target)}", body)


def page(title: str, body: Iterable[str]) -> str:
    """One HTML file of these lines."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _findings(report: Report) -> Iterator[str]:
    if report.ok:
        return
    yield "<h2>What is wrong</h2>"
    for finding in report.findings:
        yield f'<h3 class="wrong">{escape(finding.about)}</h3>\n<p>{escape(finding.text)}</p>'
        yield from (f"<p>{escape(line)}</p>" for line in finding.likely.splitlines())
        options = [" and ".join(map(_named, cause)) for cause in finding.causes]
        if options:
            yield f"<p>{'; or: '.join(options)}</p>"
        for slug, *cases in finding.parts:
            yield f"<p>{_named(slug)}: explains {escape(', '.join(cases))}</p>"
    wrong = [finding.about for finding in report.findings if finding.about in NAMES]
    yield f'<p><a href="{escape(symptom(wrong))}">From symptom to cause</a></p>'


def _named(slug: str) -> str:
    title = escape(title_of(slug))
    return f'<a href="{escape(link(slug))}">{title}</a>' if link(slug) else title


def _pictures(report: Report) -> Iterator[str]:
    drawn = [_of_result(report, name) for name in AXES]
    drawn = list(filter(None, drawn))[:PICTURES]
    if drawn:
        yield "<h2>Which entries are wrong</h2>"
        yield (
            '<p class="faint">Each in the simplest case in which it is wrong. Numbers in brackets are those of the '
            "leading axes, as [batch, head]; a stronger color is further off.</p>"
        )
        yield from drawn


def _of_result(report: Report, name: str) -> str:
    """A picture of the first case in which this result is wrong; "" where none can be drawn."""
    cases = {case for finding in report.findings if finding.about == name for case in finding.cases}
    for run in report.runs:
        came = run.came.values.get(name) if run.name in cases and run.compared else None
        if came is None or came.shape != run.right[name].shape or not came.size:
            continue
        shape = came.shape
        came, right = (np.atleast_2d(T) for T in (came, run.right[name]))
        share = wrong_entries(came, right, run.case.dtype)
        if not share.any():
            continue
        title = f'{name} in "{run.name}"'
        return (
            f'<figure><div class="wide">{picture(name, came, right, title, run.case.dtype)}</div>\n'
            f"<figcaption>{escape(title)}, shape {shape}: {escape(in_words(name, share))}</figcaption></figure>"
        )
    return ""


def _cases(report: Report) -> Iterator[str]:
    came = {run.name: run.came.values for run in report.runs if run.compared}
    wrong = {(finding.about, case) for finding in report.findings for case in finding.cases}
    there = {name for values in came.values() for name in values} | {about for about, _ in wrong}
    names = (*NAMES, *(name for name in MORE.values() if name in there))
    yield "<h2>Cases</h2>\n<table>\n<tr><th>Case</th>" + "".join(f"<th>{name}</th>" for name in names) + "</tr>"
    for case in report.compared:
        cells = "".join(_mark(name, case, wrong, name in NAMES or name in came.get(case, ())) for name in names)
        yield f"<tr><td>{escape(case)}</td>{cells}</tr>"
    failed = {case: f.text for f in report.findings if f.about == "the call" for case in f.cases}
    for case, reason in {**report.not_run, **failed}.items():
        if case not in report.compared:
            yield f'<tr><td>{escape(case)}</td><td colspan="{len(names)}" class="faint">{escape(reason)}</td></tr>'
    yield "</table>"


def _mark(name: str, case: Any, wrong: Any, there: Any) -> str:
    mark = "wrong" if (name, case) in wrong else "right" if there else ""
    return f'<td class="{mark}">{mark}</td>' if mark else "<td></td>"
