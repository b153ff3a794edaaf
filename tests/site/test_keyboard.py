"""By keyboard, on a phone: the skip link comes first, what scrolls inside itself is reached, seen to be, and moved.

No formula of a chapter scrolls.
"""

import pytest
from built_site import PAGES, lay_out, thorough_but_for_some

CHAPTER = "chapters/04_single_head.html"
SCROLLERS = """() => [...document.querySelectorAll('article *')].filter(e =>
    e.scrollWidth > e.clientWidth + 1
    && ['auto', 'scroll'].includes(getComputedStyle(e).overflowX)
    && e.checkVisibility())"""

# Controls that look the same with the focus as without: two of a kind, for there are many.
UNSEEN = """() => {
    document.head.insertAdjacentHTML("beforeend", "<style>* { transition: none !important }</style>")
    const look = (part) => {
        const { outlineStyle, outlineWidth, boxShadow, borderColor, opacity } = getComputedStyle(part)
        return [outlineStyle !== "none" && outlineWidth, boxShadow, borderColor, opacity].join()
    }
    const around = (it) => [it, it.parentElement, it.nextElementSibling].filter(Boolean).map(look).join()
    const kinds = {}, unseen = []
    for (const it of document.querySelectorAll("a[href], button, summary, input, select, textarea, [tabindex='0']")) {
        const kind = it.tagName + it.className
        if (!it.checkVisibility({ visibilityProperty: true })) continue
        if ((kinds[kind] = (kinds[kind] ?? 0) + 1) > 2) continue
        const before = around(it)
        it.focus({ focusVisible: true, preventScroll: true })
        if (it === document.activeElement && around(it) === before) unseen.push(it.outerHTML.slice(0, 200))
        it.blur()
    }
    return unseen
}"""


@pytest.fixture
def tab(pages):
    with pages(width=390) as tab:
        lay_out(tab)
        yield tab


@pytest.mark.parametrize("page", thorough_but_for_some(PAGES))
def test_the_focus_is_seen_and_what_scrolls_inside_itself_can_be_reached(page, tab, address):
    tab.goto(address + page)
    tab.wait_for_load_state("load")
    tab.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true })")
    formula, number = "e => e.matches('[id^=equation-] > *')", "e => e.parentElement.id"
    assert tab.evaluate(UNSEEN) == []
    missed = "e => e.tabIndex < 0 || !e.getAttribute('aria-label') || !['group', 'figure', 'img'].includes(e.role)"
    assert tab.evaluate(f"({SCROLLERS})().filter({missed}).map(e => e.outerHTML.slice(0, 200))") == []
    assert tab.evaluate(f"document.fonts.ready.then(() => ({SCROLLERS})().filter({formula}).map({number}))") == []


def test_a_chapter_by_keyboard(tab, address):
    tab.goto(address + CHAPTER)
    tab.keyboard.press("Tab")
    focused = tab.locator(":focus")
    assert focused.inner_text() == "Skip to main content"
    assert focused.bounding_box()["y"] >= 0
    tab.keyboard.press("Enter")
    assert tab.url.endswith("#main-content")
    wide = tab.evaluate_handle(f"({SCROLLERS})()[0]").as_element()
    wide.scroll_into_view_if_needed()
    for _ in range(300):
        tab.keyboard.press("Tab")
        if wide.evaluate("e => e === document.activeElement"):
            break
    assert wide.evaluate("e => e === document.activeElement")
    assert wide.evaluate("e => getComputedStyle(e).outlineStyle") != "none"
    for _ in range(5):
        tab.keyboard.press("ArrowRight")
    tab.wait_for_function("e => e.scrollLeft > 20", arg=wide)
