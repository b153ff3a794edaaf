"""The figures with controls, in a browser: by keyboard and by touch. Without JavaScript: test_without_scripts."""

import pytest
from built_site import PAGES, ROOT, lay_out

WITH_FIGURES = [
    page for page in PAGES if "attnbook interactive" in next(ROOT.glob(page.replace(".html", ".*"))).read_text("utf-8")
]
PICTURE = "f => f.querySelector('.interactive-picture').innerHTML + f.querySelector('.interactive-say').innerText"
STANDS = """([figure, name, position]) =>
    figure.querySelector(`[data-control="${name}"] :is(input[type=range], input:checked)`).value === position"""


@pytest.fixture(scope="module")
def phone(browser):
    tab = browser.new_context(has_touch=True, viewport={"width": 390, "height": 900}).new_page()
    yield tab
    tab.context.close()


@pytest.mark.parametrize("page", WITH_FIGURES)
def test_each_figure_by_keyboard_mouse_and_touch(page, address, phone):
    """The keyboard first, which leaves the first picture."""
    phone.goto(address + page)
    lay_out(phone)
    found = [figure for figure in phone.locator("figure.interactive").all() if figure.is_visible()]
    for figure in found:  # it gets its controls when it is near
        figure.scroll_into_view_if_needed()
        figure.locator(":scope > form").wait_for()
    for figure in found:
        by_keyboard(figure)
        by_pointing(figure)


def by_keyboard(figure):
    first = figure.evaluate(PICTURE)
    for slider in figure.locator("input[type=range]").all():
        start, there = int(slider.input_value()), slider.get_attribute("aria-valuetext")
        away, back = ("ArrowLeft", "ArrowRight") if start else ("ArrowRight", "ArrowLeft")
        slider.press(away)
        assert slider.get_attribute("aria-valuetext") != there
        assert figure.evaluate(PICTURE) != first
        slider.press(back)
        assert slider.get_attribute("aria-valuetext") == there
        assert figure.evaluate(PICTURE) == first
    for radios in figure.locator("fieldset").all():
        radios.locator("input:checked").press("ArrowRight")
        assert figure.evaluate(PICTURE) != first
        radios.locator("input:checked").press("ArrowLeft")
        assert figure.evaluate(PICTURE) == first


def by_pointing(figure):
    places = [place for place in figure.locator("[data-choose]").all() if place.is_visible()]
    for point in ("hover", "tap"):  # each begins where the other did not end
        for place in places[-1:] + places[:1]:
            getattr(place, point)()
            for choice in place.get_attribute("data-choose").split(", "):
                name, position = choice.split(":")
                figure.page.wait_for_function(STANDS, arg=[figure.element_handle(), name, position])
