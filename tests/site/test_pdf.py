"""The PDF, on one chapter: formulas that are set, links that lead to pages. Its length: test_reading."""

import re
import subprocess
import sys

import make_pdf
import pypdf
import pytest
import yaml
from bs4 import BeautifulSoup
from built_site import ROOT, SITE

PRINT = [sys.executable, str(ROOT / "book" / "commands" / "make_pdf.py")]
CHAPTER = "chapters/07_cross"


@pytest.fixture(scope="module")
def pdf(tmp_path_factory, browser):  # it skips, or fails in CI, where there is no browser
    target = tmp_path_factory.mktemp("pdf") / "one.pdf"
    subprocess.run([*PRINT, "--output", target, CHAPTER], check=True)
    return pypdf.PdfReader(target)


@pytest.fixture(scope="module")
def texts(pdf):
    return [page.extract_text() for page in pdf.pages]


@pytest.fixture
def page():
    """A tree of its own: the tests take it apart."""
    return BeautifulSoup((SITE / f"{CHAPTER}.html").read_text(encoding="utf-8"), "html.parser")


def test_all_sections_are_there_with_the_page_on_which_they_are(pdf, texts, page):
    contents = " ".join(texts[1].split())  # a title may take two lines
    sections = page.select("article h1, article h2")
    assert len(sections) > 5
    for section in sections:
        section.select_one(".headerlink").decompose()
        if section.select_one(".katex"):  # letters of a formula may stand apart
            continue
        found = re.search(re.escape(section.get_text().strip()) + r"\s+(\d+)", contents)
        assert found, section.get_text()
        assert section.get_text().strip() in " ".join(texts[int(found[1]) - 1].split())
    assert len(pdf.outline) > 0


def test_formulas_are_set_and_not_written_as_tex(texts):
    text = "\n".join(texts)
    assert not re.findall(r"\\(?:frac|mathsf|top|sum|begin|operatorname|text|partial)\b", text)
    assert "softmax" in text


def test_solutions_are_open(texts, page):
    solutions = page.select(".solution")
    assert len(solutions) >= 4
    for solution in solutions:
        seen = [tag for tag in solution.find_all(["p", "pre"]) if not tag.find_parent("details", class_="hide")]
        for formula in solution.select(".katex"):  # letters of a formula may stand apart
            formula.decompose()
        words = re.findall(r"[A-Za-z]{4,}", " ".join(tag.get_text() for tag in seen))
        assert words[-1] in "\n".join(texts)


def document(*pages):
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    return BeautifulSoup(make_pdf.bind([("", list(pages))], config), "html.parser")


def test_closed_tabs_are_open():
    """A browser with scripts, which prints it, shows nothing of a <noscript>."""
    bound = document("book/answer")
    tabs = bound.select(".answer .sd-tab-content")
    assert len(tabs) == 15
    assert all(tab.select_one("table") for tab in tabs)
    assert not bound.select("noscript")


def test_marks_and_clips_of_pictures_are_in_the_document():
    """Ids are renamed where pages become one document, and so must be what refers to them: curves lost their marks."""
    bound = document("chapters/02_gradients", "chapters/11_memory_and_speed")
    ids = {tag["id"] for tag in bound.select("[id]")}
    drawings = bound.select("article svg *")
    used = [tag[name][1:] for tag in drawings for name in ("href", "xlink:href") if tag.has_attr(name)]
    values = (str(value) for tag in drawings for value in tag.attrs.values())
    clips = [clip for value in values for clip in re.findall(r"url\(#(.+?)\)", value)]
    assert len(used) > 100
    assert len(clips) > 10
    assert not {*used, *clips} - ids


def test_no_link_leads_to_where_it_was_printed(pdf):
    links = {
        note.get_object()["/A"]["/URI"]
        for page in pdf.pages
        for note in page.get("/Annots", ())
        if "/URI" in note.get_object().get("/A", {})
    }
    assert links
    assert not [link for link in links if "book.local" in link or "localhost" in link]
