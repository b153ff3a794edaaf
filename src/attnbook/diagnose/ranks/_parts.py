"""Which parts a wrong result is the sum of, each for the queries of one rank and the keys of another.

Chapter: :doc:`/chapters/08_checking`.
"""

import numpy as np

from attnbook.checks.tolerances import DIAGNOSE
from attnbook.diagnose.cases.run import EPS, largest
from attnbook.diagnose.causes.match import precision
from attnbook.diagnose.ranks._rounded import _block
from attnbook.diagnose.ranks.over_ranks import OverRanks
from attnbook.diagnose.steps import mT

INPUT = {"O": "V", "dQ": "K", "dK": "Q", "dV": "dO"}
"""What each result is a product with."""


def near(name, run, off, error):
    """Whether what is left is of the size of roundings, and at most a tenth of the error that it is left of."""
    dtype = precision(run, name)
    return largest(off) <= min(10 * DIAGNOSE[dtype] * EPS[dtype] * run.sizes[name], 0.1 * largest(error))


def of_parts(name, run):
    """A sentence on how often each part is in the result, where that alone explains it; or ""."""
    split = run.case.split
    if len(split.queries) == 1:
        return ""
    a = OverRanks(*run.came.inputs, **run.came.options)
    a.split = split
    with np.errstate(all="ignore"):
        for tried in (_counted, _renormalized, _elsewhere):
            found = [(rank, tried(name, run, a, rank)) for rank in run.wrong_ranks(name)]
            if found and all(times for _, times in found):
                return _in_words(name, run, found, tried is _renormalized)
    return ""


def _part(name, a, r, s, of=None):
    """What the queries of r and the keys of s give to a result, or would with the rows of rank ``of``."""
    if name in ("O", "dQ"):
        table, left = (a.weights, a.v) if name == "O" else (a.dQ_scale * a.dS, a.k)
        return _block(a, table, r, s) @ left[..., a.split.keys[s if of is None else of], :]
    table, left = (a.dK_scale * a.dS, a.Q) if name == "dK" else (a.P_backward, a.dO)
    return a.gather(mT(_block(a, table, r, s)) @ left[..., a.split.queries[r if of is None else of], :])


def _came(name, run, rank):
    return (run.case.split.owned(name, T[name], rank) for T in (run.came.values, run.right))


def _solved(name, run, rank, parts):
    """{part: how often it is in the result}, of those that are not 0, where whole numbers alone explain it."""
    came, right = _came(name, run, rank)
    parts = {key: T for key, T in parts.items() if T.shape == came.shape and T.any()}
    if not parts:
        return {}
    table = np.stack([T.ravel() for T in parts.values()], axis=-1)
    times = np.round(np.linalg.lstsq(table, came.ravel(), rcond=None)[0])
    if not near(name, run, (table @ times).reshape(came.shape) - came, came - right):
        return {}
    return dict(zip(parts, times.astype(int).tolist(), strict=True))


def _pair(name, rank, other):
    """(rank of the queries, rank of the keys), for a result that ``rank`` has."""
    return (rank, other) if name in ("O", "dQ") else (other, rank)


def _counted(name, run, a, rank):
    """How often each other rank's part is there."""
    parts = {(other, other): _part(name, a, *_pair(name, rank, other)) for other in range(a.B)}
    return _solved(name, run, rank, parts)


def _renormalized(name, run, a, rank):
    """The same for O, where the weights sum to 1 all the same: the counts are what makes Σ count · w (O_s − O) zero."""
    if name != "O" or a.sink is not None:
        return {}
    came, right = _came(name, run, rank)
    parts = {}
    for s in range(a.B):
        weights = _block(a, a.weights, rank, s).sum(axis=-1, keepdims=True)
        if weights.any():
            parts[s, s] = (_part(name, a, rank, s), weights)
    if len(parts) < 2:
        return {}
    table = np.stack([(T - weights * came).ravel() for T, weights in parts.values()], axis=-1)
    times = np.linalg.svd(table)[2][-1]
    times = np.round(times / min(abs(n) for n in times if abs(n) > 0.1 * np.max(np.abs(times)))) * np.sign(times.sum())
    whole, sums = (sum(n * each for n, each in zip(times, of, strict=True)) for of in zip(*parts.values(), strict=True))
    if not near(name, run, whole / sums - came, came - right):
        return {}
    return dict(zip(parts, times.astype(int).tolist(), strict=True))


def _elsewhere(name, run, a, rank):
    """How often each table is there with the rows of each rank; or each part that was meant for another rank."""
    several = range(a.B)
    rows = {(s, of): _part(name, a, *_pair(name, rank, s), of) for s in several for of in several if _fits(a, s, of)}
    found = _solved(name, run, rank, rows)
    if found or name in ("O", "dQ"):
        return found
    home = {(r, s, "home"): _part(name, a, r, s) for r in several for s in several}
    return _solved(name, run, rank, home)


def _fits(a, s, of):
    return len(a.split.keys[s]) == len(a.split.keys[of]) and len(a.split.queries[s]) == len(a.split.queries[of])


# --- words


def _in_words(name, run, found, sums):
    """The same for all wrong ranks, where it is, or what is so on the first."""
    size = run.case.split.ranks
    told = {_told(name, rank, times, size) for rank, times in found}
    if len(told) == 1 and len(found) > 1:
        said = f"each{' wrong' * (len(found) < size)} rank {told.pop()}"
    else:
        (rank, times), *_ = found
        said = f"rank {rank} {_told(name, rank, times)}"
    return f'as if, in "{run.name}", {said}{", with weights that sum to 1 all the same" if sums else ""}'


def _whose(thing, rank, of, size):
    """Whose it is: by number, or as a rank sees it that knows how many there are."""
    if size is None:
        return f"the {thing} of rank {of}"
    before = (rank - of) % size
    if not before:
        return f"its own {thing}"
    if size == 2:
        return f"the {thing} of the other rank"
    after = size - before
    return f"the {thing} of the rank {'before' if before == 1 else 'after' if after == 1 else f'{before} before'} it"


def _told(name, rank, times, size=None):
    """What it lacks, and what it has too often; what has the rows of another rank is not said to lack its own."""
    things = "keys" if name in ("O", "dQ") else "queries"
    order = sorted(times, key=lambda key: [(rank - r) % size if size else r for r in key[:2]])
    lacks, has = [], []
    for other, of, *home in order:
        n = times[other, of, *home]
        meant = of == (rank if home else other)
        elsewhere = not home and any(m == 1 for (table, rows), m in times.items() if table == other != rows)
        if n == meant or (not n and elsewhere):
            continue
        words = f"the part of {_whose(things, rank, other, size)}"
        if home:
            words += f" for {_whose('keys', rank, of, size)}"
        elif other != of:
            words += f" with {_whose(INPUT[name], rank, of, size)}"
        (has if n else lacks).append(f"{words} {n} times" if n not in (0, 1) else words)
    listed = (("lacked", lacks), ("had", has))
    return ", and ".join(f"{verb} {' and '.join(each[:3])}{' …' * (len(each) > 3)}" for verb, each in listed if each)
