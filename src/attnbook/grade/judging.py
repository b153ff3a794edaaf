"""How what a submission returns is judged, in the grader's own process. Chapter: :doc:`/chapters/08_checking`.

``attention`` and ``cs336`` ask as :func:`attnbook.diagnose.report.diagnose` does, in the cases that the exercise
is about.
"""

import inspect
from dataclasses import dataclass, field

import numpy as np

from attnbook.diagnose.case import Case
from attnbook.diagnose.cases.battery import LARGE, battery
from attnbook.diagnose.cases.determinism import check_determinism
from attnbook.diagnose.cases.run import Run
from attnbook.diagnose.learn.caller import Caller
from attnbook.diagnose.learn.convention import Convention
from attnbook.diagnose.learn.learner import Learner
from attnbook.diagnose.learn.results import NAMES
from attnbook.diagnose.report import report_of
from attnbook.grade.gaps import Gaps

FOREVER = 1e6
"""In seconds; a submission has a limit of its own, for all calls together."""


SAID = {"raised": "it raised", "returned": "it returned something else", "too long": "it took too long"}
"""What came in a case, where no results did."""

COUNTS = "{}: right where the call returned, and {} explains why it raised elsewhere, so it counts"
"""What is said of parts that a known mistake does not spoil, by which the call raises."""


@dataclass
class Judged:
    """``parts``: {part: "right", "wrong" or "not known"}; ``why``: lines of text; ``mistakes``: slugs, sure ones only.

    ``possible`` are those that the cases cannot tell apart; ``causes`` is {wrong part: mistakes that explain it, each a
    tuple of slugs, several where the cases cannot tell}, without the parts that no known mistake explains.
    """

    parts: dict
    mistakes: tuple = ()
    why: list = field(default_factory=list)
    possible: tuple = ()
    causes: dict = field(default_factory=dict)


class _Promised(Caller):
    """Asks as the exercise promised: what else the function takes need not be found out."""

    took = True

    def __init__(self, fn, convention):
        self.promised = convention
        super().__init__(fn, "numpy", FOREVER, convention.dtypes[0])
        self.learner = Learner(self.call, self.arrays, self.known, self.dtype)  # has learnt nothing

    @property
    def convention(self):
        return self.promised


def _judged(fn, cases, convention, exercise):
    """What ``diagnose`` finds in these cases; where gradients are lacking, what it finds without them."""
    gaps = Gaps()
    report = _asked(gaps.noted(fn), cases, convention, gaps)
    judged = _of_report(report, exercise)
    explained = {case for finding in _explained(report) for case in finding.cases}
    all_known = explained and gaps.cases <= {*explained, *report.not_run} and "not known" not in judged.parts.values()
    if not gaps.names or all_known:
        return judged
    rest = _of_report(_asked(gaps.filled(fn), cases, convention, gaps), exercise)
    wrong = gaps.names | {name for name, verdict in judged.parts.items() if verdict == "wrong"}
    about = [line for line in judged.why if line.partition(":")[0] in wrong]
    said = {line.partition(":")[0] for line in about}
    why = [*about, *gaps.why(), *(line for line in rest.why if line.partition(":")[0] not in said)]
    parts = rest.parts | dict.fromkeys(wrong, "wrong")
    why += ["O: right in all cases, so it counts"] if parts["O"] == "right" else []
    causes = {name: each for name, each in (rest.causes | judged.causes).items() if name not in gaps.names}
    found = judged if judged.causes else rest
    return Judged(parts, found.mistakes, why, found.possible, causes)


def _asked(fn, cases, convention, gaps):
    call, runs = _Promised(fn, convention), []
    for case in cases:
        gaps.case = case.name
        runs.append(Run(case, call(case)))
    gaps.case = None
    return report_of(runs, call, *check_determinism(call, runs))


def attention(*options, grouped=False):
    """A judge of ``fn(Q, K, V, dO, **options) -> (O, dQ, dK, dV)``, by the cases of ``diagnose`` with these options.

    Query heads share key heads only where ``grouped``. All required cases must be compared.
    """

    def judge(submission, exercise, seed):
        cases = [
            case for case in battery(seed)
            if case.options.keys() <= set(options) and case.options.get("causal", True) is True
            and (grouped or not case.grouped)
        ]  # fmt: skip
        return _judged(_as_function(submission), cases, Convention(), exercise)

    return judge


def cs336(submission, exercise, seed):
    """Judge ``apply(Q, K, V, is_causal)`` with arrays of three axes and the sizes that the assignment promises."""
    saved = []

    def fn(Q, K, V, dO, *, causal=False):
        *results, L = submission.call([Q, K, V, dO], causal=bool(causal))
        saved.append((Q, K, causal, L))
        return results

    judged = _judged(fn, assignment(seed), PROMISED, exercise)
    text = next(filter(None, (_wrong_logsumexp(*each) for each in saved)), "") if saved else "no call returned"
    judged.parts["L"] = "wrong" if saved and text else "right" if saved else "not known"
    judged.why += [f"L: {text}"] if text else []
    return judged


PROMISED = Convention(
    axes=(3,), lengths=(16, 32, 64, 128), widths=(16, 32, 64), equal_widths=True, grouped=False, dtypes=("float32",)
)
"""What the assignment promises, float32, a batch axis, equal widths, all sizes powers of 2 from 16 on."""


