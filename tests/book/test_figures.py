"""Figures: valid SVG, the same each time, with alt text, in colours that the page decides.

What they look like and say, each number of it, stands in the chapters, and nbval compares it with what is drawn today.
"""

import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from bs4 import BeautifulSoup

from attnbook.figures import (
    Control,
    Shape,
    State,
    arrows,
    flow,
    head_steps,
    input_paths,
    interactive,
    matrices,
    plot,
    programs,
    score_shapes,
    touches,
    whole_head,
)
from attnbook.figures.plots import STAND_INS
from attnbook.figures.svg import PALETTE, document, text
from attnbook.ops import Causal

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


@pytest.mark.parametrize("make", FIGURES.values(), ids=FIGURES)
def test_it_is_xml_the_same_each_time_in_the_page_s_colours_with_its_alt_text_and_saved_stands_alone(make, tmp_path):
    figure, again = make(), make()
    root = ElementTree.fromstring(figure.svg)
    assert (root.tag.rpartition("}")[2], root.get("aria-hidden")) == ("svg", "true")
    values = [value for element in root.iter() for value in element.attrib.values()]
    assert not [value for value in values if re.search(r"\b(nan|inf)\b", value)]
    assert figure._repr_html_() == again._repr_html_()
    bare = figure.svg
    assert not [stand_in for stand_in in STAND_INS.values() if stand_in in bare]
    for colour in PALETTE.values():
        bare = bare.replace(colour, "")
    assert not re.findall(r"(?:fill|stroke)[=:]\s*\"?#", bare)
    assert repr(figure) == f"Figure: {ALT}"
    shown = ElementTree.fromstring(figure._repr_html_())
    assert (shown.get("aria-label"), shown.get("role")) == (ALT, "img")
    figure.save(tmp_path / "figure.svg")
    saved = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert not re.search("var\\(|currentColor|inherit", saved)


def test_of_the_two_forms_of_the_whole_head_the_wide_one_is_saved(tmp_path):
    whole_head(alt=ALT).save(tmp_path / "figure.svg")
    assert ElementTree.parse(tmp_path / "figure.svg").getroot().get("display") is None


def test_a_plot_leaves_matplotlib_as_it_was_and_keeps_the_digits_of_its_labels():
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    svg = ElementTree.fromstring(FIGURES["plot"]().svg)
    assert {"h = 0.125", "0.000125", "error <1>"} <= {"".join(element.itertext()) for element in svg.iter()}
    assert dict(mpl.rcParams) == before


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


class TestInteractive:
    """What the chapters show of it, nbval compares, and test_controls uses."""

    def test_a_word_that_ends_the_data_does_not_end_it(self):
        svg, controls, states = mixed()
        figure = interactive(svg, controls, [*states[:5], State({}, "</script>")], alt=ALT)
        assert figure._repr_html_().count("</script>") == 1
        script = BeautifulSoup(figure._repr_html_(), "html.parser").figure.script
        assert "</script>" in json.loads(script.string)["values"]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda svg, controls, states: (svg, controls, states[:5]), "states: 6 are needed.*but 5 came"),
            (lambda svg, controls, states: (svg, controls, [*states[:5], State({"q": {}}, "")]), "no element.*'q'"),
            (lambda svg, controls, states: (svg + svg, controls, states), "svg: data-part='r' stands at more"),
            (lambda svg, controls, states: (svg.replace("Step:2", "Step:3"), controls, states), "svg: .*'Step:3'"),
            (lambda svg, controls, states: (svg, controls * 2, states), "controls: names differ"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, change, message):
        with pytest.raises(ValueError, match=message):
            interactive(*change(*mixed()), alt=ALT)


# --- of one head: sums come out, and formulas are those of the package -----------------------------------------------

rng = np.random.default_rng(11)
ROUND = [
    np.log(2) * np.array([[1, -1, -2, -2], [1, -2, -2, 2]]),
    np.array([[2.0, 2, -1, 0], [0, 2, -2, 0], [0, -2, 0, 1]]),
    np.array([[3.0], [1], [-1]]),
    np.array([[1.0], [-2]]),
]
X, MEMORY, dO = rng.normal(size=(4, 2)), rng.normal(size=(5, 3)), rng.normal(size=(4, 6))
W = [rng.normal(size=(2, width)) for width in (7, 7, 6)]
U = [W[0], *(rng.normal(size=(3, width)) for width in (7, 6))]
SMALL = [rng.normal(size=shape) for shape in ((3, 2), (4, 2), (4, 1), (3, 1))]
OF_A_HEAD = {
    "steps": lambda: head_steps(*ROUND, alt=ALT),
    "steps of another head": lambda: head_steps(*SMALL, alt=ALT),
    "touches": lambda: touches(*ROUND, alt=ALT),
    "paths": lambda: input_paths(X, MEMORY, dO, self_weights=W, cross_weights=U, alt=ALT),
}


@pytest.mark.parametrize("make", OF_A_HEAD.values(), ids=OF_A_HEAD)
def test_every_sum_that_is_printed_comes_out(make):
    found, data = 0, make()._data
    ((*_, places),) = (row for row in data["parts"] if row[:2] == ["", "text"])
    for sentence in (data["values"][place] for place in places):
        plain = sentence.replace("−", "-").replace("\u00a0·\u00a0", "*").replace("√4", "4**.5").replace("√2", "2**.5")
        for left, right in re.findall(r"([-\d.*+/() ]*\d[-\d.*+/() ]*) = (-?\d+\.?\d*)", plain):
            found += 1
            size = sum(abs(float(x)) for x in re.findall(r"\d+\.?\d*", left))
            assert eval(left.strip()) == pytest.approx(float(right), abs=0.005 * (1 + size)), sentence
    assert found >= 2
