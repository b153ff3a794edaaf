"""The battery: what it asks, that it fits what a function takes, and that it sees what only some cases can show."""

from itertools import product

import numpy as np
import pytest
import torch
from attentions.right import by_steps as right
from attentions.right import ours, with_ops

import attnbook as ab
from attnbook.arrays import mT
from attnbook.diagnose.case import MEMORY
from attnbook.diagnose.cases.battery import battery
from attnbook.diagnose.cases.crossed import FEATURES
from attnbook.diagnose.cases.run import Run, imprecise, wrong_in
from attnbook.diagnose.causes.mistakes import MISTAKES
from attnbook.diagnose.learn.caller import Caller
from attnbook.diagnose.steps import Steps

FAR = ("large scores", "a masked score far", "a later score far", "scores about", "one huge key")
"""The beginnings of the names of cases whose exponentials may overflow."""

BY_NAME = {case.name: case for case in battery()}


def where(fn, about):
    """The cases in which ``about`` is wrong: what diagnose sees, without the search for a cause."""
    call = Caller(fn, "numpy")
    runs = [Run(case, call(case)) for case in battery(convention=call.convention)]
    return {run.name for run in wrong_in([run for run in runs if run.compared]).get(about, [])}


def test_roundings_are_no_error():
    assert not any(where(ours, name) for name in ("O", "dQ", "dK", "dV"))


# --- what it asks -------------------------------------------------------------------------------------------------


def test_it_asks_every_length_width_and_kind_of_memory():
    lengths = {case.inputs[i].shape[-2] for case in BY_NAME.values() for i in (0, 1)}
    assert {0, 1, 63, 64, 65, 127, 128, 129, 257, 300} <= lengths
    assert {64, 80, 96, 128, 256} <= {case.inputs[0].shape[-1] for case in BY_NAME.values()}
    assert {(name, kind) for case in BY_NAME.values() for name, kind in case.memory.items()} >= {
        *product(("Q", "K", "V", "dO"), ("transposed",)),
        *product(("Q", "K", "V", "dO"), ("heads last", "sliced", "reversed")),
        ("dO", "expanded"), ("K", "expanded"), ("V", "expanded"),
    }  # fmt: skip
    assert {kind for case in BY_NAME.values() for kind in case.memory.values()} == set(MEMORY)
    options = {name for case in BY_NAME.values() for name in case.options}
    assert options >= {"window", "softcap", "sink", "slopes", "cos", "dropout", "dL"}
    ragged = [c for c in BY_NAME.values() if c.inputs[0].ndim > 2 and c.inputs[0].shape[-3] > 1]
    assert any(c.inputs[0].shape[-2] > 64 and c.inputs[0].shape[-2] % 64 and c.inputs[0].ndim == 4 for c in ragged)


def test_the_arrays_are_the_same_ones_and_read_only():
    assert battery()[0] is battery()[0]
    assert battery(1)[0] is not battery()[0]
    for case in battery():
        assert not any(T.flags.writeable for T in (*case.inputs, *case.options.values()) if isinstance(T, np.ndarray))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_no_right_result_is_beyond_its_dtype(dtype):
    """What overflows would be no mistake of the function; only "large scores" has exponentials that do."""
    top = {"float16": 65504.0}.get(dtype, 3e38)
    for case in battery(dtype=dtype):
        a = Steps(*case.inputs, **case.options)
        for T in (*a.run(), a.products, a.dP):
            assert np.isfinite(T).all()
            assert np.max(np.abs(T), initial=0) < top / 4, case.name
        if "mask" not in case.options and not case.name.startswith(FAR):
            assert np.max(a.products, initial=0) < 11, case.name  # e¹¹ is the largest of float16


# --- what only they show ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["window", "softcap", "sink", "slopes", "cos", "dropout", "dL"])
def test_an_option_that_the_backward_ignores(name):
    """Each is asked for, and what takes it must do it right."""

    def forgetful(Q, K, V, dO, **options):
        O, *_ = right(Q, K, V, dO, **options)
        rest = {key: value for key, value in options.items() if key not in (name, {"cos": "sin"}.get(name))}
        return O, *right(Q, K, V, dO, **rest)[1:]

    assert where(forgetful, "dQ") == {case.name for case in battery() if name in case.options}


