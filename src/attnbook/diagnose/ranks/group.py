"""Ranks that are there already, as torchrun started them: each runs the same cases, and hears what the others got.

Chapter: :doc:`/chapters/08_checking`.
"""

from datetime import timedelta

from attnbook.arrays import expected
from attnbook.diagnose.ranks.comm import Outcome
from attnbook.diagnose.ranks.processes import _error, _of_a_peer
from attnbook.diagnose.safely import sentence


class Group:
    """All processes of the default group of torch.distributed; as a context, like the other backends."""

    silent = ""

    def __init__(self, one, limit):
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                expected("backend", "torch.distributed after init_process_group, as by torchrun", "none")
            )
        self.one, self.limit, self.dist = one, limit, dist
        self.before, self.broken = None, None
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        one.device = "cuda" if "nccl" in dist.get_backend() else "cpu"
        # Of its own: a message that the function left behind must not be taken for an answer.
        self.aside = dist.new_group(backend="gloo", timeout=timedelta(seconds=limit + 60))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.dist.destroy_process_group(self.aside)

    def __call__(self, pieces, dtype, options):
        """The outcome of each rank's call. Where only some failed, or some waited in vain, messages may be left: that
        stays it. Where all failed by themselves, what they had sent may be left too: a later wait in vain says so.
        """
        if len(pieces) != self.size:
            raise ValueError(expected("ranks", f"{self.size}, those of the group", len(pieces)))
        if self.broken:
            return self.broken
        try:
            mine = "answer", self.one(pieces[self.rank], dtype, options[self.rank])
        except Exception as error:  # whatever it is, it is the answer
            mine = "failed", (type(error).__name__, str(error))
        every = [None] * self.size
        self.dist.all_gather_object(every, mine, group=self.aside)
        failed = [r for r, (kind, _) in enumerate(every) if kind == "failed"]
        if not failed:
            return Outcome([answer for _, answer in every], None, "", ())
        first = min(failed, key=lambda r: _of_a_peer(every[r]))  # not one that only waited for it
        name, text = every[first][1]
        if len(failed) < self.size or any(_of_a_peer(every[r]) for r in failed):
            self.broken = Outcome([], (first, _error(name, (self.before or "") + text)), "", ())
            return self.broken
        error = _error(name, text)
        if not isinstance(error, NotImplementedError):
            self.before = self.before or f"before this, every rank raised {sentence(error)}; then: "
        return Outcome([], (first, error), "", ())
