"""Workers: what they are told, that nothing of them is left behind, and that errors and interrupts reach the caller."""

import contextlib
import importlib
import itertools
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import threadpoolctl
from compare import draw
from routes import taking

import attnbook as ab
from attnbook.spines import sums, workers
from attnbook.spines import threads as number


def blas_threads():
    """How many threads NumPy's BLAS works with. SciPy has one of its own, which is let alone if it comes later."""
    pools = (pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas")
    return [pool["num_threads"] for pool in pools if "scipy.libs" not in pool["filepath"]]


@contextlib.contextmanager
def set_threads(n):
    ab.set_num_threads(n)
    try:
        yield
    finally:
        ab.set_num_threads(None)


@pytest.fixture
def said(monkeypatch):
    """Sets the environment variable, as a process would find it at its start."""
    clear = number._said.cache_clear

    def say(threads):
        monkeypatch.setenv("ATTNBOOK_NUM_THREADS", threads)
        clear()

    yield say
    clear()


LIFTED_BY_ANOTHER = """
import threading
import threadpoolctl
from attnbook.spines.blas import one_blas_thread
count = lambda: {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}
inside, leave, left, end = (threading.Event() for _ in range(4))
def first():
    with one_blas_thread():
        inside.set(), leave.wait()
    left.set(), end.wait()
before, thread = count(), threading.Thread(target=first)
thread.start(), inside.wait()
with one_blas_thread():
    leave.set(), left.wait()
    assert count() == {1}
print(before == count(), before)
end.set(), thread.join()
"""


def told(code, *arguments, **variables):
    """The lines that a new process prints, with two workers."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, *arguments],
        cwd=Path(__file__).parent, env=os.environ | {"ATTNBOOK_NUM_THREADS": "2"} | variables,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_limit_is_lifted_by_a_thread_that_did_not_set_it():
    """The one that set it lives on: threadpoolctl heeds no other, until it is told to."""
    (line,) = told(LIFTED_BY_ANOTHER, OPENBLAS_NUM_THREADS="2")
    assert line.startswith("True")


def threads_are_set():
    with set_threads(7):
        assert ab.get_num_threads() == 7


def test_who_says_the_number_of_threads(said, monkeypatch):
    """Who sets it; else the environment variable; else torch, once its door is open; else OpenMP, or the cores."""
    torch = pytest.importorskip("torch")
    importlib.import_module("attnbook.torch")
    assert number._settings["followed"] is torch.get_num_threads
    said("3")
    threads_are_set()
    assert ab.get_num_threads() == 3
    for came, error, message in (
        ("-1", ValueError, "at least 1 thread, got -1"),
        ("--1", TypeError, "a whole number of threads, got '--1'"),
        ("", TypeError, "a whole number of threads, got ''"),
    ):
        said(came)
        with pytest.raises(error, match=f"^ATTNBOOK_NUM_THREADS: expected {message}$"):
            ab.get_num_threads()
    monkeypatch.setattr(number, "_said", lambda: None)
    monkeypatch.setitem(number._settings, "followed", lambda: 6)
    assert ab.get_num_threads() == 6
    monkeypatch.setitem(number._settings, "followed", None)
    monkeypatch.setattr(number, "_default", number._default.__wrapped__)
    monkeypatch.setattr(number.os, "sched_getaffinity", lambda _: range(2), raising=False)
    monkeypatch.setattr(number, "_CGROUP", Path("nowhere"))
    for of_openmp, threads in (("3", 3), ("3,2", 3), ("many", 2), ("0", 2)):
        monkeypatch.setenv("OMP_NUM_THREADS", of_openmp)
        assert ab.get_num_threads() == threads


@pytest.mark.parametrize(
    ("groups", "files", "threads"),
    [
        ("0::/", {"cpu.max": "max 100000"}, 8),
        ("0::/", {"cpu.max": "150000 100000"}, 2),  # a core and a half
        ("0::/a/b", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),  # of all that hold it
        ("0::/elsewhere", {"cpu.max": "400000 100000"}, 4),  # a path of the host, seen from inside a container
        ("3:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "250000", "cpu/a/cpu.cfs_period_us": "100000"}, 3),
        ("0::/", {"cpu.max": "many"}, 8),
        (None, {}, 8),
    ],
)
def test_no_more_workers_than_a_container_has_time_for(groups, files, threads, tmp_path, monkeypatch):
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    if groups is not None:
        (tmp_path / "groups").write_text(f"7:memory:/{'x' * 9}\n{groups}\n", encoding="utf-8")
    monkeypatch.setattr(number, "_CGROUP", tmp_path / "groups")
    monkeypatch.setattr(number, "_MOUNTED", tmp_path)
    monkeypatch.setattr(number.os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert number._default.__wrapped__() == threads


@pytest.mark.parametrize("threads", [1, 5])
def test_every_task_is_done_once(threads):
    done, lock = [], threading.Lock()

    def task(place, entry):
        with lock:
            done.append((place, entry))
            assert blas_threads() == [1] * len(before)

    with threadpoolctl.threadpool_limits(2, user_api="blas"):  # on any machine, and whatever goes wrong
        before = blas_threads()
        assert before, "threadpoolctl does not see NumPy's BLAS"
        with set_threads(threads):
            workers.run(task, [10 * i for i in range(20)])
        assert sorted(done) == [(i, 10 * i) for i in range(20)]
        assert blas_threads() == before


def test_where_no_thread_starts_the_caller_does_all(monkeypatch):
    def start(_):
        raise RuntimeError("can't start new thread")  # as Pyodide says

    monkeypatch.setattr(workers.threading.Thread, "start", start)
    workers._threads_start.cache_clear()
    workers._pool.cache_clear()
    try:
        test_every_task_is_done_once(3)
    finally:
        workers._threads_start.cache_clear()


def test_sums_are_in_order():
    """Whoever gives first, sums are taken in the order of the tasks: 10¹⁶ + 1 − 10¹⁶ hangs on it."""
    for order in itertools.permutations(range(3)):
        total, in_order = np.zeros(1), sums.InOrder()
        for place in order:
            in_order.give("total", place, [(total, np.array([(1e16, 1.0, -1e16)[place]]))])
        assert total[0] == 1e16 + 1.0 - 1e16


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("of_helper", [True, False])
def test_an_error_reaches_the_caller(of_helper, error):
    """An error in a task, the caller's or a helper's: it is raised, no worker is left, and BLAS is as it was."""
    before, working = blas_threads(), []
    at_work = {True: threading.Event(), False: threading.Event()}  # one of each is, when it happens

    def task(place, entry):
        working.append(place)
        try:
            helps = threading.current_thread() is not threading.main_thread()
            at_work[helps].set()
            at_work[not helps].wait(5)
            if helps == of_helper:
                raise error("in a task")
            time.sleep(0.02)
        finally:
            working.pop()

    with set_threads(2):
        try:
            workers.run(task, range(50))
        except error:
            assert not working, "a worker is still at work"
            assert blas_threads() == before
        else:
            raise AssertionError("the error was lost")


def test_two_callers_at_once():
    """Two Python threads call attention at the same time: each gets what it gets alone, and BLAS is as it was."""
    before = blas_threads()
    inputs = [draw((2, 6, 40, 8), (2, 6, 50, 8), (2, 6, 50, 5), (2, 6, 40, 5), seed=seed) for seed in range(2)]

    def both(Q, K, V, dO):
        O, res = ab.attention(Q, K, V, causal=True)
        return [O, *ab.attention_vjp(dO, res)[:3]]

    with taking("tiled on NumPy"), set_threads(3):
        alone = [both(*arrays) for arrays in inputs]
        with ThreadPoolExecutor(2) as pool:
            for _ in range(2):
                for wanted, found in zip(alone, pool.map(lambda arrays: both(*arrays), inputs), strict=True):
                    assert all(map(np.array_equal, wanted, found))
    assert blas_threads() == before


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


@pytest.mark.skipif(not hasattr(number.os, "fork"), reason="no fork on this system")
def test_a_child_process_has_workers_of_its_own():
    assert told(FORK) == ["0"]


AT_EXIT = """
import atexit, threading
import attnbook as ab
from attnbook.spines import blas, workers
both, done = threading.Barrier(2), []
def task(place, entry):
    both.wait(30)
    workers.run(lambda *_: done.append(place), range(3))
workers.run(task, range(2))
print(sorted(done))
@atexit.register
def at_the_end():
    workers.run(lambda place, entry: print(entry), "ab")
"""


def test_a_task_may_have_tasks_of_its_own_and_no_thread_need_start_at_the_end():
    assert told(AT_EXIT) == ["[0, 0, 0, 1, 1, 1]", "a", "b"]


OUT_OF_MEMORY = """
import resource
import numpy as np
import test_workers
import attnbook as ab
n = 16384  # a table of it takes 1 GiB in float32
Q, dO = np.random.default_rng(0).standard_normal((2, n, 2), np.float32)
ab.attention(Q[:2048], Q[:2048], Q[:2048], method="tiled")  # whatever starts once has started
before, came = test_workers.blas_threads(), Q.copy()
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 2**29, resource.RLIM_INFINITY))
try:
    ab.attention(Q, Q, Q, method="dense")
