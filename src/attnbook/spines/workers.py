"""Workers for the NumPy engine: a few threads, each with a BLAS of one thread.

Many small products run faster side by side than one after the other with all threads in each.
"""

import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Any

from attnbook.spines.blas import one_blas_thread
from attnbook.spines.cores import Apart
from attnbook.spines.threads import get_num_threads


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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of its parent's threads
