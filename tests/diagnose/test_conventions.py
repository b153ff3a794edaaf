"""diagnose asks a function in what it takes: narrow ones that are right pass, wrong ones do not, of every library."""

from functools import partial

import numpy as np
import pytest
import torch
from attentions import told
from attentions.narrow import (
    flash_attn,
    flash_attn_varlen,
    limited,
    never_causal_back,
    triton_tutorial,
    xformers,
)
from attentions.right import by_steps

import attnbook as ab
from attnbook.diagnose.case import MEMORY
from attnbook.diagnose.cases.battery import battery
from attnbook.diagnose.learn.adapters import adapter
from attnbook.diagnose.learn.caller import Caller
from attnbook.diagnose.learn.convention import Convention

TRITON = {"dtypes": ("float16",), "widths": (16, 32, 64, 128, 256), "length_of": 128, "equal": ("widths", "lengths")}


def flash_in_numpy(backward=by_steps):
    return limited(backward, dtypes=("float16",), width_of=8, equal=("widths",))


NARROW = {
    flash_attn: ("b, n, h, d as axes; widths that 8 divides; d_v = d_k only; float16 or bfloat16 only", {}),
    flash_attn_varlen: ("n, h, d with cu_seqlens as axes; widths that 8 divides; d_v = d_k only", {}),
    xformers: ("as many key heads as query heads; float32, float16 or bfloat16 only", {}),
    triton_tutorial: (
        "lengths that 128 divides; widths 16, 32, 64, 128 or 256 only; n_q = n_k only; d_v = d_k only",
        {"one query": "it does not take a length of 1", "causal, more keys": "it takes as many queries as keys only",
         "grouped heads": "it does not take key heads that are shared",
         "128 queries and keys, causal": "at the sizes that it takes, it is "},
    ),
    flash_in_numpy: ("4 axes only; widths that 8 divides; d_v = d_k only; float16 only", {}),
}  # fmt: skip
"""A function with limits, what the report says of them, and of cases that they leave out."""


@pytest.mark.parametrize("make", NARROW, ids=lambda make: make.__name__)
def test_a_right_function_is_ok_however_narrow(make):
    report, (limits, left_out) = told(make()), NARROW[make]
    assert report.ok, str(report)
    assert len(report.compared) >= 18
    assert limits in report.notes[0]
    assert all(report.not_run[name].startswith(why) for name, why in left_out.items())


@pytest.mark.parametrize("make", [flash_in_numpy, pytest.param(flash_attn, marks=pytest.mark.thorough)])
def test_a_wrong_one_is_not(make):
    report = ab.diagnose(make(never_causal_back))
    about = [f for f in report.findings if f.kind == "wrong"]
    assert {"dQ", "dV"} <= {f.about for f in about} <= {"dQ", "dK", "dV"}
    asked = {case.name: case for case in battery(convention=Caller(make()).convention)}
    assert all(asked[name].options.get("causal") for f in about for name in f.cases)


@pytest.mark.parametrize("axes", [(2,), (3,), (2, 4)], ids=str)
def test_numbers_of_axes(axes):
    fn = limited(dtypes=("float64",), axes=axes)
    call = Caller(fn)
    assert call.convention.axes == axes
    report = ab.diagnose(fn)
    assert report.ok, str(report)
    wide = [case for case in battery(convention=call.convention) if case.inputs[0].ndim not in axes]
    assert not wide or all(call(case).kind in ("values", "not run") for case in wide)


def unless(refused, words="no"):
    """Right, but for sizes of Q and K that it refuses."""

    def fn(Q, K, V, dO):
        if refused(Q, K):
            raise ValueError(words)
        return by_steps(Q, K, V, dO)

    return fn


def no_power(Q, K):
    return any(T.shape[-2] & (T.shape[-2] - 1) for T in (Q, K))


of_any_axes = partial(limited, dtypes=("float64",), axes=(2, 3, 4))

SIZES = {
    "one width": (of_any_axes(equal=("widths",)), {"equal_widths": True}),
    "as many": (of_any_axes(equal=("lengths",)), {"equal_lengths": True}),
    "lengths that 64 divides": (of_any_axes(length_of=64), {"length_of": 64, "length_from": 64}),
    "widths that 16 divides": (of_any_axes(width_of=16), {"width_of": 16, "width_from": 16}),
    "a few widths": (of_any_axes(widths=(32, 64)), {"widths": (32, 64)}),
    "powers of 2": (unless(no_power), {"lengths": (8, 16, 32, 64, 128, 256, 512)}),
    "a minimum": (unless(lambda Q, K: Q.shape[-1] < 16), {"width_from": 16, "width_of": 1}),
}
"""A function with one limit, and what is found out of its sizes; the rest is as where nothing is refused."""


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name):
    fn, wanted = SIZES[name]
    convention, plain = Caller(fn).convention, Convention()
    assert {key: getattr(convention, key) for key in wanted} == wanted
    unchanged = {"length_of", "width_of", "equal_lengths", "equal_widths", "widths", "lengths"} - wanted.keys()
    assert {key: getattr(convention, key) for key in unchanged} == {key: getattr(plain, key) for key in unchanged}
    assert ab.diagnose(fn).ok


