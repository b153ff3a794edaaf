"""Bind the pages of the built site into one PDF: ``make pdf``. Chromium prints them, so they look as they do there.

The pages become one document with a title page and a table of contents. It is printed twice: the first time tells on
which page each title stands, the second time the table of contents says so.
"""

import argparse
import sys
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from posixpath import dirname, join, normpath
from shutil import which
from urllib.parse import unquote, urldefrag, urlsplit

import pikepdf
import yaml
from bs4 import BeautifulSoup
from playwright.sync_api import sync_playwright

sys.path.append(str(Path(__file__).parents[1] / "_ext"))

from commit import commit
from equations import ROOT

SITE = ROOT / "_build" / "html"
STYLE = Path(__file__).with_name("make_pdf.css")
NAME = "attnbook.pdf"
HOST = "http://book.local/"  # answered from the folder of the site: nothing is served, and nothing else is reached
WITHOUT = (  # the last are checks, imports and the code that draws a picture
    "script, button, .headerlink, .first-steps, noscript:has(+ .head-live), details.hide"
)
SITE_ONLY = tuple(  # to be searched and run, or for who changes the book: read on the site, where links lead
    f"book/{name}" for name in ("atlas", "adding_a_variant", "proofs", "coverage", "status", "api", "changelog")
)
POINTS_AT_IDS = ("for", "aria-labelledby", "aria-describedby", "aria-controls", "list")


def main():
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--output", type=Path, default=SITE / NAME)
    options.add_argument("pages", nargs="*", help="such as chapters/03_softmax; the whole book, if none is named")
    chosen = options.parse_args()
    if not (SITE / "index.html").exists():
        sys.exit("There is no built site to print: run `make book` first.")
    if not (chromium := which("chromium") or which("chromium-browser") or which("google-chrome")):
        sys.exit("Chromium is not installed, so no PDF was made: apt-get install chromium")
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    parts = table_of_contents(chosen.pages)
    pdf = finish(print_twice(bind(parts, config), chromium), config)
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_bytes(pdf)
    print(chosen.output)


def table_of_contents(chosen):
    """The pages of the book by part, as pairs of the part's title and the names of its pages."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    parts = [("", [toc["root"]])]
    parts += [(part["caption"], [chapter["file"] for chapter in part["chapters"]]) for part in toc["parts"]]
    wanted = chosen or {name for _, names in parts for name in names}.difference(SITE_ONLY)
    return [(title, kept) for title, names in parts if (kept := [name for name in names if name in wanted])]


# --- one document of many pages -----------------------------------------------------------------------------------


def bind(parts, config):
    """The document that is printed."""
    names = [name for _, names in parts for name in names]
    pages = {name: BeautifulSoup((SITE / f"{name}.html").read_text(encoding="utf-8"), "html.parser") for name in names}
    head = [str(tag) for tag in styles(pages[names[0]], dirname(names[0]))]
    articles = {name: page.select_one("article.bd-article") for name, page in pages.items()}
    known = {name: {tag["id"] for tag in article.select("[id]")} for name, article in articles.items()}
    for name, article in articles.items():
        tidy(article)
        rename(article, name)
        relink(article, name, known, config["html"]["baseurl"])
    lines = list(contents(parts, articles))
    body = "\n".join(
        f'<div class="page" id="{anchor(name)}">{articles[name].decode_contents()}</div>' for name in names
    )
    return f"""<!doctype html>
