"""Checks: is this gradient right? By differences, by autograd, and by one derivative against the other.

Chapter: :doc:`/chapters/08_checking`. Nothing below imports from here; ``diagnose``, the book and the tests do.
:func:`attnbook.diagnose.report.diagnose` asks one thing more: if it is not right, which known mistake is it?
"""

from attnbook.checks.autograd import autograd_jvp, autograd_vjp, has_flint, has_torch, has_triton
from attnbook.checks.check import Agreement, check_adjoint, check_jvp, check_vjp, close
from attnbook.checks.differences import central_difference, complex_step, forward_difference
from attnbook.checks.tolerances import DIFFERENCES, EXACT

__all__ = [
    "DIFFERENCES",
    "EXACT",
    "Agreement",
    "autograd_jvp",
    "autograd_vjp",
    "central_difference",
    "check_adjoint",
    "check_jvp",
    "check_vjp",
    "close",
    "complex_step",
    "forward_difference",
    "has_flint",
    "has_torch",
    "has_triton",
]
