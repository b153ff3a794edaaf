"""The five collectives, each a few messages: all that a transport has to do is to :class:`Exchange` these.

Lines that a rank runs are a generator: it yields an :class:`Exchange`, and gets back a handle, and later a
:class:`Wait` for that, and gets what arrived. So the same lines run under any transport: ranks that take turns in one
process (:mod:`attnbook.parallel.simulated`), or torch.distributed (:mod:`attnbook.parallel.over_torch`). Lengths differ
from rank to rank as they like: nothing is padded. Chapter: :doc:`/chapters/14_many_devices`.
"""

from functools import reduce
from typing import NamedTuple


class Exchange(NamedTuple):
    """Messages of one step: ``sends`` are pairs, a rank and a list of arrays for it; ``receives``, a rank and for each
    array from it a pair, its shape and an array of its dtype, library and device.
    """

    step: int
    sends: list
    receives: list


class Wait(NamedTuple):
    """Until all has arrived that a handle stands for: a list of arrays for each of its ``receives``."""

    handle: object


def shift(step, to=None, arrays=(), source=None, likes=()):
    """Send to one rank, and look forward to what another one sends; None is nobody. A handle, for :func:`arrived`."""
    sends = [] if to is None else [(to, arrays)]
    receives = [] if source is None else [(source, likes)]
    return (yield Exchange(step, sends, receives)) if sends or receives else None


def arrived(handle):
    """What came by a shift, once it is there; None where nothing was to come."""
    came = [] if handle is None else (yield Wait(handle))
    return came[0] if came else None


def all_to_all(rank, step, parts, likes):
    """[what each rank gave for this one], from ``parts``, one for each rank."""
    others = [r for r in range(len(parts)) if r != rank]
    handle = yield Exchange(step, [(r, parts[r]) for r in others], [(r, likes[r]) for r in others])
    came = iter((yield Wait(handle)))
    return [parts[rank] if r == rank else next(came) for r in range(len(parts))]


def all_gather(rank, step, mine, likes):
    """[what each rank has]."""
    return (yield from all_to_all(rank, step, [mine] * len(likes), likes))


def reduce_scatter(rank, step, parts):
    """The sum over all ranks of ``parts[rank]``, in the order of the ranks: the transpose of :func:`all_gather`."""
    came = yield from all_to_all(rank, step, parts, [likes_of(parts[rank])] * len(parts))
    return [reduce(lambda a, b: a + b, arrays) for arrays in zip(*came, strict=True)]


def all_reduce(rank, ranks, step, arrays, join):
    """``join`` of the arrays of all ranks, the same bits on each: up a tree to rank 0 and down again, 2 log₂ steps."""
    reaches, likes = [2**i for i in range((ranks - 1).bit_length())], likes_of(arrays)
    for up, reach in [*((True, reach) for reach in reaches), *((False, reach) for reach in reversed(reaches))]:
        lower, upper = rank % (2 * reach) == 0 and rank + reach < ranks, rank % (2 * reach) == reach
        if upper if up else lower:
            yield from arrived((yield from shift(step, rank - reach if up else rank + reach, arrays)))
        elif lower if up else upper:
            source = rank + reach if up else rank - reach
            came = yield from arrived((yield from shift(step, source=source, likes=likes)))
            arrays = join(arrays, came) if up else came
        step += 1
    return arrays


def likes_of(arrays):
    """What receives arrays like these."""
    return [(tuple(T.shape), T) for T in arrays]
