"""Each formula as TeX and as Python is the same formula: ``book/formulas.yml`` joins the two by label.

A theorem is joined by its name alone: that its statement is the formula, no test evaluates.

TeX is read by :mod:`tex` and evaluated, and so are the Python lines, where every letter has its own value, gradients
too: what :mod:`letters` finds from the forward alone.
"""

import ast
import builtins
import copy
import functools
import itertools
import json
import re
import types

import numpy as np
import proofs
import pytest
import tex
import yaml
from equations import CHAPTERS, ROOT, equations
from letters import Float64, InBalls, Letters
from ruamel.yaml import YAML
from tex_values import At

import attnbook as ab
from attnbook.arrays import mT

TABLE = yaml.safe_load((ROOT / "book" / "formulas.yml").read_text(encoding="utf-8"))
FORMULAS, SETTINGS = TABLE["formulas"], TABLE["settings"]
EQUATIONS = {e.label: e for e in equations()}
READ = [label for label, formula in FORMULAS.items() if "setting" in formula and "no tex" not in formula]
RUN = [label for label, formula in FORMULAS.items() if "python" in formula]
WAYS = {"float64": Float64, "balls": InBalls}


def as_list(given):
    return [given] if isinstance(given, str | dict) else list(given or ())


# --- evaluating ---------------------------------------------------------------------------------------------------


@functools.cache
def place(setting, way, point, seed=0, fixed=()):
    """Where an equation is evaluated: a setting at one of its points, with the letters' values."""
    described = SETTINGS[setting]
    at = {key: described[key] for key in ("rows", "columns", "batch", "indices") if key in described}
    with np.errstate(all="ignore"):
        values = Letters(described | {"fixed": [*described.get("fixed", []), *fixed]}, WAYS[way](), point, seed)
    over = {letter: values[n] for letter, n in described.get("over", {}).items()}
    return At(values, number=WAYS[way].number, over=over, **at)


def points(formula, setting):
    """The points of a setting where a formula is said to hold."""
    return [point for point in SETTINGS[setting]["points"] if point not in formula.get("not at", {})]


def setting_of(formula, equation):
    """A formula's setting; where it has several, the one for the words before the equation's colon."""
    given = formula["setting"]
    return given if isinstance(given, str) else given[equation.of.replace(" ", "")]


@functools.cache
def read(label):
    formula = FORMULAS[label]
    used = as_list(formula["setting"] if isinstance(formula["setting"], str) else formula["setting"].values())
    functions = {name for setting in used for name in SETTINGS[setting].get("functions", ())}
    found = tex.read(EQUATIONS[label].latex, functions, formula.get("without", {}))
    for condition in as_list(formula.get("condition")):  # said in the text
        (said,) = tex.read(condition)
        found = [e._replace(conditions=(*e.conditions, ("relation", said.sides, said.relations))) for e in found]
    return found


@np.errstate(all="ignore")
def disagreements(label, way="float64", seed=0):
    """Where the sides of a label's equations are apart, and how many pairs of sides were compared."""
    formula, found, compared = FORMULAS[label], [], 0
    for equation in read(label):
        setting, before = setting_of(formula, equation), compared
        for point in points(formula, setting):
            if way == "balls" and seed == 0 and compared > before:
                break  # slow: at all points in test_at_more_points
            at = place(setting, way, point, seed, tuple(formula.get("fixed", ())))
            for bound, sides in at.sides(equation):
                for relation, (A, B) in zip(equation.relations, itertools.pairwise(sides), strict=True):
                    compared += 1
                    off = WAYS[way].apart(A, B, relation)
                    if not off <= WAYS[way].allowed:
                        found.append(f"{point} {bound}: off by {float(off):.1e}")
        assert compared > before, f"{label}: nothing was compared"
    return found, compared


class Lines(dict):
    """The names that a Python line sees: what lines before it made, then its own names for letters, then letters."""

    def __init__(self, values, names):
        super().__init__(MODULES)
        self["close"] = lambda A, B: shape(A) == shape(B) and values.way.apart(A, B) <= values.way.allowed
        self.values_, self.names = values, names

    def __missing__(self, name):
        if hasattr(builtins, name):
            raise KeyError(name)
        if name in self.names:
            return eval(self.names[name], Lines(self.values_, {}))
        if name in self.values_:
            value = self.values_[name]
            return value if not isinstance(value, np.generic) else np.asarray(value)[()]
        raise KeyError(name)


MODULES = {"np": np, "ab": ab, "mT": mT, "inner": lambda A, B: np.sum(A * B), "has": types.SimpleNamespace}
MODULES |= {"norm": np.linalg.norm, "rowsum": lambda T: T.sum(axis=-1, keepdims=True)}  # chapters call them so
MODULES |= {"rowmax": lambda T: T.max(axis=-1, keepdims=True)}


@np.errstate(all="ignore")
def python_disagreements(label, way="float64"):
    """Where what a label's Python lines make is not what its letters are."""
    formula, found = FORMULAS[label], []
    names = {name: str(letter) for name, letter in formula.get("names", {}).items()}
    setting = formula.get("python setting", formula["setting"])
    asked = [point for point in points(formula, setting) if point not in formula.get("python not at", ())]
    assert asked, f"{label}: nothing was run"
    for point in asked:
        lines = Lines(place(setting, way, point, fixed=tuple(formula.get("fixed", ()))).values, names)
        made = set(formula.get("gives", ()))
        for line in as_list(formula["python"]):
            line = re.sub("^return ", "returned = ", line)
            tree = ast.parse(line)
            try:
                exec(compile(tree, label, "exec"), lines)
            except AssertionError:
                found.append(f"{point}: not {line}")
            made |= {n.id for line in tree.body for t in getattr(line, "targets", ()) for n in ast.walk(t)
                     if isinstance(n, ast.Name)}  # fmt: skip
        assert made or "assert" in str(formula["python"]), f"{label}: nothing was compared"
        for target in made:
            came = eval(target, lines)
            if not callable(came):
                wanted = eval(formula.get("gives", {}).get(target, target), Lines(lines.values_, names))
                found += [f"{point}: {target} {off}" for off in _apart(came, wanted, WAYS[way])]
    return found


