"""The first code cell of every chapter: away from the repository, as on Colab, it fetches what the chapter needs.

The site does not show it. ``run_chapters`` writes it, so the repository's address stands only in ``_config.yml``. A
chapter with evidence, which is in no wheel, looks for that, and a chapter without it only for the package.
"""

import re

import nbformat
import yaml
from equations import ROOT

CELL = "fetch-package"
FETCH = """\
    get_ipython().system("git clone --quiet --depth 1 {url} attnbook-repository")
    get_ipython().run_line_magic("pip", "install --quiet ./attnbook-repository[figures]")
if Path("attnbook-repository", "chapters").is_dir():
    get_ipython().run_line_magic("cd", "-q attnbook-repository/chapters")"""
WITHOUT_EVIDENCE = f"""\
# Away from the repository, as on Colab: fetch it and install the package. Where attnbook is installed, nothing happens.
from pathlib import Path

try:
    import attnbook  # noqa: F401
except ModuleNotFoundError:
{FETCH}"""
WITH_EVIDENCE = f"""\
# Away from the repository, as on Colab: fetch it and install the package. Then find evidence, which is in no wheel.
import sys
from pathlib import Path

if not Path("../book/evidence").is_dir() and not Path("attnbook-repository").is_dir():
{FETCH}
sys.path.append(str(Path("../book").resolve()))"""


def source(notebook):
    """The cell's code for this chapter, with the address of the repository that the site names."""
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    needed = WITH_EVIDENCE if re.search(r"^from evidence\b", code, re.MULTILINE) else WITHOUT_EVIDENCE
    return needed.format(url=config["repository"]["url"])


def put_cell(notebook):
    """Make this the first code cell of a notebook, after the title."""
    cell = nbformat.v4.new_code_cell(source(notebook), id=CELL, metadata={"tags": ["remove-cell"]})
    notebook.cells = [c for c in notebook.cells if c.id != CELL]
    notebook.cells.insert(1, cell)
