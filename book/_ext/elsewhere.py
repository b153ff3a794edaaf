"""The first code cell of every chapter: away from the repository, as on Colab, it fetches what the chapter needs.

The site does not show it. ``run_chapters`` writes it, so the repository's address stands only in ``_config.yml``.
"""

import nbformat
import yaml
from equations import ROOT

CELL = "fetch-package"
SOURCE = """\
# Away from the repository, as on Colab: fetch it and install the package. Where attnbook is installed, nothing happens.
from pathlib import Path

try:
    import attnbook  # noqa: F401
except ModuleNotFoundError:
    get_ipython().system("git clone --quiet --depth 1 {url} attnbook-repository")
    get_ipython().run_line_magic("pip", "install --quiet ./attnbook-repository[figures]")
if Path("attnbook-repository", "chapters").is_dir():
    get_ipython().run_line_magic("cd", "-q attnbook-repository/chapters")"""


def source():
    """The cell's code, with the address of the repository that the site names."""
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    return SOURCE.format(url=config["repository"]["url"])


def put_cell(notebook):
    """Make this the first code cell of a notebook, after the title."""
    cell = nbformat.v4.new_code_cell(source(), id=CELL, metadata={"tags": ["remove-cell"]})
    notebook.cells = [c for c in notebook.cells if c.id != CELL]
    notebook.cells.insert(1, cell)
