"""Small repairs of the theme's pages."""


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
    app.connect("html-page-context", drop_repeated_scripts, priority=900)
    app.connect("html-page-context", name_the_list_of_works)
    return {"parallel_read_safe": True}
