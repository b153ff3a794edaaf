"""Chapters that run in the reader's browser: what the site carries for it, the page, every chapter with real NumPy."""

import base64
import hashlib
import io
import json
import os
import re
import sys
import time
import zipfile
from urllib.parse import urlsplit

import numpy_for_pages
import pyodide_files
import pytest
import run_in_page
from built_site import ROOT, SITE, soup
from packaging.utils import parse_wheel_filename

from attnbook.figures import Control, State, interactive
from attnbook.figures.svg import document, text

CHAPTERS = sorted(path.stem for path in (ROOT / "chapters").glob("*.ipynb"))
NUMPY = pyodide_files.lock()["packages"]["numpy"]["file_name"] if pyodide_files.lock() else "numpy"
NO_WHEELS = "NumPy for pages is not in book/node_modules/pyodide, so no page of the site has it: make book says why"
needs_wheels = pytest.mark.skipif(not (pyodide_files.lock() and pyodide_files.have_wheels()), reason=NO_WHEELS)
FEW_PACKAGES = "chapters/05_multi_head.html"  # a chapter whose first cells need NumPy and no matplotlib


@pytest.fixture(scope="module")
def site():
    """What was built for running cells, as site.json says it, and the folder it lies in."""
    if not run_in_page.carried():
        missing = "Pyodide is not in book/node_modules, so no page can run a cell: make book installs it with npm"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    place = SITE / "_static" / "run" / run_in_page.folder()
    assert place.is_dir(), "the site was built from other files: run `make book` first"
    return {**json.loads((place / "site.json").read_text(encoding="utf-8")), "place": place}


# --- what the site carries ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_chapter_has_one_bar_and_a_place_for_each_cell(chapter, site):
    page = soup(SITE / "chapters" / f"{chapter}.html")
    (bar,) = page.select("article .run-bar")
    assert (SITE / "chapters" / bar["data-from"]).resolve() == site["place"]
    carried = json.loads((site["place"] / f"{bar['data-chapter']}.json").read_text(encoding="utf-8"))
    shown = [cell.select_one(".cell_input pre").get_text().strip() for cell in page.select("article div.cell")]
    assert shown == [cell["source"].strip() for cell in carried]


