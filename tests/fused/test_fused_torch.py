"""attnbook.torch on the fused kernels: torch's function beside plain torch, and what goes another way."""

from functools import partial
from types import SimpleNamespace

import kernels
import pytest
import torch
from kernels import DEVICE
from test_torch_compile import compiled
from test_torch_sdpa import CASES as TORCH_CASES
from test_torch_sdpa import as_exact_as_torch, draw, gradients, on, torchs
from torch import func

from attnbook.ops import Segments, Sink, Softcap
from attnbook.torch import _passes as passes
from attnbook.torch import attention, scaled_dot_product_attention

kernels.triton_or_skip()

FLOAT32, FLOAT16, BFLOAT16 = torch.float32, torch.float16, torch.bfloat16


@pytest.fixture(autouse=True)
def small_tiles():
    with kernels.small_tiles():
        yield


@pytest.fixture
def calls():
    found = []
    with kernels.wired(found):
        yield found


BESIDE = {name: case for name, case in TORCH_CASES.items() if not name.startswith(("large", "one number"))}
# By the interpreter, those that differ in what the kernels are given; each takes half a second.
SOME = (
    "leading axes that broadcast", "a scale", "bool mask with a dead row", "float32 mask", "shared heads, float mask",
    "no key", "keys without width",
)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SOME or DEVICE != "cpu" else pytest.mark.thorough) for name in BESIDE],
)
def test_torchs_function_takes_the_kernels(name, calls):
    shapes, options = BESIDE[name]
    as_exact_as_torch(*on(DEVICE, draw(*shapes), options), FLOAT32)
    assert calls == ["forward", "vjp"]


@pytest.mark.parametrize(
    ("dtype", "width", "options"),
    [
        (torch.float64, 11, {}),
        (FLOAT32, 300, {}),
        (FLOAT32, 11, {"dropout_p": 0.3}),
        (FLOAT32, 11, {"scale": 1e-35}),
        (FLOAT16, 11, {"attn_mask": draw((5, 7), device=DEVICE)[0].float()}),  # its gradient is float32
    ],
    ids=["float64", "wide heads", "dropout", "a tiny scale", "a float32 mask for 16 bits"],
)
def test_what_the_kernels_cannot_do_goes_another_way(dtype, width, options, calls):
    inputs = [T.to(dtype) for T in draw((2, 3, 5, width), (2, 3, 7, width), (2, 3, 7, 13), device=DEVICE)]
    dO = draw((2, 3, 5, 13), device=DEVICE)[0].to(dtype)
    torch.manual_seed(0)
    found = gradients(scaled_dot_product_attention, inputs, options, dO)
    assert calls == []
    assert all(T.isfinite().all() for T in found)
    if "dropout_p" not in options:
        for T, wanted in zip(found, gradients(torchs, inputs, options, dO), strict=True):
            assert T.dtype == wanted.dtype
            rtol, atol = (1e-2, 1e-2) if dtype == FLOAT16 else (1e-4, 1e-5)
            assert torch.allclose(T, wanted, rtol=rtol, atol=atol)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")
def test_derivatives_of_every_order(calls):
    """The tangent, the gradient of a gradient, and a Jacobian go on from what the kernels have left."""
    Q, K, V = (T.float() for T in draw((1, 2, 5), (1, 3, 5), (1, 3, 4), device=DEVICE))
    tangents = [torch.ones_like(T) for T in (Q, K, V)]

    def second(attend):
        inputs = [T.detach().requires_grad_() for T in (Q, K, V)]
        first = torch.autograd.grad(attend(*inputs).square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum((T * t).sum() for T, t in zip(first, tangents, strict=True)), inputs)

    found, wanted = (
        [
            *func.jvp(f, (Q, K, V), tuple(tangents)),
            *second(f),
            func.jacrev(lambda Q: f(Q, K, V))(Q),  # noqa: B023
            func.vmap(f)(Q, K, V),
        ]
        for f in (partial(scaled_dot_product_attention, is_causal=True), partial(torchs, is_causal=True))
    )
    for T, right in zip(found, wanted, strict=True):
        assert torch.allclose(T, right, rtol=1e-4, atol=1e-4)
    assert "forward" in calls


