"""A function that several ranks run, each on its piece, and how it is called. Chapter: :doc:`/chapters/08_checking`."""

from collections.abc import Sequence
from typing import Any, Literal

from attnbook.arrays import expected

SPLITS = ("rows", "zigzag", "heads")
BACKENDS = ("threads", "gloo", "group")


class Ranks:
    """An attention that several ranks compute together, for :func:`attnbook.diagnose`.

    Parameters
    ----------
    fn : callable, or pair of callables
        What one rank runs, on its rows: ``fn(Q, K, V, dO, comm, **options) -> (O, dQ, dK, dV)``; or a forward
        ``(Q, K, V, comm, **options) -> (O, residuals)`` and its ``backward(dO, residuals, comm)``; or, with
        ``library="torch"``, ``fn(Q, K, V, comm, **options) -> O``, whose backward is autograd's. ``comm`` is a
        :class:`attnbook.diagnose.ranks.comm.Comm`; with the other backends there is none, and fn uses
        torch.distributed. Options: causal, scale, mask and bias, (..., own rows, all keys), and sink, (heads,). A
        function with an argument ``lengths`` is also asked with pieces of these unequal lengths; one with ``n`` with
        equal pieces, of which the rows from n on are padding, and hold anything.
    split : "rows", "zigzag" or "heads"
        What a rank has: rows that follow each other; the chunks r and 2R − 1 − r of 2R; all rows of its own heads.
    ranks : tuple of numbers, or one
        The numbers of ranks to run. With two, many mistakes look alike.
    backend : "threads", "gloo" or "group"
        Ranks simulated in this process, which run alike every time; processes of their own; or those of the
        group that torch.distributed has, all of which call ``diagnose`` with the same: ``ranks`` is their number.

    Raises
    ------
    TypeError, ValueError
        An argument of the wrong kind.

    Notes
    -----
    Chapter: :doc:`/chapters/08_checking`.

    Examples
    --------
    >>> import numpy as np
    >>> import attnbook as ab
    >>> from attnbook.diagnose import Ranks
    >>> def gathered(Q, K, V, dO, comm):
    ...     K, V = (np.concatenate(comm.all_gather(T), axis=-2) for T in (K, V))
    ...     O, res = ab.attention(Q, K, V)
    ...     dQ, dK, dV = ab.attention_vjp(dO, res)[:3]
    ...     return O, dQ, *(comm.reduce_scatter(np.split(T, comm.size, axis=-2)) for T in (dK, dV))
    >>> ab.diagnose(Ranks(gathered, ranks=(1, 2))).ok
    True
    """

    def __init__(
        self,
        fn: Any,
        split: Literal["rows", "zigzag", "heads"] = "rows",
        *,
        ranks: int | Sequence[int] = (1, 2, 3, 4),
        backend: Literal["threads", "gloo", "group"] = "threads",
    ) -> None:
        pair = isinstance(fn, tuple | list)
        if not (callable(fn) or (pair and len(fn) == 2 and all(map(callable, fn)))):
            raise TypeError(expected("fn", "a function or a pair of functions", type(fn).__name__))
        for name, value, among in (("split", split, SPLITS), ("backend", backend, BACKENDS)):
            if value not in among:
                raise ValueError(expected(name, "one of " + ", ".join(map(repr, among)), repr(value)))
        self.ranks = tuple(ranks) if isinstance(ranks, tuple | list | range) else (ranks,)
        if not self.ranks or not all(type(r) is int and 1 <= r <= 16 for r in self.ranks):
            raise ValueError(expected("ranks", "numbers from 1 to 16", repr(ranks)))
        self.fn, self.split, self.backend = fn, split, backend

    def runs(
        self, library: str = "numpy", dtype: str = "float64", limit: float = 30.0, seed: int = 0
    ) -> tuple[Any, Any]:
        """(the runs of all cases, notes): what ``diagnose`` reports on."""
        from attnbook.diagnose.ranks.ask import runs_of  # what few need is not loaded by all

        return runs_of(self, library, dtype, limit, seed)
