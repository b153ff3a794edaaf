"""``diagnose``: is this attention's gradient right, and if not, which known mistake is it?

Chapter: :doc:`/chapters/in_the_wild`. It runs the cases of :mod:`attnbook.diagnose.cases.battery`, compares every
result with :class:`attnbook.diagnose.steps.Steps`, and what is wrong with all mistakes of the catalogue.
"""

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from attnbook.arrays import expected, whole
from attnbook.checks.tolerances import DIAGNOSE
from attnbook.diagnose.cases.battery import battery
from attnbook.diagnose.cases.crossed import BLOCKS, FEATURES, cross, missing
from attnbook.diagnose.cases.determinism import check_determinism
from attnbook.diagnose.cases.ignored import swallowed
from attnbook.diagnose.cases.own import of_its_own
from attnbook.diagnose.cases.refusals import limited
from attnbook.diagnose.cases.run import Run, imprecise, wrong_in
from attnbook.diagnose.causes.registry import KNOWN, TITLES
from attnbook.diagnose.causes.search import explain
from attnbook.diagnose.learn.caller import Caller
from attnbook.diagnose.learn.results import NAMES, Came
from attnbook.diagnose.links import ALIKE, BOOK, link, of_ranks, symptom, title_of
from attnbook.diagnose.ranks import Ranks
from attnbook.diagnose.wording import (
    FEW,
    WRAP,
    grouped,
    headline,
    in_cases,
    of_what,
    precisions,
    reasons,
    takes,
    wrapped,
)
from attnbook.types import Library

DTYPES = tuple(DIAGNOSE)
"""The dtypes that ``diagnose`` can be asked to hand over."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    ``about`` is "O", "dQ", "dK", "dV" or "the call"; ``kind`` is "wrong", "another layer" (whose O is no softmax
    attention, and whose gradients are right by differences of that O), "precision", "raised", "returned", "too long",
    "changed", "nothing ran", or one of :data:`.determinism.SAYS`. ``cases`` are where, the
    simplest first; ``error`` is how far off there, relative to the largest right entry, None where that has no
    meaning. ``causes`` are the mistakes that it matches, each a tuple of slugs: one, or two at once. Several causes:
    the cases that ran cannot tell them apart. ``parts`` is for what matches no cause as a whole: for some mistakes, the
    cases that each of them explains. ``likely`` is, line by line, what the arrays make likely where there is neither,
    or in which ring the cause holds.
    """

    about: str
    kind: str
    text: str
    cases: tuple[Any, ...] = ()
    error: float | None = None
    causes: tuple[Any, ...] = ()
    parts: tuple[Any, ...] = ()
    likely: str = ""