<html lang="en" data-theme="light" data-mode="light"><head><meta charset="utf-8">
<title>{config["title"]}</title>
{"".join(head)}
<style>{STYLE.read_text(encoding="utf-8")}</style></head>
<body>
<header class="title-page">{title_page(config)}</header>
<nav class="book-contents"><p class="contents-title">Contents</p>{"".join(lines)}</nav>
<main class="bd-main"><article class="bd-article bd-content">{"".join(body)}</article></main>
</body></html>"""


def styles(page, folder):
    """The styles of a page; its scripts are left out."""
    for tag in page.head.select("link[rel=stylesheet]"):
        tag["href"] = HOST + normpath(join(folder, tag["href"]))
        yield tag


def tidy(article):
    """Leave out what only a screen can use, and open what is closed: solutions are printed where they stand."""
    for tag in article.select(WITHOUT):
        tag.decompose()
    for tag in article.select("details"):
        tag["open"] = ""
    for tag in article.select("noscript"):
        tag.unwrap()
    for formula in article.select(".katex"):  # one thing, read as its TeX, and not as the thousand boxes that draw it
        formula["role"] = "img"
        formula["aria-label"] = formula.find("annotation").get_text()
        if formula.select_one(".katex-html"):
            formula.select_one(".katex-mathml").decompose()


def anchor(name, id_=""):
    """The id of a page, or of a place in it, in the document of all pages."""
    return f"{name.replace('/', '-')}--{id_}" if id_ else name.replace("/", "-")


def rename(article, name):
    """Ids are unique in a page, and must be so in the book; so must the names of groups of buttons."""
    for tag in article.select("[id]"):
        tag["id"] = anchor(name, tag["id"])
    for tag in article.select("input[name]"):
        tag["name"] = anchor(name, tag["name"])
    for attribute in POINTS_AT_IDS:
        for tag in article.select(f"[{attribute}]"):
            tag[attribute] = " ".join(anchor(name, id_) for id_ in tag[attribute].split())
    for tag in article.select("svg *"):  # marks at the ends of arrows, and clips
        for attribute, value in tag.attrs.items():
            if isinstance(value, str) and "url(#" in value:
                tag[attribute] = value.replace("url(#", f"url(#{anchor(name)}--")
    for tag in article.select("svg use"):
        for attribute in {"href", "xlink:href"} & tag.attrs.keys():
            tag[attribute] = "#" + anchor(name, tag[attribute].removeprefix("#"))


def relink(article, name, known, published):
    """A link to a page of the book leads there; one to another file of the site leads to the published site."""
    for tag in article.select("[src]"):
        if not urlsplit(tag["src"]).scheme:
            tag["src"] = HOST + normpath(join(dirname(name), tag["src"]))
    for tag in article.select("a[href]"):
        if urlsplit(tag["href"]).scheme:
            continue
        file, place = urldefrag(tag["href"])
        target = normpath(join(dirname(name), unquote(file))) if file else f"{name}.html"
        page = target.removesuffix(".html")
        if page in known:
            tag["href"] = "#" + anchor(page, unquote(place) if unquote(place) in known[page] else "")
        else:
            tag["href"] = published + target + (f"#{place}" if place else "")


def contents(parts, articles):
    """The lines of the table of contents: parts, pages and their sections, with room for the number of the page."""
    for title, names in parts:
        if title:
            yield f'<p class="contents-part">{title}</p>'
        for name in names:
            for heading in articles[name].select("h1, h2"):
                place = heading.find_parent("section")["id"]
                link = f'<a href="#{place}">{heading.decode_contents()}</a>'
                yield f'<p class="contents-{heading.name}">{link}<span data-of="{place}"></span></p>'


def title_page(config):
    """Title, the picture of the cover, authors, and which state of the sources this is."""
    name, _ = commit()
    cover = (ROOT / "book" / "_static" / "cover.svg").read_text(encoding="utf-8")
    of = f"Printed from commit {name}." if name else ""
    return f"""<p class="title">{config["title"]}</p><div class="cover">{cover}</div>
<p class="authors">{config["author"]}</p>
<p>{config["html"]["extra_footer"]} {of}</p>
<p>Not printed: cells that only check, for which a ✓ stands; and incidents, proofs, what was checked, and the
package.<br>All of it can be read, run and asked on
<a href="{config["html"]["baseurl"]}">{config["html"]["baseurl"]}</a>.</p>"""


# --- printing -----------------------------------------------------------------------------------------------------


def print_twice(document, chromium):
    """Print, look up the pages of the titles, write them into the table of contents, and print again."""
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=quiet)
        tab = browser.new_page()
        tab.set_default_timeout(600_000)
        tab.route("**/*", lambda route: answer(route, document))
        tab.goto(HOST)
        tab.evaluate("document.fonts.ready.then(() => null)")
        write = "n => document.querySelectorAll('[data-of]').forEach(e => { e.textContent = n[e.dataset.of] })"
        tab.evaluate(write, places(printed(tab)))
        pdf = printed(tab)
        browser.close()
    return pdf


def places(pdf):
    """The page, counted from 1, on which each anchor stands that a link leads to."""
    with pikepdf.open(BytesIO(pdf)) as read:
        numbers = {page.objgen: number for number, page in enumerate(read.pages, start=1)}
        return {name.lstrip("/"): numbers[place[0].objgen] for name, place in read.Root.Dests.items()}


def printed(tab):
    return tab.pdf(prefer_css_page_size=True, print_background=True, outline=True, tagged=True)


def answer(route, document):
    """Give the document itself, or a file of the site. What is elsewhere is not fetched."""
    path = SITE / unquote(urlsplit(route.request.url).path).lstrip("/")
    if route.request.url == HOST:
        route.fulfill(body=document, content_type="text/html; charset=utf-8")
    elif route.request.url.startswith(HOST) and path.is_file():
        route.fulfill(path=path)
    else:
        route.abort()


def finish(pdf, config):
    """Say in the file who wrote what, and date it by its sources."""
    _, seconds = commit()  # and not of when it is printed: a second PDF is the same
    date = datetime.fromtimestamp(seconds, UTC).strftime("D:%Y%m%d%H%M%SZ")
    said = {"/Title": config["title"], "/Author": config["author"], "/CreationDate": date, "/ModDate": date}
    out = BytesIO()
    with pikepdf.open(BytesIO(pdf)) as read:
        for name, value in said.items():
            read.docinfo[name] = value
        # A third of the size: what describes the structure to screen readers is many small objects.
        read.save(out, object_stream_mode=pikepdf.ObjectStreamMode.generate, deterministic_id=True)
        print(f"{len(read.pages)} pages, {out.tell() / 1e6:.1f} MB:", end=" ")
    return out.getvalue()


if __name__ == "__main__":
    main()
