"""The live head, in a browser: its numbers are the package's, hands change them, and nothing that comes in harms."""

import json

import numpy as np
import pytest
from built_site import SITE
from live_head import first_state, number, offered, results
from test_visits import axe

from attnbook.checks import close
from attnbook.checks.tolerances import EXACT
from attnbook.diagnose.causes.mistakes import MISTAKE
from attnbook.diagnose.steps import Steps

FRONT, CHAPTER = "book/intro.html", "chapters/01_a_first_head.html"
RESULTS = ["S", "P", "O", "dP", "D", "dS", "dQ", "dK", "dV"]
GRADS = ("dQ", "dK", "dV")
GOOD = (
    "#head:Q=1,0.5,-0.5,1&K=1,-0.2,0.3,1,-1,0.5&V=1,0,0.2,1,-0.5,-1&dO=1,-0.6,0.4,0.8&scale=2&mask=110111"
    "&wrong={}&at=dK11"
)
SHOWN = """() => Object.fromEntries([...document.querySelectorAll(".live-head table")].map(table => [table.dataset.name,
    [...table.rows].map(row => [...row.cells].map(cell => cell.querySelector("input")?.value ?? cell.textContent))]))"""


@pytest.fixture(scope="module")
def one_tab(browser):
    context = browser.new_context()
    yield context.new_page()
    context.close()


@pytest.fixture
def tab(one_tab, address):
    """The front page in its first state, whose console says nothing of an error."""
    tab, errors = one_tab, []
    listeners = {
        "pageerror": lambda error: errors.append(str(error)),
        "console": lambda message: errors.append(message.text) if message.type == "error" else None,
    }
    tab.set_viewport_size({"width": 1280, "height": 800})
    tab.emulate_media(color_scheme="light")
    if tab.url == address + FRONT:
        tab.get_by_role("button", name="Start again").click()
        near(tab)
    else:
        arrive(tab, address + FRONT)
    for event, listen in listeners.items():
        tab.on(event, listen)
    yield tab
    for event, listen in listeners.items():
        tab.remove_listener(event, listen)
    assert not errors


def arrive(tab, address):
    """Open a page anew, also where only what follows # is another."""
    tab.goto("about:blank")
    tab.goto(address, wait_until="domcontentloaded")
    near(tab)
    tab.locator(".live-head.head-on").wait_for()


def near(tab):
    come = "e => { scrollTo(0, 0); if (e.getBoundingClientRect().top > innerHeight) e.scrollIntoView() }"
    tab.locator(".live-head").evaluate(come)


def field(tab, name):
    return tab.get_by_role("spinbutton", name=name, exact=True)


def shown(tab, name):
    return tab.evaluate(SHOWN)[name]


def said(tab):
    return tab.locator(".head-say").inner_text()


def drawn(n, seed=19):
    """Random numbers of a head, with masks that forbid some keys, and some that forbid all."""
    rng = np.random.default_rng(seed)
    for i in range(n):
        n_k, large = 2 + i % 2, 10.0 ** (i % 5 - 1)
        Q, K, V, dO = (large * rng.normal(size=(rows, 2)) for rows in (2, n_k, n_k, 2))
        mask = rng.random((2, n_k)) < (1.0, 0.7, 0.3)[i % 3]
        yield {"Q": Q, "K": K, "V": V, "dO": dO, "mask": mask, "scale": None if i % 4 else float(rng.normal())}


def asked(tab, inputs, question):
    """What a function of the numbers of a head answers in the page, on each of the inputs."""
    plain = [{name: T.tolist() if isinstance(T, np.ndarray) else T for name, T in one.items()} for one in inputs]
    return json.loads(
        tab.evaluate(
            f"""inputs => JSON.stringify(JSON.parse(inputs).map({question}),
                (_, x) => typeof x === "number" && !Number.isFinite(x) ? String(x) : x)""",
            json.dumps(plain),
        )
    )


# --- what it computes


