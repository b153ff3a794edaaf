"""The tiled spine and its twin on NumPy: what they save, what they skip, and that nothing shows how the table was cut.

That their values and derivatives are right is tested with those of the other spines, in test_attention.
"""

import laws
import numpy as np
import pytest
import torch
from cases import CASE, CASES
from routes import ON_TILES, TILED, taking

import attnbook as ab
from attnbook import spines
from attnbook.ops import Bias, Dropout, Softcap, Window
from attnbook.spines import dense, numpy_dense, numpy_tiled, tiled

in_tiles = pytest.mark.parametrize("route", TILED, indirect=True)
with_workers = pytest.mark.parametrize("route", ON_TILES, indirect=True)
each_case = pytest.mark.parametrize("case", CASES, ids=str)
of_full_size = pytest.mark.parametrize("name", ["tiled", "tiled on NumPy"])


# --- what is kept and what is not ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tiled", {}),
        ("tiled on NumPy", {}),
        ("tiled on NumPy", {"causal": lambda n: True}),
        ("tiled on NumPy", {"bias": lambda n: np.zeros((n, 1), np.float32)}),
    ],
)
def test_memory_grows_linearly(name, options):
    with taking(name, small=False):
        laws.memory_grows_linearly(**options)


@in_tiles
@each_case
def test_L_is_the_logsumexp_of_the_scores(route, case):
    laws.L_is_the_logsumexp_of_the_scores(case)


@in_tiles
@each_case
def test_residuals_are_in_the_accumulation_dtype(route, case):
    laws.residuals_are_in_the_accumulation_dtype(case)


@pytest.mark.usefixtures("route")
@each_case
def test_residuals_are_left_alone(case):
    laws.residuals_are_left_alone(case)


@with_workers
@each_case
def test_fresh_memory_is_not_read(route, case):
    laws.fresh_memory_is_not_read(case)


# --- what is visited ----------------------------------------------------------------------------------------------

PADDING = np.arange(13) < 5
HOLE = (np.arange(13) < 3) | (np.arange(13) > 9)
NONE = np.zeros((11, 13), bool)
MASKED = {
    "nothing": {},
    "causal": {"causal": True},
    "window": {"ops": [Window(2, 1)]},
    "window, bottom-right": {"ops": [Window(3, 0, "bottom-right")]},
    "padding": {"mask": PADDING},
    "padded queries": {"mask": (np.arange(11) > 3)[:, None]},
    "a hole": {"mask": HOLE},
    "all": {"mask": NONE},
    "padding and causal": {"mask": PADDING, "causal": True},
}


@in_tiles
@pytest.mark.parametrize("options", MASKED.values(), ids=MASKED)
def test_each_live_tile_is_visited_once(route, options):
    laws.each_live_tile_is_visited_once(**options)


@with_workers
@pytest.mark.parametrize(
    "options",
    [{"causal": True}, {"ops": [Window(4, 4)]}, {"mask": np.arange(60) < 20}, {"mask": np.tri(60, dtype=bool)}],
    ids=["causal", "window", "padding", "mask"],
)
def test_masked_exponentials_are_not_made(route, options):
    laws.masked_exponentials_are_not_made(**options)


# --- what must not show -------------------------------------------------------------------------------------------


@with_workers
@each_case
def test_threads_change_no_bit(route, case):
    laws.threads_change_no_bit(case)


@pytest.mark.usefixtures("route")
@pytest.mark.parametrize("name", ["grouped, masked and biased", "mask of padding", "window", "all at once", "dropout"])
def test_layout_in_memory_changes_nothing(name):
    laws.layout_in_memory_changes_nothing(CASE[name])


@pytest.mark.usefixtures("route")
def test_broadcast_inputs_are_ordinary():
    laws.broadcast_inputs_are_ordinary()


@of_full_size
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [30, 3000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_errors_are_those_of_dense(name, dtype, size, causal):
    with taking(name, small=False):
        laws.errors_are_those_of_dense(dtype, size, causal)


IN_EARNEST = {
    "plain": {},
    "causal": {"causal": True},
    "bottom-right": {"causal": "bottom-right"},
    "window": {"ops": [Window(100, 30)]},
    "padding": {"mask": np.arange(1300) < 700},
    "bias": {"bias": np.linspace(-1, 1, 1300)},
    "dropout and softcap": {"ops": [Dropout(0.2, 3), Softcap(1.0), Bias(np.linspace(-1, 1, 1100)[:, None])]},
}


@of_full_size
@pytest.mark.parametrize("options", IN_EARNEST.values(), ids=IN_EARNEST)
def test_tiles_of_full_size(name, options):
    with taking(name, small=False):
        laws.agrees_with_dense((1100, 8), (1300, 8), (1300, 5), **options)


@of_full_size
def test_heads_of_full_size(name):
    with taking(name, small=False):
        laws.agrees_with_dense((2, 6, 130, 8), (2, 3, 140, 8), (2, 3, 140, 5), bias=np.linspace(-1, 1, 140))
        laws.agrees_with_dense((2, 6, 130, 8), (2, 2, 140, 8), (2, 3, 140, 5), causal=True)


def test_heads_may_be_grouped_anew():
    laws.heads_may_be_grouped_anew()


# --- who is asked -------------------------------------------------------------------------------------------------


def test_auto_picks_by_size():
    numpy, tensor = np.ones((2, 2), np.float32), torch.ones((2, 2))
    small, huge = (2, 2), (8, 16384, 16384)
    assert spines.pick("auto", numpy, small) is numpy_dense.forward
    assert spines.pick("auto", numpy, huge) is numpy_tiled.forward
    assert spines.pick("auto", tensor, small) is dense.forward
    assert spines.pick("auto", tensor, huge) is tiled.forward
    for method, generic, on_numpy in (("dense", dense, numpy_dense), ("tiled", tiled, numpy_tiled)):
        for shape in (small, huge):
            assert spines.pick(method, numpy, shape) is on_numpy.forward
            assert spines.pick(method, tensor, shape) is generic.forward


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("method", ["auto", "dense", "tiled"])
def test_a_backward_knows_its_forward(method, library):
    Q, K, V, dO = laws.draw((3, 5), (7, 5), (7, 11), (3, 11))
    if library == "torch":
        Q, K, V, dO = map(torch.tensor, (Q, K, V, dO))
    _, res = ab.attention(Q, K, V, method=method)
    assert isinstance(res, spines.SPINES["dense" if method == "auto" else method].Residuals)
    spine = spines.spine_of(res)
    assert (spine in spines.ON_NUMPY.values()) == (library == "numpy")
    assert ab.attention_vjp(dO, res).dQ.shape == (3, 5)
    assert ab.attention_jvp(Q, K, V, res).shape == (3, 11)
