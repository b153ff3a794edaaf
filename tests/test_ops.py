"""Each op alone: its derivatives, its tiles, every library. The ops of the table of cases are among them."""

import laws
import numpy as np
import pytest
from array_api_compat import array_namespace, device
from cases import CASES

from attnbook.arrays import narrow, widen
from attnbook.ops import Bias, Causal, Dropout, Mask, Op, Scale, Softcap, Tile, Window

ALLOWED = np.random.default_rng(7).random((3, 5, 7)) < 0.7


def mask(M):
    """Makes the op ``Mask`` in the library of the scores."""
    return lambda S: Mask(array_namespace(S).asarray(M, device=device(S)))


# name: how the op is made, from the scores and its parameters; the shape of each parameter
OPS = {
    "scale": (lambda S: Scale(0.3),),
    "scale of zero": (lambda S: Scale(0.0),),
    "bias": (lambda S, B: Bias(B), (2, 3, 5, 7)),
    "bias for all heads": (lambda S, B: Bias(B), (2, 1, 5, 7)),
    "bias for all queries": (lambda S, B: Bias(B), (3, 1, 7)),
    "bias for all keys": (lambda S, B: Bias(B), (5, 1)),
    "bias of one axis": (lambda S, B: Bias(B), (7,)),
    "bias of no axis": (lambda S, B: Bias(B), ()),
    "mask": (mask(ALLOWED),),
    "mask for all queries": (mask(ALLOWED[:, :1]),),
    "mask for all keys": (mask(ALLOWED[0, :, :1]),),
    "mask of one axis": (mask(ALLOWED[0, 0]),),
    "causal": (lambda S: Causal(),),
    "causal, bottom-right": (lambda S: Causal("bottom-right"),),
    **{
        f"{case}, op {i}": (lambda S, *parameters, op=op: op(*parameters), *([] if shape is None else [shape]))
        for case in CASES
        if case.scores == (2, 3, 5, 7)
        for i, (op, shape) in enumerate(case.ops)
    },
}
each_op = pytest.mark.parametrize(("make", "shapes"), [(make, shapes) for make, *shapes in OPS.values()], ids=OPS)


@each_op
def test_derivatives(make, shapes):
    laws.op_gradients(make, *laws.draw(*shapes, seed=5))


@each_op
def test_on_tiles(make, shapes):
    parameters = laws.draw(*shapes, seed=5)
    laws.op_is_the_same_on_tiles(make(np.zeros(0), *parameters), *parameters)


@each_op
def test_every_library_gives_the_same(xp, make, shapes):
    def three_passes(S, *parameters):
        op, tile, wide = make(S, *parameters), Tile.whole(5, 7), widen(S)  # a spine hands ops wide scores
        scores, saved = op.forward(wide, tile)
        dS, dparam = op.vjp(wide, saved, tile)
        results = laws.finite(scores), dS, dparam, op.jvp(wide, saved, tile, *parameters)
        return [T if T is None else narrow(T, S.dtype) for T in results]

    laws.same_everywhere(xp, three_passes, *laws.draw((2, 3, 5, 7), *shapes))


@pytest.mark.parametrize("corner", ["top-left", "bottom-right"])
@pytest.mark.parametrize("n_k", [3, 5, 7])
def test_causal_counts_from_its_corner(corner, n_k):
    laws.causal_allows(corner, n_q=5, n_k=n_k)


SIZES = [(None, None), (2, None), (None, 2), (0, 0), (1, 2), (3, 0), (2, 2**63 - 1), (10**30, 0)]


@pytest.mark.parametrize("corner", ["top-left", "bottom-right"])
@pytest.mark.parametrize(("left", "right"), SIZES)
@pytest.mark.parametrize("n_k", [3, 5, 7])
def test_a_window_counts_from_its_corner(left, right, corner, n_k):
    laws.window_allows(left, right, corner, n_q=5, n_k=n_k)


