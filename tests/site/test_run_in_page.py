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

import pyodide_files
import pytest
import run_in_page
from built_site import ROOT, SITE, soup
from packaging.utils import parse_wheel_filename

CHAPTERS = sorted(path.stem for path in (ROOT / "chapters").glob("*.ipynb"))
NUMPY = pyodide_files.lock()["packages"]["numpy"]["file_name"] if pyodide_files.lock() else "numpy"
NO_WHEELS = "NumPy for pages is not in book/node_modules/pyodide, so no page of the site has it: make book says why"
needs_wheels = pytest.mark.skipif(not (pyodide_files.lock() and pyodide_files.have_wheels()), reason=NO_WHEELS)
IN_PAGE = "14_many_devices"  # a short chapter, whose first cells need NumPy and no matplotlib; it has no threads
CHAPTER = f"chapters/{IN_PAGE}.html"
assert IN_PAGE in CHAPTERS


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


# --- the file that runs the cells -----------------------------------------------------------------------------------


def text(words):
    return {"output_type": "stream", "name": "stdout", "text": words}


class TestRunner:
    """Where no chapter takes it."""

    @pytest.fixture
    def runner(self, monkeypatch):
        monkeypatch.syspath_prepend(str(ROOT / "book" / "_run"))
        monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # put back afterwards
        import runner

        yield runner
        del sys.modules["runner"]

    @pytest.mark.parametrize(
        ("source", "summary"),
        [
            ("def f():\n    return 1 / 0\nf()", "ZeroDivisionError: division by zero"),
            ("def f(:", "SyntaxError: invalid syntax"),
            ("class E(Exception):\n    def __str__(self): raise self\nraise E", "E: <exception str() failed>"),
            ("raise SystemExit", "SystemExit"),
        ],
    )
    def test_whatever_is_raised_is_shown_with_the_cell_and_without_the_runner(self, source, summary, runner):
        made = runner.Runner()
        answer = made.run("mine", source)
        (output,) = answer["outputs"]
        assert answer["verdict"] == "error"
        assert output["summary"] == summary
        assert source.splitlines()[-1] in output["traceback"]
        assert "runner.py" not in output["traceback"]
        assert made.run("next", "print(6 * 7)")["outputs"] == [text("42\n")]

    def test_what_is_absent_is_said_in_a_line_and_so_is_what_hangs_on_it(self, runner, monkeypatch):
        monkeypatch.setitem(sys.modules, "cupy", None)
        made = runner.Runner()
        for source in ("import cupy\nx = cupy.ones(3)", "y = x + 1", "print(y)"):
            answer = made.run("mine", source)
            assert (answer["verdict"], answer["outputs"]) == ("passed over", [])
            assert answer["why"] == "it needs cupy, which does not run in a browser"
        assert made.run("mine", "print(z)")["verdict"] == "error"

    def test_a_difference_is_told(self, runner):
        """Of a picture, which another matplotlib may draw, only the words count."""
        made, stored = runner.Runner(), [text(["agrees with differences and autograd\n"])]
        for source, verdict in {
            'print("agrees with differences and autograd")': "same",
            'print("agrees with differences")': "autograd",
            'print("differs")': "differs",
            '"agrees with differences"': "differs",
        }.items():
            assert made.run("a", source, stored)["verdict"] == verdict
        assert made.run("a", 'print("agrees with differences")')["verdict"] == "ran"

        made.run("f", "class F:\n    _repr_html_ = lambda self: '<figure><svg>1</svg></figure>words'\n")
        made.run("f", "F.__repr__ = lambda self: \"'plot'\"\nplot = show = lambda: display(F())")
        for source, picture, words, verdict in (
            ("plot()", 1, "words", "same"),
            ("plot()", 2, "words", "redrawn"),
            ("plot()", 2, "other words", "differs"),
            ("show()", 2, "words", "differs"),
        ):
            html = f"<figure><svg>{picture}</svg></figure>{words}"
            shown = [{"output_type": "display_data", "data": {"text/html": html, "text/plain": "'plot'"}}]
            assert made.run("a", source, shown)["verdict"] == verdict, (source, html)

    def test_what_goes_on_for_ever_or_is_huge_is_cut(self, runner):
        told = []
        made = runner.Runner(told.append)
        for source in ("for _ in range(10**5): print('words')", "'x' * 10**7", "raise ValueError('x' * 10**7)"):
            (output,) = made.run("mine", source)["outputs"]
            shown = output.get("text") or output.get("traceback") or output["data"]["text/plain"]
            assert len(shown) < 1.1 * runner.MOST_TEXT
            assert shown.endswith("the rest is not shown\n")
        assert 0 < len(told) < 1000
        assert len(made.run("mine", "for i in range(10**5): display(i)")["outputs"]) == runner.MOST_VALUES

    def test_what_a_cell_wants_and_which_packages(self, runner):
        made = runner.Runner()
        assert made.wants("print(x)", ["x = 1", "y = 2"])
        assert not made.wants("print(6 * 7)", ["x = 1"])
        made.run("a", "x = 1")
        assert made.wants("print(x)", ["x = 2"])  # x is there, and would be another by now
        assert not made.wants("print(x)", ["y = [x for x in (1, 2)]", "def f(x):\n    x += 1"])
        assert runner.packages("import attnbook as ab") == ["numpy"]
        assert runner.packages("plot(draw, alt='')") == ["numpy", "matplotlib"]