@dataclass(frozen=True)
class Report:
    """What :func:`.diagnose` found. It prints as text; ``ok`` says whether all is right, as far as it ran.

    ``findings`` are what is wrong, ``notes`` what is worth knowing and no mistake, ``compared`` the cases whose results
    were compared, ``not_run`` those that fn does not take, with the reason, and ``cases`` is how many there are in all.
    ``crossed`` are the conditions of which every pair was asked, but for the pairs ``apart``; ``unasked`` those that no
    case had. ``runs`` are the calls behind it, with their arrays, for pictures.
    """

    findings: tuple[Any, ...]
    notes: tuple[Any, ...]
    compared: tuple[Any, ...]
    not_run: dict[str, Any]
    cases: int
    crossed: tuple[str, ...] = ()
    apart: tuple[tuple[str, str], ...] = ()
    unasked: tuple[str, ...] = ()
    runs: tuple[Any, ...] = field(default=(), repr=False, compare=False)

    @property
    def ok(self) -> bool:
        return not self.findings

    @property
    def mistakes(self) -> tuple[str, ...]:
        """The slugs of the mistakes that were recognized without doubt, in the order of the findings; none for what no
        case tells apart, which is ``alike``.
        """
        return tuple(dict.fromkeys(slug for f in self.findings if len(f.causes) == 1 for slug in f.causes[0]))

    @property
    def alike(self) -> tuple[Any, ...]:
        """The causes that no case tells apart, for each finding that has several; a cause is a tuple of slugs."""
        return tuple(dict.fromkeys(f.causes for f in self.findings if len(f.causes) > 1))

    def __repr__(self) -> str:
        other = any(f.kind == "another layer" for f in self.findings)
        wrong = list(dict.fromkeys(f.about for f in self.findings if f.kind in ("wrong", "precision")))
        right = [name for name in NAMES if name not in wrong] if self.compared else []
        said = {"right": right, "wrong": wrong}
        if other:
            said = {
                "no softmax attention of these Q, K, V": ["O"],
                "right, by differences of its own O": list(NAMES[1:4]),
            }
        lines = [f"{word}: {', '.join(names)}" for word, names in said.items() if names]
        lines += of_what(self) if self.ok else [f"compared in {len(self.compared)} of {self.cases} cases"]
        for (causes, parts), findings in grouped(((f.causes, f.parts), f) for f in self.findings):
            lines += ["", *headline(causes, parts, findings)]
            for f in findings:
                lines += [f"  {f.about}: {f.text}", *(f"    {line}" for line in f.likely.splitlines())]
        lines += ["", *("note: " + note for note in self.notes)] if self.notes else []
        if self.compared and self.not_run:  # else the notes say what was tried
            lines += ["", *reasons(self.not_run)]
        lines += [] if self.ok or not self.compared else ["", f"from symptom to cause: {self._symptom()}"]
        return "\n".join(wrapped(line) for line in lines)

    def _symptom(self) -> str:
        """Where the book goes on: from what all wrong cases are, or else from which results are wrong."""
        cases = [case for f in self.findings if f.kind == "wrong" for case in f.cases]
        for words, section in ALIKE.items():
            if cases and all(words in case for case in cases):
                return f"{BOOK}book/symptoms.html{section}"
        return symptom(self._wrong_at_first())

    def _wrong_at_first(self) -> list[Any]:
        """What is wrong in the simplest of the cases in which anything is."""
        wrong = [f for f in self.findings if f.kind == "wrong"]
        since = next((case for case in self.compared if any(case in f.cases for f in wrong)), None)
        return [f.about for f in wrong if since in f.cases]

    def as_json(self) -> str:
        """The report as JSON text, for machines."""
        slugs = {slug for f in self.findings for cause in (*f.causes, *f.parts) for slug in cause}
        slugs &= TITLES.keys() | of_ranks().TITLES.keys()
        known = {slug: {"title": title_of(slug), "link": link(slug)} for slug in sorted(slugs)}
        told = asdict(replace(self, runs=()))
        del told["runs"]
        return json.dumps({"ok": self.ok, **told, "mistakes": known, "alike": self.alike}, indent=2, ensure_ascii=False)


@np.errstate(all="ignore")  # what is wrong may overflow: that is seen in what came, and is no warning
def diagnose(
    fn: Any,
    library: Library | None = None,
    *,
    dtype: Literal["float64", "float32", "float16", "bfloat16"] = "float64",
    limit: float = 30.0,
    seed: int = 0,
) -> Report:
    """Say whether an attention with a backward is right, and if not, which gradient is wrong, where first, and why.

    .. math::
       dV = P^{\\mathsf T} dO \\qquad dS = P \\circ \\bigl(dP - \\operatorname{rowsum}(P \\circ dP)\\bigr) \\qquad
       dQ = \\text{scale}\\cdot dS\\,K \\qquad dK = \\text{scale}\\cdot dS^{\\mathsf T} Q

    Equations :eq:`eq-dV`, :eq:`eq-dP`, :eq:`eq-dS`, :eq:`eq-dQ` and :eq:`eq-dK` are what it compares with, in float64.

    Parameters
    ----------
    fn : callable, pair of callables, torch module, or Ranks
        ``fn(Q, K, V, dO, **options) -> (O, dQ, dK, dV)``; or a forward that returns (O, residuals) with its
        backward(dO, residuals), such as ``(ab.attention, ab.attention_vjp)``; or, on torch tensors, a module or any
        ``fn(Q, K, V, **options) -> O``, whose backward is autograd's. The options are those of
        :func:`attnbook.attention`: mask, bias, causal and scale, each passed only in a case that needs it. A case whose
        option fn does not know is not run, and that is no mistake; nor is ``causal="bottom-right"`` where any text
        does for True. It is the same with window=(before, after), softcap, sink=σ and slopes (one number a head each),
        cos and sin (of rotary), dropout=p and dL. torch's own names (attn_mask, is_causal, enable_gqa) are tried where
        fn knows those. The arrays have two, three or four axes, (n, d), (h, n, d) or (b, h, n, d).
    library : "numpy", "torch", "cupy", "jax", "mlx", "tensorflow", "onnx", or None
        Whose arrays fn is given; None finds it out. What fn takes is found out too: axes, layout, sizes, dtypes, and
        what its library calls the options. A note says so; what could not be asked is no mistake.
    dtype : "float64", "float32", "float16" or, for torch, "bfloat16"
        Of these arrays. float64 tells most; the other two of the first three are tried in a case of their own.
    limit : float
        Seconds that fn may take for a case. It runs in a thread, which cannot be ended: one that takes longer is left
        behind. After the second one no further case is run.
    seed : int
        Other numbers, and other sizes than the printed ones, for another seed.

    Returns
    -------
    Report
        Prints as text. ``report.ok``, ``report.findings``, ``report.mistakes``, ``report.as_json()``.

    Raises
    ------
    TypeError, ValueError
        An argument of the wrong kind. What fn does is never raised, but reported.
    ImportError
        ``library`` is not installed.

    Notes
    -----
    An error counts where it is larger than rounding can make it: a number of roundings of the dtype, times the size of
    the terms that are added up. Chapter: :doc:`/chapters/in_the_wild`.

    Examples
    --------
    >>> import attnbook as ab
    >>> report = ab.diagnose((ab.attention, ab.attention_vjp))
    >>> report.ok, len(report.compared), report.notes
    (True, 79, ('given in no case: method, ops',))

    What one rank runs of an attention over several is asked as ``diagnose(Ranks(fn))``:

    >>> from attnbook.diagnose import Ranks
    """
    if isinstance(fn, Ranks):
        return _over_ranks(*fn.runs(library or "numpy", dtype, limit, seed))
    if dtype not in DTYPES or (dtype == "bfloat16" and library in ("numpy", "cupy", "onnx")):
        few = "one of " + ", ".join(map(repr, DTYPES)) + " (bfloat16: none of NumPy)"
        raise ValueError(expected("dtype", few, repr(dtype)))
    seed = whole("seed", seed, 0, "an integer of at least 0")
    call = Caller(fn, library, limit, dtype)
    convention, runs = call.convention, []
    late = int(call.learner.too_long)
    for case in battery(seed, convention.dtypes[0], convention):
        came = call(case) if late < 2 else Came("not run", "two calls took too long before it")
        late += came.kind == "too long"
        run = Run(case, came)
        instead = TRUE_ONLY if _takes_any_text(run, call) else swallowed(run, call)
        runs.append(Run(case, instead) if instead else run)
    runs = limited(runs, call)
    shown, remarks = check_determinism(call, runs)
    draw = seed, convention.dtypes[0], convention
    least, cover = cross(runs, lambda case: Run(case, call(case)), draw) if late < 2 else ([], [])
    return report_of(runs, call, shown, remarks, least, cover)


