"""One call of a function, before it is known what it takes. Chapter: :doc:`/chapters/in_the_wild`."""

from dataclasses import dataclass, field, replace

import numpy as np


@dataclass(frozen=True, eq=False)
class Case:
    """One call: Q, K, V, dO in float64 NumPy, to be handed over in ``dtype``, with ``options``.

    ``optional`` marks what a right function may refuse: to share key heads, a second dtype, the other corner, a window.
    ``memory`` says of some inputs, by name, how they lie in memory, one of :data:`MEMORY`; the others lie in order.
    ``why_not`` is why it cannot be asked of this function, or "". ``seen`` keeps what was computed for it.
    """

    name: str
    inputs: tuple
    options: dict = field(default_factory=dict)
    dtype: str = "float64"
    optional: bool = False
    memory: dict = field(default_factory=dict)
    why_not: str = ""
    seen: dict = field(default_factory=dict, init=False, repr=False)

    @property
    def grouped(self):
        """Whether several query heads share a key head."""
        Q, K = self.inputs[:2]
        return Q.ndim > 2 and Q.shape[-3] != K.shape[-3]

    def with_four_axes(self):
        """The same with axes of length 1 in front, for what takes four axes only; None where all have four."""

        def wide(T):
            return T.reshape((1,) * (4 - T.ndim) + T.shape) if isinstance(T, np.ndarray) else T

        tables = {name: self.options[name] for name in ("mask", "bias") if name in self.options}
        if all(T.ndim == 4 for T in (*self.inputs, *tables.values())):
            return None
        options = self.options | {name: wide(T) for name, T in tables.items()}
        if "dL" in options:  # (..., n_q)
            options["dL"] = wide(options["dL"][..., None])[..., 0]
        return replace(self, inputs=tuple(map(wide, self.inputs)), options=options)
