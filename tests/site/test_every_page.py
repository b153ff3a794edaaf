"""What a page weighs, and that its head says each thing once."""

import gzip

import pytest
from built_site import ALL_PAGES, PACKED, PAGES, SITE

WEIGHT = 600_000  # bytes at first view, compressed as GitHub Pages does it


def weight(response):
    """The bytes of a response as GitHub Pages sends it."""
    packed = any(kind in response.headers.get("content-type", "") for kind in PACKED)
    return len(gzip.compress(response.body(), 6) if packed else response.body())


@pytest.mark.parametrize("page", ALL_PAGES)
def test_the_head_says_each_thing_once(page):
    from bs4 import BeautifulSoup

    head, _, _ = (SITE / page.partition("?")[0]).read_text(encoding="utf-8").partition("</head>")
    tags = BeautifulSoup(head, "html.parser").head.find_all(["meta", "link", "script", "title"])
    tells_apart = ("name", "property", "rel", "href", "src", "media", "charset")
    said = [(tag.name, tag.text, *(str(tag.get(name)) for name in tells_apart)) for tag in tags]
    assert len(said) > 10
    assert len(said) == len(set(said)), sorted(said)


# Each is opened as by a newcomer, with nothing kept, which takes 3 s: by default the front page and the heaviest.
HEAVY = ("book/intro.html", "book/answer.html", "book/notation.html", "chapters/in_the_wild.html")


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=() if page in HEAVY else pytest.mark.thorough) for page in PAGES]
)
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