def assignment(seed=0):
    """The cases of the assignment: those of its own tests, what they leave out, and arrays that lie otherwise."""
    rng = np.random.default_rng(seed)

    def case(name, n_q, n_k, d, b=2, largest=None, **options):
        Q, K, V, dO = (rng.standard_normal((b, n, d)) for n in (n_q, n_k, n_k, n_q))
        top = np.max(np.abs(Q @ np.swapaxes(K, -1, -2))) * d**-0.5
        factor = 1.0 if largest is None else (largest / top) ** 0.5
        return Case(name, (factor * Q, factor * K, V, dO), options, "float32")

    otherwise = [each for each in battery(seed, "float32", PROMISED) if each.memory and not each.why_not]
    return [
        case("plain", 16, 16, 16, b=1),
        case("several tiles", 32, 32, 16),
        case("all axes equal", 16, 16, 16, b=16),
        case("square", 32, 32, 32),
        case("more keys", 32, 64, 16),
        case("fewer keys", 64, 32, 16),
        case("causal", 16, 16, 16, b=1, causal=True),
        case("causal, several tiles", 32, 32, 16, causal=True),
        case("causal, square", 32, 32, 32, causal=True),
        case("causal, more keys", 16, 64, 32, causal=True),
        case("causal, fewer keys", 64, 16, 32, causal=True),
        case("large scores", 32, 32, 16, largest=LARGE["float32"]),
        case("the course's own", 128, 128, 64, b=4),
        case("the course's own, causal", 128, 128, 64, b=4, causal=True),
        *otherwise,
    ]


def _wrong_logsumexp(Q, K, causal, L):
    """What is wrong with the L that was saved; "" where nothing is."""
    if not isinstance(L, np.ndarray):
        return f"{type(L).__name__}, expected one saved tensor of the shape of O without its last axis"
    Q, K = Q.astype(np.float64), K.astype(np.float64)
    S = Q @ np.swapaxes(K, -1, -2) * Q.shape[-1] ** -0.5
    S = np.where(np.tri(*S.shape[-2:], dtype=bool), S, -np.inf) if causal else S
    M = S.max(axis=-1)
    right = M + np.log(np.exp(S - M[..., None]).sum(axis=-1))
    off = np.max(np.abs(L - right)) if L.shape == right.shape else np.inf
    return "" if off <= 1e-5 * np.max(1 + np.abs(right)) else "the saved tensor is not the log-sum-exp of the scores"


def _as_function(submission):
    """The submission as a function whose signature admits the options that it takes."""

    def fn(*arrays, **options):
        return submission.call(list(arrays), **options)

    Kind = inspect.Parameter
    inputs = [Kind(name, Kind.POSITIONAL_ONLY) for name in ("Q", "K", "V", "dO")]
    if submission.options is None:
        rest = [Kind("options", Kind.VAR_KEYWORD)]
    else:
        names = [name for name in submission.options if name not in ("Q", "K", "V", "dO")]
        rest = [Kind(name, Kind.KEYWORD_ONLY, default=None) for name in names if name.isidentifier()]
    fn.__signature__ = inspect.Signature(inputs + rest)
    return fn


def _explained(report):
    """The findings about calls that raised as a mistake that has a name would."""
    return [finding for finding in report.findings if finding.kind == "raised" and finding.causes]


def _of_two_axes(report, wrong):
    """In a line, what is right of a head alone, and no more where batch and heads come before."""
    plain = {run.name for run in report.runs if run.case.inputs[0].ndim == 2 and run.compared}
    failed = {name: {c for f in report.findings if f.about == name for c in f.cases} for name in (*wrong, "the call")}
    right = [n for n in NAMES if (n in wrong or failed["the call"]) and not failed.get(n, set()) & plain]
    if not plain or not right or failed["the call"] & plain:
        return []
    return [f"with two axes alone: {', '.join(right)} right in all {len(plain)} cases"]


def _of_report(report, exercise):
    wrong = {finding.about for finding in report.findings if finding.about in NAMES}
    others = [finding for finding in report.findings if finding.about not in NAMES]
    explained = _explained(report)
    known = {*report.compared, *(case for finding in explained for case in finding.cases)}
    missing = [name for name in exercise.required if name not in known]
    rest = "not known" if missing or len(explained) < len(others) else "right"
    parts = {name: "wrong" if name in wrong else rest for name in NAMES}
    why = [f"{finding.about}: {finding.text}" for finding in report.findings]
    kept = ", ".join(name for name, verdict in parts.items() if verdict == "right")
    why += [COUNTS.format(kept, " with ".join(explained[0].causes[0]))] if explained and kept else []
    why += _of_two_axes(report, wrong)
    kinds = {run.name: SAID.get(run.came.kind) for run in report.runs}
    reasons = {report.not_run.get(name) or kinds.get(name) or "the call gave no results" for name in missing}
    why += [f"not run, and required: {', '.join(missing)} ({'; '.join(sorted(reasons))})"] if missing else []
    about = {name: [finding for finding in report.findings if finding.about == name] for name in wrong}
    causes = {name: each[0].causes for name, each in about.items() if all(finding.causes for finding in each)}
    alike = (
        slug for finding in report.findings if len(finding.causes) > 1 for cause in finding.causes for slug in cause
    )
    possible = tuple(slug for slug in dict.fromkeys(alike) if slug not in report.mistakes)
    return Judged(parts, report.mistakes, why, possible, causes)
