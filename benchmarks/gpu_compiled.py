"""What the compiler makes of the fused kernels, for GPUs that need not be here: no time is measured.

    python benchmarks/gpu_compiled.py             # three minutes on one core; writes results/gpu_compiled.json
    python benchmarks/gpu_compiled.py --quick     # one case

Of each kernel, with the tiles that it is launched with: registers a thread, bytes of spilled ones (stack), shared
memory; and of the loop over whole tiles, in machine code: instructions a score, those of the matrix units, copies to
shared memory, waits for either, barriers. A loop counts once, as it stands: no branch in it is weighed.
"""

import os
import re
import subprocess
import tempfile

if __name__ == "__main__":
    os.environ.pop("TRITON_INTERPRET", None)  # before anything imports Triton

import torch
import triton
from common import chosen, options, table
from record import RESULTS, Record
from tqdm import tqdm
from triton.backends.compiler import GPUTarget

from attnbook.ops import Bias
from attnbook.plan import resolve
from attnbook.spines import fused
from attnbook.spines.fused import launch, limits, sizes

SHARED = {80: 163 * 1024, 86: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""The bytes that a program may have, by compute capability: CUDA's table of them."""

LENGTH = 512
COUNTED = {
    "matrix": r"HGMMA|HMMA|UTC\w*MMA",
    "copies": r"LDGSTS|UTMALDG|UBLKCP",
    "waits": r"DEPBAR|WARPGROUP\.ARRIVE|SYNCS\S*TRYWAIT",
    "barriers": r"BAR\.SYNC|MEMBAR",
    "spill": r"LDL|STL",
}
"""What is counted of the instructions in a loop."""


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


MADE = []
"""What was compiled in place of a launch, each with the constants of that launch."""


def compile_only():
    """From now on, a launch does no more than that."""
    run = triton.JITFunction.run

    def compiling(kernel, *args, **constants):
        MADE.append((run(kernel, *args, **{**constants, "warmup": True}), constants))

    triton.JITFunction.run = compiling


def compiled(capability, dtype, widths, n, bias=None, mask=None, ops=(), causal=False, backward=True):
    """Every kernel of a forward and a backward; after :func:`compile_only`."""
    triton.runtime.driver.set_active(Driver(capability))
    (n_q, n_k), (d_k, d_v) = n, widths
    Q, K, V = (torch.zeros(2, *shape, dtype=dtype) for shape in ((n_q, d_k), (n_k, d_k), (n_k, d_v)))
    asked = {"mask": mask, "ops": ops, "causal": causal, "method": "tiled"}
    plan = resolve({"Q": Q, "K": K, "V": V}, (2, n_q, n_k), widths, **asked)
    if bias is not None:
        op = Bias(bias)
        plan = plan._replace(ops=(*plan.ops, op), scores=(*plan.scores, (len(plan.ops), op)))
    kernel = limits.kernel_of(plan)
    plan = plan._replace(tiles=sizes.tiles(dtype.itemsize, widths, kernel.biased, SHARED[capability]), kernel=kernel)
    MADE.clear()
    O, M, Z, unit = launch.forward(Q, K, V, plan)
    if backward:
        launch.vjp(O, None, fused.Residuals(Q, K, V, O, M, Z, plan, unit))
    return list(MADE)


# --- machine code -------------------------------------------------------------------------------------------------


def figures(made, constants):
    """Of one kernel: what its program needs, and what its loop over whole tiles does."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        said = _told("cuobjdump", "-res-usage", file.name)
        code = _told("nvdisasm", "-c", file.name)
    needs = dict(re.findall(r"(REG|STACK):(\d+)", said))
    found = {"kernel": made.metadata.name, "registers": int(needs["REG"]), "stack": int(needs["STACK"])}
    found |= {"shared": made.metadata.shared, "warps": made.metadata.num_warps, "stages": made.metadata.num_stages}
    if "COLS" not in constants:
        return found
    found["tile"] = [constants["ROWS"], constants["COLS"]]
    loop = loops(code)[0]
    scores = constants["ROWS"] * constants["COLS"]
    found["instructions a score"] = round(len(loop) * 32 * made.metadata.num_warps / scores, 2)
    return found | {of: sum(bool(re.match(pattern, line)) for line in loop) for of, pattern in COUNTED.items()}


def loops(code):
    """The innermost loops with products in them, in their order, each as its instructions without their predicates."""
    lines = re.findall(r"^(\.L\w+):|^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([^;]+?)\s*;", code, re.MULTILINE)
    labels, body, found = {}, [], []
    for label, instruction in lines:
        if label:
            labels[label] = len(body)
            continue
        body.append(instruction)
        back = re.match(r"BRA\S* .*?`?\(?(\.L\w+)", instruction)
        if back and back[1] in labels:
            loop = body[labels[back[1]] :]
            inner = found and found[-1][0] >= labels[back[1]]
            if not inner and any(re.match(COUNTED["matrix"] + "|FFMA", line) for line in loop):
                found.append((labels[back[1]], loop))
    return [loop for _, loop in found]


def _told(tool, *words):
    """What NVIDIA's tool says; Triton brings it along."""
    command = [getattr(triton.knobs.nvidia, tool).path, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


# --- the cases ----------------------------------------------------------------------------------------------------

CAPABILITIES, DTYPES = ("80", "90", "100"), ("bfloat16", "float32")
WIDTHS, MASKS = ("128", "64"), ("full", "causal")


def main(argv=None):
    parser = options(__doc__, threads=False)
    known = {"capabilities": CAPABILITIES, "dtypes": DTYPES, "widths": WIDTHS, "masks": MASKS}
    for name, of in known.items():
        parser.add_argument(f"--{name}", help=", ".join(of))
    args = parser.parse_args(argv)
    asked = [chosen(parser, name, getattr(args, name), of) for name, of in known.items()]
    cases = [(c, dtype, d, mask) for c in asked[0] for dtype in asked[1] for d in asked[2] for mask in asked[3]]
    compile_only()
    whole = not any(getattr(args, name) for name in known)
    record = Record(
        "the fused kernels, compiled",
        args.output or (None if args.quick or not whole else RESULTS / "gpu_compiled.json"),
        gpu={"name": "none: compiled, not run"},
        how=__doc__.partition("\n\n")[2].rpartition("\n\n")[2].strip().replace("\n", " "),
    )
    for capability, dtype, d, mask in tqdm(cases[:1] if args.quick else cases, unit="case"):
        shape, causal = (LENGTH, LENGTH), mask == "causal"
        for made, constants in compiled(int(capability), getattr(torch, dtype), (int(d),) * 2, shape, causal=causal):
            about = {"capability": int(capability), "dtype": dtype, "d": int(d), "causal": causal}
            record.add(**about | figures(made, constants))
    head = ["capability", "dtype", "d", "causal", "kernel", "registers", "stack", "shared", "instructions a score"]
    head += list(COUNTED)
    table(head, [[cell.get(name) for name in head] for cell in record.data["cells"]])
    record.close()


if __name__ == "__main__":
    main()
