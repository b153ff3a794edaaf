"""The benchmarks: their arithmetic, that each script runs, and what the recorded files hold. No time is tested."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import changes
import common
import crossover
import gpu
import gpu_tiles
import memory
import peers
import rates
import record as recording
import timing
from common import error, exponent, geometric_mean
from cpu import compared, ratios, with_floors
from record import Record
from timing import measure, summary

from attnbook.spines import DENSE_UP_TO

FOLDER = Path(common.__file__).parent
SCRIPTS = (
    "cpu",
    "multi_head",
    "rates",
    "crossover",
    "techniques",
    "memory",
    "orders",
    "gpu",
    "gpu_tiles",
    "gpu_one_walk",
)
RATES = (*rates.PRODUCTS, "exponential")
RECORDED = sorted(FOLDER.glob("results/*.json"))


def run(name, *words):
    return subprocess.run(
        [sys.executable, FOLDER / f"{name}.py", *words], capture_output=True, text=True, check=False, timeout=300
    )


# --- arithmetic -----------------------------------------------------------------------------------------------


def test_an_exponent_is_the_slope_in_log_log():
    sizes = [1024, 2048, 4096, 8192]
    assert math.isclose(exponent(sizes, [7 * n**2 for n in sizes]), 2)
    assert math.isclose(exponent(sizes, [n / 3 for n in sizes]), 1)


def test_ratios_are_of_medians_and_of_one_cell():
    cells = [
        {"seconds": {"a": {"median": 3.0}, "torch SDPA": {"median": 2.0}}},
        {"seconds": {"torch SDPA": {"median": 2.0}}},
    ]
    assert ratios(cells, "a")[0] == 1.5
    assert math.isnan(ratios(cells, "a")[1])
    refused = [{"seconds": {"a": None, "torch SDPA": {"median": 2.0}}}]
    assert math.isnan(ratios(refused, "a")[0])
    assert math.isclose(geometric_mean([0.5, 2.0, 8.0]), 2)


def test_a_summary_has_the_median_and_the_quartiles():
    assert summary([5.0, 1.0, 2.0, 4.0, 3.0]) == {"median": 3.0, "low": 2.0, "high": 4.0, "runs": 5}


def test_an_error_is_a_part_of_the_largest_number_and_infinite_for_nan():
    R = np.array([1.0, -4.0])
    assert error([R, R], [R, R]) == 0
    assert error([R + np.array([0, 1])], [R]) == 0.25
    assert error([R * np.nan], [R]) == math.inf


class Peer:
    """Its calls take what it is told, by a clock that nobody waits for."""

    def __init__(self, name, times, told):
        self.name, self.times, self.told = name, iter(times), told

    def seconds(self, repeats):
        self.told.append((self.name, repeats))
        return next(self.times)


def measured(rounds=(2, 9), tries=3, budget=8.0, begins=False, **times):
    """What is measured of peers that take these times, the first two of them for the estimate; and what was done."""
    told = []
    made = {name: Peer(name, seconds, told) for name, seconds in times.items()}
    anew = (lambda peers: told.append(list(peers))) if begins else None
    return measure(made, budget, rounds, sleep=lambda s: told.append(s), tries=tries, anew=anew), told


def test_peers_take_turns_with_a_pause_before_each():
    (found, refused), told = measured(a=[1.0] * 9, b=[1.0] * 9)
    assert told[:4] == [("a", 1), ("a", 1), ("b", 1), ("b", 1)]
    assert told[4:] == [timing.PAUSE, ("a", 1), timing.PAUSE, ("b", 1)] * 2
    assert found["a"] == {"median": 1.0, "low": 1.0, "high": 1.0, "runs": 2}
    assert not refused


@pytest.mark.parametrize("first", [1.0, 1.35])
def test_halfway_all_begin_anew_and_a_process_that_is_slower_is_seen(first):
    times = [first] * (2 + 3) + [2.35 - first] * 3
    (found, refused), told = measured((5, 5), tries=1, begins=True, a=[1.0] * 8, b=times)
    half = [timing.PAUSE, ("a", 1), timing.PAUSE, ("b", 1)] * 3
    assert told[4:] == [*half, ["a", "b"], *half]
    assert found["a"]["runs"] == 6
    assert found["b"] is None
    assert refused == {"b": "30% from quartile to quartile"}


def test_another_try_is_of_two_other_processes():
    _, told = measured((2, 2), tries=2, begins=True, b=[1.0] * 3 + [2.0] * 3)
    turn = [timing.PAUSE, ("b", 1)]
    assert told[2:] == [*turn, ["b"], *turn, ["b"], *turn, ["b"], *turn]


def test_a_short_call_is_timed_often():
    _, told = measured(a=[timing.SHORT / 10] * 20)
    assert told[-1] == ("a", 10)


def test_rounds_fit_the_budget_between_least_and_most():
    def rounds(seconds, budget):
        (found, _), _ = measured((3, 9), budget=budget, a=[seconds] * 20)
        return found["a"]["runs"]

    assert rounds(1e-3, 100) == 9
    assert rounds(10.0, 1) == 3
    assert rounds(1.0, 4.5 * (2 + timing.PAUSE)) == 4


def test_an_unsteady_cell_is_measured_again_as_a_whole():
    (found, refused), told = measured(a=[1.0] * 9, b=[1.0, 1.0, 1.0, 2.0, 1.0, 1.1])
    assert found["b"]["median"] == 1.05
    assert not refused
    assert sum(one == ("a", 1) for one in told) == 2 + 2 * 2


def test_what_stays_unsteady_is_refused_and_says_why():
    (found, refused), _ = measured(a=[1.0] * 9, b=[1.0] * 2 + [1.0, 2.0] * 3)
    assert found["b"] is None
    assert refused == {"b": "33% from quartile to quartile"}
    assert found["a"]["median"] == 1.0


def test_a_peer_is_another_process_and_says_why_it_ended(tmp_path, monkeypatch):
    script = "import os\ndef ready(n):\n    if n == 0:\n        raise ValueError('none of it')\n    print('noise')\n"
    script += "    return lambda: (__import__('numpy').full(2, n), __import__('numpy').full(1, os.getpid()))\n"
    (tmp_path / "two_calls.py").write_text(script)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with peers.started("two_calls", {"right": (3,), "wrong": (0,)}, 1) as (ready, left_out):
        assert left_out == {"wrong": "ValueError: none of it"}
        values, pid = ready["right"].save(tmp_path / "found.npz")
        assert values.tolist() == [3, 3]
        assert pid[0] != os.getpid()
        assert 0 < ready["right"].seconds(5) < 1
        assert "numpy" in ready["right"].about["versions"]
        peers.anew(ready)
        values, (other,) = ready["right"].save(tmp_path / "found.npz")
        assert values.tolist() == [3, 3]
        assert other not in (os.getpid(), *pid)
        ready["right"]._process.kill()
        with pytest.raises(peers.PeerError):
            ready["right"].seconds(1)
        (tmp_path / "two_calls.py").unlink()
        with pytest.raises(peers.PeerError, match=r"^right did not begin anew: ModuleNotFoundError"):
            peers.anew(ready)


def test_a_peer_that_makes_many_calls_at_once_is_not_called_for_each(tmp_path, monkeypatch):
    script = "import numpy\ndef ready():\n    def call():\n        call.made += 1\n"
    script += "        return [numpy.array(call.made)]\n    call.made, call.count = 0, 100\n    return call\n"
    (tmp_path / "many_calls.py").write_text(script)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with peers.started("many_calls", {"one": ()}, 1) as (ready, _):
        ready["one"].seconds(950)
        (made,) = ready["one"].save(tmp_path / "found.npz")
    assert made == 2 + 1 + 10 + 1


def test_the_floor_is_that_of_the_best_rates_at_that_length():
    def cell(n, seconds):
        return {"shape": [1, 1, n, 8], "dtype": "float32", "causal": False, "rates": dict.fromkeys(RATES, seconds)}

    found = list(with_floors([cell(2048, 3.0), cell(4096, 2.0), cell(128, 1.0)]))
    assert np.allclose([c["floor"] / c["shape"][2] ** 2 for c in found], [9 * 2, 9 * 2, 9], rtol=1e-4)
    assert found[0]["rates"]["exponential"] == 3.0


def test_the_floor_counts_seven_products_and_two_exponentials():
    only = {"Q Kᵀ": 1.0, "P V": 0.0, "Pᵀ dO": 0.0, "exponential": 0.0}
    shape = (2, 3, 4, 5)
    assert rates.floor(shape, "float32", False, rates=only) == 3 * 6 * 16
    assert rates.floor(shape, "float32", True, rates=only) == 3 * 6 * 10
    assert sum(rates.HOW_MANY.values()) == 7
    exps = dict.fromkeys(only, 0.0) | {"exponential": 1.0}
    assert rates.floor(shape, "float32", False, rates=exps) == 2 * 6 * 16


@pytest.mark.parametrize("name", rates.PRODUCTS)
def test_each_product_is_two_operations_a_score_and_column(name):
    A, B = rates.PRODUCTS[name](7, 5, 3)
    assert A[0] * A[1] * B[0] * B[1] == 7 * 5 * 3 * next(n for n in A if n in B)  # the summed length counts twice
    assert rates.product(name, (7, 5), 3, "float32")().size * next(n for n in A if n in B) == 7 * 5 * 3


def test_the_limit_between_two_methods_is_where_they_cross():
    def cell(n, dense, tiled):
        seconds = {"dense": {"median": dense}, "tiled": {"median": tiled}}
        return {"shape": (1, 1, n, 64), "causal": False, "seconds": seconds}

    cells = [cell(16, 1, 2), cell(32, 1, 1.5), cell(64, 3, 1), cell(128, 9, 1)]
    assert crossover.best_limit(cells) == 32**2
    assert crossover.best_limit(cells[2:]) == 0


def test_auto_changes_where_the_record_says():
    found = json.loads((FOLDER / "results" / "crossover_amd-avx2.json").read_text(encoding="utf-8"))
    assert dict(zip((True, False), found["limits"].values(), strict=True)) == DENSE_UP_TO
    assert found["limits"] == crossover.limits(found["cells"])


def test_growth_is_fitted_to_one_head_in_float32():
    cells = [
        {"method": "a", "shape": (1, 1, n, 8), "dtype": "float32", "causal": False, "peak_bytes": n}
        for n in (64, 128, 256)
    ]
    others = [dict(cells[0], dtype="float64", peak_bytes=9e9), dict(cells[0], causal=True, peak_bytes=9e9)]
    refused = dict(cells[0], shape=(1, 1, 512, 8), peak_bytes=None)
    assert memory.exponents([*cells, *others, refused]) == {"a": {"memory": 1.0}}


# --- records --------------------------------------------------------------------------------------------------


def test_a_record_appears_whole_and_tells_no_paths(tmp_path, monkeypatch):
    output = tmp_path / "made" / "here.json"
    monkeypatch.setattr(sys, "argv", [f"{tmp_path}/cpu.py", "--quick", "--output", str(output)])
    record = Record("something", output, threads=2)
    record.add(shape=(1, 1, 2, 3), seconds=1.0)
    assert not output.exists()
    record.close()
    assert [path.name for path in output.parent.iterdir()] == ["here.json"]
    found = json.loads(output.read_text())
    assert found["command"] == "python benchmarks/cpu.py --quick --output here.json"
    assert found["cells"] == [{"shape": [1, 1, 2, 3], "seconds": 1.0}]
    check_head(output.read_text())


def test_what_is_not_whole_takes_no_whole_ones_place(tmp_path, capsys):
    def recorded(budget):
        record = Record("something", tmp_path / "here.json", threads=1)
        record.over([1, 2, 3], lambda n: [{"n": n}], budget, str)
        record.close()
        return sorted(path.name for path in tmp_path.iterdir())

    assert recorded(None) == ["here.json"]
    assert recorded(1e-9) == ["here.json", "here.json.partial"]
    assert len(json.loads((tmp_path / "here.json").read_text())["cells"]) == 3
    kept = json.loads((tmp_path / "here.json.partial").read_text())
    assert (len(kept["cells"]), kept["skipped"]) == (0, ["1", "2", "3"])
    assert "stays as it was" in capsys.readouterr().out


def test_an_interrupt_keeps_what_is_measured(tmp_path):
    def measured(n):
        if n == 2:
            raise KeyboardInterrupt
        return [{"n": n}]

    record = Record("something", tmp_path / "here.json", threads=1)
    record.over([1, 2, 3], measured, None, str)
    record.close()
    found = json.loads((tmp_path / "here.json").read_text())
    assert (found["cells"], found["skipped"]) == ([{"n": 1}], ["2", "3"])


def test_a_record_of_another_machine_is_not_replaced(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(recording, "RESULTS", tmp_path)
    monkeypatch.setattr(recording, "_cpu", lambda: "AMD EPYC, AVX-512")
    parser = common.options("doc")
    ask = lambda *words: recording.output_of(parser, parser.parse_args(words), "cpu", True)  # noqa: E731
    path = tmp_path / "cpu_amd.json"
    assert ask() == path
    here = {name: recording.machine()[name] for name in recording.SAME}
    path.write_text(json.dumps({"machine": here}))
    assert ask() == path
    path.write_text(json.dumps({"machine": here | {"cores": 96}}))
    assert ask("--replace") == path
    assert ask("--output", "x.json") == Path("x.json")
    assert ask("--quick") is None
    with pytest.raises(SystemExit):
        ask()
    assert "another machine (cores 96, not" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cpu", "name"),
    [
        ("AMD EPYC, AVX-512", "amd"),
        ("AMD EPYC, AVX2", "amd-avx2"),
        ("Intel(R) Xeon(R)", "intel"),
        ("RISC", "other"),
    ],
)
def test_a_file_is_named_after_the_processors_maker(cpu, name):
    assert recording.maker(cpu) == name


def test_only_variables_that_touch_blas_are_recorded_and_no_folders(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setenv("LD_PRELOAD", "/some/where/libblas.so")
    monkeypatch.setenv("HOME", "/some/where")
    found = recording.environment()
    assert found["OPENBLAS_CORETYPE"] == "Haswell"
    assert found["LD_PRELOAD"] == "libblas.so"
    assert "HOME" not in found


def test_two_records_are_compared_beyond_noise(tmp_path, capsys):
    def record(*medians, spread=0.1, commit="a"):
        cells = [
            {"shape": [n], "seconds": {"x": m and {"median": m, "low": m - spread, "high": m + spread, "runs": 5}}}
            for n, m in enumerate(medians)
        ]
        path = tmp_path / f"{commit}.json"
        path.write_text(json.dumps({"what": "one", "commit": commit, "cells": cells}))
        return path

    before = record(1.0, 1.0, 1.0, 1.0)
    changes.main([str(before), str(record(1.1, 2.0, 0.5, None, commit="b"))])
    said = capsys.readouterr().out
    assert "commit: a → b" in said
    assert "2 of 3 figures changed beyond noise" in said
    assert "Refused or missing in one of them, 1:" in said
    changes.main([str(before), str(before)])
    assert "0 of 4 figures changed" in capsys.readouterr().out


def test_two_records_of_orders_are_compared_in_seconds_and_in_peaks_and_in_how(tmp_path, capsys):
    def record(peak, median, how):
        seconds = median and {"median": median, "low": median, "high": median, "runs": 5}
        cells = [{"order": "jvp", "shape": [8], "peak_bytes": peak, "seconds": seconds}]
        path = tmp_path / f"{how}.json"
        path.write_text(json.dumps({"what": "one", "how": how, "cells": cells}))
        return str(path)

    before = record(100, 1.0, "together")
    changes.main([before, record(200, 1.02, "apart")])
    said = capsys.readouterr().out
    assert "how: together → apart" in said
    assert "1 of 2 figures changed beyond noise" in said
    assert "jvp [8] peak_bytes" in said
    changes.main([before, record(100, None, "refused")])
    said = capsys.readouterr().out
    assert "0 of 1 figures changed" in said
    assert "jvp [8] seconds" in said.partition("Refused or missing in one of them, 1:")[2]


def check_head(text):
    record = json.loads(text)
    assert {"what", "command", "date", "machine", "versions", "cells"} <= set(record)
    assert {"threads", "gpu"} & set(record), "what it ran on"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", record["date"])
    assert {"cpu", "cores", "memory"} <= set(record["machine"])
    if "revised" not in record:  # of the time before all this was recorded
        assert {"load", "environment", "commit", "blas"} <= set(record)
        assert {"usable", "quota", "governor"} <= set(record["machine"])
        assert set(record["load"]) >= {"before", "after"}
        assert record["commit"] is None or set(record["commit"]) == {"name", "dirty"}
    assert record["blas"]["numpy"]
    assert {"python", "numpy", "attnbook"} <= set(record["versions"])
    assert record["command"].startswith("python benchmarks/")
    assert not re.search(r'["\s](/|~|[A-Z]:\\)\w+/', text), "a path"
    assert record["cells"]
    return record


def check_gpu_cell(cell):
    """One of gpu.json: each contender is measured in all passes, or the record says why it is not."""
    assert cell["dtype"] in gpu.DTYPES
    assert cell["flops"] == gpu.flops(cell["shape"], cell["causal"])
    measured = set(cell["seconds"]["both"])
    assert set(cell["seconds"]) == set(gpu.PASSES)
    for times in cell["seconds"].values():
        check_seconds({"seconds": times})
        assert set(times) == measured
    assert not measured & set(cell["left out"])
    assert measured <= set(cell["errors"])
    for name in measured:
        assert set(cell["errors"][name]) == set(gpu.ERROR_BARS)
        assert max(cell["errors"][name].values()) < gpu.WRONG
    assert all(of > 0 for amounts in cell["peak_bytes"].values() for of in amounts.values())


def check_seconds(cell):
    for name, found in cell["seconds"].items():
        if found is None:
            assert "quartile" in cell["refused"][name], name
            continue
        assert set(found) == {"median", "low", "high", "runs"}, name
        assert 0 < found["low"] <= found["median"] <= found["high"], name
        assert found["runs"] >= 1, name


def check_steady(cell):
    """What is unsteady is not printed."""
    assert not any(timing.unsteady(found) for found in cell["seconds"].values() if found)


def check_cell(kind, cell):
    """What each kind of file promises of a cell."""
    if kind == "gpu":
        check_gpu_cell(cell)
    if kind in ("cpu", "multi_head", "crossover", "memory"):
        assert len(cell["shape"]) == 4
        assert cell["dtype"] in ("float32", "float64")
        assert isinstance(cell["causal"], bool)
    if kind.startswith("gpu_tiles"):
        check_seconds(cell)
        check_steady(cell)
        assert cell["seconds"] or cell["cannot"]
    if kind in ("cpu", "multi_head", "crossover"):
        check_seconds(cell)
        check_steady(cell)
    if kind == "cpu":
        assert cell["floor"] > 0
        assert set(cell["errors"]) == set(cell["seconds"])
        assert not set(cell["left out"]) & set(cell["seconds"])
        least = {"SDPA bfloat16": 0.05, "float32": 1e-4, "float64": 1e-10}
        assert all(off < least.get(name, least[cell["dtype"]]) for name, off in cell["errors"].items())
    elif kind == "memory":
        assert (cell["peak_bytes"] or 0) >= 0
        assert cell["peak_bytes"] is not None or cell["refused"]
        assert cell["method"]
    elif kind == "orders":
        assert cell["peak_bytes"] >= 0
        assert cell["seconds"] or cell["refused"]
    elif kind == "rates":
        assert cell["rate"] > 0 if cell["rate"] else cell["refused"]
        assert cell["unit"] in ("GFLOP/s", "ns a number", "GB/s")
        assert cell["threads"] in (1, 2)
    elif kind == "techniques":
        assert re.fullmatch("T[1-8]", cell["technique"])
        assert len({"seconds", "bytes", "error"} & set(cell)) == 1
        if "seconds" in cell:
            found = {"seconds": {cell["what"]: cell["seconds"]}, "refused": {cell["what"]: cell.get("refused")}}
            check_seconds(found)
            check_steady(found)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_what_is_recorded_holds_what_it_promises(path):
    record = check_head(path.read_text(encoding="utf-8"))
    assert "--quick" not in record["command"], "figures of a quick run mean nothing"
    if path.stem == "gpu":
        assert record["rates"]["matrix"].keys() == set(gpu.DTYPES)
        assert {"name", "driver", "cuda", "capability"} <= set(record["gpu"])
    for cell in record["cells"]:
        check_cell(re.sub("_(amd|intel|arm|apple|other)(-avx2)?$", "", path.stem), cell)


# --- scripts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_says_what_it_does(name):
    done = run(name, "--help")
    assert done.returncode == 0, done.stderr
    assert f"python benchmarks/{name}.py" in done.stdout
    assert "--quick" in done.stdout


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cpu", ["--threads", "1", "--contenders", "attnbook auto,attnbook tiled"]),  # these load no torch
        ("techniques", ["--threads", "1", "--only", "T3"]),
        ("memory", ["--threads", "1", "--contenders", "attnbook tiled"]),
        *(
            pytest.param(name, words, marks=pytest.mark.thorough)
            for name, words in (
                ("cpu", ["--threads", "1", "--contenders", "attnbook.torch,torch SDPA,torch.compile,SDPA bfloat16"]),
                ("multi_head", ["--threads", "1"]),
                ("rates", []),
                ("crossover", ["--threads", "1"]),
                ("techniques", ["--threads", "1"]),
                ("memory", ["--threads", "1", "--contenders", "torch SDPA"]),
                ("orders", ["--threads", "1"]),
                ("gpu", ["--device", "cpu"]),  # it is tested below, part by part
                ("gpu_tiles", ["--device", "cpu"]),
                ("gpu_one_walk", ["--device", "cpu"]),
            )
        ),
    ],
)
def test_a_script_runs(name, words, tmp_path):
    if name in ("memory", "orders") and not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip(f"{name}.py: not Linux")
    output = tmp_path / f"{name}.json"
    done = run(name, "--quick", "--output", output, *words)
    assert done.returncode == 0, done.stderr
    assert "%|" in done.stderr  # the progress bar
    record = check_head(output.read_text(encoding="utf-8"))
    for cell in record["cells"]:
        check_cell(name, cell)
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("cpu", ["--contenders", "nobody"], "no contender named nobody"),
        ("cpu", ["--shapes", "1,2"], "expected four positive numbers"),
        ("techniques", ["--only", "T9"], "no technique named T9"),
        ("gpu", ["--quick", "--contenders", "nobody", "--device", "cpu"], "no contender named nobody"),
        ("gpu", ["--device", "cpu"], "--device cpu is for trials: add --quick"),
        ("gpu_tiles", ["--device", "cpu"], "--device cpu is for trials: add --quick"),
        ("gpu_one_walk", ["--device", "cpu"], "--device cpu is for trials: add --quick"),
    ],
)
def test_an_option_that_does_not_exist_is_a_plain_error(name, words, message):
    done = run(name, *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_contender_that_is_wrong_ends_the_run():
    class Found:
        def __init__(self, *arrays):
            self.save = lambda path: [np.array(T) for T in arrays]

    with pytest.raises(SystemExit, match=r"ours is wrong in here: error 2\.0e-01"):
        compared({"ours": Found([4.0, 6.0]), "torch SDPA": Found([4.0, 5.0])}, "float32", "here")
    near = {"SDPA bfloat16": Found([4.0, 5.1]), "torch SDPA": Found([4.0, 5.0])}
    assert compared(near, "float32", "here") == {"SDPA bfloat16": 0.02, "torch SDPA": 0.0}


# --- the GPU's ------------------------------------------------------------------------------------------------


def test_without_a_gpu_nothing_is_written(tmp_path):
    output = tmp_path / "gpu.json"
    done = run("gpu", "--output", output)
    if "No GPU here" not in done.stderr:
        pytest.skip("there is a GPU here")
    assert done.returncode == 1
    assert done.stderr.strip() == "No GPU here: gpu.py measures on one. Nothing was written."
    assert not list(tmp_path.iterdir())


def test_the_call_for_all_says_so_too():
    environment = {**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [FOLDER / "gpu_all.sh"], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 1
    assert done.stderr.strip() == "No GPU here: there is nothing to test or to measure."
    assert "numpy" in done.stdout


def test_a_copy_says_what_it_is_a_copy_of(monkeypatch):
    monkeypatch.setenv("COMMIT", "abc123")
    assert recording.commit() == {"name": "abc123", "dirty": None}


def test_the_call_for_all_knows_every_test_of_all_libraries():
    said = re.search(r"for name in (gpu .*?); do", (FOLDER / "gpu_all.sh").read_text(encoding="utf-8"), re.DOTALL)
    asks = re.compile(r"^def test_\w+\([^)]*\bxp\b", re.MULTILINE)
    others = re.compile(r"parametrize\([^)]*\bxp\b(?![^)]*indirect)")  # than the fixture of all libraries
    texts = {path.stem: path.read_text(encoding="utf-8") for path in Path(__file__).parents[1].rglob("test_*.py")}
    needed = {
        name.removeprefix("test_") for name, text in texts.items() if asks.search(text) and not others.search(text)
    }
    assert len(needed) > 10
    assert needed <= set(said[1].replace("\\", "").split())


@pytest.mark.thorough
def test_the_call_for_all_names_what_is_too_old(tmp_path):
    (tmp_path / "array_api_compat.py").write_text('__version__ = "1.2"', encoding="utf-8")
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([FOLDER / "gpu_all.sh"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(
        r"Needed, in \.venv or in a folder that PYTHONPATH names: array-api-compat [\d.]+\.\n", done.stderr
    )


PYTHON_WITH_A_GPU = """#!/bin/sh
case $1 in
  -) cat > /dev/null ;;
  -c) exit 1 ;;
  -m) exec sleep "$TESTS_TAKE" ;;
  *) echo "$@" > "$ASKED"; exit "$MEASURED" ;;
