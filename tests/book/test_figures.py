"""Figures: valid SVG, the same each time, with alt text, in colours that the page decides."""

import json
import re
from functools import partial
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from bs4 import BeautifulSoup

from attnbook.attention import attention, attention_vjp
from attnbook.figures import (
    Control,
    Figure,
    Shape,
    State,
    arrows,
    flow,
    interactive,
    jacobian,
    loss_scales,
    masked_gradients,
    matrices,
    plot,
    programs,
    score_shapes,
    visits,
    whole_head,
)
from attnbook.figures.matrices import fill, grid
from attnbook.figures.plots import STAND_INS
from attnbook.figures.svg import PALETTE, document, number, text
from attnbook.ops import Causal, Mask
from attnbook.softmax import softmax, softmax_jacobian
from evidence.formats import FORMATS, rounded

ROOT = Path(__file__).parents[2]
ALT = 'Weights "P" & scores, n < m'


def draw_curves(axes):
    axes.plot([0, 1, 2], [0, 1e-4, 3e-4], label="error <1>")
    axes.plot([0, 1, 2], [3e-4, 1e-4, 0], label="b & c")
    axes.set_title("h = 0.125")
    axes.set_yticks([0, 0.000125])
    axes.legend()


FIGURES = {
    "matrices": lambda: matrices({"P": np.eye(2, 3), "p": [0.5, -0.25]}, alt=ALT, between=["<"], rows=["a", "b"]),
    "arrows": lambda: arrows(
        np.array([1.5, 0.5]), np.eye(3, 2), np.array([[2.0], [0], [1]]), np.array([1.0]), grow=1.5, alt=ALT
    ),
    "flow": lambda: flow({"S": (0, 0), "P\nweights": (1, 0.5)}, [("S", "P\nweights", "softmax")], alt=ALT),
    "plot": lambda: plot(draw_curves, alt=ALT),
    "programs": lambda: programs([Causal()], n_q=5, n_k=7, rows=2, cols=3, alt=ALT),
    "score shapes": lambda: score_shapes(
        {"S": Shape(np.eye(2, 3)), "M": Shape([[0, -np.inf]], dropped=np.array([[True, False]]), sink=-1)}, alt=ALT
    ),
    "two panels": lambda: plot(lambda axes: [draw_curves(ax) for ax in axes], alt=ALT, panels=2),
}
each_figure = pytest.mark.parametrize("make", FIGURES.values(), ids=FIGURES)


@each_figure
def test_it_is_xml_and_holds_no_broken_number(make):
    root = ElementTree.fromstring(make().svg)
    assert root.tag.endswith("svg")
    assert root.get("aria-hidden") == "true"
    values = [value for element in root.iter() for value in element.attrib.values()]
    assert not [value for value in values if re.search(r"\b(nan|inf)\b", value)]


@each_figure
def test_it_is_the_same_each_time(make):
    assert make().svg == make().svg


@each_figure
def test_its_colours_are_those_of_the_page(make):
    svg = make().svg
    assert not [stand_in for stand_in in STAND_INS.values() if stand_in in svg]
    for colour in PALETTE.values():
        svg = svg.replace(colour, "")
    assert not re.findall(r"(?:fill|stroke)[=:]\s*\"?#", svg)


@each_figure
def test_its_alt_text_is_read_out_and_printed(make):
    figure = make()
    assert repr(figure) == f"Figure: {ALT}"
    shown = ElementTree.fromstring(figure._repr_html_())
    assert shown.get("aria-label") == ALT
    assert shown.get("role") == "img"


NAMED = re.findall(r"`(fig-[\w-]+)`", (ROOT / "book/teaching.md").read_text(encoding="utf-8"))


def drawn_in_a_chapter(name):
    (svg,) = [
        html[html.index("<svg") :]
        for path in sorted((ROOT / "chapters").glob("*.ipynb"))
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        for output in cell.get("outputs", [])
        if f'<figure id="{name}">' in (html := "".join(output.get("data", {}).get("text/html", "")))
    ]
    return Figure(svg, ALT)


@pytest.mark.parametrize(
    "make",
    [
        *FIGURES.values(),
        lambda: whole_head(alt=ALT),
        lambda: matrices({"P": np.eye(2, 3), "dP": np.eye(2, 3)}, alt=ALT, stack=True),
        *(partial(drawn_in_a_chapter, name) for name in NAMED),
    ],
    ids=[*FIGURES, "whole head", "stacked", *NAMED],
)
def test_saved_it_stands_alone(make, tmp_path):
    path = tmp_path / "figure.svg"
    make().save(path)
    root = ElementTree.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.get("display") is None
    assert len(list(root.iter())) > 5
    assert not re.search("var\\(|currentColor|inherit", path.read_text(encoding="utf-8"))