except MemoryError as error:
    print(error)
O, res = ab.attention(Q, Q, Q, method="tiled")
grads = ab.attention_vjp(dO, res)
print(np.array_equal(Q, came), test_workers.blas_threads() == before, np.isfinite(grads.dQ).all())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the address space as Linux does")
def test_no_room_for_a_table_is_said_with_its_size_and_the_tiled_method_goes_on():
    error, after = told(OUT_OF_MEMORY)
    assert error.startswith("method 'dense': Unable to allocate 1.00 GiB for an array with shape (16384, 16384)")
    assert error.endswith("each table of (16384, 16384) numbers takes 1,024 MiB; method='tiled' holds none")
    assert after == "True True True"


CTRL_C = """
import os, signal, sys, threading, time
import numpy as np
import test_workers
import attnbook as ab
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell runs in the background ignores it
way, phase, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
Q, dO = np.random.default_rng(0).standard_normal((2, n, 64))
O, res = ab.attention(Q, Q, Q, method=way)
call = {
    "forward": lambda: ab.attention(Q, Q, Q, method=way)[:1],
    "backward": lambda: ab.attention_vjp(dO, res)[:3],
    "tangent": lambda: (ab.attention_jvp(dO, dO, dO, res),),
}[phase]
before, came = test_workers.blas_threads(), Q.copy()
start = time.perf_counter()
wanted = call()
whole = time.perf_counter() - start
try:
    threading.Timer(whole / 3, os.kill, (os.getpid(), signal.SIGINT)).start()  # may come before start has returned
    start = time.perf_counter()
    while True:
        call()
except KeyboardInterrupt:
    print(time.perf_counter() - start < 10 * whole)
    print(all(map(np.array_equal, wanted, call())), np.array_equal(Q, came), test_workers.blas_threads() == before)
"""


@pytest.mark.parametrize("phase", ["forward", "backward", "tangent"])
@pytest.mark.parametrize(("way", "n"), [("tiled", "2048"), ("dense", "1024")])
def test_ctrl_c_ends_each_phase_and_leaves_all_as_it_was(way, n, phase):
    """A signal of the system while products run: the call ends, and the next gives what it gave before."""
    assert told(CTRL_C, way, phase, n) == ["True", "True True True"]