def test_a_batch_and_heads_that_are_fixed():
    one = unless(lambda Q, K: Q.ndim != 4 or not Q.shape[:2] == K.shape[:2] == (1, 2))
    call = Caller(one)
    assert (call.convention.batch, call.convention.heads) == (1, 2)
    report = ab.diagnose(one)
    assert report.ok, str(report)
    assert len(report.compared) >= 18
    assert "a batch of 1 only; a number of heads of 2 only" in report.notes[0]


# --- layouts, words, corners --------------------------------------------------------------------------------------


def test_the_layout_is_the_one_in_which_o_is_right():
    def third(Q, K, V, dO):
        assert Q.shape == K.shape == V.shape
        return tuple(T.swapaxes(1, 2) for T in by_steps(*(T.swapaxes(1, 2) for T in (Q, K, V, dO))))

    assert Caller(third).convention.layout == "heads third"
    assert ab.diagnose(third).ok
    assert Caller(limited(**TRITON)).convention.layout == "heads first"


def test_causal_of_flash_attn_is_at_the_bottom_right():
    report = told(flash_attn())
    assert {"bottom-right, more keys", "bottom-right, fewer keys"} <= set(report.compared)
    assert report.not_run["causal, more keys"] == "its causal is of the corner at the bottom right"

    def without_its_names(Q, K, V, dO, causal=False):
        return by_steps(Q, K, V, dO, causal="bottom-right" if causal else False)

    assert ab.diagnose(without_its_names).mistakes == ("causal-bottom-right",)


# --- a limit, or a mistake ----------------------------------------------------------------------------------------


def no_mask(Q, K, V, dO, mask=None):
    if mask is not None:
        raise ValueError("no masks yet")
    return by_steps(Q, K, V, dO)


def in_order(names):
    """Refuses these where their memory is not in order, by a message that says nothing of that."""

    def fn(Q, K, V, dO):
        for name, T in zip(("Q", "K", "V", "dO"), (Q, K, V, dO), strict=True):
            if name in names and not T.flags.c_contiguous:
                np.zeros(3) @ np.zeros(2)
        return by_steps(Q, K, V, dO)

    return fn


def tutorial(q, k, v, causal, sm_scale):
    return ab.attention(q, k, v, causal=causal, scale=sm_scale)[0]


@pytest.mark.parametrize(
    ("fn", "reasons"),
    [
        (no_mask, {"mask": "it refuses mask: ValueError: no masks yet"}),
        (unless(lambda Q, K: Q.shape[-1] > 128 or Q.shape[-2] > 200, "too large"),
         {"width 256": "it takes no width of 256: ValueError: too large",
          "257 queries, 300 keys": "it takes no length of 300: ValueError: too large"}),
        (in_order("QKV"), {}),
        (tutorial, {"mask": "it does not take mask"}),
    ],
    ids=["an option", "a size", "memory", "no default"],
)  # fmt: skip
def test_what_is_always_refused_is_a_limit(fn, reasons):
    report = ab.diagnose(fn)
    assert report.ok, str(report)
    assert {name: report.not_run[name] for name in reasons} == reasons
    assert fn is not tutorial or {"plain", "scale", "causal, more keys"} <= set(report.compared)


def some_masks(Q, K, V, dO, mask=None):
    if mask is not None and mask.shape[-2] == 1:
        raise ValueError("no padding")
    return by_steps(Q, K, V, dO, mask=mask)


def crashes(Q, K, V, dO, mask=None):
    return by_steps(Q, K, V, dO) if mask is None else np.zeros(3) @ np.zeros(2)


but_one_key = unless(lambda Q, K: K.shape[-2] == 1)
no_rest = unless(lambda Q, K: Q.shape[-2] > 64 and Q.shape[-2] % 64)


def dv_crashes(Q, K, V, dO):
    O, dQ, dK, _ = by_steps(Q, K, V, dO)
    return O, dQ, dK, O.T @ dO @ V.T


