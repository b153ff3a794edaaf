"""Workers: what they are told, that nothing of them is left behind, and that errors and interrupts reach the caller."""

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import laws
import pytest
from routes import taking

import attnbook as ab
from attnbook.spines import workers


@pytest.fixture
def said(monkeypatch):
    """Sets the environment variable, as a process would find it at its start."""

    def say(threads):
        monkeypatch.setenv("ATTNBOOK_NUM_THREADS", threads)
        workers._default.cache_clear()

    yield say
    workers._default.cache_clear()


def test_the_number_of_threads_is_what_was_said(said):
    assert ab.get_num_threads() >= 1
    said("3")
    assert ab.get_num_threads() == 3
    ab.set_num_threads(5)
    assert ab.get_num_threads() == 5
    ab.set_num_threads(None)
    assert ab.get_num_threads() == 3


@pytest.mark.parametrize(
    ("came", "error", "message"),
    [
        ("0", ValueError, "at least 1 thread, got 0"),
        ("-1", ValueError, "at least 1 thread, got -1"),
        ("--1", TypeError, "a whole number of threads, got '--1'"),
        ("1.5", TypeError, "a whole number of threads, got '1.5'"),
        ("two", TypeError, "a whole number of threads, got 'two'"),
        ("", TypeError, "a whole number of threads, got ''"),
    ],
)
def test_a_wrong_number_in_the_environment(came, error, message, said):
    said(came)
    with pytest.raises(error, match=f"^ATTNBOOK_NUM_THREADS: expected {message}$"):
        ab.get_num_threads()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_task_is_done_once(threads):
    laws.every_task_is_done_once(threads)


def test_where_no_thread_starts_the_caller_does_all(monkeypatch):
    def start(_):
        raise RuntimeError("can't start new thread")  # as Pyodide says

    monkeypatch.setattr(workers.threading.Thread, "start", start)
    workers._threads_start.cache_clear()
    workers._pool.cache_clear()
    try:
        laws.every_task_is_done_once(3)
    finally:
        workers._threads_start.cache_clear()


def test_sums_are_in_order():
    laws.sums_are_in_order()


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("of_helper", [True, False])
def test_an_error_reaches_the_caller(of_helper, error):
    laws.an_error_reaches_the_caller(of_helper, error)


def test_an_interrupt_while_waiting_leaves_no_worker():
    laws.an_interrupt_while_waiting_leaves_no_worker()


def test_an_error_in_an_op_reaches_the_caller():
    class Broken(laws.Spy):
        def vjp(self, dS, saved, tile):
            raise ZeroDivisionError("in an op")

    before = laws.blas_threads()
    Q, K, V, dO = laws.draw((6, 5, 3), (6, 7, 3), (6, 7, 3), (6, 5, 3))
    with taking("tiled on NumPy"), laws.set_threads(3):
        _, res = ab.attention(Q, K, V, ops=[Broken()])
        with pytest.raises(ZeroDivisionError, match="in an op"):
            ab.attention_vjp(dO, res)
    assert laws.blas_threads() == before


def test_two_callers_at_once():
    with taking("tiled on NumPy"):
        laws.two_callers_at_once()


FORK = """
import os, numpy as np, attnbook as ab
ab.set_num_threads(3)
Q = np.random.default_rng(0).standard_normal((16, 300, 8))
def run():
    O, res = ab.attention(Q, Q, Q, method="tiled", causal=True)
    return O, ab.attention_vjp(O, res).dQ
before = run()
child = os.fork()
if child == 0:
    os._exit(not all(map(np.array_equal, before, run())))
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(workers.os, "fork"), reason="no fork on this system")
def test_a_child_process_has_workers_of_its_own():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "0"


FORK_IN_A_RUN = """
import os, threading, numpy as np
from threadpoolctl import threadpool_limits
import laws
from attnbook.spines import workers
at_work, done = threading.Event(), threading.Event()
def task(place, entry):
    at_work.set()
    assert done.wait(30)
with threadpool_limits(2, user_api="blas"):
    before = laws.blas_threads()
    run = threading.Thread(target=workers.run, args=(task, range(2)))
    run.start()
    at_work.wait(30)
    child = os.fork()
    if child == 0:
        as_before = laws.blas_threads() == before
        laws.every_task_is_done_once()
        os._exit(not as_before or workers._in_use["runs"])
    _, status = os.waitpid(child, 0)
    done.set()
    run.join()
    print(os.waitstatus_to_exitcode(status), laws.blas_threads() == before)
"""


@pytest.mark.skipif(not hasattr(workers.os, "fork"), reason="no fork on this system")
def test_a_child_process_is_in_no_run():
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK_IN_A_RUN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=Path(__file__).parent)
    assert done.stdout.strip() == "0 True"


AT_EXIT = """
import atexit
from attnbook.spines import workers
@atexit.register
def at_the_end():
    workers.run(lambda place, entry: print(entry), "ab")
"""


def test_work_is_done_where_no_thread_can_be_started_any_more():
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["a", "b"]


RUN_IN_A_RUN = """
import threading
import attnbook as ab
from attnbook.spines import workers
ab.set_num_threads(2)
both, done = threading.Barrier(2), []
def task(place, entry):
    both.wait(30)
    workers.run(lambda *_: done.append(place), range(3))
workers.run(task, range(2))
print(sorted(done))
"""


def test_a_task_may_have_tasks_of_its_own():
    done = subprocess.run([sys.executable, "-c", RUN_IN_A_RUN], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[0, 0, 0, 1, 1, 1]"


def cores_of_a_run(error=None):
    """Which cores each task might use, and those of the caller before and afterwards."""
    seen, before, both = {}, os.sched_getaffinity(0), threading.Barrier(2, timeout=30)

    def task(place, _):
        seen["caller" if threading.current_thread() is threading.main_thread() else "helper"] = os.sched_getaffinity(0)
        both.wait()  # so that each takes one
        if error:
            raise error

    with laws.set_threads(2), contextlib.suppress(*[error] if error else []):
        workers.run(task, range(2))
    return seen, before, os.sched_getaffinity(0)


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2, reason="one core, or cores not to be told"
)
@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_workers_keep_to_cores_of_their_own_and_give_them_back(error):
    seen, before, after = cores_of_a_run(error)
    assert len(seen["caller"]) == 1
    assert seen["helper"] == before - seen["caller"]
    assert after == before
    assert workers._pool(1).submit(os.sched_getaffinity, 0).result() == before


def test_without_a_way_to_tell_cores_all_work_where_they_are(monkeypatch):
    monkeypatch.setattr(workers, "_sched_getcpu", lambda: None)
    laws.every_task_is_done_once(2)
