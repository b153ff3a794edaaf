"""What the fused spine refuses, by which error; and its own tests, tried by mistakes planted in its kernels."""

import math
from functools import partial

import kernels
import pytest
import torch
from cases import CASES
from fused_cases import LONG, ROWS, attend, fits, holds, large_scores_in_any_order
from kernels import DEVICE
from planting import first_of_each

import attnbook as ab
from attnbook.ops import ALiBi, Bias, RelativeBias, Scale, Sink, Softcap, Window

kernels.triton_or_skip()
from triton.runtime.errors import InterpreterError  # noqa: E402

from attnbook.spines import Way  # noqa: E402
from attnbook.spines.fused import capability, launch, tile  # noqa: E402


@pytest.fixture(autouse=True)
def small_tiles():
    with kernels.small_tiles():
        yield


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [case for case in CASES if not fits(case)], ids=str)
def test_other_ops_are_refused(case):
    with pytest.raises(ValueError, match=r"ops: expected a Softcap, .* op that declares in_kernel, for"):
        attend(case)


ONES = [torch.ones(s) for s in ((3, 5, 16), (3, 7, 16), (3, 7, 13))]


def fused_on(*tensors, **options):
    return lambda: ab.attention(*tensors, method="fused", **options)


def on_device(name):
    return lambda: ab.attention(*(T.to(name) for T in ONES), method="fused")


WIDE, LONG_ROW = torch.ones(3, 5, 257), torch.ones(1, 16).expand(2**30 + 1, 16)
REFUSED = [
    (fused_on(*(T.numpy() for T in ONES)), TypeError, "Q: expected a torch tensor .*, got a numpy array"),
    (fused_on(*(T.double() for T in ONES)), TypeError, "Q: expected float32, bfloat16, float16 .*64"),
    (fused_on(*(T.half() for T in ONES[:2]), ONES[2]), TypeError, "V: expected dtype torch.float16 like Q, got"),
    (fused_on(ONES[0].long(), *ONES[1:]), TypeError, "Q: expected a floating dtype, got torch.int64"),
    (on_device("meta"), ValueError, "Q: expected a tensor on a CUDA device .*, got device meta"),
    (fused_on(WIDE, WIDE, WIDE), ValueError, "Q: expected a head width of at most 256 .*, got 257"),
    (fused_on(ONES[0], ONES[1], torch.ones(3, 7, 300)), ValueError, "V: expected a head width .*, got 300"),
    (fused_on(LONG_ROW, *ONES[1:]), ValueError, r"Q: expected at most 1073741824 tokens, .* got scores of"),
    (fused_on(*ONES, scale=1e-40), ValueError, "scale: expected a scale or cap between 1e-30 and 1e"),
    (fused_on(*ONES, ops=[ALiBi(ONES[0][0, 0, 0], "top-left")] * 2), ValueError, "ops: expected .* got ALiBi, ALiBi"),
    (fused_on(*ONES, ops=[RelativeBias(torch.ones(3), None, "top-left")]), ValueError, "ops: .* got RelativeBias"),
    (fused_on(*ONES, ops=[Window(1, 1, "top-left", 2)]), ValueError, "ops: expected .* got Window"),
    (fused_on(*ONES, ops=[Scale(2.0), Softcap(2.0)]), ValueError, "ops: expected a Softcap, then .*, Softcap"),
    (fused_on(ONES[0].clone().requires_grad_(), *ONES[1:]), ValueError, "Q: expected a tensor that needs no gradient"),
    (fused_on(*ONES, ops=[Sink(torch.ones(3).requires_grad_())]), ValueError, "ops, Sink: expected a tensor that n"),
    (fused_on(ONES[0], ONES[1].to("meta"), ONES[2]), ValueError, "K: expected device cpu like Q, got meta"),
    (fused_on(*ONES, mask=torch.ones(5, 7, dtype=torch.bool, device="meta")), ValueError, "mask: expected device cpu"),
    (fused_on(*ONES, ops=[Bias(torch.ones(4, 7), fixed=True)]), ValueError, "ops, Bias: expected a shape that broad"),
    (fused_on(*ONES, ops=[Bias(torch.ones(7).double(), fixed=True)]), TypeError, "ops, Bias: expected torch.float32"),
    (lambda: ab.attention(*ONES, method=Way("fused", (2, 3))), TypeError, "method, tiles: expected Tiles .*(2, 3)"),
]  # fmt: skip


@pytest.mark.skipif(DEVICE != "cpu", reason="these tensors lie on the CPU")
@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_it_is_refused(call, error, message, monkeypatch):
    monkeypatch.setattr(launch, "run", lambda *_, **__: None)  # no work before
    with pytest.raises(error, match=f"^{message}"):
        call()


def test_no_triton(monkeypatch):
    monkeypatch.setattr(capability, "has_triton", lambda: False)
    with pytest.raises(ModuleNotFoundError, match="method: expected Triton for 'fused'"):
        fused_on(*ONES)()