def test_the_wheels_are_made_from_the_source_and_named_after_their_contents(site):
    names = {}
    for archive in site["archives"]:
        content = (site["place"] / archive["name"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == archive["sha256"]
        if archive["name"].endswith(".whl"):
            assert f"-0{archive['sha256'][:12]}-" in archive["name"]
            names[parse_wheel_filename(archive["name"])[0]] = zipfile.ZipFile(io.BytesIO(content))
    assert set(names) == {"attnbook", "array-api-compat", "threadpoolctl"}
    ours = {path.relative_to(ROOT / "src").as_posix(): path.read_bytes() for path in (ROOT / "src").rglob("*.py")}
    packed = {name: names["attnbook"].read(name) for name in names["attnbook"].namelist() if name.endswith(".py")}
    assert packed == ours
    for wheel in names.values():
        assert any("licen" in name.lower() for name in wheel.namelist())


def test_the_same_files_make_the_same_wheel():
    assert run_in_page.wheel("threadpoolctl") == run_in_page.wheel("threadpoolctl")


def test_what_the_site_carries_is_what_pyodide_s_lock_names(site):
    lock = json.loads((site["place"] / site["core"] / "pyodide-lock.json").read_text(encoding="utf-8"))
    digest = base64.b64encode(bytes.fromhex(lock["packages"]["numpy"]["sha256"])).decode()
    assert site["integrity"] == f"sha256-{digest}"
    if not pyodide_files.have_wheels():
        pytest.skip(NO_WHEELS)
    assert {"numpy", "matplotlib"} <= set(lock["packages"])
    for package in lock["packages"].values():
        content = (site["place"] / site["core"] / package["file_name"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == package["sha256"]
        assert set(package["depends"]) <= set(lock["packages"])


def test_without_the_wheels_the_lock_sends_a_browser_to_pyodide_s_own(monkeypatch):
    monkeypatch.setattr(pyodide_files, "have_wheels", lambda: False)
    files = pyodide_files.files()
    assert set(files) == {*pyodide_files.CORE, "pyodide-lock.json"}
    numpy = json.loads(files["pyodide-lock.json"])["packages"]["numpy"]
    assert numpy["file_name"] == f"https://cdn.jsdelivr.net/pyodide/v{pyodide_files.version()}/full/{NUMPY}"


def test_without_pyodide_the_site_has_no_bar(monkeypatch):
    monkeypatch.setattr(pyodide_files, "lock", lambda: None)
    assert run_in_page.carried.__wrapped__() == {}


def test_wheels_that_cannot_be_had_are_a_plain_line(tmp_path):
    with pytest.raises(OSError, match=r"^pip could not download attnbook-that-is-nowhere==1: .*\S$"):
        numpy_for_pages.put(tmp_path, "attnbook-that-is-nowhere==1")
    info, head = "carrier-1.dist-info", b"Metadata-Version: 2.1\nName: carrier\nVersion: 1\n"
    files = {f"{info}/METADATA": head, f"{info}/WHEEL": b"Wheel-Version: 1.0\n", f"within/{NUMPY}": b"another"}
    other = tmp_path / "carrier-1-py3-none-any.whl"
    other.write_bytes(run_in_page.archive(files))
    with pytest.raises(OSError, match=r"\.whl in carrier-1-py3-none-any.whl has the sha256 \w+, expected \w{64}$"):
        numpy_for_pages.put(tmp_path, str(other))
    assert list(tmp_path.iterdir()) == [other]


# --- the file that runs the cells -----------------------------------------------------------------------------------


class TestRunner:
    """Where no chapter takes it."""

    @pytest.fixture
    def runner(self, monkeypatch):
        monkeypatch.syspath_prepend(str(ROOT / "book" / "_run"))
        monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # put back afterwards
        import runner

        yield runner
        del sys.modules["runner"]

    def test_a_traceback_shows_the_cell_and_not_the_runner(self, runner):
        answer = runner.Runner().run("mine", "def f():\n    return 1 / 0\nf()")
        (output,) = answer["outputs"]
        assert answer["verdict"] == "error"
        assert "return 1 / 0" in output["traceback"]
        assert "ZeroDivisionError" in output["traceback"]
        assert "runner.py" not in output["traceback"]
        assert output["summary"] == "ZeroDivisionError: division by zero"

    @pytest.mark.parametrize(
        ("source", "summary"),
        [
            ("def f(:", "SyntaxError: invalid syntax"),
            ("raise ValueError('one\\ntwo')", "ValueError: one"),
            ("assert False", "AssertionError"),
            ("class E(Exception):\n    def __str__(self): raise self\nraise E", "E: <exception str() failed>"),
        ],
    )
    def test_the_line_that_says_what_was_raised(self, source, summary, runner):
        (output,) = runner.Runner().run("mine", source)["outputs"]
        assert output["summary"] == summary

    @pytest.mark.parametrize(
        "source", ["def f(:", "raise SystemExit", "raise KeyboardInterrupt", "f = lambda: f()\nf()"]
    )
    def test_whatever_is_raised_is_shown(self, source, runner):
        made = runner.Runner()
        assert made.run("mine", source)["verdict"] == "error"
        assert made.run("next", "print(6 * 7)")["outputs"] == [
            {"output_type": "stream", "name": "stdout", "text": "42\n"}
        ]

    def test_what_is_absent_is_said_in_a_line_and_so_is_what_hangs_on_it(self, runner, monkeypatch):
        monkeypatch.setitem(sys.modules, "cupy", None)
        made = runner.Runner()
        for source in ("import cupy\nx = cupy.ones(3)", "y = x + 1", "print(y)"):
            answer = made.run("mine", source)
            assert (answer["verdict"], answer["outputs"]) == ("passed over", [])
            assert answer["why"] == "it needs cupy, which does not run in a browser"
        assert made.run("mine", "print(z)")["verdict"] == "error"

    def test_a_difference_is_told(self, runner):
        made = runner.Runner()
        stored = [{"output_type": "stream", "name": "stdout", "text": ["agrees with differences and autograd\n"]}]
        assert made.run("a", 'print("agrees with differences and autograd")', stored)["verdict"] == "same"
        assert made.run("a", 'print("agrees with differences")', stored)["verdict"] == "autograd"
        assert made.run("a", 'print("differs")', stored)["verdict"] == "differs"
        assert made.run("a", '"agrees with differences"', stored)["verdict"] == "differs"
        assert made.run("a", 'print("agrees with differences")')["verdict"] == "ran"

    def test_a_picture_that_another_matplotlib_drew_is_told_and_its_words_are_compared(self, runner):
        def drawn(svg, words):
            html = f"<figure>{svg}</figure>{words}"
            return [{"output_type": "display_data", "data": {"text/html": html, "text/plain": "'plot'"}}]

        source = "class F:\n    _repr_html_ = lambda self: '<figure><svg>1</svg></figure>words'\n    __repr__ = lambda"
        source += " self: \"'plot'\"\ndef plot(): display(F())\nplot()"
        made = runner.Runner()
        assert made.run("a", source, drawn("<svg>1</svg>", "words"))["verdict"] == "same"
        assert made.run("a", source, drawn("<svg>2</svg>", "words"))["verdict"] == "redrawn"
        assert made.run("a", source, drawn("<svg>1</svg>", "other words"))["verdict"] == "differs"
        assert made.run("a", source.replace("plot()", "show()"), drawn("<svg>2</svg>", "words"))["verdict"] == "differs"

    def test_an_interrupt_may_come_into_a_cell_and_not_into_the_lines_of_the_runner(self, runner):
        heeded = []
        made = runner.Runner(heed=heeded.append)
        made.module.heeded = heeded
        for source in ("seen = list(heeded)", "1 / 0", "raise KeyboardInterrupt"):
            heeded.clear()
            made.run("mine", source)
            assert heeded == [True, False]
        assert made.module.seen == [True]

    def test_printing_for_ever_is_cut(self, runner):
        told = []
        answer = runner.Runner(told.append).run("mine", "for _ in range(10**5): print('words')")
        assert len(answer["outputs"][0]["text"]) < 1.1 * runner.MOST_TEXT
        assert answer["outputs"][0]["text"].endswith("the rest is not shown\n")
        assert len(told) < 1000

    @pytest.mark.parametrize("source", ["'x' * 10**7", "raise ValueError('x' * 10**7)"])
    def test_one_huge_value_or_message_is_cut(self, source, runner):
        (output,) = runner.Runner().run("mine", source)["outputs"]
        shown = output["traceback"] if "traceback" in output else output["data"]["text/plain"]
        assert len(shown) < 1.1 * runner.MOST_TEXT
        assert shown.endswith("the rest is not shown\n")

    def test_showing_for_ever_is_cut(self, runner):
        assert len(runner.Runner().run("mine", "for i in range(10**5): display(i)")["outputs"]) == runner.MOST_VALUES

    def test_what_a_cell_wants_and_which_packages(self, runner):
        made = runner.Runner()
        assert made.wants("print(x)", ["x = 1", "y = 2"])
        assert not made.wants("print(6 * 7)", ["x = 1"])
        assert not made.wants("print(typo)", ["x = 1"])
        made.run("a", "x = 1")
        assert made.wants("print(x)", ["x = 2"])  # x is there, and would be another by now
        assert not made.wants("print(x)", ["y = [x for x in (1, 2)]", "def f(x):\n    x += 1"])
        assert made.wants("print(x)", ["for x in (1, 2):\n    pass"])
        assert not made.wants("x = 2\nprint(x)", ["x = 1"])
        assert runner.packages("import attnbook as ab") == ["numpy"]
        assert runner.packages("plot(draw, alt='')") == ["numpy", "matplotlib"]
        assert runner.packages("import json; print(6 * 7)") == []


# --- in a browser ---------------------------------------------------------------------------------------------------


# What a test serves is a network, also on a machine without one.
ON_LINE = "Object.defineProperty(navigator, 'onLine', { get: () => true, configurable: true })"


class Page:
    """A chapter in a tab of its own, every request noted, other hosts out of reach unless a test serves them."""

    def __init__(self, browser, address, page=FEW_PACKAGES, script=None, keeps="block", **routes):
        self.context, self.address = browser.new_context(service_workers=keeps), address
        self.context.set_default_timeout(90_000)  # Python starts slowly where the other tests run beside
        self.asked, self.complaints = [], []
        self.context.on("request", lambda request: self.asked.append(request.url))
        if keeps == "block":  # what a service worker asks cannot be routed
            self.context.route(lambda url: not url.startswith(address), lambda route: route.abort())
        for pattern, answer in routes.get("routes", {}).items():
            self.context.route(pattern, answer)
        if routes:
            self.context.add_init_script(ON_LINE)
        if script:
            self.context.add_init_script(script)
        self.tab = self.context.new_page()
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.goto(address + page)
        self.tab.wait_for_load_state("load")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    @property
    def outside(self):
        return [url for url in self.asked if not url.startswith((self.address, "data:", "blob:"))]

    @property
    def said(self):
        return self.tab.locator(".run-say").inner_text()

    def cell(self, place):
        return self.tab.locator("article div.cell:not(.tag_hide-input, .tag_hide-cell)").nth(place)

    def write(self, place, source):
        """Put source into a cell's editor, and run it by keyboard."""
        cell = self.cell(place)
        if not cell.locator("textarea").count():
            cell.locator("[data-run=edit]").click()
        cell.locator("textarea").fill(source)
        cell.locator("textarea").press("Control+Enter")

    def result(self, place):
        """What stands below a cell once nothing runs any more."""
        self.tab.locator("[data-run=all]").wait_for(state="visible")
        return self.cell(place).locator(".run-result").inner_text()

    def give(self, place, source):
        self.write(place, source)
        return self.result(place)


@pytest.fixture(scope="module")
def opened(site, address, browser):
    with Page(browser, address) as page:
        yield page


@pytest.fixture
def page(opened):
    """A tab that tests share, since Python takes seconds to start: it may run already, but no cell is changed."""
    if opened.tab.locator("[data-run=stop]").is_visible() or opened.tab.locator(".run-try").count():
        opened.tab.reload()
    opened.tab.evaluate("document.querySelectorAll('[data-run=reset]').forEach(button => button.click())")
    opened.tab.wait_for_function("!document.querySelector('[data-run=reset]')")
    opened.complaints.clear()
    opened.asked.clear()
    yield opened
    assert not opened.outside


@pytest.fixture
def fresh(page):
    """The same tab, without Python, as it was when it was opened."""
    page.tab.reload()
    return page


def test_nothing_is_loaded_and_nothing_runs_before_a_press(site, address, browser):
    with Page(browser, address, f"{FEW_PACKAGES}?run=all&code=print(1)#run-print(1)") as page:
        page.tab.wait_for_load_state("networkidle")
        page.tab.wait_for_timeout(500)
        assert page.tab.locator("[data-run=run]").count() == page.tab.locator("article div.cell").count()
        assert not [url for url in page.asked if "/run/" in url or "pyodide" in url]
        assert not page.outside
        assert not page.tab.workers


# Firefox before 119: what is read there is undefined, and what is written is no attribute.
OLD = "for (const name of ['ariaLabel', 'ariaPressed', 'ariaSelected', 'role']) delete Element.prototype[name]"


def test_a_press_is_heard_before_the_page_is_there_and_a_second_does_not_undo_it(site, address, browser):
    held = []
    with Page(browser, address, script=OLD, routes={"**/page.mjs": lambda route: held.append(route)}) as page:
        words, edit = page.said, page.cell(3).locator(".run-tools button").nth(1)
        label = edit.get_attribute("aria-label")
        edit.dblclick()
        page.tab.locator(".run-say", has_text="Loading …").wait_for()
        held[0].continue_()
        page.cell(3).locator("textarea").wait_for()
        page.tab.wait_for_timeout(200)
        assert page.cell(3).locator("textarea").count() == 1
        assert edit.get_attribute("aria-label") == label.replace("Edit", "Reset")
        assert page.said == words
        assert not page.complaints


def test_a_page_that_could_not_be_loaded_early_is_asked_for_again_by_the_first_press(site, address, browser):
    missed = []

    def answer(route):
        missed.append(route.request.url)
        route.fulfill(status=404) if len(missed) == 1 else route.fallback()

    keeper = "{ controller: {}, addEventListener() {} }"
    controlled = f"Object.defineProperty(navigator, 'serviceWorker', {{ value: {keeper} }})"
    with Page(browser, address, script=controlled, routes={"**/05_multi_head.json": answer}) as page:
        page.tab.wait_for_load_state("networkidle")
        assert len(missed) == 1
        page.cell(3).locator("[data-run=edit]").click()
        page.cell(3).locator("textarea").wait_for()


def test_a_service_worker_that_does_not_arrive_holds_nothing_up(site, address, browser):
    hangs = "ServiceWorkerContainer.prototype.register = () => new Promise(() => {})"
    with Page(browser, address, keeps="allow", script=hangs) as page:
        assert page.give(3, "print(6 * 7)") == "Your version gives:\n\n42\n"


REDRAWS = """
self.Worker = class {
  postMessage({ source, stored }) {
    const outputs = [{ data: { "text/html": "<svg></svg>" } }];
    const answer = { verdict: stored ? "redrawn" : "ran", why: "", outputs };
    if (source) setTimeout(() => this.onmessage({ data: { answer } }));
  }
  terminate() {}
};
"""


def test_a_picture_that_may_show_the_reader_s_values_is_shown_and_not_called_the_same(site, address, browser):
    with Page(browser, address, script=REDRAWS) as page:
        run = page.cell(4).locator("[data-run=run]")
        run.click()
        page.cell(4).get_by_text("✓ The same as printed here. The picture was drawn anew").wait_for()
        assert not page.cell(4).locator(".run-rich").count()
        page.give(3, "own_six = 6")
        run.click()
        page.cell(4).get_by_text("The picture may show your values, and was not compared").wait_for()
        assert page.cell(4).locator(".run-rich svg").count() == 1
        assert "✓" not in page.result(4)


def test_without_a_network_the_page_says_so(fresh):
    fresh.context.set_offline(True)
    fresh.tab.locator("[data-run=all]").click()
    fresh.tab.locator(".run-say", has_text="This device is offline.").wait_for()
    fresh.context.set_offline(False)
    assert fresh.give(3, "print(6 * 7)") == "Your version gives:\n\n42\n"


def test_cells_run_and_the_page_outlives_errors_and_endless_loops(page):
    assert page.give(3, "print(6 * 7)") == "Your version gives:\n\n42\n"
    assert "ZeroDivisionError" in page.give(3, "own_six = 6\n1 / 0")
    assert page.give(4, "own_six") == "Your version gives:\n\n6"
    page.write(3, "print('begun')\nwhile True: pass")
    page.cell(3).locator(".run-result", has_text="begun").wait_for()
    page.tab.locator("[data-run=stop]").focus()
    page.tab.keyboard.press("Enter")
    assert "Stopped. Python was ended and its variables are gone" in page.result(3)
    assert "NameError: name 'own_six' is not defined" in page.give(4, "print(own_six)")
    page.cell(3).locator("[data-run=reset]").click()
    page.cell(3).locator(".cell_input pre").wait_for()  # visible; a section is laid out a frame after it comes near
    page.cell(3).locator(".cell_output").first.wait_for()
    assert not page.cell(3).locator(".run-result, textarea").count()
    assert not page.complaints


@pytest.mark.parametrize("nothing", ["print()", "print('')", "print('', end='')"])
def test_a_cell_that_prints_nothing_is_not_taken_for_one_that_has_ended(nothing, page):
    source = f"{nothing}\nprint('next')\nown_six = 6 * 7\nown_six"
    assert page.give(3, source).strip().endswith("next\n\n42")
    assert page.give(4, "print(own_six)") == "Your version gives:\n\n42\n"
    assert not page.complaints


def test_while_a_cell_runs_no_other_does_and_none_is_reset(page):
    page.write(3, "print('begun')\nwhile True: pass")
    page.cell(3).locator(".run-result", has_text="begun").wait_for()
    for button in (page.cell(3).locator("[data-run=reset]"), page.cell(4).locator("[data-run=run]")):
        page.tab.evaluate("document.querySelector('.run-say').textContent = ''")
        button.click()
        page.tab.locator(".run-say", has_text="A cell is running. Stop it first.").wait_for()
    page.tab.locator("[data-run=stop]").click()
    assert "Stopped." in page.result(3)
    page.cell(3).locator("[data-run=reset]").click()
    assert page.give(4, "print(6 * 7)") == "Your version gives:\n\n42\n"
    assert not page.complaints


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("import os; os._exit(1)", id="exit"),
        pytest.param("x = []\nwhile True: x.append(bytearray(10**8))", id="memory", marks=pytest.mark.thorough),
        pytest.param("def f(): f()\nf()", id="recursion"),
        pytest.param("input()", id="input"),
    ],
)
def test_python_that_breaks_off_says_so_and_begins_anew(source, page):
    page.write(3, source)
    said = page.result(3)
    assert re.search(r"Error|Python broke off", said)
    assert page.give(4, "print(6 * 7)") == "Your version gives:\n\n42\n"
    assert not page.complaints


def test_a_figure_with_controls_that_a_cell_makes_answers(page):
    states = [State({"t": {"text": word}}, f"It says {word}.") for word in ("one", "two")]
    svg = document(99, 30, text(50, 15, "", part="t"))
    figure = interactive(svg, [Control("Word", (1, 2))], states, alt="A word")
    source = f"class Drawn:\n    _repr_html_ = lambda self: {figure._repr_html_()!r}\nDrawn()"
    assert "It says one." in page.give(3, source)
    page.cell(3).locator("input[type=range]").press("ArrowRight")
    assert "It says two." in page.result(3)
    assert page.cell(3).locator(".run-rich svg text").text_content() == "two"


def test_an_exercise_takes_the_reader_s_own_code(page):
    page.tab.locator("[data-run=try]").first.click()
    editor = page.tab.locator(".run-try textarea")
    editor.wait_for()
    assert "ab.diagnose" in editor.input_value()
    editor.fill("for i in range(3):")
    editor.press("End")
    editor.press("Enter")  # a new line begins where the block does
    page.tab.keyboard.press("ControlOrMeta+z")
    assert editor.input_value() == "for i in range(3):"
    editor.press("Enter")
    page.tab.keyboard.type("print(i)")
    assert editor.input_value() == "for i in range(3):\n    print(i)"
    editor.press("Shift+Enter")
    page.tab.locator(".run-try .run-result", has_text="0\n1\n2").wait_for()


def test_what_was_written_or_stored_does_not_run_when_the_page_is_opened_again(page):
    assert page.give(3, "print(6 * 7)") == "Your version gives:\n\n42\n"
    page.tab.evaluate("for (const s of [localStorage, sessionStorage]) s['cell'] = s['3'] = 'print(1)'")
    page.asked.clear()
    page.tab.reload()
    page.tab.wait_for_timeout(500)
    assert not page.tab.locator("textarea, .run-result").count()
    assert not page.tab.workers
    assert not [url for url in page.asked if "/run/" in url or "pyodide" in url]


def test_cells_above_run_first_where_their_names_are_used(fresh):
    fresh.cell(3).locator("[data-run=edit]").click()
    fresh.cell(3).locator("textarea").fill("own_six = 6")
    assert fresh.give(4, "print(7 * own_six)") == "Your version gives:\n\n42\n"
    fresh.cell(3).scroll_into_view_if_needed()  # what is far away is not laid out yet
    fresh.cell(3).locator(".run-result", has_text="Your version ran, and printed nothing.").wait_for()
    assert fresh.tab.locator(".run-result").count() >= 5


def test_the_pressed_cell_stays_while_those_above_it_print(site, address, browser):
    """On a phone; the browser's own anchoring is off, as some have none."""
    with Page(browser, address) as page:
        page.tab.set_viewport_size({"width": 390, "height": 844})
        page.tab.add_style_tag(content="* { overflow-anchor: none !important }")
        pressed = page.cell(4)
        pressed.locator("[data-run=edit]").click()
        page.cell(3).locator("[data-run=edit]").click()
        page.cell(3).locator("textarea").fill("own_six = 6\nprint(own_six)")
        pressed.locator("textarea").fill("print(7 * own_six)")
        pressed.scroll_into_view_if_needed()
        page.tab.wait_for_timeout(500)  # what comes near is laid out
        top = pressed.evaluate("e => e.getBoundingClientRect().top")
        assert 0 < top < 844
        pressed.locator("[data-run=run]").evaluate("button => button.click()")
        assert page.result(4) == "Your version gives:\n\n42\n"
        assert abs(pressed.evaluate("e => e.getBoundingClientRect().top") - top) < 2


def test_where_one_touches_copying_hides_nothing(site, address, browser):
    """It stands beside the buttons below the code, and results have none."""
    with browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True) as context:
        tab = context.new_page()
        tab.goto(address + FEW_PACKAGES)
        tab.wait_for_load_state("load")
        cell = tab.locator("article div.cell:not(.tag_hide-input, .tag_hide-cell)").first
        cell.scroll_into_view_if_needed()
        copy = cell.locator(".cell_input button.copybtn").bounding_box()
        last = cell.locator(".cell_input pre").evaluate(
            "e => { const all = new Range(); all.selectNodeContents(e); return all.getBoundingClientRect().bottom }"
        )
        assert copy["y"] >= last
        assert copy["x"] + copy["width"] <= cell.locator("[data-run=run]").bounding_box()["x"]
        assert min(copy["width"], copy["height"]) >= 24
        shown = "all => all.filter(e => e.checkVisibility({ visibilityProperty: true })).length"
        assert tab.locator(".cell_output button.copybtn").evaluate_all(shown) == 0


@pytest.fixture
def wheel(site):
    """Where the page looks for NumPy. What is routed there answers before the site would."""
    return f"**/{NUMPY}"


def test_without_numpy_a_chapter_says_so_and_plain_cells_run(wheel, site, address, browser):
    with Page(browser, address, routes={wheel: lambda route: route.abort()}) as page:
        page.tab.locator("[data-run=all]").click()
        page.tab.locator("[data-run=stop]").wait_for(state="visible")
        page.tab.locator("[data-run=all]").wait_for(state="visible")
        assert f"NumPy could not be loaded from {urlsplit(address).netloc}" in page.said
        said = page.cell(0).locator(".run-result").text_content()  # out of view it has no inner text
        assert said == "Passed over: it needs numpy, which could not be loaded."
        assert page.give(3, "print(6 * 7)") == "Your version gives:\n\n42\n"
        assert not page.complaints


def test_a_network_that_never_answers_is_told(wheel, address, browser):
    with Page(browser, address, routes={wheel: lambda route: None}) as page:
        page.tab.clock.install()
        for waits in (True, False):
            page.write(3, "np.zeros(2)")
            page.tab.get_by_text("Loading Python and NumPy: ").first.wait_for()
            assert "No news" not in page.said
            if waits:
                page.tab.wait_for_timeout(3000)  # what else was under way has come
                page.tab.clock.fast_forward(21_000)
                assert "No news for 20 seconds" in page.said
            page.tab.locator("[data-run=stop]").click()
            page.tab.locator("[data-run=all]").wait_for(state="visible")
            page.tab.clock.fast_forward(60_000)
            assert page.said.startswith("Stopped.")
        assert not page.complaints


def test_numpy_that_stalls_after_a_cell_without_it_is_told(wheel, address, browser):
    with Page(browser, address, routes={wheel: lambda route: None}) as page:
        page.tab.clock.install()
        assert page.give(3, "print(6 * 7)") == "Your version gives:\n\n42\n"
        page.write(3, "import numpy")
        page.tab.locator(".run-say", has_text="Loading NumPy: ").wait_for()
        page.tab.clock.fast_forward(21_000)
        assert "No news for 20 seconds" in page.said


IMPORTS = """
import numpy, threadpoolctl, importlib.util
print(numpy.__version__, threadpoolctl.threadpool_info(), importlib.util.find_spec("attnbook").origin)
"""


@pytest.mark.parametrize("late", ["python_stdlib.zip", "pyodide.asm.wasm"])
def test_numpy_may_fail_before_python_is_there(late, wheel, address, browser):
    """Once in a while it does, on a slow machine; then Python neither hangs nor traps."""
    held, gone = [], []

    def fail(route):
        gone.append(route)
        route.abort()

    with Page(browser, address, routes={wheel: fail, f"**/{late}": lambda route: held.append(route)}) as page:
        page.write(3, "print(6 * 7)")
        deadline = time.monotonic() + 60
        while not (held and gone):
            assert time.monotonic() < deadline, f"not asked for: {NUMPY if held else late}"
            page.tab.wait_for_timeout(50)
        page.tab.wait_for_timeout(500)
        for route in held:
            route.continue_()
        assert page.result(3) == "Your version gives:\n\n42\n"
        assert page.give(1, IMPORTS) == "Passed over: it needs numpy, which could not be loaded."


def test_a_file_that_is_not_the_pinned_one_is_refused(wheel, address, browser):
    with Page(browser, address, routes={wheel: lambda route: route.fulfill(body=b"another")}) as page:
        assert page.give(1, IMPORTS) == "Passed over: it needs numpy, which could not be loaded."
        assert "sent what this page did not ask for" in page.said


@needs_wheels
def test_our_wheels_arrive_and_a_stale_one_is_noticed(address, browser):
    came = "Your version gives:\n\n2.0.2 [] /book/site/attnbook/__init__.py\n"
    stale = {"**/attnbook-*.whl": lambda route: route.fulfill(body=b"of last week")}
    with Page(browser, address, routes=stale) as page:
        page.give(1, IMPORTS)
        assert re.search(r"attnbook-\S+\.whl is not the file this page was built with: reload the page", page.said)
        assert page.give(3, "print(6 * 7)") == "Your version gives:\n\n42\n"
        page.context.unroute("**/attnbook-*.whl")  # the right one is there again, and asked for again
        assert page.give(1, IMPORTS) == came


@needs_wheels
def test_a_later_cell_asks_again_for_what_did_not_come(wheel, address, browser):
    with Page(browser, address, routes={wheel: lambda route: route.abort()}) as page:
        assert page.give(1, "import numpy") == "Passed over: it needs numpy, which could not be loaded."
        assert page.give(3, "numpy.__name__") == "Passed over: it needs numpy, which could not be loaded."
        page.context.unroute(wheel)
        assert page.give(3, "numpy.__name__") == "Your version gives:\n\n'numpy'"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("delete self.WebAssembly", "This browser has no WebAssembly, or has it switched off."),
        ("delete self.Worker", "This browser has no workers, or has them switched off."),
    ],
)
def test_what_a_browser_lacks_is_said_in_words(script, words, site, address, browser):
    with Page(browser, address, script=script) as page:
        page.tab.locator("[data-run=all]").click()
        page.tab.locator(".run-say", has_text=words).wait_for()
        assert not page.complaints


