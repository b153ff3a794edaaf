"""What a function takes without a word, and does nothing with. Chapter: :doc:`/chapters/in_the_wild`."""

from dataclasses import replace

import numpy as np

from attnbook.diagnose.cases.run import wrong_in
from attnbook.diagnose.learn.results import Came

FEW = frozenset({"window", "softcap", "sink", "slopes", "cos", "sin", "dropout", "dL"})
"""Options that few functions know, so that none is asked who does not name them or heed them."""


def swallowed(run, call):
    """Where fn takes any keyword, and gives the same with and without the options of this case that few know, a Came
    that says so; else None. Who knows the option and ignores it refuses a name that nothing has.
    """
    few = [name for name in run.case.options if name in FEW]
    if not few or not run.compared or call.known.names is not None or not wrong_in([run]):
        return None
    rest = {name: value for name, value in run.case.options.items() if name not in few}
    without = call(replace(run.case, options=rest))
    if without.kind != "values" or not all(
        np.array_equal(T, without.values[name], equal_nan=True)
        for name, T in run.came.values.items()
        if name in without.values
    ):
        return None
    if call.with_fn(_with_another(call))(run.case).kind != "values":
        return None
    return Came("not run", f"it takes any name, and does nothing with {' and '.join(few)}")


def _with_another(call):
    """The function of ``call``, given an option more, of a name that nothing has."""
    forward = call.fn[0] if call.form == "pair" else call.fn

    def more(*inputs, **options):
        return forward(*inputs, **options, no_such_option=1)

    return (more, call.fn[1]) if call.form == "pair" else more