@pytest.mark.parametrize(("has", "came"), [((7, 5), "7.5"), (None, "another")])
def test_an_old_gpu(has, came, monkeypatch):
    monkeypatch.setattr(tile, "INTERPRETED", False)
    with pytest.raises(ValueError, match="Q: expected a tensor on a CUDA device"):
        fused_on(*ONES)()
    monkeypatch.setattr(capability, "_capability", lambda index: has)
    looks_like = type("Tensor", (), {"device": torch.device("cuda", 0)})()
    error = capability._of_device("Q", looks_like)
    assert (
        str(error)
        == f"Q: expected a GPU of NVIDIA's with compute capability 8.0 or more for method 'fused', got {came}"
    )
    monkeypatch.setattr(capability, "_capability", lambda index: (8, 0))
    assert capability._of_device("Q", looks_like) is None


# --- the checks, tried by mistakes --------------------------------------------------------------------------------


def scores_of(row):
    return math.prod(row[0].scores)


LAWS = [partial(holds, case, **how) for case, how in sorted(ROWS, key=scores_of)]
"""The small ones first: most mistakes are seen by one of these."""
IN_ANY_ORDER = partial(large_scores_in_any_order, LONG)
# None reads or writes beyond an array: that would not fail here, but end the process.
MISTAKES = [
    ("load", "(start + row < n) & (col < WIDTH)", "(start + row < n - 1) & (col < WIDTH)"),
    ("load", "(row * T.row + col)", "(row * T.row)"),
    ("store", "h * T.head", "0 * T.head"),
    ("load_pairs", " + tl.cast(j0, tl.int64) * T.col", ""),
    ("scores", "!= 0", "== 0"),
    ("scores", "distance <= table.high", "distance < table.high"),
    ("tanh", "x2 * (2 / 15", "x2 * (0 / 15"),
    ("exponent", "(U - M) * table.unit - G", "U * table.unit - M - G"),
    ("weights", "U, M, G, table", "U, M, 0 * G, table"),
    ("before_cap", "1 - T * T", "1 - T"),
    ("span", "tl.minimum(stop + high, n)", "tl.minimum(start + high, n)"),
    ("edge", "first + t * STEP", "first + (t + 1) * STEP"),
    ("edges", "tl.cdiv(tl.maximum(last - inner_last, 0), STEP)", "0"),
    ("forward_kernel", 'tl.where(dead, float("inf"), Z)', "Z"),
    ("forward_kernel", "tl.where(dead, 0.0, M)", "M"),
    ("absorb", "(M - shift) * table.unit", "(shift - M) * table.unit"),
    ("absorb", 'tl.where(highest == float("-inf"), 0.0, highest)', "highest"),
    ("row_sums", "do * o", "do"),
    ("of_rows", "if M_of is not None:", "if False:"),
    ("backward_keys", "low = -table.high", "low = table.high"),
    ("backward_keys", "h_kv * group + place", "h_kv * group"),
    ("tile_of_keys", "P * (dP - D[None, :])", "P * dP"),
    ("tile_of_keys", "tl.dot(P.to(do.dtype), do, dV", "tl.dot(P.to(do.dtype), do"),
    ("tile_of_keys", "X = tl.trans(tl.dot(q, tl.trans(k), input_precision=PRODUCTS))",
     "X = tl.dot(k, tl.trans(q))", IN_ANY_ORDER),
    ("backward_queries", "before_cap(dS, T, table).to(k.dtype), k, dQ, input_precision=PRODUCTS)\n    store",
     "dS.to(k.dtype), k, dQ, input_precision=PRODUCTS)\n    store"),
    ("tile_of_dS", "P * (dP - D[:, None])", "P * dP"),
    ("backward_bias", "tl.range(0, batches * heads)", "tl.range(0, heads)"),
    ("backward_bias", "tl.range(i_first, i_last, ROWS)", "tl.range(i_first, tl.minimum(i_last, i_first + ROWS), ROWS)"),
    ("backward_bias", "tl.maximum(first, j_first)", "tl.maximum(first, j_first) + COLS"),
    ("distances", "-p.slopes", "p.slopes"),
    ("distances", "0 if data.shape[1] == 1 else head", "0"),
    ("forward", "call.table.unit * LN2", "call.table.unit"),
    ("prepare", "scale = abs(plan.scale) or 1.0", "scale = triton.next_power_of_2(Q.shape[-1]) ** -0.5"),
    ("prepare", "like * sign", "like"),
    ("vjp", "less_dL(D[..., None], dL, Z)[..., 0]", "D - dL"),
    ("vjp", "call.K.group if call.K.group == call.V.group else 1", "call.K.group"),
    ("bias_vjp", "dB.sum_to_size(own)", "dB[:1, :1].reshape(own)"),
    ("rows", "T.shape[-1] > 1 and T.stride(-1) != 1", "False"),
    ("pairs", "0 if n == 1 else step", "0"),
    ("folded", "(T.stride(0), T.stride(1))", "(0, T.stride(1))"),
]  # fmt: skip


@pytest.mark.skipif(DEVICE != "cpu", reason="what is compiled for a GPU does not see a mistake planted later")
@pytest.mark.parametrize(
    ("function", "right", "wrong", "laws"), first_of_each([(*row[:3], row[3:] or LAWS) for row in MISTAKES])
)
def test_it_is_noticed(function, right, wrong, laws):
    with (
        kernels.mistake(function, right, wrong),
        pytest.raises((AssertionError, InterpreterError, RuntimeError)),
    ):
        all(law() is None for law in laws)