# --- in a browser ---------------------------------------------------------------------------------------------------


# What a test serves is a network, also on a machine without one.
ON_LINE = "Object.defineProperty(navigator, 'onLine', { get: () => true, configurable: true })"


class Page:
    """A chapter in a tab of its own, every request noted, other hosts out of reach unless a test serves them."""

    def __init__(self, browser, address, page=CHAPTER, script=None, keeps="block", routes=None, **options):
        self.context, self.address = browser.new_context(service_workers=keeps, **options), address
        self.context.set_default_timeout(90_000)  # Python starts slowly where the other tests run beside
        self.asked, self.complaints = [], []
        self.context.on("request", lambda request: self.asked.append(request.url))
        if keeps == "block":  # what a service worker asks cannot be routed
            self.context.route(lambda url: not url.startswith(address), lambda route: route.abort())
        for pattern, answer in (routes or {}).items():
            self.context.route(pattern, answer)
        for first in (routes and ON_LINE, script):
            if first:
                self.context.add_init_script(first)
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

    def says(self, words):
        self.tab.locator(".run-say", has_text=words).wait_for()

    def cell(self, place):
        return self.tab.locator("article div.cell:not(.tag_hide-input, .tag_hide-cell)").nth(place)

    def edit(self, place, source):
        cell = self.cell(place)
        if not cell.locator("textarea").count():
            cell.locator("[data-run=edit]").click()
        cell.locator("textarea").fill(source)

    def write(self, place, source, shows=None):
        """Put source into a cell's editor, run it by keyboard, and wait until it shows something."""
        self.edit(place, source)
        self.cell(place).locator("textarea").press("Control+Enter")
        if shows:
            self.cell(place).locator(".run-result", has_text=shows).wait_for()

    def result(self, place):
        """What stands below a cell once nothing runs any more."""
        self.tab.locator("[data-run=all]").wait_for(state="visible")
        result = self.cell(place).locator(".run-result")
        result.filter(has_not_text=re.compile("Running .*…")).wait_for()  # nor is about to
        return result.inner_text()

    def give(self, place, source):
        self.write(place, source)
        return self.result(place)

    def prints(self, source, place=1):
        """What a changed cell prints, and nothing else."""
        start, _, printed = self.give(place, source).partition("\n\n")
        assert start == "Your version gives:", (start, printed)
        return printed.removesuffix("\n")

    def press(self, what):
        self.tab.locator(f"[data-run={what}]").first.click()

    def heard(self, word):
        self.tab.wait_for_function("word => heard.includes(word)", arg=word)


