"""What a chapter asks of its reader, and what in it would leave a reader alone: the build warns, and the tests ask too.

Read from the notebooks alone: tags say which code is open, directives say which text is folded.
"""

import json
import re
from typing import NamedTuple

import yaml
from equations import CHAPTERS, DISPLAY, ROOT, check_cells, checks_of, equations
from sphinx.util import logging

FOLDED_CODE = {"hide-input", "hide-cell", "remove-input", "remove-cell"}
FOLDED_TEXT = {"dropdown", "solution", "solution-start"}
FENCE = re.compile(r"^(`{3,}|:{3,})(?:\{([\w-]+)\})?(.*)$")
BARE_FIGURE = re.compile(r'\A\s*<figure class="attnbook')
TABLE = re.compile(r"^\|[ :|-]+\|$", re.MULTILINE)
EXERCISE = re.compile(
    r"^(?P<fence>`{3,}|:{3,})\{exercise(?:-start)?\} *(?P<title>[^\n]*)\n(?P<options>(?::[^\n]*\n)*)\s*"
    r"(?:\*Level (?P<level>[123]) · (?P<minutes>\d+) minutes(?: · answered by (?P<answer>[^*]+))?\.\*)?"
    r"(?P<text>[\s\S]*?)(?:^(?P=fence) *$|\Z)",
    re.MULTILINE,
)
LINK = re.compile(r"\[[^\]]*\]\([^)]*\)|\{(?:eq|numref|cite|doc|py:\w+|index)\}`[^`]*`|`[^`]*`")

logger = logging.getLogger(__name__)


class Load(NamedTuple):
    """Words in all, words outside of what is folded, and lines of code open to the eye."""

    words: int
    main_line: int
    open_lines: int


class Exercise(NamedTuple):
    """What the first lines of an exercise say of it, None where they do not; ``answer`` says what checks it, if not a
    printed solution.
    """

    title: str
    label: str | None
    level: str | None
    minutes: str | None
    answer: str | None
    text: str


def read(path):
    """The cells of a notebook, each with its source as one string."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [{**cell, "source": "".join(cell["source"]), "tags": cell["metadata"].get("tags", [])} for cell in cells]


def count(text):
    """The words of a Markdown text; a formula in a line counts as one, a displayed one as none."""
    text = re.sub(r"\$[^$]*\$", "x", re.sub(r"\$\$.*?\$\$", " ", text, flags=re.DOTALL))
    return len(re.findall(r"[A-Za-z']+", text))


def exercises(text):
    """The exercises of a Markdown text."""
    for match in EXERCISE.finditer(text):
        label = re.search(r"^:label: (\S+)$", match["options"], re.MULTILINE)
        yield Exercise(match["title"], label and label[1], *match.group("level", "minutes", "answer", "text"))


def main_line(text):
    """The text less its directives' own lines, and less all that stands in folded ones."""
    kept, fences, in_solution = [], [], False
    for line in text.splitlines():
        fence = FENCE.match(line)
        mark, name, rest = fence.groups() if fence else (None, None, None)
        if name:
            in_solution = (in_solution or name == "solution-start") and name != "solution-end"
            fences.append((mark, name))
            line = rest if name not in ("solution-start", "solution-end") else ""
        elif mark and fences and mark == fences[-1][0] and not rest.strip():
            fences.pop()
            continue
        if not in_solution and not any(name in FOLDED_TEXT for _, name in fences):
            kept.append(line)
    return "\n".join(kept)


def load(path):
    """What a chapter asks of its reader."""
    cells = read(path)
    text = "\n\n".join(cell["source"] for cell in cells if cell["cell_type"] == "markdown")
    code = [c["source"] for c in cells if c["cell_type"] == "code" and not FOLDED_CODE.intersection(c["tags"])]
    return Load(count(text), count(main_line(text)), sum(bool(line.strip()) for c in code for line in c.splitlines()))


