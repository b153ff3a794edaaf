"""Points for what is right, from a TOML file. Chapter: :doc:`/chapters/08_checking`.

An example::

    [points]            # for each part; parts that are not named have none
    O = 2
    dQ = 3
    dK = 3
    dV = 2

    [costs]             # what these mistakes cost, in place of all parts that they spoil
    scale-missing-in-dq = 1
"""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from attnbook.arrays import expected
from attnbook.diagnose.report import KNOWN


@dataclass(frozen=True)
class Rubric:
    """``points`` by part, ``costs`` by mistake."""

    points: dict
    costs: dict = field(default_factory=dict)

    @property
    def total(self):
        return sum(self.points.values())

    def of(self, judged):
        """The points of a :class:`attnbook.grade.judging.Judged`.

        Where every mistake is recognized and has a cost, the costs are taken off the points of the parts that they
        spoil; else a part has its points where it is right.
        """
        wrong = [part for part, verdict in judged.parts.items() if verdict == "wrong"]
        unknown = [part for part, verdict in judged.parts.items() if verdict == "not known"]
        lost = sum(self.points.get(part, 0) for part in wrong)
        if wrong and judged.mistakes and judged.named and all(slug in self.costs for slug in judged.mistakes):
            lost = min(lost, sum(self.costs[slug] for slug in judged.mistakes))
        return self.total - lost - sum(self.points.get(part, 0) for part in unknown)


def rubric(exercise, path=None):
    """The rubric of a TOML file; without one, a point for each part.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        It is no TOML, or names a part that the exercise has not, or a mistake that is not known, or no numbers.
    """
    if path is None:
        return Rubric(dict.fromkeys(exercise.parts, 1))
    read = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    _check("rubric", read, ("points", "costs"))
    points, costs = read.get("points", {}), read.get("costs", {})
    _check("rubric [points]", points, exercise.parts)
    _check("rubric [costs]", costs, KNOWN)
    for name, value in (points | costs).items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise ValueError(expected(f"rubric, {name}", "a number of at least 0", repr(value)))
    if not points:
        raise ValueError(expected("rubric", "[points] for " + ", ".join(exercise.parts), "none"))
    return Rubric(points, costs)


def _check(where, table, known):
    if not isinstance(table, dict):
        raise ValueError(expected(where, "a table", repr(table)))
    for name in table:
        if name not in known:
            raise ValueError(expected(where, "names of " + ", ".join(known), repr(name)))
