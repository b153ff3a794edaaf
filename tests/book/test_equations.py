"""Every displayed formula has a label of its own. That it is a definition, a step or checked: test_reading."""

import re

from equations import ROOT, checks_of, equations

EQUATIONS = {e.label: e for e in equations()}


def test_each_formula_has_a_label_of_its_own():
    assert not [e.latex for e in equations() if not re.fullmatch(r"(eq|def|step)-[\w-]+", e.label or "")]
    assert len(EQUATIONS) == len(equations())


def test_the_gradients_of_attention_are_checked_by_differences_and_by_autograd():
    for label in ("eq-softmax-vjp", "eq-linear-vjp", "eq-dV", "eq-dP", "eq-dS", "eq-dQ", "eq-dK", "eq-dX"):
        assert {"differences", "autograd"} <= EQUATIONS[label].checks, label


def test_docstrings_cite_formulas_that_exist():
    for path in (ROOT / "src").rglob("*.py"):
        cited = set(re.findall(r":eq:`([\w-]+)`", path.read_text(encoding="utf-8")))
        assert cited <= set(EQUATIONS), path.name


def test_kinds_of_check_and_a_cell_that_only_looks_like_one_is_none():
    both = {"differences", "autograd"}
    assert checks_of("assert close(a, b)") == checks_of("check_adjoint(a, b, c, d)") == {"identity"}
    assert checks_of("check_vjp(f, g, at=x, cotangent=c)") == checks_of("checks.check_jvp(f, g)") == both
    for code in ("x = 1", "assert True", "assert 1 == 1", "assert (a, b)", "print(check_vjp)", "# assert a == b"):
        assert not checks_of(code), code
