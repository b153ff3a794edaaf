"""With JavaScript off: pages are light, and every page, menu, solution, formula and first picture is in reach."""

import pytest
from built_site import PAGES, lay_out

CHAPTER = "chapters/04_single_head.html"  # it has a figure with controls
SOME = ("book/intro.html", CHAPTER)
DEAD = ".run-bar, .sidebar-toggle, .search-button, .theme-switch-button, .btn-fullscreen-button, #pst-back-to-top"
DEAD += ", figure.interactive form"
SEEN = "all => all.filter(e => e.checkVisibility({ visibilityProperty: true })).length"


@pytest.fixture(scope="module")
def tab(browser):
    narrow = {"width": 390, "height": 900}
    context = browser.new_context(viewport=narrow, color_scheme="dark", java_script_enabled=False)
    yield context.new_page()
    context.close()


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=() if page in SOME else pytest.mark.thorough) for page in PAGES]
)
def test_every_page_is_in_reach(page, tab, address):
    tab.goto(address + page)
    assert tab.locator("nav.bd-links a").evaluate_all(SEEN) >= len(PAGES)
    assert tab.locator("a:is(.left-prev, .right-next)").evaluate_all("all => all.every(e => e.checkVisibility())")
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    text = tab.evaluate("getComputedStyle(document.querySelector('article p')).color")
    assert ground == "rgb(255, 255, 255)"
    assert max(int(part) for part in text[4:-1].split(",")) < 100
    lay_out(tab)
    assert tab.locator(DEAD).evaluate_all(SEEN) == 0
    assert tab.evaluate("document.documentElement.scrollWidth") <= tab.viewport_size["width"]
    for figure in filter(lambda figure: figure.is_visible(), tab.locator("figure.interactive").all()):
        assert figure.locator("svg").first.is_visible()
        assert figure.locator(".interactive-say").inner_text()


def test_a_chapter_can_be_read(tab, address):
    tab.goto(address + CHAPTER)
    tab.locator("a.right-next").click()
    tab.wait_for_url("**/05_multi_head.html")
    tab.go_back()
    lay_out(tab)
    solution = tab.locator("details.solution").first
    assert not solution.locator("p").first.is_visible()
    solution.locator("summary").click(position={"x": 5, "y": 5})
    solution.locator("p").first.wait_for()
    menu = tab.locator("details.dropdown-source-buttons")
    menu.locator("summary").click()
    menu.get_by_text("Suggest edit").wait_for()
    menu.locator("summary").click()
    for formula in tab.locator(".katex-display").all()[:5]:
        assert formula.locator(".katex-html").is_visible()
        assert formula.bounding_box()["height"] > 15


def test_a_notation_is_chosen_on_the_page_of_answers(tab, address):
    tab.goto(f"{address}book/answer.html")
    lay_out(tab)
    sets = tab.locator(".answer .sd-tab-set").first
    tables = sets.locator("> .sd-tab-content")
    assert [table.is_visible() for table in tables.all()] == [True, False, False, False, False]
    sets.locator("> label", has_text="The question").first.click()
    assert [table.is_visible() for table in tables.all()] == [False, True, False, False, False]
