"""Which test checks what: the table of claims behind the page "What was checked".

``pytest tests --record-coverage FILE`` (``make coverage``) runs the tests that claim something and writes what passed.
A claim is a test's name, the quantities that it looks at, and the ways in which it checks them. Where a test runs on a
case or on a library, both are read from the case and the library themselves.
"""

import importlib.metadata
import json
import platform
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from cases import CASE, MULTI_HEAD_CASE, Case, MultiHead

from attnbook import ops

CALLED = {
    ops.ALiBi: "ALiBi", ops.BlockMask: "blocks", ops.Causal: "causal, top-left", ops.Segments: "packed documents",
    ops.Window: "sliding window",
}  # fmt: skip
BASES = (ops.Op, ops.Masking, ops.Placed)
ROW = {
    kind: CALLED.get(kind) or re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__).lower()
    for kind in vars(ops).values()
    if isinstance(kind, type) and issubclass(kind, ops.Op) and kind not in BASES
}
"""The row of each op of the package, by what people call it: a new op has its own, from the words of its name."""
ROWS = {
    "Alone": (
        "softmax", "log-sum-exp", "linear map", "heads, split and shared", "sums over broadcast axes", "merge",
    ),
    "One head": (
        "O", "L", "dQ", "dK", "dV", "dbias", "parameter of an op", "all of them from dL", "tangents of O and L",
    ),
    "The layer": (
        "Y", "dX", "dmemory", "dW_Q", "dW_K", "dW_V", "dW_O", "db_Q", "db_K", "db_V", "db_O",
    ),
    "Around the head": (
        "rotary positions", "norms", "output gate", "latent attention", "differential attention", "talking heads",
    ),
    "With": (
        "mask", "−∞ in a bias", "causal, top-left", "causal, bottom-right", "row with no allowed key",
        "shared key heads", "bias", "scale", "scale that learns", "logit scale", "ALiBi", "relative bias",
        "T5's buckets", "sliding window", "global tokens", "packed documents", "blocks", "top k", "softcap", "sink",
        "dropout", "op of one's own", "axes of length 0",
    ),
    "Beyond softmax": (
        "linear attention", "its normalizer", "decay", "delta rule", "first and last state", "sigmoid attention",
    ),
}  # fmt: skip
NEW = {kind: row for kind, row in ROW.items() if row not in ROWS["With"]}
ROWS["With"] += tuple(NEW.values())
CHECKS = ("differences", "autograd", "vjp = jvp", "other library", "properties", "planted mistakes", "diagnose")
SPINES = ("dense", "dense on NumPy", "tiled", "tiled on NumPy", "fused", "torch face", "layer")
LIBRARIES = ("NumPy", "read-only NumPy", "array-api-strict", "torch", "CuPy", "torch CUDA")
DTYPES = ("float64", "float32", "float16", "bfloat16")
WHY = (  # rows, columns, and why nothing stands there
    (["scale that learns", "logit scale"], ["fused"], "refused: the kernels have no sum of dS ∘ S for its gradient"),
    (["relative bias", "T5's buckets"], ["fused"], "refused: the kernels have no sums along diagonals"),
    (["global tokens"], ["fused"], "refused: the kernels visit one run of keys a query, or all"),
    (["dropout"], ["fused"], "refused: the kernels draw no numbers, and multiply no weights"),
    (["op of one's own"], ["fused"], "refused: unless it declares in_kernel"),
    (["top k"], ["fused", "torch face", "layer"], "a mask: given to attention as any mask, whose row it has"),
    (["top k"], ["vjp = jvp"], "a mask: it has no derivative of its own"),
    (["−∞ in a bias", "axes of length 0"], ["planted mistakes"], "none: the lines are those of the other rows"),
    (["output gate", "latent attention"], ["vjp = jvp"], "no jvp: a layer has the vjp alone"),
    (ROWS["Around the head"][:5], ["fused", "torch face"], "outside: it lies around attention, which has its own rows"),
    (["talking heads"], SPINES[1:6], "one form: it mixes the heads of whole tables, and keeps them"),
    (["differential attention", "talking heads"], ["layer"], "a head alone: no layer of the package has it"),
    (ROWS["Beyond softmax"][:5], SPINES, "own forms: with no softmax it needs no table: whole, by chunks, by steps"),
    (["sigmoid attention"], SPINES[1:4:2], "no twin: dense and tiled take NumPy arrays too"),
    (["sigmoid attention"], SPINES[4:], "softmax: it is built into these"),
)  # fmt: skip
REASONS = {}
for rows, columns, why in WHY:
    for row in rows:
        REASONS.setdefault(row, {}).update(dict.fromkeys(columns, why))