def faults(path):
    """What is wrong in a chapter, as pairs of a cell's name and a sentence."""
    cells, known = read(path), {e.label: e for e in equations() if e.chapter == path.stem}
    for check in check_cells(path):
        for label in check.labels:
            if label not in known:
                yield check.cell, f"it checks {label}, which is no formula of this chapter"
    waiting = []  # steps that lead to nothing yet
    for cell in cells:
        name, source = cell["id"], cell["source"]
        if cell["cell_type"] == "code":
            yield from ((name, fault) for fault in _of_code(cell))
            continue
        for part in re.split(r"(?=^## )", source, flags=re.MULTILINE):
            if part.startswith("## ") and waiting:
                for label in waiting:
                    yield name, f"in the section before, {label} is a step that leads to no checked formula"
                waiting = []
            for match in DISPLAY.finditer(part):
                label = match[2]
                if not label:
                    yield name, f"a formula has no number: {match[1].strip()[:40]}"
                elif known[label].is_step:
                    waiting.append(label)
                elif known[label].checks:
                    waiting = []
                elif not known[label].is_definition:
                    yield name, f"{label} is neither checked nor a definition nor a step"
        for table in TABLE.finditer(source):
            if not re.search(r"\{(table|list-table)\} \S[^\n]*\n(:[^\n]*\n|\n)*\|[^\n]*\n\Z", source[: table.start()]):
                yield name, "a table has no caption"
        for one in exercises(source):
            if not one.level:
                yield name, f"an exercise says no level and time: {one.title}"
            if not one.label:
                yield name, f"an exercise has no label: {one.title}"
    yield from (("end", f"{label} is a step that leads to no checked formula") for label in waiting)


def _of_code(cell):
    if cell["source"].startswith("# checks:"):
        if "hide-cell" not in cell["tags"]:
            yield "it checks formulas, and is not folded"
        if not checks_of(cell["source"]):
            yield "it says that it checks, and checks nothing"
    for output in cell.get("outputs", ()):
        if BARE_FIGURE.match("".join(output.get("data", {}).get("text/html", ""))):
            yield "a figure has no caption"


def terms():
    """Each term, and the chapter and cell that say what it means."""
    known = yaml.safe_load((ROOT / "book" / "terms.yml").read_text(encoding="utf-8"))
    return {term: tuple(place.split("#")) for term, place in known.items()}


def order():
    """The chapters, as the table of contents has them."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    listed = [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    return [CHAPTERS / f"{name.partition('/')[2]}.ipynb" for name in listed if name.startswith("chapters/")]


def too_early(paths, meanings):
    """Terms that stand in the text before their definition does: chapter, cell, term. A link or a name in code may."""
    expression = {term: r"\b" + term.replace(" ", r"\s+") + r"\b" for term in meanings}
    waiting = {term: (place, re.compile(expression[term], re.IGNORECASE)) for term, place in meanings.items()}
    for path in paths:
        for cell in read(path):
            if cell["cell_type"] != "markdown":
                continue
            text = LINK.sub(" ", re.sub(r"\$\$.*?\$\$|\$[^$]*\$", " ", cell["source"], flags=re.DOTALL))
            for term, (place, pattern) in list(waiting.items()):
                if place == (path.stem, cell["id"]):
                    if not pattern.search(text):
                        yield path.stem, cell["id"], f"{term} is not explained here"
                    del waiting[term]
                elif pattern.search(text):
                    yield path.stem, cell["id"], f"{term} is used before {'#'.join(place)} says what it means"
    yield from ((*place, f"there is no such cell, which should explain {term}") for term, (place, _) in waiting.items())


def warn(app, docname, source):
    """Each fault of a chapter is a warning of the build, and ends it where warnings do."""
    if docname.startswith("chapters/"):
        for cell, fault in faults(ROOT / f"{docname}.ipynb"):
            logger.warning("%s", fault, location=f"{docname}.ipynb:{cell}")


def warn_of_terms(app, env):
    for chapter, cell, fault in too_early(order(), terms()):
        logger.warning("%s", fault, location=f"chapters/{chapter}.ipynb:{cell}")


def setup(app):
    app.connect("source-read", warn)
    app.connect("env-check-consistency", warn_of_terms)
    return {"parallel_read_safe": True}