def test_its_numbers_are_the_packages(tab):
    inputs = list(drawn(300))
    came = asked(
        tab,
        inputs,
        f"""numbers => {{
            const a = liveHead.head(numbers);
            return {{ ...Object.fromEntries({RESULTS}.map(name => [name, a[name]])), L: liveHead.logsumexp(a.S) }};
        }}""",
    )
    assert sum(not one["mask"].any(axis=1).all() for one in inputs) > 30
    for numbers, found in zip(inputs, came, strict=True):
        for name, right in results(**numbers).items():
            finite, there = np.isfinite(right), np.array(found[name], dtype=float)
            assert np.array_equal(there[~finite], right[~finite]), name
            assert close(np.where(finite, there, 0), np.where(finite, right, 0)), name


def of_mistake(slug, numbers):
    """What the catalogue gives, None where its shapes do not fit."""
    try:
        return dict(zip(("O", *GRADS), MISTAKE[slug].run(**numbers), strict=True))
    except ValueError:
        return None


def alike(A, B):
    """Whether two results are one, NaN and ∞ included."""
    A, B = np.asarray(A, dtype=float), np.asarray(B, dtype=float)
    size = max(np.abs(T[np.isfinite(T)]).max(initial=1.0) for T in (A, B))
    return A.shape == B.shape and np.allclose(A, B, rtol=0, atol=EXACT * size, equal_nan=True)


def test_each_mistake_is_that_of_the_catalogue_and_so_is_what_the_tests_say(tab):
    inputs = [*drawn(6), {**next(drawn(1)), "Q": np.full((2, 2), 900.0)}]
    came = asked(
        tab,
        inputs,
        """numbers => Object.entries(liveHead.MISTAKES).map(([slug, wrong]) => {
            const a = liveHead.head(numbers, wrong);
            const results = ["O", "dQ", "dK", "dV"].map(name => [name, liveHead.result(a, name)]);
            const tests = Object.entries(liveHead.TESTS).map(([name, test]) => [name, test(numbers, wrong)]);
            return [slug, Object.fromEntries([...results, ...tests])];
        })""",
    )
    for numbers, of_mistakes in zip(inputs, came, strict=True):
        assert {slug for slug, _ in of_mistakes} == set(offered())
        right = dict(zip(("O", *GRADS), Steps(**numbers).run(), strict=True))
        for slug, found in of_mistakes:
            wanted = of_mistake(slug, numbers)
            if wanted is None:
                assert any(isinstance(found[name], str) for name in GRADS), slug
                continue
            for name, T in wanted.items():
                assert alike(found[name], T), (slug, name)
            grads = {name: wanted[name] for name in GRADS}
            assert found["shapes"] == [name for name in GRADS if grads[name].shape != right[name].shape], slug
            assert found["autograd"] == [name for name in GRADS if not alike(grads[name], right[name])], slug
            if np.abs(numbers["Q"]).max() < 5:  # where a difference has its digits
                assert set(found["random"]) == set(found["autograd"]), slug
                assert set(found["own"]) == set(found["random"]) or not alike(found["O"], right["O"]), slug


# --- before and without the script


@pytest.mark.parametrize("page", [FRONT, pytest.param(CHAPTER, marks=pytest.mark.thorough)])
def test_without_a_script_the_first_state_stands_and_the_script_begins_with_it(page, tab, address, browser):
    context = browser.new_context(java_script_enabled=False)
    still = context.new_page()
    still.goto(address + page)
    cells = {
        table.get_attribute("data-name"): [row.locator("td").all_text_contents() for row in table.locator("tr").all()]
        for table in still.locator(".live-head table").all()
    }
    assert not still.locator(".live-head input, .live-head select").locator("visible=true").count()
    context.close()
    for name in (*RESULTS, "L"):
        assert cells[name] == [[number(x) for x in row] for row in first_state()[name]], name
    arrive(tab, address + page)
    live = tab.evaluate(SHOWN)
    assert live.pop("scale") == [[""]]
    assert cells.pop("scale") == [["1/√2"]]
    assert live == cells


