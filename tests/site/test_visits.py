"""Every page, opened once, in the dark on a phone: what is wrong with it, by the name of what is asked.

Of one of each kind more is asked in the same visit: in other sizes, printed, by keys, by axe; and what some weigh.
"""

import contextlib
import gzip

import formulas
import pytest
from axe_playwright_python.sync_playwright import Axe
from built_site import ALL_PAGES, PAGES, lay_out

WIDTHS = {"light": 1280, "dark": 390}  # the themes, one on a wide screen, the other on a phone
NARROW = 320  # as a page may get before it scrolls sideways: WCAG 2, Reflow
CHAPTER = "chapters/04_single_head.html"
# One of each kind: live head, formulas and tabs, figures with controls and theorems, results, a function's own.
KINDS = (
    "book/intro.html", "book/answer.html", "chapters/11_memory_and_speed.html", "search.html?q=softmax",
    "book/api/attnbook.attention.attention.html",
)  # fmt: skip
# The front page and the heaviest, each as a newcomer opens it, with nothing kept.
HEAVY = ("book/intro.html", "book/answer.html", "book/notation.html", "chapters/in_the_wild.html")
WEIGHT = 600_000  # bytes at first view, compressed as GitHub Pages does it
PACKED = ("text/", "javascript", "json", "svg", "xml")  # the kinds of file that it compresses
PAPER = {"width": 670, "height": 960}  # of the text on A4, in pixels


def all_of(selector, wrong, said="e.outerHTML.slice(0, 300)", inside="article "):
    """What the elements say of which something wrong holds."""
    return f"[...document.querySelectorAll(`{inside}{selector}`)].filter(e => {wrong}).map(e => {said})"


SEEN = "e.checkVisibility({ contentVisibilityAuto: true, visibilityProperty: true })"
# --- what a page must be on a screen: each finds something wrong ----------------------------------------------------
TOO_WIDE = "document.documentElement.scrollWidth > innerWidth"
ON_A_SCREEN = {
    "wrongly folded": all_of(  # what shows something to nobody, or nothing to everybody
        ".cell.tag_hide-input",
        "Boolean(e.querySelector('.cell_output')) === (getComputedStyle(e).display === 'none')",
        "e.innerText",
    ),
    "scrolls sideways": TOO_WIDE,
}
# --- on paper -------------------------------------------------------------------------------------------------------
ONLY_ON_A_SCREEN = (
    ".bd-sidebar-primary, .bd-sidebar-secondary, .bd-header-article, .prev-next-footer, #pst-back-to-top, dialog, "
    "article :is(button, input, select):not(.head-row *), .headerlink, .onlyprint, [popover]"
)
ASIDE = "details.hide, .head-live, .head-say, .run-bar, [hidden], [popover], .visits-case, .visually-hidden"
ON_PAPER = {
    "wider than paper": all_of("*", f"e.getBoundingClientRect().right > {PAPER['width']} && {TOO_WIDE}")
    + ".slice(0, 3)",
    "cut, after an empty page": all_of(
        "figure", f"e.getBoundingClientRect().height > {PAPER['height']}", "e.ariaLabel", inside=""
    ),
    "only for a screen": all_of(ONLY_ON_A_SCREEN, SEEN, inside=""),
    "not on paper": all_of(":is(p, pre, figure, td, summary, .katex-display)", f"!{SEEN} && !e.closest(`{ASIDE}`)"),
}
FONTS = "[...document.fonts].filter(f => f.status !== 'unloaded').map(f => f.family + f.weight + f.style)"
# --- by keyboard ----------------------------------------------------------------------------------------------------
SCROLLERS = """[...document.querySelectorAll('article *')].filter(e => e.scrollWidth > e.clientWidth + 1
    && ['auto', 'scroll'].includes(getComputedStyle(e).overflowX) && e.checkVisibility())"""