esac
"""
"""What stands in for Python where the call for all is tried: tests that take so long, a measurement that ends so."""


@pytest.mark.parametrize(
    ("tests_take", "measured", "code", "said"),
    [
        ("60", "0", 124, "tests FAILED, measurement complete."),
        ("0", "1", 1, "tests passed, measurement stopped."),
        ("0", "0", 0, "tests passed, measurement complete."),
    ],
)
def test_the_call_for_all_measures_whatever_the_tests_do(tests_take, measured, code, said, tmp_path):
    python, asked = tmp_path / "python", tmp_path / "asked"
    python.write_text(PYTHON_WITH_A_GPU, encoding="utf-8")
    python.chmod(0o755)
    environment = os.environ | {"PYTHON": str(python), "ASKED": str(asked), "SECONDS_FOR_TESTS": "1"}
    environment |= {"TESTS_TAKE": tests_take, "MEASURED": measured}
    command = [FOLDER / "gpu_all.sh", "--output", "there.json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code
    assert done.stdout.strip().endswith(said)
    assert ("The tests were cut off after 1 s." in done.stdout) == (code == 124)
    words = asked.read_text(encoding="utf-8").split()
    assert words[0] == "benchmarks/gpu.py"
    assert words[-2:] == ["--output", "there.json"]
    assert 180 < int(words[words.index("--budget") + 1]) <= 435  # and with 40 s of grace all is below eight minutes


def test_the_cells_of_most_interest_come_first():
    cells = gpu.grid(gpu.DTYPES, gpu.WIDTHS, gpu.LENGTHS, gpu.MASKS)
    assert len(cells) == 3 * 2 * 6 * 2
    for cell in cells:
        B, H, n, d = cell["shape"]
        assert (B * n, H * d) == (16384, 2048)
    first = [(cell["dtype"], *cell["shape"][2:]) for cell in cells[:8]]
    assert sorted(set(first)) == [("bfloat16", n, 128) for n in (2048, 4096, 8192, 16384)]
    assert all(cell["shape"][2] < 2048 for cell in cells[-24:])


def test_each_size_of_tiles_is_tried_beside_the_one_in_use():
    every = list(gpu_tiles.cases(quick=False))
    assert len({case[:4] for case in every}) == 2 * 2 * 2 * 3  # dtypes, widths, masks, kernels
    for dtype, d, _, walk, tiles in every:
        used = gpu_tiles.in_use(dtype, d)
        size = getattr(tiles, walk)
        assert gpu_tiles.blocks(gpu_tiles.written(size)) == size
        assert tiles._replace(**{walk: getattr(used, walk)}) == used, "another kernel's tiles changed, too"
    assert {case[:3:2] for case in gpu_tiles.cases(False, ["float32"], ["causal"])} == {("float32", True)}
    first = {case[:4]: case for case in reversed(every)}
    assert all(case[4] == gpu_tiles.in_use(*case[:2]) for case in first.values())
    times = {"64x64.4.3": {"median": 0.002}, "128x64.8.3": {"median": 0.001}}
    assert gpu_tiles.used_and_best(times, [0], [every[0]]) == ["64x64.4.3", 2.0, "128x64.8.3", 1.0]


def test_flops_are_counted_as_flashattention_does():
    assert gpu.flops((2, 3, 5, 7), causal=False) == {"forward": 4200, "backward": 10500, "both": 14700}
    assert gpu.flops((2, 3, 5, 7), causal=True)["both"] == 7350


@pytest.fixture
def trial(monkeypatch):
    """A cell of two contenders on the CPU, with what may be planted among them."""
    torch = pytest.importorskip("torch")
    import gpu_clock
    import gpu_contenders

    def cell(budget=60.0, compiling=0.0, **planted):
        for name, kind in planted.items():
            monkeypatch.setitem(gpu_contenders.CONTENDERS, name, kind)
        start, spent = gpu.time.monotonic(), {"compiling": compiling, "most": 1.0}
        asked = {"shape": (2, 1, 16, 8), "dtype": "float32", "causal": True}
        bar = type("Bar", (), {"set_postfix_str": lambda *_, **__: None})()
        names = ["attnbook dense", *planted, "eager"]
        return gpu.cell_of(asked, names, gpu_clock.OnCPU(), start + budget, spent, bar, gpu.IN_A_TRIAL)

    return torch, gpu_contenders, cell


@pytest.mark.thorough
def test_what_fails_is_left_out_with_its_reason_and_the_others_are_measured(trial):
    torch, contenders, cell = trial

    class Large(contenders.Eager):
        def forward(self):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 TiB. A long story.")

    class Late(contenders.Eager):
        def backward(self, memory):
            raise RuntimeError("No kernel. Another sentence.\nAnd lines.")

    class Absent(contenders.Eager):
        def __init__(self, *args):
            import no_such_library  # noqa: F401

    class Wrong(contenders.Eager):
        def backward(self, memory):
            return [1.01 * T for T in super().backward(memory)]

    class Last(contenders.Eager):
        def backward(self, memory):
            return [torch.cat([T[:-1], 1.01 * T[-1:]]) if len(T) > 1 else T for T in super().backward(memory)]

    class Odd(contenders.Eager):
        def backward(self, memory):
            return [1.01 * T if T.shape[-2] % 2 else T for T in super().backward(memory)]

    class NaN(contenders.Eager):
        def backward(self, memory):
            return [T * math.nan for T in super().backward(memory)]

    class Wide(contenders.Eager):
        @staticmethod
        def to_torch(T):
            return T.double()

    found = cell(large=Large, late=Late, absent=Absent, wrong=Wrong, last=Last, odd=Odd, nan=NaN, wide=Wide)
    assert set(found["seconds"]["both"]) == {"attnbook dense", "eager"}
    assert set(found["errors"]) == {"attnbook dense", "eager"}
    for name in ("wrong", "last", "odd", "nan"):
        assert found["left out"].pop(name).startswith("wrong: "), name
    assert found["left out"] == {
        "large": "out of memory",
        "late": "RuntimeError: No kernel",
        "absent": "no_such_library is not installed",
        "wide": "TypeError: results of another device or dtype",
    }


def test_memory_that_ends_while_times_are_taken_is_left_out(trial):
    torch, contenders, cell = trial
    calls = []

    class Later(contenders.Eager):
        def forward(self):
            calls.append(0)
            if len(calls) > 5:  # compared twice, warmed, estimated, and its memory taken
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return super().forward()

    found = cell(later=Later)
    assert found["left out"] == {"later": "out of memory"}
    assert all("later" not in times for times in found["seconds"].values())


def test_time_is_kept(trial):
    _, contenders, cell = trial

    class Slow(contenders.Eager):
        fresh = False

    assert cell(compiling=2.0, slow=Slow)["left out"] == {"slow": "no time left to compile it"}
    assert set(cell(budget=-1.0)["left out"].values()) == {"no time left"}


def test_errors_are_multiples_of_those_of_eager_lines(trial):
    _, _, cell = trial
    found = cell()
    assert set(found["errors"]["eager"].values()) == {1.0}
    assert all(0 < error < 1e-5 for error in found["errors of eager"].values())


def test_bars_are_of_the_worst_cell():
    """Of invented times: each contender takes one more than the one before it, a thousandth more in the last cell."""
    names = "attnbook fused", "attnbook tiled", "SDPA flash", "SDPA cuDNN", "eager"
    cells = []
    for n in (1024, 2048, 4096):
        more = 1e-3 * (n == 4096)
        times = {name: summary([place + 1.0 + more * ("attnbook" in name)]) for place, name in enumerate(names)}
        times["SDPA efficient"] = {"median": 0.1, "low": 0.1, "high": 0.2, "runs": 9}  # unsteady: not believed
        errors = {
            names[0]: {"O": 0.9, "dQ": 1.0 + more, "dK": 1.1, "dV": 1.2},
            "eager": dict.fromkeys(gpu.ERROR_BARS, 9),
        }
        shape = (16384 // n, 16, n, 128)
        cells.append({"shape": shape, "dtype": "bfloat16", "causal": True, "errors": errors}
                     | {"seconds": dict.fromkeys(gpu.PASSES, times)})  # fmt: skip
    rows = {row[0]: row[1:] for row in gpu.against_bars(cells)}
    asked, mean, worst, where = rows["attnbook fused, backward, ÷ SDPA flash, d 128, bfloat16"]
    assert (asked, mean, worst) == (0.8, pytest.approx(math.sqrt(1.001) / 3), pytest.approx(1.001 / 3))
    assert where == "4,16,4096,128 bfloat16 causal"
    assert rows["attnbook tiled, both, ÷ fastest SDPA, d 128, bfloat16"][2] == pytest.approx(2.001 / 3)
    assert rows["CuPy dense, both, ÷ eager, d 128, float16"][3] == "not measured"
    assert rows["our error of dQ ÷ eager's"][:3] == [3.0, pytest.approx(1.001 ** (1 / 3)), pytest.approx(1.001)]


@pytest.mark.thorough
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="memory is read from Linux")
def test_ranks_run():
    """Small sizes, whose figures mean nothing."""
    script = Path(gpu.__file__).with_name("ranks.py")
    done = subprocess.run([sys.executable, script, "--quick"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2 + 1 + 2 * 3
