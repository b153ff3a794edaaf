"""Run every chapter, or those named on the command line, and store their outputs: ``make notebooks``.

How long each took goes into ``book/run_times.json``, for the page of what the site was made with.
"""

import json
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from tqdm import tqdm

sys.path.append(str(Path(__file__).parents[1] / "_ext"))

import elsewhere
from status import RUN_TIMES

CHAPTERS = Path(__file__).parents[2] / "chapters"

# What a kernel writes about itself and its version would change with the machine.
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def run(path):
    """Execute one notebook in place. Nothing is stored where a cell raises."""
    notebook = nbformat.read(path, as_version=4)
    elsewhere.put_cell(notebook)
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=600, record_timing=False, resources=resources, coalesce_streams=True).execute()
    notebook.metadata = nbformat.from_dict(METADATA)
    nbformat.validate(notebook)
    path.write_text(nbformat.writes(notebook, indent=1).rstrip("\n") + "\n", encoding="utf-8")


def record(path, seconds):
    """Note how long a chapter took, when, and on what."""
    known = json.loads(RUN_TIMES.read_text(encoding="utf-8")) if RUN_TIMES.exists() else {}
    known[path.stem] = {
        "seconds": round(seconds, 1),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.system()}, {platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "command": "python book/commands/run_chapters.py",
    }
    ordered = {name: known[name] for name in sorted(known)}
    RUN_TIMES.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    chosen = [Path(name).resolve() for name in sys.argv[1:]] or sorted(CHAPTERS.glob("*.ipynb"))
    for chapter in (bar := tqdm(chosen, unit="chapter")):
        bar.set_postfix_str(chapter.stem)
        start = time.perf_counter()
        run(chapter)
        record(chapter, time.perf_counter() - start)
