"""The figures of one head with controls: numbers are the package's, sums come out, and what is marked is right."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from attnbook import (
    MultiHeadParams,
    attention,
    attention_vjp,
    multi_head_attention,
    multi_head_attention_vjp,
    softmax,
)
from attnbook.figures import head_steps, input_paths, touches, whole_head

ALT = "One head, step by step"
rng = np.random.default_rng(11)


def head(n_q, n_k, d_k, d_v):
    return [rng.normal(size=shape) for shape in ((n_q, d_k), (n_k, d_k), (n_k, d_v), (n_q, d_v))]


ROUND = [
    np.log(2) * np.array([[1, -1, -2, -2], [1, -2, -2, 2]]),
    np.array([[2.0, 2, -1, 0], [0, 2, -2, 0], [0, -2, 0, 1]]),
    np.array([[3.0], [1], [-1]]),
    np.array([[1.0], [-2]]),
]
X, MEMORY, dO = rng.normal(size=(4, 2)), rng.normal(size=(5, 3)), rng.normal(size=(4, 6))
W = [rng.normal(size=(2, width)) for width in (7, 7, 6)]
U = [W[0], *(rng.normal(size=(3, width)) for width in (7, 6))]


def paths():
    return input_paths(X, MEMORY, dO, self_weights=W, cross_weights=U, alt=ALT)


FIGURES = {
    "steps": lambda: head_steps(*ROUND, alt=ALT),
    "steps of another head": lambda: head_steps(*SMALL, alt=ALT),
    "touches": lambda: touches(*ROUND, alt=ALT),
    "paths": paths,
}
SMALL = head(3, 4, 2, 1)


def pictures(figure):
    """For each state, its sentence and {part: element} of the picture, as the site's script would make them."""
    shape = [len(control.values) for control in figure._controls]
    for place in np.ndindex(*shape):
        root = ElementTree.fromstring(figure.svg)
        parts = {element.get("data-part"): element for element in root.iter() if element.get("data-part")}
        sentence = parts[""] = ElementTree.Element("p")
        for part, key, axes, places in figure._data["parts"]:
            here = np.reshape(places, [shape[a] for a in axes])[tuple(place[a] for a in axes)]
            value = figure._data["values"][here]
            if key == "text":
                parts[part].text = value
            elif value is None:
                parts[part].attrib.pop(key, None)
            else:
                parts[part].set(key, value)
        del parts[""]
        yield sentence.text, parts


def printed(element):
    return [float(text.text.replace("−", "-")) for text in element]


@pytest.mark.parametrize("make", FIGURES.values(), ids=FIGURES)
def test_it_is_the_same_each_time_and_every_sum_that_is_printed_comes_out(make):
    found, figure = 0, make()
    assert figure._repr_html_() == make()._repr_html_()
    assert repr(figure) == f"Figure: {ALT}"
    for sentence, _ in pictures(figure):
        plain = sentence.replace("−", "-").replace("\u00a0·\u00a0", "*").replace("√4", "4**.5").replace("√2", "2**.5")
        for left, right in re.findall(r"([-\d.*+/() ]*\d[-\d.*+/() ]*) = (-?\d+\.?\d*)", plain):
            found += 1
            size = sum(abs(float(x)) for x in re.findall(r"\d+\.?\d*", left))
            assert eval(left.strip()) == pytest.approx(float(right), abs=0.005 * (1 + size)), sentence
    assert found >= 2


def test_the_numbers_of_the_steps_are_right():
    parts = next(pictures(head_steps(*ROUND, alt=ALT)))[1]
    wanted = {"P": [0.4, 0.4, 0.2, 0.1, 0.1, 0.8], "loss": [2.2], "dV": [0.2, 0.2, -1.4], "D": [1.4, 0.8]}
    wanted |= {"dS": [0.64, -0.16, -0.48, -0.68, -0.28, 0.96]}
    wanted |= {"dQ": [0.64, 0.96, -0.16, -0.24, -0.68, -1.92, 0.62, 0.48]}
    assert {name: printed(parts[f"{name} numbers"]) for name in wanted} == wanted


def test_the_sums_of_the_paths_are_the_gradients_of_the_layer():
    (_, parts), *_ = pictures(paths())
    dY, eye = dO, np.eye(6)
    self_layer = multi_head_attention(X, MultiHeadParams(*W, eye), num_heads=1)[1]
    cross_layer = multi_head_attention(X, MultiHeadParams(*U, eye), num_heads=1, memory=MEMORY)[1]
    g, c = multi_head_attention_vjp(dY, self_layer), multi_head_attention_vjp(dY, cross_layer)
    for name, T in {"self dX": g.dX, "cross dX": c.dX, "cross dX_mem": c.dmemory}.items():
        assert printed(parts[f"{name} numbers"]) == pytest.approx(T.ravel(), abs=0.00501)


def formulas(form):
    """Of each box of the frontispiece its name and its formula: the words that stand in it."""
    root = ElementTree.fromstring(f"<all>{whole_head(alt=ALT).svg}</all>")[form]
    texts = [element for element in root if element.tag.endswith("text")]
    for rect in (element for element in root if element.tag.endswith("rect")):
        left, top, wide, tall = (float(rect.get(k)) for k in ("x", "y", "width", "height"))
        inside = (t for t in texts if 0 < float(t.get("x")) - left < wide and 0 < float(t.get("y")) - top < tall)
        name, whole = rect.get("data-part"), " ".join("".join(t.itertext()) for t in inside)
        yield name, whole.removeprefix(f"{name} ").partition(" needs ")[0]


@pytest.mark.parametrize("form", [0, 1], ids=["wide", "tall"])
def test_the_formulas_of_the_whole_head_are_those_of_the_package(form):
    """They are run, and are the same on a wide screen and on a phone."""
    p, scale = MultiHeadParams(*W, np.eye(6)), 7**-0.5
    Y, res = multi_head_attention(X, p, num_heads=1)
    values = {"X": X, "dO": dO, "W_Q": W[0], "W_K": W[1], "W_V": W[2], "scale": scale, "softmax": softmax}
    for name, formula in formulas(form):
        if name == "dS":
            values["D"] = np.sum(values["dP"] * values["P"], axis=-1, keepdims=True)
        if formula.startswith("= "):
            code = re.sub(r"([\w)ᵀ]) (?=\w)", r"\1 @ ", formula[2:])
            code = code.replace("ᵀ", ".mT").replace("·", "*").replace("∘", "*").replace("−", "-")
            values[name] = eval(code, {}, values)
    np.testing.assert_allclose(values["O"], Y)
    np.testing.assert_allclose(values["dX"], multi_head_attention_vjp(dO, res).dX)
    _, res = attention(values["Q"], values["K"], values["V"])
    for name, T in attention_vjp(dO, res)._asdict().items():
        if name in ("dQ", "dK", "dV"):
            np.testing.assert_allclose(values[name], T)
