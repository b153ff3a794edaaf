"""What the fused spine refuses, and by which error."""

import kernels
import pytest
import torch
from cases import CASES
from fused_cases import attend, fits
from kernels import DEVICE

import attnbook as ab
from attnbook.ops import ALiBi, Bias, RelativeBias, Scale, Sink, Softcap, Window

kernels.triton_or_skip()
from attnbook.spines import Way  # noqa: E402
from attnbook.spines.fused import capability, launch, tile  # noqa: E402


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
