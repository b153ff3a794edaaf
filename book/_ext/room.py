"""The pages of the package: one a public name, which autosummary writes, and one a room for what is inside.

``book/api.md`` lists both. Each address that it had when it was one long page leads on to the page of that name.
"""

import re
from functools import cache
from importlib import import_module
from inspect import getsourcefile, getsourcelines, unwrap
from pathlib import Path

from commit import commit
from docutils import nodes
from docutils.statemachine import StringList
from equations import ROOT
from sphinx import addnodes
from sphinx.ext.autosummary import autosummary_toc
from sphinx.util.docutils import SphinxDirective

INDEX, PAGES = "book/api", "book/api/"
LIST = ROOT / "book" / "api.md"
REPOSITORY = "https://github.com/attnbook/attnbook"
LEADS_ON = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8" />
<title>{module}</title>
<meta name="robots" content="noindex" />
<meta http-equiv="refresh" content="0; url={address}" />
<a href="{address}">The source of {module}</a>
</html>
"""
LINES = re.compile(r"<dl>\n((?:<dd>.*</dd>\n)+)</dl>")  # of a signature: Sphinx makes a list of definitions of no terms
LONGEST_VALUE = 120  # of a constant: a table of arrays is for its source, one click away
LEAD_ON = """const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
const link = named && named.closest("article a");
if (link) location.replace(link.href.split("#")[0] + location.hash);"""


@cache
def public():
    """The names that have a page each, each as its module and its name in there."""
    return [name.rpartition(".")[::2] for name in re.findall(r"^   ~(attnbook\.\S+)$", LIST.read_text("utf-8"), re.M)]


@cache
def rooms():
    """The modules and packages that have a page for what else is inside."""
    return re.findall(r"^\{py:mod\}`(\S+)`$", LIST.read_text("utf-8"), re.M)


def path_of(name):
    """How a reader writes a public name: from the nearest package that exports it, less ``attnbook.`` itself."""
    module, _, last = name.rpartition(".")
    exporting = (p for p in packages(module) if last in getattr(import_module(p), "__all__", ()))
    return f"{next(exporting, module)}.{last}".removeprefix("attnbook.")


def packages(module):
    """Its package, and those around it, the widest first."""
    parts = module.split(".")
    return [".".join(parts[: n + 1]) for n in range(len(parts))]


def places(name):
    """What stands below an entry: its chapter, the room that has what is common to its neighbors, and the list."""
    module, _, last = name.rpartition(".")
    near = [package for package in reversed(packages(module)) if package in rooms()]
    said = (thing.__doc__ for thing in (getattr(import_module(module), last), *map(import_module, (module, *near))))
    chapter = re.search(r":doc:`/chapters/\w+`", " ".join(filter(None, said)))
    return (
        f"Chapter: {chapter[0]}. " if chapter else ""
    ) + f"More of this room: :py:mod:`{near[0]}`. All of it: :doc:`/book/api`."


def write_rooms(app):
    """The sources of their pages, beside those that autosummary writes."""
    names = [".".join(name) for name in public()]
    app.config.autosummary_context = {"path": {n: path_of(n) for n in names}, "places": {n: places(n) for n in names}}
    for name in rooms():
        page = Path(app.srcdir, PAGES, f"{name}.rst")
        page.parent.mkdir(exist_ok=True)
        text = f":orphan:\n\n{name}\n{'=' * len(name)}\n\n.. room:: {name}\n"
        if not page.exists() or page.read_text("utf-8") != text:
            page.write_text(text, encoding="utf-8")


class Room(SphinxDirective):
    """The docstring of a module, then what of it has no page of its own; of a package, likewise for its modules."""

    required_arguments = 1

    def run(self):
        room = self.arguments[0]
        folder = ROOT.joinpath("src", *room.split("."))
        self.env.note_dependency(str(folder))
        lines = entry(room, ":no-members:" if folder.is_dir() else ":members:")
        for module in sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")):
            lines += entry(f"{room}.{module}", ":members:")
        box = nodes.container()
        self.state.nested_parse(StringList(lines, "room"), self.content_offset, box)
        return box.children


def entry(module, members):
    elsewhere = ", ".join(name for of, name in public() if of == module)
    return [f".. automodule:: {module}", f"   {members}", f"   :exclude-members: {elsewhere}" if elsewhere else "", ""]


@cache
def revision():
    """The commit by which the repository keeps these lines."""
    return commit()[0].partition(" ")[0] or "main"


def source(domain, info):
    """Where the lines of an entry are in the repository, as they were when the site was built."""
    thing = import_module(info["module"])
    try:
        for name in info["fullname"].split("."):
            thing = getattr(thing, name)
        thing = unwrap(getattr(thing, "fget", None) or getattr(thing, "func", thing))  # of a property
        lines, first = getsourcelines(thing)
    except (AttributeError, TypeError, OSError):  # a field or a constant: with its class, or its module
        return None
    file = Path(getsourcefile(thing)).relative_to(ROOT).as_posix()
    return f"{REPOSITORY}/blob/{revision()}/{file}#L{first}-L{first + len(lines) - 1}"


def link_alias(app, env, node, contnode):
    """A hint may name what is no class: a type variable, or a short name of a type."""
    if node.get("reftype") == "class" and node["reftarget"].startswith("attnbook."):
        py = env.get_domain("py")
        return py.resolve_xref(env, node["refdoc"], app.builder, "obj", node["reftarget"], node, contnode)
    return None


def leave_out_long_values(app, domain, objtype, content):
    for signature in content.parent.findall(addnodes.desc_signature):
        for note in list(signature.findall(addnodes.desc_annotation)):
            if len(note.astext()) > LONGEST_VALUE:
                signature.remove(note)


def leave_out_field_numbers(app, what, name, obj, options, lines):
    """Python says of a field without a docstring which number it has."""
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()


def keep_old_addresses(app, doctree, page):
    """On the list, in the link to a page: the addresses of all that is on it, which were the list's own."""
    if page != INDEX:
        return
    there = set()
    for link in doctree.findall(nodes.reference):
        target = link.get("refuri", "").partition("#")[0].removesuffix(".html")
        if target.startswith("api/"):
            tree = app.env.get_doctree(f"book/{target}")
            names = {name for entry in tree.findall(addnodes.desc_signature) for name in entry["ids"]} - there
            link[:0] = [nodes.inline(ids=[name]) for name in sorted(names)]
            there |= names


