"""The fused spine: its kernels beside plain torch, by Triton's interpreter or on a GPU, in all their features.

All outputs lie in memory that was full of NaN.
"""

from dataclasses import replace

import kernels
import numpy as np
import pytest
import test_extremes as extremes
import torch
from cases import CASES, Case
from fused_cases import FLOAT16, FLOAT32, LONG, OF, ROWS, attend, fits, holds
from kernels import DEVICE
from planting import by_turns

import attnbook as ab
from attnbook.ops import ALiBi, Bias, RelativeBias, Scale, Sink, Softcap, Window

kernels.triton_or_skip()
from attnbook.spines import Way  # noqa: E402
from attnbook.spines.fused import capability, forward_kernel, launch, tile  # noqa: E402

BALANCED = {"bias for all keys": "dbias", "bias of no axis": "dbias", "one query, one key": "dQ"}
"""Here this gradient is 0, a row of dS summed, and what comes is rounding alone."""


@pytest.fixture(autouse=True)
def small_tiles():
    with kernels.small_tiles():
        yield


# --- values and gradients -----------------------------------------------------------------------------------------

# What no row of the cover has. By the interpreter, the other cases are thorough.
SMALL = (
    "no query", "no key", "empty batch", "scale of zero", "sink and no key", "documents, causal, grouped, biased",
    "prefix", "blocks of each head, bottom-right, cap",
)  # fmt: skip


@pytest.mark.parametrize(("case", "how"), ROWS, ids=str)
def test_on_tiles(case, how):
    """Every pair of what the kernels can be given, on several tiles."""
    holds(case, **how)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case.name in SMALL or DEVICE != "cpu" else pytest.mark.thorough)
        for case in CASES
        if fits(case) and case.name not in BALANCED
    ],
)
def test_small(case):
    holds(case, dL=False)


@pytest.mark.parametrize(("d_k", "d_v"), [(256, 40), (96, 200)])
def test_wide_heads(d_k, d_v):
    holds(Case("", q=(5, d_k), k=(7, d_k), v=(7, d_v), causal=True))


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
def test_large_scores(dtype):
    """Scores of ± 3000: no overflow, and no larger errors than others have."""
    holds(replace(LONG, causal=dtype == FLOAT16), dtype, size=1000.0)


@pytest.mark.skipif(DEVICE != "cpu", reason="the interpreter's products")
def test_large_scores_in_any_order():
    """The backward finds M again, to the bit, although a product lying down is not what it is upright."""
    with kernels.upright_and_lying_products_differ():
        holds(LONG, size=1000.0)


@pytest.mark.parametrize("name", BALANCED)
def test_gradients_that_balance(name):
    _, res, dO, _ = attend(OF[name])
    assert getattr(ab.attention_vjp(dO, res), BALANCED[name]).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("dtypes", "name"), by_turns([(FLOAT32,), (FLOAT16,), (FLOAT16, FLOAT32)], extremes.BIASES, ("lowest",))
)
def test_a_bias_at_the_ends_of_its_dtype(name, dtypes):
    """The lowest or the highest number: no NaN, and what a textbook's lines in float64 give."""
    dtype, of_bias = dtypes[0], dtypes[-1]
    numpy = [getattr(np, str(T).removeprefix("torch.")) for T in (dtype, of_bias)]
    *given, B = *extremes.inputs(numpy[0]), extremes.bias_of(name, numpy[1])
    Q, K, V, dO, bias = (torch.tensor(T, device=DEVICE) for T in (*given, B))
    how = {"bias": bias} if of_bias == dtype else {"ops": [Bias(bias, fixed=True)]}
    with np.errstate(over="ignore"):  # of the interpreter: a score minus the highest may be −∞
        O, res = ab.attention(Q, K, V, method="fused", **how)
        *grads, dbias, _ = ab.attention_vjp(dO, res)
    wanted = extremes.reference(*given, B)
    found = [T.cpu() for T in (O, res.L, *grads)]
    extremes.agree([*found, wanted[-1] if dbias is None else dbias.cpu()], wanted, numpy[0])


