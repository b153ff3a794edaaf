"""A report as one HTML file that needs no other: words, a table, pictures. Chapter: :doc:`/chapters/in_the_wild`."""

from html import escape

from attnbook.diagnose.report import link, symptom, title_of
from attnbook.diagnose.results import NAMES
from attnbook.reports.picture import in_words, picture, wrong_entries

PICTURES = 3
"""For how many cases what is wrong is drawn, the first, and those with another pattern."""

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1b1b1f; --faint: #5c5c66; --line: #c9c9d1; --wrong: #b3261e;
  --right: #1a6b35; --link: #0b57a4 }
@media (prefers-color-scheme: dark) { :root { --paper: #16161a; --ink: #ececf1; --faint: #a9a9b4; --line: #45454f;
  --wrong: #ff8a80; --right: #7fd49a; --link: #8ec5ff } }
body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem }
a { color: var(--link) } .wrong { color: var(--wrong) } .right { color: var(--right) } .faint { color: var(--faint) }
table { border-collapse: collapse } th, td { border-bottom: 1px solid var(--line); padding: .2rem .8rem .2rem 0;
  text-align: left; vertical-align: top }
.wide { overflow-x: auto } figure { margin: 1rem 0 } figcaption { color: var(--faint) }
svg text { font: 11px ui-monospace, monospace; fill: var(--faint) } svg .frame { fill: none; stroke: var(--line) }
svg .wrong { fill: var(--wrong) }
"""


def as_html(report, target):
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
    title = f"{'right' if report.ok else 'wrong'}: {escape(target)}"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _findings(report):
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


def _named(slug):
    title = escape(title_of(slug))
    return f'<a href="{escape(link(slug))}">{title}</a>' if link(slug) else title


def _pictures(report):
    drawn = []
    for finding in report.findings:
        if finding.about in NAMES:
            drawn += _of_finding(report, finding)
    if drawn:
        yield "<h2>Which entries are wrong</h2>"
        yield '<p class="faint">A table for each head; a stronger color is further off.</p>'
        yield from drawn


def _of_finding(report, finding):
    """Pictures of the first cases in which it is wrong, one for each pattern."""
    seen = set()
    for run in report.runs:
        came = run.came.values[finding.about] if run.name in finding.cases and run.compared else None
        if came is None or came.ndim < 2 or came.shape != run.right[finding.about].shape or not came.size:
            continue
        right = run.right[finding.about]
        words = in_words(finding.about, wrong_entries(came, right, run.case.dtype))
        if words in seen or len(seen) >= PICTURES:
            continue
        seen.add(words)
        title = f'{finding.about} in "{run.name}"'
        yield (
            f'<figure><div class="wide">{picture(finding.about, came, right, title, run.case.dtype)}</div>\n'
            f"<figcaption>{escape(title)}, shape {came.shape}: {escape(words)}</figcaption></figure>"
        )


def _cases(report):
    yield '<h2>Cases</h2>\n<div class="wide"><table>\n<tr><th>Case</th>'
    yield "".join(f"<th>{name}</th>" for name in NAMES) + "</tr>"
    wrong = {(finding.about, case) for finding in report.findings for case in finding.cases}
    for name in report.compared:
        marks = ("wrong" if (result, name) in wrong else "right" for result in NAMES)
        cells = "".join(f'<td class="{mark}">{mark}</td>' for mark in marks)
        yield f"<tr><td>{escape(name)}</td>{cells}</tr>"
    failed = {case: f.text for f in report.findings if f.about == "the call" for case in f.cases}
    for name, reason in {**report.not_run, **failed}.items():
        if name not in report.compared:
            yield f'<tr><td>{escape(name)}</td><td colspan="4" class="faint">{escape(reason)}</td></tr>'
    yield "</table></div>"
