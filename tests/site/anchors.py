"""The addresses that the site has published, in anchors.txt. ``make anchors`` adds new ones; none is ever taken out."""

from pathlib import Path

from built_site import PAGES, SITE, anchors

RECORD = Path(__file__).with_suffix(".txt")
LASTING = ("equation-", "check-", "mistake-", "q-", "symbol-", "attnbook.")


def published():
    """What readers may have linked to: formulas, their checks, mistakes, questions, letters and functions."""
    return {f"{page}#{name}" for page in PAGES for name in anchors(SITE / page) if name.startswith(LASTING)}


def recorded():
    """What was published once."""
    return set(RECORD.read_text(encoding="utf-8").split())


if __name__ == "__main__":
    known = recorded() if RECORD.exists() else set()
    RECORD.write_text("\n".join(sorted(published() | known)) + "\n", encoding="utf-8")
