"""Compiles the fused kernels as they are launched, for GPUs that need not be here: python compile_kernels.py FOLDER.

Prints, as JSON, what each needs of shared memory, and whether its products run on tensor cores.
"""

import json
import os
import sys

os.environ.pop("TRITON_INTERPRET", None)
os.environ["TRITON_CACHE_DIR"] = sys.argv[1]

import torch
import triton
from triton.backends.compiler import GPUTarget

from attnbook.ops import Bias, Causal, Mask, Scale, Softcap, Step, Window
from attnbook.spines import fused
from attnbook.spines.fused import launch

SHARED = {80: 163 * 1024, 86: 99 * 1024, 90: 227 * 1024}
"""The bytes that a program may have, by compute capability: CUDA's table of them."""


class Driver:
    """A GPU as far as compiling goes."""

    def __init__(self, capability):
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return self.target.arch

    def get_current_stream(self, device):
        return 0


def steps(n_q, n_k, *, cap=None, bias=None, window=None, mask=False, causal=False):
    made = [Step("scale", Scale(0.1))]
    made += [Step("ops", Softcap(cap))] if cap else []
    made += [Step("ops", window)] if window else []
    made += [Step("bias", Bias(bias))] if bias is not None else []
    made += [Step("mask", Mask(torch.ones(n_q, n_k, dtype=torch.bool)))] if mask else []
    return made + ([Step("causal", Causal("bottom-right"))] if causal else [])


def compiled(capability, dtype, d_k, d_v, heads=2, backward=True, **options):
    """Every kernel of a forward and a backward: its name, its shared memory, its tiles, its products."""
    found = []

    def compile_it(kernel, programs, size, *args, **constants):
        made = kernel.warmup(*args, **constants, grid=(programs,), num_warps=size.warps, num_stages=size.stages,
                             enable_fp_fusion=True)  # fmt: skip
        ptx = made.asm["ptx"]
        found.append({
            "kernel": made.metadata.name, "capability": capability, "dtype": str(dtype), "widths": (d_k, d_v),
            "shared": made.metadata.shared, "tensor cores": "wgmma" in ptx or "mma.sync" in ptx,
        })  # fmt: skip

    triton.runtime.driver.set_active(Driver(capability))
    launch.run, launch.shared_memory = compile_it, lambda index: SHARED[capability]
    Q, K, V = torch.zeros(2, 100, d_k), torch.zeros(heads, 130, d_k), torch.zeros(heads, 130, d_v)
    Q, K, V = (T.to(dtype) for T in (Q, K, V))
    given, shape = steps(100, 130, **options), (2, 100, 130)
    O, M, Z, unit = launch.forward(Q, K, V, given, shape)
    if backward:
        launch.vjp(O, fused.Residuals(Q, K, V, O, M, Z, given, shape, unit))
    return found


bf16, f32 = torch.bfloat16, torch.float32
EACH = [
    *compiled(90, bf16, 128, 128, causal=True),
    *compiled(90, bf16, 80, 40, cap=2.0, bias=torch.zeros(100, 130), mask=True, window=Window(9, 3)),
    *compiled(90, f32, 64, 64, causal=True),
    *compiled(80, bf16, 256, 256),
    *compiled(86, bf16, 256, 256),
    *compiled(86, f32, 128, 128, bias=torch.zeros(130)),
]
torch.backends.cuda.matmul.fp32_precision = "tf32"
EACH += [row | {"dtype": "tf32"} for row in compiled(90, f32, 64, 64, backward=False)]
print(json.dumps([row | {"limit": SHARED[row["capability"]]} for row in EACH]))