# --- with a worker that answers what a test has written into the cell -----------------------------------------------

# A stand-in for worker.mjs, which tells the page the messages that are the cell's source; "usual" where it is printed.
STUB = """
Object.assign(self, { asked: [], made: 0, ended: 0, early: [{ ready: true }] });
self.usual = [{ running: true }, { answer: { verdict: "same", why: "", outputs: [] } }];
self.Worker = class {
  constructor() { made += 1; }
  postMessage(request) {
    asked.push(request);
    const told = request.prepare ? early : request.stored ? usual : JSON.parse(request.source);
    setTimeout(() => told.forEach((data) => this.onmessage?.({ data })));
  }
  terminate() { ended += 1; this.onmessage = undefined; }
};
"""


def tells(*messages, verdict="ran", outputs=(), why=""):
    """The source of a cell that makes the stub tell the page these, and then an answer; an endless one has none."""
    answer = {"answer": {"verdict": verdict, "why": why, "outputs": list(outputs)}}
    return json.dumps([{"running": True}, *messages, *([answer] if verdict else [])])


SIX = tells(outputs=[text("42\n")])
ENDLESS = tells({"printed": "begun"}, verdict=None)


@pytest.fixture(scope="module")
def opened(site, address, browser):
    with Page(browser, address, f"{CHAPTER}?run=all&code=print(1)#run-print(1)", script=STUB) as page:
        yield page


@pytest.fixture
def stub(opened):
    opened.tab.reload()
    opened.tab.wait_for_load_state("load")
    opened.complaints.clear()
    yield opened
    assert not opened.complaints
    assert not opened.outside


def test_nothing_is_loaded_and_nothing_runs_before_a_press(stub):
    """Also where code was written, or stored, and the page is opened again."""
    assert stub.prints(SIX) == "42"
    stub.tab.evaluate("for (const s of [localStorage, sessionStorage]) s['cell'] = s['3'] = '[]'")
    stub.asked.clear()
    stub.tab.reload()
    stub.tab.wait_for_load_state("networkidle")
    stub.tab.wait_for_timeout(500)
    assert stub.tab.locator("[data-run=run]").count() == stub.tab.locator("article div.cell").count()
    assert not stub.tab.locator("textarea, .run-result").count()
    assert not [url for url in stub.asked if "/run/" in url or "pyodide" in url]
    assert stub.tab.evaluate("made") == 0


def test_stop_ends_python_and_while_a_cell_runs_no_other_does_and_none_is_reset(stub):
    stub.write(0, ENDLESS, shows="begun")
    for button in (stub.cell(0).locator("[data-run=reset]"), stub.cell(1).locator("[data-run=run]")):
        stub.tab.evaluate("document.querySelector('.run-say').textContent = ''")
        button.click()
        stub.says("A cell is running. Stop it first.")
    stub.tab.locator("[data-run=stop]").focus()
    stub.tab.keyboard.press("Enter")
    assert "Stopped. Python was ended and its variables are gone" in stub.result(0)
    assert stub.tab.evaluate("[made, ended]") == [1, 1]
    assert stub.prints(SIX) == "42"
    assert stub.tab.evaluate("[made, ended]") == [2, 1]
    stub.cell(0).locator("[data-run=reset]").click()
    stub.cell(0).locator(".cell_input pre").wait_for()  # visible; a section is laid out a frame after it comes near
    stub.cell(0).locator(".cell_output").first.wait_for()
    assert not stub.cell(0).locator(".run-result, textarea").count()


def test_an_exercise_takes_the_reader_s_own_code(stub):
    stub.press("try")
    editor = stub.tab.locator(".run-try textarea")
    editor.wait_for()
    assert "ab.diagnose" in editor.input_value()
    editor.fill(tells(outputs=[text("0\n1\n2")]))
    editor.press("Shift+Enter")
    stub.tab.locator(".run-try .run-result", has_text="0\n1\n2").wait_for()


