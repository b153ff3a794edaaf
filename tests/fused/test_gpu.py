"""What only a GPU can tell: copies, streams and memory. Skipped without one.

That the results are right on a GPU is tested where they are tested on all libraries.
"""

import contextlib
import warnings

import kernels
import numpy as np
import pytest
import torch
from libraries import CuPy, TorchCUDA
from public_calls import CALLS, PASSES
from routes import taking

import attnbook as ab
from attnbook.checks import close

SPINES = ("dense", "tiled")
"""Those on which every public function runs. The fused one takes torch tensors, and no jvp."""
CYCLES = 500_000_000  # about a quarter of a second
WAIT = """extern "C" __global__ void wait(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) { }
}"""


@pytest.fixture(scope="module", params=(TorchCUDA, CuPy), ids=lambda library: library.name)
def xp(request):
    """A library of GPU arrays; conftest skips where it is missing."""
    return request.param()


@pytest.fixture(params=(*SPINES, "fused"))
def method(request, xp):
    if request.param == "fused":
        if xp.name == "CuPy":
            pytest.skip("the kernels take torch tensors")
        kernels.triton_or_skip()
    return request.param


def inputs(xp, n=61, heads=3, d=16, dtype="float32"):
    """Q, K, V and dO."""
    rng = np.random.default_rng(0)
    return [xp.cast(xp.asarray(rng.standard_normal((heads, n, d))), dtype) for _ in range(4)]


def forward_and_backward(Q, K, V, dO, **options):
    O, res = ab.attention(Q, K, V, **options)
    return [O, *ab.attention_vjp(dO, res)[:3]]


# --- copies -------------------------------------------------------------------------------------------------------


def copies(run):
    """The copies between GPU and host that ``run`` makes, by name. The profiler sees those of every library."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with (
        warnings.catch_warnings(action="ignore"),
        profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen,
    ):
        run()
        torch.cuda.synchronize()
    return [event.name for event in seen.events() if event.name.startswith(("Memcpy DtoH", "Memcpy HtoD"))]


@pytest.fixture
def counted(xp):
    """What ``copies`` counts on this library, once it is known to count."""
    T = xp.asarray(np.ones(3))
    if not copies(lambda: float(T.sum())):
        pytest.skip("the profiler does not see copies on this GPU")
    # CuPy's concatenate sends the addresses of its arrays; nobody waits for that.
    unasked = ("Memcpy DtoH",) if xp.name == "CuPy" else ("Memcpy DtoH", "Memcpy HtoD")
    return lambda run: [name for name in copies(run) if name.startswith(unasked)]


@pytest.mark.parametrize("spine", SPINES)
def test_nothing_is_copied_from_or_to_the_host(spine, xp, counted):
    with taking(spine):
        calls = [(call, call.ready([xp.asarray(T) for T in call.draw()])) for call in (*CALLS, *PASSES)]
        for _, run in calls:
            run()  # compiles, and makes what a library keeps
        found = that_copy(calls, counted)
    assert not found, "\n".join(f"{call}: {', '.join(names)}" for call, names in found)


def that_copy(calls, counted):
    """Of these calls, those that copy, and what; by halves, as each look takes a tenth of a second."""
    names = counted(lambda: [run() for _, run in calls])
    if not names or len(calls) == 1:
        return [(str(call), names) for call, _ in calls if names]
    half = len(calls) // 2
    return that_copy(calls[:half], counted) + that_copy(calls[half:], counted) or [("all of these together", names)]


@contextlib.contextmanager
def waiting_refused():
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("spine", SPINES)
@pytest.mark.parametrize("xp", [TorchCUDA], indirect=True, ids=["torch CUDA"])
def test_torch_never_waits_for_the_gpu(spine, xp):
    with taking(spine):
        for call in (*CALLS, *PASSES):
            run = call.ready([xp.asarray(T) for T in call.draw()])
            run()
            with waiting_refused():
                run()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("xp", [TorchCUDA], indirect=True, ids=["torch CUDA"])
def test_the_kernels_copy_nothing_and_never_wait(xp, counted):
    kernels.triton_or_skip()
    Q, K, V, dO = inputs(xp)
    bias = xp.cast(xp.asarray(np.zeros((61, 61))), "float32")
    options = {"causal": True, "bias": bias, "method": "fused"}
    forward_and_backward(Q, K, V, dO, **options)  # compiles
    with waiting_refused():
        forward_and_backward(Q, K, V, dO, **options)
    assert not counted(lambda: forward_and_backward(Q, K, V, dO, **options))


# --- streams ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def busy_stream(xp):
    """A stream, busy for a while, as the current one. Yields how to ask whether it still is, and how to wait for it."""
    if xp.name == "CuPy":
        cupy = xp.namespace
        with cupy.cuda.Stream(non_blocking=True) as side:
            cupy.RawKernel(WAIT, "wait")((1,), (1,), (np.int64(CYCLES),))
            yield lambda: not side.done, side.synchronize
    else:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.cuda._sleep(CYCLES)
            yield lambda: not side.query(), side.synchronize


def test_work_is_queued_on_the_current_stream(method, xp):
    """The inputs are written there after a pause: whoever works on another stream reads too early."""
    early = inputs(xp)
    wanted = [xp.numpy(T) for T in forward_and_backward(*early, method=method)]
    with busy_stream(xp) as (busy, synchronize):
        late = [T * 1 for T in early]
        came = forward_and_backward(*late, method=method)
        assert busy(), "the call waited for the GPU"
        synchronize()
        assert all(np.array_equal(xp.numpy(T), W) for T, W in zip(came, wanted, strict=True))


# --- tiles as they are on a GPU -----------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_tiles_of_a_gpu_give_what_numpy_gives(causal, xp):
    drawn = [np.random.default_rng(i).standard_normal((2, 3001, 16)) for i in range(4)]
    wanted = forward_and_backward(*drawn, causal=causal, method="tiled")
    came = forward_and_backward(*map(xp.asarray, drawn), causal=causal, method="tiled")
    assert all(close(xp.numpy(T), W) for T, W in zip(came, wanted, strict=True))


def peak(xp, run):
    """The most bytes that ``run`` holds above what was held before."""
    if xp.name == "CuPy":
        pool = xp.namespace.get_default_memory_pool()
        pool.free_all_blocks()
        before = pool.total_bytes()
        run()
        return pool.total_bytes() - before
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    return torch.cuda.max_memory_allocated() - before


def test_memory_of_tiles_is_linear(xp):
    """Twice the tokens take less than thrice the memory, and it is less than one table of scores."""
    held = {}
    for n in (8192, 16384, 32768):
        arrays = inputs(xp, n, heads=1)
        held[n] = peak(xp, lambda arrays=arrays: forward_and_backward(*arrays, method="tiled"))
    assert held[32768] < 3 * held[16384], held
    assert held[32768] < 4 * 32768**2, held
