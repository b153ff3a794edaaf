"""Pyodide as npm installed it, and the wheels beside it: what the site carries, where the rest lies."""

import json
from functools import cache
from pathlib import Path

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


def files():
    """What the site carries: ``{name: bytes}``. Without the wheels, its lock names where Pyodide's are."""
    found = {name: (PYODIDE / name).read_bytes() for name in (*CORE, *(wheels() if have_wheels() else ()))}
    packages = lock()["packages"]
    if not have_wheels():
        there = ELSEWHERE.format(version=version())
        packages = {name: {**made, "file_name": there + made["file_name"]} for name, made in packages.items()}
    return {**found, "pyodide-lock.json": json.dumps({**lock(), "packages": packages}).encode()}