def test_a_saved_one_is_whole_where_it_holds_others(tmp_path):
    figure = Figure(document(9, 9, document(1, 1, "<g/>") + text(1, 1, "last")) + document(2, 2, "second"), ALT)
    figure.save(tmp_path / "figure.svg")
    assert "".join(ElementTree.parse(tmp_path / "figure.svg").getroot().itertext()) == "last"


def test_a_caption_stands_below_with_a_name_to_call_it_by():
    figure = FIGURES["matrices"]().captioned("fig-x", "Weights, n < m")
    shown = ElementTree.fromstring(figure._repr_html_())
    assert shown.get("id") == "fig-x"
    picture, caption = shown
    assert picture.get("aria-label") == ALT
    assert caption.text == "Weights, n < m"
    assert repr(figure) == f"Figure: {ALT}"


def words(figure):
    return [
        "".join(element.itertext()) for element in ElementTree.fromstring(figure.svg).iter() if "text" in element.tag
    ]


def test_matrices_stand_one_below_the_other_on_a_phone():
    named = {"P": np.eye(2, 3), "dP": np.full((2, 5), 0.25)}
    figure = matrices(named, alt=ALT, rows=["a", "b"], stack=True)
    wide, tall, _ = ElementTree.fromstring(f"<all>{figure.svg}</all>")
    in_wide, in_tall = (sorted(picture.itertext()) for picture in (wide, tall))
    assert in_tall == sorted([*in_wide, "a", "b"])  # each with the labels of its rows
    assert float(wide.get("width")) > 358 > float(tall.get("width"))


def test_matrices_show_names_shapes_and_numbers():
    T = np.array([[0.5, -0.25, 0.001], [np.nan, -np.inf, np.inf]])
    shown = words(matrices({"S": T, "empty": np.zeros((0, 2))}, alt=ALT, rows=["q1", "q2"], cols=["a", "b", "c"]))
    assert shown == ["S  2×3", "a", "b", "c", "q1", "q2", "0.50", "−0.25", "0.00", "NaN", "−∞", "∞", "", "empty  0×2"]
    assert words(matrices({"M": [[2, 0]]}, alt=ALT, digits=0)) == ["M  1×2", "2", "0"]


def test_matrices_are_blue_above_zero_orange_below_and_empty_or_grey_at_zero():
    def fills(T, **options):
        return re.findall(r'<rect [^>]*?(?:fill="([^"]+)"[^>]*)? stroke=', matrices({"A": T}, alt=ALT, **options).svg)

    assert fills([1, -1, 0]) == [PALETTE["blue"], PALETTE["orange"], ""]
    assert fills([1, 1e-9, 0], grey_zeros=True) == [PALETTE["blue"], "", PALETTE["grey"]]


def test_the_largest_number_of_a_matrix_has_the_deepest_colour_beside_infinity_too():
    assert re.findall(r'fill-opacity="([^"]+)"', matrices({"A": [2, 1, -np.inf, np.nan]}, alt=ALT).svg) == [
        "0.45",
        "0.23",
    ]


def test_score_shapes_say_forbidden_dropped_and_sink_without_a_colour():
    plain, shape = Shape([[1.0, 2.0]]), Shape([[1.0, -np.inf]], dropped=np.array([[True, False]]), sink=-1.0)
    svg = score_shapes({"plain": plain}, alt=ALT).svg
    assert ("<circle" in svg, "<path" in svg, PALETTE["purple"] in svg) == (False, False, False)
    svg = score_shapes({"plain": plain, "all": shape}, alt=ALT).svg
    assert (svg.count("<circle"), svg.count("<path"), svg.count(PALETTE["purple"])) == (1, 1, 1)
    assert svg.count("<rect") == 5


def test_a_common_scale_compares_matrices():
    def depths(**options):
        return re.findall(r'fill-opacity="([^"]+)"', matrices({"A": [1.0], "B": [2.0]}, alt=ALT, **options).svg)

    assert depths() == ["0.45", "0.45"]
    assert depths(common_scale=True) == ["0.23", "0.45"]


def test_flow_shows_boxes_and_labels():
    assert words(FIGURES["flow"]()) == ["softmax", "S", "P", "weights"]


