"""Inputs are drawn and results compared here: what the tests of every room use."""

import warnings

import numpy as np

from attnbook import arrays, checks


def draw(*shapes, seed=0):
    """Normal numbers of each shape."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in shapes]


def quietly(f, *args, **options):
    """The result of f, which must not warn."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = f(*args, **options)
    assert not caught, f"warned: {caught[0].message}"
    return result


def derivatives_agree(f, inputs, tangents, cotangent, grads, tangent):
    """A vjp and a jvp of f against differences, against autograd, and against one another."""
    checks.check_vjp(f, tuple(grads), at=inputs, cotangent=cotangent)
    checks.check_jvp(f, tangent, at=inputs, tangents=tangents)
    checks.check_adjoint(cotangent, tangent, tuple(grads), tangents)


def same_everywhere(xp, f, *inputs):
    """f gives on ``xp`` what it gives on NumPy: values, shape, dtype, device; in every dtype; inputs are left alone."""
    wanted = _flat(f(*(T.copy() for T in inputs)))
    given = [xp.asarray(T) for T in inputs]
    came = _flat(f(*given))
    _are_of(xp, came, wanted, "float64")
    for T, reference in zip(came, wanted, strict=True):
        assert checks.close(xp.numpy(T), reference)
    for T, original in zip(given, inputs, strict=True):
        assert np.array_equal(xp.numpy(T), original), "an input was modified"
    for dtype in set(xp.dtypes) - {"float64"}:
        low = [xp.cast(T, dtype) for T in given]
        came = _flat(f(*low))
        _are_of(xp, came, wanted, dtype)
        in_float32 = _flat(f(*(xp.cast(T, "float32") for T in low)))  # 16 bits: float32 inside, rounded once at the end
        for T, reference in zip(came, in_float32, strict=True):
            assert np.array_equal(xp.numpy(T), xp.numpy(xp.cast(reference, dtype)))


def _are_of(xp, came, wanted, dtype):
    for T, reference in zip(came, wanted, strict=True):
        assert xp.owns(T), f"of another library or on another device: {type(T)}"
        assert T.dtype == xp.dtype(dtype), f"expected {dtype}, got {T.dtype}"
        assert tuple(T.shape) == reference.shape, f"expected shape {reference.shape}, got {tuple(T.shape)}"


def _flat(result):
    """All arrays in a result, a tuple of tuples perhaps."""
    if isinstance(result, tuple | list):
        return [T for entry in result for T in _flat(entry)]
    return [] if result is None else [result]


def in_wide(f, T, *args):
    """f as a spine calls it: on what is widened already, and narrowed when all is done."""
    return arrays.narrow(f(arrays.widen(T), *args), T.dtype)


def finite(T):
    """T with −∞ read as 0: the −∞ of a mask is a constant, and has no derivative."""
    xp = arrays.array_namespace(T)
    return xp.where(-xp.inf == T, xp.zeros_like(T), T)