for kind, row in NEW.items():
    if kind.in_kernel is ops.Op.in_kernel:
        REASONS[row] = {"fused": "refused: it declares no in_kernel"}
VARIANTS = [row for title in ("Around the head", "With", "Beyond softmax") for row in ROWS[title]]
NEEDED = (*CHECKS[:3], "planted mistakes", *SPINES)
QUANTITIES = [quantity for rows in ROWS.values() for quantity in rows]
WEIGHTS = tuple(f"dW_{name}" for name in "QKVO")
BIASES = tuple(f"db_{name}" for name in "QKVO")
DERIVATIVES = ("differences", "autograd", "vjp = jvp")


# --- what a test looks at, read from what it runs on --------------------------------------------------------------


def row_of(op):
    """The row of "With" that an op belongs to."""
    if type(op).__module__.partition(".")[0] != "attnbook":
        return "op of one's own"
    more = {
        "causal, bottom-right": isinstance(op, ops.Causal) and op.corner == "bottom-right",
        "global tokens": isinstance(op, ops.Window) and op.global_tokens > 0,
        "scale that learns": type(op) is ops.Scale and op.learns is not None,
        "T5's buckets": isinstance(op, ops.RelativeBias) and op.buckets is not None,
    }
    return next((row for row, holds in more.items() if holds), ROW[type(op)])


def conditions(case):
    """The rows of "With" that a case belongs to."""
    made = {row_of(op() if shape is None else op(np.zeros(shape))) for op, shape in case.ops}
    n_heads = [T[-3] if len(T) > 2 else 1 for T in (case.q, case.k, case.v)]
    yields = {
        **dict.fromkeys(made, True),
        "mask": case.mask is not None,
        "bias": case.bias is not None or "bias" in made,
        "−∞ in a bias": case.forbid > 0,
        "causal, top-left": case.causal in (True, "top-left"),
        "causal, bottom-right": case.causal == "bottom-right",
        "row with no allowed key": not case.allowed().any(-1).all(),
        "shared key heads": n_heads[1] < n_heads[0] or n_heads[2] < n_heads[0],
        "scale": case.scale is not None,
        "axes of length 0": 0 in (*case.q, *case.k),
    }
    return [name for name, holds in yields.items() if holds]


def around(case):
    """What a case of the layer has around its heads."""
    has = {"rotary positions": case.rotary, "norms": case.norm, "output gate": case.gate}
    return [row for row, there in has.items() if there]


def parameters(case):
    """dbias and the parameter of an op, where a case has them."""
    found = [] if case.bias is None else ["dbias"]
    return found + ["parameter of an op"] * any(shape is not None for _, shape in case.ops)


def the_case(item):
    """The case of a test, by value or by name."""
    params = item.callspec.params
    case = params.get("case") or MULTI_HEAD_CASE.get(params.get("name"))
    return case if isinstance(case, Case | MultiHead) else None


def variant(item):
    """The variants that a case has."""
    case = the_case(item)
    return conditions(case) if isinstance(case, Case) else [*around(case), *conditions(case.heads)]


