"""What a page loads: one style sheet without the rules that no page uses, a few icons, and scripts that wait for it.

The theme brings all of Bootstrap and Font Awesome, 2 MB on every page. Some 40 kB of it are shown or run.
"""

import logging
import re
import subprocess
from hashlib import sha256
from pathlib import Path

import rcssmin
from fontTools import subset
from formulas import NODE
from sphinx.errors import ExtensionError
from sphinx.util.display import progress_message

PURGECSS = Path(__file__).parents[1] / "node_modules" / "purgecss" / "bin" / "purgecss.js"
THEME = ("basic.css", "styles/pydata-sphinx-theme.css")
SHEET = "site.css"
THEME_SCRIPT = "scripts/pydata-sphinx-theme.js"
ADDRESS = re.compile(r"url\((['\"]?)(?!data:|#)([^)'\"]+)\1\)")
NOT_IN_THE_MIDDLE = re.compile(r"@(?:charset|import)[^;]*;")  # of a sheet; what they import is first in THEME
ICON = re.compile(r"\"\\([ef][0-9a-f]{3})\"")
ICON_FONT = re.compile(r"url\(vendor/fontawesome/webfonts/([\w-]+)\.woff2\)\s*format\([^)]*\),\s*url\([^)]*\)[^;}]*")
TAB_STOPS = re.compile(r'"pre","\.nboutput > \.output_area".*?"\.pst-scrollable-table-container"')
NO_TAB_STOPS = '"none:not(*)"'
STORAGE = """const safe=(store)=>({getItem(name){try{return store().getItem(name)}catch{return null}},
setItem(name,value){try{store().setItem(name,value)}catch{}}});
const kept_local=safe(()=>localStorage),kept_session=safe(()=>sessionStorage);"""
STORED = re.compile(r"\b(local|session)Storage\.(?=[gs]etItem)")
SECOND_VIEWPORT = re.compile(r'<meta name="viewport"[^>]*>\s*')  # of docutils; the theme's page has one
NOT_USED = re.compile(r"thebe|OPTIONS\.pagename|toggle", re.IGNORECASE)


def shorten_head(app, pagename, templatename, context, doctree):
    """Leave out of a page's head what it does without, and let scripts wait until the page is shown."""
    everywhere = app.builder._orig_css_files
    context["css_files"] = [sheet for sheet in context["css_files"] if sheet not in everywhere]
    context["site_css"] = f"{SHEET}?v={_digest(app)}"
    context["metatags"] = SECOND_VIEWPORT.sub("", context["metatags"])
    # sphinx-thebe is never used, and its second copy is an error on every page; the name of the page is for a menu of
    # versions, which we do not have; what sphinx-togglebutton folds is a <details> here.
    scripts = {_written(s): s for s in context["script_files"] if not NOT_USED.search(_written(s))}.values()
    if templatename != "search.html":  # Sphinx's, where scripts of the template come after these and need them
        scripts = [_waiting(script) if script.filename else script for script in scripts]
    context["script_files"] = scripts


def _waiting(script):
    """The same script, run when the page is there."""
    return type(script)(script.filename, priority=script.priority, **{"defer": "defer", **script.attributes})


def _written(script):
    """The address of a script, or the code that stands in the page."""
    return f"{script.filename or ''} {script.attributes.get('body', '')}".strip()


def _sheets(app):
    """The style sheets of every page, in order."""
    ours = sorted(app.builder._css_files, key=lambda sheet: sheet.priority)
    return [Path(app.outdir, "_static", name) for name in THEME] + [Path(app.outdir, sheet.filename) for sheet in ours]


def _digest(app):
    """What changes the address of the style sheet when it changes."""
    if not hasattr(app, "site_css_digest"):
        known = [sheet.read_bytes() for sheet in _sheets(app) if sheet.exists()]  # MyST-NB copies its own at the end
        app.site_css_digest = sha256(b"".join(known)).hexdigest()[:8]
    return app.site_css_digest


def _joined(app):
    """All style sheets in one, with addresses that hold in _static/."""
    static = Path(app.outdir, "_static")

    def rules(path):
        def from_static(match):
            return f"url({(path.parent / match[2]).resolve().relative_to(static.resolve()).as_posix()})"

        return ADDRESS.sub(from_static, NOT_IN_THE_MIDDLE.sub("", path.read_text(encoding="utf-8")))

    return "\n".join(rules(path) for path in _sheets(app))


def write_style(app, exception):
    if exception or app.builder.format != "html":
        return
    static = Path(app.outdir, "_static")
    sheet = static / SHEET
    if sheet.exists() and not all(part.exists() for part in _sheets(app)):
        return  # no page was written anew: what the sheet is made of was removed by unused.py
    with progress_message("writing one style sheet"):
        sheet.write_text(_joined(app), encoding="utf-8")
        if PURGECSS.exists():
            code = [f"{static}/*.js", f"{static}/run/**/*.mjs", str(static / THEME_SCRIPT)]
            content = [f"{app.outdir}/**/*.html", *code]
            subprocess.run(
                [NODE, PURGECSS, "--css", sheet, "--content", *content, "--font-face", "--output", sheet], check=True
            )
        css = _with_small_icons(sheet.read_text(encoding="utf-8"), static)
        sheet.write_text(rcssmin.cssmin(css, keep_bang_comments=True), encoding="utf-8")


def _with_small_icons(css, static):
    """Font Awesome's fonts, cut down to the icons that the rules name."""
    icons = [int(code, 16) for code in ICON.findall(css)]
    (static / "icons").mkdir(exist_ok=True)

    def smaller(match):
        fonts = static / "vendor" / "fontawesome"
        font = subset.load_font(fonts / "webfonts" / f"{match[1]}.ttf", subset.Options())
        options = subset.Options(flavor="woff", layout_features=[], drop_tables=["GSUB"])
        cut = subset.Subsetter(options)
        cut.populate(unicodes=icons)
        cut.subset(font)
        subset.save_font(font, static / "icons" / f"{match[1]}.woff", options)
        return f'url(icons/{match[1]}.woff) format("woff")'

    return ICON_FONT.sub(smaller, css)


def leave_tab_stops_to_us(app, exception):
    """The theme measures every code block when a page opens, and so lays out all of it: scrollers.js does without.

    It also ends, with an error, where a browser's storage is full or blocked: there it remembers nothing.
    """
    if exception or app.builder.format != "html":
        return
    script = Path(app.outdir, "_static", THEME_SCRIPT)
    code = script.read_text(encoding="utf-8")
    without = TAB_STOPS.sub(NO_TAB_STOPS, code)
    if NO_TAB_STOPS not in without:
        raise ExtensionError("the theme's script is another one: see leave_tab_stops_to_us in site_assets.py")
    if STORAGE not in without:
        code = STORED.sub(r"kept_\1.", without)
        without = f"{{{STORAGE}\n{code}\n}}"
    script.write_text(without, encoding="utf-8")


def mend_names(app, pagename, templatename, context, doctree):
    """What a screen reader is told: a work in a list of works is an item, and a fold's name is what it shows."""
    if "body" in context:
        body = context["body"].replace('role="doc-biblioentry"', 'role="listitem"')
        context["body"] = body.replace('<summary aria-label="Toggle hidden content">', "<summary>")


def setup(app):
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it tells of each table of a font
    app.connect("html-page-context", shorten_head, priority=900)
    app.connect("html-page-context", mend_names)
    app.connect("build-finished", write_style, priority=900)  # after the theme wrote the colours of code
    app.connect("build-finished", leave_tab_stops_to_us)
    return {"parallel_read_safe": True}
