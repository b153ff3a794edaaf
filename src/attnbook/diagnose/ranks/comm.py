"""Several ranks in one process, with the messages between them. Chapter: :doc:`/chapters/08_checking`.

Each rank is a thread, and one runs at a time, until it has to wait: so every run is the same, and who waits for whom in
a deadlock is known at once.
"""

import copy
import threading
from collections import defaultdict, deque
from typing import NamedTuple

import numpy as np

from attnbook.arrays import expected


class Outcome(NamedTuple):
    """What the ranks did: the ``results`` by rank; who ``failed`` first, as (rank, exception), or None; how they are
    ``stuck``, a sentence, or ""; and the sentences about messages that nobody received, ``unread``.
    """

    results: list
    failed: tuple | None
    stuck: str
    unread: tuple


def simulate(size, work):
    """The :class:`Outcome` of ``work(comm)`` on ``size`` ranks, each with its own :class:`Comm`."""
    return _World(size).run(work)


class Comm:
    """What one rank knows of the others: its number, how many there are, and how to send them something.

    What is sent is an array, a number, or a tuple or list of such; it is copied when it is sent. Every rank has to make
    the same collective calls, in the same order.
    """

    def __init__(self, world, rank):
        self._world, self.rank, self.size = world, rank, world.size

    def send(self, x, to):
        """Send x to the rank ``to``, and go on: nobody has to be waiting for it."""
        self._world.channels[self.rank, self._known("to", to)].append(_copied(x))

    def receive(self, source):
        """What ``source`` sent to this rank: the first that was not received yet. Waits for it."""
        channel = self._world.channels[self._known("source", source), self.rank]
        self._world.wait(self.rank, lambda: bool(channel), "to receive", lambda: [source])
        return channel.popleft()

    def exchange(self, x, to=None, source=None):
        """Send x, and receive: where no ranks are given, to the next one and from the one before, as in a ring."""
        self.send(x, (self.rank + 1) % self.size if to is None else to)
        return self.receive((self.rank - 1) % self.size if source is None else source)

    send_recv = exchange
    recv = receive

    def all_gather(self, x):
        """[the x of every rank, in the order of the ranks]."""
        return self._meet("all_gather", x)

    def all_reduce(self, x, op="sum"):
        """The sum of the x of all ranks; or their "mean", "max" or "min"."""
        return _reduced(self._meet(f"all_reduce ({op})", x), op)

    def reduce_scatter(self, parts, op="sum"):
        """The sum over all ranks of ``parts[rank]``, for this rank: a part for each rank is given."""
        given = self._meet(f"reduce_scatter ({op})", self._for_each(parts))
        return _reduced([parts[self.rank] for parts in given], op)

    def all_to_all(self, parts):
        """[what every rank gave for this rank], from a part for each rank."""
        return [parts[self.rank] for parts in self._meet("all_to_all", self._for_each(parts))]

    def broadcast(self, x, root=0):
        """The x of the rank ``root``."""
        return self._meet(f"broadcast of {self._known('root', root)}", x)[root]

    def barrier(self):
        """Wait for all."""
        self._meet("barrier", None)

    def _known(self, name, rank):
        if isinstance(rank, bool) or not isinstance(rank, int | np.integer) or not 0 <= rank < self.size:
            raise ValueError(expected(name, f"a rank from 0 to {self.size - 1}", repr(rank)))
        return int(rank)

    def _for_each(self, parts):
        if not isinstance(parts, tuple | list) or len(parts) != self.size:
            raise ValueError(expected("parts", f"a list of {self.size} arrays, one a rank", type(parts).__name__))
        return list(parts)

    def _meet(self, name, x):
        return [_copied(T) for T in self._world.meet(self.rank, name, _copied(x))]


class _Ended(BaseException):
    """Another rank has failed, or all are stuck: this one ends too."""


