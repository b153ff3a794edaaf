"""What a page weighs, what axe finds in light and dark, and that the search finds."""

import gzip

import pytest
from axe_playwright_python.sync_playwright import Axe
from built_site import PACKED, PAGES

WEIGHT = 600_000  # bytes at first view, compressed as GitHub Pages does it
LOOKED_AT = PAGES[:2]  # a chapter takes axe a minute; `make lighthouse` asks it about every page


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("page", LOOKED_AT)
def test_axe_finds_nothing(page, theme, address, browser):
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme=theme)
    tab = context.new_page()
    tab.goto(address + page)
    tab.wait_for_load_state("load")
    # Of the other theme only the colours differ.
    options = {"resultTypes": ["violations"]} | ({"runOnly": ["color-contrast"]} if theme == "dark" else {})
    found = Axe().run(tab, options=options).response["violations"]
    context.close()
    assert not [(rule["id"], rule["nodes"][0]["html"], len(rule["nodes"])) for rule in found]


def weight(response):
    """The bytes of a response as GitHub Pages sends it."""
    packed = any(kind in response.headers.get("content-type", "") for kind in PACKED)
    return len(gzip.compress(response.body(), 6) if packed else response.body())


@pytest.mark.parametrize("page", PAGES)
def test_the_first_view_weighs_little(page, address, browser):
    context = browser.new_context(viewport={"width": 390, "height": 900})
    tab = context.new_page()
    responses = []
    tab.on("response", lambda response: responses.append(response))
    tab.goto(address + page)
    tab.wait_for_load_state("networkidle")
    weights = {response.url: weight(response) for response in responses if response.status == 200}
    context.close()
    assert len(weights) > 5
    assert sum(weights.values()) < WEIGHT, sorted(weights.items(), key=lambda item: -item[1])


def test_the_search_finds(address, browser):
    tab = browser.new_context().new_page()
    tab.goto(f"{address}search.html?q=softmax")
    tab.locator("#search-results li").first.wait_for()
    tab.context.close()
