"""The figures with controls, in a browser: by keyboard and by touch, and as a first picture without JavaScript."""

import pytest
from built_site import PAGES, ROOT, lay_out, thorough_but_for_some


def source(page):
    """What a page is made from: a notebook, or Markdown."""
    return next(ROOT.glob(page.replace(".html", ".*"))).read_text(encoding="utf-8")


def shown(figure):
    """Which of the masks of the tiles to step through, in chapter 11."""
    cases = figure.locator(".visits-case")
    return [i for i in range(cases.count()) if cases.nth(i).is_visible()]


@pytest.mark.parametrize("script", [True, False], ids=["by keyboard", "without JavaScript"])
def test_the_tiles_to_step_through(script, address, browser):
    """A mask is chosen and the slider moved by keyboard; without JavaScript all tiles are numbered."""
    tab = browser.new_context(java_script_enabled=script).new_page()
    tab.goto(f"{address}chapters/11_memory_and_speed.html")
    lay_out(tab)
    figure = tab.locator("figure.visits")
    if script:
        figure.locator("input[type=radio]").first.focus()
        tab.keyboard.press("ArrowRight")
        assert shown(figure) == [1]
        causal = figure.locator(".visits-case").nth(1)
        for _ in range(3):
            causal.locator("input[type=range]").press("ArrowRight")
        assert causal.locator("input[type=range]").get_attribute("aria-valuetext") == "tile 3 of 10"
        assert causal.locator(".interactive-say").inner_text().startswith("Tile 3 of 10: ")
        assert causal.locator('g[data-state="done"]').count() == 2
    else:
        assert shown(figure) == [0]
        assert not figure.locator("input[type=range]").first.is_visible()
        figure.locator("label", has_text="window").click()
        assert shown(figure) == [2]
        assert "window: 12 of 16 tiles" in figure.locator(".visits-case").nth(2).inner_text()
    tab.context.close()


@pytest.fixture(scope="module")
def phone(browser):
    tab = browser.new_context(has_touch=True, viewport={"width": 390, "height": 900}).new_page()
    yield tab
    tab.context.close()


WITH_FIGURES = [page for page in PAGES if "attnbook interactive" in source(page)]


def figures(tab, address, page):
    tab.goto(address + page)
    lay_out(tab)
    return [figure for figure in tab.locator("figure.interactive").all() if figure.is_visible()]


@pytest.mark.parametrize("page", WITH_FIGURES)
class TestFiguresWithControls:
    """Each of them on each page, by keyboard and by pointing."""

    picture = "f => f.querySelector('.interactive-picture').innerHTML + f.querySelector('.interactive-say').innerText"

    def test_by_keyboard_mouse_and_touch(self, page, address, phone):
        """On a phone, in one tab: the keyboard first, which leaves the first picture."""
        found = figures(phone, address, page)
        for figure in found:  # it gets its controls when it is near
            figure.scroll_into_view_if_needed()
            figure.locator(":scope > form").wait_for()
        for figure in found:
            self.by_keyboard(figure)
            self.by_pointing(figure)
            assert len(figure.evaluate(self.places)) == 1, "something moves under the finger"

    def by_keyboard(self, figure):
        first = figure.evaluate(self.picture)
        for slider in figure.locator("input[type=range]").all():
            start, there = int(slider.input_value()), slider.get_attribute("aria-valuetext")
            away, back = ("ArrowLeft", "ArrowRight") if start else ("ArrowRight", "ArrowLeft")
            slider.press(away)
            assert slider.get_attribute("aria-valuetext") != there
            assert figure.evaluate(self.picture) != first
            slider.press(back)
            assert slider.get_attribute("aria-valuetext") == there
            assert figure.evaluate(self.picture) == first
        for radios in figure.locator("fieldset").all():
            radios.locator("input:checked").press("ArrowRight")
            assert figure.evaluate(self.picture) != first
            radios.locator("input:checked").press("ArrowLeft")
            assert figure.evaluate(self.picture) == first

    def by_pointing(self, figure):
        places = [place for place in figure.locator("[data-choose]").all() if place.is_visible()]
        for point in ("hover", "tap"):  # each begins where the other did not end
            for place in places[-1:] + places[:1]:
                getattr(place, point)()
                for choice in place.get_attribute("data-choose").split(", "):
                    name, position = choice.split(":")
                    figure.page.wait_for_function(self.stands, arg=[figure.element_handle(), name, position])

    stands = """([figure, name, position]) =>
        figure.querySelector(`[data-control="${name}"] :is(input[type=range], input:checked)`).value === position"""

    # Where controls and picture stand in the figure, for all positions of a slider in each choice of the buttons.
    places = """figure => {
        const places = new Set(), top = (part) => part.getBoundingClientRect().top
        const parts = [...figure.querySelectorAll("form input, .interactive-picture")]
        const set = (input) => input.dispatchEvent(new Event("input", { bubbles: true }))
        const note = () => places.add([figure.offsetHeight, ...parts.map(part => top(part) - top(figure))].join())
        const slide = () => {
            note()
            for (const slider of figure.querySelectorAll("input[type=range]")) {
                for (slider.value = 0; ; slider.stepUp()) {
                    set(slider)
                    note()
                    if (slider.value === slider.max) break
                }
            }
        }
        slide()
        for (const choice of figure.querySelectorAll("input[type=radio]")) {
            choice.checked = true
            set(choice)
            slide()
        }
        return [...places]
    }"""


@pytest.mark.parametrize("page", thorough_but_for_some(WITH_FIGURES))
def test_without_javascript_the_first_picture_stands(page, address, browser):
    tab = browser.new_context(java_script_enabled=False).new_page()
    found = figures(tab, address, page)
    assert found
    for figure in found:
        assert figure.locator("svg").first.is_visible()
        assert figure.locator(".interactive-say").inner_text()
        assert not figure.locator("form").is_visible()
    tab.context.close()
