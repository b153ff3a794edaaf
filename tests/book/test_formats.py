"""Rounding to a format gives the same numbers as a cast, bit for bit."""

import numpy as np
import pytest

from evidence.formats import FORMATS, rounded


def samples():
    """Float64 numbers of every size, ties, neighbors of the limits, and what is not finite."""
    rng = np.random.default_rng(0)
    sizes = 2.0 ** rng.integers(-160, 140, 4000) * rng.normal(size=4000)
    ties = (np.arange(1, 400) + 0.5) * 2.0 ** rng.integers(-150, 100, 399)
    limits = [limit for f in FORMATS.values() for limit in (f.largest, f.smallest_normal, f.smallest)]
    with np.errstate(over="ignore"):
        near = [limit * x for limit in limits for x in (0.5, 0.75, 1 - 2.0**-13, 1, 1 + 2.0**-13, 1 + 2.0**-9, 1.5)]
    x = np.concatenate([sizes, ties, near, [0.0, np.inf, np.nan, 65519.9, 65520.0]])
    return np.concatenate([x, -x])


def test_it_is_the_cast_of_numpy_and_of_torch():
    torch = pytest.importorskip("torch")
    x = samples()
    with np.errstate(over="ignore", under="ignore"):
        for dtype in ("float16", "float32", "float64"):
            wanted = x.astype(dtype).astype(np.float64)
            np.testing.assert_array_equal(rounded(x, dtype), wanted)
            np.testing.assert_array_equal(np.signbit(rounded(x, dtype)), np.signbit(wanted))
        x = x.astype(np.float32).astype(np.float64)  # torch goes from float64 to 16 bits by way of float32
    for dtype in ("bfloat16", "float16"):
        wanted = torch.tensor(x).to(torch.float32).to(getattr(torch, dtype)).double().numpy()
        np.testing.assert_array_equal(rounded(x, dtype), wanted)


def test_empty_arrays_keep_their_shape_and_an_unknown_format_is_named():
    assert rounded(np.zeros((0, 3)), "bfloat16").shape == (0, 3)
    with pytest.raises(ValueError, match="dtype: expected one of float16, bfloat16, float32, float64, got 'float8'"):
        rounded(1.0, "float8")
