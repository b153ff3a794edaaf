"""What the arrays tell of a mistake over several ranks that has no name. Chapter: :doc:`/chapters/08_checking`."""

from itertools import product

import numpy as np

from attnbook.diagnose.causes.likely import FEATURES as OF_ONE
from attnbook.diagnose.causes.likely import in_common
from attnbook.diagnose.causes.match import cost, right_in
from attnbook.diagnose.ranks._parts import near, of_parts

_RANKS = {
    "on more than one rank": lambda run: run.case.split.ranks > 1,
    "on more than two ranks": lambda run: run.case.split.ranks > 2,
    "on a number of ranks that is no power of 2": lambda run: run.case.split.ranks.bit_count() > 1,
}
_OTHERS = {
    words: OF_ONE[words]
    for words in (
        "with causal", "with mask", "with bias", "with scale", "with sink", "where query heads share a key head",
        "with more keys than queries", "in 16 bits",
    )
} | {
    "with large scores": lambda run: run.name.startswith("large scores"),
    "in float32": lambda run: run.case.dtype == "float32",
    "with pieces of unequal lengths": lambda run: "lengths" in run.case.words,
    "with padding": lambda run: bool(run.case.split.padding),
}  # fmt: skip
FEATURES = (
    _RANKS
    | _OTHERS
    | {
        f"{other} {ranks}": lambda run, other=other, ranks=ranks: _OTHERS[other](run) and _RANKS[ranks](run)
        for other, ranks in product(_OTHERS, _RANKS)
    }
)
"""What cases may have in common, in words, and whether one has it."""

PARTS = {
    "wrong on rank 0 alone": lambda R: [0],
    "wrong on the last rank alone": lambda R: [R - 1],
    "wrong on every rank but rank 0": lambda R: list(range(1, R)),
    "wrong on every rank but the last": lambda R: list(range(R - 1)),
}
"""The ranks that may be wrong, in words."""

FACTORS = {
    "the number of ranks": lambda R, r: R,
    "1 over the number of ranks": lambda R, r: 1 / R,
    "the number of ranks less 1": lambda R, r: R - 1,
    "the square of the number of ranks": lambda R, r: R * R,
    "the root of the number of ranks": lambda R, r: R**0.5,
    "1 over the root of the number of ranks": lambda R, r: R**-0.5,
    "the rank's number plus 1": lambda R, r: r + 1,
    "0": lambda R, r: 0,
    "2": lambda R, r: 2,
    "1/2": lambda R, r: 0.5,
    "-1": lambda R, r: -1,
}
"""What a factor may be, in words, for R ranks, on rank r."""


def likely(name, where, runs):
    """What is known of a wrong result, a line each, or ""."""
    said = [in_common(name, runs, FEATURES), _on_ranks(name, where), _from_another(name, where)]
    usable = [run for run in where if _usable(name, run)]
    if usable:
        most = max(run.case.split.ranks for run in usable)
        run = min((run for run in usable if run.case.split.ranks == most), key=_simple_first)
        said.append(_another_rank(name, run) or _factor(name, usable) or of_parts(name, run))
    return "\n".join(filter(None, said))


def _simple_first(run):
    return bool(run.case.words), cost(run)


def _usable(name, run):
    came = run.came.values[name]
    return came.shape == run.right[name].shape and np.isfinite(came).all() and np.isfinite(run.right[name]).all()


def _on_ranks(name, where):
    """Which ranks are wrong, where not all are: as a rule, or else in the simplest case on the most ranks."""
    wrong = [(run, run.wrong_ranks(name)) for run in where if run.case.split.ranks > 1]
    some = [(run, ranks) for run, ranks in wrong if len(ranks) < run.case.split.ranks]
    if not some:
        return ""
    for words, of in PARTS.items():
        if all(ranks == of(run.case.split.ranks) for run, ranks in wrong):
            return words
    run, ranks = min(some, key=lambda each: (-each[0].case.split.ranks, *_simple_first(each[0])))
    right = [rank for rank in range(run.case.split.ranks) if rank not in ranks]
    return f'in "{run.name}" wrong on {_numbers(ranks)}, right on {_numbers(right)}'


def _numbers(ranks):
    return f"rank{'s' if ranks[1:] else ''} {', '.join(map(str, ranks))}"


def _from_another(name, where):
    """What another result that is right there shows of this one."""
    other, words = {
        "dQ": ("dK", "the product with K, or the sum over the hops"),
        "dK": ("dQ", "the product with Q, or the way home"),
    }.get(name, ("", ""))
    if not other or not all(right_in(run, other) for run in where):
        return ""
    return f"{other} is right there, so dS is: {words}, is the likeliest"


def _another_rank(name, run):
    """Whether a wrong part is the right one of another rank."""
    split, came, right = run.case.split, run.came.values[name], run.right[name]
    found = {}
    for rank in run.wrong_ranks(name):
        part, own = (split.owned(name, T, rank) for T in (came, right))
        for other in range(split.ranks):
            wanted = split.owned(name, right, other)
            if other != rank and part.shape == wanted.shape and near(name, run, part - wanted, part - own):
                found[rank] = other
    shifts = {(other - rank) % split.ranks for rank, other in found.items()}
    if len(found) == split.ranks > 2 and shifts in ({1}, {split.ranks - 1}):
        return f'in "{run.name}" each rank has the right part of the rank {"after" if shifts == {1} else "before"} it'
    each = ", ".join(f"rank {rank} has the right part of rank {other}" for rank, other in found.items())
    return f'in "{run.name}" {each}' if found else ""


def _factor(name, where):
    """The factor that all wrong parts are off by, as a rule, or in the first case."""
    factors = {}
    for run in where:
        for rank in run.wrong_ranks(name):
            part, right = (run.case.split.owned(name, T[name], rank) for T in (run.came.values, run.right))
            size = np.sum(right * right)
            factor = np.sum(part * right) / size if size else 0.0
            if not near(name, run, part - factor * right, part - right):
                return ""
            factors[run, rank] = factor
    for words, of in FACTORS.items():
        if all(abs(f - of(run.case.split.ranks, rank)) <= 0.01 * abs(f - 1) for (run, rank), f in factors.items()):
            return f"right but for a factor: {words}"
    first = {rank: f"{f:.4g}" for (run, rank), f in factors.items() if run is where[0]}
    if len({f"{f:.4g}" for f in factors.values()}) == 1:
        return f"right but for a factor: {first.popitem()[1]}"
    return f'right but for a factor: in "{where[0].name}" {", ".join(f"{f} on rank {r}" for r, f in first.items())}'
