"""Diagnose: is this attention's gradient right, and if not, which known mistake is it?

Chapter: :doc:`/chapters/in_the_wild`. ``learn`` finds out what a function takes, ``cases`` is what it is
asked, ``steps`` what is right, ``causes`` what goes wrong, and ``ranks`` has all of it for several; ``report`` says it.
"""

from attnbook.diagnose.ranks import Ranks
from attnbook.diagnose.report import Finding, Report, diagnose

__all__ = ["Finding", "Ranks", "Report", "diagnose"]