COULD_NOT = "Python could not be loaded"
GONE = {  # in the order in which they are asked for
    "page.mjs": "What runs the cells could not be loaded. Reload the page: the site may be newer than it.",
    "worker.mjs": "What runs Python could not be loaded.",
    "site.json": COULD_NOT,
    "pyodide.mjs": COULD_NOT,
    "pyodide.asm.wasm": COULD_NOT,
    "python_stdlib.zip": COULD_NOT,
}


def test_a_file_of_the_site_that_is_gone_is_told_and_asked_for_again(site, address, browser):
    """One at a time: it was asked for again where one that needs it is asked for, and the last where Python runs."""
    gone, missed = None, []

    def answer(route):
        name = urlsplit(route.request.url).path.rpartition("/")[2]
        if name != gone:
            return route.fallback()
        missed.append(name)
        return route.fulfill(status=404, body="<h1>Not found</h1>")

    with Page(browser, address, routes={"**/_static/**": answer}) as page:
        for gone, words in GONE.items():
            page.tab.evaluate("document.querySelector('.run-say').textContent = ''")
            page.tab.locator("[data-run=all]").click()
            page.tab.locator(".run-say", has_text=words).wait_for()
            assert missed[-1] == gone
        gone = None
        assert page.give(3, "print(6 * 7)") == "Your version gives:\n\n42\n"


