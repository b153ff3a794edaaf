"""All cases put to the ranks of a :class:`attnbook.diagnose.Ranks`. Chapter: :doc:`/chapters/08_checking`."""

from attnbook.arrays import expected, whole
from attnbook.checks.tolerances import DIAGNOSE
from attnbook.diagnose.learn.safely import within
from attnbook.diagnose.ranks.calls import Calls
from attnbook.diagnose.ranks.comm import simulate
from attnbook.diagnose.ranks.group import Group
from attnbook.diagnose.ranks.one import OneRank
from attnbook.diagnose.ranks.processes import Processes
from attnbook.diagnose.ranks.ranks_run import RanksRun
from attnbook.diagnose.ranks.splits import cases

LIBRARIES = ("numpy", "torch")


def runs_of(ranks, library="numpy", dtype="float64", limit=30.0, seed=0):
    """(the runs of all cases, notes): what ``diagnose`` reports on."""
    simulated = ranks.backend == "threads"
    library = library if simulated else "torch"
    _check(library, dtype, limit, seed)
    one = OneRank(ranks.fn, library, simulated)
    with {"threads": _Threads, "gloo": Processes, "group": Group}[ranks.backend](one, limit) as backend:
        calls = Calls(one, backend)
        axes = _axes(ranks, calls, dtype, seed)
        runs = [RanksRun(case, calls(case)) for case in cases(ranks.split, ranks.ranks, axes, seed, dtype)]
    notes = [] if axes == 4 else [f"four axes are not taken: {axes} were handed over"]
    return runs, (*notes, *calls.unread)


def _axes(ranks, calls, dtype, seed):
    """The most axes with which the first case gives values; else four."""
    for axes in (4, 3) if ranks.split == "heads" else (4, 3, 2):
        case = cases(ranks.split, ranks.ranks[:1], axes, seed, dtype)[0]
        if RanksRun(case, calls.once(case)).compared:
            return axes
    return 4


def _check(library, dtype, limit, seed):
    if library not in LIBRARIES:
        raise ValueError(expected("library", "'numpy' or 'torch' for ranks", repr(library)))
    if dtype not in DIAGNOSE or (dtype == "bfloat16" and library == "numpy"):
        raise ValueError(expected("dtype", "one of " + ", ".join(map(repr, DIAGNOSE)) + " (torch only)", repr(dtype)))
    whole("seed", seed, 0, "an integer of at least 0")
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0:
        raise ValueError(expected("limit", "a number of seconds above 0", repr(limit)))


class _Threads:
    """Ranks simulated in this process."""

    silent = ""

    def __init__(self, one, limit):
        self.one, self.limit = one, limit

    def __enter__(self):
        return self

    def __exit__(self, *error):
        """Nothing is left behind."""

    def __call__(self, pieces, dtype, options):
        """The outcome of each rank's call; None where it takes too long."""

        def work(comm):
            return self.one(pieces[comm.rank], dtype, options[comm.rank], comm)

        kind, outcome = within(self.limit, simulate, len(pieces), work)
        if kind == "raised":
            raise outcome
        return None if kind == "too long" else outcome
