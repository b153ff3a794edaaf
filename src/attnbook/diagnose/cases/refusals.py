"""Which refusals are limits of a function and which are its mistakes. Chapter: :doc:`/chapters/in_the_wild`.

What it takes somewhere and refuses elsewhere is a mistake. What a statement of its own refuses wherever it is asked,
such as an option, options together or large sizes, is a limit.
"""

from dataclasses import replace

import numpy as np

from attnbook.diagnose.cases.run import Run
from attnbook.diagnose.learn.laid_out import fitted
from attnbook.diagnose.learn.results import Came


def limited(runs, call):
    """The runs, those that raised at a limit with the reason why they were not run.

    ``call`` is asked whether it takes a rounder size where it refuses a large one.
    """
    runs = [_with_four_axes(run, call) for run in runs]
    raised = [run for run in runs if run.came.kind == "raised"]
    refused = {run: _options(run, runs) for run in raised if run.came.refused and not run.case.memory}
    large = _large([run for run, why in refused.items() if not why], [run for run in runs if run.compared], call)
    whys = {run: why for run, why in (refused | large).items() if why}
    return [Run(run.case, run.came._replace(kind="not run", text=whys[run])) if run in whys else run for run in runs]


def _with_four_axes(run, call):
    """The run, or where it raises with fewer axes, though it may have taken them elsewhere by chance, one with four."""
    if run.came.kind != "raised" or run.case.inputs[0].ndim == 4 or 4 not in call.convention.axes:
        return run
    convention = replace(call.convention, axes=(4,))
    case = fitted(run.case, convention)
    came = case if isinstance(case, Came) else call.call(case, convention)
    return Run(run.case, came._replace(text=run.came.text)) if came.kind == "values" else run


def _options(run, runs):
    """Why the options of the run are refused, where they always are; or ""."""
    for option in run.case.options:
        asked = [each for each in runs if option in each.case.options and each.came.kind != "not run"]
        if all(each.came.refused for each in asked):
            return f"it refuses {option}: {run.came.text}"
    if len(run.case.options) > 1:
        *others, last = run.case.options
        return f"it refuses {', '.join(others)} and {last} together: {run.came.text}"
    return ""


def _large(refused, compared, call):
    """The reason for each, where all of them are longer or wider than whatever was taken."""
    if not refused or not compared:
        return {}
    longest, widest = (max(size(run) for run in compared) for size in (_length, _width))
    whys = {}
    for run in refused:
        if _length(run) > longest:
            whys[run] = f"it takes no length of {_length(run)}: {run.came.text}"
        elif _width(run) > widest:
            whys[run] = f"it takes no width of {_width(run)}: {run.came.text}"
    if len(whys) != len(refused) or any(call(_rounder(run.case)).kind == "values" for run in whys):
        return {}
    return whys


def _rounder(case):
    """The case with lengths and widths that 128 divides, as a kernel with tiles likes them."""
    inputs = [np.resize(T, (*T.shape[:-2], *(-(-size // 128) * 128 for size in T.shape[-2:]))) for T in case.inputs]
    return replace(case, inputs=tuple(inputs), options={})


def _length(run):
    Q, K = run.case.inputs[:2]
    return max(Q.shape[-2], K.shape[-2])


def _width(run):
    Q, _, V, _ = run.case.inputs
    return max(Q.shape[-1], V.shape[-1])