def test_a_page_opened_from_a_file_says_what_it_needs(site, browser):
    tab = browser.new_page()
    tab.goto((SITE / FEW_PACKAGES).as_uri())
    tab.locator("[data-run=all]").click()
    tab.locator(".run-say", has_text="A page opened from a file may not start Python.").wait_for()
    tab.close()


NO_STORAGE = """
for (const name of ["localStorage", "sessionStorage", "indexedDB", "caches"])
  Object.defineProperty(self, name, { get() { throw new DOMException("blocked", "SecurityError"); } });
"""


def test_with_storage_blocked_and_shared_memory_a_loop_is_stopped_and_variables_stay(site, address, browser):
    def isolated(route):
        answer = route.fetch()
        policies = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}
        route.fulfill(response=answer, headers={**answer.headers, **policies})

    with Page(browser, address, script=NO_STORAGE, routes={f"{address}**": isolated}) as page:
        assert page.tab.evaluate("crossOriginIsolated")
        caught = "try:\n    while True: abs(0)\nexcept KeyboardInterrupt: print('caught')\n"
        page.write(3, f"own_six = 6\nprint('begun')\n{caught}while True: pass")
        page.cell(3).locator(".run-result", has_text="begun").wait_for()
        page.tab.locator("[data-run=stop]").click()
        result = page.result(3)
        assert "caught" in result
        assert "KeyboardInterrupt" in result
        assert "42\n" in page.give(4, "print(7 * own_six)")


