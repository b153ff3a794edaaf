"""The search of the site: an index made of the book's own places, and a field that lists those that fit as one types.

A page loads the field; the index and MiniSearch, which searches it, come in one file when the field is first used.
Where npm installed nothing, Sphinx's own search stays.
"""

import json
import re
import subprocess
from hashlib import sha256
from pathlib import Path
from shutil import copyfile

import yaml
from formulas import NODE
from places import API, page_name, places
from sphinx.search.en import js_porter_stemmer

BOOK = Path(__file__).parents[1]
PACKAGE = BOOK / "node_modules" / "minisearch"
ENGINE = PACKAGE / "dist" / "umd" / "index.js"
SCRIPTS = BOOK / "_search"
INDEX, FIELD = "search-index.js", "search.js"
COMMENT = re.compile(r"^\s*(?:/\*\*.*?\*/|//[^\n]*)\n", re.DOTALL | re.MULTILINE)
CASE_MATTERS = ("equation", "letter")  # D is not d
WORTH = {  # of the places of a page; others have 1
    API: 0.5, "book/symptoms": 0.85, "chapters/in_the_wild": 0.9, "book/proofs": 0.7, "book/adding_a_variant": 0.7,
    "book/teaching": 0.6, "book/coverage": 0.6, "book/status": 0.5, "book/bibliography": 0.5, "book/changelog": 0.4,
}  # fmt: skip


def synonyms():
    """Words of the field, as synonyms.yml groups them."""
    table = yaml.safe_load((BOOK / "synonyms.yml").read_text(encoding="utf-8"))
    return {**table, "idle": table["idle"].split()}


def known(env):
    """What the script searches: synonyms, pages, the words of the text, and for each place a row."""
    found = [place._asdict() for place in places(env)]
    pages = list(dict.fromkeys(place["page"] for place in found))
    sections = ("section", "mistake")
    at = {(place["page"], place["anchor"]): i for i, place in enumerate(found) if place["kind"].startswith(sections)}
    asked = {"pages": [(page, page_name(env, page), WORTH.get(page, 1)) for page in pages], "places": found}
    command = [NODE, SCRIPTS / "build.cjs", js_porter_stemmer, json.dumps(synonyms())]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, encoding="utf-8", check=True)
    answer = json.loads(done.stdout)
    for place in answer["places"]:
        if place["kind"] in ("function", "class"):
            place |= {"anchor": "", "called": []}  # find.js knows them from the title
        place["inside"] = at.get((place["page"], place["inside"]), -1)
        place["page"] = pages.index(place["page"])
        place["names"] = place["names"] if place["kind"].startswith(CASE_MATTERS) else []
    columns = ("page", "anchor", "kind", "title", "names", "called", "said", "lead", "inside", "left")
    rows = [[place[column] for column in columns] for place in answer["places"]]
    return {**synonyms(), "pages": answer["pages"], "words": answer["words"], "places": rows}


def index(env):
    """The file that is fetched: stemmer, MiniSearch, our scripts, and what they search."""
    scripts = (ENGINE, *(SCRIPTS / name for name in ("terms.js", "find.js", "start.js")))
    code = "".join(COMMENT.sub("", path.read_text(encoding="utf-8")) for path in scripts)
    data = json.dumps(known(env), ensure_ascii=False, separators=(",", ":"))
    code = f"(() => {{\n{js_porter_stemmer};\n{code}}})();\n".replace("KNOWN", data, 1)
    return "/* With MiniSearch, (c) Luca Ongaro, MIT License: _static/minisearch-LICENSE.txt */\n" + code


def take_over(app):
    """Sphinx makes no index, which it would fill with every page, and no script of its own."""
    if app.builder.format == "html":
        app.builder.search = False


def write(app, env):
    """Index and field; the field names the index by what is in it, so that a browser keeps it as long as it holds."""
    if app.builder.format != "html":
        return
    static = Path(app.outdir, "_static")
    static.mkdir(parents=True, exist_ok=True)
    text = index(env)
    (static / INDEX).write_text(text, encoding="utf-8")
    copyfile(PACKAGE / "LICENSE.txt", static / "minisearch-LICENSE.txt")
    field = (SCRIPTS / FIELD).read_text(encoding="utf-8")
    address = f"{INDEX}?v={sha256(text.encode()).hexdigest()[:8]}"
    (static / FIELD).write_text(field.replace(INDEX, address, 1), encoding="utf-8")


def page(app):
    yield "search", {}, "search_places.html"


def leave_out(app, pagename, templatename, context, doctree):
    """Sphinx's marks of the words of a search: who comes to a place needs none."""
    context["script_files"] = [js for js in context["script_files"] if "sphinx_highlight" not in str(js.filename)]


def setup(app):
    if ENGINE.exists():
        app.connect("builder-inited", take_over)
        app.connect("env-check-consistency", write)  # numbers of sections and formulas are there
        app.connect("html-collect-pages", page)
        app.connect("html-page-context", leave_out)
        app.add_js_file(FIELD, defer="defer")
    return {"parallel_read_safe": True}
