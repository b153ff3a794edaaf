"""The derivative of the backward: every case, every spine, and what it is made into, Hessians and double backward."""

from functools import cache

import numpy as np
import pytest
import torch
from array_api_compat import array_namespace
from cases import CASE, CASES
from compare import draw, quietly, same_everywhere
from planting import by_turns
from routes import ROUTES, SMALL, taking
from test_attention import A_FEW, O_and_L
from torch import func

import attnbook as ab
from attnbook import checks
from attnbook.ops import Op, Softcap
from attnbook.spines import Way
from attnbook.torch import _passes, attention

each_case = pytest.mark.parametrize("case", CASES, ids=str)


@cache
def drawn(case):
    """Inputs, their tangents, dO and dL, and their tangents."""
    inputs = case.draw()
    of_O, of_L = (*case.scores[:-1], case.v[-1]), case.scores[:-1]
    return inputs, draw(*(T.shape for T in inputs), seed=1), draw(of_O, of_L, seed=2), draw(of_O, of_L, seed=3)


def found(case, route="dense"):
    """The tangents of the gradients, and of O and L; and those where dO and dL stay."""
    inputs, tangents, (dO, dL), (tdO, tdL) = drawn(case)
    with taking(route):
        _, res = quietly(case.attend, *inputs)
        every = quietly(case.push_pull, tangents, dO, res, dL=dL, tdO=tdO, tdL=tdL)
        return every, quietly(case.push_pull, tangents, dO, res, dL=dL)


of_dense = cache(found)


# --- the derivative -----------------------------------------------------------------------------------------------


@each_case
def test_the_gradients_move_so(case):
    """As differences and autograd of the backward say; and O and L as the jvp does."""
    inputs, tangents, changes, turns = drawn(case)

    def backward(dO, dL, *inputs):
        xp = array_namespace(dO)
        inputs = map(xp.asarray, inputs)  # NumPy turns an array of no axis into a number
        grads = case.pull(dO, case.attend(*inputs)[1], dL)
        return xp.concat([xp.reshape(T, (-1,)) for T in grads])

    *moved, tO, tL = of_dense(case)[0]
    with taking("dense"):
        moved = np.concatenate([T.ravel() for T in moved])
        checks.check_jvp(backward, moved, at=(*changes, *inputs), tangents=(*turns, *tangents))
        wanted = case.push(tangents, case.attend(*inputs)[1], with_L=True)
    assert checks.close(O_and_L(tO, tL), O_and_L(*wanted))


@pytest.mark.parametrize(("route", "case"), by_turns(list(ROUTES)[1:], CASES, ("plain", "all at once")))
def test_every_spine_gives_the_same(route, case):
    for came, wanted in zip(found(case, route), of_dense(case), strict=True):
        assert all(map(checks.close, came, wanted))


