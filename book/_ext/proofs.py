"""Read the theorems of book/proofs and what the prover said of them. The site, the tests and ``make proofs`` ask here.

The convention, in a file of proofs:

- a theorem that proves a labelled formula has the label for its name: ``eq-dW-O`` is ``eq_dW_O``. One of several parts
  adds two underscores and the part: ``eq_dW__Q``. A theorem without a label has a plain name;
- the comment right above it says in plain words what it states.

What only the prover knows, what each theorem assumes and rests on, is recorded by ``make proofs`` in
``book/proofs.json``: the site is built without a prover.
"""

import functools
import hashlib
import json
import re
from typing import NamedTuple

from equations import ROOT, equations

PROOFS = ROOT / "book" / "proofs"
RECORD = ROOT / "book" / "proofs.json"

THEOREM = re.compile(r"\(\*\*((?:(?!\*\)).)*)\*\)\n(Theorem (\w+).*?\.)\nProof\.", re.DOTALL)
DEFINED = re.compile(
    r"^(?:\(\*\*((?:(?!\*\)).)*)\*\)\n)?((?:Definition|Fixpoint|Inductive|Record|Notation)\b.*?\.)$",
    re.MULTILINE | re.DOTALL,
)
STATED = re.compile(r"^ *Theorem (\w+)", re.MULTILINE)
REQUIRED = re.compile(r"^From attnbook Require (?:Export|Import) ([\w ]+)\.", re.MULTILINE)


class Theorem(NamedTuple):
    """A theorem: its file and line, what it says in plain words and as written, and the label it proves, or None."""

    name: str
    file: str
    line: int
    reading: str
    statement: str
    label: str | None

    @property
    def where(self):
        """Its place in the repository."""
        return f"book/proofs/{self.file}.v"


def files(folder=PROOFS):
    """The files of proofs, each after those it requires."""
    needs = {path.stem: required(path.stem, folder) for path in sorted(folder.glob("*.v"))}
    ordered = []
    while needs:
        ready = [name for name, of in needs.items() if not set(of) - set(ordered)]
        if not ready:
            raise ValueError(f"files of proofs require each other in a circle: {', '.join(needs)}")
        ordered += ready
        for name in ready:
            del needs[name]
    return ordered


def required(name, folder=PROOFS):
    """The names of the files of proofs that this one requires."""
    found = REQUIRED.findall((folder / f"{name}.v").read_text(encoding="utf-8"))
    return [name for names in found for name in names.split()]


def read(path, labels):
    """The theorems of one file; ``labels`` are those that the book has."""
    text = path.read_text(encoding="utf-8")
    by_name = {label.replace("-", "_"): label for label in labels}
    found = []
    for match in THEOREM.finditer(text):
        reading, statement, name = match.groups()
        line = text.count("\n", 0, match.start(2)) + 1
        reading = " ".join(reading.split())
        found.append(Theorem(name, path.stem, line, reading, statement, by_name.get(name.partition("__")[0])))
    without = set(STATED.findall(text)) - {theorem.name for theorem in found}
    if without:
        raise ValueError(f"{path.name}: no comment (** … *) right above the theorem {', '.join(sorted(without))}")
    return found


@functools.cache
def theorems(folder=PROOFS):
    """Every theorem, by its name, in the order of the files."""
    labels = [e.label for e in equations() if e.label]
    found = {}
    for name in files(folder):
        for theorem in read(folder / f"{name}.v", labels):
            if theorem.name in found:
                raise ValueError(f"the theorem {theorem.name} stands in {found[theorem.name].file}.v and in {name}.v")
            found[theorem.name] = theorem
    return found


class Defined(NamedTuple):
    """A definition or notation: its names, the comment above it, how it is written; does it stand apart from others?"""

    names: tuple
    reading: str
    written: str
    apart: bool


def definitions(name, folder=PROOFS):
    """The definitions and notations of a file."""
    text = (folder / f"{name}.v").read_text(encoding="utf-8")
    return [
        Defined(tuple(made(found[2])), " ".join((found[1] or "").split()), found[2], text[found.start() - 2] == "\n")
        for found in DEFINED.finditer(text)
    ]


def made(written):
    """The names that a definition makes: its own, and those of its cases or parts."""
    kind, _, rest = written.partition(" ")
    if own := re.match(r"[^\W\d]\w*", rest):
        yield own[0]
    if kind == "Inductive":
        yield from re.findall(r"[=|]\s*(\w+)", rest)
    if kind == "Record":
        yield from re.findall(r"\w+(?= \{| :(?!=))", rest)


@functools.cache
def defined_in(name, folder=PROOFS):
    """The file of each name that a definition makes and this file of proofs can use: its own, or one it requires."""
    found = {of: name for one in definitions(name, folder) for of in one.names}
    for other in required(name, folder):
        found = defined_in(other, folder) | found
    return found


def title(name, folder=PROOFS):
    """What the first comment of a file of proofs calls it, and what it says of it, as Markdown."""
    head = re.match(r"\(\*\* \* (.+?)\n\n(.*?)\*\)", (folder / f"{name}.v").read_text(encoding="utf-8"), re.DOTALL)
    if not head:
        raise ValueError(f"{name}.v: expected a first comment (** * Title, an empty line, what it is about *)")
    return head[1], re.sub(r"\[([^\]]+)\]", r"`\1`", " ".join(head[2].split()))


def as_read(folder=PROOFS):
    """The files of proofs in the order of the chapters that their titles name."""

    def chapter(name):
        named = re.search(r"chapter (\d+)|appendix", title(name, folder)[0])
        return int(named[1] or 99) if named else 0

    return sorted(files(folder), key=chapter)


def stated(item, folder=PROOFS):
    """A lemma or theorem, file.name, as written, and the line on which it stands."""
    name, _, of = item.partition(".")
    text = (folder / f"{name}.v").read_text(encoding="utf-8")
    found = re.search(rf"(?:Theorem|Lemma|Corollary) {re.escape(of)}\s.*?\.(?=\s+Proof\b)", text, re.DOTALL)
    return found[0], text.count("\n", 0, found.start()) + 1


def by_label():
    """The theorems of each label that has one."""
    found = {}
    for theorem in theorems().values():
        if theorem.label:
            found.setdefault(theorem.label, []).append(theorem)
    return found


def digest(folder=PROOFS):
    """What changes when a file of proofs changes."""
    together = hashlib.sha256()
    for name in sorted(files(folder)):
        together.update((folder / f"{name}.v").read_bytes())
    return together.hexdigest()[:16]


def record():
    """What the prover said, as ``make proofs`` wrote it down."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
