"""What axe finds on every page, light on a wide screen and then dark on a phone: nothing."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from built_site import ALL_PAGES, lay_out

# All of a page is near, so that figures have their controls; and a color that fades is measured when it has arrived.
NEAR = """window.IntersectionObserver = class extends IntersectionObserver {
    constructor(seen, options) { super(seen, { ...options, rootMargin: "1000000px" }) }
}"""
STILL = "* { transition: none !important; animation: none !important }"
# Axe takes its time with each part of a page, and most are like others: of the words in code and names, the formulas
# and links of a text, the buttons, the functions, the contents, the boxes, rows, items, cells and paragraphs without
# parts three of a kind stay, and one for the second look. Those of a kind have tag, classes, style and the names of
# their attributes in common, as their parents have, and boxes, rows, items and cells all parts; an empty one is of no
# kind with one that has text. What is drawn of a formula has the color of the text around it, and is nothing to a
# screen reader, which has MathML; a picture is one thing, with the name that stands on it.
FEWER = """(many) => {
    for (const drawing of document.querySelectorAll(".katex-html, article math")) drawing.replaceChildren("formula");
    for (const picture of document.querySelectorAll("figure svg[aria-hidden]")) picture.replaceChildren();
    const seen = {}, remove = (part) => part.remove();
    function name(part) {
        const style = (part.getAttribute("style") || "").replace(/--height: [^;]*/, "");
        const empty = !part.textContent.trim();
        return [part.tagName, part.getAttribute("class"), style, part.getAttributeNames(), empty].join();
    }
    function another(part, inside = "") {
        const kind = [part.parentElement.parentElement, part.parentElement, part].map(name).join(" ") + inside;
        return (seen[kind] = (seen[kind] || 0) + 1) > many;
    }
    function few(selector, leave) {
        const more = [...document.querySelectorAll(selector)].filter((part) => another(part));
        more.forEach(leave);
    }
    const words = "article :is(span, em, code, strong):not([id]), article section > p :is(a, math):not([id])";
    few(words, (part) => part.replaceWith(...part.childNodes));
    few("article :is(.copybtn, .headerlink:not(td *), dl.py), .toc-entry a", remove);
    for (const whole of document.querySelectorAll("article :is(details, div.cell, tbody tr, li)")) {
        const parts = new Set([...whole.querySelectorAll("*")].map(name));
        if (whole.isConnected && another(whole, [...parts].sort().join(" "))) whole.remove();
    }
    few("article section > p:not(:has(*)), .toc-entry:not(:has(*))", remove);
    document.normalize();
}"""
COME = """() => ![...document.querySelectorAll("figure.interactive:has(> form[hidden], > template)")]
    .some((figure) => figure.checkVisibility())"""


@pytest.fixture(scope="module")
def tab(browser):
    tab = browser.new_context().new_page()
    tab.add_init_script(NEAR)
    lay_out(tab)
    yield tab
    tab.context.close()


def opened(tab, address):
    """The page as axe shall see it, light on a wide screen."""
    tab.set_viewport_size({"width": 1280, "height": 900})
    tab.emulate_media(color_scheme="light")
    tab.goto(address)
    tab.wait_for_load_state("load")
    tab.add_style_tag(content=STILL)
    tab.evaluate("document.querySelectorAll('article details').forEach(box => { box.open = true })")
    tab.wait_for_function(COME)
    tab.evaluate(FEWER, 3)


def found(tab, theme, **options):
    """What axe finds on the page in the tab, which has this theme."""
    tab.wait_for_function("theme => document.documentElement.dataset.theme === theme", arg=theme)
    came = Axe().run(tab, options={"resultTypes": ["violations"], **options}).response["violations"]
    return [(rule["id"], node["html"][:200], node["failureSummary"]) for rule in came for node in rule["nodes"][:2]]


# One of each kind: live head, formulas and tabs, figures with controls, theorems, names, results, a function's own.
KINDS = (
    "book/intro.html", "book/answer.html", "chapters/11_memory_and_speed.html", "book/proofs.html", "book/api.html",
    "search.html?q=softmax", "book/api/attnbook.attention.attention.html",
)  # fmt: skip


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=() if page in KINDS else pytest.mark.thorough) for page in ALL_PAGES]
)
def test_axe_finds_nothing(page, tab, address):
    """On a dark phone only the colors differ, and what is near to what."""
    opened(tab, address + page)
    assert not found(tab, "light")
    tab.set_viewport_size({"width": 390, "height": 900})
    tab.emulate_media(color_scheme="dark")
    tab.evaluate(FEWER, 1)
    assert not found(tab, "dark", runOnly=["color-contrast", "target-size"])
