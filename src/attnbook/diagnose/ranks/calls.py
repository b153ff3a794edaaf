"""How a case is put to the ranks, and their answers together. Chapter: :doc:`/chapters/08_checking`."""

import numpy as np

from attnbook.diagnose.case import INPUTS
from attnbook.diagnose.learn.results import NAMES, Came
from attnbook.diagnose.learn.safely import sentence


class Calls:
    """Asks all ranks of a case; ``unread`` are sentences about messages that nobody received."""

    def __init__(self, one, backend):
        self.one, self.backend = one, backend
        self.unread, self._late, self._said = {}, 0, {}

    def __call__(self, case):
        """The :class:`attnbook.diagnose.learn.caller.Came` of this case; never an exception."""
        came = self.once(case) if self._late < 2 else Came("not run", "two cases took too long before it")
        self._late += came.kind == "too long"
        return came

    def once(self, case):
        """The same, however many took too long."""
        for option in (*case.options, *case.words):
            if not self.one.takes(option, by_name=option in case.words):
                return Came("not run", f"it does not take {option}")
        size = case.split.ranks
        pieces = [
            [case.split.piece(name, T, rank) for name, T in zip(INPUTS, case.inputs, strict=True)]
            for rank in range(size)
        ]
        options = [self._options(case, rank) for rank in range(size)]
        outcome = self.backend(pieces, case.dtype, options)
        if outcome is None:
            return Came("too long", f"no answer after {self.backend.limit:g} s{self.backend.silent}")
        self.unread |= dict.fromkeys(outcome.unread)
        if outcome.failed:
            rank, error = outcome.failed
            if case.optional or isinstance(error, NotImplementedError):
                return Came("not run", f"it raised {sentence(error)}")
            return Came(
                "raised", f"{sentence(error)}{_on(rank, size)}", inputs=self._rounded(case), options=case.options
            )
        if outcome.stuck:
            return Came("returned", self._first("stuck", f"deadlock: {outcome.stuck}"))
        return self._read(case, outcome.results)

    def _options(self, case, rank):
        n_q = case.inputs[0].shape[-2]
        given = {
            name: case.split.option(x, n_q, rank) if isinstance(x, np.ndarray) else x
            for name, x in case.options.items()
        }
        return given | case.words

    def _read(self, case, answers):
        split = case.split
        for rank, answer in enumerate(answers):
            if answer.values is None:
                return Came("returned", self._first(answer.text, answer.text + _on(rank, split.ranks)))
            for name, T, own in zip(NAMES, answer.values, self._own_shapes(case, rank), strict=True):
                if T.shape != own and case.optional and T.shape[-3:-2] == case.inputs[0].shape[-3:-2] != own[-3:-2]:
                    return Came("not run", f"it gives each query head a {name} of its own")
                if T.shape != own:
                    text = f"{name} has shape {T.shape}{_on(rank, split.ranks)}, expected {own}, that of its own rows"
                    return Came("returned", self._first(name, text))
        whole = {
            name: split.whole(name, [answer.values[i] for answer in answers], T)
            for i, (name, T) in enumerate(zip(NAMES, _like(case), strict=True))
        }
        dtypes = dict(zip(NAMES, answers[0].dtypes, strict=True))
        changed = tuple(name for name in INPUTS if any(name in answer.changed for answer in answers))
        return Came("values", "", whole, self._rounded(case), self._rounded_options(case), changed, dtypes)

    def _own_shapes(self, case, rank):
        pieces = {name: case.split.piece(name, T, rank) for name, T in zip(INPUTS, case.inputs, strict=True)}
        return [pieces[name].shape for name in ("dO", "Q", "K", "V")]

    def _rounded(self, case):
        return tuple(_rounded(T, case.dtype) for T in case.inputs)

    def _rounded_options(self, case):
        return {name: _rounded(x, case.dtype) if isinstance(x, np.ndarray) else x for name, x in case.options.items()}

    def _first(self, about, text):
        """The words in which this was said first: the same comes with other numbers in other cases."""
        return self._said.setdefault(about, text)


def _like(case):
    """Arrays as O, dQ, dK, dV are."""
    Q, K, V, dO = case.inputs
    return dO, Q, K, V


def _rounded(T, dtype):
    if T.dtype == bool or dtype == "float64":
        return T
    if dtype == "bfloat16":
        from attnbook.diagnose.ranks._rounded import cast

        return cast("bfloat16")(T)
    return T.astype(dtype).astype(np.float64)


def _on(rank, size):
    return f", on rank {rank} of {size}" if size > 1 else ""
