"""Copying: a formula by one tap, by mouse, by keyboard and by touch; and what is selected, as it reads."""

import pytest

CHAPTER = "chapters/04_single_head.html"
LABEL = "equation-eq-dv"
LATEX = r"dV = P^{\mathsf T} dO"
PASTE = "navigator.clipboard.readText()"
SAID = "[...document.querySelectorAll('body > [role=status]')].map(e => e.textContent)"
BUTTONS = ".copy-tools button, div.highlight .copybtn"
SEEN = f"""() => [...document.querySelectorAll('article :is({BUTTONS})')].filter(e => e.checkVisibility())
    .map(e => [getComputedStyle(e.closest('.copy-tools') ?? e).opacity, e.offsetWidth >= 24 && e.offsetHeight >= 24])"""
# Selects from the middle of a formula to the end of the paragraph that stands this many siblings after it.
SELECT = """([label, further]) => {
    const formula = document.getElementById(label);
    let end = formula;
    for (let i = 0; i < further; i++) end = end.nextElementSibling;
    const range = document.createRange();
    range.setStart(formula.querySelector(".katex-html .mord, mi"), 0);
    range.setEndAfter(end);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
}"""


def opened(address, browser, page=CHAPTER, **options):
    tab = browser.new_context(permissions=["clipboard-read", "clipboard-write"], **options).new_page()
    tab.goto(address + page)
    tab.wait_for_load_state("load")
    return tab


@pytest.fixture(scope="module")
def tab(address, browser):
    tab = opened(address, browser)
    yield tab
    tab.context.close()


def test_by_mouse_and_by_keyboard(tab):
    formula = tab.locator(f"#{LABEL}")
    latex, link = formula.get_by_role("button", name="Copy LaTeX"), formula.get_by_role("button", name="Copy link")
    shown = "e => getComputedStyle(e.parentElement).opacity === '1'"
    assert not latex.evaluate(shown)
    formula.hover()
    tab.wait_for_function(shown, arg=latex.element_handle())
    latex.click()
    tab.wait_for_function(f"({SAID}).includes('Copied')")
    assert tab.evaluate(PASTE) == LATEX
    tab.mouse.move(0, 0)
    link.focus()
    tab.wait_for_function(shown, arg=link.element_handle())
    tab.keyboard.press("Enter")
    tab.wait_for_function(f"async () => (await {PASTE}).endsWith('#{LABEL}')")
    assert tab.evaluate(PASTE) == tab.url + f"#{LABEL}"


@pytest.mark.parametrize("page", [CHAPTER, "book/answer.html"])
def test_on_a_screen_that_one_touches_all_buttons_are_seen(page, address, browser):
    tab = opened(address, browser, page, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    assert len(tab.evaluate(SEEN)) > 20
    assert set(map(tuple, tab.evaluate(SEEN))) == {("1", True)}
    tab.locator(".copy-tools").first.get_by_role("button", name="Copy LaTeX").tap()
    tab.wait_for_function(f"({SAID}).includes('Copied')")
    assert "=" in tab.evaluate(PASTE)
    tab.context.close()


def test_where_the_clipboard_is_refused_the_text_is_there_selected(tab):
    tab.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('refused')) }")
    formula = tab.locator(f"#{LABEL}")
    formula.hover()
    formula.get_by_role("button", name="Copy LaTeX").click()
    field = formula.get_by_role("textbox", name="Selected, to be copied")
    field.wait_for()
    chosen = "e => e === document.activeElement && e.value.slice(e.selectionStart, e.selectionEnd)"
    assert field.evaluate(chosen) == LATEX
    tab.keyboard.press("Shift+Tab")
    field.wait_for(state="hidden")
    tab.evaluate("() => { delete navigator.clipboard.writeText }")


def copied(tab):
    """What stands in the clipboard once Ctrl-C has put it there."""
    tab.evaluate("navigator.clipboard.writeText('')")
    tab.keyboard.press("ControlOrMeta+c")
    tab.wait_for_function(f"async () => await {PASTE}")
    return tab.evaluate(PASTE)


def test_what_is_selected_is_copied_as_it_reads_and_nothing_that_is_closed(tab):
    """copy-tex of KaTeX would copy the code of folded checks, and the theorems."""
    tab.locator(f"#{LABEL}").scroll_into_view_if_needed()
    tab.evaluate(SELECT, [LABEL, 2])
    lines = [line for line in copied(tab).splitlines() if line]
    assert lines == [
        f"$${LATEX}$$",
        "(4.4)",
        "A value gets back from each query what that query attended to it.",
        r"$$dP = dO\,V^{\mathsf T}$$",
        "(4.5)",
    ]
    tab.evaluate("document.querySelector('article').id = 'all'")
    tab.evaluate("getSelection().selectAllChildren(document.getElementById('all'))")
    text = copied(tab)
    assert f"$${LATEX}$$" in text
    assert "Given is $dO$, what the rest" in text
    for closed in ("# checks:", "checked: ", "Theorem eq_", "Run this chapter"):
        assert closed not in text
