"""A newcomer's walk: from the front page to a gradient, its formula copied, its cell run, a number in it changed."""

import pyodide_files
import pytest

pytestmark = pytest.mark.skipif(
    not (pyodide_files.lock() and pyodide_files.have_wheels()), reason="the site has no NumPy for its pages"
)
TAPS = 8  # find a gradient, the layer, the variable, copy, run, edit, run; and one to put the cursor at the number


def test_to_dw_k_of_cross_attention(address, browser):
    height = 844
    context = browser.new_context(viewport={"width": 390, "height": height}, has_touch=True, is_mobile=True)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.set_default_timeout(90_000)
    page, taps = context.new_page(), 0

    def tap(target):
        nonlocal taps
        taps += 1
        target.tap()

    page.goto(address)
    tap(page.get_by_role("link", name="Find a gradient"))
    choice = page.locator(".which-gradient")
    tap(choice.locator("label", has_text="Cross-attention"))
    tap(choice.locator("a:visible", has_text="key projection"))
    page.wait_for_url("**/07_cross.html#equation-eq-dx-cross")
    formula = page.locator("#equation-eq-dx-cross")
    tap(formula.get_by_role("button", name="Copy LaTeX"))
    formula.get_by_role("button", name="Copy LaTeX").filter(has_text="Copied").wait_for()
    assert r"dW_K &= X_{\mathrm{mem}}^{\mathsf T}\, dK" in page.evaluate("navigator.clipboard.readText()")

    cell = page.locator("article div.cell", has_text='print("dW_K"')
    below = "([a, b]) => b.getBoundingClientRect().top - a.getBoundingClientRect().bottom"
    assert page.evaluate(below, [formula.element_handle(), cell.element_handle()]) < height  # less than a screen away
    tap(cell.get_by_role("button", name="Run"))
    cell.get_by_text("✓ The same as printed here.").wait_for()
    tap(cell.get_by_role("button", name="Edit"))
    editor = cell.locator("textarea")
    tap(editor)
    editor.fill(editor.input_value().replace("dW_K = memory", "dW_K = 2 * memory"))
    tap(cell.get_by_role("button", name="Run"))
    cell.get_by_text("as the package has it: False").wait_for()
    assert taps == TAPS
    context.close()
