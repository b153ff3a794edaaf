"""A process that has collected the tests, and forks a child for each mutant: so no child pays for the imports."""

import gc
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from functools import _lru_cache_wrapper

import pytest

HANG = 20.0
"""Seconds that a test may wait, over 40 times what it takes."""


class Server:
    """A plugin of pytest: ``work`` is called in place of the loop over the tests, with this server."""

    def __init__(self, work):
        self.work, self.failed = work, False

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session):
        from hypothesis import Phase, settings

        twin = {"parent": settings(), "phases": (Phase.explicit, Phase.generate), "database": None}
        settings.register_profile("power", **twin)  # a failure is a failure: it is not made shorter
        settings.load_profile("power")

    def pytest_runtestloop(self, session):
        self.items = session.items
        self.caches = [c for c in gc.get_objects() if type(c) is _lru_cache_wrapper and _ours(c)]
        self.work(self)
        return True

    def pytest_runtest_logreport(self, report):
        self.failed = self.failed or report.failed
        self.skipped = self.skipped or report.skipped

    def one(self, i):
        """Run a test, here: whether it failed, and its CPU seconds."""
        self.failed = self.skipped = False
        begun = time.process_time()
        item = self.items[i]
        item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
        return self.failed, self.skipped, time.process_time() - begun

    def forget(self):
        for cache in self.caches:
            cache.cache_clear()

    def in_child(self, begin, order, cost, budget):
        """Run those tests in a child, after ``begin()``, until the budget of CPU seconds is spent: rows of (test,
        "failed", "passed", "skipped" or "hung", seconds). A child that dies or hangs is followed by one other.
        """
        rows, order = [], list(order)
        for _ in range(2):
            reader, writer = os.pipe()
            if not (child := os.fork()):
                self._serve(begin, order, cost, budget, reader, writer)
            os.close(writer)
            done = self._listen(reader, child, order, cost, rows)
            os.close(reader)
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            if done is None:
                return None
            if done == "end":
                break
            at = order.index(done)
            rows.append((done, "hung", 0.0))
            order = order[at + 1 :]
            budget = (budget - sum(row[2] for row in rows)) / 2
            if not order or budget <= 0:
                break
        return rows

    def _serve(self, begin, order, cost, budget, reader, writer):
        os.close(reader)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            if not begin():
                os.write(writer, b"no\n")
                os._exit(0)
            spent = 0.0
            for i in order:
                signal.setitimer(signal.ITIMER_PROF, HANG + 40 * cost(i))
                failed, skipped, cpu = self.one(i)
                spent += cpu
                os.write(writer, f"{i} {'failed' if failed else 'passed'} {cpu:.3f} {int(skipped)}\n".encode())
                if spent > budget:
                    break
            os.write(writer, b"end\n")
        finally:
            os._exit(0)

    def _listen(self, reader, child, order, cost, rows):
        """Reads what a child says, until it ends: "end", None where it could not begin, or the test that it fell in."""
        rest, told = b"", 0
        while True:
            limit = 2 * HANG + 80 * cost(order[min(told, len(order) - 1)])
            ready, _, _ = select.select([reader], [], [], limit)
            chunk = os.read(reader, 65536) if ready else b""
            if not chunk:
                return order[told] if told < len(order) else "end"
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line in (b"no", b"end"):
                    return None if line == b"no" else "end"
                i, outcome, cpu, skipped = line.decode().split()
                rows.append((int(i), "skipped" if skipped == "1" else outcome, float(cpu)))
                told += 1


def _ours(cache):
    module = getattr(cache, "__module__", "") or ""
    return module.split(".")[0] in ("attnbook", "cases", "compare", "naive", "routes") or module.startswith("test_")


def serve(files, work, marks="not thorough"):
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    options = ["-q", "-s", "-p", "no:cacheprovider", "--assert=plain", "--tb=native", "-m", marks]
    sys.stdout.flush()
    return pytest.main([*options, *map(str, files)], plugins=[Server(work)])
