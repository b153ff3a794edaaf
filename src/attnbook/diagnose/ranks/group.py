"""Ranks that are there already, as torchrun started them: each runs the same cases, and hears what the others got.

Chapter: :doc:`/chapters/08_checking`.
"""

from datetime import timedelta

from attnbook.arrays import expected
from attnbook.diagnose.ranks.comm import Outcome
from attnbook.diagnose.ranks.processes import _error, _of_a_peer


class Group:
    """All processes of the default group of torch.distributed; as a context, like the other backends."""

    silent = ""

    def __init__(self, one, limit):
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                expected("backend", "torch.distributed after init_process_group, as by torchrun", "none")
            )
        self.one, self.limit, self.dist, self.broken = one, limit, dist, None
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
        stays it.
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
        outcome = Outcome([], (first, _error(*every[first][1])), "", ())
        left = len(failed) < self.size or any(_of_a_peer(every[r]) for r in failed)
        self.broken = outcome if left else None
        return outcome
