"""``diagnose``: is this attention's gradient right, and if not, which known mistake is it?

Chapter: :doc:`/chapters/in_the_wild`. It runs the cases of :mod:`attnbook.diagnose.battery`, compares every
result with :class:`attnbook.diagnose.steps.Steps`, and what is wrong with all mistakes of the catalogue.
"""

import json
import textwrap
from dataclasses import asdict, dataclass, replace

import numpy as np

from attnbook.arrays import expected
from attnbook.checks.tolerances import DIAGNOSE
from attnbook.diagnose._causes import explain
from attnbook.diagnose._run import Run
from attnbook.diagnose.battery import battery
from attnbook.diagnose.calling import NAMES, Caller, Came
from attnbook.diagnose.mistakes import MISTAKE, MISTAKES, Mistake
from attnbook.diagnose.steps import with_mistakes

BOOK = "https://attnbook.github.io/attnbook/"
"""Where the book is published; links of a report begin with it."""

DTYPES = tuple(DIAGNOSE)
"""The dtypes that ``diagnose`` can be asked to hand over."""

SYMPTOM = {
    ("dQ",): "#symptom-dq",
    ("dK",): "#symptom-dk",
    ("dV",): "#symptom-dv",
    ("dQ", "dK"): "#symptom-dq-dk",
    ("dK", "dV"): "#symptom-dk-dv",
    ("dQ", "dK", "dV"): "#symptom-all",
    ("O", "dQ", "dK", "dV"): "#symptom-forward",
}
"""Where the page of symptoms goes on, by what is wrong; at its top for all else, or for O where that is wrong."""

_IGNORING = {
    "mask": {"mask_allows": lambda a: np.full((a.n_q, a.n_k), True)},
    "bias": {"scores": lambda a: a.scale * (a.Q @ a.transpose(a.k))},
    "causal": {"corner": lambda a: None},
    "scale": {"scale": lambda a: a.width**-0.5},
}

IGNORED = (
    *(
        Mistake(f"{name}-ignored", f"{name} is taken, and ignored", "", "", "", NAMES, (), steps)
        for name, steps in _IGNORING.items()
    ),
    Mistake(
        "options-ignored", "mask, bias, causal and scale are taken, and ignored", "", "", "", NAMES, (),
        {name: step for steps in _IGNORING.values() for name, step in steps.items()},
    ),
)  # fmt: skip
"""Functions that take an option and do nothing with it. That is no wrong formula, but is recognized too."""

KNOWN = {mistake.slug: mistake for mistake in (*MISTAKES, *IGNORED)}
"""All that can be recognized, by slug."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    ``about`` is "O", "dQ", "dK", "dV" or "the call"; ``kind`` is "wrong", "raised", "returned", "too long", "changed"
    or "nothing ran". ``cases`` are where, the first one being since when; ``error`` is how far off there, relative to
    the largest entry of the right result, None where that has no meaning. ``causes`` are the mistakes that it matches,
    each a tuple of slugs: one mistake, or two at once. Several causes: the cases that ran cannot tell them apart.
    ``parts`` is for what matches no cause as a whole: for some mistakes, the cases that each of them explains.
    """

    about: str
    kind: str
    text: str
    cases: tuple = ()
    error: float | None = None
    causes: tuple = ()
    parts: tuple = ()


@dataclass(frozen=True)
class Report:
    """What :func:`diagnose` found. It prints as text; ``ok`` says whether all is right, as far as it ran.

    ``findings`` are what is wrong, ``notes`` what is worth knowing and no mistake, ``compared`` the cases whose results
    were compared, ``not_run`` those that fn does not take, with the reason, and ``cases`` is how many there are in all.
    """

    findings: tuple
    notes: tuple
    compared: tuple
    not_run: dict
    cases: int

    @property
    def ok(self):
        return not self.findings

    @property
    def mistakes(self):
        """The slugs of the mistakes that were recognized without doubt, in the order of the findings."""
        return tuple(dict.fromkeys(slug for f in self.findings if len(f.causes) == 1 for slug in f.causes[0]))

    def __repr__(self):
        wrong = [f.about for f in self.findings if f.kind == "wrong"]
        right = [name for name in NAMES if name not in wrong] if self.compared else []
        lines = [f"{word}: {', '.join(names)}" for word, names in (("right", right), ("wrong", wrong)) if names]
        lines.append(f"compared in {len(self.compared)} of {self.cases} cases")
        for (causes, parts), findings in _grouped(((f.causes, f.parts), f) for f in self.findings):
            lines += ["", *_headline(causes, parts, findings)]
            lines += [f"  {f.about}: {f.text}" for f in findings]
        lines += ["", *("note: " + note for note in self.notes)] if self.notes else []
        lines += [""] if self.not_run else []
        by_reason = _grouped((reason, name) for name, reason in self.not_run.items())
        lines += [f"not run, {reason}: {_quoted(names)}" for reason, names in by_reason]
        lines += [] if self.ok else ["", f"from symptom to cause: {symptom(self._wrong_at_first())}"]
        return "\n".join(_wrapped(line) for line in lines)

    def _wrong_at_first(self):
        """What is wrong in the simplest of the cases in which anything is."""
        wrong = [f for f in self.findings if f.kind == "wrong"]
        since = next((case for case in self.compared if any(case in f.cases for f in wrong)), None)
        return [f.about for f in wrong if since in f.cases]

    def as_json(self):
        """The report as JSON text, for machines."""
        slugs = {slug for f in self.findings for cause in (*f.causes, *f.parts) for slug in cause}
        known = {slug: {"title": title_of(slug), "link": link(slug)} for slug in sorted(slugs & KNOWN.keys())}
        return json.dumps({"ok": self.ok, **asdict(self), "mistakes": known}, indent=2, ensure_ascii=False)


