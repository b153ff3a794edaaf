"""The built site, for the tests: its pages, parsed, and the fixtures that serve it and open it in a browser."""

import contextlib
import functools
import html
import http.server
import os
import re
import shutil
import sys
import threading
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
import yaml

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "book" / "commands"), str(ROOT / "book" / "_ext")]  # for what runs without pytest

import serve  # noqa: E402

SITE = ROOT / "_build" / "html"
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
PAGES = [f"{file}.html" for file in (TOC["root"], *(c["file"] for part in TOC["parts"] for c in part["chapters"]))]
MADE = ("search.html?q=softmax", "genindex.html", "py-modindex.html", "404.html")
SOME_OF_PACKAGE = ("book/api/attnbook.attention.attention.html", "book/api/attnbook.multi_head.MultiHeadGrads.html")
ALL_PAGES = [*PAGES, *SOME_OF_PACKAGE, *MADE]  # with those that nobody wrote


def without_drawings(page):
    """A page without what draws its formulas, which is half of its tags; their MathML says the same."""
    kept, place = [], 0
    while (start := page.find('<span class="katex-html"', place)) >= 0:
        kept.append(page[place:start])
        depth = 0
        for tag in SPAN.finditer(page, start):
            depth += 1 if tag[0] == "<span" else -1
            if not depth:
                break
        place = tag.end()
    return "".join([*kept, page[place:]])


SPAN = re.compile("<span|</span>")


@functools.cache
def soup(path):
    """The tree of a page, without the drawings of its formulas."""
    if not (SITE / "index.html").exists():
        pytest.fail("there is no built site: run `make book` first")
    from bs4 import BeautifulSoup  # here: tests of the package alone do without

    return BeautifulSoup(without_drawings(path.read_text(encoding="utf-8")), "html.parser")


@functools.cache
def anchors(path):
    """What a link may lead to on a page. Read without its tree, which takes ten times as long: links ask many pages."""
    return set(map(html.unescape, re.findall(r'\s(?:id|name)="([^"]*)"', path.read_text(encoding="utf-8"))))


def broken_links(page):
    """The addresses on a page that lead to no file or no anchor of the site."""
    path = SITE / page
    for tag in soup(path).find_all(["a", "link", "img", "script", "source"]):
        address = tag.get("href") or tag.get("src")
        if not address or urlsplit(address).scheme or address.startswith("//"):
            continue
        file, anchor = urldefrag(address)
        target = (path.parent / unquote(urlsplit(file).path)).resolve() if file else path
        target = target / "index.html" if target.is_dir() else target
        if not target.exists() or (anchor and target.suffix == ".html" and unquote(anchor) not in anchors(target)):
            yield address


LATE = ".bd-article > section > section, .symbols .pst-scrollable-table-container"
LAID_OUT = f"<style>{LATE} {{ content-visibility: visible !important }}</style>"


def lay_out(tab):
    """A browser lays out only the sections near the screen. For tests that look everywhere: here all."""
    tab.evaluate("style => document.head.insertAdjacentHTML('beforeend', style)", LAID_OUT)


class Handler(serve.Handler):
    """As GitHub Pages does, which has it kept for ten minutes. It compresses, too: benchmarks/pages.py."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def end_headers(self):
        self.send_header("Cache-Control", "max-age=600")
        super().end_headers()


@contextlib.contextmanager
def served(handler=Handler):
    """The address at which the site is served meanwhile."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=SITE))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")  # a browser keeps what comes from one address
def address():
    if not (SITE / "index.html").exists():
        pytest.fail("there is no built site: run `make book` first")
    with served() as address:
        yield address


def chromium():
    """The path of a browser; None where there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="session")
def browser():
    if not (path := chromium()):
        missing = "Chromium is not installed, so the pages were not opened: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright  # likewise

    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=quiet)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def pages(browser):
    """Tabs that share what the browser keeps, as a reader's do: with the files a page comes in a third of the time."""
    context = browser.new_context()

    @contextlib.contextmanager
    def opened(width=1280, theme="light"):
        tab = context.new_page()
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(color_scheme=theme)
        yield tab
        tab.close()

    yield opened
    context.close()