def spine(item):
    """The spine of a test that runs on routes, or by methods."""
    params = item.callspec.params
    return [(params.get("route") or params["method"]).partition(", ")[0]]


def output(item):
    return ["O" if isinstance(the_case(item), Case) else "Y", *variant(item)]


def gradients(item):
    case = the_case(item)
    if isinstance(case, Case):
        return ["dQ", "dK", "dV", *parameters(case), *variant(item)]
    biases = (f"db_{name}" for name in case.biases.removesuffix("G"))
    return ["dX", *["dmemory"] * bool(case.d_mem), *WEIGHTS, *biases, *parameters(case.heads), *variant(item)]


OF_L = ["all of them from dL", "tangents of O and L"]


def derivatives(item):
    return [*gradients(item), *OF_L]


def everything(item):
    return [*output(item), *gradients(item), *(OF_L[1:] if isinstance(the_case(item), Case) else [])]


def output_of_L(item):
    return ["L", *conditions(the_case(item))]


def op(item):
    """The rows that belong to the op of a test of test_ops."""
    make, shapes = item.callspec.params["make"], item.callspec.params["shapes"]
    made = make(np.zeros(0), *(np.zeros(shape) for shape in shapes))
    return [row_of(made), *(["dbias"] if isinstance(made, ops.Bias) else [])]


def of_name(item):
    """As of a case of attention that is given by its name."""
    return ["O", "dQ", "dK", "dV", *conditions(CASE[item.callspec.params["name"]])]


def of_softmax(item):
    return ["log-sum-exp" if item.callspec.params["is_right"].__name__ == "logsumexp_is_right" else "softmax"]


def recurrence(item):
    """What a case of test_recurrent has, which is given itself or by its name."""
    case = item.callspec.params.get("case") or item.module.CASE[item.callspec.params["name"]]
    holds = {
        "delta rule": case.delta,
        "linear attention": not case.delta,
        "its normalizer": not case.delta and case.options.get("normalize", True),
        "decay": "gate" in case.shapes,
        "first and last state": "state" in case.shapes,
    }
    return [row for row, yes in holds.items() if yes]


MASKS = ["mask", "sliding window", "global tokens", "causal, top-left", "causal, bottom-right"]
PASSES = {"forward": ["O"], "vjp": ["dQ", "dK", "dV"], "_pushed": ["tangents of O and L"], "Residuals.L": ["L"]}
PLANTED_IN = {
    "softmax.py": ["softmax", "log-sum-exp"], "linear.py": ["linear map"], "arrays.py": ["sums over broadcast axes"],
    "heads.py": ["heads, split and shared"], "merge.py": ["merge"], "arguments.py": ["scale"],
    "rotary.py": ["rotary positions"], "norms.py": ["norms"], "gates.py": ["output gate"],
    "layers/latent.py": ["latent attention"], "layers/differential.py": ["differential attention"],
    "layers/talking.py": ["talking heads"], "top_k.py": ["top k"],
    "ops/scale.py": ["scale", "scale that learns", "logit scale"], "ops/bias.py": ["bias", "dbias"],
    "ops/op.py": ["op of one's own"], "ops/relative_bias.py": ["relative bias", "T5's buckets"], "ops/masks.py": MASKS,
    "spines/columns.py": ["sink"],
    "multi_head.py": ROWS["The layer"], "sigmoid.py": ["sigmoid attention"],
    **{f"recurrent/{file}.py": rows for file, rows in {
        "features": ["linear attention"], "whole": ["linear attention"], "linear_attention": ["linear attention"],
        "chunk": ["linear attention", "decay", "delta rule"], "delta_rule": ["delta rule"],
        "scan": ["first and last state"], "passes": ["linear attention", "its normalizer"],
    }.items()},
}  # fmt: skip


OF_SLUG = {
    "mask": "mask", "scale": "scale", "no-scale": "scale", "group": "shared key heads",
    "dead-row": "row with no allowed key",
    "causal-bottom": "causal, top-left", "causal-top": "causal, bottom-right",
}  # fmt: skip