UNNAMED = "e.tabIndex < 0 || !e.getAttribute('aria-label') || !['group', 'figure', 'img'].includes(e.role)"
BY_KEYBOARD = {
    # Controls that look the same with the focus as without: two of a kind, for there are many.
    "a focus that is not seen": """(() => {
        const look = (part) => {
            const { outlineStyle, outlineWidth, boxShadow, borderColor, opacity } = getComputedStyle(part)
            return [outlineStyle !== "none" && outlineWidth, boxShadow, borderColor, opacity].join()
        }
        const around = (it) => [it, it.parentElement, it.nextElementSibling].filter(Boolean).map(look).join()
        const kinds = {}, unseen = []
        const all = "a[href], button, summary, input, select, textarea, [tabindex='0']"
        for (const it of document.querySelectorAll(all)) {
            const kind = it.tagName + it.className
            if (!it.checkVisibility({ visibilityProperty: true })) continue
            if ((kinds[kind] = (kinds[kind] ?? 0) + 1) > 2) continue
            const before = around(it)
            it.focus({ focusVisible: true, preventScroll: true })
            if (it === document.activeElement && around(it) === before) unseen.push(it.outerHTML.slice(0, 200))
            it.blur()
        }
        return unseen
    })()""",
    "scrolls and cannot be reached": f"{SCROLLERS}.filter(e => {UNNAMED}).map(e => e.outerHTML.slice(0, 200))",
    "a formula scrolls": f"document.fonts.ready.then(() => {SCROLLERS}.filter(e => e.matches('[id^=equation-] > *'))"
    ".map(e => e.parentElement.id))"
    if formulas.INSTALLED  # the browser's own math is wider
    else "[]",
}
# --- what axe finds -------------------------------------------------------------------------------------------------
STILL = "* { transition: none !important; animation: none !important }"  # a color is measured when it has arrived
# Figures get their controls where a reader comes near.
NEAR = """async () => {
    for (const figure of document.querySelectorAll("figure.interactive, .live-head")) {
        if (!figure.checkVisibility()) continue
        figure.scrollIntoView()
        while (figure.querySelector(":scope > :is(form[hidden], template)")) await new Promise(requestAnimationFrame)
    }
    scrollTo(0, 0)
}"""
# Axe takes its time with each part of a page, and most are like others, on this page and on those before: of the words
# in code and names, the formulas and links of a text, the buttons, the functions, the contents, the boxes, rows, items,
# cells and paragraphs without parts three of a kind stay, and one for the second look. Those of a kind have tag,
# classes, style and the names of their attributes in common, as their parents have, and boxes, rows, items and cells
# all parts; an empty one is of no kind with one that has text. What is drawn of a formula has the color of the text
# around it, and is nothing to a screen reader, which has MathML; a picture is one thing, with the name that stands on
# it.
FEWER = """([many, before]) => {
    for (const drawing of document.querySelectorAll(".katex-html, article math")) drawing.replaceChildren("formula");
    for (const picture of document.querySelectorAll("figure svg[aria-hidden]")) picture.replaceChildren();
    const seen = JSON.parse(before), remove = (part) => part.remove();
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
    return JSON.stringify(seen);
}"""


class Visit:
    """One page in a tab; ``found`` is what is wrong with it."""

    def __init__(self, tab, address, page, theme="dark", width=None):
        self.tab, self.page, self.theme, self.found = tab, page, theme, {}
        complaints, outside = [], []
        self.hears = {
            "pageerror": lambda error: complaints.append(str(error)),
            "console": lambda message: complaints.append(message.text) if message.type == "error" else None,
            "request": lambda r: outside.append(r.url) if not r.url.startswith((address, "data:", "blob:")) else None,
        }
        for event, hear in self.hears.items():
            tab.on(event, hear)
        self.look(width or WIDTHS[theme], theme)
        tab.goto(address + page)
        tab.wait_for_load_state("networkidle")
        self.found |= {"complaints": complaints, "asked of others": outside}

    def look(self, width, theme, media="screen", height=900):
        self.tab.set_viewport_size({"width": width, "height": height})
        self.tab.emulate_media(color_scheme=theme, media=media)

    def ask(self, questions):
        self.found |= {name: self.tab.evaluate(question) for name, question in questions.items()}

    def wrong(self):
        """What was found, when the visit is over."""
        for event, hear in self.hears.items():
            self.tab.remove_listener(event, hear)
        return {name: found for name, found in self.found.items() if found}

    def on_a_screen(self):
        self.ask(ON_A_SCREEN)
        self.found["another theme"] = self.tab.evaluate("document.documentElement.dataset.theme") != self.theme

    def in_many_sizes(self):
        """Each lays the page out anew."""
        if self.theme == "dark":
            large = self.tab.add_style_tag(content="html { font-size: 200% !important }")  # WCAG 2, Resize text
            self.ask({"scrolls sideways with large letters": TOO_WIDE})
            large.evaluate("style => style.remove()")
            self.look(NARROW, "dark")
            self.ask({f"scrolls sideways at {NARROW}": TOO_WIDE})

    def on_paper(self):
        """Opened anew, as what was laid out has its fonts."""
        self.look(PAPER["width"], "dark")
        self.tab.reload()
        self.tab.wait_for_load_state("load")
        self.tab.evaluate("new Promise(done => setTimeout(() => requestIdleCallback(done), 1000))")  # as fonts.js does
        before = set(self.tab.evaluate(FONTS))
        self.tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        self.look(PAPER["width"], "dark", "print")
        self.ask(ON_PAPER)
        self.tab.evaluate("document.fonts.ready.then(() => null)")
        self.found["a font that leaves gaps in what is printed"] = set(self.tab.evaluate(FONTS)) - before

    def by_keyboard(self):
        self.look(390, "light")
        self.tab.add_style_tag(content=STILL)
        self.tab.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true })")
        self.ask(BY_KEYBOARD)

    def by_axe(self, seen):
        """On a dark phone only the colors differ, and what is near to what."""
        self.tab.add_style_tag(content=STILL)
        self.tab.evaluate("document.querySelectorAll('article details').forEach(e => { e.open = true })")
        self.tab.evaluate(NEAR)
        for width, theme, many, options in (
            (1280, "light", 3, {}),
            (390, "dark", 1, {"runOnly": ["color-contrast", "target-size"]}),
        ):
            self.look(width, theme)
            self.tab.wait_for_function("theme => document.documentElement.dataset.theme === theme", arg=theme)
            seen[many] = self.tab.evaluate(FEWER, [many, seen.get(many, "{}")])
            self.found[f"axe, {theme}"] = axe(self.tab, **options)


