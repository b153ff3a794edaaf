"""The figures of a GPU's record: drawn from invented ones here, and a plain line where there is none."""

import copy
import json
import math
import sys
from pathlib import Path

import pytest
from gpu_record import invented

from attnbook.book.figures import Figure, gpu

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
DRAWN = (gpu.speed, gpu.ratio, gpu.memory)


def test_every_contender_has_a_look_of_its_own():
    contenders = pytest.importorskip("gpu_contenders")
    assert set(gpu.LOOKS) == set(contenders.CONTENDERS)
    assert len(set(gpu.LOOKS.values())) == len(gpu.LOOKS)


@pytest.mark.parametrize("draw", DRAWN, ids=lambda f: f.__name__)
def test_a_record_is_drawn(draw):
    pytest.importorskip("matplotlib")
    figure = draw(invented())
    assert isinstance(figure, Figure)
    for name in gpu.LOOKS:
        assert f">{name}</text>" in figure.svg, name
    assert "512" in figure.svg
    assert figure.alt.startswith("bfloat16, d = 128, causal. ")


def test_what_is_said_is_what_was_recorded():
    pytest.importorskip("matplotlib")
    record = invented(lengths=(512, 2048))
    flops, seconds = (record["cells"][1][what] for what in ("flops", "seconds"))
    rate = flops["backward"] / seconds["backward"]["SDPA cuDNN"]["median"] / 1e12
    said = gpu.speed(record).alt
    assert f"backward, n = 2048: attnbook fused {500:.3g} TFLOP/s, " in said
    assert f"SDPA cuDNN {rate:.3g} TFLOP/s" in said
    assert "A large matrix product reaches 600." in said
    assert f"eager {13 / 8:.3g} ×" in gpu.ratio(record).alt
    assert "forward and backward, n = 2048: " in gpu.memory(record).alt


def test_where_nothing_of_torch_ran_there_is_no_ratio():
    cell = copy.deepcopy(invented(lengths=(512,))["cells"][0])
    for times in cell["seconds"].values():
        for name in [name for name in times if name.startswith("SDPA")]:
            del times[name]
    assert gpu.PEER not in gpu.seconds(cell, "both")
    record = invented(lengths=(512, 1024))
    record["cells"][0] = cell
    assert not gpu._lines([cell], "both", lambda *_: math.nan, "seconds")
    assert gpu.ratio(record).alt.count("n = 1024") == 2


@pytest.mark.parametrize("draw", DRAWN, ids=lambda f: f.__name__)
def test_without_figures_a_line_says_so(draw, capsys, tmp_path):
    record = gpu.recorded(tmp_path / "gpu.json")
    assert record is None
    assert capsys.readouterr().out == (
        "No GPU figures are recorded yet: gpu.json is made by benchmarks/gpu.py, on a machine with a GPU.\n"
    )
    gpu.source(record)
    assert capsys.readouterr().out == ""
    assert draw(record) is None
    assert capsys.readouterr().out == "No GPU figures are recorded yet.\n"
    assert draw(invented(), d=64) is None
    assert capsys.readouterr().out == "No GPU figures are recorded for bfloat16, d = 64, causal.\n"


def test_a_file_is_read_and_says_where_it_comes_from(capsys, tmp_path):
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps(invented()), encoding="utf-8")
    gpu.source(gpu.recorded(path))
    said = capsys.readouterr().out
    for part in ("python benchmarks/gpu.py, 2000-01-01", "Invented GPU, 5 GiB, driver 1.2, CUDA 3.4", "torch 2"):
        assert part in said
