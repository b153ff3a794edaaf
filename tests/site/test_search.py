"""The search: what readers type leads to the right place, from one small file, quickly, and with no mouse."""

import gzip
import json
import re
from functools import cache

import pytest
import site_search
import yaml
from built_site import ROOT, SITE, soup
from equations import equations

pytestmark = pytest.mark.skipif(not site_search.ENGINE.exists(), reason="npm installed no MiniSearch: Sphinx's search")
CHAPTER = "chapters/11_memory_and_speed.html"
SEARCHES = yaml.safe_load((ROOT / "tests" / "site" / "searches.yml").read_text(encoding="utf-8"))
TYPED = {query: right for group in SEARCHES.values() for query, right in group.items()}
FOUND = """async queries => {
    document.querySelector(".bd-search-container input").focus();
    while (!globalThis.bookSearch) await new Promise((next) => setTimeout(next, 20));
    const find = await bookSearch;
    const page = (place) => `${find.pages[place.page][0].split("/").pop()}.html`;
    const address = (place) => page(place) + (place.anchor && `#${place.anchor}`);
    return Object.fromEntries(queries.map((query) => [query, find(query, 3).found.map(address)]));
}"""


@pytest.fixture(scope="module")
def tab(address, browser):
    """The search page; what it asked for, and what its console said, are kept."""
    tab = browser.new_page(viewport={"width": 1280, "height": 800})
    tab.asked, tab.errors = [], []
    tab.on("request", lambda request: tab.asked.append(request))
    tab.on("console", lambda message: tab.errors.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: tab.errors.append(str(error)))
    tab.goto(f"{address}search.html")
    yield tab
    assert all(request.url.startswith(address) for request in tab.asked)
    tab.close()


@pytest.fixture(scope="module")
def found(tab):
    """For each query the first three places."""
    return tab.evaluate(FOUND, list(TYPED))


def answered(tab, query):
    """What stands below the field of the search page when ``query`` was typed."""
    tab.locator(".bd-search-container input").fill(query)
    tab.wait_for_function(
        "q => decodeURIComponent(location.search) === (q && `?q=${q}`)", arg=query.strip(), polling=20
    )
    tab.wait_for_function("!/on its way/.test(document.querySelector('.bd-search-container .search-say').innerText)")
    return tab.locator(".bd-search-container .search-say").inner_text()


# --- the right place ----------------------------------------------------------------------------------------------


@cache
def section_of(page):
    """{a formula of the page: the section that it stands in}."""
    sections, last = {}, ""
    text = next(path for path in SITE.rglob(page) if "_modules" not in path.parts).read_text(encoding="utf-8")
    for section, formula in re.findall(r'<section[^>]*? id="([^"]+)"|<div[^>]*? id="(equation-[^"]+)"', text):
        last = section or last
        sections[formula] = last
    return sections


def is_right(place, right):
    page, _, anchor = place.partition(".html")
    anchor = anchor.removeprefix("#")
    inside = section_of(f"{page}.html").get(anchor, anchor)
    for wanted in right:
        on, _, name = wanted.rpartition("#")
        if page.startswith(on) and (name in (anchor, inside) or anchor == f"equation-{name}"):
            return True
    return False


def test_what_readers_type_leads_to_the_right_place(found):
    """Among the first three; nine of ten first, and so is whatever is called by its name."""
    ranks = {q: [is_right(place, right) for place in found[q]] for q, right in TYPED.items()}
    missed = {q: found[q] for q, rank in ranks.items() if not any(rank)}
    later = {q: found[q] for q, rank in ranks.items() if rank[:1] != [True]}
    assert not missed
    assert len(TYPED) - len(later) >= 0.9 * len(TYPED), later
    assert not later.keys() & SEARCHES["names"].keys()


def test_every_place_is_there():
    """In what is searched, as the file that is fetched has it."""
    text = (SITE / "_static" / site_search.INDEX).read_text(encoding="utf-8")
    known = json.JSONDecoder().raw_decode(text[text.rindex("const known = {") :].partition("= ")[2])[0]
    assert len(known["places"]) > len(equations())
    pages = [(SITE / f"{page}.html").read_text(encoding="utf-8") for page, *_ in known["pages"]]
    for page, anchor, kind, title, *_ in known["places"]:
        anchor = title if kind in ("function", "class") else anchor
        assert not anchor or f'id="{anchor}"' in pages[page], (page, anchor)


# --- light and quick ----------------------------------------------------------------------------------------------


