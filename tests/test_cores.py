"""Workers on cores of their own after a rest; and every thread free again, whatever comes."""

import contextlib
import os
import signal
import threading
import time

import pytest
from test_workers import set_threads

from attnbook.spines import cores, workers

ALLOWED = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
pytestmark = pytest.mark.skipif(len(ALLOWED) < 2 or cores._core() is None, reason="threads cannot be placed here")


@pytest.fixture(autouse=True)
def rested(monkeypatch):
    """As after a rest; and moments long enough for a slow machine."""
    monkeypatch.setattr(cores, "_last", {"began": -1e9, "ended": -1e9})
    monkeypatch.setattr(cores, "MOMENTS", 60.0)


def masks(tasks=2, threads=2, between=lambda: None):
    """The cores that each task's thread may use: the tasks wait for one another, so no thread has two."""
    found, together = [], threading.Barrier(tasks)

    def task(place, entry):
        together.wait(30)
        between()
        found.append(os.sched_getaffinity(0))

    with set_threads(threads):
        workers.run(task, range(tasks))
    return found


def rest(seconds, began):
    now = time.monotonic()
    cores._last.update(ended=now - seconds, began=now - began)


def free_again():
    """Whether the caller and the helper may go anywhere, in a run that holds nobody."""
    rest(0.0, began=1e9)
    cores_now = [os.sched_getaffinity(0), *masks()]
    return cores_now == [ALLOWED] * 3


def test_after_a_rest_each_keeps_to_its_own(monkeypatch):
    """Woken on one core, as it seems."""
    own = min(ALLOWED)
    monkeypatch.setattr(cores, "_core", lambda: lambda: own)
    assert sorted(map(sorted, masks())) == sorted(map(sorted, ({own}, ALLOWED - {own})))
    assert free_again()


def test_a_run_is_no_rest(monkeypatch):
    monkeypatch.setattr(cores, "REST", 60.0)
    masks()
    assert cores._last["ended"] > 0
    cores._last["began"] = -1e9
    assert masks() == [ALLOWED] * 2


@pytest.mark.parametrize(("seconds", "began", "held"), [(1.0, 1e9, True), (0.0, 1e9, False), (0.0, 1.0, True)])
def test_without_a_rest_only_in_its_first_moments(seconds, began, held):
    rest(seconds, began)
    one, other = masks()
    assert (not one & other) == held


def test_a_run_that_goes_on_frees_them(monkeypatch):
    monkeypatch.setattr(cores, "MOMENTS", 0.05)
    seen = []

    def task(place, entry):
        time.sleep(0.1)
        seen.append(os.sched_getaffinity(0))

    with set_threads(2):
        workers.run(task, range(4))
    assert len(seen[0]) < len(ALLOWED)
    assert seen[2:] == [ALLOWED] * 2


def test_more_workers_than_cores():
    n = len(ALLOWED) + 2
    assert len(masks(n, n)) == n
    assert free_again()


def test_an_error_frees_them():
    def broken():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        masks(between=broken)
    assert free_again()


def test_an_interrupt_frees_them():
    """Ctrl-C reaches the caller as soon as it is held, in the middle of ``take``, and again before it is let go."""
    ctrl_c = signal.signal(signal.SIGINT, signal.default_int_handler)
    hold, times = cores._hold, []

    def interrupted(mask):
        if mine := threading.current_thread() is threading.main_thread():
            times.append(mask)
        if not mine or len(times) != 2:
            hold(mask)
        if mine and len(times) < 3:
            signal.raise_signal(signal.SIGINT)

    try:
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt), set_threads(2):
            patch.setattr(cores, "_hold", interrupted)
            workers.run(lambda place, entry: time.sleep(0.01), range(2))
            raise AssertionError("the interrupt was lost")
        assert len(times) == 3
        assert free_again()
    finally:
        signal.signal(signal.SIGINT, ctrl_c)


@pytest.mark.parametrize("what", ["the system refuses", "no such function"])
def test_where_threads_cannot_be_placed(monkeypatch, what):
    def refused(pid, mask):
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", refused)
    if what == "no such function":
        monkeypatch.setattr(cores, "_core", lambda: None)
    assert masks() == [ALLOWED] * 2


def test_one_worker_goes_where_it_likes():
    seen = []
    with set_threads(1):
        workers.run(lambda place, entry: seen.append(os.sched_getaffinity(0)), range(3))
    assert seen == [ALLOWED] * 3