def test_plot_keeps_the_digits_of_its_labels():
    shown = words(FIGURES["plot"]())
    assert {"h = 0.125", "0.000125", "error <1>"} <= set(shown)


def test_plot_leaves_matplotlib_as_it_was():
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    FIGURES["plot"]()
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize(
    ("x", "shown"),
    [(0, "0"), (-0.0, "0"), (-0.001, "0"), (1, "1"), (100, "100"), (0.5, "0.5"), (-1.239, "-1.24"), (1e3, "1000")],
)
def test_numbers_are_short(x, shown):
    assert number(x) == shown


def test_text_is_escaped():
    assert ElementTree.fromstring(text(0, 0, "<&>")).text == "<&>"


def mixed():
    """Two controls; a text, an attribute that goes away, and one that a state mentions only where it differs."""
    controls = [Control("Mask", ("none", 'a "<" b'), kind="radio"), Control("Step", (1, 2, 3), start=1)]
    marks = '<rect data-part="r" data-choose="Mask:1, Step:2" fill="red"/><rect data-part="s" stroke="red"/>'
    svg = document(9, 9, text(1, 1, "?", part="t") + marks)
    states = [
        State(
            {"t": {"text": f"<{m}{n}>", "x": m / 3, "y": 1}, "r": {"fill": None if m else "red"}}
            | ({"s": {"stroke": "blue"}} if n == 2 else {}),
            f"Mask {m} & step {n}",
        )
        for m in range(2)
        for n in range(3)
    ]
    return svg, controls, states


def read(figure):
    """The page's element, the parts of the first picture, and the states, as a browser would find them."""
    html = BeautifulSoup(figure._repr_html_(), "html.parser").figure
    return html, {e["data-part"]: e for e in html.select("svg [data-part]")}, json.loads(html.script.string)


def at(figure, *positions):
    """What a browser shows with the controls there: (part, attribute) to value, for all that changes."""
    html, _, data = read(figure)
    controls = html.form.find_all(["div", "fieldset"], recursive=False)
    sizes = [int(c.input["max"]) + 1 if c.input["type"] == "range" else len(c.find_all("input")) for c in controls]
    return {
        (name, key): data["values"][
            places[np.ravel_multi_index([positions[a] for a in axes], [sizes[a] for a in axes])]
        ]
        for name, key, axes, places in data["parts"]
    }


