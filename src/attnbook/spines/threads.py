"""How many threads NumPy arrays are worked on with: what the user said, or the environment, or the machine."""

import math
import os
from collections.abc import Callable, Iterator
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import Any

from attnbook.arrays import expected

_settings: dict[str, Any] = {"threads": None, "followed": None}


def get_num_threads() -> int:
    """How many threads NumPy arrays are worked on with.

    As :func:`set_num_threads` said; else as the environment variable ATTNBOOK_NUM_THREADS says; else, once
    ``attnbook.torch`` is imported, as ``torch.get_num_threads`` says; else as OMP_NUM_THREADS says; else one a core, or
    fewer where a container may use the time of fewer (read once, when first needed). Results do not depend on it.
    Chapter: :doc:`/chapters/11_memory_and_speed`.

    Raises
    ------
    TypeError, ValueError
        ATTNBOOK_NUM_THREADS is no whole number, or less than 1.
    """
    ask = _settings["followed"]
    return _settings["threads"] or _said() or (ask() if ask else _default())


def set_num_threads(n: int | None) -> None:
    """Let the NumPy engine use ``n`` threads, in this process and from now on; None for as many as if none were set.

    Raises
    ------
    TypeError, ValueError
        ``n`` is not a whole number, or less than 1.

    Notes
    -----
    On Linux with two cores, threads that have rested keep to one each until the first task that ends after 0.1 s.
    Chapter: :doc:`/chapters/11_memory_and_speed`.
    """
    _settings["threads"] = None if n is None else _count("n", n)


def follow(ask: Callable[[], int]) -> None:
    """Let ``ask()`` say how many threads, where the user has not."""
    _settings["followed"] = ask


@cache
def _said() -> Any:
    said = os.environ.get("ATTNBOOK_NUM_THREADS")
    if said is None:
        return None
    return _count("ATTNBOOK_NUM_THREADS", int(said) if said.strip().removeprefix("-").isdecimal() else said)


@cache
def _default() -> Any:
    of_openmp = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # "4,2": those of nested regions follow
    if of_openmp.isdecimal() and int(of_openmp):
        return int(of_openmp)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return math.ceil(min(cores, _quota()))


def _quota() -> float:
    """How many cores' time a container may take, by the tightest of its groups; ∞ where none says so.

    More workers than that would stand still for most of each period, in the middle of a product.
    """
    found = [math.inf]
    for folder in _groups():
        try:
            told = [(folder / name).read_text().split() for name in _QUOTAS[(folder / "cpu.max").exists()]]
            quota, period = map(float, [word for words in told for word in words])  # "max", where there is no limit
        except (OSError, ValueError):
            continue
        if quota > 0 and period > 0:  # version 1 says −1 for none
            found.append(quota / period)
    return min(found)


_CGROUP, _MOUNTED = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_QUOTAS = {True: ("cpu.max",), False: ("cpu.cfs_quota_us", "cpu.cfs_period_us")}
"""The files of version 2, "quota period" in one, and of version 1."""


def _groups() -> Iterator[Path]:
    """The folders of this process's control groups and of all that hold them, of either version."""
    try:
        lines = _CGROUP.read_text().splitlines()
    except OSError:  # no Linux, or hidden
        return
    for line in lines:
        _, kinds, own = line.split(":", 2)
        if kinds and "cpu" not in kinds.split(","):
            continue
        root = (
            _MOUNTED if not kinds else next((f for f in (_MOUNTED / kinds, _MOUNTED / "cpu") if f.is_dir()), _MOUNTED)
        )
        folder = root / own.strip("/")
        yield from (f for f in (folder, *folder.parents) if f == root or root in f.parents)


def _count(name: str, n: Any) -> Any:
    if not isinstance(n, Integral) or isinstance(n, bool):
        raise TypeError(expected(name, "a whole number of threads", repr(n)))
    if n < 1:
        raise ValueError(expected(name, "at least 1 thread", n))
    return int(n)