FULL = """
const full = () => { throw new DOMException("full", "QuotaExceededError"); };
Storage.prototype.setItem = full;
indexedDB.open = full;
CacheStorage.prototype.open = async () => full();
"""
NOT_KEPT = "This browser's storage is full or blocked: all works, and the next visit loads Python again."


@pytest.mark.parametrize("how", ["full", "blocked"])
def test_with_storage_full_or_blocked_all_works_and_is_told(how, site, address, browser):
    """Full for the page, by script, and for the service worker, by the browser's own measure."""
    blocked = NO_STORAGE + "ServiceWorkerContainer.prototype.register = async () => caches;"
    with Page(browser, address, keeps="allow", script=FULL if how == "full" else blocked) as page:
        said = []
        page.tab.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        quota = {"origin": address.rstrip("/"), "quotaSize": 100_000}
        if how == "full":
            page.context.new_cdp_session(page.tab).send("Storage.overrideQuotaForOrigin", quota)
        for _ in range(2):
            assert page.give(3, "print(6 * 7)") == "Your version gives:\n\n42\n"
            page.tab.locator(".run-say", has_text=NOT_KEPT).wait_for()
            page.tab.reload()
        page.tab.goto(f"{address}search.html?q=mask")
        page.tab.locator(".search-list a").first.wait_for()
        page.tab.goto(f"{address}book/intro.html")
        page.tab.locator(".live-head").scroll_into_view_if_needed()
        page.tab.get_by_role("spinbutton", name="Q, row 0, column 0").fill("4")
        page.tab.locator("table[data-name=S] td", has_text="2.76").wait_for()  # (4 · 1 − 0.5 · 0.2) / √2
        assert not said
        assert not page.complaints


