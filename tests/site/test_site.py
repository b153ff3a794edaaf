"""The built site: complete, linked, readable without eyes, and asking no other host. ``make test`` builds it first."""

from functools import partial

import formulas
import pytest
from built_site import PAGES, SITE, SOME_OF_PACKAGE, broken_links, lay_out, soup
from room import public, rooms
from unused import used

PACKAGE = [f"book/api/{name}.html" for name in (*map(".".join, public()), *rooms())]
SOME = [pytest.param(page, marks=() if page in SOME_OF_PACKAGE else pytest.mark.thorough) for page in PACKAGE]


@pytest.mark.parametrize("page", [*PAGES, *SOME])
class TestPage:
    def test_it_is_there_and_no_link_is_broken(self, page):
        assert soup(SITE / page).find("h1")
        assert not list(broken_links(page))

    def test_pictures_say_in_words_what_they_show_and_have_a_number_and_an_address(self, page):
        for picture in soup(SITE / page).find_all("img"):
            named = picture.find_parent(["a", "button"])  # an icon beside the words of its button says nothing more
            assert picture.get("alt") or (picture.get("alt") == "" and named and named.get_text(strip=True)), picture
        for figure in soup(SITE / page).select("figure.attnbook"):
            assert len(figure.get("aria-label", "")) > 20, figure.get("aria-label")
        for caption in soup(SITE / page).select("article figcaption"):
            assert caption.select_one(".caption-number"), caption
            assert caption.parent.get("id"), caption

    def test_no_id_is_there_twice_and_nothing_is_left_unresolved(self, page):
        ids = [tag["id"] for tag in soup(SITE / page).select("[id]")]
        assert not {name for name in ids if ids.count(name) > 1}
        article = soup(SITE / page).find("article") or soup(SITE / page)
        assert not article.select(".problematic, .system-message")
        assert "{eq}`" not in article.get_text()


def test_every_formula_is_set_and_can_be_read_aloud():
    formulas = [formula for page in PAGES for formula in soup(SITE / page).select("article .math")]
    assert len(formulas) > 3000
    assert not [str(formula) for formula in formulas if not formula.select_one(".katex math semantics mrow")]
    children = {"msub": 2, "msup": 2, "mfrac": 2, "munder": 2, "mover": 2, "msubsup": 3}
    for formula in formulas:  # else Firefox reads nothing
        assert not formula.find(columnspacing="")
        for part in formula.find_all([*children]):
            assert len(part.find_all(recursive=False)) == children[part.name], formula


def test_a_displayed_formula_is_one_box_where_npm_installed_nothing(monkeypatch):
    """By which it scrolls, is reached by keyboard, and is copied."""
    monkeypatch.setattr(formulas, "INSTALLED", False)
    monkeypatch.setattr(formulas, "render", partial(formulas.render, output="mathml"))
    assert formulas._rendered(None, "x", True).startswith('<span class="katex-display"><span class="katex"><math')


def test_the_mark_beside_a_formula_opens_its_check_which_says_how():
    for page in (p for p in PAGES if p.startswith("chapters/")):
        marks = {a["href"].removeprefix("#") for a in soup(SITE / page).select("a.checked")}
        assert marks
        folds = soup(SITE / page).select(".cell.check")
        assert marks == {tag["id"] for fold in folds for tag in fold.select("details [id^=check-]")}
        said = {fold.select_one("summary .collapsed").get_text() for fold in folds}
        assert all(line.startswith("checked: ") and len(line) > len("checked: ") for line in said)


# --- in a browser -------------------------------------------------------------------------------------------------


class TestTheSwitchOfNotation:
    """On the page of answers: one choice for all tables, by mouse, by keyboard, by address."""

    sets = ".answer .sd-tab-set"
    chosen = (
        "[...document.querySelectorAll('.answer .sd-tab-set > input:checked + label')].map(l => l.innerText.trim())"
    )

    def open(self, browser, address, query="", first="", **options):
        tab = browser.new_context(**options).new_page()
        tab.add_init_script(first)
        tab.goto(f"{address}book/answer.html{query}")
        tab.wait_for_load_state("networkidle")
        lay_out(tab)
        return tab

    def test_by_mouse_and_by_keyboard(self, address, browser):
        """On a phone; what is closed is no part of the page until it is chosen or printed."""
        options = {"viewport": {"width": 390, "height": 900}, "first": "window.requestIdleCallback = () => {}"}
        tab = self.open(browser, address, **options)
        assert tab.evaluate(self.chosen) == ["This book"] * 3
        first = tab.locator(".answer .katex").count()
        tab.locator(f"{self.sets} > label", has_text="The question").last.click()
        tab.wait_for_function(f"{self.chosen}.join() === 'The question,The question,The question'")
        for table in tab.locator(f"{self.sets} > .sd-tab-content:visible .pst-scrollable-table-container").all():
            assert table.evaluate("e => e.scrollWidth <= e.clientWidth")
        tab.keyboard.press("ArrowRight")
        tab.wait_for_function(f"{self.chosen}.join() === 'Its answer,Its answer,Its answer'")
        tab.pdf()
        assert tab.locator(".answer .katex").count() > 3 * first
        tab.context.close()

    def test_by_address_and_what_is_closed_is_found_by_the_browsers_own_search_and_opened(self, address, browser):
        tab = self.open(browser, address, "?notation=flash#answer-cross", "window.requestIdleCallback = (put) => put()")
        assert tab.evaluate(self.chosen) == ["FlashAttention"] * 3
        tab.wait_for_function(f"!document.querySelector('{self.sets} noscript')")
        closed = tab.locator(f"{self.sets} > .sd-tab-content", has_text="torch.nn.MultiheadAttention").first
        assert closed.evaluate("e => [e.hidden, e.offsetHeight]") == ["until-found", 0]
        closed.dispatch_event("beforematch")  # what a browser tells a page that has the words
        assert tab.evaluate(self.chosen) == ["torch"] * 3
        assert closed.evaluate("e => !e.hidden && e.offsetHeight > 100")
        tab.context.close()


# --- what the site carries ----------------------------------------------------------------------------------------


def test_every_file_of_the_site_is_named_by_what_uses_it_and_it_is_small():
    named = {path for folder in ("_static", "_sources") for path in (SITE / folder).rglob("*") if path.is_file()}
    assert named
    assert not named - used(SITE)
    files = [path for path in SITE.rglob("*") if path.is_file() and path.suffix != ".pdf"]
    python = {path for path in files if "pyodide" in path.parent.name}  # a reader loads it only on request
    assert sum(path.stat().st_size for path in files if path not in python) < 30e6
    assert sum(path.stat().st_size for path in python) < 27e6
