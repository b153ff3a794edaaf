"""What the workers of a backward add up: the gradients, in the order of the blocks."""

import threading

import numpy as np

from attnbook.arrays import narrow, unbroadcast
from attnbook.spines.operands import in_order, zero_dparams
from attnbook.spines.tiled import pieces


class InOrder:
    """Adds what the tasks give to shared arrays, in the order of the tasks, whichever is done first.

    Floating-point sums depend on their order; so the result is the same to the last bit with any number of workers.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._next, self._waiting = {}, {}

    def give(self, key, place, adds):
        """The pairs (where, what) that the task at ``place`` has to add to the arrays named ``key``; every task gives
        exactly once to each key.
        """
        with self._lock:
            self._waiting[key, place] = adds
            turn = self._next.get(key, 0)
            while (adds := self._waiting.pop((key, turn), None)) is not None:
                for where, what in adds:
                    where += what
                turn += 1
            self._next[key] = turn


class Sums:
    """dQ, dK, dV and the parameters' gradients, added up from the blocks in the order of the blocks: dQ a strip of rows
    at a time, so that what waits for its turn is small.
    """

    def __init__(self, work):
        blocks_of_keys = len(pieces(range(work.n_k), work.tiles.keys))
        # The blocks that add to the same place; where there is one alone, it may write there at once.
        writers = (("dQ", work.q, blocks_of_keys), ("dK", work.k, 1), ("dV", work.v, 1))
        self._alone, self.grads = {}, {}
        for name, T, n in writers:
            self._alone[name] = alone = T.shape[:-2] == work.lead and n <= 1
            self.grads[name] = (np.empty_like if alone else np.zeros_like)(T)  # and so with the memory layout of T
        self.dparams = zero_dparams(work.plan, work.q)
        self._work, self._order = work, InOrder()

    def place(self, name, block, places):
        """Where these rows of a gradient belong, and where the block writes them, over whatever is there: the same, if
        no other block adds to it.
        """
        T = self.grads[name]
        target = self._work.part(T, block.lead)[..., places.start : places.stop, :]
        if self._alone[name]:
            return target, target
        return target, np.empty((*map(len, block.lead), *target.shape[-2:]), T.dtype)

    def of_parameters(self, dparams, block):
        """As :meth:`place`, for gradients of parameters by the place of their op."""
        for place, dparam in dparams.items():
            total = self.dparams[place]
            at = block.index(total.shape, self._work.plan.ops[place].own_axes)
            yield total[(..., *at)], dparam  # a view, of a number alone too

    def give(self, key, place, pairs):
        """Take what the block at ``place`` has written for the places named ``key``."""
        adds = [(T, unbroadcast(dT, T.shape)) for T, dT in pairs if T is not dT]
        self._order.give(key, place, adds)

    def found(self, res):
        """dQ, dK, dV, and the gradients of the ops' parameters, all in the shapes and the dtype of the inputs."""
        like = zip(self.grads.values(), (res.Q, res.K, res.V), strict=True)
        return *(narrow(dT.reshape(T.shape), T.dtype) for dT, T in like), in_order(self.dparams, res)
