"""The benchmarks: their arithmetic, that each script runs, and what the recorded files hold. No time is tested."""

import importlib
import json
import math
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import threadpoolctl

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import common
import crossover
import gpu
import peers
import record as recording
import timing
from cpu import compared, ratios
from record import Record
from timing import measure, summary

import attnbook as ab
from attnbook.spines import DENSE_UP_TO

FOLDER = Path(common.__file__).parent
SCRIPTS = ("cpu", "multi_head", "rates", "crossover", "techniques", "memory", "orders")
SCRIPTS += ("gpu", "gpu_tiles", "gpu_one_walk")
RECORDED = sorted(FOLDER.glob("results/*.json"))


@pytest.fixture
def script(monkeypatch):
    """What runs a script in this process, by the words that follow its name."""

    def run(name, *words):
        monkeypatch.setattr(sys, "argv", [f"{FOLDER}/{name}.py", *map(str, words)])
        return importlib.import_module(name).main([*map(str, words)])

    threads = ab.get_num_threads()
    with threadpoolctl.threadpool_limits():
        yield run
    ab.set_num_threads(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


# --- arithmetic -----------------------------------------------------------------------------------------------


def test_figures_made_of_measured_ones():
    sizes, R = [1024, 2048, 4096, 8192], np.array([1.0, -4.0])
    assert math.isclose(common.exponent(sizes, [7 * n**2 for n in sizes]), 2)
    assert math.isclose(common.geometric_mean([0.5, 2.0, 8.0]), 2)
    assert summary([5.0, 1.0, 2.0, 4.0, 3.0]) == {"median": 3.0, "low": 2.0, "high": 4.0, "runs": 5}
    assert common.error([R + np.array([0, 1])], [R]) == 0.25
    assert common.error([R * np.nan], [R]) == math.inf
    theirs = {"torch SDPA": {"median": 2.0}}
    found = ratios([{"seconds": theirs | {"a": {"median": 3.0}}}, {"seconds": theirs | {"a": None}}], "a")
    assert str(found) == "[1.5, nan]"
    flops = {"forward": 4200, "backward": 10500, "both": 14700}  # as FlashAttention counts
    assert gpu.flops((2, 3, 5, 7), causal=False) == flops
    assert gpu.flops((2, 3, 5, 7), causal=True)["both"] == 7350


def measured(**times):
    """What is measured of peers that take these times, the first two of them for the estimate; and what was done."""
    told = []

    def peer(name, times):
        return SimpleNamespace(seconds=lambda repeats: told.append((name, repeats)) or next(times))

    made = {name: peer(name, iter(seconds)) for name, seconds in times.items()}
    return measure(made, 8.0, (2, 9), sleep=told.append, tries=3), told


def test_peers_take_turns_with_a_pause_before_each_and_a_short_call_is_timed_often():
    (found, refused), told = measured(a=[1.0] * 9, b=[1.0] * 9)
    assert told[:4] == [("a", 1), ("a", 1), ("b", 1), ("b", 1)]
    assert told[4:] == [timing.PAUSE, ("a", 1), timing.PAUSE, ("b", 1)] * 2
    assert found["a"] == {"median": 1.0, "low": 1.0, "high": 1.0, "runs": 2}
    assert not refused
    assert measured(a=[timing.SHORT / 10] * 20)[1][-1] == ("a", 10)
    (again, _), told = measured(a=[1.0] * 9, b=[1.0, 1.0, 1.0, 2.0, 1.0, 1.1])  # unsteady: all are measured again
    assert again["b"]["median"] == 1.05
    assert told.count(("a", 1)) == 2 + 2 * 2


def test_a_peer_is_another_process_and_says_why_it_ended(tmp_path, monkeypatch):
    script = "import os, numpy as np\ndef ready(n):\n    print('noise')\n"
    script += "    return lambda: [np.array([1 // n, os.getpid()])]"
    (tmp_path / "two_calls.py").write_text(script)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with peers.started("two_calls", {"right": (1,), "wrong": (0,)}, 1) as (ready, left_out):
        assert left_out["wrong"].startswith("ZeroDivisionError")
        assert 0 < ready["right"].seconds(5) < 1
        pids = {os.getpid(), *(ready["right"].save(tmp_path / "found.npz")[0][1] for _ in range(2))}
        peers.anew(ready)
        assert len(pids | {ready["right"].save(tmp_path / "found.npz")[0][1]}) == 3
        ready["right"]._process.kill()
        with pytest.raises(peers.PeerError):
            ready["right"].seconds(1)


def test_auto_changes_where_two_methods_cross_in_the_record():
    found = json.loads((FOLDER / "results" / "crossover_amd-avx2.json").read_text(encoding="utf-8"))
    assert list(found["limits"].values()) == [DENSE_UP_TO[True], DENSE_UP_TO[False]]
    assert found["limits"] == crossover.limits(found["cells"])


# --- records --------------------------------------------------------------------------------------------------


def test_a_record_appears_whole_and_tells_no_paths(tmp_path, monkeypatch):
    output = tmp_path / "made" / "here.json"
    monkeypatch.setattr(sys, "argv", [f"{tmp_path}/cpu.py", "--quick", "--output", str(output)])
    monkeypatch.setenv("LD_PRELOAD", "/some/where/libblas.so")
    record = Record("something", output, threads=2)
    record.add(shape=(1, 1, 2, 3), seconds=1.0)
    assert not output.exists()
    record.close()
    assert [path.name for path in output.parent.iterdir()] == ["here.json"]
    found = check_head(output.read_text())
    assert found["command"] == "python benchmarks/cpu.py --quick --output here.json"
    assert found["cells"] == [{"shape": [1, 1, 2, 3], "seconds": 1.0}]
    assert found["environment"]["LD_PRELOAD"] == "libblas.so"
    assert "HOME" not in found["environment"]


def test_a_record_of_another_machine_is_not_replaced(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(recording, "RESULTS", tmp_path)
    monkeypatch.setattr(recording, "_cpu", lambda: "AMD EPYC, AVX2")
    parser = common.options("doc")
    ask = lambda *words: recording.output_of(parser, parser.parse_args(words), "cpu", True)  # noqa: E731
    path = tmp_path / "cpu_amd-avx2.json"
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


def check_head(text):
    """What a reader needs to believe a record or to repeat it."""
    record = json.loads(text)
    older = "revised" in record  # of the time before all this was recorded
    assert older or record.keys() >= {"load", "environment", "commit"}
    assert record.keys() >= {"what", "command", "date"}
    assert record.keys() & {"threads", "gpu"}, "what it ran on"
    assert record["machine"].keys() >= {"cpu", "cores", "memory", *(() if older else ("usable", "quota", "governor"))}
    assert record["versions"].keys() >= {"python", "numpy", "attnbook"}
    assert record["blas"]["numpy"]
    assert record["command"].startswith("python benchmarks/")
    assert not re.search(r'["\s](/|~|[A-Z]:\\)\w+/', text), "a path"
    assert record["cells"]
    return record


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_what_is_recorded_holds_what_it_promises(path):
    record = check_head(path.read_text(encoding="utf-8"))
    assert "--quick" not in record["command"], "figures of a quick run mean nothing"
    for seconds in (cell["seconds"] for cell in record["cells"] if path.stem.startswith(("cpu", "multi_head"))):
        assert not [name for name, found in seconds.items() if found and timing.unsteady(found)]


# --- scripts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        *((name, ["--no-such-option"], "unrecognized arguments: --no-such-option") for name in SCRIPTS),
        ("cpu", ["--contenders", "nobody"], "no contender named nobody"),
        ("cpu", ["--shapes", "1,2"], "expected four positive numbers"),
        ("gpu", ["--quick", "--contenders", "nobody", "--device", "cpu"], "no contender named nobody"),
        *((name, ["--device", "cpu"], "--device cpu is for trials: add --quick") for name in SCRIPTS[-3:]),
    ],
)
def test_a_wrong_option_is_a_plain_error(name, words, message, script, capsys):
    with pytest.raises(SystemExit, match="2"):
        script(name, *words)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cpu", ["--threads", "1", "--contenders", "attnbook auto"]),  # it loads no torch
        *(
            pytest.param(name, words, marks=pytest.mark.thorough)
            for name, words in (
                ("cpu", ["--threads", "1", "--contenders", "attnbook.torch,torch SDPA,torch.compile,SDPA bfloat16"]),
                *((name, ["--threads", "1"]) for name in ("multi_head", "crossover", "techniques", "memory", "orders")),
                ("rates", []),
                *((name, ["--device", "cpu"]) for name in SCRIPTS[-3:]),
            )
        ),
    ],
)
def test_a_script_runs_and_writes_a_record(name, words, script, tmp_path, capsys):
    if name in ("memory", "orders") and not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip(f"{name}.py: not Linux")
    script(name, "--quick", "--output", tmp_path / f"{name}.json", *words)
    assert "%|" in capsys.readouterr().err  # the progress bar
    check_head((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    assert not list(tmp_path.glob("*.partial"))


def test_a_contender_that_is_wrong_ends_the_run():
    def found(*numbers):
        return SimpleNamespace(save=lambda path: [np.array(numbers)])

    with pytest.raises(SystemExit, match=r"ours is wrong in here: error 2\.0e-01"):
        compared({"ours": found(4.0, 6.0), "torch SDPA": found(4.0, 5.0)}, "float32", "here")
    near = {"SDPA bfloat16": found(4.0, 5.1), "torch SDPA": found(4.0, 5.0)}
    assert compared(near, "float32", "here") == {"SDPA bfloat16": 0.02, "torch SDPA": 0.0}


# --- the GPU's ------------------------------------------------------------------------------------------------


def test_the_call_for_all_knows_every_test_of_all_libraries():
    said = re.search(r"for name in (gpu .*?); do", (FOLDER / "gpu_all.sh").read_text(encoding="utf-8"), re.DOTALL)
    asks = re.compile(r"^def test_\w+\([^)]*\bxp\b", re.MULTILINE)
    others = re.compile(r"parametrize\([^)]*\bxp\b(?![^)]*indirect)")  # than the fixture of all libraries
    texts = {path.stem[5:]: path.read_text(encoding="utf-8") for path in Path(__file__).parents[1].rglob("test_*.py")}
    needed = {name for name, text in texts.items() if asks.search(text) and not others.search(text)}
    assert len(needed) > 10
    assert needed <= set(said[1].replace("\\", "").split())
