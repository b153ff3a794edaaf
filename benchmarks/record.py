"""The record of a command: what was measured, and all that a reader needs to believe it or to repeat it."""

import json
import os
import platform
import re
import subprocess
import sys
import time
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tqdm import tqdm

RESULTS = Path(__file__).parent / "results"
LIBRARIES = ("attnbook", "numpy", "torch", "triton", "cupy", "jax", "jaxlib", "autograd", "threadpoolctl")
TOUCH_BLAS = re.compile(r"(OPENBLAS|GOTO|MKL|NVPL|BLIS|VECLIB|OMP|GOMP|KMP|DNNL|ONEDNN|ATTNBOOK|MALLOC)_|LD_PRELOAD")
MAKERS = {"AMD": "amd", "Intel": "intel", "ARM": "arm", "Apple": "apple"}


class Record:
    """The results of one command. It grows in ``PATH.partial``, and becomes PATH in one step at the end."""

    def __init__(self, what, output, **more):
        self.path = output
        self.data = {
            "what": what,
            "command": command(),
            "date": date.today().isoformat(),
            "commit": commit(),
            "machine": machine(),
            "load": {"before": load()},
            "environment": environment(),
            "versions": {},
            "blas": {},
            **more,
            "cells": [],
        }

    def add(self, **cell):
        self.data["cells"].append(cell)
        self._write()

    def note(self, **more):
        self.data |= more
        self._write()

    def saw(self, about):
        """What a process says that it had loaded."""
        self.data["versions"] |= about["versions"]
        self.data["blas"] |= about["blas"]

    def over(self, todo, do, budget, name, unit="cell"):
        """Add the cells that ``do(one)`` gives for each, until the budget of seconds is spent or somebody interrupts;
        those that were left are named in the record.
        """
        done, deadline = 0, time.monotonic() + budget if budget else None
        try:
            with tqdm(todo, unit=unit) as bar:
                for one in bar:
                    if deadline and time.monotonic() > deadline:
                        break
                    bar.set_postfix_str(name(one), refresh=sys.stderr.isatty())
                    for cell in do(one):
                        self.add(**cell)
                    done += 1
        except KeyboardInterrupt:
            print("\nCut off.", file=sys.stderr)
        if done < len(todo):
            self.note(skipped=[name(one) for one in todo[done:]])

    def close(self):
        """Write; but what is not whole takes no whole one's place."""
        self.data["load"]["after"] = load()
        self._write()
        if not self.path:
            print("Not written: a part of the whole. --output FILE writes it.")
        elif self.data.get("skipped") and self.path.exists():
            print(f"Not whole, so {self.path.name} stays as it was: see {self._partial.name}")
        else:
            self._partial.replace(self.path)
            print(f"Written: {self.path.name}")

    def _write(self):
        self.data["versions"] |= versions()
        self.data["blas"] |= blas()
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            head = {name: value for name, value in self.data.items() if name != "cells"}
            lines = [json.dumps(head, ensure_ascii=False, indent=1)[:-2] + ',\n "cells": [']
            lines += [",\n".join("  " + json.dumps(cell, ensure_ascii=False) for cell in self.data["cells"])]
            self._partial.write_text("\n".join(lines) + "\n ]\n}\n", encoding="utf-8")

    @property
    def _partial(self):
        return self.path.with_name(self.path.name + ".partial")


def output_of(parser, args, name, whole):
    """Where to write: as asked; else, for a whole run, the file of this kind of processor, if it has none of another
    machine: that is an error, before anything is measured.
    """
    if args.output or args.quick or not whole:
        return args.output
    path = RESULTS / f"{name}_{maker()}.json"
    if path.exists() and not args.replace:
        there, here = json.loads(path.read_text(encoding="utf-8"))["machine"], machine()
        if differs := [f"{key} {there.get(key)}, not {here[key]}" for key in SAME if there.get(key) != here[key]]:
            parser.error(f"{path.name} is of another machine ({'; '.join(differs)}): --replace it, or --output FILE")
    return path


SAME = ("cpu", "cores", "memory")
"""What makes a machine the same."""


def maker(cpu=None):
    """Of the processor, in a word for a file's name; and that it lacks AVX-512, where that is known."""
    cpu = cpu or _cpu()
    short = next((short for name, short in MAKERS.items() if name.lower() in cpu.lower()), "other")
    return short + "-avx2" * cpu.endswith(", AVX2")


def command():
    """The command, with file names for paths: whose folders they were in is nobody's business."""
    words = [Path(word).name if os.sep in word else word for word in sys.argv[1:]]
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])


def commit():
    """The commit, and whether files differ from it; those of the results may. What $COMMIT says, where only copies of
    the files are. None without both.
    """
    if said := os.environ.get("COMMIT"):
        return {"name": said, "dirty": None}

    def git(*words):
        asked = ["git", "-C", str(RESULTS.parents[1]), *words]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
        return {"name": git("rev-parse", "--short=10", "HEAD"), "dirty": bool(changed)}
    except (OSError, subprocess.CalledProcessError):
        return None


def machine():
    """The processor, its cores, how many of them this process may use, and how its clock is governed."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "quota": _first_line("/sys/fs/cgroup/cpu.max"),
        "governor": _first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "memory": _memory(),
    }


def load():
    """Of the last minute, five and fifteen, or None: who else was at work."""
    return [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else None


def environment():
    """The variables that touch BLAS, threads and memory, as they are set; of paths the file's name."""
    return {name: Path(value).name for name, value in sorted(os.environ.items()) if TOUCH_BLAS.match(name)}


def blas():
    """Of each library that is loaded here: its BLAS, the version, and for which processors its kernels are."""
    names = {"openblas": "OpenBLAS", "mkl": "MKL", "blis": "BLIS"}
    found = {}
    if "numpy" in sys.modules:
        from threadpoolctl import threadpool_info

        one = next((i for i in threadpool_info() if i["user_api"] == "blas"), None)  # NumPy's is loaded first
        if one:
            kernels = f", kernels {one['architecture']}" if "architecture" in one else ""
            found["numpy"] = f"{names.get(one['internal_api'], one['internal_api'])} {one['version']}{kernels}"
    if "torch" in sys.modules and hasattr(sys.modules["torch"], "__config__"):
        said = sys.modules["torch"].__config__.show()
        parts = re.findall(r"(?:Math Kernel Library Version|MKL-DNN v)\s*([\d.]+)", said)
        kernels = re.search(r"CPU capability usage: (\S+)", said)
        named = [f"{name} {number}" for name, number in zip(("MKL", "oneDNN"), parts, strict=False)]
        found["torch"] = ", ".join(named + [f"kernels {kernels[1]}"] * bool(kernels))
    return found


def versions():
    """Of Python and of the libraries that are loaded."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        if name in sys.modules:
            try:
                found[name] = version(name).split("+")[0]
            except PackageNotFoundError:  # not installed by that name, as CuPy, or not at all
                found[name] = getattr(sys.modules[name], "__version__", "unknown")
    return found


def _first_line(path):
    try:
        return Path(path).read_text().split("\n")[0]
    except OSError:
        return None


def _cpu():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    found = dict(reversed([[part.strip() for part in line.split(":", 1)] for line in lines if ":" in line]))
    wide = next(
        (name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in found.get("flags", "")), ""
    )
    return ", ".join(filter(None, (found.get("model name", platform.machine()), wide)))


def _memory():
    try:
        return f"{round(os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30)} GiB"
    except (ValueError, OSError, AttributeError):
        return "unknown"