def diagnose(fn, *, library="numpy", dtype="float64", limit=30.0, seed=0):
    """Say whether an attention with a backward is right, and if not, which gradient is wrong, since when, and why.

    .. math::
       dV = P^{\\mathsf T} dO \\qquad dS = P \\circ \\bigl(dP - \\operatorname{rowsum}(P \\circ dP)\\bigr) \\qquad
       dQ = \\text{scale}\\cdot dS\\,K \\qquad dK = \\text{scale}\\cdot dS^{\\mathsf T} Q

    Equations :eq:`eq-dV`, :eq:`eq-dP`, :eq:`eq-dS`, :eq:`eq-dQ` and :eq:`eq-dK` are what it compares with, in float64.

    Parameters
    ----------
    fn : callable, pair of callables, or torch module
        ``fn(Q, K, V, dO, **options) -> (O, dQ, dK, dV)``; or a forward that returns (O, residuals) with its
        backward(dO, residuals), such as ``(ab.attention, ab.attention_vjp)``; or, on torch tensors, a module or any
        ``fn(Q, K, V, **options) -> O``, whose backward is autograd's. The options are those of
        :func:`attnbook.attention`: mask, bias, causal and scale, each passed only in a case that needs it. A case whose
        option fn does not know is not run, and that is no mistake; nor is ``causal="bottom-right"`` where any text
        does for True. torch's own names (attn_mask, is_causal, enable_gqa) are tried where fn knows those. The arrays
        have two, three or four axes, (n, d), (h, n, d) or (b, h, n, d); where fewer than four raise, the case is run
        with axes of length 1 in front, and a note says so.
    library : "numpy", "torch" or "cupy"
        Whose arrays fn is given.
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
    >>> ab.diagnose((ab.attention, ab.attention_vjp))
    right: O, dQ, dK, dV
    compared in 23 of 23 cases
    """
    if dtype not in DTYPES or (dtype == "bfloat16" and library in ("numpy", "cupy")):
        raise ValueError(expected("dtype", "one of " + ", ".join(map(repr, DTYPES)) + " (torch only)", repr(dtype)))
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(expected("seed", "an integer of at least 0", repr(seed)))
    call = Caller(fn, library, limit)
    runs, late = [], 0
    for case in battery(seed, dtype):
        came = call(case) if late < 2 else Came("not run", "two cases took too long before it")
        late += came.kind == "too long"
        run = Run(case, came)
        runs.append(Run(case, TRUE_ONLY) if _takes_any_text(run, call) else run)
    return _report(runs)


TRUE_ONLY = Came("not run", 'it takes any text for True, so it cannot be asked for causal="bottom-right"')
"""What came from a function to which causal is True or False, and any text is true, as Python has it."""


def _takes_any_text(run, call):
    """Whether the other corner was asked for, and O is wrong there, and the same for a corner that there is not."""
    if run.case.options.get("causal") != "bottom-right" or not run.compared or run.right_in("O"):
        return False
    none = call(replace(run.case, options={**run.case.options, "causal": "no corner"}))
    return none.kind == "values" and np.array_equal(none.values["O"], run.came.values["O"], equal_nan=True)


def link(slug):
    """Where the book explains the mistake; None for what has no section."""
    return f"{BOOK}chapters/in_the_wild.html#mistake-{slug}" if slug in MISTAKE else None