def wrong_but_at_eight(Q, K, V, dO):
    O, dQ, dK, dV = by_steps(Q, K, V, dO)
    return O, dQ, dK * (1 if K.shape[-2] % 8 == 0 else 1.1), dV


@pytest.mark.parametrize(
    ("fn", "kinds"),
    [
        (some_masks, ["raised"]), (crashes, ["raised"]), (but_one_key, ["raised"]), (no_rest, ["raised"]),
        (in_order(("dO",)), ["raised"]), (dv_crashes, ["wrong", "raised"]), (wrong_but_at_eight, ["wrong"]),
    ],
)  # fmt: skip
def test_what_is_refused_at_times_is_a_mistake(fn, kinds):
    report = ab.diagnose(fn)
    assert [f.kind for f in report.findings] == kinds, str(report)
    assert fn is not but_one_key or report.findings[0].cases == ("one key",)


def test_what_is_given_decides():
    with pytest.raises(TypeError, match=r"got the class Mine: give an instance, Mine\(…\)"):
        ab.diagnose(Mine)
    assert not ab.diagnose(by_a_method, "numpy").ok  # a library that is said is the one


# --- what it is given ---------------------------------------------------------------------------------------------


class Mine(torch.nn.Module):
    def forward(self, Q, K, V):
        return (Q @ K.mT * Q.shape[-1] ** -0.5).softmax(-1) @ V


def annotated(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
    return Mine()(Q, K, V)


def by_a_method(Q, K, V):
    return Q.matmul(K.transpose(-1, -2)).mul(Q.shape[-1] ** -0.5).softmax(-1).matmul(V)


@pytest.mark.parametrize("fn", [Mine(), annotated, by_a_method])
def test_the_library_is_found_out(fn):
    assert Caller(fn).convention == Convention()
    call = Caller(fn)
    _ = call.convention
    assert (call.library, call.form) == ("torch", "autograd")
    assert ab.diagnose(fn).ok


# --- gradients of options -----------------------------------------------------------------------------------------


def came_of(fn, name, library=None):
    call = Caller(fn, library)
    (case,) = (case for case in battery(convention=call.convention) if case.name == name)
    return call(case)


@pytest.mark.parametrize(
    ("backward", "takes"),
    [
        (lambda dO, res: ab.attention_vjp(dO, res), False),
        (lambda dO, res, scale=None: ab.attention_vjp(dO, res), False),
        (lambda dO, res, *, dL=None: ab.attention_vjp(dO, res, dL), False),
        (lambda dO, res, dlse=None: ab.attention_vjp(dO, res, dlse), True),
        (lambda *given: ab.attention_vjp(*given), True),
        (ab.attention_vjp, True),
    ],
)
def test_a_backward_is_asked_for_dL_where_it_takes_a_third_argument(backward, takes):
    came = came_of((ab.attention, backward), "loss that uses L, the log-sum-exp")
    assert (came.kind, came.text) == (("values", "") if takes else ("not run", "it does not take dL"))


def test_gradients_of_a_bias_and_a_sink():
    came = came_of((ab.attention, ab.attention_vjp), "bias", "torch")
    assert came.values["dbias"].shape == came.options["bias"].shape
    came = came_of(lambda Q, K, V, bias=None: annotated(Q, K, V), "bias", "torch")
    assert came.absent == ("dbias",)
    assert "dbias" not in came.values

    def by_name(Q, K, V, dO, *, bias=None):
        O, dQ, dK, dV = by_steps(Q, K, V, dO, bias=bias)
        return {"O": O, "dQ": dQ, "dK": dK, "dV": dV, "dbias": 0 * bias}

    assert not came_of(by_name, "bias").values["dbias"].any()


# --- memory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("kind", MEMORY)
def test_the_same_values_in_other_memory(library, kind):
    arrays = adapter(library)
    T = np.arange(24.0).reshape(1, 2, 3, 4)
    T = np.broadcast_to(T, (2, 2, 3, 4)) if kind == "expanded" else T
    if kind not in arrays.memory:
        with pytest.raises(NotImplementedError, match="negative strides"):
            arrays.make(T, "float32", kind)
        return
    made = arrays.make(T, "float32", kind)
    assert np.array_equal(arrays.wide(made), T)
    if library == "numpy":
        assert not made.flags.c_contiguous
        strides = {"transposed": (4, 12), "sliced": (32, 8), "reversed": (-16, 4)}
        assert made.strides[0] == 0 if kind == "expanded" else made.strides[-2:] == strides.get(kind, (32, 4))
    else:
        assert not made.is_contiguous()
