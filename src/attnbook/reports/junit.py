"""A report as JUnit XML, which CI systems show. Chapter: :doc:`/chapters/in_the_wild`."""

import re
from xml.etree import ElementTree


def as_junit(report, target):
    """The report as JUnit XML text: a test for each case, failed where a finding has it, skipped where it did not run.

    Parameters
    ----------
    report : attnbook.diagnose.Report
    target : str
        What was diagnosed; the name of the suite.
    """
    suite = ElementTree.Element("testsuite", name=_text(f"attnbook diagnose {target}"))
    counts = {"failures": 0, "errors": 0, "skipped": 0}
    cases = list(dict.fromkeys([*(run.name for run in report.runs), *report.compared, *report.not_run]))
    for name in cases:
        test = ElementTree.SubElement(suite, "testcase", classname=_text(target), name=_text(name))
        findings = [finding for finding in report.findings if name in finding.cases]
        for finding in findings:
            kind = "failure" if finding.about != "the call" else "error"
            counts[f"{kind}s"] += 1
            names = ", ".join(slug for cause in finding.causes for slug in cause)
            about = f"{finding.about}: {finding.text}"
            element = ElementTree.SubElement(test, kind, type=_text(names or finding.kind), message=_text(about))
            element.text = _text(report)
        if not findings and name in report.not_run:
            counts["skipped"] += 1
            ElementTree.SubElement(test, "skipped", message=_text(report.not_run[name]))
    rest = [finding for finding in report.findings if not set(finding.cases) & set(cases)]
    if rest:  # of no case: nothing ran
        counts["errors"] += len(rest)
        test = ElementTree.SubElement(suite, "testcase", classname=_text(target), name="all cases")
        for finding in rest:
            ElementTree.SubElement(test, "error", message=_text(f"{finding.about}: {finding.text}"))
    suite.attrib |= {"tests": str(len(suite)), **{name: str(count) for name, count in counts.items()}}
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def _text(value):
    """As text that XML allows: no control characters."""
    return re.sub(r"[^\t\n\r\x20-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]", "\N{REPLACEMENT CHARACTER}", str(value))
