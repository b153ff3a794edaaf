"""Colab, Binder and downloads: every button names what exists here, and what they install is what the tests ran."""

import os
import re
import subprocess
import sys
import tomllib
from urllib.parse import parse_qs, urlsplit

import elsewhere
import make_pdf
import nbformat
import pytest
import yaml
from built_site import ROOT, SITE, soup
from clean_notebooks import BRANCH, FOLDER
from packaging.requirements import Requirement

CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
PINS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "requirements.txt").read_text(encoding="utf-8"), re.MULTILINE))
WITH_EVIDENCE = [path for path in CHAPTERS if "from evidence" in path.read_text(encoding="utf-8")]
chapters = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)


def buttons(path):
    """Where the buttons of a chapter's page lead, by the host."""
    links = soup(SITE / "chapters" / f"{path.stem}.html").select(".article-header-buttons a[href]")
    return {urlsplit(link["href"]).netloc: link["href"] for link in links}


def test_one_repository_in_all_addresses():
    organisation, name = urlsplit(CONFIG["repository"]["url"]).path.strip("/").split("/")
    assert CONFIG["html"]["baseurl"] == f"https://{organisation}.github.io/{name}/"
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["repository-code"] == CONFIG["repository"]["url"]


def test_the_front_page_links_the_pdf_that_is_published():
    links = {link["href"] for link in soup(SITE / "book" / "intro.html").select("article a.external")}
    assert CONFIG["html"]["baseurl"] + make_pdf.NAME in links
    publish = yaml.safe_load((ROOT / ".github" / "workflows" / "publish.yml").read_text(encoding="utf-8"))
    ordered = [step.get("run") or step["uses"].partition("@")[0] for step in publish["jobs"]["build"]["steps"]]
    assert ordered.index("make pdf") < ordered.index("actions/upload-pages-artifact")


@chapters
class TestAChapter:
    def test_colab_binder_and_the_download_have_its_clean_copy(self, path):
        repository, page = urlsplit(CONFIG["repository"]["url"]).path, SITE / "chapters" / f"{path.stem}.html"
        colab, binder = (urlsplit(buttons(path)[host]) for host in ("colab.research.google.com", "mybinder.org"))
        assert colab.path == f"/github{repository}/blob/{BRANCH}/{FOLDER}/{path.name}"
        assert binder.path == f"/v2/gh{repository}/{BRANCH}"
        assert parse_qs(binder.query)["urlpath"] == [f"lab/tree/{FOLDER}/{path.name}"]
        (link,) = soup(page).select("a.btn-download-source-button")
        assert (page.parent / link["href"]).resolve() == SITE / FOLDER / path.name
        assert (SITE / FOLDER / path.name).exists()

    def test_its_first_code_cell_fetches_what_is_missing(self, path):
        chapter = nbformat.read(path, as_version=4)
        first = chapter.cells[1]
        assert (first.id, first.source) == (elsewhere.CELL, elsewhere.source(chapter))
        page = (SITE / "chapters" / f"{path.stem}.html").read_text(encoding="utf-8")
        assert "attnbook-repository" not in page


class TestTheCellThatFetches:
    """Run without Jupyter: what it asks for is noted, and git takes the repository from this disk."""

    def run(self, folder, monkeypatch, chapter=CHAPTERS[0]):
        asked = []

        class Shell:
            def system(self, command):
                asked.append(command)
                if command.startswith("git "):
                    url = CONFIG["repository"]["url"]
                    here = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_VALUE_0": url}
                    here["GIT_CONFIG_KEY_0"] = f"url.{ROOT.as_uri()}.insteadOf"
                    subprocess.run(command, shell=True, check=True, cwd=folder, env=os.environ | here)

            def run_line_magic(self, name, line):
                asked.append(f"%{name} {line}")
                if name == "cd":
                    os.chdir(line.removeprefix("-q "))

        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", list(sys.path))
        exec(elsewhere.source(nbformat.read(chapter, as_version=4)), {"get_ipython": Shell})
        return asked

    def test_where_the_package_is_installed_it_does_nothing(self, tmp_path, monkeypatch):
        assert self.run(tmp_path, monkeypatch) == []

    @pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this copy is no git repository, so nothing was cloned")
    @pytest.mark.parametrize("chapter", [CHAPTERS[0], WITH_EVIDENCE[0]], ids=lambda path: path.stem)
    def test_where_something_is_missing_it_fetches_the_repository_once(self, chapter, tmp_path, monkeypatch):
        """The package, or evidence, which is in no wheel: beside the package alone, and so not where it stands."""
        if chapter in WITH_EVIDENCE:
            (tmp_path / "chapters").mkdir()
            (tmp_path / "book" / "evidence").mkdir(parents=True)
            assert self.run(tmp_path / "chapters", monkeypatch, chapter) == []
            assert sys.path[-1] == f"{tmp_path / 'book'}"
            monkeypatch.undo()
        else:
            monkeypatch.setitem(sys.modules, "attnbook", None)  # as if it were not installed
        clone, install, enter = self.run(tmp_path, monkeypatch, chapter)
        assert clone.startswith("git clone ")
        folder = tmp_path / install.removeprefix("%pip install --quiet ").removesuffix("[figures]")
        assert (folder / "pyproject.toml").exists()
        assert (tmp_path / enter.removeprefix("%cd -q ") / chapter.name).exists()
        assert sys.path[-1] == str(folder / "book") or chapter not in WITH_EVIDENCE
        # After a restart the package is there, but the folder has to be entered again.
        monkeypatch.undo()
        assert self.run(tmp_path, monkeypatch, chapter) == [enter]


def installed_elsewhere():
    """What ``pip install .[figures]`` asks for: on Binder, and on Colab where it is not there yet."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [Requirement(line) for line in (*project["dependencies"], *project["optional-dependencies"]["figures"])]


class TestBinder:
    def test_it_installs_versions_that_were_tested(self):
        for dependency in installed_elsewhere():
            assert dependency.specifier.contains(PINS[dependency.name]), dependency

    def test_it_runs_the_python_that_was_tested(self):
        version = (ROOT / "binder" / "runtime.txt").read_text(encoding="utf-8").strip().removeprefix("python-")
        assert re.search(rf"^# .*Python {re.escape(version)}\b", (ROOT / "requirements.txt").read_text("utf-8"))
        for workflow in ("test.yml", "publish.yml"):
            assert f'python-version: "{version}"' in (ROOT / ".github" / "workflows" / workflow).read_text("utf-8")
