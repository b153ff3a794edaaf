"""Diagnose: is this attention's gradient right, and if not, which known mistake is it?

Chapter: :doc:`/chapters/in_the_wild`. It reads the catalogue ``mistakes``, and runs the cases of ``battery``.
"""

from attnbook.diagnose.ranks import Ranks
from attnbook.diagnose.report import Finding, Report, diagnose

__all__ = ["Finding", "Ranks", "Report", "diagnose"]
