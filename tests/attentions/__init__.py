"""Every attention that tests ask about, and what ``diagnose`` says of it, asked once a run.

``right`` and ``narrow`` (which refuse as real kernels do) are right; ``wrong`` has lines that people wrote, and what
must be named; ``over_ranks`` and ``wrong_over_ranks`` are one rank's part; ``of_symptoms`` has the right lines of that
page, ``cs336`` a course's solutions. A wrong one is an entry of ``wrong.WRONG`` or ``wrong_over_ranks.PLANTED``; what
the catalogue knows needs none: ``MISTAKE[slug].run`` is an attention too.
"""

from dataclasses import replace
from functools import cache

import attnbook as ab


def told(fn, library=None, **options):
    """The report of ``diagnose``, without its arrays; the same one for the same function, library and options.

    Not for a test that is run with a mistake planted, which would be told what was told before.
    """
    return _told(fn, library, tuple(options.items()))


@cache
def _told(fn, library, options):
    return replace(ab.diagnose(fn, library, **dict(options)), runs=())
