"""The derivative of the backward: every case, every spine, and what it is made into, Hessians and double backward."""

from functools import cache

import numpy as np
import pytest
import torch
from array_api_compat import array_namespace
from cases import CASE, CASES
from compare import draw, quietly, same_everywhere
from planting import by_turns, planted
from routes import ON_TILES, ROUTES, SMALL, taking
from test_attention import A_FEW, O_and_L
from torch import func

import attnbook as ab
from attnbook import checks
from attnbook.ops import Dropout, Op, Softcap
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


@each_case
def test_the_backward_is_symmetric(case):
    """Cotangents of the gradients, pulled back through the backward: it, along them, and the tangents of O and L."""
    inputs, tangents, changes, turns = drawn(case)
    cotangents = draw(*(T.shape for T in inputs), seed=4)
    *moved, _, _ = of_dense(case)[0]
    with taking("dense"):
        *to_inputs, to_dO, to_dL = case.push_pull(cotangents, changes[0], case.attend(*inputs)[1], dL=changes[1])
    every = [T.ravel() for T in (*cotangents, *moved)]
    flat = [np.concatenate(every[: len(moved)]), np.concatenate(every[len(moved) :])]
    checks.check_adjoint(*flat, (*to_inputs, to_dO, to_dL), (*tangents, *turns))