# --- with real NumPy ------------------------------------------------------------------------------------------------


@needs_wheels
def test_after_one_run_a_chapter_opens_and_runs_without_a_network(site, address, browser):
    """The server is there, and asked for nothing: the page is kept by the browser."""
    with Page(browser, address, keeps="allow") as page:
        run, same = page.cell(1).locator("[data-run=run]"), page.cell(1).get_by_text("✓ The same as printed here.")
        assert not page.tab.evaluate("navigator.serviceWorker.getRegistrations()")  # nothing is stored before a press
        page.tab.evaluate("caches.open('attnbook').then(kept => kept.put('../_static/run/old/x', new Response('')))")
        run.click()
        same.wait_for()
        page.tab.wait_for_load_state("networkidle")
        page.context.set_offline(True)
        page.tab.reload()
        assert not same.count()
        run.click()
        same.wait_for()
        page.tab.goto(f"{address}search.html?q=mask")
        page.tab.get_by_text("This page needs a network: it was not read before.").wait_for()
        page.tab.get_by_role("link", name="Several heads").click()
        page.tab.wait_for_load_state("load")
        page.tab.keyboard.press("Control+k")
        page.tab.keyboard.type("mask")
        page.tab.locator("dialog .search-list a").first.wait_for()
        page.context.set_offline(False)
        page.tab.reload()
        run.click()
        same.wait_for()
        kept = page.tab.evaluate("caches.open('attnbook').then(kept => kept.keys()).then(all => all.map(x => x.url))")
        assert f"{address}{FEW_PACKAGES}" in kept
        assert any(url.endswith(NUMPY) for url in kept)
        assert not page.complaints
        assert page.tab.evaluate("caches.match('../_static/run/old/x').then(Boolean)") is False


