"""The code on the prose pages and in the README runs, checks what it says, and notices a wrong derivative."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import attnbook as ab
from attnbook.arrays import mT
from attnbook.checks import check_vjp
from attnbook.diagnose.cases.battery import battery

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page):
    return BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


def run(code, **names):
    names = {"__name__": __name__} | names
    exec(compile(code, "page", "exec"), names)
    return names


def test_the_page_runs_and_checks_and_notices_a_wrong_op():
    code = "\n".join(blocks("book/adding_a_variant.md"))
    for check in ("check_vjp(", "check_jvp(", "check_adjoint(", "assert same_in_every_way("):
        assert check in code
    run(code)
    right = "return tS * (1 - y * y)"
    assert code.count(right) == 1
    with pytest.raises(AssertionError, match="disagrees"):
        run(code.replace(right, "return tS * self.c"))


def test_the_example_of_the_readme_and_what_it_asks_diagnose(capsys):
    code, asked, _ = blocks("README.md")
    run(code)
    assert capsys.readouterr().out == "agrees with differences and autograd\n"
    run(asked)
    said = re.search(r"# (\(.*\));", asked)[1]
    assert capsys.readouterr().out == said + "\n"


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")
def test_the_model_of_the_readme(capsys, monkeypatch):
    import torch
    from torch.nn import functional

    *_, code = blocks("README.md")
    assert len(code.strip().splitlines()) == 10
    theirs = functional.scaled_dot_product_attention
    monkeypatch.setattr(functional, "scaled_dot_product_attention", theirs)  # put back at the end
    names = run(code)
    assert functional.scaled_dot_product_attention is names["scaled_dot_product_attention"] is not theirs
    assert capsys.readouterr().out == "True\n"
    X, v, layer = (names[name] for name in ("X", "v", "layer"))
    functional.scaled_dot_product_attention = theirs
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        _, Hv = torch.autograd.functional.hvp(lambda X: layer(X).square().mean(), X, v)
    assert torch.allclose(names["Hv"], Hv, rtol=1e-3, atol=1e-5)


def test_the_eight_lines_of_the_first_page():
    (code,) = blocks("book/intro.md")
    assert len(code.strip().splitlines()) == 8
    backward = run(code)["attention_backward"]
    rng = np.random.default_rng(0)
    Q, K, V = (rng.standard_normal(shape) for shape in ((3, 5), (7, 5), (7, 11)))
    scale = 5**-0.5
    dO = rng.standard_normal((3, 11))
    _, res = ab.attention(Q, K, V, scale=scale)
    grads = backward(dO, Q, K, V, res.P, scale)
    check_vjp(lambda Q, K, V: ab.attention(Q, K, V, scale=scale), grads, at=(Q, K, V), cotangent=dO)


HEAD = """
def head(Q, K, V, dO):
    scale = Q.shape[-1] ** -0.5
    P = ab.softmax(scale * Q @ K.mT)
    dP = dO @ V.mT
    dS = P * (dP - (P * dP).sum(axis=-1, keepdims=True))
    return P @ V, scale * dS @ K, scale * dS.mT @ Q, P.mT @ dO
"""


def test_the_head_that_the_page_for_instructors_grades():
    _, code, _ = blocks("book/teaching.md")
    for right, mistake, wrong in (("", "", set()), ("scale * dS @ K", "dS @ K", {"dQ"})):
        names = run(code, head=run(HEAD.replace(right, mistake), ab=ab)["head"])
        assert (names["report"].ok, names["passed"], names["wrong"]) == (not wrong, not wrong, wrong)
        assert names["required"] <= {case.name for case in battery()}


def test_the_mistake_that_the_page_for_instructors_shows():
    cells = json.loads((ROOT / "chapters" / "02_gradients.ipynb").read_text(encoding="utf-8"))["cells"]
    (lines,) = ("".join(cell["source"]) for cell in cells if cell["id"] == "ask-head")
    for right, wrong in (("dV = P @ dO", "dV = mT(P) @ dO"), ("scale * dS @ K", "dS @ K")):
        assert right in lines
        lines = lines.replace(right, wrong)
    report = run(lines, ab=ab, mT=mT)["report"]
    assert report.mistakes == ("scale-missing-in-dq",)


def test_the_layer_that_the_page_for_instructors_grades(capsys):
    *_, code = blocks("book/teaching.md")

    def student(dY, X, W_Q, W_K, W_V, W_O):
        Q, K, V = X @ W_Q, X @ W_K, X @ W_V
        O, dQ, dK, dV = run(HEAD, ab=ab)["head"](Q, K, V, dY @ W_O.T)
        dX = dQ @ W_Q.T + dK @ W_K.T + dV @ W_V.T
        return dX, *((T.mT @ dT).sum(axis=0) for T, dT in ((X, dQ), (X, dK), (X, dV), (O, dY)))

    run(code, student=student)
    assert capsys.readouterr().out == "agrees with differences and autograd\n"
    with pytest.raises(AssertionError, match="disagrees"):
        run(code, student=lambda *given: (2 * student(*given)[0], *student(*given)[1:]))
