"""What came of grading, as one HTML page of a whole class, or as JUnit XML. Chapter: :doc:`/chapters/08_checking`."""

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from xml.etree import ElementTree

from attnbook.diagnose.links import link, title_of
from attnbook.grade import Exercise, Row
from attnbook.grade.table import named, outcome, points_of, wrong_of
from attnbook.reports.html import page
from attnbook.reports.junit import as_line, as_text


def graded_html(rows: Sequence[Row], exercise: Exercise) -> str:
    """One HTML file, a table of all files and a section for each: no scripts, and no links but to the book.

    Parameters
    ----------
    rows : list of attnbook.grade.Row
    exercise : attnbook.grade.Exercise
    """
    right = sum(row.verdict == "right" for row in rows)
    names = Counter(Path(row.file).name for row in rows)
    body = [
        f"<h1>{escape(exercise.name)}</h1>",
        f"<p><strong>{right} of {len(rows)} right.</strong> Asked for: <code>{escape(exercise.asks)}</code></p>",
        "<table>\n<tr><th>File</th><th>Points</th><th>Verdict</th><th>Wrong</th></tr>",
    ]
    sections = ["</table>"]
    for i, row in enumerate(rows):
        name = Path(row.file).name
        shown = escape(name if names[name] == 1 else row.file)
        color = "right" if row.verdict == "right" else "wrong"
        body.append(
            f'<tr><td class="name"><a href="#file-{i}">{shown}</a></td><td>{points_of(row)}</td>'
            f'<td class="{color}">{row.verdict}</td><td>{escape(wrong_of(row))}</td></tr>'
        )
        sections += [f'<h2 id="file-{i}">{shown}</h2>', *_section(row)]
    return page(f"{escape(exercise.name)}: {right} of {len(rows)} right", body + sections)


def _section(row: Row) -> Iterator[str]:
    known = [part for part in row.parts.items() if part[1] != "not known"]
    parts = ", ".join(f'{escape(part)} <span class="{verdict}">{verdict}</span>' for part, verdict in known)
    yield f"<p>{_both(row)}{': ' * bool(parts)}{parts}</p>"
    if missing := [part for part, verdict in row.parts.items() if verdict == "not known"]:
        yield f"<p>Not known: {escape(', '.join(missing))}. What is not known earns nothing.</p>"
    for i, slug in enumerate((*row.mistakes, *row.possible)):
        title = escape(title_of(slug))
        linked = f'<a href="{escape(link(slug))}">{title}</a>' if link(slug) else title
        yield f"<p>{'or: ' if i > len(row.mistakes) else ''}{linked} ({slug})</p>"
    if row.why or row.notes:
        yield "<ul>"
        yield from (f"<li>{escape(line)}</li>" for line in row.why)
        yield from (f'<li class="faint">Note: {escape(note)}</li>' for note in row.notes)
        yield "</ul>"


def _both(row: Row) -> str:
    return ", ".join(dict.fromkeys((row.verdict, outcome(row))))


def graded_junit(rows: Sequence[Row], exercise: Exercise) -> str:
    """JUnit XML text: a test for each file, failed where it is wrong, an error where it could not be graded.

    Parameters
    ----------
    rows : list of attnbook.grade.Row
    exercise : attnbook.grade.Exercise
    """
    suite = ElementTree.Element("testsuite", name=f"attnbook grade {exercise.name}", tests=str(len(rows)))
    kinds = {"wrong": "failure", "not graded": "error"}
    for row in rows:
        at = {"classname": exercise.name, "name": as_text(row.file), "time": f"{row.seconds:g}"}
        test = ElementTree.SubElement(suite, "testcase", at)
        if kind := kinds.get(row.verdict):
            wrong = f", wrong: {', '.join(row.wrong)}" if row.wrong else ""
            message = _both(row) + wrong
            about = {"type": as_text(" ".join(row.mistakes) or row.verdict), "message": as_line(message)}
            lines = [*map(named, row.mistakes), *row.why, *row.notes]
            ElementTree.SubElement(test, kind, about).text = as_text("\n".join(lines))
    for verdict, kind in kinds.items():
        suite.set(f"{kind}s", str(sum(row.verdict == verdict for row in rows)))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)