def axe(tab, context=None, **options):
    came = Axe().run(tab, context=context, options={"resultTypes": ["violations"], **options}).response["violations"]
    return [(rule["id"], node["html"][:200], node["failureSummary"]) for rule in came for node in rule["nodes"][:2]]


def weight(response):
    """The bytes of a response as GitHub Pages sends it."""
    packed = any(kind in response.headers.get("content-type", "") for kind in PACKED)
    return len(gzip.compress(response.body(), 6) if packed else response.body())


@pytest.fixture(scope="module")
def one_tab(pages):
    """For all pages but those that are weighed: a tab takes a third of the time of a page."""
    with pages() as tab:
        yield tab


@pytest.fixture(scope="module")
def seen():
    """Kinds of parts that axe has seen."""
    return {}


WHOLE = [pytest.param(page, True, marks=pytest.mark.thorough, id=f"{page}-whole") for page in ALL_PAGES]


@pytest.mark.parametrize(("page", "whole"), [*(pytest.param(page, False, id=page) for page in ALL_PAGES), *WHOLE])
def test_a_page(page, whole, one_tab, seen, address, browser):
    """The questions on it, and each answer is: nothing. Pages that are like others are laid out once, narrow."""
    is_written, more = page in PAGES, whole or page in KINDS
    weighed = is_written and (whole or page in HEAVY)
    with browser.new_page() if weighed else contextlib.nullcontext(one_tab) as tab:
        responses = []
        if weighed:
            tab.on("response", lambda response: responses.append(response))
        visit = Visit(tab, address, page, width=None if more else NARROW)
        weights = {response.url: weight(response) for response in responses if response.status == 200}
        assert len(weights) > 5 or not weighed
        if sum(weights.values()) > WEIGHT:
            visit.found["heavy"] = sorted(weights.items(), key=lambda item: -item[1])
        lay_out(tab)
        visit.on_a_screen()
        if more:
            visit.in_many_sizes()
        if more and is_written:
            visit.by_keyboard()
        if more:
            visit.by_axe({} if whole else seen)
        if more and is_written:
            visit.on_paper()
        assert not visit.wrong()
    if whole:
        visit = Visit(one_tab, address, page, "light")
        lay_out(one_tab)
        visit.on_a_screen()
        visit.in_many_sizes()
        assert not visit.wrong()


def test_the_skip_link_comes_first(pages, address):
    with pages(width=390) as tab:
        tab.goto(address + CHAPTER)
        tab.keyboard.press("Tab")
        assert tab.locator(":focus").inner_text() == "Skip to main content"
        assert tab.locator(":focus").bounding_box()["y"] >= 0
        tab.keyboard.press("Enter")
        tab.wait_for_url("**#main-content")


def test_what_is_read_in_the_dark_is_printed_in_the_light(browser, address):
    tab = browser.new_context(color_scheme="dark").new_page()
    tab.goto(address + "chapters/07_cross.html")
    theme = "document.documentElement.dataset.theme"
    assert tab.evaluate(theme) == "dark"
    tab.evaluate(f"addEventListener('beforeprint', () => {{ window.printed = {theme} }})")
    tab.pdf(prefer_css_page_size=True)
    assert tab.evaluate("window.printed") == "light"
    assert tab.evaluate(theme) == "dark"
    tab.context.close()