def test_it_needs_no_server(tab):
    arrive(tab, (SITE / FRONT).as_uri())
    field(tab, "V, row 0, column 0").fill("3")
    assert shown(tab, "O")[0][0] == number(first_state()["P"][0] @ [3, 0.2, -0.5])


# --- by hand


def test_by_keyboard(tab):
    first = field(tab, "Q, row 0, column 0")
    first.focus()
    before = shown(tab, "dK")
    tab.keyboard.press("ArrowUp")
    assert first.input_value() == "1.1"
    tab.keyboard.press("Shift+ArrowDown")
    assert first.input_value() == "0.1"
    assert shown(tab, "dK") != before
    tab.locator("table[data-name=mask] button").first.press("Space")
    assert shown(tab, "P")[0][0] == "0.00"
    tab.locator("table[data-name=dQ] button").first.focus()
    for key, entry in (("ArrowRight", "dQ0,1"), ("ArrowRight", "dK0,0"), ("ArrowDown", "dK1,0")):
        tab.keyboard.press(key)
        assert tab.locator(":focus").get_attribute("aria-pressed") == "true"
        assert tab.locator(".head-terms b").first.inner_text() == entry


def test_an_entry_has_its_terms_and_a_difference_quotient_beside_it(tab):
    for name, cell in (("dQ", (1, 0)), ("dK", (2, 1)), ("dV", (0, 1))):
        tab.locator(f"table[data-name={name}] tr").nth(cell[0]).locator("td").nth(cell[1]).hover()
        value = f"{first_state()[name][cell]:.4f}".replace("-", "−")
        assert tab.locator(".head-terms b").all_inner_texts() == [f"{name}{cell[0]},{cell[1]}", value]
        assert tab.locator(".head-quotient b").inner_text() == value
        assert "✓" in tab.locator(".head-quotient").inner_text()
        assert tab.locator("[data-read]").count() == 2 * (3 if name == "dQ" else 2)


def test_no_mistake_breaks_the_figure_and_nothing_stays_of_the_one_before(tab):
    """All of them, at each gradient, with fewer queries than keys and with as many; an error in the page fails it."""
    tab.evaluate(
        """() => {
          const [chosen, square] = document.querySelectorAll(".live-head select, .live-head [type=checkbox]");
          const text = (part) => document.querySelector(`.head-${part}`).textContent;
          for (const gradient of ["dQ", "dK", "dV"]) for (const _ of [0, 1]) {
            square.click();
            document.querySelector(`table[data-name=${gradient}] td button`).click();
            for (const { value, disabled } of chosen.options) {
              if (disabled) continue;
              for (const part of ["terms", "quotient", "verdict"])
                document.querySelector(`.head-${part}`).textContent = "?";
              chosen.value = value;
              chosen.dispatchEvent(new Event("change", { bubbles: true }));
              chosen.dispatchEvent(new Event("input", { bubbles: true }));
              for (const part of ["terms", "quotient", ...(value ? ["verdict"] : [])])
                if (text(part) === "?") throw new Error(`${value}, ${gradient}: ${part} is not shown anew`);
            }
          }
        }"""
    )


def test_a_mistake_and_what_the_tests_say(tab):
    tab.locator(".live-head select").select_option("dv-not-transposed")
    assert said(tab) == "dV cannot be computed: shapes 2×3 and 2×2 do not fit."
    tab.get_by_label("as many keys as queries").check()
    assert said(tab) == ""
    assert verdict(tab, "shapes") == "does not see it"  # equal sizes hide it
    assert verdict(tab, "autograd") == "caught: dV"
    assert tab.locator("table[data-name=dV] td[data-off]").count() == 4
    assert tab.locator(".head-tests a").get_attribute("href").endswith("in_the_wild.html#mistake-dv-not-transposed")
    tab.locator(".live-head select").select_option("dead-row-nan")
    for toggle in tab.locator("table[data-name=mask] tr").first.locator("button:visible").all():
        toggle.click()
    assert shown(tab, "dQ")[0] == ["NaN", "NaN"]
    assert verdict(tab, "random") == "caught: dQ, dK, dV"


