"""What is released: the wheel and the source archive, what they say about themselves, and the wheel alone at work."""

import email
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from urllib.parse import urljoin

import pytest
import yaml
from bs4 import BeautifulSoup
from built_site import PAGES, ROOT, SITE
from markdown_it import MarkdownIt
from packaging.requirements import Requirement
from packaging.version import Version
from test_workflows import read, steps

import attnbook as ab

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MINIMA = [Requirement(line.replace(">=", "==")) for line in PROJECT["project"]["dependencies"]]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LOCK = (ROOT / ".ci" / "requirements.lock").read_text(encoding="utf-8")
PIN = re.compile(r"^([\w.-]+)==([^\s;]+)", re.MULTILINE)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with the wheel and the source archive, from what git tracks."""
    if not importlib.util.find_spec("hatchling"):
        pytest.skip("hatchling is not installed, so nothing was built")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def metadata(wheel):
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(opened.read(name))


class TestTheWheel:
    def test_it_holds_the_package_and_no_more_and_is_small(self, wheel):
        assert wheel.stat().st_size < 500_000
        with zipfile.ZipFile(wheel) as opened:
            held = {name for name in opened.namelist() if ".dist-info/" not in name}
        files = [path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        source = {path.relative_to(ROOT / "src").as_posix() for path in files if "egg-info" not in str(path)}
        assert held == source

    def test_it_says_what_it_is(self, metadata):
        assert (metadata["Name"], metadata["Version"]) == ("attnbook", ab.__version__)
        assert metadata["License-Expression"] == "BSD-3-Clause"
        assert metadata.get_all("License-File") == ["LICENSE"]
        links = dict(line.split(", ") for line in metadata.get_all("Project-URL"))
        config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
        assert links["Homepage"] == config["html"]["baseurl"]
        assert links["Source"] == config["repository"]["url"]

    def test_its_description_leads_to_what_exists(self, metadata):
        """Absolute links only, and each to a page of the site or a file of the repository, on main."""
        tokens = [token for block in MarkdownIt().parse(metadata.get_payload()) for token in block.children or ()]
        links = [token.attrs.get("href") or token.attrs.get("src") for token in tokens if token.attrs]
        on_main = "https://github.com/attnbook/attnbook/blob/HEAD/"
        files = [link.removeprefix(on_main) for link in links if link.startswith(on_main)]
        pages = [link.removeprefix("https://attnbook.github.io/attnbook/") for link in links if "github.io" in link]
        assert len(files) + len(pages) == len(links) > 20
        assert [path for path in files if not (ROOT / path).is_file()] == []
        assert [page for page in pages if page != "attnbook.pdf" and not (SITE / page).exists()] == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no clone, so nothing says what git tracks")
def test_the_source_archive_is_the_repository(built):
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as opened:
        held = {name.partition("/")[2] for name in opened.getnames()}
    assert {name for name in listed.split("\0") if (ROOT / name).is_file()} <= held
    assert not [name for name in held if name.startswith(("_build/", ".venv", "book/node_modules"))]


def test_the_readme_says_how_to_install_it():
    (line,) = [line for line in README.splitlines() if line.startswith("pip install ")]
    numpy = next(one for one in MINIMA if one.name == "numpy")
    python = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert line.startswith(f"pip install {PROJECT['project']['name']}")
    assert f"Python {python}, NumPy {str(numpy.specifier)[2:]}" in line
    assert {*re.findall(r"attnbook\[(\w+)\]", README)} <= {*PROJECT["project"]["optional-dependencies"]}


def test_the_lock_is_of_the_requirements():
    """All that they pin, in the same versions, each with a hash; torch in its build for the CPU, nothing of CUDA."""
    locked = {name: version.removesuffix("+cpu") for name, version in PIN.findall(LOCK)}
    assert re.search(r"^torch==\S+\+cpu ", LOCK, re.MULTILINE)
    assert not [name for name in locked if name.startswith(("nvidia-", "cuda-"))]
    pins = "".join((folder / "requirements.txt").read_text(encoding="utf-8") for folder in (ROOT, ROOT / "tests"))
    pinned = {re.sub(r"[_.]", "-", name.lower()): version for name, version in PIN.findall(pins)}
    assert pinned.items() <= locked.items()
    entries = re.split(r"^(?=[\w.-]+==)", LOCK, flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in entry for entry in entries)


class TestTheWorkflow:
    PATH = ROOT / ".github" / "workflows" / "release.yml"

    @pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed, so the check of the tag was not run")
    @pytest.mark.parametrize(
        ("tag", "fine"), [("v1.2.3", True), ("v1.2.4", False), ("1.2.3", False), ("v9.9.9", False)]
    )
    def test_a_tag_is_the_version_and_stands_in_the_changelog(self, tag, fine, tmp_path):
        (check,) = [step["run"] for step in steps(self.PATH) if "tag" in step.get("name", "")]
        program = tmp_path / ".venv" / "bin" / "hatchling"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho {'9.9.9' if tag == 'v9.9.9' else '1.2.3'}\n")
        program.chmod(0o755)
        (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 - 2027-01-31\n")
        environment = os.environ | {"GITHUB_REF_NAME": tag}
        done = subprocess.run(["bash", "-e", "-c", check], cwd=tmp_path, env=environment, check=False)
        assert (done.returncode == 0) == fine

    def test_only_the_last_job_may_say_who_it_is_and_it_runs_nothing_of_ours(self):
        jobs = read(self.PATH)["jobs"]
        assert [name for name, job in jobs.items() if "permissions" in job] == ["upload"]
        assert jobs["upload"]["permissions"] == {"id-token": "write"}
        assert not [step for step in jobs["upload"]["steps"] if "checkout" in step.get("uses", "")]


def test_the_foot_of_every_page_says_the_version():
    for page in (*PAGES, "search.html"):
        text = (SITE / page).read_text(encoding="utf-8")
        foot = text[text.rindex("<", 0, text.index('extra_footer"')) :]  # a whole page takes long to read
        link = BeautifulSoup(foot, "html.parser").select_one(".extra_footer a")
        assert link.get_text() == f"Version {ab.__version__}"
        assert urljoin(page, link["href"]).removesuffix("#") == "book/changelog.html"


def test_the_version_is_the_last_of_the_changelog_or_on_the_way_to_a_newer_one():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = [name for name in re.findall(r"^## (\S+) - ", text, re.MULTILINE) if name != "Unreleased"]
    newest, way = (versions or ["0"])[0], Version(ab.__version__)
    assert ab.__version__ == newest or (way.is_devrelease and way > Version(newest))
    assert versions == sorted(versions, key=Version, reverse=True)
