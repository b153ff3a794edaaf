"""Finding things: the picker, the index of symbols, addresses that last, previews, the feed, the citation."""

import datetime
import subprocess
import sys
from importlib import import_module
from urllib.parse import unquote, urldefrag
from xml.etree import ElementTree

import pytest
import yaml
from anchors import published, recorded
from answer import UNITS
from built_site import PAGES, SITE, anchors, soup
from changelog_feed import ATOM, CHANGELOG, entries
from citation import CITATION, bibtex
from PIL import Image
from previews import SIZE, descriptions
from test_docstrings import TOOLS
from test_hints import ROOMS
from which_gradient import LAYERS, choices

import attnbook as ab

HOME = "https://attnbook.github.io/attnbook/"

# --- from the front page to an equation ---------------------------------------------------------------------------


def test_every_choice_of_a_gradient_leads_to_its_equation():
    tabs = soup(SITE / "book" / "intro.html").select(".which-gradient .sd-tab-content")
    for tab, layer in zip(tabs, LAYERS, strict=True):
        wanted = [label for *_, label in choices(layer)]
        links = [a["href"] for a in tab.select("a")]  # test_site follows them
        assert [link.partition("#equation-")[2] for link in links] == [label.lower() for label in wanted]
    offered = [len({of for _, of, _ in choices(x)}) for x in ("Self-attention", "Masked", "Cross-attention")]
    assert offered == [len(UNITS[x].backward) for x in ("self", "masked", "cross")]


# --- letters ------------------------------------------------------------------------------------------------------


def test_each_row_of_the_index_of_symbols_has_an_address_and_leads_on():
    rows = soup(SITE / "book/notation.html").select(".symbols tbody tr")
    assert len(rows) > 40
    for row in rows:
        assert row["id"].startswith("symbol-")
        _, _, _, _, derived, package, _ = row.select("td")
        assert derived.select_one('a[href*="#equation-"]'), row["id"]
        assert all(a["href"].startswith("api/attnbook.") for a in package.select("a"))


# --- there and back ------------------------------------------------------------------------------------------------


def test_every_public_function_leads_to_its_chapter_and_equations():
    public = {name: getattr(ab, name) for name in ab.__all__ if name.islower()}
    assert len(public) > 15
    for name, function in public.items():
        article = soup(SITE / f"book/api/{function.__module__}.{name}.html").article
        links = [a["href"] for a in article.select("dl.py a")]
        chapters = {
            link for a in article.find_all("a") if (link := a["href"]).startswith("../../chapters/") and "#" not in link
        }
        assert article.select_one("dt.sig > a[href*='/blob/'][href*='#L']"), name
        assert chapters, name
        if name not in TOOLS:  # its formulas are in the chapter that it names
            assert chapters & {urldefrag(link)[0] for link in links if "#equation-" in link}, name


LIST = "book/api.html"


def test_the_list_has_every_public_name_and_each_of_its_old_addresses_leads_to_the_page_that_has_it_now():
    article = soup(SITE / LIST).article
    exported = (getattr(room, name) for room in map(import_module, ROOMS) for name in room.__all__)
    names = {f"{thing.__module__}.{thing.__qualname__}" for thing in exported if callable(thing)}
    missing = names - anchors(SITE / LIST)
    assert not missing
    old = {name.partition("#")[2] for name in recorded() if name.startswith(f"{LIST}#")}
    for place in article.select("a [id]"):
        page = SITE / "book" / urldefrag(place.find_parent("a")["href"])[0]
        assert place["id"] in anchors(page), place["id"]
        old.discard(place["id"])
    assert not old


def test_an_address_of_the_long_page_leads_on(address, pages):
    name = "attnbook.attention.AttentionGrads.dQ"
    with pages() as tab:
        tab.goto(f"{address}{LIST}#{name}", wait_until="commit")  # it is left before it has loaded
        tab.wait_for_url(f"**/book/api/attnbook.*.html#{name}")


# --- addresses that last ------------------------------------------------------------------------------------------


def test_no_published_address_has_disappeared():
    assert len(recorded()) > 500
    assert not recorded() - published()


def test_a_reader_can_copy_the_address_of_a_formula_a_mistake_a_question_and_a_letter():
    for page in PAGES:
        offered = {unquote(a["href"]).lstrip("#") for a in soup(SITE / page).select("a.headerlink")}
        lasting = ("equation-", "mistake-", "q-", "symbol-")
        first_only = {row["id"] for row in soup(SITE / page).select(".symbols tr[id]")}
        wanted = {a for a in anchors(SITE / page) if a.startswith(lasting)}
        wanted = {a for a in wanted if not a.startswith("symbol-") or a in first_only}
        assert wanted <= offered, page


