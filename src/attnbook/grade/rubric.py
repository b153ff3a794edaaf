"""Points for what is right, from a TOML file. Chapter: :doc:`/chapters/08_checking`.

An example::

    [points]            # needed: for each part; parts that are not named have none
    O = 2
    dQ = 3
    dK = 3
    dV = 2

    [costs]             # what these mistakes cost, in place of all parts that they spoil
    scale-missing-in-dq = 1
    default = 2         # what every other mistake that has a name costs; without it, the parts that it spoils
"""

import difflib
import tomllib
from dataclasses import dataclass, field
from itertools import product
from os import PathLike
from pathlib import Path
from typing import Any

from attnbook.arrays import expected
from attnbook.diagnose.causes.registry import TITLES
from attnbook.grade.exercises import Exercise


@dataclass(frozen=True)
class Rubric:
    """``points`` by part, ``costs`` by mistake, and the cost of a mistake without one: ``default``.

    Without ``default`` such a mistake costs the points of the parts that it spoils. None costs more than these.
    """

    points: dict[str, Any]
    costs: dict[str, Any] = field(default_factory=dict)
    default: float | None = None

    @property
    def total(self) -> float:
        return sum(self.points.values())

    def of(self, judged: Any) -> tuple[float, Any]:
        """The points of a :class:`attnbook.grade.judging.Judged`.

        A wrong part whose mistakes have costs loses these; of mistakes that the cases cannot tell apart, the lower
        cost counts. All other parts have their points where they are right.
        """
        unknown = [part for part, verdict in judged.parts.items() if verdict == "not known"]
        return self.total - self._worth(unknown) - self._least(judged)[0]

    def why(self, judged: Any) -> Any:
        """How the costs were reckoned, in lines; none for a rubric that has no costs."""
        return self._least(judged)[1] if self.costs or self.default is not None else []

    def _least(self, judged: Any) -> tuple[Any, ...]:
        """(points lost, why) of what is wrong, by whichever of the causes that are alike costs least."""
        wrong = {p: judged.causes.get(p, ()) for p, verdict in judged.parts.items() if verdict == "wrong"}
        choices = product(*(causes or [()] for causes in wrong.values()))
        lost, why = min((self._lost(dict(zip(wrong, choice, strict=True))) for choice in choices), key=lambda x: x[0])
        alike = {causes: [p for p in wrong if wrong[p] == causes] for causes in wrong.values() if len(causes) > 1}
        ties = [
            f"points of {', '.join(parts)}: no case tells {' from '.join(map(' with '.join, causes))}; "
            "the lower cost counts"
            for causes, parts in alike.items()
        ]
        return lost, [*ties, *why]

    def _lost(self, chosen: Any) -> tuple[Any, ...]:
        """(points lost, why), where each wrong part has these mistakes, () for none that is known."""
        spoiled = {slug: [p for p in chosen if slug in chosen[p]] for slugs in chosen.values() for slug in slugs}
        costs = {slug: self.costs.get(slug, self.default) for slug in spoiled}
        whole = [p for p, slugs in chosen.items() if not slugs or any(costs[slug] is None for slug in slugs)]
        rest = [p for p in chosen if p not in whole]
        lost, why = 0, []
        for slug, parts in spoiled.items():
            if costs[slug] is None:
                why.append(f"points: none for {', '.join(parts)}: {slug} has no cost")
                continue
            most = min(self._worth(rest) - lost, self._worth([p for p in parts if p in rest]))
            lost += min(costs[slug], most)
            own = "" if slug in self.costs else ", the default"
            why.append(f"points: {slug} costs {min(costs[slug], most):g}{own}")
        unnamed = [p for p, slugs in chosen.items() if not slugs]
        why += [f"points: none for {', '.join(unnamed)}: no mistake that has a name"] if unnamed else []
        return lost + self._worth(whole), why

    def _worth(self, parts: Any) -> Any:
        return sum(self.points.get(part, 0) for part in parts)


def rubric(exercise: Exercise, path: str | PathLike[str] | None = None) -> Rubric:
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
    _check("rubric [costs]", costs, ("default", *TITLES), "names of known mistakes, or default")
    for name, value in (points | costs).items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise ValueError(expected(f"rubric, {name}", "a number of at least 0", repr(value)))
    if not points:
        raise ValueError(expected("rubric", "[points] for " + ", ".join(exercise.parts), "none"))
    return Rubric(points, {name: cost for name, cost in costs.items() if name != "default"}, costs.get("default"))


def _check(where: Any, table: Any, known: Any, words: Any = "") -> None:
    if not isinstance(table, dict):
        raise ValueError(expected(where, "a table", repr(table)))
    for name in table:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f" (is it {close[0]}?)" if close else ""
            raise ValueError(expected(where, words or "names of " + ", ".join(known), repr(name) + hint))
