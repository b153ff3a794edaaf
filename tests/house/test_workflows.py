"""The workflows: what a linter says of them, that they run what exists here, and how the weekly one reports."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def read(path):
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # in YAML 1.1, `on` is a boolean


def steps(path):
    return [step for job in read(path)["jobs"].values() for step in job.get("steps", ())]


def tool(name, *arguments):
    """Run a linter of this environment: its exit status, and what it says."""
    program = Path(sys.executable).with_name(name)
    done = subprocess.run([program, *arguments], capture_output=True, text=True, cwd=ROOT, check=False)
    return done.returncode, done.stdout + done.stderr


schema = partial(tool, "check-jsonschema", "--builtin-schema", "vendor.github-workflows")
zizmor = partial(tool, "zizmor", "--offline", "--no-progress", "--config", ".github/zizmor.yml")


@pytest.mark.parametrize("linter", [schema, zizmor], ids=["schema", "zizmor"])
def test_the_linters_have_nothing_to_say(linter):
    status, said = linter(*WORKFLOWS)
    assert status == 0, said


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_only_read_ends_and_runs_what_exists(path):
    assert read(path)["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in read(path)["jobs"].values())
    for step in steps(path):
        assert re.fullmatch(r"actions/[\w-]+@v\d+", step.get("uses", "actions/none@v1"))
        assert all((ROOT / script).exists() for script in re.findall(r"\bbash (\S+)", step.get("run", "")))
        assert set(re.findall(r"\b(?:make|\.ci/run) ([a-z]+)", step.get("run", ""))) <= set(TARGETS)


def test_another_python_is_refused_in_a_line_before_anything_is_installed(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("requirements.txt", "pyproject.toml"):
        (tmp_path / name).touch()
    old, version = tmp_path / "python3.10", "import sys; sys.version_info = (3, 10, 4)"
    old.write_text(f'#!/bin/sh\n{sys.executable} -c "{version}; $2"\n', encoding="utf-8")
    old.chmod(0o755)
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(["make", "book", f"PYTHON={old}"], cwd=tmp_path, env=alone, capture_output=True, text=True)
    assert done.stdout == ""
    first, last = done.stderr.splitlines()
    assert first == "attnbook needs Python 3.11 or newer; this is 3.10.4"
    assert last.startswith("make: ")
    assert not (tmp_path / ".venv").exists()


def test_the_weekly_run_tries_every_python_that_the_package_allows():
    weekly = read(ROOT / ".github" / "workflows" / "weekly.yml")
    versions = weekly["jobs"]["newest"]["strategy"]["matrix"]["python"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">={versions[0]}"
    assert versions == ["3.11", "3.12", "3.13", "3.14"]
    (command,) = [step["run"] for step in weekly["jobs"]["newest"]["steps"] if "run" in step]
    assert "--no-cache --upgrade" in command
    assert "bash .ci/run thorough " in command


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed, so the weekly report was not run")
@pytest.mark.parametrize(("open_issue", "expected"), [("", "issue create"), ("17", "issue comment 17")])
def test_the_weekly_run_opens_one_issue_and_then_comments(open_issue, expected, tmp_path):
    job = read(ROOT / ".github" / "workflows" / "weekly.yml")["jobs"]["report"]
    assert set(job["needs"]) == {"newest", "oldest", "power", "links"}
    assert "failure()" in job["if"]
    (step,) = job["steps"]
    gh, log = tmp_path / "gh", tmp_path / "log"
    gh.write_text(f'#!/bin/sh\nif [ "$2" = list ]; then echo "{open_issue}"; else echo "$@" >> {log}; fi\n')
    gh.chmod(0o755)
    env = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "TITLE": step["env"]["TITLE"], "BODY": "why"}
    subprocess.run(["bash", "-euo", "pipefail", "-c", step["run"]], env=env, check=True)
    (done,) = log.read_text().splitlines()
    assert re.match(f"{expected}.* why", done)