class TestInteractive:
    """Controls, the first picture, and for every state what differs from it."""

    def test_the_first_picture_is_the_state_where_the_controls_start(self):
        html, parts, _ = read(interactive(*mixed(), alt=ALT))
        assert parts["t"].string == "<01>"
        assert parts["s"]["stroke"] == "red"
        assert html.p.string == "Mask 0 & step 1"
        assert html.p["aria-live"] == "polite"
        assert html["aria-label"] == ALT

    def test_a_value_is_stored_once_for_the_controls_that_it_depends_on(self):
        _, _, data = read(interactive(*mixed(), alt=ALT))
        values = {(name, key): (axes, [data["values"][p] for p in places]) for name, key, axes, places in data["parts"]}
        assert values == {
            ("", "text"): ([0, 1], [f"Mask {m} & step {n}" for m in range(2) for n in range(3)]),
            ("t", "text"): ([0, 1], ["<00>", "<01>", "<02>", "<10>", "<11>", "<12>"]),
            ("t", "x"): ([0], ["0", "0.33"]),
            ("r", "fill"): ([0], ["red", None]),
            ("s", "stroke"): ([1], ["red", "red", "blue"]),
        }
        assert len(set(data["values"])) == len(data["values"])

    def test_what_a_state_does_not_mention_is_as_drawn_even_if_the_first_picture_changes_it(self):
        svg = document(9, 9, '<rect data-part="a" fill="none"/><rect data-part="b"/>')
        states = [State({"a": {"fill": "red"}, "b": {"x": 1}}, ""), State({}, ""), State({"a": {"fill": "red"}}, "")]
        _, parts, data = read(interactive(svg, [Control("Step", (0, 1, 2))], states, alt=ALT))
        assert parts["a"]["fill"] == "red"
        assert data == {
            "values": ["red", "none", "1", None],
            "parts": [["a", "fill", [0], [0, 1, 0]], ["b", "x", [0], [2, 3, 3]]],
        }

    def test_controls_are_native_hidden_and_say_where_they_stand(self):
        html, _, _ = read(interactive(*mixed(), alt=ALT))
        assert html.form.has_attr("hidden")
        assert html.legend.string == "Mask"
        radios = html.select("fieldset label")
        assert [label.get_text().strip() for label in radios] == ["none", 'a "<" b']
        assert [label.input.has_attr("checked") for label in radios] == [True, False]
        slider = html.select_one("input[type=range]")
        wanted = {"min": "0", "max": "2", "value": "1", "aria-valuetext": "2", "data-values": '["1", "2", "3"]'}
        assert wanted.items() <= slider.attrs.items()
        assert slider.parent.get_text().strip() == "Step"

    def test_its_pictures_are_what_svg_files_hold(self):
        svg, controls, states = mixed()
        figure = interactive(svg + document(5, 5, ""), controls, states, alt=ALT)
        assert figure.svg.count('<svg xmlns="http://www.w3.org/2000/svg"') == 2
        assert figure._repr_html_() == interactive(svg + document(5, 5, ""), controls, states, alt=ALT)._repr_html_()
        assert repr(figure) == f"Figure: {ALT}"

    def test_a_word_that_ends_the_data_does_not_end_it(self):
        svg, controls, states = mixed()
        figure = interactive(svg, controls, [*states[:5], State({}, "</script>")], alt=ALT)
        assert figure._repr_html_().count("</script>") == 1
        assert "</script>" in read(figure)[2]["values"]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda svg, controls, states: (svg, controls, states[:5]), "states: 6 are needed.*but 5 came"),
            (
                lambda svg, controls, states: (svg, controls, [*states[:5], State({"q": {}}, "")]),
                "states: no element.*'q'",
            ),
            (lambda svg, controls, states: (svg + svg, controls, states), "svg: data-part='r' stands at more"),
            (lambda svg, controls, states: (svg.replace("Step:2", "Step:3"), controls, states), "svg: .*'Step:3'"),
            (lambda svg, controls, states: (svg, controls * 2, states), "controls: names differ"),
            (lambda svg, controls, states: (svg, [Control("a", (1,), start=1)], states), "controls: a has 1 positions"),
            (lambda svg, controls, states: (svg, [Control("a", (1,), kind="knob")], states), "controls: .*'knob'"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, change, message):
        with pytest.raises(ValueError, match=message):
            interactive(*change(*mixed()), alt=ALT)


def test_a_grid_is_filled_like_matrices():
    T = np.array([[2.0, -1.0, 0.0], [0.001, np.nan, -np.inf]])
    step = Control("Step", (1,))
    drawn = document(9, 9, grid("T", 2, 3, choose=lambda i, j: "Step:0"))
    _, parts, _ = read(interactive(drawn, [step], [State(fill("T", T), "")], alt=ALT))
    assert [parts[f"T {i} {j} n"].get_text() for i in range(2) for j in range(3)] == [
        "2.00",
        "−1.00",
        "0",
        "0.00",
        "NaN",
        "−∞",
    ]
    depths = [parts[f"T {i} {j}"].get("fill-opacity") for i in range(2) for j in range(3)]
    assert depths == ["0.45", "0.23", "0", "0", "0", "0"]
    assert [parts[f"T 0 {j}"]["fill"] for j in range(2)] == [PALETTE["blue"], PALETTE["orange"]]
    assert fill("T", [1.0], largest=2)["T 0 0"]["fill-opacity"] == "0.23"
    assert fill("T", [9.0], largest=2)["T 0 0"]["fill-opacity"] == "0.45"


class TestJacobian:
    """The softmax of one row and its Jacobian, while one score and the temperature move."""

    temperatures = (0.25, 1, 8)

    def drawn(self):
        return jacobian([2, 1, 0], moving=1, values=[-2, 2], temperatures=self.temperatures, start=(1, 1), alt=ALT)

    def test_each_position_shows_the_numbers_of_the_package(self):
        for (i, value), (k, tau) in product(enumerate([-2, 2]), enumerate(self.temperatures)):
            p = softmax(np.array([2, value, 0]) / tau)
            shown = at(self.drawn(), i, k)
            assert [shown[f"p {j} n", "text"] for j in range(3)] == [f"{weight:.3f}" for weight in p]
            numbers = [[float(shown[f"J {j} {l} n", "text"].replace("−", "-")) for l in range(3)] for j in range(3)]
            np.testing.assert_allclose(numbers, softmax_jacobian(p), atol=5.1e-4)

    def test_its_sentence_says_what_happens(self):
        def said(*positions):
            return at(self.drawn(), *positions)["", "text"]

        assert said(0, 0).startswith("Saturated: key 0 has 100.0 % of the weight")
        assert said(1, 0).startswith("Keys 0 and 1 have nearly all of the weight")
        assert said(1, 0).endswith("at most 0.500 of a gradient's length.")
        assert said(1, 1).startswith(
            "Raise the score of key 0: it gains weight at the rate 0.249, the others lose 0.219 +"
        )
        assert said(1, 2).startswith("Nearly equal weights: ")
        assert read(self.drawn())[0].p.string == said(1, 1)