MADE_ANEW = "import pyodide_js\nprint(bool(getattr(pyodide_js._api.config, '_makeSnapshot', False)))"


@needs_wheels
def test_the_next_start_takes_pythons_memory_from_the_browser(site, address, browser):
    """And where that is of no use, it is dropped, and Python starts as it did at first."""
    kept = """async () => {
        const all = await caches.open("attnbook"), is = one => one.url.includes("/memory?");
        while (!(await all.keys()).some(is)) await new Promise(later => setTimeout(later, 100)); }"""
    spoil = """caches.open("attnbook").then(async kept => { for (const one of await kept.keys())
        if (one.url.includes("/memory?")) await kept.put(one, new Response(new Uint8Array(1000))); })"""
    with Page(browser, address, keeps="allow") as page:
        for was, anew in (("absent", True), ("kept", False), ("spoilt", True)):
            if was == "spoilt":
                page.tab.evaluate(spoil)
            page.tab.reload()
            assert page.give(3, MADE_ANEW) == f"Your version gives:\n\n{anew}\n"
            page.cell(1).locator("[data-run=run]").click()
            page.cell(1).get_by_text("✓ The same as printed here.").wait_for()
            page.tab.evaluate(kept)
        assert not page.complaints


HEARD = """
self.heard = [];
self.Worker = class extends Worker {
  constructor(...what) {
    super(...what);
    heard.push("worker");
    this.addEventListener("message", ({ data }) => heard.push(...Object.keys(data)));
  }
};
"""
SAVES_DATA = "if (localStorage.saves) Object.defineProperty(navigator, 'connection', { value: { saveData: true } })"


