"""An op of one's own: a learnable temperature a head, written as a user would, in every spine and with every check."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import test_attention
import torch
from array_api_compat import array_namespace
from cases import Case
from compare import draw

import attnbook as ab
from attnbook import checks
from attnbook.arrays import unbroadcast
from attnbook.ops import Masking, Op, Tile, Window
from attnbook.spines import SPINES, Way
from attnbook.torch import attention


@dataclass(frozen=True, eq=False)
class Temperature(Op):
    """Multiply the scores of each head by a number of its own: S' = t S, dS = t dS', dt = Σ dS' ∘ S."""

    t: object
    arrays, learns, own_axes = ("t",), "t", 0

    def forward(self, S, tile):
        return S * self.here(tile)[..., None, None], S

    def vjp(self, dS, S, tile):
        t = self.here(tile)
        of_heads = array_namespace(dS).sum(dS * S, axis=(-2, -1))
        return dS * t[..., None, None], unbroadcast(of_heads, t.shape)

    def jvp(self, tS, S, tile, tparam=None):
        along = tS * self.here(tile)[..., None, None]
        return along if tparam is None else along + S * self.here(tile, tparam)[..., None, None]


OPS = ((Temperature, (3,)),)
CASES = (
    Case("a number a head", ops=OPS),
    Case("one of no axis", ops=((Temperature, ()),)),
    Case("two, and all else", q=(2, 6, 5, 11), mask=(6, 5, 7), bias=(5, 7), causal="bottom-right", scale=0.7, dead=True,
         ops=((Temperature, (6,)), (Temperature, (2, 1)))),
)  # fmt: skip
each_case = pytest.mark.parametrize("case", CASES, ids=str)
every_route = pytest.mark.usefixtures("route")


@every_route
@each_case
def test_in_every_spine(case):
    """Against the definition in torch, differences, autograd; and the backward against the tangents."""
    test_attention.test_values(case)
    test_attention.test_derivatives(case)


# --- where it cannot go, and what does not fit --------------------------------------------------------------------

INPUTS = Q, K, V = [np.ones(shape) for shape in ((2, 3, 5, 11), (2, 3, 7, 11), (2, 3, 7, 13))]


class NoVjp(Op):
    def forward(self, S, tile):
        raise AssertionError("work began before the op was checked")

    jvp = forward


def test_torchs_door_names_an_array_of_numpy():
    with pytest.raises(TypeError, match=r"^ops, Temperature: expected a tensor, got ndarray"):
        attention(*map(torch.tensor, INPUTS), ops=[Temperature(np.ones(3))])


@pytest.mark.parametrize("of_layer", [False, True])
def test_an_op_that_lacks_a_method_is_named_before_any_work(of_layer):
    call = partial(ab.attention, *INPUTS)
    if of_layer:
        p = ab.MultiHeadParams(*(np.ones((11, 11)) for _ in "QKVO"))
        call = partial(ab.multi_head_attention, np.ones((5, 11)), p, num_heads=1)
    with pytest.raises(TypeError, match=r"^ops: expected NoVjp with forward, vjp and jvp, got no vjp$"):
        call(ops=[NoVjp()])


def test_what_an_op_declares_wrongly_is_named_before_any_work():
    for name, value, error, message in (
        ("on", "score", ValueError, r"ops, NoWork.on: expected one of \('scores', 'column', 'weights'\), got 'score'"),
        ("learns", "t", TypeError, r"ops, NoWork.learns: expected one of \(\), got 't'"),
        ("arrays", ("t",), TypeError, r"ops, NoWork.arrays: expected names of its fields, got 't'"),
        ("forbids", True, TypeError, "ops, NoWork: expected a Masking on the scores, as it forbids, got another Op"),
        ("live", lambda self, tile: tile, TypeError, "ops, NoWork: expected no live, as it does not forbid, got one"),
        ("own_axes", -1, ValueError, "ops, NoWork.own_axes: expected None or a number of axes, got -1"),
        ("own_axes", True, ValueError, "ops, NoWork.own_axes: expected None or a number of axes, got True"),
    ):
        op = type("NoWork", (NoVjp,), {"vjp": NoVjp.forward, name: value})()
        with pytest.raises(error, match=f"^{message}$"):
            ab.attention(*INPUTS, ops=[op])
    late = type("Late", (Stripes,), {"on": "weights"})(3)
    with pytest.raises(TypeError, match=r"^ops, Late: expected a Masking on the scores, as it forbids, got"):
        ab.attention(*INPUTS, ops=[late])
    op = type("Silent", (NoVjp,), {"vjp": NoVjp.forward, "__init__": lambda self: setattr(self, "w", np.ones(7))})()
    with pytest.raises(TypeError, match=r"^ops, Silent.arrays: expected also 'w', which is an array, got \(\)$"):
        ab.attention(*INPUTS, ops=[op])
    with pytest.raises(TypeError, match=r"^NoVjp.learns: expected the name of the field that is asked for, got None$"):
        NoVjp().here(Tile.whole(5, 7))


