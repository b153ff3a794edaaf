"""The checks: they accept what is right, refuse what is wrong, and say what is off and by how much."""

import re

import laws
import numpy as np
import pytest

from attnbook import checks
from attnbook.checks import check


def test_they_accept_what_is_right():
    laws.checks_accept_what_is_right()


def test_check_vjp_refuses_what_is_wrong():
    laws.check_vjp_refuses_what_is_wrong()


def test_check_jvp_refuses_what_is_wrong():
    laws.check_jvp_refuses_what_is_wrong()


def test_check_adjoint_refuses_what_is_wrong():
    laws.check_adjoint_refuses_what_is_wrong()


def test_differences_see_what_autograd_is_kept_from():
    laws.differences_refuse_what_autograd_accepts()


def test_close():
    laws.close_tells_arrays_apart()


def test_differences_converge():
    laws.differences_converge()


def test_autograd():
    laws.autograd_is_asked_right()


def test_without_torch_differences_alone_decide(monkeypatch):
    monkeypatch.setattr(check, "has_torch", lambda: False)
    (x, c, t) = laws.draw((5,), (5,), (5,))
    assert set(checks.check_vjp(np.sin, c * np.cos(x), at=x, cotangent=c).errors) == {"differences"}
    assert set(checks.check_jvp(np.sin, t * np.cos(x), at=x, tangents=t).errors) == {"differences"}
    with pytest.raises(AssertionError, match="the gradient disagrees with differences"):
        checks.check_vjp(np.sin, c * np.sin(x), at=x, cotangent=c)


def test_a_gradient_may_be_left_out():
    (x, y, c) = laws.draw((5,), (5,), (5,))
    checks.check_vjp(lambda x, y: x * y, [None, c * x], at=[x, y], cotangent=c)


def test_ones_are_a_bad_cotangent():
    """Why every check here draws it: the gradient of softmax's sum is 0, so a backward of zeros passes."""
    from attnbook import softmax

    S, c = laws.draw((3, 5), (3, 5))
    checks.check_vjp(softmax, 0 * S, at=S, cotangent=np.ones_like(S))
    with pytest.raises(AssertionError):
        checks.check_vjp(softmax, 0 * S, at=S, cotangent=c)


def test_a_failure_says_which_gradient_by_which_check_and_by_how_much():
    (x, y, c) = laws.draw((5,), (5,), (5,))
    with pytest.raises(AssertionError) as raised:
        checks.check_vjp(lambda x, y: x * y, [c * y, c * y], at=[x, y], cotangent=c)
    assert re.fullmatch(
        r"gradient 1 disagrees with differences: off by \d\.\de[+-]\d\d, allowed 1e-08", str(raised.value)
    )


def test_an_agreement_prints_without_figures():
    assert repr(checks.Agreement({"differences": 1e-11, "autograd": 2e-16})) == "agrees with differences and autograd"
    assert repr(checks.Agreement({"its adjoint": 0.0})) == "agrees with its adjoint"