@needs_wheels
def test_python_starts_early_where_a_cell_was_run_before(site, address, browser):
    """From what the browser keeps, in silence; a press while it starts waits for it, and begins no second one."""
    with Page(browser, address, keeps="allow", script=HEARD + SAVES_DATA) as page:
        run, same = page.cell(1).locator("[data-run=run]"), page.cell(1).get_by_text("✓ The same as printed here.")
        run.click()
        same.wait_for()
        page.tab.wait_for_load_state("networkidle")
        first = page.tab.evaluate("document.querySelector('.run-bar').innerText")
        page.context.set_offline(True)

        for early in (False, True):  # pressed before Python is there, and after
            page.tab.reload()
            words = page.tab.evaluate("document.querySelector('.run-bar').innerText")
            page.tab.wait_for_function("word => heard.includes(word)", arg="ready" if early else "received")
            assert words == page.tab.evaluate("document.querySelector('.run-bar').innerText")
            assert words != first
            assert not page.tab.locator(".run-result").count()
            run.click()
            same.wait_for()
            heard = page.tab.evaluate("heard")
            assert heard.count("worker") == heard.count("loading") == 1
            assert heard.index("ready") < heard.index("running")

        page.context.set_offline(False)
        forget = "caches.open('attnbook').then(async kept => { for (const one of await kept.keys())"
        forget += " if (one.url.endsWith('/site.json')) await kept.delete(one); })"
        for otherwise in ("localStorage.saves = 1", f"delete localStorage.saves, {forget}"):
            page.tab.evaluate(otherwise)
            page.tab.reload()
            page.tab.wait_for_load_state("networkidle")
            page.tab.wait_for_timeout(1000)
            assert page.tab.evaluate("heard") == []
        assert not page.complaints


@needs_wheels
def test_an_early_start_that_fails_is_silent_and_a_press_begins_anew(site, address, browser):
    with Page(browser, address, keeps="allow", script=HEARD) as page:
        page.give(3, "print(6 * 7)")
        page.tab.wait_for_load_state("networkidle")
        page.tab.evaluate(
            """caches.open('attnbook').then(async kept => { for (const one of await kept.keys())
            if (one.url.endsWith('/runner.py')) await kept.put(one, new Response('raise ValueError')); })"""
        )
        page.tab.reload()
        page.tab.wait_for_function("heard.includes('failed')")
        assert not page.tab.locator("[data-run=stop]").is_visible()
        assert "could not be loaded" not in page.said
        page.cell(1).locator("[data-run=run]").click()
        page.tab.locator(".run-say", has_text="Python could not be loaded").wait_for()
        assert page.tab.evaluate("heard").count("worker") == 2
        assert not page.complaints


NEEDS = {
    "torch": "has_torch()",
    "Triton": "has_triton()",
    "python-flint": "has_flint()",
    "more than one thread": "Ranks(",
}  # and what such a cell asks


IN_SHORT = (
    "09_variants",  # a browser's integers have 32 bits, and dropout counts with more
    "12_gpu",  # its matplotlib is older, and it has no Triton
    "14_many_devices",  # it has no threads
)
assert set(IN_SHORT) < set(CHAPTERS)


@needs_wheels
@pytest.mark.parametrize(
    "chapter", [pytest.param(name, marks=() if name in IN_SHORT else pytest.mark.thorough) for name in CHAPTERS]
)
def test_a_whole_chapter_gives_what_it_shows(chapter, site, address, browser):
    cells = json.loads((site["place"] / f"{chapter}.json").read_text(encoding="utf-8"))
    with Page(browser, address, f"chapters/{chapter}.html") as page:
        page.tab.locator("[data-run=all]").click()
        page.tab.locator("[data-run=stop]").wait_for(state="visible")
        page.tab.locator("[data-run=all]").wait_for(state="visible", timeout=600_000)
        assert "gave what is printed here" in page.said
        assert not page.complaints
        assert not page.outside
        told = page.tab.locator("article div.cell .run-result")
        results = told.evaluate_all("all => all.map(({ className, textContent }) => [className, textContent])")
    passed_over = 0
    for cell, (kind, words) in zip(cells, results, strict=True):
        verdict = kind.removeprefix("run-result ")
        if verdict == "passed-over":
            (absent,) = re.fullmatch("Passed over: it needs (.+), which does not run in a browser.", words).groups()
            assert (
                NEEDS[absent] in cell["source"] or cell["name"] == "dead-table-show"
            )  # which shows what such a cell made
            passed_over += 1
        else:
            assert verdict in ("same", "autograd", "redrawn"), (cell["name"], words)
    assert passed_over < (0.4 if chapter == "12_gpu" else 0.15) * len(
        cells
    )  # a kernel for a GPU is no cell for a browser


OF_A_READER = """
import attnbook as ab
def mine(Q, K, V, dO):
    scale = Q.shape[-1] ** -0.5
    P = ab.softmax(scale * Q @ K.mT)
    dS = ab.softmax_vjp(dO @ V.mT, P)
    return P @ V, scale * dS @ K, dS.mT @ Q, P.mT @ dO
print(ab.diagnose(mine))
"""


@needs_wheels
def test_a_reader_s_own_backward_is_diagnosed(page):
    page.tab.locator("[data-run=try]").first.click()
    page.tab.locator(".run-try textarea").fill(OF_A_READER)
    page.tab.locator(".run-try [data-run=run]").click()
    said = page.tab.locator(".run-try .run-result", has_text="right: O, dQ, dV")
    said.wait_for()
    assert "wrong: dK\n" in said.inner_text()
    assert "the scale is missing in dK" in said.inner_text()