@pytest.mark.parametrize(
    ("own_axes", "shape", "message"),
    [
        (None, (3,), r"expected a shape that broadcasts to the scores, \(2, 3, 5, 7\), got shape \(3,\)"),
        (0, (5,), r"expected a shape that broadcasts to the leading axes of the scores, \(2, 3\), got shape \(5,\)"),
        (1, (), r"expected 1 or more axes, got shape \(\)"),
    ],
)
def test_an_array_that_does_not_learn_is_checked_too(own_axes, shape, message):
    """A number a head, said to lie over the table, would be cut as if it were one a key."""
    op = type("NoWork", (NoVjp,), {"vjp": NoVjp.forward, "arrays": ("a",), "own_axes": own_axes, "a": np.ones(shape)})()
    with pytest.raises(ValueError, match=f"^ops, NoWork: {message}$"):
        ab.attention(*INPUTS, ops=[op])


WRONG = {
    "no gradient": (lambda dS: (dS, None), TypeError, "the gradient of its parameter, got NoneType"),
    "one thing": (lambda dS: dS, TypeError, "a pair, got .*"),
    "three": (lambda dS: (dS, np.ones(3), None), TypeError, "a pair, got 3 things"),
    "a gradient of another shape": (lambda dS: (dS, np.ones((3, 1))), ValueError,
                                    r"a gradient of shape \(3,\) on this tile, got \(3, 1\)"),
    "a gradient that is no array": (lambda dS: (dS, 1.0), ValueError, r"a gradient of shape \(3,\) .*, got float"),
    "scores of another shape": (lambda dS: (dS[..., :1, :], np.ones(3)), ValueError,
                                r"shape \([12], 3, 5, 7\), got \([12], 3, 1, 7\)"),
}  # fmt: skip


@pytest.mark.parametrize("spine", [name for name in SPINES if name != "fused"])
@pytest.mark.parametrize(("wrong", "error", "message"), WRONG.values(), ids=WRONG)
def test_a_vjp_that_returns_something_else_is_named(wrong, error, message, spine, monkeypatch):
    monkeypatch.setattr(Temperature, "vjp", lambda self, dS, saved, tile: wrong(dS))
    O, res = ab.attention(*INPUTS, ops=[Temperature(np.ones(3))], method=Way(spine))
    with pytest.raises(error, match=f"^ops, Temperature.vjp: expected {message}$"):
        ab.attention_vjp(O, res)


RETURNED = {  # by a forward or a jvp, which are given the scores or their tangents in float32
    "no pair": ("forward", lambda S: S, TypeError, "a pair, got ndarray"),
    "None": ("forward", lambda S: (None, S), ValueError, r"shape \(2, 3, 5, 7\), got NoneType"),
    "another shape": ("forward", lambda S: (S[:1], S), ValueError, r"shape \(2, 3, 5, 7\), got \(1, 3, 5, 7\)"),
    "another dtype": ("forward", lambda S: (S * np.float64(2), S), TypeError, "dtype float32, got float64"),
    "a tangent's shape": ("jvp", lambda tS: tS[..., :1], ValueError, r"shape \(2, 3, 5, 7\), got \(2, 3, 5, 1\)"),
    "a pair": ("jvp", lambda tS: (tS, None), ValueError, r"shape \(2, 3, 5, 7\), got tuple"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "wrong", "error", "message"), RETURNED.values(), ids=RETURNED)
def test_a_forward_or_jvp_that_returns_something_else_is_named(name, wrong, error, message, monkeypatch):
    inputs, op = [T.astype(np.float32) for T in INPUTS], Temperature(np.ones(3, np.float32))
    _, res = ab.attention(*inputs, ops=[op])
    monkeypatch.setattr(Temperature, name, lambda self, T, *rest: wrong(T))
    with pytest.raises(error, match=f"^ops, Temperature.{name}: expected {message}$"):
        ab.attention(*inputs, ops=[op]) if name == "forward" else ab.attention_jvp(*inputs, res)


@dataclass
class Stripes(Masking):
    """A mask that is not frozen, and so has no hash."""

    heads_alike = True
    every: int

    def allowed(self, S, tile):
        return (np.asarray(tile.rows)[:, None] + np.asarray(tile.cols)) % self.every == 0

    def pattern(self, tile):
        return tile


class Strided(Window):
    """With something that its base does not compare: two are not taken for one."""

    def __init__(self, every):
        super().__init__(None, 0, "top-left")
        object.__setattr__(self, "every", every)

    def allows_all(self, tile):
        return False

    def allowed(self, S, tile):
        return super().allowed(S, tile) & Stripes.allowed(self, S, tile)


@pytest.mark.parametrize("spine", [name for name in SPINES if name != "fused"])
@pytest.mark.parametrize("kind", [Stripes, Strided])
def test_masks_of_a_class_of_the_users(kind, spine):
    Q, K, V = draw((70, 3), (70, 3), (70, 2))
    for op in (kind(2), kind(3)):
        came = ab.attention(Q, K, V, ops=[op], method=Way(spine))[0]
        allowed = op.allowed(np.zeros((70, 70)), Tile.whole(70, 70))
        assert checks.close(came, ab.attention(Q, K, V, mask=allowed)[0])


class Halve(Op):
    """On the weights; it hands out an array that it keeps."""

    on = "weights"

    def forward(self, P, tile):
        return P / 2, None

    def vjp(self, dW, saved, tile):
        self.given = dW / 2
        self.given.flags.writeable = False
        return self.given, None

    def jvp(self, tP, saved, tile, tparam=None):
        return tP / 2


@pytest.mark.parametrize("spine", [name for name in SPINES if name != "fused"])
def test_what_an_op_on_the_weights_returns_is_not_written_to(spine):
    O, res = ab.attention(*INPUTS, ops=[Halve()], method=Way(spine))
    ab.attention_vjp(O, res)