HEAD = [np.random.default_rng(3).normal(size=shape) for shape in ((3, 2), (4, 2), (4, 5), (3, 5))]  # Q, K, V, dO
MASKS = {
    "none": np.ones((3, 4), dtype=bool),
    "causal": np.tri(3, 4, dtype=bool),
    "no key for query 1": np.tile(np.array([[True], [False], [True]]), 4),
}


class TestMaskedGradients:
    """What becomes exactly 0 under each mask, and why, in words."""

    everything, queries, keys = 0, 1, 4  # where the slider's positions begin

    def drawn(self):
        return masked_gradients(*HEAD, MASKS, start=1, alt=ALT)

    def test_its_numbers_are_those_of_the_package(self):
        *inputs, dO = HEAD
        for m, M in enumerate(MASKS.values()):
            shown = at(self.drawn(), m, 0)
            _, res = attention(*inputs, mask=M)
            g = attention_vjp(dO, res)
            for name, T in {"P": res.P, "dQ": g.dQ, "dK": g.dK, "dV": g.dV}.items():
                for place, value in np.ndenumerate(T):
                    text = shown.get((f"{name} {place[0]} {place[1]} n", "text"), f"{value:.2f}")
                    assert abs(float(text.replace("−", "-")) - value) < 0.0051
                    grey = shown.get((f"{name} {place[0]} {place[1]}", "fill")) == PALETTE["grey"]
                    assert grey == (text == "0") == (value == 0)

    def test_it_says_what_is_zero_and_why(self):
        def said(mask, look):
            return at(self.drawn(), mask, look)["", "text"]

        assert said(0, self.everything) == "none: every query sees every key, and no number is exactly 0."
        seen = said(1, self.everything)
        assert "6 of 12 pairs" in seen
        assert "One key only for query 0" in seen
        assert "Nobody sees key 3" in seen
        assert "No key for query 1" in said(2, self.everything)
        assert said(1, self.queries).startswith("Query 0 sees key 0 only.")
        assert said(2, self.queries + 1).startswith("Query 1 sees no key.")
        assert re.search(r"keys 0, 1 and 2.*dQ = scale · \(.* K₀ [+−] .* K₁ [+−] .* K₂\)", said(1, self.queries + 2))
        assert said(1, self.keys + 3).startswith("Nobody sees key 3.")
        assert re.search(r"queries 0, 1 and 2. dK = scale · \(.*Q₁ [+−] .*Q₂\); dV = 1.00 dO₀ \+ .* dO₂", said(1, 4))

    def test_a_key_whose_score_never_matters_gets_no_dK_and_a_dV(self):
        figure = masked_gradients(*HEAD, {"first": np.tile(np.arange(4) == 0, (3, 1))}, alt=ALT)
        assert at(figure, 0, self.keys)["", "text"].endswith(
            "dK = 0: no score of it matters; dV = 1.00 dO₀ + 1.00 dO₁ + 1.00 dO₂."
        )

    def test_a_frame_stands_where_the_slider_looks(self):
        def framed(look):
            return {
                of for of in ("P", "dS", "dQ", "dK", "dV") if not at(self.drawn(), 1, look)[f"{of} frame", "visibility"]
            }

        assert framed(self.everything) == set()
        assert framed(self.queries + 1) == {"P", "dS", "dQ"}
        assert framed(self.keys + 1) == {"P", "dS", "dK", "dV"}
        widths = [at(self.drawn(), 1, look)["P frame", "width"] for look in (self.queries, self.keys)]
        assert widths == ["168", "42"]


