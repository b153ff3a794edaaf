"""Chapters that run in the reader's browser: what the site carries for it, and the bar above each chapter.

All of it lies in one folder named after its contents, so that a browser's cache can never mix two builds. The page
itself carries only ``start.mjs``; see the files in book/_run for what happens when a button is pressed.
"""

import base64
import hashlib
import io
import json
import re
import shutil
import zipfile
from functools import cache
from html import escape
from importlib.metadata import distribution
from pathlib import Path
from urllib.parse import urlsplit

import pyodide_files
from docutils import nodes
from sphinx.util import logging
from sphinx.util.fileutil import copy_asset_file

ROOT = Path(__file__).parents[2]
RUN = ROOT / "book" / "_run"
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the time of every file in an archive, so that the same files make the same bytes

logger = logging.getLogger(__name__)


def wheel(name):
    """The file name and the bytes of a pure-Python wheel of an installed distribution; ours is made from src/."""
    found = distribution(name)
    info = f"{name.replace('-', '_')}-{found.version}.dist-info"
    if name == "attnbook":
        files = {p.relative_to(ROOT / "src").as_posix(): p.read_bytes() for p in (ROOT / "src").rglob("*.py")}
        files |= {f"{info}/licenses/{p.name}": p.read_bytes() for p in ROOT.glob("LICENSE*")}
    else:
        wanted = [path for path in found.files if path.suffix == ".py" or "license" in str(path).lower()]
        files = {str(path): path.locate().read_bytes() for path in wanted}
        if (licence := RUN / "licenses" / f"{name}.txt").exists():  # where the installed files lack it
            files[f"{info}/licenses/LICENSE"] = licence.read_bytes()
    files[f"{info}/METADATA"] = found.read_text("METADATA").encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: attnbook\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{path},sha256={_urlsafe(content)},{len(content)}\n" for path, content in sorted(files.items()))
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    content = archive(files)
    build = f"0{hashlib.sha256(content).hexdigest()[:12]}"  # a wheel's build tag begins with a digit
    return f"{info.removesuffix('.dist-info')}-{build}-py3-none-any.whl", content


