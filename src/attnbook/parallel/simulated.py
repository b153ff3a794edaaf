"""Ranks that take turns in one process, and the messages between them: every byte and every wait is counted.

No threads: so it runs in a page too, and every run is the same. Chapter: :doc:`/chapters/14_many_devices`.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from attnbook.arguments import check_shape
from attnbook.arrays import agree, array_namespace, device, expected, narrow, widen
from attnbook.ops import Op
from attnbook.parallel.call import plan_of
from attnbook.parallel.collectives import Exchange
from attnbook.parallel.placement import Placement, join, split
from attnbook.parallel.schemes import SCHEMES
from attnbook.parallel.score_blocks import Part, Places
from attnbook.types import AnyArray, Array, Corner

SchemeName: TypeAlias = Literal["ring", "gather", "heads", "tree"]
"""A way to run attention on several ranks."""

Network: TypeAlias = Callable[[int, int, int], int | None]
"""From sender, receiver and step of a message: how many turns it takes, None where it is lost."""


class Simulated(NamedTuple):
    """What :func:`~attnbook.parallel.simulated.simulate` gives: whole arrays, and what was counted."""

    O: Any
    """(..., n_q, d_v), like V."""
    L: Any
    """(..., n_q), in the accumulation dtype."""
    dQ: Any
    """Like Q; None without dO, as are the other gradients."""
    dK: Any
    """Like K."""
    dV: Any
    """Like V."""
    dops: tuple[Any, ...] | None
    """One entry for each of ``ops``: the gradient of its parameter, None for an op with no parameter."""
    traffic: Any
    """(2, ranks, steps), integers: the bytes that a rank sends in a step of the forward, and of the backward."""
    work: Any
    """(ranks, steps), integers: the scores that a rank computes in a step of the forward."""
    waits: Any
    """(2, ranks), integers: for how many turns a rank had to wait, in the forward and in the backward."""


def simulate(
    scheme: SchemeName,
    Q: Array,
    K: Array,
    V: Array,
    *,
    ranks: int,
    dO: Array | None = None,
    dL: AnyArray | None = None,
    placement: Placement = "contiguous",
    mask: AnyArray | None = None,
    causal: bool | Corner = False,
    scale: float | None = None,
    ops: Sequence[Op] = (),
    method: Literal["auto", "dense", "tiled"] = "auto",
    network: Network | None = None,
) -> Simulated:
    """Run attention, and its backward where dO is given, as ``ranks`` ranks do it together: in one process.

    .. math::
       O = P\\,V \\qquad P = \\operatorname{softmax}(S) \\qquad S = \\text{scale}\\cdot Q K^{\\mathsf T}

    Equation :eq:`def-attention`, from blocks that are merged by :eq:`eq-merge`. These are the lines that
    :func:`~attnbook.parallel.attention.ring_attention` and its like run on torch.distributed, and all results are
    those of :func:`~attnbook.attention.attention`, but for rounding.

    Parameters
    ----------
    scheme : "ring", "gather", "heads" or "tree"
        "ring": keys and values go around, and each rank meets them with its own queries. "gather": every rank gets all
        of them. "heads": each rank gets all rows of some heads. "tree": all ranks have all queries, as in decoding, and
        their own keys.
    Q : array (..., n_q, d_k)
        The whole, as are K and V: they are dealt out here.
    K : array (..., n_k, d_k)
        Leading axes are those of Q, but for fewer heads, whose number divides Q's.
    V : array (..., n_k, d_v)
    ranks : int
        It need divide neither rows nor heads.
    dO, dL : arrays like O and L, optional
        The gradients that arrive.
    placement : "contiguous", "zigzag" or "striped"
        Who has which rows; see :func:`~attnbook.parallel.placement.positions`.
    mask, causal, scale, ops
        As for attention, of the whole table.
    method : "auto", "tiled" or "dense"
        What runs each block: tile by tile, as "auto" does, or at once. No method keeps P.
    network : function of (source, to, step), optional
        How many turns a message takes, None where it is lost. By default it is there at once.

    Returns
    -------
    Simulated

    Raises
    ------
    TypeError, ValueError
        An argument that does not fit.
    RuntimeError
        A rank waits for a message that was lost: which rank, for whom, and at which step.

    Examples
    --------
    >>> import numpy as np
    >>> import attnbook as ab
    >>> from attnbook.parallel import simulate
    >>> Q, K, V = np.random.default_rng(0).standard_normal((3, 8, 16, 4))  # 8 heads, 16 rows
    >>> ring = simulate("ring", Q, K, V, ranks=4, causal=True, placement="zigzag")
    >>> bool(np.allclose(ring.O, ab.attention(Q, K, V, causal=True)[0]))
    True
    >>> ring.work.sum(axis=1).tolist()
    [272, 272, 272, 272]
    """
    if scheme not in SCHEMES:
        raise ValueError(expected("scheme", "one of " + ", ".join(map(repr, SCHEMES)), repr(scheme)))
    if not (network is None or callable(network)):
        raise TypeError(expected("network", "a function of (source, to, step), or None", repr(network)))
    lines = SCHEMES[scheme]
    plan, n_ops = plan_of(scheme, Q, K, V, placement, mask=mask, causal=causal, scale=scale, ops=ops, method=method)
    check_arrived(plan, Q, dO, dL)
    n_q, n_k = plan.shape[-2:]
    places = Places.of(n_q, n_k, ranks, placement)
    if lines.same_queries:
        places = places._replace(queries=[[range(n_q)]] * ranks)
    parts = [Part(plan, places, r) for r in range(ranks)]

    def dealt(T: Any, rows: bool, axis: int = -2) -> list[Any]:
        if T is None or (lines.same_queries and rows):
            return [T] * ranks
        return split(T, ranks, placement, axis)

    def whole(arrays: Any, rows: bool = True, axis: int = -2) -> Any:
        return arrays[0] if lines.same_queries and rows else join(arrays, placement, axis)

    given = zip(dealt(Q, True), dealt(K, False), dealt(V, False), strict=True)
    world = World(ranks, network, f"{scheme}, forward")
    O, L, saved = zip(
        *world.run([lines.forward(part, *mine) for part, mine in zip(parts, given, strict=True)]), strict=True
    )
    worlds, grads, dops = [world], (None,) * 3, None
    like, work = array_namespace(Q).zeros(0, device=device(Q)), Counter()
    for r, part in enumerate(parts):
        for step, by, keys in part.met:
            work[r, step] += by.scores(keys, like)
    if dO is not None:
        worlds.append(World(ranks, network, f"{scheme}, backward"))
        arrived = zip(dealt(widen(dO), True), dealt(dL, True, -1), strict=True)
        found = worlds[1].run([lines.backward(*each, *d) for *each, d in zip(parts, saved, arrived, strict=True)])
        of_rows = zip(zip(*found, strict=True), (True, False, False), strict=True)
        grads = tuple(narrow(whole(arrays, rows), Q.dtype) for arrays, rows in of_rows)
        sums = zip(*(part.in_order() for part in parts), strict=True)
        dops = tuple(None if each[0] is None else narrow(sum(each), Q.dtype) for each in sums)[:n_ops]
    sent = Counter({(i, *at): n for i, w in enumerate(worlds) for at, n in w.bytes.items()})
    waits = Counter({(i, r): n for i, w in enumerate(worlds) for r, n in w.waits.items()})
    counts = _table(sent, (2, ranks)), _table(work, (ranks,)), _table(waits, (2,), ranks)
    return Simulated(narrow(whole(O), Q.dtype), whole(L, axis=-1), *grads, dops, *counts)


def _table(counts: Any, shape: Any, steps: Any = None) -> Any:
    """What was counted, by place."""
    steps = 1 + max((at[-1] for at in counts), default=0) if steps is None else steps
    found = np.zeros((*shape, steps), np.int64)
    for at, n in counts.items():
        found[at] = n
    return found


def check_arrived(plan: Any, Q: Any, dO: Any, dL: Any) -> None:
    """An error, where the gradients that arrive do not fit."""
    agree({"dO": dO}, Q=Q)
    if dO is None and dL is not None:
        raise ValueError(expected("dL", "None without dO", "an array"))
    if dO is not None:
        check_shape("dO", dO, (*plan.shape[:-1], plan.widths[1]))
    if dL is not None:
        agree(**{"Q, widened": widen(Q), "dL": dL})
        check_shape("dL", dL, plan.shape[:-1])


class World:
    """The ranks, whose turn it is, and what is on its way."""

    def __init__(self, ranks, network=None, name=""):
        self.ranks, self.network, self.name = ranks, network or (lambda source, to, step: 0), name
        self.turn, self.air = 0, {}  # (source, to, number): the turn from which on it is there, and the arrays
        self.sent, self.asked = Counter(), Counter()  # messages between two ranks, so far
        self.bytes, self.waits, self.lost = Counter(), Counter(), []

    def run(self, lines):
        """What each rank's lines return."""
        results, alive = [None] * self.ranks, dict(enumerate(lines))
        answers, waiting = dict.fromkeys(alive), {}
        while alive:
            moved = False
            for r in list(alive):
                while r in alive:
                    if r in waiting:
                        if not self._here(waiting[r]):
                            self.waits[r] += 1
                            break
                        answers[r] = [self.air.pop(key)[1] for key in waiting.pop(r)[1]]
                    moved = True
                    try:
                        asked = alive[r].send(answers[r])
                    except StopIteration as done:
                        results[r] = done.value
                        del alive[r]
                        break
                    if isinstance(asked, Exchange):
                        answers[r] = self._post(r, asked)
                    else:
                        waiting[r] = asked.handle
            self.turn += 1
            if not moved and not any(ready >= self.turn for ready, _ in self.air.values()):
                raise RuntimeError(f"{self.name}: {self._stuck(waiting)}")
        return results

    def _post(self, rank, asked):
        for to, arrays in asked.sends:
            key = rank, to, self.sent[rank, to]
            self.sent[rank, to] += 1
            self.bytes[rank, asked.step] += sum(map(nbytes, arrays))
            delay = self.network(rank, to, asked.step)
            if not (delay is None or (isinstance(delay, int | np.integer) and delay >= 0)):
                raise ValueError(expected("network", "a function that returns turns, 0 or more, or None", repr(delay)))
            if delay is not None:
                self.air[key] = self.turn + delay, [array_namespace(T).asarray(T, copy=True) for T in arrays]
        keys = []
        for source, _ in asked.receives:
            keys.append((source, rank, self.asked[source, rank]))
            self.asked[source, rank] += 1
        return asked.step, keys

    def _here(self, handle):
        return all(key in self.air and self.air[key][0] <= self.turn for key in handle[1])

    def _stuck(self, waiting):
        """Who waits for whom, in words."""
        return ", ".join(
            f"rank {r} waits at step {step} for rank {' and '.join(str(key[0]) for key in keys if key not in self.air)}"
            for r, (step, keys) in sorted(waiting.items())
        )


def nbytes(T):
    """The bytes of its numbers."""
    return math.prod(T.shape) * array_namespace(T).finfo(T.dtype).bits // 8
