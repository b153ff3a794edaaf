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
PAIR = set(sorted(ALLOWED)[:2])
pytestmark = pytest.mark.skipif(len(PAIR) < 2 or cores._asked() is None, reason="threads cannot be placed here")


@pytest.fixture(autouse=True)
def rested(monkeypatch):
    """Two cores, as after a rest; rests and moments so long that no pause of a slow machine counts as either."""
    monkeypatch.setattr(cores, "_last", {"began": -1e9, "worked": -1e9})
    monkeypatch.setattr(cores, "REST", 60.0)
    monkeypatch.setattr(cores, "MOMENTS", 60.0)
    os.sched_setaffinity(0, PAIR)
    yield
    os.sched_setaffinity(0, ALLOWED)


def masks(tasks=2, threads=2, between=lambda: None, apart=True):
    """The cores that each task's thread may use: the tasks wait for one another, so no thread has two."""
    found, together = [], threading.Barrier(tasks)

    def task(place, entry):
        together.wait(30)
        between()
        found.append(os.sched_getaffinity(0))

    with set_threads(threads):
        workers.run(task, range(tasks), apart=apart)
    return found


def free_again(threads=2):
    """Whether the caller and the helpers may go to either core, in a run that holds nobody."""
    return all(mask >= PAIR for mask in [os.sched_getaffinity(0), *masks(threads, threads, apart=False)])


def test_after_a_rest_each_keeps_to_its_own(monkeypatch):
    """Woken on one core, as it seems."""
    own = min(PAIR)
    monkeypatch.setattr(cores, "_asked", lambda: lambda: own)
    assert sorted(map(sorted, masks())) == [[core] for core in sorted(PAIR)]
    assert free_again()


@pytest.mark.parametrize(("seconds", "began", "held"), [(100.0, 1e9, True), (0.0, 1e9, False), (0.0, 1.0, True)])
def test_without_a_rest_only_in_its_first_moments(seconds, began, held):
    now = time.monotonic()
    cores._last.update(worked=now - seconds, began=now - began)
    one, other = masks()
    assert (not one & other) == held


def test_who_is_not_held(monkeypatch):
    """A task that runs what a user wrote; where there are more cores; who comes late; a worker alone; after a run."""
    assert all(mask >= PAIR for mask in masks(apart=False))
    assert masks(1, 1) == [PAIR]
    with monkeypatch.context() as patch:
        patch.setattr(cores, "_cores", lambda: {0, 1, 2})
        assert all(mask >= PAIR for mask in masks())
    late = cores.Apart(2)
    monkeypatch.setattr(late, "_end", 0.0)
    late.take()
    assert os.sched_getaffinity(0) == PAIR
    masks()
    assert cores._last["worked"] > 0
    cores._last["began"] = -1e9
    assert all(mask >= PAIR for mask in masks())


def test_an_error_frees_them():
    with pytest.raises(ZeroDivisionError):
        masks(between=lambda: 1 / 0)
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
            workers.run(lambda place, entry: time.sleep(0.01), range(2), apart=True)
            raise AssertionError("the interrupt was lost")
        assert len(times) == 3
        assert free_again()
    finally:
        signal.signal(signal.SIGINT, ctrl_c)


def test_where_threads_cannot_be_placed(monkeypatch):
    def refused(pid, mask):
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", refused)
    assert all(mask >= PAIR for mask in masks())
    monkeypatch.undo()
