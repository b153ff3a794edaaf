"""What the site carries: nothing that no page uses."""

from types import SimpleNamespace

import pytest
from built_site import SITE
from unused import remove_unused, used


def test_every_file_of_the_site_is_named_by_what_uses_it():
    files = {path for folder in ("_static", "_sources") for path in (SITE / folder).rglob("*") if path.is_file()}
    assert files
    assert not files - used(SITE)


def test_the_site_is_small():
    files = [path for path in SITE.rglob("*") if path.is_file() and path.suffix != ".pdf"]
    python = {path for path in files if "pyodide" in path.parent.name}  # a reader loads it only on request
    assert sum(path.stat().st_size for path in files if path not in python) < 30e6
    assert sum(path.stat().st_size for path in python) < 27e6


def test_no_script_asks_for_a_map_that_is_not_there():
    for path in (SITE / "_static").rglob("*.[cj]s*"):
        assert path.suffix not in (".js", ".css") or "sourceMappingURL" not in path.read_text(encoding="utf-8"), path


@pytest.fixture
def site(tmp_path):
    files = {
        "book/page.html": '<link href="../_static/a.css"><script src="../_static/scripts/b.js">'
        '<a href="../_sources/book/page.md">',
        "_sources/book/page.md": "",
        "_sources/chapters/alone.ipynb": "{}",
        "_static/a.css": "@font-face { src: url(fonts/c.woff2) }",
        "_static/scripts/b.js": "run();\n//# sourceMappingURL=b.js.map",
        "_static/scripts/b.js.map": "{}",
        "_static/scripts/alone.js": 'import "alone.mjs"',
        "_static/scripts/alone.mjs": "",
        "_static/scripts/alone.js.LICENSE.txt": "",
        "_static/scripts/template.html": "alone.js",
        "_static/fonts/c.woff2": "",
        "_static/locales/eo/d.mo": "",
        "_static/run/12ab/01_chapter.json": "{}",
        "_static/run/12ab/site.json": '["d.whl"]',
        "_static/run/12ab/d.whl": "",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    return tmp_path


def test_what_nothing_names_goes_and_the_rest_stays(site):
    remove_unused(SimpleNamespace(builder=SimpleNamespace(format="html"), outdir=site), None)
    left = {path.relative_to(site / "_static").as_posix() for path in (site / "_static").rglob("*")}
    assert left == {
        *("a.css", "fonts", "fonts/c.woff2", "scripts", "scripts/b.js", "scripts/alone.js.LICENSE.txt"),
        *("run", "run/12ab", "run/12ab/01_chapter.json", "run/12ab/site.json", "run/12ab/d.whl"),
    }
    assert [path.name for path in (site / "_sources").rglob("*")] == ["book", "page.md"]
    assert (site / "_static/scripts/b.js").read_text(encoding="utf-8") == "run();\n"
