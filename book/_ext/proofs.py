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
DEFINED = re.compile(r"^(?:Definition|Fixpoint|Inductive|Record|Notation)\b.*?\.$", re.MULTILINE | re.DOTALL)
DEFINES = re.compile(r"(?!Notation)\w+ (\S+)|")
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


def definitions(name, folder=PROOFS):
    """The definitions and notations of a file, as written, each with the name that it defines, or None."""
    text = (folder / f"{name}.v").read_text(encoding="utf-8")
    return [(DEFINES.match(written)[1], written) for written in DEFINED.findall(text)]


@functools.cache
def defined_in(folder=PROOFS):
    """The file of each name that a definition makes."""
    return {made: name for name in files(folder) for made, _ in definitions(name, folder) if made}


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


def line_of(item, folder=PROOFS):
    """The line on which a lemma or theorem, file.name, is stated."""
    name, _, stated = item.partition(".")
    text = (folder / f"{name}.v").read_text(encoding="utf-8")
    return text.count("\n", 0, re.search(rf"\b(?:Theorem|Lemma|Corollary) {re.escape(stated)}\b", text).start()) + 1


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
