"""Reports of ``diagnose`` and of ``grade`` for machines and for pages: JUnit, and HTML with pictures of what is wrong.

Chapter: :doc:`/chapters/in_the_wild`.
"""

from attnbook.reports.graded import graded_html, graded_junit
from attnbook.reports.html import as_html
from attnbook.reports.junit import as_junit, too_few
from attnbook.reports.picture import picture, wrong_entries

__all__ = ["as_html", "as_junit", "graded_html", "graded_junit", "picture", "too_few", "wrong_entries"]