def symptom(wrong):
    """Where the book goes on from which results are wrong."""
    return f"{BOOK}book/symptoms.html{SYMPTOM.get(NAMES if 'O' in wrong else tuple(wrong), '')}"


def title_of(slug):
    """What the mistake is, in words."""
    return KNOWN[slug].title


# --- all cases ----------------------------------------------------------------------------------------------------


def _report(runs):
    compared = [run for run in runs if run.compared]
    wrong = {name: [run for run in compared if not run.right_in(name)] for name in NAMES}
    wrong = {name: where for name, where in wrong.items() if where}
    causes, parts = explain(compared, wrong, KNOWN)
    findings = [_of_values(name, where, causes.get(name, ()), parts.get(name, ())) for name, where in wrong.items()]
    findings += _of_calls(runs, causes)
    not_run = {run.name: run.came.text for run in runs if run.came.kind == "not run"}
    if not compared and not findings:
        findings = [Finding("the call", "nothing ran", "no case could be run, so nothing is known")]
    return Report(tuple(findings), _notes(compared), tuple(run.name for run in compared), not_run, len(runs))


def _of_values(name, where, causes, parts):
    error, text = where[0].error(name)
    text = f"{_in_cases(where)}: {text}"
    if not causes and not parts and name != "O" and not where[0].right_in("O"):
        text += "; O is wrong there too: set that right first"
    return Finding(name, "wrong", text, tuple(run.name for run in where), error, causes, parts)


def _of_calls(runs, causes):
    """Findings about calls that gave no values, or wrote into their input; those of one kind and text together."""
    seen = []
    for run in runs:
        if run.came.kind in ("raised", "returned", "too long"):
            what = run.came.text.partition(":")[0] if run.came.kind == "raised" else run.came.text
            seen.append(((run.came.kind, what), run))
        seen += [(("changed", f"{T}, which is its input, is written into"), run) for T in run.came.changed]
    found = []
    for (kind, what), where in _grouped(seen):
        text = "raised " + where[0].came.text if kind == "raised" else what
        same = [each for each in dict.fromkeys(causes.values()) if kind == "raised" and _raise(each, where)]
        names = tuple(run.name for run in where)
        found.append(Finding("the call", kind, f"{_in_cases(where)}: {text}", names, None, *same[:1]))
    return found


def _raise(causes, runs):
    """Whether the cause, where it is known, does not run in these cases either."""
    steps = with_mistakes(*(KNOWN[slug] for slug in causes[0]))
    return len(causes) == 1 and all(run.predicted(steps) is None for run in runs)


def _notes(compared):
    notes = []
    how = {name: {run.right_in(name) for run in compared} for name in NAMES}
    low = [name for name in NAMES if "float32" in how[name] and "" not in how[name]]
    if low:
        notes.append(", ".join(low) + ": right to the precision of float32 only, though float64 went in")
    other = {
        f"{name} is {run.came.dtypes[name]} where {run.case.dtype} went in": None
        for name in NAMES for run in compared if run.came.dtypes[name] != run.case.dtype
    }  # fmt: skip
    wider = _grouped((run.came.text.partition(":")[0], run) for run in compared if run.came.text)
    fewer = (
        f"fewer than four axes are not taken ({where[0].came.text}): four were handed over in "
        + _quoted(run.name for run in where)
        for _, where in wider
    )
    return (*notes, *other, *fewer)


# --- words --------------------------------------------------------------------------------------------------------


def _in_cases(where):
    return f'in "{where[0].name}"' if len(where) == 1 else f'in {len(where)} cases, since "{where[0].name}"'


def _headline(causes, parts, findings):
    lines = []
    for i, slugs in enumerate(causes):
        for j, slug in enumerate(slugs):
            lines.append(("and: " if j else "or: " if i else "") + title_of(slug))
            lines += [f"  {link(slug)}"] if link(slug) else []
    for slug, *cases in parts:
        lines.append(f"{title_of(slug)}: explains {_quoted(cases)}")
        lines += [f"  {link(slug)}"] if link(slug) else []
    if not lines and any(f.kind == "wrong" for f in findings):
        lines.append("no known mistake")
    return lines or ["not as asked"]


def _wrapped(line):
    """The line, broken to fit a page; a link stays as it is."""
    if BOOK in line:
        return line
    deeper = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(line, 88, subsequent_indent=deeper, break_long_words=False, break_on_hyphens=False)


def _quoted(names):
    return ", ".join(f'"{name}"' for name in names)


def _grouped(pairs):
    """(key, [each value that stands beside it]), in the order in which the keys come."""
    groups = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups.items()