def spoiled(item):
    """What an entry of the catalogue of mistakes spoils, and the rows of "With" that its name belongs to."""
    mistake = item.callspec.params["mistake"]
    return [*mistake.spoils, *(row for start, row in OF_SLUG.items() if mistake.slug.startswith(start))]


def planted(item):
    """What lies in the file in which a mistake is planted, or in the pass of a spine."""
    file, function = (item.callspec.params[name] for name in ("file", "function"))
    of_ops = [row for kind, row in ROW.items() if kind.__module__.endswith(file.removesuffix(".py").replace("/", "."))]
    return PLANTED_IN.get(file) or of_ops or (PASSES.get(function, []) if file.startswith("spines/") else [])


def library(item):
    xp = item.callspec.params["xp"]
    return [xp.name, *xp.dtypes] if xp.missing() is None else [xp.name]


def dtype(item):
    return [str(item.callspec.params["dtype"]).removeprefix("torch.")]


# --- the claims ---------------------------------------------------------------------------------------------------
# test, what it looks at, how

BY_LIBRARY = {
    "test_softmax.py::test_every_library_gives_the_same": ["softmax", "log-sum-exp"],
    "test_linear.py::test_every_library_gives_the_same": ["linear map"],
    "test_heads.py::test_every_library_gives_the_same": ["heads, split and shared"],
    "test_arrays.py::test_unbroadcast_sums_what_broadcasting_spread": ["sums over broadcast axes"],
    "test_ops.py::test_every_library_gives_the_same": op,
    "test_attention.py::test_every_library_gives_the_same": everything,
    "test_ops.py::test_dropout_in_every_library": ["dropout"],
    "test_multi_head.py::test_every_library_gives_the_same": everything,
    "test_rotary.py::test_every_library_gives_the_same": ["rotary positions"],
    "test_norms.py::test_every_library_gives_the_same": ["norms"],
    "test_layers.py::test_latent_attention_in_every_library": ["latent attention"],
    "test_layers.py::test_differential_attention_in_every_library": ["differential attention"],
    "test_layers.py::test_talking_heads_in_every_library": ["talking heads"],
    "test_recurrent.py::test_every_library_gives_the_same": recurrence,
    "test_sigmoid.py::test_every_library_gives_the_same": ["sigmoid attention"],
}
CLAIMS = [
    *((test, quantities, library) for test, quantities in BY_LIBRARY.items()),
    ("test_attention.py::test_derivatives", variant, spine),
    ("test_fused.py::test_small", variant, ["fused"]),
    ("test_fused.py::test_on_tiles", variant, ["fused"]),
    ("test_torch_orders.py::test_every_case", variant, ["torch face"]),
    ("test_multi_head.py::test_gradients", variant, ["layer"]),
    ("test_multi_head.py::test_on_every_spine", variant, spine),
    ("test_top_k.py::test_the_gradient_flows_through_what_is_kept", ["top k"], spine),
    ("test_top_k.py::test_the_gradient_flows_through_what_is_kept", ["top k"], DERIVATIVES[:2]),
    ("test_sigmoid.py::test_values_and_derivatives", ["sigmoid attention"], spine),
    ("test_layers.py::test_latent_attention", ["latent attention"], [*SPINES[:4], "layer"]),
    ("test_layers.py::test_differential_attention", ["differential attention"], SPINES[:4]),
    ("test_layers.py::test_talking_heads", ["talking heads"], ["dense"]),
    ("test_softmax.py::test_values_and_derivatives", of_softmax, [*DERIVATIVES, "other library"]),
    ("test_softmax.py::test_the_columns_of_the_jacobian_are_derivatives", ["softmax"], ["properties"]),
    ("test_softmax.py::test_large_scores_do_not_overflow", ["softmax", "log-sum-exp"], dtype),
    ("test_linear.py::test_values", ["linear map"], ["other library"]),
    ("test_linear.py::test_derivatives", ["linear map"], DERIVATIVES),
    ("test_heads.py::test_the_gradient_sums_over_the_group", ["heads, split and shared"], ["vjp = jvp"]),
    ("test_heads.py::test_neighbours_share_a_head", ["heads, split and shared"], ["properties"]),
    ("test_arrays.py::test_unbroadcast_sums_what_broadcasting_spread", ["sums over broadcast axes"], ["vjp = jvp"]),
    ("test_ops.py::test_derivatives", op, DERIVATIVES),
    ("test_merge.py::test_derivatives", ["merge"], DERIVATIVES),
    ("test_merge.py::test_two_parts_make_the_whole", ["merge"], ["properties"]),
    ("test_tiled.py::test_L_is_the_logsumexp_of_the_scores", output_of_L, ["other library"]),
    ("test_tiled.py::test_threads_change_no_bit", gradients, ["properties"]),
    ("test_attention.py::test_values", output, ["other library"]),
    ("test_attention.py::test_derivatives", derivatives, DERIVATIVES),
    ("test_attention.py::test_a_backward_may_run_twice_and_is_linear", gradients, ["properties"]),
    ("test_attention.py::test_dead_rows_are_exactly_zero", ["row with no allowed key"], ["properties"]),
    ("test_attention.py::test_what_is_forbidden_is_unseen", output, ["properties"]),
    ("test_attention.py::test_low_precision", of_name, dtype),
    ("test_attention.py::test_large_scores_do_not_overflow", ["O", "dQ", "dK", "dV"], dtype),
    ("test_torch_sdpa.py::test_values_and_gradients", ["O", "dQ", "dK", "dV", "dbias"], ["other library"]),
    ("test_multi_head.py::test_values", output, ["other library"]),
    ("test_multi_head.py::test_gradients", gradients, ["differences", "autograd"]),
    ("test_multi_head.py::test_a_backward_may_run_twice_and_is_linear", gradients, ["properties"]),
    ("test_torch_layout.py::test_samples_of_our_own", ["Y", "dX", "dmemory", *WEIGHTS, *BIASES], ["other library"]),
    ("test_answer.py::test_the_lines_of_torch_give_torch_s_gradients", ["dX", *WEIGHTS, *BIASES], ["other library"]),
    ("test_recurrent.py::test_it_is_the_loop_and_so_are_its_derivatives", recurrence, DERIVATIVES),
    ("test_recurrent.py::test_every_chunk_gives_the_same", recurrence, ["properties"]),
    ("test_recurrent.py::test_it_is_qwen3_next", ["delta rule", "decay"], ["autograd", "other library"]),
    ("test_sigmoid.py::test_values_and_derivatives", ["sigmoid attention"], DERIVATIVES),
    ("test_rotary.py::test_values_and_derivatives", ["rotary positions"], [*DERIVATIVES, "other library"]),
    ("test_rotary.py::test_lengths_stay_and_the_backward_undoes_it", ["rotary positions"], ["properties"]),
    ("test_norms.py::test_values_and_derivatives", ["norms"], [*DERIVATIVES, "other library"]),
    ("test_layers.py::test_latent_attention", ["latent attention"], ["differences", "autograd", "other library"]),
    ("test_layers.py::test_differential_attention", ["differential attention"], [*DERIVATIVES, "other library"]),
    ("test_layers.py::test_talking_heads", ["talking heads"], [*DERIVATIVES, "other library"]),
    ("test_models.py::test_multi_head_attention", ["Y", "dX", *WEIGHTS, "rotary positions"], ["other library"]),
    ("test_models.py::test_latent_attention", ["latent attention"], ["other library"]),
    ("test_mutations.py::test_it_is_noticed", planted, ["planted mistakes"]),
    ("test_mistakes.py::test_the_tests_notice_it", spoiled, ["planted mistakes"]),
    ("test_mistakes.py::test_diagnose_names_it", spoiled, ["diagnose"]),
]