# --- what a page says about itself --------------------------------------------------------------------------------


def tag(page, name):
    found = soup(SITE / page).select(f'meta[property="{name}"], meta[name="{name}"]')
    assert len(found) == 1, (page, name, found)
    return found[0]["content"]


@pytest.mark.parametrize("page", PAGES)
def test_previews(page):
    sentence = descriptions()[page.removesuffix(".html")]
    assert 50 <= len(sentence) <= 160
    assert sentence.endswith(".")
    assert tag(page, "description") == tag(page, "og:description") == sentence
    assert tag(page, "og:site_name") == "The Gradients of Attention"
    assert tag(page, "og:url") == soup(SITE / page).select_one("link[rel=canonical]")["href"] == HOME + page
    assert tag(page, "twitter:card") == "summary_large_image"
    with Image.open(SITE / tag(page, "og:image").removeprefix(HOME)) as card:
        assert card.size == SIZE == (int(tag(page, "og:image:width")), int(tag(page, "og:image:height")))


def test_each_page_describes_itself_and_the_bare_address_says_what_the_front_page_says():
    assert len(set(descriptions().values())) == len(PAGES)
    for name in ("description", "og:title", "og:image", "og:url", "twitter:card"):
        assert tag("index.html", name) == tag("book/intro.html", name)
    assert soup(SITE / "index.html").a["href"] == "book/intro.html"


def test_sitemap_and_robots():
    locations = {node.text for node in ElementTree.parse(SITE / "sitemap.xml").iter() if node.tag.endswith("loc")}
    assert {HOME + page for page in PAGES} <= locations
    assert not {HOME + page for page in ("404.html", "search.html")} & locations
    for location in locations:
        assert (SITE / location.removeprefix(HOME)).is_file(), location
    assert f"Sitemap: {HOME}sitemap.xml" in (SITE / "robots.txt").read_text(encoding="utf-8")


def test_a_missing_page_leads_back_from_any_depth():
    page = soup(SITE / "404.html")
    for tag in page.select("a[href], link[href], script[src], img[src]"):
        address = urldefrag(tag.get("href") or tag.get("src"))[0]
        if address and not address.startswith(("http", "mailto:")):
            path = SITE / address.removeprefix("/attnbook/").partition("?")[0]
            assert address.startswith("/attnbook/"), address
            assert path.exists(), address


# --- the feed and the citation ------------------------------------------------------------------------------------


def test_the_feed_holds_the_changelog_and_a_page_names_it():
    root = ElementTree.parse(SITE / "changelog.xml").getroot()
    changelog = entries(CHANGELOG.read_text(encoding="utf-8"))
    found = root.findall(f"{{{ATOM}}}entry")
    assert len(found) == len(changelog) == CHANGELOG.read_text(encoding="utf-8").count("\n## ") > 0
    for node, entry in zip(found, changelog, strict=True):
        assert node.find(f"{{{ATOM}}}updated").text == f"{entry.date}T00:00:00Z"
        assert "<li>" in node.find(f"{{{ATOM}}}content").text
    assert len({node.find(f"{{{ATOM}}}id").text for node in found}) == len(found)
    link = soup(SITE / "book/intro.html").select_one('link[rel=alternate][type="application/atom+xml"]')
    assert (SITE / "book" / link["href"]).resolve() == (SITE / "changelog.xml").resolve()


def test_the_citation_is_the_file_valid_and_claims_no_release_that_is_not_there():
    cff = yaml.safe_load(CITATION.read_text(encoding="utf-8"))
    block = soup(SITE / "book/intro.html").select_one(".highlight-bibtex pre").get_text().strip()
    assert block == bibtex(cff)
    released = bibtex(cff | {"version": "1.2.3", "date-released": datetime.date(2027, 1, 31)})
    assert "\n  version = {1.2.3},\n  year = {2027},\n" in released
    checked = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.citation-file-format", CITATION]
    assert not subprocess.run(checked, check=False, capture_output=True).returncode
    said = cff.get("version"), f"{cff.get('date-released')}"
    known = [entry[:2] for entry in entries(CHANGELOG.read_text(encoding="utf-8")) if entry.version == ab.__version__]
    assert said == (known[0] if known else (None, "None"))
