"""The floating formats, and rounding to them in plain NumPy: bfloat16 too, which NumPy does not have.

Chapter: :doc:`/chapters/10_numerics`.
"""

from typing import NamedTuple

import numpy as np

from attnbook.arrays import expected


class Format(NamedTuple):
    """A binary format (:eq:`def-num-float`): bits of precision, and the range emin ≤ e ≤ emax of exponents."""

    bits: int
    emin: int
    emax: int

    @property
    def u(self):
        """The unit roundoff, half the distance from 1 to the next number."""
        return 2.0**-self.bits

    @property
    def largest(self):
        """The largest finite number."""
        return (2 - 2.0 ** (1 - self.bits)) * 2.0**self.emax

    @property
    def smallest_normal(self):
        """The smallest positive number that has all bits."""
        return 2.0**self.emin

    @property
    def smallest(self):
        """The smallest positive number, and the distance between any two neighbors below ``smallest_normal``."""
        return 2.0 ** (self.emin - self.bits + 1)


FORMATS = {
    "float16": Format(11, -14, 15),
    "bfloat16": Format(8, -126, 127),
    "float32": Format(24, -126, 127),
    "float64": Format(53, -1022, 1023),
}
"""The four formats by the name of their dtype."""


def rounded(x, dtype):
    """The numbers of the format ``dtype`` that are nearest to x, as float64: even on a tie, ±∞ beyond the largest.

    One rounding as the hardware does it (:eq:`eq-num-spacing`). ``dtype`` is a key of :data:`FORMATS`.
    """
    if dtype not in FORMATS:
        raise ValueError(expected("dtype", f"one of {', '.join(FORMATS)}", repr(dtype)))
    x = np.asarray(x, dtype=np.float64)
    if dtype == "float64":
        return x
    form = FORMATS[dtype]
    finite = np.isfinite(x)
    _, e = np.frexp(np.where(finite, x, 0.0))  # |x| = m · 2ᵉ with ½ ≤ m < 1: one less than the e of the definition
    spacing = np.ldexp(1.0, np.maximum(e - 1, form.emin) - form.bits + 1)
    with np.errstate(over="ignore"):
        y = np.where(finite, np.rint(x / spacing) * spacing, x)
    return np.where(np.abs(y) > form.largest, np.copysign(np.inf, x), y)


def any_rounding(dtype):
    """A function that rounds balls to a format in any way, up or down: each grows by the most that it may be off.

    What runs with it on :mod:`attnbook.checks.balls` holds the result of every machine that rounds after these steps.
    """
    from attnbook.checks.balls import widened

    form = FORMATS[dtype]
    return lambda T: widened(T, form.u, form.smallest / 2, form.largest)
