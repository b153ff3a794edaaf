"""What only a GPU can tell: copies, streams and memory, with torch's tensors. Skipped without one.

That the results are right on a GPU is tested where they are tested on all libraries.
"""

import contextlib
from functools import partial

import kernels
import numpy as np
import pytest
import torch
from public_calls import CALLS, PASSES
from routes import taking

import attnbook as ab
from attnbook.checks import close

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch CUDA: no GPU here")

SPINES = ("dense", "tiled")
"""Those on which every public function runs. The fused one has no jvp."""
CYCLES = 500_000_000  # about a quarter of a second


def inputs(n=61, heads=3, d=16):
    """Q, K, V and dO."""
    rng = np.random.default_rng(0)
    return [torch.tensor(rng.standard_normal((heads, n, d)), dtype=torch.float32, device="cuda") for _ in range(4)]


def forward_and_backward(Q, K, V, dO, **options):
    O, res = ab.attention(Q, K, V, **options)
    return [O, *ab.attention_vjp(dO, res)[:3]]


@pytest.fixture(params=(*SPINES, "fused"))
def method(request):
    if request.param == "fused":
        kernels.triton_or_skip()
    return request.param


# --- copies -------------------------------------------------------------------------------------------------------


@pytest.fixture
def calls(method):
    """Every public function on a spine, once it has run: then it is compiled, and what torch keeps is made."""
    if method == "fused":
        options = {"causal": True, "bias": torch.zeros(61, 61, device="cuda"), "method": method}
        made = [("the kernels", partial(forward_and_backward, *inputs(), **options))]
    else:
        each = (*CALLS, *PASSES)
        made = [(str(call), call.ready([torch.tensor(T, device="cuda") for T in call.draw()])) for call in each]
    with contextlib.nullcontext() if method == "fused" else taking(method):
        for _, run in made:
            run()
        yield made


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_torch_never_waits_for_the_gpu(calls):
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _, run in calls:
            run()
    finally:
        torch.cuda.set_sync_debug_mode("default")


# --- streams ------------------------------------------------------------------------------------------------------


def test_work_is_queued_on_the_current_stream(method):
    """The inputs are written there after a pause: whoever works on another stream reads too early."""
    early = inputs()
    wanted = [T.cpu() for T in forward_and_backward(*early, method=method)]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(CYCLES)
        late = [T * 1 for T in early]
        came = forward_and_backward(*late, method=method)
        assert not side.query(), "the call waited for the GPU"
        side.synchronize()
        assert all(torch.equal(T.cpu(), W) for T, W in zip(came, wanted, strict=True))


# --- tiles as they are on a GPU -----------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_tiles_of_a_gpu_give_what_numpy_gives(causal):
    drawn = [np.random.default_rng(i).standard_normal((2, 3001, 16)) for i in range(4)]
    wanted = forward_and_backward(*drawn, causal=causal, method="tiled")
    came = forward_and_backward(*(torch.tensor(T, device="cuda") for T in drawn), causal=causal, method="tiled")
    assert all(close(T.cpu().numpy(), W) for T, W in zip(came, wanted, strict=True))


def test_memory_of_tiles_is_linear():
    """Twice the tokens take less than thrice the memory, and it is less than one table of scores."""
    held = {}
    for n in (8192, 16384, 32768):
        arrays = inputs(n, heads=1)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        forward_and_backward(*arrays, method="tiled")
        held[n] = torch.cuda.max_memory_allocated() - before
    assert held[32768] < 3 * held[16384], held
    assert held[32768] < 4 * 32768**2, held