def takes_four(Q, K, V, dO, *, mask=None, bias=None, causal=False, scale=None):
    return right(Q, K, V, dO, mask=mask, bias=bias, causal=causal, scale=scale)


def takes_any_name(Q, K, V, dO, *, mask=None, bias=None, causal=False, scale=None, **_):
    """As many modules do: a window is no more known to it than a name that nothing has."""
    return right(Q, K, V, dO, mask=mask, bias=bias, causal=causal, scale=scale)


@pytest.mark.parametrize("fn", [takes_four, takes_any_name])
def test_what_does_not_take_an_option_is_not_asked(fn):
    report = ab.diagnose(fn)
    assert report.ok, str(report)
    assert set(report.not_run) == {c.name for c in battery() if c.options.keys() - {"mask", "bias", "causal", "scale"}}
    assert fn is takes_four or report.not_run["window"] == "it takes any name, and does nothing with window"


@pytest.mark.parametrize(
    ("about", "spoil"),
    [
        ("dbias", lambda grads: 2 * grads),
        ("dsink", lambda grads: 0 * grads),  # Megatron-LM PR#205
        ("dbias", lambda grads: grads.sum(axis=-1, keepdims=True)),  # a wrong shape
    ],
)
def test_the_gradients_of_bias_and_sink(about, spoil):
    def fn(*inputs, **options):
        came = Steps(*inputs, **options).results()
        return tuple(spoil(T) if name == about else T for name, T in came.items())

    assert where(fn, about) == {case.name for case in battery() if about.removeprefix("d") in case.options}


def test_dropout_is_read_off_the_output():
    """No seed is shared, and nothing is expected on average: the mask shows in O, so every number is compared."""

    def dropping(Q, K, V, dO, dropout=0.0, factor=1.0, anew=False):
        kept = np.random.default_rng().random((*Q.shape[:-1], K.shape[-2])) >= dropout
        a = Steps(Q, K, V, dO, dropout=dropout, kept=kept if dropout else None)
        a.kept_backward = np.random.default_rng().random(kept.shape) >= dropout if anew and dropout else a.kept
        return a.O * (factor if dropout else 1.0), a.dQ, a.dK, a.dV

    report = ab.diagnose(lambda Q, K, V, dO, dropout=0.0: dropping(Q, K, V, dO, dropout))
    assert report.ok
    assert "dropout" in report.compared
    assert where(lambda Q, K, V, dO, dropout=0.0: dropping(Q, K, V, dO, dropout, factor=0.7), "O") == {"dropout"}
    anew = lambda Q, K, V, dO, dropout=0.0: dropping(Q, K, V, dO, dropout, anew=True)  # noqa: E731
    assert where(anew, "dV") == where(anew, "dQ") == {"dropout"}
    assert where(anew, "O") == set()


def test_an_empty_sequence():
    """flash-attention PR#2776: a gradient that nothing wrote to."""

    def careless(Q, K, V, dO, **options):
        O, dQ, dK, dV = right(Q, K, V, dO, **options)
        return O, dQ, dK + (np.nan if Q.shape[-2] == 0 else 0.0), dV

    assert where(careless, "dK") == {"no queries"}  # of no keys there is nothing to be wrong


# --- precision ----------------------------------------------------------------------------------------------------


def tf32(T):
    bits = T.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def rounded(T):
    return torch.from_numpy(T.astype(np.float32)).bfloat16().float().numpy()


def by_products(product):
    """The definition, with every product of matrices made by ``product``."""

    def fn(Q, K, V, dO):
        s = np.asarray(Q.shape[-1] ** -0.5, dtype=Q.dtype)
        S = s * product(Q, mT(K))
        E = np.exp(S - S.max(-1, keepdims=True))
        P = E / E.sum(-1, keepdims=True)
        dP = product(dO, mT(V))
        dS = P * (dP - (P * dP).sum(-1, keepdims=True))
        return product(P, V), s * product(dS, K), s * product(mT(dS), Q), product(mT(P), dO)

    return fn