def verdict(tab, test):
    return tab.locator(f"[data-test={test}]").get_attribute("data-verdict")


def drag(tab, name, by):
    box = field(tab, name).bounding_box()
    tab.mouse.move(box["x"] + 10, box["y"] + 10)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 10 + by / 2, box["y"] + 10)
    tab.mouse.move(box["x"] + 10 + by, box["y"] + 10)
    tab.mouse.up()


def test_a_drag_changes_a_number_and_a_press_enters_the_field(tab):
    for by, value in ((40, "1.5"), (-80, "0.5")):
        drag(tab, "Q, row 0, column 0", by)
        assert field(tab, "Q, row 0, column 0").input_value() == value
    drag(tab, "Q, row 0, column 1", 0)
    tab.keyboard.type("−2.5")
    assert field(tab, "Q, row 0, column 1").input_value() == "−2.5"
    assert shown(tab, "S")[0][0] == number((0.5 + 0.5) / 2**0.5)


def test_by_touch_on_a_phone(browser, address):
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    tab = context.new_page()
    tab.goto(address + FRONT)
    box = field(tab, "Q, row 0, column 0").bounding_box()
    touch = context.new_cdp_session(tab)
    for kind, x in (("touchStart", 10), ("touchMove", 30), ("touchMove", 60), ("touchMove", 90), ("touchEnd", None)):
        points = [] if x is None else [{"x": box["x"] + x, "y": box["y"] + 10}]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    tab.wait_for_function("e => e.value > 1.4", arg=field(tab, "Q, row 0, column 0").element_handle())
    tab.locator("table[data-name=dV] button").first.tap()
    tab.locator(".head-terms b", has_text="dV0,0").wait_for()
    context.close()


# --- what comes in


NO_NUMBERS = {
    "NaN": "“NaN”, which is not a number", "": "is empty", "1,5": "a point", "1e400": "beyond", "1/0": "divides by 0",
}  # fmt: skip


def test_what_is_no_number_keeps_its_text_and_the_results_stay(tab):
    before, entry = tab.evaluate(SHOWN), field(tab, "Q, row 1, column 0")
    tab.locator("table[data-name=dK] button").first.click()
    for text, why in NO_NUMBERS.items():
        entry.fill(text)
        assert entry.get_attribute("aria-invalid") == "true"
        assert said(tab).startswith("Q, row 1, column 0 is")
        assert why in said(tab)
        assert said(tab).endswith(" The results are those of −0.5 there.")
        after = tab.evaluate(SHOWN)
        assert after.pop("Q")[1][0] == text
        assert after.items() <= before.items()
    entry.fill("2")
    assert entry.get_attribute("aria-invalid") is None
    assert said(tab) == ""
    assert tab.evaluate(SHOWN)["S"] != before["S"]


def test_a_scale_may_be_written_with_a_root(tab):
    entry, root = field(tab, "scale"), str(2**-0.5)[:10]
    for text, value in {"0.5": "0.5", "sqrt(4)": "2", "": root, "1/3": "0.333333", "1 / √2": root}.items():
        entry.fill(text)
        assert said(tab) == ""
        assert entry.get_attribute("aria-valuenow").startswith(value), text
        assert shown(tab, "S")[1][0] == number((-0.5 * 1 - 1 * 0.2) * float(entry.get_attribute("aria-valuenow")))


PASTE = """([e, text]) => {
    const clipboardData = new DataTransfer();
    clipboardData.setData("text", text);
    e.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
}"""


