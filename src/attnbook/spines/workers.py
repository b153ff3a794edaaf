"""Workers for the NumPy engine: a few threads, each with a BLAS of one thread, and sums whose order they cannot change.

Many small products run faster side by side than one after the other with all threads in each.
"""

import math
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import Any

from attnbook.arrays import expected
from attnbook.spines.cores import Apart

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


def run(task: Any, todo: Any, apart: bool = False) -> None:
    """Call ``task(place, entry)`` for each entry of ``todo``, taken in order by the workers, this thread among them.

    ``apart``: on cores of their own (:mod:`attnbook.spines.cores`); not where a task runs what a user wrote, whose
    threads would inherit the core.

    The first error reaches the caller, a KeyboardInterrupt too, once every worker has laid down its tools; what BLAS
    was set to is what it is set to afterwards.
    """
    if len(todo) == 1:  # one small task is done before BLAS is set up
        task(0, todo[0])
        return
    threads = get_num_threads()
    ending = not threading.main_thread().is_alive()  # in a function that atexit calls no thread can be started
    helpers = min(threads, len(todo)) - 1 if _threads_start() and not ending else 0
    queue, stop, lock = enumerate(todo), threading.Event(), threading.Lock()
    cores = Apart(1 + helpers if apart else 1)

    def work() -> None:
        try:
            cores.take()
            while not stop.is_set():
                with lock:
                    place, entry = next(queue, (None, None))
                if place is None:
                    return
                task(place, entry)
                cores.done()
        except BaseException:
            stop.set()
            raise
        finally:
            try:
                cores.leave()
            except BaseException:
                cores.leave()
                raise

    futures = []
    with one_blas_thread():
        try:
            for _ in range(helpers):
                futures.append(_pool(threads - 1).submit(work))
            work()
        finally:
            # A helper that still waits for a thread would find nothing to do. Where a task itself calls run, all the
            # threads may wait in such calls, and none would ever be free for it.
            futures = [future for future in futures if not future.cancel()]
            stop_after(futures, stop)
    for future in futures:
        future.result()


def stop_after(futures: Any, stop: Any) -> None:
    """Wait for the workers, and once more if an interrupt comes in between: none may be left running."""
    try:
        wait(futures)
    except BaseException:
        stop.set()
        wait(futures)
        raise


@cache
def _threads_start() -> bool:
    """Whether a thread can be started. In a browser none can: there the caller does all the work."""
    try:
        threading.Thread(target=bool).start()
    except RuntimeError:
        return False
    return True


@cache
def _pool(size: Any) -> Any:
    return ThreadPoolExecutor(size, thread_name_prefix="attnbook")


@cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController  # takes milliseconds, so once, and when first needed

    return ThreadpoolController().select(user_api="blas")


_in_use: dict[str, Any] = {"runs": set(), "limit": None, "setter": None}
_in_use_lock = threading.Lock()


@contextmanager
def one_blas_thread() -> Iterator[Any]:
    """BLAS on one thread inside; outside, as it was. Two callers at once share one limit, and the last one lifts it.

    An interrupt may come in any line: what BLAS was set to is kept before it is set, and set back in a second try.
    """
    own = object()
    try:
        with _in_use_lock:
            if not _in_use["runs"]:
                _in_use.update(limit=_blas().limit(limits=None), setter=threading.current_thread())
                for library in _blas().lib_controllers:
                    library.set_num_threads(1)
            _in_use["runs"].add(own)
        yield
    finally:
        try:
            _leave(own)
        except BaseException:
            _leave(own)
            raise


def _leave(own: object) -> None:
    with _in_use_lock:
        _in_use["runs"].discard(own)
        if not _in_use["runs"] and _in_use["limit"] is not None:
            _lift(_in_use["limit"], _in_use["setter"])
            _in_use["limit"] = None


def _lift(limit: Any, setter: Any) -> None:
    """Set BLAS back. Newer versions of threadpoolctl let only the thread that set a limit lift it, until forgotten."""
    from threadpoolctl import OpenBLASController

    forget_setter = getattr(OpenBLASController, "clear_controlling_thread", lambda force=False: None)
    if threading.current_thread() is not setter:
        forget_setter(force=True)
    limit.restore_original_limits()
    forget_setter()


def _begin_anew() -> None:
    """In a child process, which has none of its parent's threads: no workers, and no run that would lift the limit."""
    global _in_use_lock
    _pool.cache_clear()
    _in_use_lock = threading.Lock()
    if _in_use["runs"]:
        _in_use["runs"].clear()
        _lift(_in_use["limit"], _in_use["setter"])
        _in_use["limit"] = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


class InOrder:
    """Adds what the tasks give to shared arrays, in the order of the tasks, whichever is done first.

    Floating-point sums depend on their order; so the result is the same to the last bit with any number of workers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next: dict[Any, Any] = {}
        self._waiting: dict[Any, Any] = {}

    def give(self, key: Any, place: Any, adds: Any) -> None:
        """The pairs (where, what) that the task at ``place`` has to add to the arrays named ``key``; every task gives
        exactly once to each key.
        """
        with self._lock:
            self._waiting[key, place] = adds
            turn = self._next.get(key, 0)
            while (adds := self._waiting.pop((key, turn), None)) is not None:
                for where, what in adds:
                    where += what
                turn += 1
            self._next[key] = turn
