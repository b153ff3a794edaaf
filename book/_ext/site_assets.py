"""What the site carries itself, so that a page asks no other host: MathJax. And small repairs of the theme's pages."""

from importlib.metadata import files
from pathlib import Path

from sphinx.util.fileutil import copy_asset

PACKAGE = "sphinx-mathjax-offline"
ENTRY = "mathjax/tex-mml-chtml.js"
NEEDED = (ENTRY, "mathjax/output/chtml/fonts/woff-v2/", "mathjax/a11y/", "mathjax/input/mml/")


def copy_mathjax(app):
    """Copy the entry script, its fonts and what its menu loads on demand: 2 MB of the package's 13."""
    for file in files(PACKAGE):
        place = str(file).partition("/static/")[2]
        if place.startswith(NEEDED):
            copy_asset(str(file.locate()), str(Path(app.outdir, "_static", place).parent))


def drop_repeated_scripts(app, pagename, templatename, context, doctree):
    """Jupyter Book and the theme both add sphinx-thebe, whose second copy is an error on every page. We use neither."""
    scripts = context.get("script_files", [])
    context["script_files"] = [s for s in scripts if "thebe" not in _written(s).lower()]
    context["css_files"] = [c for c in context.get("css_files", []) if "thebe" not in _written(c).lower()]


def name_the_list_of_works(app, pagename, templatename, context, doctree):
    """docutils gives each work of a bibliography a deprecated role, which no list may hold: make it an item."""
    if "body" in context:
        context["body"] = context["body"].replace('role="doc-biblioentry"', 'role="listitem"')


def _written(asset):
    """The address of a script or style sheet, or the code that stands in the page."""
    return f"{getattr(asset, 'filename', asset)} {getattr(asset, 'attributes', {}).get('body', '')}"


def setup(app):
    app.config.mathjax_path = ENTRY
    app.connect("builder-inited", copy_mathjax)
    app.connect("html-page-context", drop_repeated_scripts, priority=900)
    app.connect("html-page-context", name_the_list_of_works)
    return {"parallel_read_safe": True}