def test_the_index_is_light_and_comes_once(tab, address):
    tab.asked.clear()
    tab.goto(f"{address}search.html?q=softmax")
    for query in ("dL/dW_K", "mask", "softmax backward"):
        answered(tab, query)
        assert tab.locator(".search-list a").count()
    later = [request.url for request in tab.asked if request.resource_type in ("fetch", "xhr")]
    assert not later
    assert len([request.url for request in tab.asked if site_search.INDEX in request.url]) == 1
    assert [request.url for request in tab.asked if ".html" in request.url] == [f"{address}search.html?q=softmax"]
    assert len(gzip.compress((SITE / "_static" / site_search.INDEX).read_bytes(), 6)) <= 150_000


# --- what is shown ------------------------------------------------------------------------------------------------


def test_a_formula_is_shown_and_where_it_stands(tab):
    answered(tab, "dL/dW_K")
    first = tab.locator(".search-list a").first
    assert first.locator("math mfrac, math msub, math msubsup").count()
    assert re.search(r"equation 4\.\d+, chapter 4, A single head", first.inner_text())


BAD = {
    "softmax " * 125: "Only the first 200 characters are looked for.",
    "!?… //// ((()": "no word, letter or formula",
    "<img src=x onerror=alert(1)>": "place",
    "zzzz": "Nothing in the book fits “zzzz”",
}


def test_bad_input_is_told_in_words_and_stays(tab):
    tab.errors.clear()
    for query, said in BAD.items():
        assert said in answered(tab, query)
        assert tab.locator(".bd-search-container input").input_value() == query
        assert not tab.locator(".bd-search-container img").count()
    assert not tab.errors


def test_an_index_that_does_not_come_is_told_and_asked_for_again(address, browser):
    tab = browser.new_page()
    tab.route(f"**/{site_search.INDEX}*", lambda route: route.fulfill(body="<h1>Log in</h1>"), times=1)
    tab.goto(f"{address}search.html?q=mask")
    tab.locator(".search-say", has_text="did not arrive").first.wait_for()
    tab.locator(".bd-search-container input").press("End")
    tab.keyboard.type("s")
    tab.locator(".search-list a").nth(1).wait_for()
    tab.close()


# --- in reach -----------------------------------------------------------------------------------------------------


def test_the_dialog_by_keyboard(address, pages):
    """It comes by either key, and goes with Escape and where a place is chosen. Before it is asked for, no index."""
    with pages() as tab:
        asked = []
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(address + CHAPTER)
        tab.wait_for_load_state("networkidle")
        assert not any("index" in url for url in asked)
        dialog = tab.locator("#pst-search-dialog")
        field = dialog.locator("[role=combobox]")
        for key in ("Control+k", "/"):
            tab.keyboard.press(key)
            tab.wait_for_function("e => e === document.activeElement", arg=field.element_handle())
            tab.keyboard.type("dL/dQ")  # a slash that is written stays
            assert field.input_value() == "dL/dQ"
            tab.keyboard.press("Escape")
            dialog.wait_for(state="hidden")
        tab.keyboard.press("/")
        field.fill("tiled backward line by line")
        dialog.locator("[role=option]", has_text="line by line").first.click()
        tab.wait_for_url("**#the-tiled-backward-line-by-line")
        dialog.wait_for(state="hidden")
        tab.keyboard.press("/")
        field.fill("lse")
        dialog.locator(".search-all[href$='?q=lse']").wait_for()
        assert field.get_attribute("aria-expanded") == "true"
        assert dialog.locator("[role=status]").inner_text().endswith("places")
        seen = []
        for step in ("", "ArrowDown", "ArrowUp", "ArrowUp"):
            if step:
                tab.keyboard.press(step)
            active = tab.locator(f"#{field.get_attribute('aria-activedescendant')}[role=option]")
            assert active.get_attribute("aria-selected") == "true"
            seen.append(active.get_attribute("href"))
        assert seen[0] == seen[2]
        assert len(set(seen)) == 3
        tab.keyboard.press("ArrowDown")
        tab.keyboard.press("Enter")
        tab.wait_for_url("**/03_softmax.html#equation-def-logsumexp")


def test_on_a_phone(address, browser):
    tab = browser.new_page(viewport={"width": 390, "height": 844}, has_touch=True, color_scheme="dark")
    tab.goto(address + CHAPTER)
    tab.locator(".bd-header-article .search-button").tap()
    tab.locator("dialog [role=combobox]").wait_for()
    tab.keyboard.type("multi head backward")
    tab.locator("dialog [role=option]").first.wait_for()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    box = tab.locator("#pst-search-dialog").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    assert box["y"] + box["height"] <= 844
    tab.locator("dialog .search-all").tap()
    tab.wait_for_url("**/search.html?q=*")
    tab.locator(".bd-search-container [role=option]").nth(10).wait_for()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    tab.close()


def test_without_a_script_the_page_says_where_to_look():
    page = soup(SITE / "search.html")
    for link in page.select("noscript p a"):
        assert (SITE / link["href"]).is_file()
    assert len(page.select("noscript p a")) > 2
    assert page.select_one("main form.bd-search input[name=q]")
