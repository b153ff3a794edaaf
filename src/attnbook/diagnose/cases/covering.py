"""Rows of options in which every pair of options meets: far fewer than all combinations, and far more than each alone.

Most mistakes need one option or two of them at once. So a table that shows each pair sees them, and it grows with
the two largest factors, hardly with how many factors there are.
"""

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any


def cover(
    factors: dict[str, Sequence[Any]],
    strength: int = 2,
    triples: Collection[tuple[str, ...]] = (),
    forbids: Callable[[dict[str, Any]], bool] = lambda row: False,
) -> list[dict[str, Any]]:
    """Rows, each with one value of every factor, in which all allowed combinations of any ``strength`` factors occur.

    ``triples`` are names of factors that must meet in all their values, too: three of them, or any number.
    ``forbids(row)`` is true of what cannot be. It is asked about parts of rows, too: where a KeyError says it needs
    more than the part has, it is asked again later; and what it forbids of a part, it must forbid of the whole.
    A combination is allowed where some row that is not forbidden has it; the others are left out.

    The same call gives the same rows: greedily, a row begins with what has not been yet, and then takes factor by
    factor the value that adds most; of several orders of the factors, the best. Values may be of any kind.
    """
    names = list(factors)
    sets = [tuple(sorted(of, key=names.index)) for of in (*itertools.combinations(names, strength), *triples)]
    left = {(of, at): None for of in sets for at in itertools.product(*(range(len(factors[f])) for f in of))}
    mine = {f: [of for of in sets if f in of] for f in names}

    def fits(at):
        """Whether a part of a row, places of values by factor, is not forbidden as far as it goes."""
        try:
            return not forbids({f: factors[f][i] for f, i in at.items()})
        except KeyError:
            if len(at) == len(names):
                raise
            return True

    def completed(at):
        """Whether some allowed row has this part."""
        if not fits(at):
            return False
        f = next((f for f in names if f not in at), None)
        return f is None or any(completed(at | {f: i}) for i in range(len(factors[f])))

    def added(at, f):
        """How many new combinations a part has by its factor f."""
        return sum((of, tuple(at[g] for g in of)) in left for of in mine[f] if all(g in at for g in of))

    def filled(at, order):
        for f in order:
            if f not in at:
                fit = (at | {f: i} for i in range(len(factors[f])))
                at = max((row for row in fit if completed(row)), key=lambda row: added(row, f))
        return at

    def new(at):
        """The combinations that a whole row would be the first to have."""
        return [one for of in sets if (one := (of, tuple(at[f] for f in of))) in left]

    rows = []
    while left:
        of, place = next(iter(left))
        start = dict(zip(of, place, strict=True))
        if not completed(start):
            del left[of, place]
            continue
        orders = (names[i:] + names[:i] for i in range(len(names)))
        row = max((filled(start, order) for order in orders), key=lambda row: len(new(row)))
        for one in new(row):
            del left[one]
        rows.append({f: factors[f][row[f]] for f in names})
    return rows