def test_the_tangent_at_large_scores():
    """As exact as that of the tiled spine: its own products find M, not those of the kernels."""
    case = replace(LONG, bias=(2, 37, 53))
    inputs = [torch.tensor(T, dtype=FLOAT32, device=DEVICE) for T in case.draw()]
    inputs[0] *= 1000
    tangents = [torch.tensor(T, dtype=FLOAT32, device=DEVICE) for T in case.draw(seed=1)]

    def push(method, dtype):
        Q, K, V, *rest = (T.to(dtype) for T in inputs)
        _, res = ab.attention(Q, K, V, method=method, **case.options(Q, *rest))
        return [T.double() for T in case.push([T.to(dtype) for T in tangents], res, with_L=True)]

    ways = ("fused", FLOAT32), ("tiled", FLOAT32), ("dense", torch.float64)
    for T, of_tiled, true in zip(*(push(*way) for way in ways), strict=True):
        assert (T - true).abs().max() <= 2 * (of_tiled - true).abs().max()


# --- how they work ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["keys and values grouped apart", "bias for all heads"])
def test_the_same_bits_each_time(name):
    O, res, dO, _ = attend(OF[name])
    first, second = ([T for T in ab.attention_vjp(dO, res)[:4] if T is not None] for _ in range(2))
    assert all(map(torch.equal, first, second))
    assert torch.equal(attend(OF[name])[0], O)


def test_nothing_is_copied_that_lies_in_even_steps():
    Q = torch.ones(2, 5, 3, 16).transpose(1, 2)
    mask, lead = torch.ones(2, 1, 1, 7, dtype=torch.bool), (2, 3)
    for T in (Q, Q[:, :1], Q[0], torch.ones(1, 5, 16).expand(2, 3, 5, 16)):
        assert launch.rows(T, lead).data.data_ptr() == T.data_ptr()
    for T in (mask, mask.expand(2, 3, 5, 7), mask[0, 0, 0], torch.ones(2, 3, 7, 5).mT, torch.ones(())):
        made = launch.pairs(T, lead, 5, 7)
        assert made.data.untyped_storage().data_ptr() == T.untyped_storage().data_ptr()
    assert launch.pairs(mask, lead, 5, 7)[1:] == (7, 0, 0, 1)


@pytest.mark.skipif(DEVICE == "cpu", reason="torch CUDA: no GPU here")
def test_places_beyond_32_bits():
    memory = torch.zeros(2**31 + 2**20, dtype=FLOAT16, device=DEVICE)
    Q, K, V = torch.randn(3, 2, 37, 32, device=DEVICE, dtype=FLOAT16)
    far = memory.as_strided((2, 37, 32), (2**31, 1000, 1)).copy_(K)
    results = [ab.attention(Q, T, V, method="fused", causal=True) for T in (K, far)]
    assert torch.equal(results[0][0], results[1][0])
    assert all(map(torch.equal, *(ab.attention_vjp(Q, res)[:3] for _, res in results)))


@pytest.mark.parametrize(
    ("options", "visits"),
    [
        ({}, 2 * 6),
        ({"causal": True}, 2 * 4),
        ({"ops": [Window(4, 4, "top-left")]}, 2 * 5),
        ({"causal": "bottom-right"}, 2 * 5),
    ],
    ids=["all", "causal", "window", "bottom-right"],
)
@pytest.mark.skipif(DEVICE != "cpu", reason="only the interpreter's visits can be counted")
def test_what_is_masked_is_not_visited(options, visits, monkeypatch):
    seen, absorb = [], forward_kernel.absorb
    monkeypatch.setattr(forward_kernel, "absorb", lambda *args: (seen.append(1), absorb(*args))[1])
    Q, K, V = (torch.ones(2, n, 16) for n in (37, 53, 53))
    ab.attention(Q, K, V, method="fused", **options)
    assert len(seen) == visits


def test_float32_is_not_rounded_to_tf32(monkeypatch):
    """Unless torch has been told that it may be."""
    asked = []
    monkeypatch.setattr(launch, "run", lambda *args, **constants: asked.append(constants["PRODUCTS"]))
    Q = torch.ones(5, 16, device=DEVICE)
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        for allowed in ("ieee", "tf32"):
            matmul.fp32_precision = allowed
            ab.attention(Q, Q, Q, method="fused")
        ab.attention(Q.half(), Q.half(), Q.half(), method="fused")
    finally:
        matmul.fp32_precision = before
    assert asked == ["ieee", "tf32", "ieee"]


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
