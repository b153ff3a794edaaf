"""``{status} built``, ``chapters``, ``checks`` and ``benchmarks``: what this site was made with, from records and pip.

The only page that may differ from build to build: it says when it was built.
"""

import json
import os
import platform
import re
import time
from importlib.metadata import PackageNotFoundError, version

from commit import commit
from docutils import nodes
from docutils.statemachine import StringList
from equations import ROOT, equations
from sphinx.util.docutils import SphinxDirective
from what_ran import record

RESULTS = ROOT / "benchmarks" / "results"
RUN_TIMES = ROOT / "book" / "run_times.json"


def table(heads, rows, right=()):
    """The lines of a table in Markdown."""
    marks = ["--:" if head in right else "---" for head in heads]
    return [f"| {' | '.join(map(str, row))} |" for row in (heads, marks, *rows)]


def whole(text):
    """The same with dates that do not break, in a narrow column either."""
    return re.sub(r"\d{4}-\d\d-\d\d", r"[\g<0>]{.together}", text)


def built():
    """Commit, date, and the versions of what builds the book and runs its chapters and tests."""
    date = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))
    name, _ = commit()
    yield whole(f"Built on {date}" + (f", from commit {name}." if name else "."))
    yield ""
    rows = [("Python", platform.python_version(), "")]
    for title, packages in chosen():
        rows += [(package, installed(package, pinned), title) for package, pinned in packages]
    shipped = json.loads((ROOT / "book" / "package.json").read_text(encoding="utf-8"))["dependencies"]
    rows += [(package, pinned, "Carried by the pages") for package, pinned in shipped.items()]
    yield from table(("What", "Version", "For"), rows)


def chosen():
    """The packages that the requirements name with a purpose, by purpose; not what those pull in."""
    texts = [(folder / "requirements.txt").read_text(encoding="utf-8") for folder in (ROOT, ROOT / "tests")]
    for part in "\n\n".join(texts).split("\n\n"):
        title, *lines = part.strip().splitlines()
        pins = [line.partition(";")[0].strip() for line in lines]  # what stands behind says on which machines
        packages = [pin.split("==") for pin in pins if "==" in pin]
        if packages and not title.startswith("# Everything"):
            yield title.removeprefix("# "), packages


def installed(package, pinned):
    """The version that this build ran with; where it was not needed here, the one that is asked for."""
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return f"{pinned} (not here)"


def chapters():
    """How long each chapter ran when its outputs were stored."""
    known = json.loads(RUN_TIMES.read_text(encoding="utf-8"))
    shown = {name: {**run, "date": whole(run["date"])} for name, run in known.items()}
    rows = [(f"{{doc}}`/chapters/{name}`", *(run[key] for key in COLUMNS)) for name, run in shown.items()]
    yield from table(("Chapter", *COLUMNS), rows, right=("seconds",))
    yield ""
    total = sum(run["seconds"] for run in known.values())
    yield f"Together {total:.0f} seconds. Recorded by `{next(iter(known.values()))['command']}`."


COLUMNS = ("seconds", "date", "machine", "python")


def checks():
    """How much was checked, and what could not be."""
    found, known = equations(), record()
    cells = [state for states in known["cells"].values() for state in states.values()]
    missing = sorted({state for state in cells if state != "passed"})
    tests = known["tests"]
    asserted, defined = sum(bool(e.checks) for e in found), sum(e.is_definition for e in found)
    rows = [
        ("displayed formulas, each checked by a cell that runs", asserted),
        ("displayed formulas that are definitions", defined),
        ("displayed formulas that are steps on the way to a checked one", len(found) - asserted - defined),
        ("tests that check a quantity, passed", tests["passed"]),
        ("of them: mistakes planted in the package, and noticed", tests["planted mistakes noticed"]),
        ("tests skipped, for what was missing", tests["skipped"]),
        ("pairs of a quantity and a check, passed", cells.count("passed")),
        ("pairs not run", len(cells) - cells.count("passed")),
    ]
    yield from table(("What", "How many"), rows, right=("How many",))
    yield ""
    yield f"Tests recorded on {whole(known['date'])} by `make coverage`. " + (
        f"Not run there: {'; '.join(missing)}." if missing else "Nothing was left out, on a GPU neither."
    )


def benchmarks():
    """Which command measured what, on which machine and when."""
    rows = []
    for path in sorted(RESULTS.glob("*.json")):
        known = json.loads(path.read_text(encoding="utf-8"))
        machine = ", ".join(str(known["machine"][key]) for key in ("cpu", "memory"))
        if "driver" in known.get("gpu", {}):  # one that was there
            machine = f"{known['gpu']['name']}; {machine}"
        of = (known.get("commit") or {}).get("name")
        rows.append(
            (
                known["what"],
                f"`{known['command']}`",
                whole(known["date"]),
                f"`{of}`" if of else "not recorded",
                f"{machine}, {known['machine']['cores']} cores",
            )
        )
    yield from table(("What", "Command", "Date", "Commit", "Machine"), rows)


FACTS = {"built": built, "chapters": chapters, "checks": checks, "benchmarks": benchmarks}


class Status(SphinxDirective):
    """One table of the page."""

    required_arguments = 1

    def run(self):
        self.env.note_reread()  # its facts are not in the page's source
        box = nodes.container(classes=["status"])
        self.state.nested_parse(StringList(list(FACTS[self.arguments[0]]()), "status"), self.content_offset, box)
        return [box]


def setup(app):
    app.add_directive("status", Status)
    return {"parallel_read_safe": True}
