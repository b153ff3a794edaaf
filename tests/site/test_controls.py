"""The figures with controls, in a browser: by keyboard and by touch, and as a first picture without JavaScript."""

import pytest
from built_site import PAGES, ROOT, lay_out, thorough_but_for_some


def source(page):
    """What a page is made from: a notebook, or Markdown."""
    return next(ROOT.glob(page.replace(".html", ".*"))).read_text(encoding="utf-8")


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