def list_once(app, doctree):
    """The list is the table of contents: these pages beside every other would double what a build takes."""
    if app.env.docname == INDEX:
        for node in [*doctree.findall(autosummary_toc), *doctree.findall(addnodes.toctree)]:
            node.parent.remove(node)


def as_divisions(found):
    return found[1].replace("<dd>", '<div class="sig-line">').replace("</dd>", "</div>")


def lead_on(app, pagename, templatename, context, doctree):
    if pagename.startswith(PAGES):
        context["body"] = LINES.sub(as_divisions, context["body"])
        context["page_source_suffix"] = ""  # nobody wrote it: there is nothing to edit, or to download
    if pagename == INDEX:
        app.add_js_file(None, body=LEAD_ON, type="module")


def keep_pages_of_sources(app, exception):
    """Where the site had the sources of its own: each address leads to the repository."""
    if exception or app.builder.format != "html":
        return
    for path in (ROOT / "src" / "attnbook").rglob("*.py"):
        module = path.relative_to(ROOT / "src").with_suffix("")
        module = module.parent if module.name == "__init__" else module
        page = Path(app.outdir, "_modules", f"{module}.html")
        page.parent.mkdir(parents=True, exist_ok=True)
        address = f"{REPOSITORY}/blob/{revision()}/{path.relative_to(ROOT).as_posix()}"
        page.write_text(LEADS_ON.format(module=".".join(module.parts), address=address), encoding="utf-8")


def setup(app):
    app.setup_extension("sphinx.ext.linkcode")
    app.config.linkcode_resolve = source
    app.add_directive("room", Room)
    app.connect("builder-inited", write_rooms, priority=400)  # before autosummary, which writes the other pages
    app.connect("object-description-transform", leave_out_long_values)
    app.connect("autodoc-process-docstring", leave_out_field_numbers)
    app.connect("missing-reference", link_alias)
    app.connect("doctree-read", list_once, priority=400)  # before Sphinx collects them
    app.connect("doctree-resolved", keep_old_addresses)
    app.connect("html-page-context", lead_on)
    app.connect("build-finished", keep_pages_of_sources)
    return {"parallel_read_safe": True}