def test_a_sink_and_documents_are_done_on_the_kernels(calls):
    """The gradient of the sink, also where the gradient of L arrives, and that of a gradient."""
    shapes = (2, 4, 5, 11), (2, 2, 7, 11), (2, 2, 7, 13), (4,)
    inputs = [T.float().requires_grad_() for T in draw(*shapes, device=DEVICE)]
    ids = [torch.tensor(T, device=DEVICE) for T in ([0, 0, 1, 2, 2], [0, 1, 0, 0, 1, 3, 1])]

    def gradients_of(**method):
        ops = [Softcap(2.0), Segments(*ids), Sink(inputs[3])]
        O, L = attention(*inputs[:3], ops=ops, causal="bottom-right", with_L=True, **method)
        first = torch.autograd.grad(O.square().sum() + L.sin().sum(), inputs, create_graph=True)
        return O, L, *first, *torch.autograd.grad(sum(T.square().sum() for T in first), inputs)

    found, made = gradients_of(), list(calls)
    assert made == ["forward", "vjp", "vjp"]
    for T, right in zip(found, gradients_of(method="dense"), strict=True):
        assert (T - right).abs().max() <= 1e-5 * right.abs().max()


# --- the compiler -------------------------------------------------------------------------------------------------


def test_compiled_code_reaches_the_kernels(calls):
    """Compiled and not, the same bits: it is the same launch."""
    shapes, _ = TORCH_CASES["shared heads, causal"]
    *inputs, mask, dO = (T.half() for T in draw(*shapes, (6, 5, 7), (*shapes[0][:-1], 13), device=DEVICE))
    options = {"enable_gqa": True, "attn_mask": mask}
    found = gradients(compiled(scaled_dot_product_attention), inputs, options, dO)
    assert calls == ["forward", "vjp"]
    assert all(map(torch.equal, found, gradients(scaled_dot_product_attention, inputs, options, dO)))


@pytest.mark.parametrize("scale", [None, 1e-35], ids=["kernels", "a scale that they refuse"])
def test_the_operator_is_one_that_torch_can_rely_on(scale, calls):
    """What it says of shapes is true of 16 bits, too, wherever it runs."""
    Q, K, V = (T.half().requires_grad_() for T in draw((2, 5, 11), (2, 7, 11), (2, 7, 13), device=DEVICE))
    torch.library.opcheck(torch.ops.attnbook.attention, (Q, K, V, None, None, "top-left", scale, "auto"))
    assert bool(calls) == (scale is None)


@pytest.mark.parametrize("first", ["kernels", "torch"])
def test_the_backward_is_worked_on_where_its_forward_was(first, calls, monkeypatch):
    """Also if TF32 is allowed in between, or no longer: what the two keep has not the same unit."""
    inputs = [T.float().requires_grad_() for T in draw((2, 5, 11), (2, 7, 11), (2, 7, 13), device=DEVICE)]
    attend = compiled(partial(attention, scale=3.0))
    homes, second = passes.homes, {"kernels": "torch", "torch": "kernels"}[first]
    monkeypatch.setattr(passes, "homes", lambda Q, method: (first,) if method == "auto" else homes(Q, method))
    O = attend(*inputs)
    monkeypatch.setattr(passes, "homes", lambda Q, method: (second,) if method == "auto" else homes(Q, method))
    found = torch.autograd.grad(O.square().sum(), inputs)
    assert calls == ["forward", "vjp"] * (first == "kernels")
    wanted = torch.autograd.grad(attention(*inputs, scale=3.0, method="dense").square().sum(), inputs)
    for T, right in zip(found, wanted, strict=True):
        assert torch.allclose(T, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("allowed", [False, True], ids=["true float32", "TF32"])
def test_who_works_on_a_call(allowed):
    """On a GPU, the kernels first in 16 bits; in float32 only with products on the matrix units."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32" if allowed else "ieee"
        there = {T: SimpleNamespace(dtype=T, is_cpu=False, is_cuda=True) for T in (FLOAT16, BFLOAT16, FLOAT32)}
        found = {T: passes.homes(Q, "auto")[0] for T, Q in there.items()}
        assert found == dict.fromkeys((FLOAT16, BFLOAT16), "kernels") | {FLOAT32: "kernels" if allowed else "torch"}
        assert {passes.homes(Q, "fused") for Q in there.values()} == {("kernels",)}
        assert {passes.homes(Q, "tiled") for Q in there.values()} == {("torch",)}
    finally:
        matmul.fp32_precision = before
