"""Ranks that are there already, as torchrun started them: each runs the same cases, and hears what the others got.

Chapter: :doc:`/chapters/08_checking`.
"""

import threading
import time
from datetime import timedelta

import numpy as np

from attnbook.arrays import expected
from attnbook.diagnose.learn.safely import sentence
from attnbook.diagnose.ranks.comm import Outcome
from attnbook.diagnose.ranks.processes import GRACE, _error, _of_a_peer
from attnbook.diagnose.ranks.ranks_run import _in_words

LISTEN = 0.2
"""Seconds from one question to the next, whether the others have an answer."""


class Group:
    """All processes of the default group of torch.distributed; as a context, like the other backends."""

    def __init__(self, one, limit):
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                expected("backend", "torch.distributed after init_process_group, as by torchrun", "none")
            )
        self.one, self.limit, self.dist, self.silent = one, limit, dist, ""
        self.before, self.broken = "", False
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        one.device = "cuda" if "nccl" in dist.get_backend() else "cpu"
        # Of its own: a message that the function left behind must not be taken for an answer.
        self.aside = dist.new_group(backend="gloo", timeout=timedelta(seconds=limit + 60))
        dist.barrier(self.aside)  # a rank that ends at once must not cut off one that is still connecting

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.dist.destroy_process_group(self.aside)

    def __call__(self, pieces, dtype, options):
        """The outcome of each rank's call, None where some give no answer. Where only some failed, or some waited in
        vain, messages may be left: that stays it. Where all failed by themselves, what they had sent may be left too: a
        later wait in vain says so.
        """
        if len(pieces) != self.size:
            raise ValueError(expected("ranks", f"{self.size}, those of the group", len(pieces)))
        if self.broken is not False:
            return self.broken
        every = self._answers(pieces[self.rank], dtype, options[self.rank])
        failed = [r for r, answer in enumerate(every) if answer and answer[0] == "failed"]
        silent = [r for r, answer in enumerate(every) if answer is None]
        if not failed and not silent:
            return Outcome([answer for _, answer in every], None, "", ())
        if not failed:
            self.broken, whom = None, _in_words(silent, self.size)
            others = [f"rank {r} has returned: {answer[1].text}" for r, answer in enumerate(every) if answer]
            wrong = [text for text in others if not text.endswith(": ")] or ["some may only wait for another"]
            self.silent = f" from {whom}; {self.before or wrong[0]}"
            return None
        first = min(failed, key=lambda r: _of_a_peer(every[r]))  # not one that only waited for it
        name, text = every[first][1]
        if len(failed) < self.size or any(_of_a_peer(every[r]) for r in failed):
            self.broken = Outcome([], (first, _error(name, ": ".join(filter(None, (self.before, text))))), "", ())
            return self.broken
        error = _error(name, text)
        if not isinstance(error, NotImplementedError):
            self.before = self.before or f"after every rank raised {sentence(error)}"
        return Outcome([], (first, error), "", ())

    def _answers(self, *asked):
        """What each rank got, the same list on all: None for one that is still at it when time is up, or when another
        has failed and it goes on waiting.
        """
        box, device = [], None
        if self.one.device == "cuda":
            import torch

            device = torch.cuda.current_device()

        def work():
            try:
                if device is not None:
                    torch.cuda.set_device(device)  # each thread has its own
                with np.errstate(all="ignore"):
                    box.append(("answer", self.one(*asked)))
            except BaseException as error:  # whatever it is, it is the answer
                box.append(("failed", (type(error).__name__, str(error))))

        thread = threading.Thread(target=work, daemon=True, name=LEFT_BEHIND)
        thread.start()
        until = time.monotonic() + self.limit
        while True:
            thread.join(LISTEN)
            every = [None] * self.size
            mine = box[0] if box else None, time.monotonic() > until
            try:
                self.dist.all_gather_object(every, mine, group=self.aside)
            except RuntimeError as error:
                raise RuntimeError("another rank has ended; torchrun says which, unless it ended with 0") from error
            answers = [answer for answer, _ in every]
            if None not in answers or any(late for _, late in every):  # known to all, so all stop now
                return answers
            if any(answer and answer[0] == "failed" for answer in answers):
                until = min(until, time.monotonic() + GRACE)


LEFT_BEHIND = "attnbook, a rank's function"
"""The name of a thread that cannot be ended."""
