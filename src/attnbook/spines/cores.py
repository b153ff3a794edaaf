"""Two workers on two cores, where Linux would leave them on one.

After a rest both were found on one for tens of milliseconds (KVM, Linux 6.18), and a small call took half as long
again. So each keeps to its own until the system has had time to spread them. With more cores nothing was measured, and
nothing is done.
"""

import os
import threading
import time
from contextlib import suppress
from functools import cache
from typing import Any

REST, MOMENTS = 0.01, 0.1
"""Seconds. Shorter rests than the first were seen to do no harm; within the second, threads on one core had parted."""

_last = {"began": -MOMENTS, "worked": -REST}
"""When the first run after a rest began, and when a worker last ended a task."""


class Apart:
    """The workers of one run: each takes a core, says when a task is done, and leaves at the end."""

    def __init__(self, workers: int) -> None:
        now = time.monotonic()
        if now - _last["worked"] > REST:
            _last["began"] = now
        self._end = _last["began"] + MOMENTS
        self._cores = _cores() if workers > 1 and now < self._end else set()
        self._taken: set[int] = set()
        self._held: dict[int, int] = {}  # by thread
        self._lock = threading.Lock()

    def take(self) -> None:
        """Hold this thread on a core that no other worker has, if it is early enough, and there are two cores."""
        if len(self._cores) != 2 or time.monotonic() > self._end:
            return
        with self._lock:
            free, own = self._cores - self._taken, _asked()()
            own = own if own in free else next(iter(free), None)
            if own is not None:
                self._taken.add(own)
                self._held[threading.get_ident()] = own
                _hold({own})

    def done(self) -> None:
        """After a task: this thread may go anywhere again, if the moments are over."""
        _last["worked"] = now = time.monotonic()
        if now > self._end:
            self.leave()

    def leave(self) -> None:
        """This thread may go anywhere again, unless somebody has moved it since."""
        if (own := self._held.get(threading.get_ident())) is not None and _cores() == {own}:
            _hold(self._cores)


def _hold(cores: set[int]) -> None:
    with suppress(OSError, ValueError):  # a container has taken cores away since
        os.sched_setaffinity(0, cores)


def _cores() -> set[int]:
    """The cores that this thread may use; none, where threads cannot be placed."""
    with suppress(OSError):
        return os.sched_getaffinity(0) if _asked() else set()
    return set()


@cache
def _asked() -> Any:
    """What tells the core that a thread is on, or None."""
    if hasattr(os, "sched_setaffinity"):
        with suppress(ImportError, OSError, AttributeError):
            import ctypes

            return ctypes.PyDLL(None).sched_getcpu
    return None