@pytest.mark.parametrize(("route", "case"), by_turns(("dense", "tiled"), [CASE[name] for name in A_FEW]))
def test_every_library_gives_the_same(xp, route, case):
    inputs, tangents, (dO, _), (tdO, _) = drawn(case)

    def moved(dO, tdO, *both):
        inputs, tangents = both[: len(both) // 2], both[len(both) // 2 :]
        return case.push_pull(tangents, dO, case.attend(*inputs)[1], tdO=tdO)[:-1]

    with taking(route):
        same_everywhere(xp, moved, dO, tdO, *inputs, *tangents)


# --- what is made of it -------------------------------------------------------------------------------------------


DOUBLE = {
    "RR": lambda f, x, t: torch.autograd.grad(sum((g * u).sum() for g, u in zip(first(f, x), t, strict=True)), x),
    "RR, transforms": lambda f, x, t: func.vjp(lambda *x: func.grad(lambda *x: f(*x), (0, 1, 2))(*x), *x)[1](tuple(t)),
    "RF": lambda f, x, t: func.jvp(func.grad(f, (0, 1, 2)), tuple(x), tuple(t))[1],
    "FR": lambda f, x, t: func.grad(lambda *x: func.jvp(f, x, tuple(t))[1], (0, 1, 2))(*x),
    "vmap": lambda f, x, t: func.vmap(lambda *t: func.jvp(func.grad(f, (0, 1, 2)), tuple(x), t)[1])(
        *(T[None] for T in t)),
}  # fmt: skip


def first(f, x):
    return torch.autograd.grad(f(*x), x, create_graph=True)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")
@pytest.mark.parametrize("method", ["dense", "tiled", Way("tiled", SMALL)], ids=str)
@pytest.mark.parametrize("word", DOUBLE)
def test_two_orders_in_torch_hold_no_table(word, method, monkeypatch):
    """None goes through the dense lines, and all give the same."""
    shapes = (2, 3, 5, 2), (2, 3, 7, 2), (2, 3, 7, 3)
    x, t = ([torch.tensor(T) for T in draw(*shapes, seed=seed)] for seed in (0, 1))
    x = [T.requires_grad_() for T in x]

    def f(*x):
        O, L = attention(*x, ops=[Softcap(2.0)], causal="bottom-right", method=method, with_L=True)
        return O.sin().sum() + L.cos().sum()

    O, res = ab.attention(*(T.detach().numpy() for T in x), ops=[Softcap(2.0)], causal="bottom-right")
    turns = {"tdO": lambda tO: -np.sin(O) * tO, "tdL": lambda tL: -np.cos(res.L) * tL}
    wanted = ab.attention_hvp(*(T.numpy() for T in t), np.cos(O), res, dL=-np.sin(res.L), **turns)[:3]
    monkeypatch.setattr(_passes, "lines", None)
    for came, right in zip(DOUBLE[word](f, x, t), wanted, strict=True):
        assert checks.close(came.detach().reshape(right.shape), right)


@pytest.mark.parametrize("wrong", [lambda tO: tO[0], lambda tO: tO.tolist()])
def test_what_a_function_returns_is_checked(wrong):
    Q, K, V = draw((2, 5, 3), (2, 7, 3), (2, 7, 4))
    O, res = ab.attention(Q, K, V)
    with pytest.raises((TypeError, ValueError), match=r"^tdO\(tO\): expected"):
        ab.attention_hvp(Q, K, V, O, res, tdO=wrong)


# --- an op that does not say how it turns ---------------------------------------------------------------------------


class Cube(Op):
    """S ↦ S³, without the tangent of its vjp."""

    def forward(self, S, tile):
        return S**3, S

    def vjp(self, dS, S, tile):
        return 3 * S * S * dS, None

    def jvp(self, tS, S, tile, tparam=None):
        return 3 * S * S * tS


@pytest.mark.parametrize("method", ["dense", "tiled"])
def test_what_it_does_not_say(method):
    """It is refused on NumPy, and autograd follows it in torch."""
    x, t = draw((5, 3), (7, 3), (7, 2)), draw((5, 3), (7, 3), (7, 2), seed=1)
    O, res = ab.attention(*x, ops=[Cube()], method=method)
    message = r"^ops, Cube.vjp_jvp: expected the tangents of its vjp, or affine = True, got neither$"
    with pytest.raises(TypeError, match=message):
        ab.attention_hvp(*t, O, res)
    tensors, t = [torch.tensor(T, requires_grad=True) for T in x], [torch.tensor(T) for T in t]
    cubed = lambda Q, K, V: torch.softmax((Q @ K.mT / 3**0.5) ** 3, -1) @ V  # noqa: E731
    came, wanted = (
        DOUBLE["RR"](lambda *x, f=f: f(*x).sin().sum(), tensors, t)
        for f in (lambda *x: attention(*x, ops=[Cube()], method=method), cubed)
    )
    assert all(checks.close(a.detach(), b.detach()) for a, b in zip(came, wanted, strict=True))
