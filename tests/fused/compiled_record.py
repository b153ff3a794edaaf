"""What the fused kernels become when they are compiled, recorded: it changes only with what is hashed here.

``make compiled`` compiles all of it again, for a minute, and renews the record.
"""

import functools
import hashlib
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORD, SCRIPT = (Path(__file__).with_name(name) for name in ("compiled_kernels.json", "compile_kernels.py"))
WHAT = {"as launched": (), "of the chapter": ("chapter", "90")}


def versions():
    """What the machine code depends on, by name: Triton, which brings its compilers, and the sources."""
    files = *ROOT.glob("src/attnbook/spines/fused/*.py"), *ROOT.glob("src/attnbook/ops/*.py"), SCRIPT
    texts = {f.relative_to(ROOT).as_posix(): f.read_bytes() for f in (*files, ROOT / "benchmarks" / "gpu_compiled.py")}
    chapter = json.loads((ROOT / "chapters" / "12_gpu.ipynb").read_text(encoding="utf-8"))
    cells = [cell["source"] for cell in chapter["cells"] if cell["cell_type"] == "code"]
    texts["chapters/12_gpu.ipynb, its cells"] = json.dumps(cells).encode()
    found = {name: hashlib.sha256(text).hexdigest()[:16] for name, text in sorted(texts.items())}
    return {"Triton": importlib.metadata.version("triton")} | found


def stale():
    """Why the record says nothing of what is here, in words; None where it does."""
    try:
        was = dict(json.loads(RECORD.read_text(encoding="utf-8"))["of"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"{RECORD.name} cannot be read"
    now = versions()
    if was.get("Triton") != now["Triton"]:
        return f"{RECORD.name} is of Triton {was.get('Triton')}, here is {now['Triton']}"
    others = sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
    return f"since {RECORD.name} was made, {', '.join(others)} changed" if others else None


@functools.cache
def compiled(*options):
    """By the script, in a process of its own: here, the interpreter runs the kernels."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, SCRIPT, folder, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def recorded(what):
    return json.loads(RECORD.read_text(encoding="utf-8"))[what]


def main():
    """Renew the record."""
    of = versions()
    rows = {what: compiled(*options) for what, options in WHAT.items()}
    each = ",\n".join(f' "{what}": [\n  ' + ",\n  ".join(map(json.dumps, of)) + "\n ]" for what, of in rows.items())
    RECORD.write_text(f'{{\n "of": {json.dumps(of, indent=2)},\n{each}\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
