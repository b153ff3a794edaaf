"""Rotary positions: values, derivatives, and what a rotation leaves as it is."""

import numpy as np
import pytest
from compare import derivatives_agree, draw, same_everywhere

import attnbook as ab
from attnbook import arrays, checks
from attnbook.rotary import Linear, Llama3, YaRN, frequencies

SCALINGS = (None, Linear(4.0), Llama3(8.0, 64), YaRN(16.0, 64, 4.0), YaRN(16.0, 64, 4.0, temperature=1.0, whole=False))
WAYS = {
    "plain": {},
    "half": {"layout": "half"},
    "partial": {"dims": 6, "base": 100.0},
    "partial, half": {"dims": 6, "layout": "half", "base": 50.0},
    **{f"{layout}, {scaling}": {"scaling": scaling, "layout": layout, "base": 500.0}
       for scaling in SCALINGS[1:] for layout in ("interleaved", "half")},
}  # fmt: skip
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
POSITIONS = {
    "default": None,
    "integers": np.array([9, 0, 2, 2, 700]),
    "floats": np.array([0.5, -3.0, 1e4, 0.0, 7.25]),
    "for each batch": np.random.default_rng(3).integers(0, 99, (2, 1, 5)),
}
each_positions = pytest.mark.parametrize("positions", POSITIONS.values(), ids=POSITIONS)


def beside(X, positions):
    """The positions in the library and on the device of X."""
    return None if positions is None else arrays.array_namespace(X).asarray(positions, device=arrays.device(X))


def by_complex_numbers(X, positions=None, *, dims=None, base=10000.0, layout="interleaved", scaling=None):
    """The definition: pairs are complex numbers, and a rotation by t θ is the product with exp(i t θ)."""
    dims = X.shape[-1] if dims is None else dims
    theta, temperature = frequencies(dims, base, scaling)
    t = np.arange(X.shape[-2]) if positions is None else positions
    a, b = (X[..., :dims:2], X[..., 1:dims:2]) if layout == "interleaved" else np.split(X[..., :dims], 2, axis=-1)
    z = temperature * (a + 1j * b) * np.exp(1j * t[..., None] * theta)
    turned = (z.real, z.imag)
    turned = (
        np.stack(turned, -1).reshape(*z.shape[:-1], dims) if layout == "interleaved" else np.concatenate(turned, -1)
    )
    return np.concatenate((turned, X[..., dims:]), -1)


def rotary_is_right(positions, way, seed=0):
    X, dY, tX = draw((2, 3, 5, 8), (2, 3, 5, 8), (2, 3, 5, 8), seed=seed)
    assert checks.close(ab.rotary(X, positions, **way), by_complex_numbers(X, positions, **way))
    dX = ab.rotary_vjp(dY, positions, **way)

    tY = ab.rotary(tX, positions, **way)
    derivatives_agree(lambda X: ab.rotary(X, beside(X, positions), **way), [X], [tX], dY, [dX], tY)


@each_positions
@each_way
def test_values_and_derivatives(positions, way):
    rotary_is_right(positions, way)


@pytest.mark.parametrize("way", ["plain", "partial, half"])
def test_every_library_gives_the_same(xp, way):
    X, dY = draw((2, 3, 5, 8), (2, 3, 5, 8))
    for positions in (None, POSITIONS["for each batch"]):
        same_everywhere(xp, lambda X, p=positions: ab.rotary(X, beside(X, p), **WAYS[way]), X)
        same_everywhere(xp, lambda dY, p=positions: ab.rotary_vjp(dY, beside(dY, p), **WAYS[way]), dY)


# --- properties ---------------------------------------------------------------------------------------------------


def test_lengths_stay_and_the_backward_undoes_it():
    (X,) = draw((2, 3, 5, 8))
    for scaling in SCALINGS:
        Y, (_, temperature) = ab.rotary(X, scaling=scaling), frequencies(8, scaling=scaling)
        assert checks.close(np.linalg.norm(Y, axis=-1), temperature * np.linalg.norm(X, axis=-1))
        assert checks.close(ab.rotary_vjp(Y, scaling=scaling), temperature**2 * X)


def test_far_positions_keep_their_digits():
    """At position 10⁶ a float32 angle is off by up to 0.03; the result may only be off by the dtype's rounding."""
    (X,) = draw((5, 8))
    far = np.arange(5) + 10**6
    off = ab.rotary(X.astype("float32"), far) - ab.rotary(X, far)
    assert np.max(np.abs(off)) < 4 * np.finfo("float32").eps * np.max(np.abs(X))


def test_base_is_that_of_the_paper():
    """θ_l = 10000^(−2l/d), l counted from 0 (section 3.2.2 of the paper, which counts from 1)."""
    theta, temperature = frequencies(8)
    assert checks.close(theta, np.array([1, 0.1, 0.01, 0.001]))
    assert temperature == 1


def test_scalings_leave_fast_pairs_and_press_slow_ones():
    theta, _ = frequencies(64, 10000.0)
    for scaling in (Llama3(8.0, 8192), YaRN(8.0, 8192)):
        ratio = scaling(theta, 10000.0)[0] / theta
        assert ratio[0] == 1
        assert np.isclose(ratio[-1], 1 / 8, rtol=1e-15)
        assert np.all(np.diff(ratio) <= 0)
    assert np.array_equal(Linear(8.0)(theta, 10000.0)[0], theta / 8)
    assert np.isclose(YaRN(40.0, 4096).temperature, 1.3688879454113936, rtol=1e-15)
