"""Derivatives from function values alone. Chapter: :doc:`/chapters/08_checking`."""

from collections.abc import Callable
from typing import Any

from attnbook.checks.tolerances import STEP


def forward_difference(f: Callable[..., Any], x: Any, t: Any, step: float = 1e-8) -> Any:
    """(f(x + ε t) − f(x)) / ε: the derivative along t; its error shrinks like ε (:eq:`eq-forward-difference`)."""
    return (f(x + step * t) - f(x)) / step  # eq-forward-difference


def central_difference(f: Callable[..., Any], x: Any, t: Any, step: float = STEP) -> Any:
    """(f(x + ε t) − f(x − ε t)) / 2ε: its error shrinks like ε² (:eq:`eq-central-difference`)."""
    return (f(x + step * t) - f(x - step * t)) / (2 * step)  # eq-central-difference


def complex_step(f: Callable[..., Any], x: Any, t: Any, step: float = 1e-200) -> Any:
    """Im f(x + i ε t) / ε: no subtraction, so no rounding error to grow as ε shrinks (:eq:`eq-complex-step`).

    Needs an f that is analytic and takes complex input: no maximum, no absolute value, no comparison.
    """
    return f(x + 1j * step * t).imag / step  # eq-complex-step
