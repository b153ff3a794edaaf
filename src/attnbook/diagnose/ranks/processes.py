"""Ranks as processes of their own, which talk by gloo, of torch, on this machine alone.

Chapter: :doc:`/chapters/08_checking`. The processes are started once, and asked case by case. Where one of them fails
or takes too long, all are ended, and started again for the next case.
"""

import multiprocessing
import os
import pickle
import socket
import tempfile
import time
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path

from attnbook.arrays import expected
from attnbook.diagnose.ranks.comm import Outcome

GRACE = 1.0
"""Seconds that the other ranks have to answer, when one has failed."""

ENDED = 2
"""In so many cases the processes may have to be ended: after them no further case is run."""

START = 60.0
"""Seconds that processes may take to start and to find each other: importing torch is part of it."""


class Processes:
    """A process for each rank; as a context, so that none is left behind."""

    def __init__(self, one, limit):
        try:
            pickle.dumps(one)
        except (pickle.PicklingError, AttributeError, TypeError):
            raise TypeError(expected("fn", 'a function of a module, for backend="gloo"', repr(one.fn))) from None
        self.one, self.limit, self.alive = one, limit, []
        self.folder, self.groups, self.size, self.ended = tempfile.TemporaryDirectory(), 0, None, 0
        self.silent = ""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._end()
        self.folder.cleanup()

    def __call__(self, pieces, dtype, options):
        """The outcome of each rank's call; None where one takes too long, or where too many have been ended."""
        size = len(pieces)
        if self.ended >= ENDED:
            return Outcome(
                [], (0, NotImplementedError("not asked: in two cases the processes had to be ended")), "", ()
            )
        ready = self._ready(size)
        if ready is not None:
            return ready
        for rank in range(size):
            self.alive[rank][1].send(("call", pieces[rank], dtype, options[rank]))
        answers = self._answers(size, self.limit)
        failed = min((r for r, (kind, _) in answers.items() if kind == "failed"), key=self._when.get, default=None)
        if failed is not None or len(answers) < size:
            self.size = None  # what is still on its way would reach the next case: a new group
            if len(answers) < size or any(answer == _GONE for answer in answers.values()):
                self._end()
                self.ended += 1
        if failed is not None:
            return Outcome([], (failed, _error(*answers[failed][1])), "", ())
        self.silent = " from rank " + " and ".join(f"{r}" for r in range(size) if r not in answers) + f" of {size}"
        return Outcome([answers[r][1] for r in range(size)], None, "", ()) if len(answers) == size else None

    def _ready(self, size):
        """Start what is missing, and join the ranks to a group; an outcome only where that fails."""
        if self.size == size:
            return None
        context = multiprocessing.get_context("spawn")  # a fork would copy torch's threads in the midst of their work
        while len(self.alive) < size:
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, self.one), daemon=True)
            process.start()
            theirs.close()
            self.alive.append((process, ours))
        self.groups += 1
        store = Path(self.folder.name, f"group-{self.groups}")
        for rank in range(size):
            self.alive[rank][1].send(("join", str(store), rank, size, START))
        answers = self._answers(size, START)
        failed = next((r for r, (kind, _) in answers.items() if kind == "failed"), None)
        if failed is not None or len(answers) < size:
            self._end()
            words = answers[failed][1] if failed is not None else ("TimeoutError", "the processes did not start")
            return Outcome([], (failed or 0, _error(*words)), "", ())
        self.size = size
        return None

    def _answers(self, size, limit):
        """{rank: its answer}, of those that came in time: after a failure that of the others is short."""
        waiting = {self.alive[rank][1]: rank for rank in range(size)}
        answers, until, self._when = {}, time.monotonic() + limit, {}
        while waiting and (left := until - time.monotonic()) > 0:
            for connection in wait(list(waiting), left):
                rank = waiting.pop(connection)
                try:
                    answers[rank] = connection.recv()
                except (EOFError, ConnectionError):
                    answers[rank] = _GONE
                if answers[rank][0] == "failed":
                    lost = 1 if answers[rank] == _GONE else 2 * _of_a_peer(answers[rank])  # 2: heard of another's end
                    self._when[rank] = lost, len(self._when)
                    until = min(until, time.monotonic() + GRACE)
        return answers

    def _end(self):
        for process, connection in self.alive:
            connection.close()
            process.terminate()
        for process, _ in self.alive:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        self.alive, self.size = [], None


_GONE = ("failed", ("ProcessEnded", "the process of the rank has ended"))


def _of_a_peer(answer):
    """Whether a failure is that another rank has gone: not where it began."""
    name, words = answer[1]
    return name.startswith("Dist") or any(word in words.lower() for word in ("gloo", "nccl", "timeout"))


def _error(name, words):
    """An exception like that of another process."""
    return NotImplementedError(words) if name == "NotImplementedError" else type(name, (Exception,), {})(words)


def serve(connection, one):
    """What a process does: join groups, and answer calls, until nobody asks."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    names = [name for _, name in socket.if_nameindex()] if hasattr(socket, "if_nameindex") else []
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if "lo0" in names else "lo")
    while True:
        try:
            kind, *given = connection.recv()
        except EOFError:
            return
        try:
            if kind == "join":
                store, rank, size, limit = given
                if dist.is_initialized():
                    dist.destroy_process_group()
                limit = timedelta(seconds=limit)
                dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=size, timeout=limit)
                answer = ("answer", None)
            else:
                answer = ("answer", one(*given))
        except BaseException as error:  # whatever it is, it is the answer
            answer = ("failed", (type(error).__name__, str(error)))
        connection.send(answer)
