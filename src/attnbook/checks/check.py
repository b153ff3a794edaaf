"""The checks that the book's cells and the tests call. A check that fails raises, and says by how much.

Chapter: :doc:`/chapters/08_checking`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from attnbook.arrays import expected, whole
from attnbook.checks.autograd import LEAVES, autograd_jvp, autograd_vjp, has_flint, has_torch, output_of
from attnbook.checks.differences import central_difference
from attnbook.checks.tolerances import DIFFERENCES, EXACT
from attnbook.types import described

NumPyArrays: TypeAlias = np.ndarray[Any, Any] | Sequence[np.ndarray[Any, Any] | None]
"""An array, or several."""


@described
class Agreement(NamedTuple):
    """What a derivative was found to agree with, and the largest relative error of each comparison.

    It prints without its figures, so that the stored output of a chapter holds on any machine.
    """

    errors: dict[str, Any]
    """The largest relative error of each comparison, by its name."""

    def __repr__(self) -> str:
        return "agrees with " + " and ".join(self.errors)


def close(A: ArrayLike, B: ArrayLike) -> bool:
    """Whether A and B are equal up to float64 rounding, relative to their largest entry; shapes must agree too."""
    A, B = np.asarray(A), np.asarray(B)
    if A.shape != B.shape:
        return False
    return A.size == 0 or bool(np.max(np.abs(A - B)) <= EXACT * max(np.max(np.abs(A)), np.max(np.abs(B)), 1.0))


def check_vjp(
    f: Callable[..., Any],
    grads: Any,
    *,
    at: NumPyArrays,
    cotangent: np.ndarray[Any, Any],
    seed: int = 0,
    trials: int = 3,
    digits: int | None = None,
    autograd: bool = True,
) -> Agreement:
    """Assert that ``grads`` are the gradients of ⟨cotangent, f(at)⟩, by differences and by autograd.

    .. math:: \\langle dX, \\dot X\\rangle = \\Bigl\\langle dY,\\;
       \\frac{f(X + \\varepsilon\\dot X) - f(X - \\varepsilon\\dot X)}{2\\varepsilon}\\Bigr\\rangle

    Equation :eq:`eq-vjp-check`, along random directions; then entry by entry against torch, where it is installed.

    Parameters
    ----------
    f : callable
        Written for any array library. May hand back (output, residuals).
    grads : array or sequence of arrays; or with ``digits`` a function
        One for each entry of ``at``, with its shape. None for an input that is not checked, not for all. The function
        makes them from ``(*at, cotangent)``.
    at : array or sequence of arrays, float64
        Where the derivative is taken.
    cotangent : array of the shape of the output
        Random, never ones: the gradient of softmax's sum is 0, right or wrong.
    seed, trials : int
        Of the random directions, one at least.
    digits : int, optional
        Run f on balls instead (:mod:`attnbook.checks.balls`, with python-flint), which enclose its derivatives, with
        no step and no rounding. A function ``grads`` runs on balls too, and must agree to so many digits, relative to
        what is added up; arrays must up to float64 rounding.
    autograd : bool
        False leaves torch out, where f takes NumPy's arrays alone.

    Returns
    -------
    Agreement

    Raises
    ------
    AssertionError
        Names the gradient that is off, by which check, and by how much.
    TypeError, ValueError
        An argument that cannot be checked: not float64, a shape that does not fit. With ``digits`` also a function that
        cannot run on balls, or where a comparison hangs in the balance, and what stays too wide to be compared.
    """
    at = _as_tuple(at)
    _check_function(f, autograd)
    for name, value, least in (("trials", trials, 1), ("seed", seed, 0)):
        whole(name, value, least, f"an integer, {least} or more")
    _check_float64(at=at, cotangent=(cotangent,))
    if not _runs_on_balls(grads, digits):
        grads = _as_tuple(grads)
        if len(at) != len(grads):
            raise ValueError(expected("grads", f"{len(at)} arrays, one for each input", len(grads)))
        if all(dx is None for dx in grads):
            raise ValueError(expected("grads", "at least one array", "None alone"))
        _check_float64(may_lack=True, grads=grads)
    if digits is not None:
        return Agreement(_enclosed(digits).vjp_errors(f, grads, at, cotangent, digits, seed, trials))
    Y = _output(f, at)
    if Y.shape != cotangent.shape:
        raise ValueError(expected("cotangent", f"the shape of the output, {Y.shape}", cotangent.shape))
    rng = np.random.default_rng(seed)
    reference = _on_torch(autograd_vjp, f, at, cotangent) if autograd and has_torch() else [None] * len(at)
    errors: dict[str, float] = {}
    for i, (x, dx, by_autograd) in enumerate(zip(at, grads, reference, strict=True)):
        if dx is None:
            continue
        name = f"gradient {i}" if len(at) > 1 else "the gradient"
        assert dx.shape == x.shape, f"{name} has shape {dx.shape}, its variable {x.shape}"
        for _ in range(trials):
            t = rng.standard_normal(x.shape)
            terms = cotangent * central_difference(lambda z, i=i: _call(f, (*at[:i], z, *at[i + 1 :]), MOVED), x, t)
            size = np.sum(np.abs(terms)) + np.sum(np.abs(cotangent * Y))
            _compare(errors, "differences", name, np.sum(dx * t), np.sum(terms), size, DIFFERENCES)
        if by_autograd is not None:
            size = max(_largest(by_autograd), _largest(cotangent))
            _compare(errors, "autograd", name, dx, by_autograd, size, EXACT)
    return Agreement(errors)


def check_jvp(
    f: Callable[..., Any],
    tangent: Any,
    *,
    at: NumPyArrays,
    tangents: NumPyArrays,
    digits: int | None = None,
    autograd: bool = True,
) -> Agreement:
    """Assert that ``tangent`` is how f(at) changes along ``tangents``, by differences and by forward-mode autograd.

    Equation :eq:`eq-central-difference`. Arguments and result as for :func:`check_vjp`; with ``digits``, ``tangent``
    may be a function of ``(*at, *tangents)``.

    Raises
    ------
    AssertionError
        Says by which check the tangent is off, and by how much.
    TypeError, ValueError
        As :func:`check_vjp`.

    Examples
    --------
    >>> import numpy as np
    >>> from attnbook.checks import check_jvp
    >>> X, tX = np.array([1.0, 2.0]), np.array([3.0, -1.0])
    >>> check_jvp(lambda X: X * X, 2 * X * tX, at=X, tangents=tX, autograd=False)
    agrees with differences
    """
    at, tangents = _as_tuple(at), _as_tuple(tangents)
    _check_function(f, autograd)
    if len(at) != len(tangents):
        raise ValueError(expected("tangents", f"{len(at)} arrays, one for each input", len(tangents)))
    _check_float64(at=at, tangents=tangents)
    if not _runs_on_balls(tangent, digits):
        _check_float64(tangent=(tangent,))
    for x, t in zip(at, tangents, strict=True):
        if t.shape != x.shape:
            raise ValueError(expected("tangents", f"the shape of the input, {x.shape}", t.shape))
    if digits is not None:
        return Agreement(_enclosed(digits).jvp_errors(f, tangent, at, tangents, digits))
    Y = _output(f, at)
    assert tangent.shape == Y.shape, f"the tangent has shape {tangent.shape}, the output {Y.shape}"

    def along(step: float) -> Any:
        return _call(f, tuple(x + step * t for x, t in zip(at, tangents, strict=True)), MOVED)

    by_differences = central_difference(along, 0.0, 1.0)
    size = _largest(by_differences) + _largest(Y)
    errors: dict[str, float] = {}
    _compare(errors, "differences", "the tangent", tangent, by_differences, size, DIFFERENCES)
    if autograd and has_torch():
        by_autograd = _on_torch(autograd_jvp, f, at, tangents)
        size = max(_largest(by_autograd), _largest(Y))
        _compare(errors, "autograd", "the tangent", tangent, by_autograd, size, EXACT)
    return Agreement(errors)


def _on_torch(derive: Callable[..., Any], f: Callable[..., Any], *where: Any) -> Any:
    """What autograd makes of f, or an error that says how to do without."""
    try:
        return derive(f, *where)
    except Exception as error:
        wanted = "a function that takes torch's tensors too; autograd=False compares with differences alone"
        raise TypeError(expected("f", wanted, f"{type(error).__name__}: {error}")) from error


def check_adjoint(
    cotangent: np.ndarray[Any, Any], tangent: np.ndarray[Any, Any], grads: NumPyArrays, tangents: NumPyArrays
) -> Agreement:
    """Assert that a vjp and a jvp belong together: ⟨dY, Ẏ⟩ = Σ ⟨dX, Ẋ⟩ (:eq:`eq-dot-product-test`).

    Needs no step and no autograd, so it holds to rounding; but two derivatives of the wrong function pass it together.

    Raises
    ------
    AssertionError
        The two inner products differ, and by how much.
    TypeError
        What is given is no float64 NumPy array.
    ValueError
        A shape does not fit, or there are not as many tangents as gradients.
    """
    grads, tangents = _as_tuple(grads), _as_tuple(tangents)
    if len(grads) != len(tangents):
        raise ValueError(expected("tangents", f"{len(grads)} arrays, one for each gradient", len(tangents)))
    _check_float64(cotangent=(cotangent,), tangent=(tangent,), grads=grads, tangents=tangents)
    for name, T, of, like in (
        ("tangent", tangent, "cotangent", cotangent),
        *(("tangents", t, "gradient", g) for t, g in zip(tangents, grads, strict=True)),
    ):
        if T.shape != like.shape:
            raise ValueError(expected(name, f"the shape of its {of}, {like.shape}", T.shape))
    forwards = [cotangent * tangent]
    backwards = [g * t for g, t in zip(grads, tangents, strict=True)]
    left, right = (sum(float(np.sum(x)) for x in terms) for terms in (forwards, backwards))
    size = sum(float(np.sum(np.abs(x))) for x in (*forwards, *backwards))
    errors: dict[str, float] = {}
    _compare(errors, "its adjoint", "the inner product", left, right, size, EXACT)
    return Agreement(errors)


def _compare(
    errors: dict[str, float], by: str, name: str, came: Any, wanted: Any, size: float, tolerance: float
) -> None:
    """Record the largest error relative to ``size``, the size of what was added up; fail over the tolerance, or NaN."""
    off = _largest(np.asarray(came) - np.asarray(wanted))
    error = off / size if size else off
    if not error <= tolerance:
        raise AssertionError(f"{name} disagrees with {by}: off by {error:.1e}, allowed {tolerance:.0e}")
    errors[by] = max(errors.get(by, 0.0), error)


def _check_function(f: Any, autograd: Any) -> None:
    if not callable(f):
        raise TypeError(expected("f", "a function of the arrays in at", type(f).__name__))
    if not isinstance(autograd, bool | np.bool_):
        raise TypeError(expected("autograd", "True or False", repr(autograd)))


MOVED = " a step away from at,"


def _call(f: Callable[..., Any], at: tuple[Any, ...], where: str = "") -> Any:
    """The output of f; what f itself raises goes on, with a note on which function that was, and which call."""
    given = tuple(np.array(x) for x in at)
    try:
        Y = output_of(f(*given))
    except Exception as error:
        name = "" if getattr(f, "__name__", "f") in ("f", "<lambda>") else f", {f.__name__},"
        shapes = ", ".join(str(np.shape(x)) for x in at)
        error.add_note(f"f{name} was called{where} with float64 NumPy arrays of the shapes {shapes}")
        raise
    if not all(np.array_equal(*pair, equal_nan=True) for pair in zip(given, at, strict=True)):
        raise ValueError(expected("f", *LEAVES))
    return Y


def _output(f: Callable[..., Any], at: tuple[Any, ...]) -> Any:
    """What f returns, or an error that says what came instead."""
    Y = _call(f, at)
    if not isinstance(Y, np.ndarray | np.generic) or Y.dtype != np.float64:
        came = f"{Y.dtype} in a {type(Y).__name__}" if hasattr(Y, "dtype") else type(Y).__name__
        raise TypeError(expected("f", "a float64 NumPy array as its output, alone or first of a tuple", came))
    return Y


def _runs_on_balls(claimed: Any, digits: Any) -> bool:
    return digits is not None and callable(claimed)


def _enclosed(digits: Any) -> Any:
    """The module of the checks in balls, or an error where it cannot be had."""
    whole("digits", digits, 1, "None or a positive integer")
    if not has_flint():
        raise ModuleNotFoundError(expected("digits", "None where python-flint is not installed", digits))
    from attnbook.checks import enclosed

    return enclosed


def _largest(T: Any) -> float:
    return float(np.max(np.abs(T), initial=0.0))


def _as_tuple(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, tuple | list) else (x,)


def _check_float64(may_lack: bool = False, **groups: Any) -> None:
    for name, arrays in groups.items():
        for x in arrays:
            if x is None and name == "grads" and may_lack:
                continue
            is_numpy = isinstance(x, np.ndarray | np.generic)  # NumPy turns an array of no axis into a scalar
            if not is_numpy or x.dtype != np.float64:
                came = x.dtype if is_numpy else type(x).__name__
                raise TypeError(expected(name, "float64 NumPy arrays", came))
