"""All that is known to go wrong, by its name. Chapter: :doc:`/chapters/in_the_wild`."""

from attnbook.diagnose.causes._infer import TITLES as INFERRED
from attnbook.diagnose.causes.faults import FAULTS, IGNORED
from attnbook.diagnose.causes.mistakes import MISTAKE, MISTAKES

CAUSES = (*MISTAKES, *IGNORED, *FAULTS)
"""Every known cause, in each way in which it is made, the catalogue first."""

KNOWN = {cause.slug: cause for cause in reversed(CAUSES)}
"""The first way of each, by slug."""

TITLES = {slug: cause.title for slug, cause in KNOWN.items()} | INFERRED
"""What each name says, by slug."""

PAGES = {slug: slug if slug in MISTAKE else cause.page for slug, cause in KNOWN.items()}
"""The section of the book that explains it, by slug; None where there is none."""
