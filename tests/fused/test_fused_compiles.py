"""The fused kernels compile for GPUs that are not here, as they are launched, and fit into their shared memory."""

import warnings

import compiled_record as record
import kernels
import pytest

kernels.triton_or_skip()


@pytest.fixture(params=["recorded", pytest.param("anew", marks=pytest.mark.thorough)])
def made(request):
    """What was compiled: as recorded, where nothing has changed since."""
    anew = request.param == "anew" or record.stale()
    return lambda what: record.compiled(*record.WHAT[what]) if anew else record.recorded(what)


@pytest.mark.filterwarnings("default:compiled again")
def test_it_is_said_whether_they_are_compiled():
    if why := record.stale():
        warnings.warn(f"compiled again: {why}; make compiled renews it", stacklevel=1)
    else:
        pytest.skip(f"kernels are as in {record.RECORD.name}, so they are not compiled; make thorough does")


def test_they_compile_and_fit(made):
    rows = made("as launched")
    assert {row["kernel"] for row in rows} == {
        "forward_kernel", "row_sums", "backward_keys", "backward_queries", "backward_bias",
    }  # fmt: skip
    assert not [row for row in rows if row["shared"] > row["limit"]]


def test_those_of_the_chapter_compile(made):
    kernels = {"forward_step", "forward", "row_sums", "keys_backward", "queries_backward", "bias_backward"}
    assert {(row["kernel"], row["capability"]) for row in made("of the chapter")} == {(name, 90) for name in kernels}


@pytest.mark.thorough
@pytest.mark.parametrize("capability", ["80", "86", "90", "100"])
def test_every_size_of_tiles_fits(capability):
    """With each kind of bias and of mask."""
    rows = record.compiled(capability)
    assert len(rows) > 150
    assert not [row for row in rows if row["shared"] > row["limit"]]


def test_products_run_on_tensor_cores_unless_they_must_not(made):
    """Not those of true float32: there, a tensor core would round."""
    for row in made("as launched"):
        if row["kernel"] != "row_sums":
            assert row["tensor cores"] == (row["dtype"] != "torch.float32"), row


def test_figures_of_the_machine_code(made):
    """No more than a few registers of the largest tiles are spilled, and all products of 16 bits are Hopper's own."""
    of = {row["kernel"]: row for row in made("as launched") if "registers" in row}
    assert {name for name, row in of.items() if row["stack"]} <= {"backward_keys"}
    assert of["backward_keys"]["stack"] <= 64
    for name in ("forward_kernel", "backward_keys", "backward_queries"):
        assert of[name]["matrix"] >= 12
        assert of[name]["copies"] >= 8
        # small tiles of keys have more of them, and are the faster ones: results/gpu_tiles.json
        assert 7 < of[name]["instructions a score"] < (17.5 if name == "backward_keys" else 12.8)
