"""Compiles the fused kernels as they are launched, for GPUs that need not be here: python compile_kernels.py FOLDER.

Prints, as JSON, what each needs of shared memory, and whether its products run on tensor cores. With a compute
capability, such as 80, after the folder: every size of its tiles, with each kind of bias and of mask. With the word
"chapter" before it: the kernels of chapter 12.
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

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import gpu_compiled
from gpu_compiled import MADE, SHARED, Driver, compile_only, figures

from attnbook.ops import ALiBi, Softcap, Window

DIVISIBLE, RAGGED = (256, 512), (100, 130)
"""Numbers of queries and keys. Rows at uneven distances come in other ways, which take more shared memory or less."""


def compiled(capability, dtype, d_k, d_v=None, n=DIVISIBLE, bias=None, mask=None, in_full=False, **options):
    """Every kernel of a forward and a backward: its name, its shared memory, its products, or all figures of it."""
    widths, of_bias = (d_k, d_v or d_k), "" if bias is None else f"{bias.dtype} {tuple(bias.shape)} {bias.stride()}"
    mask = None if mask is None else torch.ones(mask, dtype=torch.bool)
    gpu_compiled.compiled(capability, dtype, widths, n, bias=bias, mask=mask, **options)
    said = {"capability": capability, "limit": SHARED[capability], "dtype": str(dtype), "widths": widths}
    causal = options.get("causal", False)
    return [said | row | {"bias": of_bias, "mask": mask is not None, "causal": causal} for row in found(in_full)]


def found(in_full=False):
    """What is asked of those that were made."""
    kinds = "wgmma", "mma.sync", "tcgen05.mma"
    return [
        {"kernel": made.metadata.name, "shared": made.metadata.shared}
        | {"tensor cores": any(kind in made.asm["ptx"] for kind in kinds)}
        | (figures(made, constants)[0] if in_full else {})
        for made, constants in MADE
    ]


def of_chapter(capability):
    """The kernels of chapter 12, as its cells start them."""
    triton.runtime.driver.set_active(Driver(capability))
    notebook = json.loads((Path(__file__).parents[2] / "chapters" / "12_gpu.ipynb").read_text(encoding="utf-8"))
    cells = {cell["id"]: "".join(cell["source"]) for cell in notebook["cells"]}
    names = {"__name__": "__main__"}
    MADE.clear()
    with contextlib.redirect_stdout(None):
        for name in CELLS:
            source = cells[name].replace('os.environ["TRITON_INTERPRET"] = "1"', "pass")
            linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
            exec(compile(source, name, "exec"), names)
    return [{"capability": capability, "limit": SHARED[capability]} | row for row in found()]


def lying(shape):
    """A bias whose rows lie side by side in memory."""
    return torch.zeros(*shape[:-2], *shape[:-3:-1]).mT


compile_only()
bf16, f32 = torch.bfloat16, torch.float32
CELLS = (
    *("imports", "libraries", "steps-setup", "step-1-kernel", "step-1-run", "step-3-parts", "step-3-kernel"),
    *("step-3-run", "step-4", "step-5-kernel", "step-5-run", "step-6-kernel", "step-6-run", "ex-5-stub"),
    "ex-5-solution",
)
OPS = [Softcap(2.0), ALiBi(torch.zeros(2, dtype=bf16)), Window(9, 3, "top-left")]
TABLE, OF_SCORES, UNEVEN = DIVISIBLE, (2, *DIVISIBLE), (2, *RAGGED)
if sys.argv[2:3] == ["chapter"]:
    EACH = of_chapter(int(sys.argv[3]))
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
        *compiled(90, bf16, 128, causal=True, in_full=True),
        *compiled(80, bf16, 64, n=RAGGED, bias=torch.zeros(UNEVEN), mask=RAGGED),
        *compiled(90, bf16, 80, 40, RAGGED, mask=RAGGED, ops=OPS, causal=True),
        *compiled(90, f32, 64, causal="bottom-right"),
    ]
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    EACH += [row | {"dtype": "tf32"} for row in compiled(90, f32, 64, backward=False)]
print(json.dumps(EACH))
