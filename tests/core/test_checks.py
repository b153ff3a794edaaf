"""The checks: they accept what is right, refuse what is wrong, and say what is off and by how much."""

import numpy as np
import pytest
import torch
from compare import draw

from attnbook import checks
from attnbook.checks import check


def refuses(check, *args, **options):
    with pytest.raises(AssertionError):
        check(*args, **options)


def cubes():
    """x³ + y with its derivatives: f, inputs, tangents, cotangent, gradients, tangent of the output."""
    x, y, tx, ty, c = draw((5,), (5,), (5,), (5,), (5,))
    return lambda x, y: x**3 + y, [x, y], [tx, ty], c, [3 * x**2 * c, c], 3 * x**2 * tx + ty


def test_what_is_wrong_is_refused():
    """Each gradient and tangent by each check: sizes, signs, NaN, and what is too small for differences to see."""
    f, at, tangents, c, grads, tangent = cubes()
    for off in (lambda T: 2 * T, lambda T: -T, lambda T: np.nan * T, lambda T: T * (1 + 1e-10), lambda T: T[:3]):
        for i in range(2):
            refuses(checks.check_vjp, f, [*grads[:i], off(grads[i]), *grads[i + 1 :]], at=at, cotangent=c)
        refuses(checks.check_jvp, f, off(tangent), at=at, tangents=tangents)
    for off in (2, -1, np.nan, 1 + 1e-10):
        refuses(checks.check_adjoint, c, off * tangent, grads, tangents)
    refuses(checks.check_adjoint, c, tangent, [grads[0], 2 * grads[1]], tangents)


def test_differences_see_what_autograd_is_kept_from():
    """An f that hides a step from autograd: only differences see that its gradient is wrong."""
    (x, c, t) = draw((5,), (5,), (5,))

    def square(x):
        return (x.detach() if isinstance(x, torch.Tensor) else x) * x

    refuses(checks.check_vjp, square, c * x, at=x, cotangent=c)
    refuses(checks.check_jvp, square, t * x, at=x, tangents=t)


def test_close():
    (A,) = draw((3, 5))
    assert checks.close(A, A * (1 + 1e-15))
    assert checks.close(np.zeros((0, 3)), np.zeros((0, 3)))
    assert not checks.close(np.ones((3, 5)), np.ones(5))
    for B in (A * (1 + 1e-9), A[:1], A.T, A * np.nan):
        assert not checks.close(A, B)


def test_differences_converge():
    """Halving the step halves the error of a forward difference, quarters a central one's; a complex step has none."""
    (x, t) = draw((5,), (5,))
    true = t * np.cos(x)

    def error(rule, h):
        return np.max(np.abs(rule(np.sin, x, t, h) - true))

    for rule, ratio in ((checks.forward_difference, 2), (checks.central_difference, 4)):
        assert abs(error(rule, 1e-3) / error(rule, 5e-4) - ratio) < 0.01
        assert np.max(np.abs(rule(np.sin, x, t) - true)) < 1e-7
    assert checks.close(checks.complex_step(np.sin, x, t), true)


def test_autograd():
    """What torch is asked for: the gradients for this cotangent, 0 for an input that is not used, the tangent."""
    f, at, tangents, c, grads, tangent = cubes()
    assert all(map(checks.close, checks.autograd_vjp(f, at, c), grads))
    assert checks.close(checks.autograd_jvp(f, at, tangents), tangent)
    unused = checks.autograd_vjp(lambda x, y: (x, "residuals"), at, c)
    assert checks.close(unused[1], np.zeros(5))


def test_without_torch_differences_alone_decide(monkeypatch):
    monkeypatch.setattr(check, "has_torch", lambda: False)
    x, c = draw((5,), (5,))
    for compare, beside in ((checks.check_vjp, "cotangent"), (checks.check_jvp, "tangents")):
        assert set(compare(np.sin, c * np.cos(x), at=x, **{beside: c}).errors) == {"differences"}


def test_a_function_for_numpy_alone_is_told_and_compared_with_differences_where_one_says_so():
    def f(x):
        return np.asarray(x).clip(max=1.0) ** 2  # no tensor that learns becomes an array

    x, c = draw((5,), (5,))
    slope = np.where(x < 1, 2 * x, 0)
    for compare, beside in ((checks.check_vjp, "cotangent"), (checks.check_jvp, "tangents")):
        given = {"at": x, beside: c}
        with pytest.raises(TypeError, match=r"^f: expected a function that takes torch's tensors too; autograd=False"):
            compare(f, c * slope, **given)
        assert set(compare(f, c * slope, **given, autograd=False).errors) == {"differences"}


def test_a_function_that_writes_into_its_arguments_is_refused():
    def doubled(x):
        x *= 2
        return x

    (x,) = draw((5,))
    before = x.copy()
    for compare, beside in ((checks.check_vjp, "cotangent"), (checks.check_jvp, "tangents")):
        with pytest.raises(ValueError, match="f: expected a function that leaves its arguments as they are"):
            compare(doubled, 2 * x, at=x, autograd=False, **{beside: x})
        assert np.array_equal(x, before)


def test_what_the_function_raises_a_step_away_says_so():
    """A function that takes only the point itself, by either check: the error stays its own."""
    x = np.array([1.0, 2.0])

    def only_there(X):
        if not np.array_equal(X, x):
            raise ZeroDivisionError("elsewhere")
        return X

    for compare, beside in ((checks.check_vjp, "cotangent"), (checks.check_jvp, "tangents")):
        with pytest.raises(ZeroDivisionError, match="elsewhere") as raised:
            compare(only_there, x, at=x, autograd=False, **{beside: x})
        wanted = "f, only_there, was called a step away from at, with float64 NumPy arrays of the shapes (2,)"
        assert raised.value.__notes__ == [wanted]
    with pytest.raises(ZeroDivisionError) as raised:
        checks.check_vjp(lambda X: 1 / 0, np.ones((2, 3)), at=np.ones((2, 3)), cotangent=np.ones(2))
    assert raised.value.__notes__ == ["f was called with float64 NumPy arrays of the shapes (2, 3)"]


def test_a_gradient_may_be_left_out_and_not_every_one():
    (x, y, c) = draw((5,), (5,), (5,))
    checks.check_vjp(lambda x, y: x * y, [None, c * x], at=[x, y], cotangent=c)
    with pytest.raises(ValueError, match="grads"):
        checks.check_vjp(lambda x, y: x * y, [None, None], at=[x, y], cotangent=c)
    with pytest.raises(ValueError, match="grads"):
        checks.check_vjp(np.sin, None, at=x, cotangent=c)


def test_a_failure_says_which_gradient_by_which_check_and_by_how_much():
    (x, y, c) = draw((5,), (5,), (5,))
    said = r"^gradient 1 disagrees with differences: off by \d\.\de[+-]\d\d, allowed 1e-08$"
    with pytest.raises(AssertionError, match=said):
        checks.check_vjp(lambda x, y: x * y, [c * y, c * y], at=[x, y], cotangent=c)