@pytest.mark.parametrize(
    ("round_", "dtype", "words"),
    [
        (tf32, "float64", "TF32 or float16 only, though float64"),
        (rounded, "float32", "bfloat16 only, though float32"),
    ],
)
def test_products_in_less_precision_are_named_as_that(round_, dtype, words):
    report = ab.diagnose(by_products(lambda A, B: round_(A) @ round_(B)), dtype=dtype)
    assert [(f.about, f.kind) for f in report.findings] == [(name, "precision") for name in ("O", "dQ", "dK", "dV")]
    assert all(words in f.text for f in report.findings)
    assert "computed in less precision than it takes" in str(report)
    assert ab.diagnose(by_products(np.matmul), dtype=dtype).ok


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.thorough)])
def test_no_mistake_of_the_catalogue_passes_for_less_precision(dtype):
    for mistake in MISTAKES[::6]:
        call = Caller(mistake.run, "numpy", dtype=dtype)
        small = [case for case in battery(0, dtype) if case.inputs[0].shape[-2] < 60]
        compared = [run for case in small if (run := Run(case, call(case))).compared]
        wrong = wrong_in(compared)
        assert wrong, mistake.slug
        assert imprecise(wrong, compared) == ({}, []), mistake.slug


def matmul(A, B):
    return (A.float() @ B.float()).to(A.dtype)


def summed(A, B):
    """zhuzilin/ring-flash-attention#42 at its worst, a term at a time: no error of the formula, and worth knowing."""
    out = torch.zeros((*A.shape[:-1], B.shape[-1]), dtype=A.dtype)
    for j in range(A.shape[-1]):
        out += A[..., j : j + 1] * B[..., j : j + 1, :]
    return out


@pytest.mark.parametrize(
    ("product", "dtype", "noted"),
    [(matmul, "bfloat16", ""), pytest.param(matmul, "float16", "", marks=pytest.mark.thorough),
     (summed, "bfloat16", "O, dV: ")],
)  # fmt: skip
def test_a_kernel_that_rounds_weights_to_16_bits_is_right(product, dtype, noted):
    """As fused kernels do it: P and dS are rounded before they are multiplied. Sums in 16 bits are a note."""

    def fn(Q, K, V, dO):
        P = ((Q.float() @ K.float().mT) * Q.shape[-1] ** -0.5).softmax(-1)
        dP = dO.float() @ V.float().mT
        dS = P * (dP - (P * dP).sum(-1, keepdim=True)) * Q.shape[-1] ** -0.5
        P, dS = P.to(Q.dtype), dS.to(Q.dtype)
        return product(P, V), product(dS, K), product(dS.mT, Q), product(P.mT, dO)

    report = ab.diagnose(fn, library="torch", dtype=dtype)
    assert report.ok, str(report)
    assert len(report.compared) >= 25
    notes = [note for note in report.notes if "16 bits" in note]
    assert [note.startswith(noted) and '"long sums"' in note for note in notes] == [True] * bool(noted)


def test_ours_with_ops_is_asked_everything():
    report = ab.diagnose(with_ops)
    assert report.ok, str(report)
    assert set(BY_NAME) <= set(report.compared)
    assert (report.crossed, report.apart, report.unasked) == (FEATURES, (), ())


def test_a_note_on_sums_in_16_bits_hides_no_finding():
    def fn(Q, K, V, dO, causal=False, scale=None):
        given, scale = scale, Q.shape[-1] ** -0.5 if scale is None else scale
        S = (Q.float() @ K.float().mT) * scale
        P = (S.masked_fill(torch.ones_like(S).triu(1) > 0, -torch.inf) if causal else S).softmax(-1)
        dP = dO.float() @ V.float().mT
        dS = P * (dP - (P * dP).sum(-1, keepdim=True)) * scale
        P, dS = P.to(Q.dtype), dS.to(Q.dtype)
        dV = summed(P.mT, dO) * (2 if causal and given else 1)
        return summed(P, V), matmul(dS, K), matmul(dS.mT, Q), dV

    report = ab.diagnose(fn, library="torch", dtype="bfloat16")
    assert any("16 bits" in note for note in report.notes)
    assert [(f.about, f.cases[-1]) for f in report.findings] == [("dV", "causal, scale")], str(report)
