"""What a visitor waits for: ``make page-speed``. Run it where nothing else runs: it measures speed.

Seconds from a press on "Run" to the result, Python not yet kept by the browser, and kept, where a visit ends 5 s after
its result; milliseconds from a key in the search to its places. A phone: 390 px, its processor four times slower. That
is Chromium's throttle, which does not reach a worker; nor would one of the network, so none is set. What a first view
weighs, ``make lighthouse`` says.
"""

import statistics

from pages import built_site, served
from playwright.sync_api import sync_playwright
from tqdm import tqdm

FEW_PACKAGES = "chapters/05_multi_head.html"  # a chapter whose first cells need NumPy and no matplotlib
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
LAPTOP = {"viewport": {"width": 1280, "height": 800}}
VISITS = {"first visit": 0, "second visit": 0, "third visit, after 8 s of reading": 8}
TYPED = "dL/dW_K", "softmax backward", "why is db_K zero"


def tab_of(browser, phone):
    """A tab of its own context."""
    context = browser.new_context(**(PHONE if phone else LAPTOP))
    context.set_default_timeout(120_000)
    tab = context.new_page()
    if phone:
        context.new_cdp_session(tab).send("Emulation.setCPUThrottlingRate", {"rate": 4})
    return tab


def seconds_to_a_result(browser, address, phone):
    """After a press on the second cell, for each of ``VISITS``."""
    tab = tab_of(browser, phone)
    found = []
    for reads in VISITS.values():
        tab.goto(address + FEW_PACKAGES)
        tab.wait_for_load_state("load")
        tab.wait_for_timeout(1000 * reads)
        cell = tab.locator("article div.cell:not(.tag_hide-input, .tag_hide-cell)").nth(1)
        cell.scroll_into_view_if_needed()
        found.append(
            tab.evaluate(
                """async cell => {
                  const begun = performance.now();
                  cell.querySelector("[data-run=run]").click();
                  while (!/The same as printed/.test(cell.innerText)) await new Promise(soon => setTimeout(soon, 10));
                  return (performance.now() - begun) / 1000;
                }""",
                cell.element_handle(),
            )
        )
        tab.wait_for_load_state("networkidle")
        tab.wait_for_timeout(5000)
    tab.context.close()
    return found


def milliseconds_of_keys(browser, address):
    """From each key to the next frame after the list has changed, on a phone; the index is there."""
    tab = tab_of(browser, phone=True)
    tab.goto(address + "search.html")
    field = tab.locator(".bd-search-container input")
    field.fill("softmax")
    tab.locator(".search-list a").first.wait_for()
    tab.evaluate(
        """() => {
          const field = document.querySelector(".bd-search-container input"); self.keys = [];
          let begun;
          field.addEventListener("input", () => begun = performance.now(), true);
          new MutationObserver(() => begun && requestAnimationFrame(() => {
            if (begun) keys.push(performance.now() - begun); begun = null;
          })).observe(document.querySelector(".bd-search-container"), { childList: true, subtree: true });
        }"""
    )
    for typed in TYPED:
        field.fill("")
        field.press_sequentially(typed, delay=250)
    found = tab.evaluate("keys")
    tab.context.close()
    return found


def main(rounds=5):
    with served() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=built_site.chromium(), args=["--no-sandbox"])
        for kind in ("laptop", "phone"):
            found = [seconds_to_a_result(browser, address, kind == "phone") for _ in tqdm(range(rounds), desc=kind)]
            for when, took in zip(VISITS, zip(*found, strict=True), strict=True):
                print(f"{kind}, {when}: {statistics.median(took):.2f} s to a result ({min(took):.2f}-{max(took):.2f})")
        keys = sorted(ms for _ in range(rounds) for ms in milliseconds_of_keys(browser, address))
        at = {part: keys[int(part / 100 * (len(keys) - 1))] for part in (50, 90, 100)}
        print("a key of the search, phone: " + ", ".join(f"{part} %: {ms:.0f} ms" for part, ms in at.items()))


if __name__ == "__main__":
    main()