class TestLossScales:
    """What a scale saves and what it breaks, by the format's own rounding."""

    powers = (0, 10, 20)

    def drawn(self):
        def backward(dO, r):
            return {"dS": r(dO), "dQ": r(2 * r(dO))}

        sizes = 2.0 ** np.array([-26, -25, -20, -5, 0])  # in float16: 0, 0 (a tie), fewer bits, kept, kept
        formats = {name: FORMATS[name] for name in ("float16", "bfloat16")}
        return loss_scales(backward, sizes, self.powers, formats, rounded, alt=ALT)

    def test_it_says_what_becomes_of_each_gradient(self):
        fates = [[at(self.drawn(), 0, k)[f"{of} fate", "text"] for of in ("dS", "dQ")] for k in range(3)]
        assert fates == [
            ["40% is 0, 20% has fewer bits"] * 2,
            ["40% has fewer bits", "20% has fewer bits"],
            ["∞ or NaN"] * 2,
        ]
        assert {at(self.drawn(), 1, k)["dS fate", "text"] for k in range(3)} == {"kept"}

    def test_its_sentence_says_what_to_do(self):
        said = [at(self.drawn(), f, k)["", "text"] for f in range(2) for k in range(3)]
        assert said[0] == "float16, scale 1: 40% of dS is 0, and dQ is off by 0.0%. A larger scale would save it."
        assert said[1].startswith("float16, scale 2¹⁰: dQ is off by 0.0%. Some entries lie below the normal numbers")
        assert said[2] == "float16, scale 2²⁰: too much for dS, dQ. Throw this step away, and halve the scale."
        assert said[3].startswith("bfloat16, scale 1: every entry keeps all its bits.")

    def test_the_scale_moves_the_sizes_and_the_format_the_range(self):
        moved = [at(self.drawn(), 0, k)["dS", "transform"] for k in range(3)]
        assert moved == ["translate(0 0)", "translate(47 0)", "translate(94 0)"]
        widths = [float(at(self.drawn(), 0, 0)[f"{band} 0", "width"]) for band in ("0", "fewer bits", "∞")]
        np.testing.assert_allclose(widths, [23 * 4.7, 11 * 4.7, 8 * 4.7], atol=0.01)
        assert {at(self.drawn(), 1, 0)[f"{band} 0", "width"] for band in ("0", "fewer bits", "∞")} == {"0"}


class TestVisits:
    """Tiles to step through: the ones that the ops leave alive, in order, and words for each step."""

    def drawn(self):
        padded = Mask(np.arange(7)[None] < 3)
        cases = {"none": [], "causal <": [Causal()], "pad": [padded]}
        return visits(cases, n_q=7, n_k=7, rows=3, cols=3, alt=ALT)

    def test_it_draws_the_live_tiles_of_each_case(self):
        html = self.drawn()._repr_html_()
        boxes = html.split('class="visits-case"')[1:]
        assert [box.count("<g data-part=") for box in boxes] == [9, 6, 3]
        assert "Tile 6 of 6: queries 6 to 6, keys 6 to 6." in boxes[1]
        assert "tile 6 of 6" in boxes[1]
        assert "causal &lt;: 6 of 9 tiles are visited" in boxes[1]

    def test_its_pictures_are_xml_that_screen_readers_pass_over(self):
        for svg in re.findall(r"<svg.*?</svg>", self.drawn()._repr_html_()):
            assert ElementTree.fromstring(svg).get("aria-hidden") == "true"

    def test_it_says_what_it_shows_and_is_the_same_each_time(self):
        assert repr(self.drawn()) == f"Figure: {ALT}"
        assert self.drawn()._repr_html_() == self.drawn()._repr_html_()
        assert 'aria-label="Weights &quot;P&quot; &amp; scores, n &lt; m"' in self.drawn()._repr_html_()


def test_programs_walk_through_the_blocks_that_a_mask_leaves():
    svg = programs([Causal()], n_q=48, n_k=64, rows=16, cols=16, alt=ALT).svg
    tables, legend = svg.split(">whole<")[0], 1
    assert tables.count('fill-opacity="0.4"') - legend == 2 * 3  # below the diagonal
    assert tables.count("stroke-dasharray") == 2 * 3  # on it
    assert svg.count('stroke-opacity="0.5"') - legend == 2 * 6
    assert svg.count("<polygon") == 3 + 3  # the fourth block of keys has no program that walks
    whole = programs([], n_q=48, n_k=64, rows=16, cols=16, alt=ALT).svg
    assert "stroke-dasharray" not in whole.split(">whole<")[0]
    assert whole.count("<polygon") == 3 + 4
    both = programs([Causal()], n_q=48, n_k=64, rows=16, cols=16, alt=ALT, stack=True).svg
    wide, tall = both.split('<svg class="ab-tall"')
    assert wide.count("<polygon") == tall.count("<polygon") == 3 + 3
    assert (re.search(r'width="(\d+)"', wide)[1], re.search(r'width="(\d+)"', tall)[1]) == ("372", "336")