TRUE_ONLY = Came("not run", 'it takes any text for True, so it cannot be asked for causal="bottom-right"')
"""What came from a function to which causal is True or False, and any text is true, as Python has it."""


def _takes_any_text(run: Any, call: Any) -> Any:
    """Whether the other corner was asked for, and O is wrong there, and the same for a corner that there is not."""
    if run.case.options.get("causal") != "bottom-right" or not run.compared or run.right_in("O"):
        return False
    none = call(replace(run.case, options={**run.case.options, "causal": "no corner"}))
    return none.kind == "values" and np.array_equal(none.values["O"], run.came.values["O"], equal_nan=True)


# --- all cases ----------------------------------------------------------------------------------------------------


def report_of(runs: Any, call: Any, shown: Any = (), remarks: Any = (), least: Any = (), cover: Any = ()) -> Report:
    """Of all runs; ``least`` are those of crossed cases, and what is wrong in the ``cover`` is wrong in one of them."""
    compared = [run for run in runs if run.compared]
    wrong = wrong_in(compared)
    sums = imprecise(wrong, compared)[1]
    if sums:
        long = wrong.pop(sums[0])[0]
        error = long.error(sums[0])[1]
        remarks = (*remarks, f'{", ".join(sums)}: {error} in "{long.name}", as where a sum is kept in 16 bits')
        wrong = {name: where for name, where in wrong.items() if name not in sums}
    causes, parts, steps, likely = explain(compared, wrong, KNOWN)
    formulas = {name for name, each in causes.items() if each[0][0] in KNOWN}  # before a precision is suspected
    low = imprecise({name: where for name, where in wrong.items() if name not in formulas}, compared)[0]
    imprecisely = [_of_precision(name, wrong.pop(name), words) for name, words in low.items()]
    findings = _all_of_values(wrong, causes, parts, likely)
    crashed = [Run(*each) for each in call.learner.crashed] if findings or imprecisely else ()  # that may be why
    if "O" in wrong and not causes.get("O") and not parts.get("O") and 2 * len(wrong["O"]) > len(compared):
        fits, words = of_its_own(call, wrong["O"][0])
        if fits >= {"dQ", "dK", "dV"}:
            of_O = next(f for f in findings if f.about == "O")
            findings = [replace(of_O, kind="another layer", likely="", text=f"{of_O.text}; {words}")]
            least = cover = crashed = ()
        elif fits:
            remarks = (*remarks, words)
    for run in least:
        if run.compared:  # a sum in 16 bits, which is no finding, hides nothing but what is long
            findings += _where_things_meet(run, {*low, *(sums if run.case.row.get(BLOCKS) else ())})
    findings += [*imprecisely, *_of_calls([*runs, *crashed], causes, steps)]
    findings += [Finding(about, kind, f"{in_cases(cases)}: {text}", cases) for about, kind, text, cases in shown]
    findings.sort(key=lambda f: (f.kind != "unsteady", f.causes == (("empty-not-handled",),)))  # what is least, last
    return _whole([*runs, *least, *cover], findings, (*takes(call, runs), *precisions(compared), *remarks))


