"""Derivatives from function values alone. Chapter: :doc:`/chapters/02_gradients`."""

from attnbook.checks.tolerances import STEP


def forward_difference(f, x, t, h=1e-8):
    """(f(x + h t) − f(x)) / h: the derivative along t; its error shrinks like h (:eq:`eq-forward-difference`)."""
    return (f(x + h * t) - f(x)) / h


def central_difference(f, x, t, h=STEP):
    """(f(x + h t) − f(x − h t)) / 2h: its error shrinks like h² (:eq:`eq-central-difference`)."""
    return (f(x + h * t) - f(x - h * t)) / (2 * h)


def complex_step(f, x, t, h=1e-200):
    """Im f(x + i h t) / h: no subtraction, so no rounding error to grow as h shrinks (:eq:`eq-complex-step`).

    Needs an f that is analytic and takes complex input: no maximum, no absolute value, no comparison.
    """
    return f(x + 1j * h * t).imag / h
