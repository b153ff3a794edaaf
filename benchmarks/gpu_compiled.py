"""What the compiler makes of the fused kernels, for GPUs that need not be here: no time is measured.

    python benchmarks/gpu_compiled.py             # three minutes on one core; writes results/gpu_compiled.json
    python benchmarks/gpu_compiled.py --quick     # one case
    python benchmarks/gpu_compiled.py --tutorial 06-fused-attention.py   # from a file, where the network is away

Of each kernel, with the tiles that it is launched with: registers a thread, bytes of spilled ones (stack), shared
memory; and of the loop over whole tiles, in machine code: instructions a score, those of the matrix units, copies to
shared memory, waits for either, barriers. A loop counts once, as it stands: no branch in it is weighed.

Beside them, in float16, the kernels of Triton's own tutorial, fetched for this alone, with the tiles of its tests.
"""

import hashlib
import importlib.util
import os
import re
import subprocess
import tempfile
import urllib.request
from functools import partialmethod
from pathlib import Path

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
from attnbook.spines.fused import launch, sizes
from attnbook.spines.fused.capability import kernel_of

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

    def get_active_torch_device(self):
        return torch.device("cpu")


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
    kernel = kernel_of(plan)
    plan = plan._replace(tiles=sizes.tiles(dtype.itemsize, widths, kernel.biased, SHARED[capability]), kernel=kernel)
    MADE.clear()
    O, M, Z, unit = launch.forward(Q, K, V, plan)
    if backward:
        launch.vjp(O, None, fused.Residuals(Q, K, V, O, M, Z, plan, unit))
    return list(MADE)


# --- Triton's tutorial --------------------------------------------------------------------------------------------

TUTORIAL = "https://raw.githubusercontent.com/triton-lang/triton/v{}/python/tutorials/06-fused-attention.py"
OF_ITS_TESTS = {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}


def fetched(folder):
    """The tutorial of this Triton, as a file; None where the network is away."""
    path = Path(folder, "tutorial.py")
    try:
        with urllib.request.urlopen(TUTORIAL.format(triton.__version__), timeout=20) as answer:
            path.write_bytes(answer.read())
    except OSError as error:
        print(f"Triton's tutorial is left out: {error}. Hand it over as --tutorial FILE.")
        return None
    return path


def tutorial(path, capability, d, causal, config=OF_ITS_TESTS, backward=True):
    """Every kernel of its forward and backward; after :func:`compile_only`. Its module asks which GPU is there."""
    triton.runtime.driver.set_active(Driver(capability))
    torch.cuda.get_device_capability = lambda *_: divmod(capability, 10)
    triton.runtime.Autotuner.run = partialmethod(untuned, config)
    spec = importlib.util.spec_from_file_location("tutorial", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    Q, K, V = (torch.zeros(1, 2, LENGTH, d, dtype=torch.float16, requires_grad=True) for _ in range(3))
    MADE.clear()
    O = module.attention(Q, K, V, causal, d**-0.5, False)
    if backward:
        O.backward(torch.zeros_like(O))
    return list(MADE)


def untuned(tuner, config, *args, **given):
    """What a tuner runs, without a GPU to tune on: the one of its configurations that has all of ``config``."""
    found = next(c for c in tuner.configs if config.items() <= c.all_kwargs().items())
    if found.pre_hook:
        found.pre_hook(dict(zip(tuner.arg_names, args, strict=False)) | given | found.kwargs)
    return tuner.fn.run(*args, **given, **found.all_kwargs())


# --- machine code -------------------------------------------------------------------------------------------------


def figures(made, constants):
    """Of one kernel: what its program needs, and what each of its loops over whole tiles does."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        said = _told("cuobjdump", "-res-usage", file.name)
        code = _told("nvdisasm", "-c", file.name)
    needs = dict(re.findall(r"(REG|STACK):(\d+)", said))
    found = {"kernel": made.metadata.name, "registers": int(needs["REG"]), "stack": int(needs["STACK"])}
    found |= {"shared": made.metadata.shared, "warps": made.metadata.num_warps, "stages": made.metadata.num_stages}
    return [found | of_loop(*one, made.metadata.num_warps) for one in whole_tiles(constants, loops(code))] or [found]


def whole_tiles(constants, found):
    """Of the loops over tiles that no mask cuts: the name, the rows and columns of a tile, and the loop."""
    if "COLS" in constants:
        return [("", constants["ROWS"], constants["COLS"], found[0])]
    if "BLOCK_N" in constants:
        return [("", constants["BLOCK_M"], constants["BLOCK_N"], found[0])]
    if "BLOCK_N1" in constants:  # the tutorial's backward: dK and dV, then dQ, each after its tiles on the diagonal
        names = "BLOCK_M1 BLOCK_N1", "BLOCK_M2 BLOCK_N2"
        whole = found[1::2] if constants["CAUSAL"] else found
        sizes_of = [[constants[name] for name in pair.split()] for pair in names]
        if len(whole) == len(sizes_of):  # else a compiler has unrolled one
            return [(of, *size, loop) for of, size, loop in zip(("dK, dV", "dQ"), sizes_of, whole, strict=True)]
    return []


def of_loop(of, rows, cols, loop, warps):
    """What it does, by the score."""
    found = {"of": of, "tile": [rows, cols], "instructions a score": round(len(loop) * 32 * warps / (rows * cols), 2)}
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
    parser.add_argument("--tutorial", type=Path, metavar="FILE", help="Triton's tutorial; fetched where none is given")
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
            about = {"source": "attnbook", "capability": int(capability), "dtype": dtype, "d": int(d), "causal": causal}
            for one in figures(made, constants):
                record.add(**about | one)
    with tempfile.TemporaryDirectory() as folder:
        if path := args.tutorial or fetched(folder):
            record.data["tutorial"] = hashlib.sha256(path.read_bytes()).hexdigest()
            asked = dict.fromkeys((c, d, mask) for c, _, d, mask in (cases[:1] if args.quick else cases))
            for capability, d, mask in tqdm(asked, unit="case of the tutorial"):
                about = {"capability": int(capability), "dtype": "float16", "d": int(d), "causal": mask == "causal"}
                for made, constants in tutorial(path, int(capability), int(d), mask == "causal"):
                    for one in figures(made, constants):
                        record.add(**{"source": "tutorial"} | about | one)
    head = ["source", "capability", "dtype", "d", "causal", "kernel", "of", "registers", "stack", "shared"]
    head += ["instructions a score", *COUNTED]
    table(head, [[cell.get(name) for name in head] for cell in record.data["cells"]])
    record.close()


if __name__ == "__main__":
    main()