def test_of(item):
    """The test as CLAIMS names it."""
    return item.nodeid.partition("[")[0].rpartition("/")[2]


def holes(cells):
    """Where a variant has neither a test nor a reason, or both."""
    recorded = [row for row in VARIANTS if row in cells]
    return [(row, c) for row in recorded for c in NEEDED if (c in cells[row]) == (c in REASONS.get(row, ()))]


def cells_of(item):
    """The cells (quantity, check) that a test claims."""
    name, found = test_of(item), set()
    for test, quantities, checks in CLAIMS:
        if test == name:
            quantities, checks = (x(item) if callable(x) else x for x in (quantities, checks))
            found |= {(quantity, check) for quantity in quantities for check in checks}
    unknown = {q for q, _ in found} - {*QUANTITIES} | {c for _, c in found} - {*CHECKS, *SPINES, *LIBRARIES, *DTYPES}
    assert not unknown, f"{item.nodeid} claims {unknown}"
    return sorted(found)


# --- pytest's hooks, which conftest imports -----------------------------------------------------------------------


def pytest_addoption(parser):
    parser.addoption("--record-coverage", metavar="FILE", help="run what claims to check something; write what passed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """When recording, keep the tests that claim something, with their cells to carry."""
    if not config.getoption("record_coverage"):
        return
    claims = {item: cells_of(item) for item in items}
    for item in items:
        item.user_properties.append(("covers", claims[item]))
    config.hook.pytest_deselected(items=[item for item in items if not claims[item]])
    items[:] = [item for item in items if claims[item]]


def pytest_runtest_logreport(report):
    """Keep, for each cell, whether a test of it passed; where all were skipped, why. And count the tests."""
    if report.when == "call" and report.passed:
        COUNTS["passed"] += 1
        COUNTS["planted mistakes noticed"] += report.nodeid.partition("[")[0].endswith(NOTICE)
    COUNTS["skipped"] += report.skipped
    cells = dict(report.user_properties).get("covers", ())
    if report.passed and report.when != "call":
        return
    if report.failed:
        FAILED.append(report.nodeid)
        return
    for cell in map(tuple, cells):
        outcome = "passed" if report.passed else report.longrepr[2]
        OUTCOMES.setdefault(cell, set()).add(outcome.removeprefix("Skipped: "))


OUTCOMES = {}
COUNTS, FAILED = Counter(), []
NOTICE = ("test_mutations.py::test_it_is_noticed", "test_mistakes.py::test_the_tests_notice_it")


def pytest_sessionfinish(session):
    config = session.config
    if not config.getoption("record_coverage") or hasattr(config, "workerinput"):
        return
    if FAILED or not OUTCOMES:
        raise pytest.UsageError(f"nothing was recorded: {', '.join(FAILED) or 'no test ran'}")
    drawn = {
        quantity: {
            check: "passed" if "passed" in outcomes else " ".join(sorted(outcomes))
            for check in (*CHECKS, *SPINES, *LIBRARIES, *DTYPES)
            if (outcomes := OUTCOMES.get((quantity, check)))
        }
        for quantity in QUANTITIES
    }
    columns = {"checks": CHECKS, "spines": SPINES, "libraries": (*LIBRARIES, *DTYPES)}
    run = {"date": datetime.now(UTC).date().isoformat(), "tests": dict(COUNTS), "versions": versions()}
    whole = {**run, "rows": ROWS, "columns": columns, "cells": drawn, "why": REASONS}
    Path(config.getoption("record_coverage")).write_text(
        json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def versions():
    """The libraries that the tests ran with."""
    found = {"Python": platform.python_version()}
    for name in ("numpy", "torch", "scipy", "array-api-strict", "array-api-compat", "cupy-cuda12x"):
        try:
            found[name] = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
