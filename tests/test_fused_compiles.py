"""The fused kernels compile for GPUs that are not here, as they are launched, and fit into their shared memory."""

import json
import subprocess
import sys
from pathlib import Path

import kernels
import pytest

kernels.triton_or_skip()
SCRIPT = Path(__file__).with_name("compile_kernels.py")


def compiled_by(*options):
    """In a process of its own: here, the interpreter runs them."""
    done = subprocess.run([sys.executable, SCRIPT, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return compiled_by(tmp_path_factory.mktemp("triton"))


def test_they_compile_and_fit(compiled):
    assert {row["kernel"] for row in compiled} == {
        "forward_kernel", "row_sums", "backward_keys", "backward_queries", "backward_bias",
    }  # fmt: skip
    assert not [row for row in compiled if row["shared"] > row["limit"]]


def test_those_of_the_chapter_compile(tmp_path):
    compiled = compiled_by(tmp_path, "chapter")
    kernels = {"forward_step", "forward", "row_sums", "keys_backward", "queries_backward", "bias_backward"}
    assert {(row["kernel"], row["capability"]) for row in compiled} == {(name, n) for name in kernels for n in (80, 90)}


@pytest.mark.thorough
@pytest.mark.parametrize("capability", ["80", "86", "90"])
def test_every_size_of_tiles_fits(capability, tmp_path):
    """With each kind of bias and of mask."""
    compiled = compiled_by(tmp_path, capability)
    assert len(compiled) > 150
    assert not [row for row in compiled if row["shared"] > row["limit"]]


def test_products_run_on_tensor_cores_unless_they_must_not(compiled):
    """Not those of true float32: there, a tensor core would round."""
    for row in compiled:
        if row["kernel"] != "row_sums":
            assert row["tensor cores"] == (row["dtype"] != "torch.float32"), row
