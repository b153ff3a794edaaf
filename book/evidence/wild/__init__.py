"""What five texts on the web say about attention's gradients, claim by claim, in a form that runs.

Chapter: :doc:`/chapters/in_the_wild`. One file a text. ``CLAIMS`` has every claim; ``SETTINGS`` are the sizes at
which each is run: all distinct, where a wrong transpose cannot fit, and all equal, where it can.
"""

import re

from evidence.claims import Ledger
from evidence.wild import across, blog, explicit, listing, listing_code, question, short
from evidence.wild.errors import ERRORS, IN_OUR_COPY, DistinctErrors
from evidence.wild.listed import CRASHES, LIMITS, SILENT, Listed, gradient_errors
from evidence.wild.setting import DISTINCT, SQUARE


def _by_number(claims):
    return sorted(claims, key=lambda claim: [int(x) if x.isdigit() else x for x in re.split(r"(\d+)", claim.id)])


CLAIMS = (
    *question.CLAIMS,
    *blog.CLAIMS,
    *_by_number([*listing.CLAIMS, *listing_code.CLAIMS]),
    *explicit.CLAIMS,
    *short.CLAIMS,
    *across.CLAIMS,
)
SETTINGS = (DISTINCT, SQUARE)
TEXTS = {
    "S0": "The question and its answer",
    "S1": "The matrix calculus",
    "S2": "The long note",
    "S3": "The explicit note",
    "S4": "The short note",
    "X": "All five",
}


def ledger():
    """Run every claim."""
    return Ledger(CLAIMS, SETTINGS, TEXTS)


__all__ = [
    "CLAIMS",
    "CRASHES",
    "DISTINCT",
    "ERRORS",
    "IN_OUR_COPY",
    "LIMITS",
    "SETTINGS",
    "SILENT",
    "SQUARE",
    "TEXTS",
    "DistinctErrors",
    "Listed",
    "gradient_errors",
    "ledger",
]
