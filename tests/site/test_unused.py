"""What the site carries: nothing that no page uses."""

from built_site import SITE
from unused import used


def test_every_file_of_the_site_is_named_by_what_uses_it():
    files = {path for folder in ("_static", "_sources") for path in (SITE / folder).rglob("*") if path.is_file()}
    assert files
    assert not files - used(SITE)


def test_the_site_is_small():
    files = [path for path in SITE.rglob("*") if path.is_file() and path.suffix != ".pdf"]
    python = {path for path in files if "pyodide" in path.parent.name}  # a reader loads it only on request
    assert sum(path.stat().st_size for path in files if path not in python) < 30e6
    assert sum(path.stat().st_size for path in python) < 27e6