class _World:
    """The ranks, whose turn it is, and what is on its way."""

    def __init__(self, size):
        self.size = size
        self.turns = [threading.Semaphore(0) for _ in range(size)]  # a rank runs when its own one is released
        self.waits = [None] * size  # (whether it can go on, what it waits for in words, for which ranks)
        self.returned = [False] * size
        self.channels = defaultdict(deque)
        self.meetings, self.met = [], [0] * size  # {rank: (name, x)} for each collective call; how many a rank made
        self.results, self.failed, self.stuck, self.ended = [None] * size, None, "", False

    def run(self, work):
        if self.size == 1:
            self._live(0, work)
        else:
            threads = [threading.Thread(target=self._live, args=(r, work), daemon=True) for r in range(self.size)]
            for thread in threads:
                thread.start()
            self.turns[0].release()
            for thread in threads:
                thread.join()
        unread = tuple(
            f"rank {source} sends rank {to} what is never received"
            for (source, to), channel in sorted(self.channels.items()) if channel
        )  # fmt: skip
        return Outcome(self.results, self.failed, self.stuck, () if self.ended else unread)

    def _live(self, rank, work):
        if self.size > 1:
            self.turns[rank].acquire()
        try:
            if not self.ended:
                with np.errstate(all="ignore"):
                    self.results[rank] = work(Comm(self, rank))
        except _Ended:
            pass
        except BaseException as error:  # whatever it is, it is the answer
            if not self.ended:
                self.failed, self.ended = (rank, error), True
        self.returned[rank] = True
        self._pass_on(rank)

    def wait(self, rank, ready, words, whom):
        """Let the others run until ``ready()``."""
        while not ready():
            self.waits[rank] = (ready, words, whom)
            if self._pass_on(rank) != rank:
                self.turns[rank].acquire()
            self.waits[rank] = None
            if self.ended:
                raise _Ended
        if self.ended:
            raise _Ended

    def meet(self, rank, name, x):
        """[the x of every rank], when all have come to this collective call."""
        number = self.met[rank]
        self.met[rank] += 1
        if number == len(self.meetings):
            self.meetings.append({})
        here = self.meetings[number]
        for other, (its, _) in here.items():
            if its != name:
                self.stuck, self.ended = f"rank {other} calls {its} where rank {rank} calls {name}", True
                raise _Ended
        here[rank] = (name, x)
        absent = lambda: [r for r in range(self.size) if r not in here]  # noqa: E731
        self.wait(rank, lambda: not absent(), f"in {name}", absent)
        return [here[r][1] for r in range(self.size)]

    def _pass_on(self, rank):
        """Give the turn to the next rank that can go on, and say which; where none can, they are stuck: all end."""
        others = [(rank + i) % self.size for i in range(1, self.size + 1)]
        alive = [r for r in others if not self.returned[r]]
        able = [r for r in alive if self.ended or self.waits[r] is None or self.waits[r][0]()]
        if alive and not able:
            self.stuck, self.ended = self._sentence(sorted(alive)), True
            able = alive
        if able and able[0] != rank:
            self.turns[able[0]].release()
        return able[0] if able else None

    def _sentence(self, alive):
        """Which rank waits for whom, in one sentence."""
        clauses = []
        for rank in alive:
            _, words, whom = self.waits[rank]
            names = " and ".join(f"rank {r}" + (", which has returned" if self.returned[r] else "") for r in whom())
            clauses.append(f"rank {rank} waits {words} {'for' if words != 'to receive' else 'from'} {names}")
        return ", ".join(clauses)


def _copied(x):
    if isinstance(x, tuple | list):
        return (list if isinstance(x, list) else tuple)(map(_copied, x))
    if hasattr(x, "detach"):
        return x.detach().clone()
    return x.copy() if isinstance(x, np.ndarray) else copy.deepcopy(x)


def _reduced(values, op):
    if op not in ("sum", "mean", "max", "min"):
        raise ValueError(expected("op", "'sum', 'mean', 'max' or 'min'", repr(op)))
    total = values[0]
    for x in values[1:]:
        if op in ("sum", "mean"):
            total = total + x
        else:
            total = np.where((x > total) == (op == "max"), x, total) if isinstance(x, np.ndarray) else (
                x.maximum(total) if op == "max" else x.minimum(total)
            )  # fmt: skip
    return total / len(values) if op == "mean" else total