def test_what_a_browser_lacks_is_said_in_words(stub):
    for name, words in (
        ("WebAssembly", "This browser has no WebAssembly, or has it switched off."),
        ("Worker", "This browser has no workers, or has them switched off."),
    ):
        stub.tab.evaluate(f"kept = self.{name}; delete self.{name}")
        stub.press("all")
        stub.says(words)
        stub.tab.evaluate(f"void (self.{name} = kept)")
    assert stub.prints(SIX) == "42"


def test_without_a_network_the_page_says_so(stub):
    stub.context.set_offline(True)
    stub.press("all")
    stub.says("This device is offline.")
    stub.context.set_offline(False)
    assert stub.prints(SIX) == "42"
    stub.complaints.clear()


def test_a_press_is_heard_before_the_page_is_there_and_a_second_does_not_undo_it(site, address, browser):
    held = []
    with Page(browser, address, routes={"**/page.mjs": lambda route: held.append(route)}) as page:
        words, edit = page.said, page.cell(0).locator(".run-tools button").nth(1)
        edit.dblclick()
        page.says("Loading …")
        held[0].continue_()
        page.cell(0).locator("textarea").wait_for()
        page.tab.wait_for_timeout(200)
        assert page.cell(0).locator("textarea").count() == 1
        assert page.said == words
        assert not page.complaints


NO_STORAGE = """
for (const name of ["localStorage", "sessionStorage", "indexedDB", "caches"])
  Object.defineProperty(self, name, { get() { throw new DOMException("blocked", "SecurityError"); } });
ServiceWorkerContainer.prototype.register = async () => caches;
"""


NOT_KEPT = "This browser's storage is full or blocked: all works, and the next visit loads Python again."


def test_a_page_opened_from_a_file_says_what_it_needs(site, browser):
    tab = browser.new_page()
    tab.goto((SITE / CHAPTER).as_uri())
    tab.locator("[data-run=all]").click()
    tab.locator(".run-say", has_text="A page opened from a file may not start Python.").wait_for()
    tab.close()


# --- with Python, where files do not come, or storage is blocked ----------------------------------------------------


COULD_NOT = "Python could not be loaded"
GONE = {  # in the order in which they are asked for
    "page.mjs": "What runs the cells could not be loaded. Reload the page: the site may be newer than it.",
    "worker.mjs": "What runs Python could not be loaded.",
    "site.json": COULD_NOT,
    "pyodide.mjs": COULD_NOT,
    "pyodide.asm.wasm": COULD_NOT,
    "python_stdlib.zip": COULD_NOT,
}
IMPORTS = """
import numpy, threadpoolctl, importlib.util
print(numpy.__version__, threadpoolctl.threadpool_info(), importlib.util.find_spec("attnbook").origin)
"""
NO_NUMPY = "Passed over: it needs numpy, which could not be loaded."


class Network:
    """What a page asks of the site: ``network.gone`` fails, ``held`` waits; ``missed`` and ``waiting`` are such."""

    def __init__(self):
        self.gone = self.held = None
        self.answers, self.missed, self.waiting = {}, [], []

    def __call__(self, route):
        name = urlsplit(route.request.url).path.rpartition("/")[2]
        if name == self.held:
            return self.waiting.append(route)
        if name == self.gone:
            self.missed.append(name)
            return route.fulfill(status=404, body="<h1>Not found</h1>")
        answer = next((self.answers[part] for part in self.answers if name.startswith(part)), None)
        return answer(route) if answer else route.fallback()

    def release(self, how):
        self.held = None
        while self.waiting:
            getattr(self.waiting.pop(), how)()


@pytest.fixture(scope="class")
def network():
    return Network()


@pytest.fixture(scope="class")
def cut(network, site, address, browser):
    with Page(browser, address, routes={"**/_static/**": network}) as page:
        yield page


@needs_wheels
class TestWhereFilesDoNotCome:
    """One page; Python starts in it three times. Each test leaves the network whole."""

    def test_a_file_of_the_site_that_is_gone_is_told_and_asked_for_again(self, cut, network):
        """One at a time: each was asked for again where one that needs it is missed, and the last where Python runs."""
        for network.gone, words in GONE.items():
            cut.tab.evaluate("document.querySelector('.run-say').textContent = ''")
            cut.press("all")
            cut.says(words)
            assert network.missed[-1] == network.gone
        network.gone = None
        cut.complaints.clear()

    def test_numpy_may_fail_before_python_is_there(self, cut, network):
        """Once in a while it does, on a slow machine; then Python neither hangs nor traps. Plain cells run."""
        cut.tab.reload()
        failed, network.held = [], "pyodide.asm.wasm"
        network.answers = {NUMPY: lambda route: (failed.append(route), route.abort()), "attnbook-": self.stale}
        cut.write(1, "print(6 * 7)")
        deadline = time.monotonic() + 60
        while not (network.waiting and failed):
            assert time.monotonic() < deadline, f"not asked for: {NUMPY if network.waiting else network.held}"
            cut.tab.wait_for_timeout(50)
        cut.tab.wait_for_timeout(500)
        network.release("continue_")
        assert cut.result(1) == "Your version gives:\n\n42\n"
        assert cut.give(0, IMPORTS) == NO_NUMPY
        assert f"NumPy could not be loaded from {urlsplit(cut.address).netloc}" in cut.said
        assert cut.give(1, "numpy.__name__") == NO_NUMPY
        assert cut.prints("print(6 * 7)") == "42"

    def stale(self, route):
        route.fulfill(body=b"of last week")

    def test_a_file_that_is_not_the_one_that_was_built_is_refused(self, cut, network):
        network.answers = {NUMPY: self.stale, "attnbook-": self.stale}
        assert cut.give(0, IMPORTS) == NO_NUMPY
        assert "sent what this page did not ask for" in cut.said
        del network.answers[NUMPY]
        cut.give(0, IMPORTS)
        assert re.search(r"attnbook-\S+\.whl is not the file this page was built with: reload the page", cut.said)
        assert cut.prints("print(6 * 7)") == "42"
        network.answers = {}  # the right ones are there again, and a later cell asks for them again
        assert cut.prints("numpy.__name__") == "'numpy'"
        assert "2.0.2 [] /book/site/attnbook/__init__.py\n" in cut.result(0)
        assert not cut.complaints


def test_with_storage_blocked_and_shared_memory_a_loop_is_stopped_and_variables_stay(site, address, browser):
    """And the search and the live head work."""

    def isolated(route):
        answer = route.fetch()
        policies = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}
        route.fulfill(response=answer, headers={**answer.headers, **policies})

    with Page(browser, address, script=NO_STORAGE, keeps="allow", routes={f"{address}**": isolated}) as page:
        page.tab.on("console", lambda said: page.complaints.append(said.text) if said.type == "error" else None)
        assert page.tab.evaluate("crossOriginIsolated")
        caught = "try:\n    while True: abs(0)\nexcept KeyboardInterrupt: print('caught')\n"
        page.write(0, f"own_six = 6\nprint('begun')\n{caught}while True: pass", shows="begun")
        page.press("stop")
        result = page.result(0)
        assert "caught" in result
        assert "KeyboardInterrupt" in result
        assert page.prints("print(7 * own_six)") == "42"
        page.says(NOT_KEPT)
        page.tab.goto(f"{address}search.html?q=mask")
        page.tab.locator(".search-list a").first.wait_for()
        page.tab.goto(f"{address}book/intro.html")
        page.tab.locator(".live-head").scroll_into_view_if_needed()
        page.tab.get_by_role("spinbutton", name="Q, row 0, column 0").fill("4")
        page.tab.locator("table[data-name=S] td", has_text="2.76").wait_for()  # (4 · 1 − 0.5 · 0.2) / √2
        assert not page.complaints


# --- one page with real Python and NumPy, which starts three times --------------------------------------------------


NEEDS = {
    "torch": "has_torch()",
    "Triton": "has_triton()",
    "python-flint": "has_flint()",
    "more than one thread": "Ranks(",
}  # and what such a cell asks


def runs_as_shown(page, chapter, site):
    """Of each cell the verdict, and why it was passed over."""
    page.press("all")
    page.tab.locator("[data-run=stop]").wait_for(state="visible")
    page.tab.locator("[data-run=all]").wait_for(state="visible", timeout=600_000)
    assert "gave what is printed here" in page.said
    assert not page.complaints
    assert not page.outside
    results = page.tab.locator("article div.cell .run-result")
    told = results.evaluate_all("all => all.map(({ classList, textContent }) => [classList[1], textContent])")
    cells, passed_over = json.loads((site["place"] / f"{chapter}.json").read_text(encoding="utf-8")), 0
    for cell, (verdict, words) in zip(cells, told, strict=True):
        if verdict == "passed-over":
            (absent,) = re.search("it needs (.+), which does not run in a browser", words).groups()
            shows_what_it_made = cell["name"] == "dead-table-show"
            assert NEEDS[absent] in cell["source"] or shows_what_it_made, cell["name"]
            passed_over += 1
        else:
            assert verdict in ("same", "autograd", "redrawn"), (cell["name"], words)
    most = 0.4 if chapter == "12_gpu" else 0.15  # a kernel for a GPU is no cell for a browser
    assert passed_over < most * len(cells)


HEARD = """
self.heard = [];
self.Worker = class extends Worker {
  constructor(...what) {
    super(...what);
    heard.push("worker");
    this.addEventListener("message", ({ data }) => heard.push(...Object.keys(data)));
  }
};
if (localStorage.saves) Object.defineProperty(navigator, "connection", { value: { saveData: true } });
"""
OF_A_READER = """
import matplotlib
import attnbook as ab
def mine(Q, K, V, dO):
    scale = Q.shape[-1] ** -0.5
    P = ab.softmax(scale * Q @ K.mT)
    dS = ab.softmax_vjp(dO @ V.mT, P)
    return P @ V, scale * dS @ K, dS.mT @ Q, P.mT @ dO
print(ab.diagnose(mine))
"""
MADE_ANEW = "import pyodide_js\nprint(bool(getattr(pyodide_js._api.config, '_makeSnapshot', False)))"
KEPT = """async () => {
    const all = await caches.open("attnbook"), is = one => one.url.includes("/memory?");
    while (!(await all.keys()).some(is)) await new Promise(later => setTimeout(later, 100)); }"""
SPOIL = """caches.open("attnbook").then(async kept => { for (const one of await kept.keys())
    if (one.url.includes("/memory?")) await kept.put(one, new Response(new Uint8Array(1000))); })"""


@pytest.fixture(scope="class")
def python(site, address, browser):
    with Page(browser, address, script=HEARD, keeps="allow") as page:
        yield page


@needs_wheels
class TestWithPython:
    """Each test takes the page as the one before has left it, or as it is opened."""

    @pytest.fixture
    def page(self, python):
        if python.tab.locator("[data-run=stop]").is_visible() or python.tab.locator(".run-try").count():
            python.tab.reload()
        python.tab.evaluate("document.querySelectorAll('[data-run=reset]').forEach(button => button.click())")
        python.tab.wait_for_function("!document.querySelector('[data-run=reset]')")
        python.asked.clear()
        python.complaints.clear()
        yield python
        assert not python.complaints
        assert not python.outside

    def test_a_whole_chapter_gives_what_it_shows(self, page, site):
        assert not page.tab.evaluate("navigator.serviceWorker.getRegistrations()")  # nothing is stored before a press
        page.tab.evaluate("caches.open('attnbook').then(kept => kept.put('../_static/run/old/x', new Response('')))")
        runs_as_shown(page, IN_PAGE, site)

    def test_a_reader_s_own_backward_is_diagnosed(self, page):
        said = page.prints(OF_A_READER)
        assert "right: O, dQ, dV" in said
        assert "wrong: dK\n" in said
        assert "the scale is missing in dK" in said

    def test_a_cell_that_prints_nothing_is_not_taken_for_one_that_has_ended(self, page):
        for nothing in ("print()", "print('')", "print('', end='')"):
            assert page.give(0, f"{nothing}\nprint('next')\nown_six = 6 * 7\nown_six").strip().endswith("next\n\n42")
            assert page.prints("print(own_six)") == "42"

    @pytest.mark.parametrize(
        ("source", "told"),
        [
            ("1 / 0", "ZeroDivisionError"),
            pytest.param("def f(): f()\nf()", "Error|Python broke off", id="recursion"),
            ("input()", "Error"),
            pytest.param("import os; os._exit(1)", "Python broke off", id="exit"),
            pytest.param("x = []\nwhile True: x.append(bytearray(10**8))", "Error", marks=pytest.mark.thorough),
        ],
    )
    def test_a_cell_that_breaks_off_says_so_and_python_goes_on_or_begins_anew(self, source, told, page):
        if "_exit" in source:
            assert page.prints(MADE_ANEW) == "True"
            page.tab.evaluate(KEPT)
        assert re.search(told, page.give(0, source))
        assert page.prints("print(6 * 7)") == "42"
        if "_exit" in source:  # the next start takes Python's memory from the browser
            assert page.prints(MADE_ANEW) == "False"

    def test_cells_above_run_first_where_their_names_are_used(self, page):
        page.edit(1, "print(7 * own_seven)")
        page.edit(0, "own_seven = 6\nprint(own_seven)")
        page.cell(1).locator("[data-run=run]").click()
        assert page.result(1) == "Your version gives:\n\n42\n"
        page.cell(0).scroll_into_view_if_needed()  # what is far away is not laid out yet
        assert page.result(0) == "Your version gives:\n\n6\n"

    def test_then_it_opens_and_runs_without_a_network_and_python_starts_early(self, page, address):
        """The server is there, and asked for nothing. Python's memory is of no use, is dropped, and made anew."""
        if not page.tab.evaluate("heard.length"):
            page.give(1, "1")
        page.tab.evaluate(KEPT)
        page.tab.evaluate(SPOIL)
        page.context.set_offline(True)
        page.tab.reload()
        words = page.tab.locator(".run-bar").inner_text()
        page.heard("received")
        assert page.tab.locator(".run-bar").inner_text() == words
        assert not page.tab.locator(".run-result").count()
        run, same = page.cell(0).locator("[data-run=run]"), page.cell(0).get_by_text("✓ The same as printed here.")
        run.click()
        same.wait_for()
        heard = page.tab.evaluate("heard")
        assert heard.count("worker") == heard.count("loading") == 1
        assert heard.index("ready") < heard.index("running")
        assert page.prints(MADE_ANEW) == "True"
        page.tab.evaluate(KEPT)

        page.tab.evaluate("localStorage.saves = 1")  # no more early starts
        page.tab.goto(f"{address}search.html?q=mask")
        page.tab.get_by_text("This page needs a network: it was not read before.").wait_for()
        page.tab.get_by_role("link", name="Many devices").click()
        page.tab.wait_for_load_state("load")
        page.tab.keyboard.press("Control+k")
        page.tab.keyboard.type("mask")
        page.tab.locator("dialog .search-list a").first.wait_for()
        assert page.tab.evaluate("heard") == []
        kept = page.tab.evaluate("caches.open('attnbook').then(kept => kept.keys()).then(all => all.map(x => x.url))")
        assert f"{address}{CHAPTER}" in kept
        assert any(url.endswith(NUMPY) for url in kept)
        assert not any(url.endswith("old/x") for url in kept)
        page.context.set_offline(False)


@needs_wheels
@pytest.mark.thorough
@pytest.mark.parametrize("chapter", sorted({*CHAPTERS} - {IN_PAGE}))
def test_any_chapter_gives_what_it_shows(chapter, site, address, browser):
    with Page(browser, address, f"chapters/{chapter}.html") as page:
        runs_as_shown(page, chapter, site)