@pytest.mark.parametrize(("route", "case"), by_turns(("dense", "tiled"), [CASE[name] for name in A_FEW]))
def test_every_library_gives_the_same(xp, route, case):
    inputs, tangents, (dO, _), (tdO, _) = drawn(case)

    def moved(dO, tdO, *both):
        inputs, tangents = both[: len(both) // 2], both[len(both) // 2 :]
        return case.push_pull(tangents, dO, case.attend(*inputs)[1], tdO=tdO)[:-1]

    with taking(route):
        same_everywhere(xp, moved, dO, tdO, *inputs, *tangents)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", ["mask with a dead row", "no key"])
def test_dead_rows_are_exactly_zero(name, route):
    case = CASE[name]
    dead = ~case.allowed().any(-1)
    *moved, tO, tL = found(case, route)[0]
    assert dead.any()
    assert not tO[dead].any()
    assert not tL[dead].any()
    assert not moved[0][dead].any()


# --- what is made of it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["dense", "tiled"])
def test_a_loss_turns_as_O_moves(method):
    """The Hessian of ½‖O‖² + ½‖L‖² in one call, against differences; it is symmetric."""
    shapes = (2, 3, 5, 11), (2, 3, 7, 11), (2, 3, 7, 13)
    inputs, a, b = (draw(*shapes, seed=seed) for seed in (0, 1, 2))

    def gradient(*inputs):
        O, res = ab.attention(*inputs, causal="bottom-right", method=method)
        return np.concatenate([T.ravel() for T in ab.attention_vjp(O, res, res.L)[:3]])

    def product(tangents):
        O, res = ab.attention(*inputs, causal="bottom-right", method=method)
        H = ab.attention_hvp(*tangents, O, res, tdO=lambda tO: tO, dL=res.L, tdL=lambda tL: tL)
        return np.concatenate([T.ravel() for T in H[:3]])

    Ha, Hb = product(a), product(b)
    checks.check_jvp(gradient, Ha, at=inputs, tangents=a, autograd=False)
    a, b = (np.concatenate([T.ravel() for T in tangents]) for tangents in (a, b))
    checks.check_adjoint(b, Ha, Hb, a)


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


# --- the tiles ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"causal": True}, {"ops": [Dropout(0.2, 3), Softcap(1.0)]}], ids=str)
def test_tiles_of_full_size(options):
    Q, K, V, *tangents = draw(*[(1100, 8), (1300, 8), (1300, 5)] * 2)
    dO, tdO = draw((1100, 5), (1100, 5), seed=1)
    came, wanted = (
        ab.attention_hvp(*tangents, dO, ab.attention(Q, K, V, **options, method=method)[1], tdO=tdO, with_O=True)
        for method in ("tiled", "dense")
    )
    assert all(map(checks.close, (*came[0][:3], *came[1:]), (*wanted[0][:3], *wanted[1:])))


@pytest.mark.parametrize(("route", "case"), by_turns(ON_TILES, [CASE[name] for name in A_FEW], ("plain",)))
def test_threads_change_no_bit_and_fresh_memory_is_not_read(route, case, monkeypatch):
    wanted = found(case, route)
    for make in (np.empty, np.empty_like):

        def filled(*args, make=make, **options):
            T = make(*args, **options)
            if T.dtype.kind == "f":
                T.fill(np.nan)
            return T

        monkeypatch.setattr(np, make.__name__, filled)
    try:
        for n in (1, 3):
            ab.set_num_threads(n)
            for came, right in zip(found(case, route), wanted, strict=True):
                assert all(map(np.array_equal, came, right))
    finally:
        ab.set_num_threads(None)


@pytest.mark.parametrize(("route", "case"), by_turns(ROUTES, [CASE[name] for name in A_FEW], ("plain",)))
def test_nothing_given_is_written_to(route, case):
    inputs, tangents, changes, turns = drawn(case)
    given = [*inputs, *tangents, *changes, *turns]
    with taking(route):
        _, res = case.attend(*inputs)
        given += [T for T in res if isinstance(T, np.ndarray)]
        before = [T.copy() for T in given]
        case.push_pull(tangents, changes[0], res, dL=changes[1], tdO=turns[0], tdL=turns[1])
    assert all(map(np.array_equal, given, before))


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


# --- tried by mistakes ----------------------------------------------------------------------------------------------

LOSS = {method: lambda method=method: test_a_loss_turns_as_O_moves(method) for method in ("dense", "tiled")}
ENGINE = "tiled on NumPy"


def moves(name):
    return lambda: (of_dense.cache_clear(), test_the_gradients_move_so(CASE[name]))


def same(name, route=ENGINE):
    return lambda: test_every_spine_gives_the_same(route, CASE[name])


def fresh(name):
    def check():
        with pytest.MonkeyPatch.context() as patch:
            test_threads_change_no_bit_and_fresh_memory_is_not_read(ENGINE, CASE[name], patch)

    return check


PLANTED = [
    ("ops/softcap.py", "Softcap.vjp_jvp", "- (2 / float(self.cap)) * saved * tS * dS", "", moves("softcap")),
    ("ops/scale.py", "Scale.vjp_jvp", " + dS * tS", "", moves("logit scale")),
    ("ops/scale.py", "Scale.vjp_jvp", "found + self.spread(tile, tparam) * dS", "found", moves("logit scale")),
    ("ops/chain.py", "vjp_jvp", "before[i]", "before[-1]", moves("all at once")),
    ("ops/op.py", "Op.vjp_jvp", "saved is not None or", "", lambda: test_what_it_does_not_say("dense")),
    ("spines/columns.py", "vjp_jvp", "(before[-1] - tL) * D + tD", "tD", moves("sink")),
    ("spines/dense.py", "hvp", "tdP * P + dP * moved.tP", "tdP * P", moves("plain")),
    ("spines/dense.py", "hvp", "moved.tP * (dP - D) + P", "P", moves("plain")),
        ("spines/dense.py", "hvp", "turn, turns,", "turn, (None, turns[1]),", LOSS["dense"]),
    ("spines/operands.py", "row_sums_jvp", "widen(tdO) * widen(res.O)", "0 * widen(tdO)", same("plain")),
    ("spines/tiled.py", "hvp", "tdP - _at(tD, rows)", "tdP", same("plain", "tiled")),
        ("spines/tiled.py", "hvp", "of_scores[-1] - _at(tL, rows)", "of_scores[-1]", same("plain", "tiled")),
    *(("spines/numpy_tangents.py", name, right, wrong, same(case, route)) for name, right, wrong, case, route in (
        ("_push", "tO -= tL * res.O", "pass", "plain", ENGINE),
        ("_push_block", "add(tO[..., here, :], W, tv[..., there, :], products, straight)", "pass", "plain", ENGINE),
                ("_Moving.__init__", "res.unit)", "1.0)", "plain", "tiled on NumPy, shifted"),
        ("_Moving.queries", "*= self.dtype.type(self.plan.scale)", "*= 1", "plain", ENGINE),
        ("_Moving.queries", "-tL if self.fast else np.zeros_like(tL)", "-tL", "softcap", ENGINE),
        ("_Moving.shifted", "or bool(np.any(M[self.rows_of(block)]))", "and False", "causal, more keys",
         "tiled on NumPy, shifted"),
        ("_turn_block", "tdQ *= work.dtype.type(work.plan.scale)", "pass", "plain", ENGINE),
                ("_turn_block", "if tdO is not None:", "if False:", "plain", ENGINE),
        ("_turn_block", "if not work.fast:", "if False:", "softcap", ENGINE),
        ("_turn_block", "E * tS, tile", "E, tile", "dropout", ENGINE),
        ("_turn_block", "of_weights[-1]", "of_weights[1]", "two dropouts", ENGINE),
        ("_turn_block", "sums.give(strip, place, [])", "pass", "causal, more keys", ENGINE),
    )),
    ("spines/numpy_tangents.py", "_turn_block", "tdK[...], tdV[...] = 0, 0", "tdK[...] = 0", fresh("plain")),
    ("spines/numpy_tangents.py", "_push_block", "starts_with(strips, block.rows)", "True",
     fresh("mask with a dead row")),
    ("torch/_passes.py", "hvp", "changed = tdO, tdL,", "changed = None, tdL,",
     lambda: two_orders("RF")),
]  # fmt: skip


def two_orders(word):
    with pytest.MonkeyPatch.context() as patch:
        test_two_orders_in_torch_hold_no_table(word, "tiled", patch)


@pytest.mark.parametrize(
    ("file", "name", "right", "wrong", "check"), PLANTED, ids=lambda x: x if isinstance(x, str) else ""
)
def test_a_planted_mistake_is_noticed(file, name, right, wrong, check):
    check()
    with (
        planted(file, name, right, wrong),
        pytest.raises((AssertionError, TypeError, ValueError, pytest.fail.Exception)),
    ):
        check()
    of_dense.cache_clear()
