"""The fused kernels compile for GPUs that are not here, as they are launched, and fit into their shared memory."""

import json
import subprocess
import sys
from pathlib import Path

import kernels
import pytest

kernels.triton_or_skip()
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import gpu_compiled  # noqa: E402

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


@pytest.mark.parametrize("capability", [pytest.param("80", marks=pytest.mark.thorough), "90"])
def test_those_of_the_chapter_compile(capability, tmp_path):
    compiled = compiled_by(tmp_path, "chapter", capability)
    kernels = {"forward_step", "forward", "row_sums", "keys_backward", "queries_backward", "bias_backward"}
    assert {(row["kernel"], row["capability"]) for row in compiled} == {(name, int(capability)) for name in kernels}


@pytest.mark.thorough
@pytest.mark.parametrize("capability", ["80", "86", "90", "100"])
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


def test_figures_of_the_machine_code(compiled):
    """No more than a few registers of the largest tiles are spilled, and all products of 16 bits are Hopper's own."""
    of = {row["kernel"]: row for row in compiled if "registers" in row}
    assert {name for name, row in of.items() if row["stack"]} <= {"backward_keys"}
    assert of["backward_keys"]["stack"] <= 64
    for name in ("forward_kernel", "backward_keys", "backward_queries"):
        assert of[name]["matrix"] >= 12
        assert of[name]["copies"] >= 8
        # small tiles of keys have more of them, and are the faster ones: results/gpu_tiles.json
        assert 7 < of[name]["instructions a score"] < (17.5 if name == "backward_keys" else 12.8)


CODE = """
.text.kernel:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_2:
        /*0010*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], !UPT ;
.L_x_1:
        /*0020*/               @P0 LDGSTS.E.BYPASS.128 [R1], desc[UR6][R2.64] ;
        /*0030*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0040*/              @!P1 BRA `(.L_x_1) ;
        /*0050*/               @P2 BRA `(.L_x_2) ;
.L_x_3:
        /*0060*/                   BRA `(.L_x_3);
"""


def test_a_loop_is_from_its_label_to_the_branch_back():
    """The inner one of two, and none without products."""
    ((copy, product, back),) = gpu_compiled.loops(CODE)
    assert (copy[:6], product[:4], back[:3]) == ("LDGSTS", "HMMA", "BRA")
