"""Workers on cores of their own, where Linux would leave them on one.

After a rest, Linux was seen to wake a worker beside the thread that calls it, and to leave both there for tens of
milliseconds next to an idle core: they wait for Python's lock so often that no core looks busy. A small call takes no
longer than that, and took half as long again. So after a rest one worker stays on its core, and the others keep off it,
until the system has had time to spread them itself.
"""

import os
import threading
import time
from contextlib import suppress
from functools import cache
from typing import Any

REST, MOMENTS = 0.01, 0.1
"""Seconds. Shorter rests than the first were seen to do no harm; within the second, threads on one core had parted."""

_last = {"began": -MOMENTS, "ended": -REST}
"""When the first run after a rest began, and when the last one ended."""


class Apart:
    """The workers of one run: the first to ``take`` stays on its core, the others keep off it; each ``leave``s."""

    def __init__(self, workers: int) -> None:
        now = time.monotonic()
        if now - _last["ended"] > REST:
            _last["began"] = now
        self._end = _last["began"] + MOMENTS
        self._ask = _core() if workers > 1 and now < self._end else None
        self._allowed = os.sched_getaffinity(0) if self._ask else set()
        self._taken: set[int] = set()
        self._lock = threading.Lock()

    def take(self) -> None:
        """Hold this thread apart from the others."""
        if len(self._allowed) > 1:
            with self._lock:
                _hold(self._allowed - self._taken if self._taken else {self._ask()})
                self._taken.add(self._ask())

    def leave(self, at_once: bool = True) -> None:
        """This thread may go anywhere again; where not ``at_once``, only if the moments are over."""
        if len(self._allowed) > 1 and (at_once or time.monotonic() > self._end):
            _hold(self._allowed)

    def end(self) -> None:
        _last["ended"] = time.monotonic()


def _hold(cores: set[int]) -> None:
    with suppress(OSError):  # more workers than cores, or a container has taken cores away since
        os.sched_setaffinity(0, cores)


@cache
def _core() -> Any:
    """What tells the core that a thread is on; None where threads cannot be placed."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    try:
        import ctypes

        return ctypes.CDLL(None).sched_getcpu
    except (ImportError, OSError, AttributeError):
        return None