def shape(T):
    return getattr(T, "shape", ())


def _apart(came, wanted, way):
    """In words, how two arrays differ, or two tuples of them."""
    if isinstance(came, tuple):
        yield from itertools.chain(*(_apart(*pair, way) for pair in zip(came, wanted, strict=True)))
    elif (came is None) != (wanted is None) or shape(came) != shape(wanted):
        yield f"has shape {shape(came)}, not {shape(wanted)}"
    elif came is not None and not (off := way.apart(came, wanted)) <= way.allowed:
        yield f"is off by {float(off):.1e}"


def bare(source):
    """The lines of some code, without comments."""
    return {re.sub(r"\s+# .*", "", line).strip() for line in source.splitlines()}


@functools.cache
def code_lines(chapter):
    """Every line of code that the package or a chapter's cells have."""
    if chapter is None:
        return set().union(*(bare(path.read_text(encoding="utf-8")) for path in (ROOT / "src").rglob("*.py")))
    cells = json.loads((CHAPTERS / f"{chapter}.ipynb").read_text(encoding="utf-8"))["cells"]
    of_cells = (bare("".join(cell["source"])) for cell in cells if cell["cell_type"] == "code")
    return code_lines(None).union(*of_cells)


# --- the tests ----------------------------------------------------------------------------------------------------


def working(way):
    """As many digits as a way works with; or a skip, where it can't."""
    if way == "balls":
        pytest.importorskip("flint", reason="python-flint is not installed: formulas are compared in float64 alone")
    return WAYS[way].working()


KEYS = {
    "setting", "python", "names", "gives", "condition", "without", "not at", "fixed", "python setting", "python not at",
    "floats alone", "no tex", "no python", "no theorem",
}  # fmt: skip


def test_each_label_has_its_row_and_is_evaluated_or_says_why_not():
    assert set(FORMULAS) == set(EQUATIONS)
    for label, formula in FORMULAS.items():
        assert set(formula) <= KEYS, label
        assert "setting" in formula or ("no tex" in formula and "python" not in formula), label
        if label.startswith("eq-"):
            assert ("python" in formula) != ("no python" in formula), label
    YAML(typ="safe").load(ROOT / "book" / "formulas.yml")  # it refuses a key that a mapping has twice


def test_each_label_has_its_theorem_or_says_why_not():
    """That no theorem is named after no label: test_proofs."""
    found = proofs.by_label()
    assert not [label for label, formula in FORMULAS.items() if (label in found) == ("no theorem" in formula)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("label", READ)
def test_the_sides_of_each_formula_are_equal(label, way):
    with working(way):
        found, _ = disagreements(label, way)
    assert not found


def test_python_lines_stand_where_a_formula_is_computed():
    for label in RUN:
        lines = {line.strip() for code in as_list(FORMULAS[label]["python"]) for line in code.splitlines()}
        assert not lines - code_lines(EQUATIONS[label].chapter), label


@pytest.mark.parametrize("way", ["float64", pytest.param("balls", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("label", RUN)
def test_its_python_lines_make_the_same(label, way):
    if way == "float64" or "floats alone" not in FORMULAS[label]:
        with working(way):
            assert not python_disagreements(label, way)


# --- they can fail ------------------------------------------------------------------------------------------------


class OneOff:
    """Letters, of which the one that is asked for at a certain turn is off."""

    def __init__(self, values, turn, change):
        self.values, self.turn, self.change, self.turns = values, turn, change, 0

    def __contains__(self, name):
        return name in self.values

    def __getitem__(self, name):
        value, self.turns = self.values[name], self.turns + 1
        return self.change(value) if self.turns == self.turn and not callable(value) else value


def a_little(T):
    if getattr(T, "dtype", int) == np.float64:
        return np.where(np.isfinite(T), T * 1.01 + 0.01, 0.5)
    return T + 1 if isinstance(T, int | float) else ~T


@np.errstate(all="ignore")
def fails(equation, at, change):
    """Whether some change of one letter makes an equation fail."""
    at, values, turn, turns = copy.copy(at), at.values, -1, 0  # the first time around nothing is off
    while turn < turns:
        turn += 1
        at.values = OneOff(values, turn, change)
        for _, sides in at.sides(equation):
            for relation, pair in zip(equation.relations, itertools.pairwise(sides), strict=True):
                if not Float64.apart(*pair, relation) <= Float64.allowed:
                    return True
        turns = min(at.values.turns, 100)
    return False


@pytest.mark.parametrize("label", [label for label in READ if FORMULAS[label]["setting"] != "empty"])
def test_each_formula_can_fail(label):
    """Each equation is refused at some point when one of its letters is a little off; each bound, when one is far."""
    formula = FORMULAS[label]
    fixed = tuple(formula.get("fixed", ()))
    for equation in read(label):
        setting = setting_of(formula, equation)
        changes = (a_little,) if "=" in equation.relations else (lambda T: 1000 * T, lambda T: 0 * T)
        tries = itertools.product(changes, points(formula, setting))
        assert any(fails(equation, place(setting, "float64", p, 0, fixed), change) for change, p in tries), equation


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("way", WAYS)
def test_at_more_points(way, seed):
    with working(way):
        found = {label: off for label in READ if (off := disagreements(label, way, seed=seed)[0])}
    assert not found
