"""One letter, one meaning: the letters of every formula of the chapters stand in the tables of book/notation.md.

The tables under "Our letters" hold for the whole book, those of the smaller homes for the chapters that they name. An
appendix, which quotes the letters of others, is not read.
"""

import re
from collections import Counter
from typing import NamedTuple

import pytest
from equations import ROOT
from reading import FENCE, order, read

PAGE = (ROOT / "book" / "notation.md").read_text(encoding="utf-8")
CHAPTERS = [path for path in order() if path.stem[:2].isdigit()]

GREEK = r"\\(?:ell|[Gg]amma|[Dd]elta|[Tt]heta|[Ll]ambda|[Xx]i|[Pp]i|[Ss]igma|[Pp]hi|[Pp]si|[Oo]mega|alpha|beta|zeta|eta"
GREEK += r"|(?:var)?epsilon|var(?:phi|theta)|iota|kappa|mu|nu|rho|tau|chi|upsilon)(?![A-Za-z])"
TOKEN = re.compile(rf"d(?=[A-Za-z]|{GREEK})|{GREEK}|\\[A-Za-z]+|\\.|\S")
WORDS = {r"\text", r"\mathrm", r"\mathsf", r"\operatorname", r"\begin", r"\end", r"\overset"}  # and their argument
MARKS = ("dot", "ddot", "hat", "widehat", "tilde", "widetilde", "bar", "overline", "mathcal", "mathbb")
MARKS = {"\\" + mark for mark in MARKS}
CODE = re.compile(r"(?<!`)`[^`\n]+`(?!`)")
FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$([^$]+)\$", re.DOTALL)


class Letter(NamedTuple):
    """A letter, what stands on it or before it, and the part of its name that stands below or above: the mem of X."""

    name: str
    marks: frozenset = frozenset()
    label: str = ""

    def __str__(self):
        return " ".join((*sorted(self.marks), self.name + self.label))


def plain(letter):
    """A gradient and a tangent have the letter of what they are of."""
    return letter._replace(marks=letter.marks - {"d", r"\dot", r"\ddot"})


def letters(latex):
    """The letters of a formula, in order; those of scripts after the letter that they stand at."""
    latex = re.sub(r"\\\\\[[^]]*\]|\bd\\,(?=\\text)", " ", latex)
    stack = [[]]
    for token in TOKEN.finditer(latex):
        if token[0] == "{":
            stack.append([])
        elif token[0] == "}":
            group = stack.pop()
            stack[-1].append(group)
        else:
            is_gradient = token[0] == "d" and re.match(rf"[A-Za-z]|{GREEK}", latex[token.end() :])
            stack[-1].append("gradient" if is_gradient else token[0])
    return list(_letters(stack[0]))


def _letters(items):
    items, marks = list(items), frozenset()
    while items:
        item = items.pop(0)
        if isinstance(item, list):
            yield from (letter._replace(marks=letter.marks | marks) for letter in _letters(item))
        elif item in WORDS:
            items.pop(0)
        elif item in MARKS or item == "gradient":
            marks |= {"d" if item == "gradient" else item}
            continue
        elif re.fullmatch(rf"[A-Za-z]|{GREEK}", item):
            label, scripts = "", []
            while items and items[0] in ("_", "^", "'"):
                script = items.pop(0)
                if script != "'":
                    found, rest = _label(item, script, items.pop(0))
                    label, scripts = label + found, scripts + rest
            yield Letter(item, marks, label)
            yield from _letters(scripts)
        marks = frozenset()


def _label(name, script, argument):
    """What of a script belongs to the name, and what is a letter of its own: mem and b of X_{mem,b}."""
    argument = argument if isinstance(argument, list) else [argument]
    if argument[0] in (r"\text", r"\mathrm"):
        return script + "".join(argument[1]), argument[2:]
    short = all(isinstance(token, str) for token in argument) and "".join(argument)
    if short and ((short.isupper() and name in "WbU") or (short.isalpha() and script == "_" and name in "ndh")):
        return script + short, []
    return "", argument


def formulas(text):
    """The formulas of a text, displayed or in a line, and not the dollars of its code."""
    kept, fences = [], []
    for line in text.splitlines():
        mark, name, _ = fence.groups() if (fence := FENCE.match(line)) else (None, None, None)
        if mark and fences and fences[-1][0] == mark and not name:
            fences.pop()
        elif mark and not (fences and fences[-1][1]):
            fences.append((mark, not name))
        elif not (fences and fences[-1][1]):
            kept.append(line)
    return (display or inline for display, inline in FORMULA.findall(CODE.sub(" ", "\n".join(kept))))


class Homes(NamedTuple):
    """The letters of the tables: those of the book, its sizes and indices, and triples of letter, chapters, meaning."""

    book: list
    indices: list
    small: list

    def of(self, chapter):
        return {*self.book, *self.indices, *(letter for letter, chapters, _ in self.small if chapter in chapters)}


def homes(page):
    found = Homes([], [], [])
    for block in re.findall(r"(?:^\|.*\n)+", page.partition("\n## Conventions")[0], re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in block.splitlines())
        for cells in rows:
            own = [all_of[0] for latex in formulas(cells[0]) if (all_of := letters(latex))]
            if head[0].strip("| ") in ("Letter", "Gradient") and head[1] != "Chapter":
                found.book.extend(own)
            elif head[0].strip("| ") == "Size or index":
                found.indices.extend(own)
            elif head[1] == "Chapter":
                ranges = (re.findall(r"\d+", part) for part in cells[1].split(","))
                chapters = {n for ends in ranges for n in range(int(ends[0]), int(ends[-1]) + 1)}
                found.small.extend((letter, chapters, cells[2]) for letter in own)
    return found


def collisions(homes):
    """What a letter means twice. A rule's "any" letter means nothing of its own."""
    for table in (homes.book, homes.indices):
        yield from (f"{letter} has two rows" for letter, times in Counter(table).items() if times > 1)
    everywhere = {*homes.book, *homes.indices}
    for letter, chapters, meaning in homes.small:
        if letter in everywhere and not meaning.startswith("any"):
            yield f"{letter} has a meaning in all of the book, and one in {sorted(chapters)}"
    each = Counter((letter, chapter) for letter, chapters, _ in homes.small for chapter in chapters)
    yield from (f"{letter} has two rows for chapter {n}" for (letter, n), times in each.items() if times > 1)


def strangers(cells, known):
    """The letters of a chapter's formulas that have no meaning there, each with its first cell and formula."""
    said = set()
    for cell in cells:
        for latex in formulas(cell["source"]) if cell["cell_type"] == "markdown" else ():
            for letter in letters(latex):
                names = (letter, plain(letter), plain(letter)._replace(label=""))
                if not known.intersection(names) and letter not in said:
                    said.add(letter)
                    yield f"{cell['id']}: {letter} in {' '.join(latex.split())}"


HOMES = homes(PAGE)


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_letter_has_a_meaning_and_no_small_home_is_empty(path):
    number = int(path.stem[:2])
    said = list(strangers(read(path), HOMES.of(number)))
    assert not said, "\n".join(said)
    texts = (cell["source"] for cell in read(path) if cell["cell_type"] == "markdown")
    used = {plain(letter) for text in texts for latex in formulas(text) for letter in letters(latex)}
    used |= {letter._replace(label="") for letter in used}
    assert not [str(letter) for letter, chapters, _ in HOMES.small if number in chapters and letter not in used]


def test_no_letter_has_two():
    said = list(collisions(HOMES))
    assert not said, "\n".join(said)
