"""Compiles the fused kernels as they are launched, for GPUs that need not be here: python compile_kernels.py FOLDER.

Prints, as JSON, what each needs of shared memory, and whether its products run on tensor cores. With a compute
capability, such as 80, after the folder: every size of its tiles, with each kind of bias and of mask. With the word
"chapter": the kernels of chapter 12.
"""

import contextlib
import itertools
import json
import linecache
import os
import sys
from pathlib import Path

os.environ.pop("TRITON_INTERPRET", None)
os.environ["TRITON_CACHE_DIR"] = sys.argv[1]

import torch
import triton
from triton.backends.compiler import GPUTarget

from attnbook.ops import ALiBi, Bias, Softcap, Window
from attnbook.plan import resolve
from attnbook.spines import fused
from attnbook.spines.fused import launch, limits, sizes

SHARED = {80: 163 * 1024, 86: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""The bytes that a program may have, by compute capability: CUDA's table of them."""

DIVISIBLE, RAGGED = (256, 512), (100, 130)
"""Numbers of queries and keys. Rows at uneven distances come in other ways, which take more shared memory or less."""


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


def compile_only(kernel, *args, **constants):
    """In place of a launch."""
    made = run(kernel, *args, **{**constants, "warmup": True})
    ptx = made.asm["ptx"]
    FOUND.append({
        "kernel": made.metadata.name, "shared": made.metadata.shared,
        "tensor cores": any(name in ptx for name in ("wgmma", "mma.sync", "tcgen05.mma")),
    })  # fmt: skip


run, triton.JITFunction.run, FOUND = triton.JITFunction.run, compile_only, []


def compiled(capability, dtype, d_k, d_v=None, n=DIVISIBLE, bias=None, mask=None, ops=(), causal=False, backward=True):
    """Every kernel of a forward and a backward: its name, its shared memory, its products."""
    triton.runtime.driver.set_active(Driver(capability))
    (n_q, n_k), widths = n, (d_k, d_v or d_k)
    Q, K, V = (torch.zeros(2, *shape, dtype=dtype) for shape in ((n_q, d_k), (n_k, d_k), (n_k, widths[1])))
    mask = None if mask is None else torch.ones(mask, dtype=torch.bool)
    options = {"mask": mask, "ops": ops, "causal": causal, "method": "tiled"}
    plan = resolve({"Q": Q, "K": K, "V": V}, (2, n_q, n_k), widths, **options)
    if bias is not None:
        op = Bias(bias)
        plan = plan._replace(ops=(*plan.ops, op), scores=(*plan.scores, (len(plan.ops), op)))
    kernel = limits.kernel_of(plan)
    plan = plan._replace(tiles=sizes.tiles(dtype.itemsize, widths, kernel.biased, SHARED[capability]), kernel=kernel)
    FOUND.clear()
    O, M, Z, unit = launch.forward(Q, K, V, plan)
    if backward:
        launch.vjp(O, None, fused.Residuals(Q, K, V, O, M, Z, plan, unit))
    of_bias = "" if bias is None else f"{bias.dtype} {tuple(bias.shape)} {bias.stride()}"
    said = {"capability": capability, "limit": SHARED[capability], "dtype": str(dtype), "widths": widths}
    return [said | row | {"bias": of_bias, "mask": mask is not None, "causal": causal} for row in FOUND]


def of_chapter(capability):
    """The kernels of chapter 12, as its cells start them."""
    triton.runtime.driver.set_active(Driver(capability))
    notebook = json.loads((Path(__file__).parents[1] / "chapters" / "12_gpu.ipynb").read_text(encoding="utf-8"))
    cells = {cell["id"]: "".join(cell["source"]) for cell in notebook["cells"]}
    names = {"__name__": "__main__"}
    FOUND.clear()
    with contextlib.redirect_stdout(None):
        for name in CELLS:
            source = cells[name].replace('os.environ["TRITON_INTERPRET"] = "1"', "pass")
            linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
            exec(compile(source, name, "exec"), names)
    return [{"capability": capability, "limit": SHARED[capability]} | row for row in FOUND]


def lying(shape):
    """A bias whose rows lie side by side in memory."""
    return torch.zeros(*shape[:-2], *shape[:-3:-1]).mT


bf16, f32 = torch.bfloat16, torch.float32
CELLS = (
    *("imports", "libraries", "steps-setup", "step-1-kernel", "step-1-run", "step-3-parts", "step-3-kernel"),
    *("step-3-run", "step-4", "step-5-kernel", "step-5-run", "step-6-kernel", "step-6-run", "ex-5-stub"),
    "ex-5-solution",
)
TABLE, OF_SCORES, UNEVEN = DIVISIBLE, (2, *DIVISIBLE), (2, *RAGGED)
if sys.argv[2:] == ["chapter"]:
    EACH = of_chapter(80) + of_chapter(90)
elif len(sys.argv) > 2:
    EACH, capability = [], int(sys.argv[2])
    for d in (64, 128, 256):
        for of_bias, mask in itertools.product((None, bf16, f32), (None, TABLE)):
            bias = None if of_bias is None else torch.zeros(OF_SCORES, dtype=of_bias)
            EACH += compiled(capability, bf16, d, bias=bias, mask=mask)
        EACH += compiled(capability, bf16, d, bias=lying(OF_SCORES), mask=OF_SCORES, causal=True)
        EACH += compiled(capability, bf16, d, n=RAGGED, bias=torch.zeros(UNEVEN), mask=UNEVEN)
        EACH += compiled(capability, bf16, d, n=RAGGED, bias=lying(UNEVEN), mask=UNEVEN)
        EACH += compiled(capability, f32, d)
        EACH += compiled(capability, f32, d, bias=torch.zeros(OF_SCORES), mask=TABLE)
        EACH += compiled(capability, f32, d, n=RAGGED, bias=torch.zeros(UNEVEN), mask=UNEVEN)
        EACH += compiled(capability, f32, d, n=RAGGED, bias=torch.zeros(130))
else:
    EACH = [
        *compiled(90, bf16, 128, causal=True),
        *compiled(80, bf16, 64, n=RAGGED, bias=torch.zeros(UNEVEN), mask=RAGGED),
        *compiled(90, bf16, 80, 40, RAGGED, torch.zeros(RAGGED), RAGGED, ops=[Softcap(2.0), Window(9, 3, "top-left")]),
        *compiled(90, f32, 64, causal="bottom-right"),
        *compiled(90, bf16, 64, n=RAGGED, ops=[ALiBi(torch.zeros(2, dtype=bf16))], causal=True),
    ]
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    EACH += [row | {"dtype": "tf32"} for row in compiled(90, f32, 64, backward=False)]
print(json.dumps(EACH))
