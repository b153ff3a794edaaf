"""One call of a function, before it is known what it takes. Chapter: :doc:`/chapters/in_the_wild`."""

from dataclasses import dataclass, field, replace

import numpy as np

INPUTS = ("Q", "K", "V", "dO")
MEMORY = ("transposed", "heads last", "expanded", "sliced", "reversed")
"""How an array can lie in memory other than in order, with its last two axes swapped there; (b, n, h, d) there; with
stride 0 along every axis on which its numbers are the same; as a part of a wider array, between numbers that are not
its own; with the sequence backward, which torch does not have."""


@dataclass(frozen=True, eq=False)
class Case:
    """One call: Q, K, V, dO in float64 NumPy, to be handed over in ``dtype``, with ``options``.

    ``optional`` marks what a right function may refuse: to share key heads, a second dtype, the other corner, a window.
    ``memory`` says of some inputs, by name, how they lie in memory, one of :data:`MEMORY`; the others lie in order.
    ``why_not`` is why it cannot be asked of this function, or "". ``row`` is what meets in it, as
    :mod:`attnbook.diagnose.cases.crossed` has it; None for a case of the battery. ``seen`` keeps what was computed.
    """

    name: str
    inputs: tuple
    options: dict = field(default_factory=dict)
    dtype: str = "float64"
    optional: bool = False
    memory: dict = field(default_factory=dict)
    why_not: str = ""
    row: dict | None = None
    seen: dict = field(default_factory=dict, init=False, repr=False)

    @property
    def grouped(self):
        """Whether several query heads share a key head."""
        Q, K = self.inputs[:2]
        return Q.ndim > 2 and Q.shape[-3] != K.shape[-3]

    def enlarged(self, size):
        """The same with queries and keys so large that the largest score is ``size``."""
        Q, K, V, dO = self.inputs
        top = np.max(np.abs(Q @ np.swapaxes(K, -1, -2))) * Q.shape[-1] ** -0.5
        factor = (size / top) ** 0.5
        return replace(self, inputs=(factor * Q, factor * K, V, dO))
