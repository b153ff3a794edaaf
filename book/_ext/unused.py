"""The site without what no page of it uses: themes and extensions bring 8 MB of scripts, fonts and translations.

A file in _static/ stays where a page names it, or a style sheet or a script that stays; one in _sources/, where a page
links to it. A new version of a theme may bring other files, so none of them is listed here.
"""

import re
from pathlib import Path

from sphinx.util.display import progress_message

# page.mjs makes the name from that of its chapter; licences are for readers; the package's description shows the cover
BY_HAND = ("run/*/*.json", "*LICENSE*", "cover.svg")
NAMES_OTHERS = (".html", ".css", ".js", ".mjs", ".json")
SOURCE_MAP = re.compile(r"^(?://|/\*)# sourceMappingURL=.*$", re.MULTILINE)  # for those who develop the theme


def used(site):
    """The files of _static/ and _sources/ that the site needs."""
    static = site / "_static"
    files = {path for path in static.rglob("*") if path.is_file() and path.suffix != ".map"}
    kept = {path for path in files if any(path.match(pattern) for pattern in BY_HAND)}
    text = _text(kept | {path for path in site.rglob("*.html") if static not in path.parents})
    sources = {path for path in (site / "_sources").rglob("*") if path.relative_to(site).as_posix() in text}
    while named := {path for path in files - kept if path.name in text}:
        kept |= named
        text = _text(named)
    return kept | {path for path in sources if path.is_file()}


def _text(files):
    """What may name other files."""
    return "".join(path.read_text(encoding="utf-8") for path in files if path.suffix in NAMES_OTHERS)


def remove_unused(app, exception):
    if exception or app.builder.format != "html":
        return
    with progress_message("removing what no page uses"):
        site = Path(app.outdir)
        kept = used(site)
        found = (path for folder in ("_static", "_sources") for path in (site / folder).rglob("*"))
        for path in sorted(found, reverse=True):  # a folder after what is in it
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
            elif path.is_file() and path not in kept:
                path.unlink()
        for path in kept:
            if path.suffix in (".css", ".js") and "sourceMappingURL" in (code := path.read_text(encoding="utf-8")):
                path.write_text(SOURCE_MAP.sub("", code), encoding="utf-8")


def setup(app):
    app.connect("build-finished", remove_unused, priority=950)  # after every other extension wrote its files
    return {"parallel_read_safe": True}
