"""Spelling: every word of the prose is in hunspell's dictionary or in ``words.txt``; no common misspelling in code."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS = Path(__file__).with_name("words.txt")
PAGES = [*ROOT.glob("*.md"), *(ROOT / "book").glob("*.md"), ROOT / "benchmarks" / "README.md"]
CHAPTERS = (ROOT / "chapters").glob("*.ipynb")
MODULES = (ROOT / "src").rglob("*.py")
PROOFS = (ROOT / "book" / "proofs").glob("*.v")

# What is no prose: code, formulas, directives and their options, addresses, labels, HTML, citations.
NOT_PROSE = re.compile(
    r"^(?P<fence>`{3,}|:{3,})\{(?:literalinclude|raw|code|eval-rst|coverage|what-ran)[\s\S]*?^(?P=fence)\s*$"
    r"|^```[\s\S]*?^```\s*$|\$\$[\s\S]*?\$\$(?: *\([\w-]+\))?|\$[^$]+\$|^:[\w-]+:.*$|^[`:]{3,}.*$|^\([\w-]+\)=$"
    r"|\{[\w:-]+\}`[^`]*`|``[^`]+``|`[^`]*`|\]\([^)\s]*\)|\{[\w:-]+\}|<[^>]+>|https?://\S+|\\[A-Za-z]+",
    re.MULTILINE,
)
WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")


def prose(path):
    """The text of a page, of the markdown of a chapter, of the docstrings of a module, of the comments of a proof."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    if path.suffix == ".py":
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        text = "\n\n".join(
            ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)
        )
    if path.suffix == ".v":
        comments = re.findall(r"\(\*\*(.*?)\*\)", text, re.DOTALL)
        text = "\n\n".join(re.sub(r"\[[^\]]*\]", " ", comment) for comment in comments)
    return NOT_PROSE.sub(" ", text)


def words(text):
    """Its words, without the letters of formulas: those are short, or have capitals inside."""
    found = {word.replace("’", "'") for word in WORD.findall(text)}
    return {word for word in found if len(word) > 3 and word[1:] == word[1:].lower()}


def unknown(checked):
    """Those that neither hunspell nor our list knows."""
    if not shutil.which("hunspell"):
        missing = "hunspell is not installed, so no word was looked up: apt-get install hunspell hunspell-en-us"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    run = ["hunspell", "-l", "-d", "en_US", "-i", "utf-8"]
    done = subprocess.run(run, input="\n".join(sorted(checked)), capture_output=True, text=True, check=True)
    ours = set(WORDS.read_text(encoding="utf-8").splitlines())
    return {word for word in done.stdout.split() if not {word, word.lower(), word.removesuffix("'s")} & ours}


def test_every_word_of_the_prose_is_known():
    of_file = {path: words(prose(path)) for path in (*PAGES, *CHAPTERS, *MODULES, *PROOFS)}
    wrong = unknown(set().union(*of_file.values()))
    assert not {
        f"{path.relative_to(ROOT)}: {' '.join(sorted(used & wrong))}" for path, used in of_file.items() if used & wrong
    }


def test_no_common_misspelling_in_prose_or_code():
    program = Path(sys.executable).with_name("codespell")
    done = subprocess.run([program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout
