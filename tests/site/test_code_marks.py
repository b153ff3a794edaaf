"""What the book says the package runs is what it runs: calls are followed, line by line."""

import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import coverage
import numpy as np
import proofs
import pytest
import test_layers
import torch
import yaml
from built_site import SITE, soup
from code_lines import all_marks, has_twin, page_of
from compare import draw
from equations import CHAPTERS, ROOT, equations
from public_calls import CALLS, PASSES
from reading import read
from routes import taking
from sphinx.directives.code import LiteralIncludeReader

import attnbook as ab
from attnbook import checks, parallel
from attnbook.arrays import inner
from attnbook.checks import check

SOURCE = ROOT / "src" / "attnbook"
ON_TILES = ("plain", "mask with a dead row", "dropout, softcap and bias", "two sinks, dropout, cap and bias", "window")
"""Cases of a head that go through every spine."""


def followed(*calls):
    """Each line of the package that these calls run, also on other threads: its file and its number."""
    tracer = coverage.Coverage(data_file=None, source=[str(SOURCE)], config_file=False, messages=False)
    with tracer.collect():
        for call in calls:
            call()
    data = tracer.get_data()
    return {(Path(f).relative_to(SOURCE).as_posix(), n) for f in data.measured_files() for n in data.lines(f)}


def heads(asarray):
    """Forward, both modes and their derivatives of a few heads."""
    for case in (passes for passes in PASSES if str(passes).partition(", ")[2] in ON_TILES):
        arrays = case.draw()
        yield case.ready([asarray(T) for T in arrays])


def layers_and_ranks():
    """What the table of public calls does not have: layers of their own, ranks, and checks."""
    Q, K, V = draw((2, 4, 6), (2, 4, 6), (2, 4, 3))
    yield from (partial(test_layers.test_latent_attention, {}, absorbed) for absorbed in (False, True))
    yield partial(test_layers.test_differential_attention, (3,), {})
    yield partial(test_layers.test_talking_heads, {})
    yield from (partial(parallel.simulate, scheme, Q, K, V, ranks=2, dO=V) for scheme in ("ring", "gather", "tree"))
    yield from (partial(f, np.sum, Q, K) for f in (checks.forward_difference, checks.central_difference))
    yield from (partial(checks.complex_step, np.sum, Q, K), partial(inner, Q, Q))
    yield partial(ab.softmax, Q.astype(np.float16))
    if check.has_flint():
        yield partial(checks.check_vjp, lambda A: A * A, 2 * Q * K, at=Q, cotangent=K, digits=20)
    O, res = ab.linear_attention(Q, K, V, causal=False)
    yield from (partial(ab.linear_attention, Q, K, V, causal=False), partial(ab.linear_attention_vjp, O, res))


@pytest.fixture(scope="module")
def ran():
    """Each line that runs on NumPy arrays, and on torch tensors, with "dense" and with "tiled"."""

    def on_routes(asarray, *routes):
        for route in routes:
            with taking(route):
                for call in heads(asarray):
                    call()

    once = [*(call.ready(call.draw()) for call in (*CALLS, *PASSES)), *layers_and_ranks()]
    return {
        "NumPy": followed(*once, lambda: on_routes(np.asarray, "tiled on NumPy", "tiled on NumPy, shifted")),
        "torch": followed(lambda: on_routes(torch.from_numpy, "dense", "tiled")),
    }


# --- the lines that chapters show ---------------------------------------------------------------------------------

SHOWN = re.compile(r"\{literalinclude\} \.\./src/attnbook/(\S+)\n((?::.*\n)+)")


def listings():
    """Chapter, file and lines of each place where a chapter shows the package's."""
    for path in sorted(CHAPTERS.glob("*.ipynb")):
        for cell in (cell["source"] for cell in read(path) if cell["cell_type"] == "markdown"):
            for file, options in SHOWN.findall(cell):
                which = re.findall(r":(pyobject|start[\w-]*|end[\w-]*): *(.*)", options)
                utf8 = SimpleNamespace(source_encoding="utf-8")
                of = LiteralIncludeReader(str(SOURCE / file), {**dict(which), "lineno-match": None}, utf8)
                _, count = of.read()
                yield path.stem, file, range(of.lineno_start + 1, of.lineno_start + count)


def test_the_lines_that_a_chapter_shows_run(ran):
    """That NumPy's run on NumPy, the marks in them say. Kernels: test_fused."""
    shown = [(chapter, file, lines) for chapter, file, lines in listings() if "fused" not in file]
    assert len(shown) > 20
    lines_run = ran["NumPy"] | ran["torch"]
    assert [(chapter, file) for chapter, file, lines in shown if not lines_run & {(file, n) for n in lines}] == []


# --- the lines that formulas lead to ------------------------------------------------------------------------------

FORMULAS = yaml.safe_load((ROOT / "book" / "formulas.yml").read_text(encoding="utf-8"))
NOT_RUN = {name: why for why, names in FORMULAS["not run"].items() for name in names}
EQUATIONS = {e.label: e for e in equations()}


def test_every_marked_line_runs_and_makes_what_its_formula_says(ran):
    for mark, twin in ((mark, has_twin(of)) for of in all_marks().values() for mark in of):
        library = "torch" if twin and not mark.file.rpartition("/")[2].startswith("numpy_") else "NumPy"
        assert (mark.file, mark.line) in ran[library], f"{mark} does not run on {library}"
        letter = re.fullmatch(r"eq-(d?[A-Z])", mark.label)  # of those that are called by one
        name = letter and letter[1].replace("P", "[PW]")  # W is P after dropout
        assert not letter or re.search(rf"\b{name}(?:_\w+|\d)?\b|\breturn\b", mark.code), f"{mark} makes something else"


def test_every_formula_that_the_package_runs_has_a_line():
    """And those that it does not run say why, one by one or a chapter at a time; steps lead to another formula."""
    marked, chapters = set(all_marks()), {e.chapter for e in EQUATIONS.values()}
    assert marked <= set(EQUATIONS), "a comment names what no page has"
    assert not marked & set(NOT_RUN)
    assert set(NOT_RUN) <= {*EQUATIONS, *chapters}
    no_tex = {label for label, formula in FORMULAS["formulas"].items() if "no tex" in formula}
    asked = {label: e for label, e in EQUATIONS.items() if not e.is_step and label not in no_tex}
    assert [label for label, e in asked.items() if not {label, e.chapter} & {*marked, *NOT_RUN}] == []


# --- the site -----------------------------------------------------------------------------------------------------


BOXES = {  # by the kind of button: of each label what is shown, and where a link leads, and to which words
    "runs": {k: [(m.code, f"src/attnbook/{m.file}", k) for m in of] for k, of in all_marks().items()},
    "proved": {k: [(t.statement, t.where, f"Theorem {t.name} ") for t in of] for k, of in proofs.by_label().items()},
}


@pytest.mark.parametrize(("kind", "name"), [("runs", "code"), ("proved", "proved")])
@pytest.mark.parametrize("chapter", sorted({e.chapter for e in EQUATIONS.values()}))
def test_beside_a_formula_buttons_open_its_lines_and_its_theorem(chapter, kind, name):
    page = soup(SITE / "chapters" / f"{chapter}.html")
    here = {label: known for label, known in BOXES[kind].items() if EQUATIONS[label].chapter == chapter}
    assert {button["popovertarget"] for button in page.select(f"button.{kind}")} == {
        f"{name}-{label}" for label in here
    }
    for label, known in here.items():
        box = page.find(id=f"{name}-{label}")
        assert kind == "runs" or re.match(r"\(\w+\.\d+\), proved", box.select_one(".theorem-title").text)
        assert [pre.get_text() for pre in box.select("pre")] == [shown for shown, *_ in known]
        for (_, file, words), link in zip(known, box.select("a[href*='/blob/']"), strict=True):
            place, _, line = link["href"].partition("#L")
            assert place.endswith(f"/{file}")
            assert words in (ROOT / file).read_text(encoding="utf-8").splitlines()[int(line) - 1]


def test_each_line_s_function_leads_back_to_the_formula():
    """On its own page, or on that of its room."""
    for mark in (mark for of_label in all_marks().values() for mark in of_label):
        page = soup(SITE / "book" / "api" / f"{page_of(mark)}.html")
        to = f"chapters/{EQUATIONS[mark.label].chapter}.html#equation-{mark.label.lower()}"
        assert page.select(f"a[href$='{to}']"), mark


def test_a_box_opens_by_keyboard_and_closes(pages, address):
    """That of the code, and that of the proof."""
    with pages(width=390) as tab:
        tab.goto(f"{address}chapters/04_single_head.html")
        for name, words in (("code-eq-dV", "dV = W.mT @ dO"), ("proved-eq-dQ", "dS × K")):
            box = tab.locator(f"#{name}")
            assert not box.is_visible()
            tab.locator(f"[popovertarget='{name}']").first.focus()
            tab.keyboard.press("Enter")
            box.get_by_text(words).first.wait_for()
            assert box.bounding_box()["width"] <= 390
            tab.keyboard.press("Escape")
            box.wait_for(state="hidden")
