"""Where the book goes on: from a mistake, and from what is wrong. Page: :doc:`/book/symptoms`."""

from attnbook.diagnose.causes.registry import PAGES, TITLES
from attnbook.diagnose.learn.results import NAMES

BOOK = "https://attnbook.github.io/attnbook/"
"""Where the book is published; links of a report begin with it."""

ALIKE = {"grouped heads": "#symptom-groups", "in memory": "#symptom-strides"}
"""Where the page of symptoms goes on, by what the names of all wrong cases have in common."""

SYMPTOM = {
    ("dQ",): "#symptom-dq",
    ("dK",): "#symptom-dk",
    ("dV",): "#symptom-dv",
    ("dQ", "dK"): "#symptom-dq-dk",
    ("dK", "dV"): "#symptom-dk-dv",
    ("dQ", "dK", "dV"): "#symptom-all",
    ("O", "dQ", "dK", "dV"): "#symptom-forward",
}
"""Where the page of symptoms goes on, by what is wrong; at its top for all else, or for O where that is wrong."""


def link(slug):
    """Where the book explains the mistake; None for what has no section."""
    return f"{BOOK}chapters/in_the_wild.html#mistake-{PAGES[slug]}" if PAGES.get(slug) else None


def symptom(wrong):
    """Where the book goes on from which results are wrong."""
    return f"{BOOK}book/symptoms.html{SYMPTOM.get(NAMES if 'O' in wrong else tuple(wrong), '')}"


def title_of(slug):
    """What the mistake is, in words."""
    return TITLES[slug] if slug in TITLES else of_ranks().TITLES[slug]


def of_ranks():
    """The search for what goes wrong over several ranks: what few need is not loaded by all."""
    from attnbook.diagnose.ranks import explain

    return explain
