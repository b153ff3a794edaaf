"""A report as JUnit XML, which CI systems show. Chapter: :doc:`/chapters/in_the_wild`."""

import re
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

from attnbook.diagnose import Finding, Report
from attnbook.diagnose.links import link, title_of
from attnbook.diagnose.wording import in_cases


def too_few(report: Report, at_least: int) -> str:
    """What to say where fewer cases were compared than were asked for."""
    return f"compared in {len(report.compared)} of {report.cases} cases, expected at least {at_least}"


def as_junit(report: Report, target: str, at_least: int = 0) -> str:
    """The report as JUnit XML text: a test for each case, failed where findings have it, skipped where it did not run.

    Parameters
    ----------
    report : attnbook.diagnose.Report
    target : str
        What was diagnosed; the name of the suite.
    at_least : int
        Where fewer cases were compared, one more test has failed.
    """
    suite = ElementTree.Element("testsuite", name=as_text(f"attnbook diagnose {target}"))
    counts = {"failures": 0, "errors": 0, "skipped": 0}
    ran = {run.name: run for run in report.runs if run.compared}
    cases = list(dict.fromkeys([*(run.name for run in report.runs), *report.compared, *report.not_run]))
    for name in cases:
        test = ElementTree.SubElement(suite, "testcase", classname=as_text(target), name=as_text(name))
        findings = [finding for finding in report.findings if name in finding.cases]
        if findings:
            kind = "error" if all(finding.about == "the call" for finding in findings) else "failure"
            counts[f"{kind}s"] += 1
            slugs = dict.fromkeys(slug for finding in findings for cause in finding.causes for slug in cause)
            here = [f"{finding.about}: {_here(finding, ran.get(name))}" for finding in findings]
            names = as_text(", ".join(slugs) or findings[0].kind)
            element = ElementTree.SubElement(test, kind, type=names, message=as_line("; ".join(here)))
            text = (line for about, each in zip(here, findings, strict=True) for line in (about, *_why(each, name)))
            element.text = as_text("\n".join(text))
        if not findings and name in report.not_run:
            counts["skipped"] += 1
            ElementTree.SubElement(test, "skipped", message=as_line(report.not_run[name]))
    rest = [finding for finding in report.findings if not set(finding.cases) & set(cases)]
    if rest:  # of no case: nothing ran
        counts["errors"] += 1
        test = ElementTree.SubElement(suite, "testcase", classname=as_text(target), name="all cases")
        lines = [f"{finding.about}: {finding.text}" for finding in rest]
        ElementTree.SubElement(test, "error", message=as_line("; ".join(lines))).text = as_text("\n".join(lines))
    if len(report.compared) < at_least:
        counts["failures"] += 1
        test = ElementTree.SubElement(suite, "testcase", classname=as_text(target), name="cases that were compared")
        ElementTree.SubElement(test, "failure", type="too few", message=too_few(report, at_least))
    suite.attrib |= {"tests": str(len(suite)), **{name: str(count) for name, count in counts.items()}}
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def _here(finding: Finding, run: Any) -> str:
    """What a finding says of one case."""
    if finding.kind == "wrong" and run is not None and finding.about in run.came.values:
        return run.error(finding.about)[1]
    return finding.text.removeprefix(f"{in_cases(finding.cases)}: ")


def _why(finding: Finding, case: Any) -> Iterator[str]:
    """What may cause it there, and where to read on, in lines."""
    named = [
        (("and: " if k else "or: " if i else "") + title_of(slug), link(slug))
        for i, cause in enumerate(finding.causes)
        for k, slug in enumerate(cause)
    ]
    named += [(title_of(slug), link(slug)) for slug, *cases in finding.parts if case in cases]
    yield from (line for lines in named for line in lines if line)
    yield from filter(None, [finding.likely])


def as_line(value: Any) -> str:
    """As text of one line."""
    return as_text(" ".join(str(value).split()))


def as_text(value: Any) -> str:
    """As text that XML allows: no control characters."""
    return re.sub(r"[^\t\n\r\x20-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]", "\N{REPLACEMENT CHARACTER}", str(value))