def test_a_matrix_can_be_pasted_and_one_of_another_size_changes_nothing(tab):
    entry = field(tab, "K, row 0, column 0")
    before = tab.evaluate(SHOWN)
    for text, why in (
        ("[[1, 2], [3, 4]]", "takes 3×2 numbers, and this is 2×2"),
        ("[[1, 2], [3, nan], [5, 6]]", "“nan”"),
    ):
        tab.evaluate(PASTE, [entry.element_handle(), text])
        assert said(tab).startswith("Nothing was pasted: K ")
        assert why in said(tab)
        assert tab.evaluate(SHOWN) == before
    for text in ("array([[ 1. , -2. ],\n       [ 3. ,  4. ],\n       [ 0.5,  6. ]])", "1\t-2\n3\t4\n.5\t6\n"):
        field(tab, "K, row 0, column 0").fill("0")
        tab.evaluate(PASTE, [entry.element_handle(), text])
        assert shown(tab, "K") == [["1", "−2"], ["3", "4"], ["0.5", "6"]]


def test_a_link_holds_a_state(tab, address):
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    field(tab, "scale").fill("0.3")
    field(tab, "dO, row 1, column 1").fill("−7.25")
    tab.locator("table[data-name=mask] button").nth(4).click()
    tab.locator(".live-head select").select_option("ds-mean")
    tab.locator("table[data-name=dK] button").nth(3).click()
    before = tab.evaluate(SHOWN)
    tab.get_by_role("button", name="Copy a link to this").click()
    tab.wait_for_function("document.querySelector('.head-say').textContent.startsWith('Copied')")
    link = tab.evaluate("navigator.clipboard.readText()")
    tab.get_by_role("button", name="Start again").click()
    assert tab.evaluate(SHOWN) != before
    for page in (link, link.replace(FRONT, CHAPTER).replace(",", "%2C")):
        arrive(tab, page)
        assert tab.evaluate(SHOWN) == before
        assert tab.locator(".live-head select").input_value() == "ds-mean"
        assert tab.locator(".head-terms b").first.inner_text() == "dK1,1"
        assert said(tab) == "These are the numbers of the link."


def test_a_link_that_holds_no_state_changes_nothing_and_says_why(tab, address):
    good, before = GOOD.format(""), tab.evaluate(SHOWN)
    for change, why in BAD_LINKS:
        bad = good.replace(*change)
        assert bad != good
        tab.evaluate("hash => { document.querySelector('.head-say').textContent = ''; location.hash = hash }", bad)
        tab.wait_for_function("document.querySelector('.head-say').textContent")
        assert said(tab).startswith("The link holds no state of this head: "), change
        assert why in said(tab), change
        assert tab.evaluate(SHOWN) == before


BAD_LINKS = [
    (("Q=1,0.5,-0.5,1", "Q=1,0.5,-0.5"), "its Q has 3 numbers, not 4"),
    (("Q=1,", "Q=NaN,"), "an entry of Q is “NaN”"),
    (("mask=110111", "mask=11011"), "its mask has 5 entries"),
    (("wrong=", "wrong=__proto__"), "its parts"),
    (("&scale=2", ""), "its parts"),
    (("Q=1,", "Q=" + "0" * 900 + "1,"), "too long"),
    (("Q=1,", "Q=%E0%A4%A,"), "which is not a number"),
]


# --- how it looks


def test_it_fits_a_phone_and_axe_finds_nothing_where_a_mistake_is_made(tab, address):
    arrive(tab, address + FRONT + GOOD.format("dk-transposed"))
    for width in (390, 320):
        tab.set_viewport_size({"width": width, "height": 844})
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.locator(".live-head").evaluate("e => e.scrollWidth <= e.clientWidth")
    looks = {"runOnly": ["color-contrast", "target-size", "aria-valid-attr-value"]}
    for theme, text in (("light", "NaN"), ("dark", "1")):
        tab.emulate_media(color_scheme=theme)
        tab.wait_for_function("theme => document.documentElement.dataset.theme === theme", arg=theme)
        field(tab, "Q, row 0, column 0").fill(text)
        assert not axe(tab, ".live-head", **looks)


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_first_screen(width, height, tab):
    tab.set_viewport_size({"width": width, "height": height})
    arrive(tab, tab.url)
    for part in (".first-steps a >> nth=2", "table[data-name=Q]", "table[data-name=dS] caption"):
        box = tab.locator(part).bounding_box()
        assert box["y"] + box["height"] <= height, part
