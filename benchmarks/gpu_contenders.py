"""The contenders on a GPU: each takes Q, K, V and dO as torch tensors, and has a forward and a backward of its own.

The two are apart so that each can be timed in the same call. What a contender needs beforehand (masks, another
library's view of the same memory, a compiled function) it makes in ``Contender.__init__``. Where it cannot run, that or
the first forward raises; ``reason`` puts it in a few words.
"""

import importlib
import warnings

import torch
from contenders import _eager, _sdpa

import attnbook as ab


class Contender:
    """Made ready for one set of inputs. ``forward()`` gives O and what ``backward(memory)`` needs for dQ, dK and dV."""

    fresh = True
    """Whether another set of inputs needs no more compiling."""

    def __init__(self, Q, K, V, dO, causal):
        self.inputs, self.dO, self.causal = (Q, K, V), dO, causal

    def forward(self):
        raise NotImplementedError

    def backward(self, memory):
        raise NotImplementedError

    @staticmethod
    def to_torch(T):
        return T


class Lines(Contender):
    """The book's lines on the tensors, or what ``method`` makes of them."""

    method = "tiled"

    def forward(self):
        return ab.attention(*self.inputs, causal=self.causal, method=self.method)

    def backward(self, memory):
        return ab.attention_vjp(self.dO, memory)[:3]


class DenseLines(Lines):
    method = "dense"


class Fused(Lines):
    method = "fused"


class CuPyLines(Lines):
    """The same lines on CuPy arrays in the tensors' memory."""

    def __init__(self, Q, K, V, dO, causal):
        if Q.dtype == torch.bfloat16:
            raise NotImplementedError("no bfloat16 in CuPy")
        cupy = cupy_in_torchs_memory()
        Q, K, V, dO = (cupy.from_dlpack(T) for T in (Q, K, V, dO))
        super().__init__(Q, K, V, dO, causal)

    @staticmethod
    def to_torch(T):
        return torch.from_dlpack(T)


class DenseCuPyLines(CuPyLines):
    method = "dense"


class Autograd(Contender):
    """A function of torch, differentiated by torch."""

    def __init__(self, Q, K, V, dO, causal):
        super().__init__(*(T.detach().requires_grad_() for T in (Q, K, V)), dO, causal)
        with torch.device(Q.device):
            self.attend = self.made(*Q.shape[-2:], Q.dtype, causal)

    def forward(self):
        O = self.attend(*self.inputs)
        return O, O

    def backward(self, memory):
        return torch.autograd.grad(memory, self.inputs, self.dO)


class Eager(Autograd):
    def made(self, n, d, dtype, causal):
        return _eager(torch, n, d, dtype, causal)


class OurFunction(Autograd):
    def made(self, n, d, dtype, causal):
        attend = importlib.import_module("attnbook.torch").scaled_dot_product_attention
        return lambda Q, K, V: attend(Q, K, V, is_causal=causal)


class SDPA(Autograd):
    """With one backend, and no other."""

    backend = "MATH"

    def made(self, n, d, dtype, causal):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        attend, backend = _sdpa(torch, n, d, dtype, causal), getattr(SDPBackend, self.backend)

        def only_this(Q, K, V):
            with sdpa_kernel([backend]), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it warns of every reason why it cannot, and then says that it cannot
                return attend(Q, K, V)

        return only_this


class Flash(SDPA):
    backend = "FLASH_ATTENTION"


class Efficient(SDPA):
    backend = "EFFICIENT_ATTENTION"


class CuDNN(SDPA):
    backend = "CUDNN_ATTENTION"


class Flex(Autograd):
    """FlexAttention, compiled: torch makes a kernel from a mask written in Python."""

    fresh = False

    def made(self, n, d, dtype, causal):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        if not torch.cuda.is_available():
            raise NotImplementedError("FlexAttention has no backward on the CPU")
        blocks = create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n, device="cuda") if causal else None
        compiled = _compiled(flex_attention)
        return lambda Q, K, V: compiled(Q, K, V, block_mask=blocks)


CONTENDERS = {
    "attnbook fused": Fused,
    "attnbook.torch": OurFunction,
    "attnbook tiled": Lines,
    "attnbook dense": DenseLines,
    "CuPy tiled": CuPyLines,
    "CuPy dense": DenseCuPyLines,
    "SDPA flash": Flash,
    "SDPA cuDNN": CuDNN,
    "SDPA efficient": Efficient,
    "SDPA math": SDPA,
    "FlexAttention": Flex,
    "eager": Eager,
}

_KEPT = {}


def _compiled(f):
    """f, compiled once for all cells: an error, and not f itself, where that fails or has been done too often."""
    if f not in _KEPT:
        torch._dynamo.config.recompile_limit = 100
        _KEPT[f] = torch.compile(f, fullgraph=True, dynamic=False)  # else slower kernels, for any length
    return _KEPT[f]


def cupy_in_torchs_memory():
    """CuPy, which from then on takes its memory from torch: so the two share it, and one count holds for both."""
    import cupy

    if cupy not in _KEPT:
        cupy.cuda.runtime.getDevice()  # raises without a GPU
        allocator = cupy.cuda.PythonFunctionAllocator(
            lambda size, device: torch.cuda.caching_allocator_alloc(size, device, torch.cuda.current_stream(device)),
            lambda pointer, device: torch.cuda.caching_allocator_delete(pointer),
        )
        _KEPT[cupy] = allocator
        cupy.cuda.set_allocator(allocator.malloc)
    return cupy


def out_of_memory(error):
    return isinstance(error, torch.OutOfMemoryError) or "OutOfMemory" in type(error).__name__


def reason(error):
    """Why a contender cannot run, in a line."""
    if out_of_memory(error):
        return "out of memory"
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is not installed"
    sentence = (str(error).strip().splitlines() or [""])[0].partition(". ")[0]
    said = isinstance(error, NotImplementedError | ArithmeticError)  # by us, or plainly
    return sentence[:160] if said else f"{type(error).__name__}: {sentence[:160]}"