def archive(files):
    """A zip of ``{path: bytes}``, the same for the same files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for path, content in sorted(files.items()):
            packed.writestr(zipfile.ZipInfo(path, LONG_AGO), content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _urlsafe(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


@cache
def carried():
    """Every file that running a chapter takes, less Pyodide: ``{name: bytes}``. Empty where that is not installed."""
    if not pyodide_files.lock():
        return {}
    results = {p.relative_to(ROOT).as_posix(): p.read_bytes() for p in (ROOT / "benchmarks/results").glob("*.json")}
    ours = dict(map(wheel, ("attnbook", "array-api-compat", "threadpoolctl")))
    evidence = [p for p in (ROOT / "book/evidence").rglob("*.py") if p.parent.name != "atlas"]  # no chapter asks that
    ours["evidence.zip"] = archive({p.relative_to(ROOT / "book").as_posix(): p.read_bytes() for p in evidence})
    archives = {name: (content, "/book/site") for name, content in ours.items()}
    if pyodide_files.have_wheels():
        archives["compiled.zip"] = (pyodide_files.compiled(archives), "/")
    archives["results.zip"] = (archive(results), "/book")
    files = {p.name: p.read_bytes() for p in RUN.iterdir() if p.suffix in (".mjs", ".py") and p.name != "start.mjs"}
    for path in (ROOT / "chapters").glob("*.ipynb"):
        files[f"{path.stem}.json"] = json.dumps(cells(path), ensure_ascii=False).encode()
    packed = {name: content for name, (content, _) in archives.items()}
    python = pyodide_files.files()
    package = json.loads(python["pyodide-lock.json"])["packages"]["numpy"]
    numpy = package["file_name"]
    fetched = {*pyodide_files.CORE[2:], "pyodide-lock.json", numpy}  # and counted; the rest is imported
    version = f"{pyodide_files.version()}-{hashlib.sha256(python['pyodide-lock.json']).hexdigest()[:8]}"
    site = {
        "core": f"../../pyodide-{version}/",
        "numpy": numpy,
        "integrity": f"sha256-{base64.b64encode(bytes.fromhex(package['sha256'])).decode()}",
        "bytes": sum(len(python.get(name, b"")) for name in fetched) + sum(map(len, packed.values())),
        "archives": [
            {"name": name, "sha256": hashlib.sha256(content).hexdigest(), "to": folder}
            for name, (content, folder) in archives.items()
        ],
    }
    return {**files, **packed, "site.json": json.dumps(site).encode()}


def cells(path):
    """The cells of a chapter that its page shows: their names, sources and stored outputs."""
    return [
        {"name": cell["id"], "source": "".join(cell["source"]), "stored": cell["outputs"]}
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code" and "remove-cell" not in cell["metadata"].get("tags", ())
    ]


def folder():
    """The name of the folder, made from all that lies in it."""
    digest = hashlib.sha256()
    for name, content in sorted(carried().items()):
        digest.update(f"{name} {len(content)} ".encode() + content)
    return digest.hexdigest()[:12]


def rebuild_chapters(app, env, added, changed, removed):
    """Every chapter names the folder, so a change in one file of it makes all of them anew."""
    before, env.run_folder = getattr(env, "run_folder", None), folder()
    return [] if before == env.run_folder else [name for name in env.found_docs if name.startswith("chapters/")]


def add_bar(app, doctree):
    """The bar goes below the title, and the small script that makes the buttons to the end."""
    if not app.env.docname.startswith("chapters/") or app.builder.format != "html" or not carried():
        return
    title = next(doctree.findall(nodes.title))
    site = json.loads(carried()["site.json"])
    imported = [pyodide_files.files()[name] for name in pyodide_files.CORE[:2]]
    html = BAR.format(
        folder=f"../_static/run/{folder()}/",
        chapter=escape(app.env.docname.rpartition("/")[2]),
        megabytes=round((site["bytes"] + sum(map(len, imported))) / 1e6),
        numpy=f" from {urlsplit(site['numpy']).netloc}" if "://" in site["numpy"] else "",
    )
    title.parent.insert(title.parent.index(title) + 1, nodes.raw("", html, format="html"))
    script = re.sub(r"^\s*//.*\n|^\s+", "", (RUN / "start.mjs").read_text(encoding="utf-8"), flags=re.MULTILINE)
    doctree.append(nodes.raw("", f'<script type="module">{script}</script>', format="html"))


BAR = """<div class="run-bar" data-from="{folder}" data-chapter="{chapter}">
<button type="button" data-run="all">Run this chapter</button>
<button type="button" data-run="stop" hidden>Stop</button>
<progress aria-label="Progress" hidden></progress>
<p class="run-say">In your browser, with nothing installed. The first run loads Python and NumPy{numpy},
{megabytes}&nbsp;MB, which stay in this browser.</p>
<p class="run-live visually-hidden" role="status"></p>
</div>"""


def copy_files(app, error):
    """Put the folder, and Pyodide, beside the pages."""
    if error or app.builder.format != "html":
        return
    for old in [*Path(app.outdir, "_static").glob("run"), *Path(app.outdir, "_static").glob("pyodide-*")]:
        shutil.rmtree(old)
    if not carried():
        logger.info("Pyodide is not in book/node_modules, so no page gets a button that runs it: npm ci in book/")
        return
    place = Path(app.outdir, "_static", "run", folder())
    place.mkdir(parents=True)
    for name, content in carried().items():
        (place / name).write_bytes(content)
    core = (place / json.loads(carried()["site.json"])["core"]).resolve()
    core.mkdir(exist_ok=True)
    for name, content in pyodide_files.files().items():
        (core / name).write_bytes(content)
    copy_asset_file(str(RUN / "licenses" / "pyodide.txt"), str(core / "LICENSE.txt"))


def setup(app):
    app.connect("env-get-outdated", rebuild_chapters)
    app.connect("doctree-read", add_bar)
    app.connect("build-finished", copy_files)
    return {"parallel_read_safe": True}
