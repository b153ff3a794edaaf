"""Diagnose what runs over several ranks: ring attention, all-gather, all-to-all.

Chapter: :doc:`/chapters/08_checking`. The ranks are threads of this process (``comm``), or processes of their own
(``processes``); ``splits`` are what they are asked, and ``catalogue`` what goes wrong between them.
"""

from attnbook.diagnose.ranks.ranks import Ranks

__all__ = ["Ranks"]