MASKS = [
    *(Mask(M) for M in (ALLOWED, ALLOWED[:, :1], ALLOWED[0, :, :1], ALLOWED[0, 0], ALLOWED[0], np.zeros((5, 7), bool))),
    *(Mask(M) for M in (np.array(True), np.array(False), np.bool_(True), np.bool_(False))),
    *(Window(*sides, corner) for sides in SIZES for corner in ("top-left", "bottom-right")),
    *(Causal(corner) for corner in ("top-left", "bottom-right")),
]


@pytest.mark.parametrize("op", MASKS, ids=lambda op: repr(op)[:40].partition("array")[0])
def test_a_mask_knows_its_live_tiles(op):
    laws.mask_knows_its_live_tiles(op)


def test_softcap_bounds_the_scores():
    laws.softcap_bounds()


def test_dropout_keeps_its_share():
    laws.dropout_keeps_its_share()


def test_dropout_is_unrelated_from_place_to_place():
    laws.dropout_is_unrelated()


def test_dropout_is_the_same_on_any_tile():
    laws.dropout_is_the_same_on_any_tile()


def test_dropout_in_every_library(xp):
    T, tile = np.zeros((2, 3, 5, 7)), Tile.whole(5, 7)
    for op in (Dropout(0.3, 5), Dropout(0.9, -(2**63)), Dropout(0.5, 2**63 + 7)):
        assert np.array_equal(xp.numpy(op.kept(xp.asarray(T), tile)), op.kept(T, tile))


@pytest.mark.parametrize("op", [Mask(ALLOWED[0]), Causal(), Causal("bottom-right"), Window(1, 1)], ids=str)
def test_garbage_stays_behind_a_mask(op):
    laws.mask_stops_garbage(op)


def test_infinity_in_a_bias_forbids():
    B = np.array([[0.0, -np.inf]])
    S, _ = Bias(B).forward(np.ones((3, 2)), Tile.whole(3, 2))
    assert np.array_equal(S, [[1.0, -np.inf]] * 3)


def test_a_tile_cuts_what_broadcasts():
    tile, T = Tile(range(2, 4), range(3, 7), 5, 7), np.arange(35.0).reshape(5, 7)
    assert np.array_equal(tile.cut(T), T[2:4, 3:7])
    assert np.array_equal(tile.cut(T[:1]), T[:1, 3:7])
    assert np.array_equal(tile.cut(T[:, :1]), T[2:4, :1])
    assert np.array_equal(tile.cut(T[0]), T[0, 3:7])
    assert tile.cut(np.ones(())).shape == ()
    assert Tile.whole(5, 7) == (range(5), range(7), 5, 7, None)


def test_a_tile_cuts_heads_too():
    tile = Tile(range(2, 4), range(3, 7), 5, 7, (range(1, 2), range(1, 3)))
    for T in laws.draw((2, 3, 5, 7), (2, 1, 5, 7), (3, 1, 7), (3, 5, 1), (5, 7), (7,), (1,), ()):
        whole = np.broadcast_to(T, (2, 3, 5, 7))[1:2, 1:3, 2:4, 3:7]
        assert np.array_equal(np.broadcast_to(tile.cut(T), whole.shape), whole)
        assert tile.shape(T.shape) == tile.cut(T).shape


def test_a_tile_within_its_block():
    block = Tile(range(2, 5), range(3, 7), 5, 7, (range(1, 2), range(3)))
    tile = Tile(range(3, 5), range(4, 6), 5, 7, (range(1, 2), range(2, 3)))
    (T,) = laws.draw((2, 3, 5, 7))
    assert np.array_equal(tile.within(block).cut(block.cut(T)), tile.cut(T))


def test_a_tile_without_a_pair_is_false():
    assert Tile.whole(5, 7)
    assert not Tile.whole(0, 7)
    assert not Tile.whole(5, 0)
    assert not Tile(range(3, 3), range(7), 5, 7)


def test_the_protocol_names_what_an_op_must_have():
    methods = {name for name in vars(Op) if not name.startswith("_")}
    assert methods == {"forward", "vjp", "jvp"}
    for op in (Scale, Bias, Mask, Causal, Window, Softcap, Dropout):
        assert all(getattr(op, name).__code__.co_argcount == getattr(Op, name).__code__.co_argcount for name in methods)