def _over_ranks(runs: Any, notes: Any) -> Any:
    compared = [run for run in runs if run.compared]
    wrong = wrong_in(compared)
    causes, parts, likely = of_ranks().explain(compared, wrong)
    low = {name: words for name, words in imprecise(wrong, compared)[0].items() if name not in causes}
    findings = [_of_precision(name, wrong.pop(name), words) for name, words in low.items()]
    findings += _all_of_values(wrong, causes, parts, likely)
    return _whole(runs, findings + _of_calls(runs, causes, {}), (*precisions(compared), *notes), (), crossed=False)


def _whole(runs: Any, findings: Any, notes: Any, to_do: Any = (WRAP,), crossed: bool = True) -> Any:
    compared = tuple(run.name for run in runs if run.compared)
    not_run = {run.name: run.came.text for run in runs if run.came.kind == "not run"}
    if not compared:
        notes = (*to_do, *notes)
    elif len(compared) < FEW and any(f.kind == "wrong" for f in findings):
        notes = (f"compared in {len(compared)} of {len(runs)} cases: in so few, other causes may look the same", *notes)
    if not compared and not findings:
        findings = [Finding("the call", "nothing ran", "no case could be run, so nothing is known")]
    taken, apart = missing(runs) if crossed else ((), ())
    unasked = tuple(name for name in FEATURES if name not in taken) if crossed else ()
    return Report(
        tuple(findings), tuple(notes), compared, not_run, len(runs), tuple(taken), tuple(apart), unasked, tuple(runs)
    )


def _all_of_values(wrong: Any, *known: Any) -> list[Any]:
    return [_of_values(name, where, *(of.get(name, ()) for of in known)) for name, where in wrong.items()]


def _where_things_meet(run: Any, low: Any) -> Any:
    """Findings of a crossed case by itself: a fault that needs all that meets there is none elsewhere."""
    wrong = {name: where for name, where in wrong_in([run]).items() if name not in low}
    causes, parts, _, guessed = explain([run], wrong, KNOWN)
    causes = {name: each for name, each in causes.items() if each[0][0] in KNOWN}  # one case shows no pattern
    found = _all_of_values(wrong, causes, parts, guessed)
    many = sum(map(bool, run.case.row.values()))
    without = ", and right without " + ("either" if many == 2 else "any one of these")
    return [replace(each, text=each.text + without) for each in found] if many > 1 else found


def _of_values(name: str, where: Any, causes: Any, parts: Any, likely: Any) -> Any:
    error, text = where[0].error(name)
    text = f"{in_cases(where)}: {text}"
    if not causes and not parts and name != "O" and not where[0].right_in("O"):
        text += "; O is wrong there too: set that right first"
    return Finding(name, "wrong", text, tuple(run.name for run in where), error, causes, parts, likely or "")


def _of_precision(name: str, where: Any, words: Any) -> Any:
    error, text = where[0].error(name)
    return Finding(name, "precision", f"{in_cases(where)}: {text}, {words}", tuple(run.name for run in where), error)


def _of_calls(runs: Any, causes: Any, steps: Any) -> Any:
    """Findings about calls that gave no values, or wrote into their input; those of one kind and text together."""
    seen = []
    for run in runs:
        if run.came.kind in ("raised", "returned", "too long"):
            what = run.came.text.partition(":")[0] if run.came.kind == "raised" else run.came.text
            seen.append(((run.came.kind, what), run))
        seen += [(("changed", f"{T}, which is its input, is written into"), run) for T in run.came.changed]
    found = []
    for (kind, what), where in grouped(seen):
        text = "raised " + where[0].came.text if kind == "raised" else what
        same = [each for each in dict.fromkeys(causes.values()) if kind == "raised" and _raise(each, steps, where)]
        names = tuple(run.name for run in where)
        found.append(Finding("the call", kind, f"{in_cases(where)}: {text}", names, None, *same[:1]))
    return found


def _raise(causes: Any, steps: Any, runs: Any) -> bool:
    """Whether the cause, where it is known, does not run in these cases either."""
    steps = steps.get(causes[0]) if len(causes) == 1 else None
    return steps is not None and all(run.predicted(steps) is None for run in runs)
