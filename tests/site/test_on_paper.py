"""A printed page: its text, formulas, code and figures, light and complete, and nothing that only a screen can use."""

import io

import pypdf
import pytest
from built_site import PAGES, thorough_but_for_some

CHAPTER = "chapters/07_cross.html"
WIDTH, HEIGHT = 670, 960  # of the text on A4, in pixels
ONLY_ON_A_SCREEN = (
    ".bd-sidebar-primary, .bd-sidebar-secondary, .bd-header-article, .prev-next-footer, #pst-back-to-top, dialog, "
    "article :is(button, input, select):not(.head-row *), .headerlink, .onlyprint, [popover]"
)
SEEN = "e => e.checkVisibility({contentVisibilityAuto: true, visibilityProperty: true})"


@pytest.fixture(scope="module")
def tab(browser):
    tab = browser.new_context(viewport={"width": WIDTH, "height": 950}).new_page()
    tab.clock.install()
    yield tab
    tab.context.close()


@pytest.mark.parametrize("page", thorough_but_for_some(PAGES))
def test_all_of_it_is_on_paper(page, tab, address):
    tab.emulate_media(media="screen")
    tab.goto(address + page)
    tab.wait_for_load_state("load")
    tab.clock.run_for(1200)  # fonts.js waits for a second
    loaded = "() => [...document.fonts].filter(f => f.status !== 'unloaded').map(f => f.family + f.weight + f.style)"
    before = set(tab.evaluate(loaded))
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    tab.emulate_media(media="print")
    assert tab.evaluate("document.documentElement.scrollWidth") <= WIDTH, tab.evaluate(
        f"[...document.querySelectorAll('article *')].filter(e => e.getBoundingClientRect().right > {WIDTH})"
        ".slice(0, 3).map(e => e.outerHTML.slice(0, 300))"
    )
    tall = f"[...document.querySelectorAll('figure')].filter(e => e.getBoundingClientRect().height > {HEIGHT})"
    assert tab.evaluate(f"{tall}.map(e => e.ariaLabel)") == []  # it would be cut, after an empty page
    assert tab.evaluate(f"[...document.querySelectorAll('{ONLY_ON_A_SCREEN}')].filter({SEEN}).length") == 0
    aside = "details.hide, .head-live, .head-say, .run-bar, [hidden], [popover], .visits-case, .visually-hidden"
    hidden = f"!({SEEN})(e) && !e.closest('{aside}')"
    parts = "article :is(p, pre, figure, td, summary, .katex-display)"
    assert tab.evaluate(f"[...document.querySelectorAll('{parts}')].filter(e => {hidden}).map(e => e.outerHTML)") == []
    tab.evaluate("document.fonts.ready.then(() => null)")
    assert set(tab.evaluate(loaded)) <= before  # a font that comes later leaves gaps in what is printed


def test_what_is_read_in_the_dark_is_printed_in_the_light(browser, address):
    tab = browser.new_context(color_scheme="dark").new_page()
    tab.goto(address + CHAPTER)
    theme = "document.documentElement.dataset.theme"
    assert tab.evaluate(theme) == "dark"
    tab.evaluate(f"addEventListener('beforeprint', () => {{ window.printed = {theme} }})")
    pdf = pypdf.PdfReader(io.BytesIO(tab.pdf(prefer_css_page_size=True)))
    assert tab.evaluate("window.printed") == "light"
    assert tab.evaluate(theme) == "dark"
    text = " ".join("".join(page.extract_text() for page in pdf.pages).split())
    tab.context.close()
    assert "Solution to Exercise 7.1" in text
    assert "The token learns." in text  # in the solution
    assert "Run this chapter" not in text
