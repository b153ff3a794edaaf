"""The command: its targets, its exit status, its reports for CI, and the pytest plugin."""

import json
import re
import subprocess
import sys
import textwrap
import tomllib
from xml.etree import ElementTree

import numpy as np
import pytest
from equations import ROOT
from test_workflows import schema, steps, zizmor

import attnbook as ab
from attnbook.__main__ import _parser, main
from attnbook.diagnose.cases.battery import battery
from attnbook.diagnose.causes.mistakes import MISTAKE
from attnbook.grade import EXERCISES, exercise, pages, rubric
from attnbook.reports import as_html, as_junit, picture, wrong_entries
from attnbook.reports.picture import in_words

pytest_plugins = ["pytester"]

MINE = """
    from attentions.of_symptoms import Saved as Flash
    from attentions.of_symptoms import detached as of_torch
    from attentions.over_ranks import RIGHT as OVER
    from attentions.right import ours as right

    from attnbook.diagnose import Ranks
    from attnbook.diagnose.causes.mistakes import MISTAKE

    over = Ranks(*OVER["ring"])
    wrong = MISTAKE["ds-mean"].run


    class Head:
        def __call__(self, Q, K, V, dO):
            return right(Q, K, V, dO)


    class Wide(Head):
        def __init__(self, width):
            self.width = width
"""


MADE = ("mine", "one", "broken", "pack", "ran")
"""What the tests write and import."""

FEW = ("plain", "batch and heads", "all axes equal", "mask", "mask with a dead row", "causal, more keys")


@pytest.fixture
def few(monkeypatch):
    """Diagnose with a few cases: here it matters how what it finds is said."""
    monkeypatch.setattr(
        sys.modules["attnbook.diagnose.report"],
        "battery",
        lambda *convention: [case for case in battery(*convention) if case.name in FEW],
    )


@pytest.fixture
def run(few, tmp_path, monkeypatch, capsys):
    """The command, in this process and in a folder with ``mine.py``: (status, stdout, stderr)."""
    (tmp_path / "mine.py").write_text(textwrap.dedent(MINE), encoding="utf-8")
    (tmp_path / "one.py").write_text("def head(Q, K, V, dO):\n    return Q, K, V", encoding="utf-8")
    (tmp_path / "broken.py").write_text("1 / 0", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["attnbook"])
    modules = set(sys.modules)

    def run(*arguments):
        out = sys.stdout
        try:
            status = main(list(map(str, arguments)))
        except SystemExit as end:
            status = end.code
        finally:
            sys.stdout = out
        return status, *capsys.readouterr()

    yield run
    for name in set(sys.modules) - modules:
        if name.partition(".")[0] in MADE or name.startswith("attnbook_target"):
            del sys.modules[name]


@pytest.mark.parametrize(
    "target",
    ["./mine.py:right", "mine:Head", "mine:Flash", "mine:of_torch", "mine:over", "attnbook:attention, attention_vjp"],
)
def test_what_a_target_may_be(run, target):
    status, out, err = run("diagnose", target)
    assert (status, out.splitlines()[0]) == (0, "right: O, dQ, dK, dV"), (out, err)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "usage"),
        ("diagnose mine", "expected module:function, got 'mine'"),
        ("diagnose mine.py", "expected module:function, got 'mine.py': it has"),
        ("diagnose one.py", "write one.py:head"),
        ("diagnose mine:wright", "has no attribute 'wright'; it has Head, Wide"),
        ("diagnose mine:Wide", "Wide is a class, and cannot be made without arguments (TypeError:"),
        ("diagnose nowhere.py:f", "there is no file nowhere.py"),
        ("diagnose not_there:f", "No module named 'not_there'"),
        ("diagnose broken.py:f", "broken.py could not be imported: ZeroDivisionError: division by zero"),
        ("diagnose mine:right --limit 0", "limit: expected a number of seconds above 0"),
        ("diagnose mine:right --library numpy --dtype bfloat16", "none of NumPy"),
        ("diagnose mine:right --at-least -1", "--at-least: expected 0 or more, got '-1'"),
        ("grade a.py", "expected FILES and --exercise NAME"),
        ("grade a.py --exercise nothing", "exercise: expected one of softmax"),
        ("grade a.py --exercise softmax --limit -1", "limit: expected a number above 0"),
        ("grade a.py --exercise softmax --csv --json", "not allowed with"),
    ],
)
def test_status_2_and_a_hint(run, arguments, words):
    status, out, err = run(*arguments.split())
    assert (status, out) == (2, "")
    assert words in err
    assert "Traceback" not in err


def test_what_cannot_be_written_is_noticed_before_anything_runs(run, tmp_path):
    (tmp_path / "ran.py").write_text("from pathlib import Path\nPath('ran').touch()\n", encoding="utf-8")
    (tmp_path / "there").mkdir()
    there = "there/report"
    for files, words in (
        (("--junit", "no/folder.xml"), "'no'"), (("--html", "no/folder.xml"), "'no'"),
        (("--junit", there, "--html", there), "--junit and --html: the same file"),
    ):  # fmt: skip
        status, out, err = run("diagnose", "ran.py:f", *files)
        assert (status, out) == (2, "")
        assert words in err
        assert not (tmp_path / "ran").exists()
    status, out, _ = run("diagnose", "attnbook:attention,attention_vjp", "--junit", "there")
    assert status == 2
    assert "right: O, dQ, dK, dV" in out  # the report is not lost with the file


def test_a_function_that_never_returns_keeps_neither_the_shell_nor_its_report(tmp_path):
    """It prints to the end, which is not mixed with the report."""
    (tmp_path / "mine.py").write_text(
        "def noisy(Q, K, V, dO):\n    while True:\n        print('still here', flush=True)\n", encoding="utf-8"
    )
    command = [sys.executable, "-m", "attnbook", "diagnose", "mine:noisy", "--limit", "0.2", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8", timeout=100)
    assert done.returncode == 1
    assert json.loads(done.stdout)["findings"][0]["kind"] == "too long"
    assert "still here" in done.stderr


def test_a_file_of_a_package_is_named_as_a_module(run, tmp_path):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "steps.py").write_text("from attnbook import attention, attention_vjp", encoding="utf-8")
    (tmp_path / "pack" / "heads.py").write_text("from .steps import attention, attention_vjp", encoding="utf-8")
    _, _, err = run("diagnose", "pack/heads.py:attention,attention_vjp")
    name = "pack.heads:attention,attention_vjp"
    assert f"no known parent package: name it as a module, {name}" in err
    assert run("diagnose", name)[0] == 0


def test_version(run):
    assert run("--version") == (0, f"attnbook {ab.__version__}\n", "")


# --- reports for CI -----------------------------------------------------------------------------------------------


def test_all_reports_at_once(run, tmp_path):
    status, out, _ = run("diagnose", "mine:wrong", "--json", "--junit", "report.xml", "--html", "report.html")
    assert status == 1
    told = json.loads(out)
    assert told["ok"] is False
    assert "runs" not in told
    assert [(f["about"], f["causes"]) for f in told["findings"]] == [("dQ", [["ds-mean"]]), ("dK", [["ds-mean"]])]
    assert told["mistakes"]["ds-mean"]["link"].endswith("in_the_wild.html#mistake-ds-mean")
    suite = ElementTree.parse(tmp_path / "report.xml").getroot()
    assert int(suite.get("failures")) > 0
    assert "ds-mean" in (tmp_path / "report.html").read_text(encoding="utf-8")


def raises_at_times(Q, K, V, dO, causal=False):
    if Q.ndim == 2:
        raise RuntimeError("a \x00 control character")
    return MISTAKE["scale-missing-in-dq"].run(Q, K, V, dO, causal=causal)


@pytest.mark.usefixtures("few")
def test_junit():
    report = ab.diagnose(raises_at_times)
    suite = ElementTree.fromstring(as_junit(report, "mine:f"))
    tests = {test.get("name"): test for test in suite}
    assert len(tests) == int(suite.get("tests")) == report.cases
    assert tests["batch and heads"].find("failure").get("type") == "scale-missing-in-dq"
    assert tests["mask"].find("skipped").get("message") == "it does not take mask"
    slug = tests["batch and heads"].find("failure").text
    assert slug.startswith("dQ: relative error")
    assert "the scale is missing in dQ\nhttps://" in slug
    for kind, counted in {"failure": "failures", "error": "errors", "skipped": "skipped"}.items():
        assert int(suite.get(counted)) == len(suite.findall(f"testcase/{kind}"))


@pytest.mark.usefixtures("few")
def test_junit_where_nothing_ran():
    def raises(*inputs, **options):
        raise NotImplementedError("not \x01 yet")

    suite = ElementTree.fromstring(as_junit(ab.diagnose(raises), "f"))
    assert len(suite.findall("testcase/error")) == int(suite.get("errors")) >= 1
    assert suite.find("testcase[@name='all cases']/error") is not None


def test_an_option_that_no_longer_works_fails_where_so_many_cases_are_asked_for(run, tmp_path):
    status, out, err = run("diagnose", "mine:right", "--json")
    before = len(json.loads(out)["compared"])
    asked = ("--at-least", before, "--junit", "report.xml")
    assert (status, err) == (0, "")
    assert run("diagnose", "mine:right", *asked)[0] == 0
    assert not ElementTree.parse(tmp_path / "report.xml").findall("testcase/failure")
    status, out, err = run("diagnose", "mine:Head", *asked)  # which takes no mask
    assert (status, out.splitlines()[0]) == (1, "right: O, dQ, dK, dV")
    assert re.fullmatch(rf"compared in \d+ of \d+ cases, expected at least {before}\n", err)
    suite = ElementTree.parse(tmp_path / "report.xml").getroot()
    assert [failure.get("message") for failure in suite.findall("testcase/failure")] == [err.rstrip()]
    assert (suite.get("failures"), int(suite.get("tests"))) == ("1", len(suite))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("slug", ["dk-transposed", "dead-row-nan", None])
def test_html_stands_alone(slug):
    report = ab.diagnose(MISTAKE[slug].run) if slug else ab.diagnose((ab.attention, ab.attention_vjp))
    text = as_html(report, "<mine>:f & g")
    assert not re.findall(r"<(?:script|link|img|iframe|object)\b|url\(|@import|\son\w+=", text)
    links = re.findall(r'href="([^"]*)', text)
    assert all(address.startswith("https://attnbook.github.io/attnbook/") for address in links)
    drawn = re.findall(r"<svg[^>]*>", text)
    assert bool(drawn) == (slug is not None)
    assert all(re.search(' aria-label="[^"]* in ', svg) and ' role="img"' in svg for svg in drawn)
    assert "<mine>" not in text


RIGHT = np.zeros((2, 6, 4)) + 1


@pytest.mark.parametrize(
    ("name", "where", "words"),
    [
        ("dQ", np.s_[...], "every entry is wrong"),
        ("dQ", np.s_[:, 3:], "wrong in queries 3 to 5 of 6"),
        ("dK", np.s_[:, -1], "wrong in key 5 of 6"),
        ("dK", np.s_[:, ::2], "wrong in 3 of 6 keys"),
        ("dV", np.s_[..., :2], "wrong in columns 0 to 1 of 4"),
        ("O", np.s_[1], "wrong in 1 of 2 heads or sequences"),
        ("dK", (slice(None), [0, 0, 1, 1], [1, 2, 0, 2]), "wrong in keys 0 to 1 of 6, columns 0 to 2 of 4"),
        ("dV", np.s_[1, 2, 3], "wrong in 1 of 2 heads or sequences, key 2 of 6, column 3 of 4"),
    ],
)
def test_the_pattern_in_words(name, where, words):
    came = RIGHT.copy()
    came[where] += np.nan
    share = wrong_entries(came, RIGHT)
    assert in_words(name, share) == words
    assert share.max() == 1
    assert not wrong_entries(RIGHT, RIGHT).any()
    assert f'aria-label="it: {words}; each row is of ' in picture(name, came, RIGHT, "it")


def test_a_transposed_square_is_right_on_its_diagonal():
    T = np.arange(16.0).reshape(4, 4)
    assert in_words("dK", wrong_entries(T.T, T)) == "right on the diagonal only"
    assert in_words("dK", wrong_entries(T.T + np.eye(4), T)) == "every entry is wrong"


def test_the_example_of_a_workflow():
    """It is one, and its command is one that the parser knows."""
    path = ROOT / ".github" / "examples" / "attnbook.yml"
    for linter in (schema, zizmor):
        status, said = linter(path)
        assert status == 0, said
    (line,) = [step["run"] for step in steps(path) if step.get("run", "").startswith("attnbook ")]
    options = _parser().parse_args(line.split()[1:])
    assert (options.junit, options.html) == ("gradients.xml", "gradients.html")
    assert options.at_least > 0
    assert "attnbook.yml" in (ROOT / "book" / "teaching.md").read_text(encoding="utf-8")


def test_what_teaching_shows_can_be_used(tmp_path):
    text = (ROOT / "book" / "teaching.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "rubric.toml").write_text(shown, encoding="utf-8")
    (line,) = re.findall(r"^attnbook (grade .*)$", text, re.MULTILINE)
    options = _parser().parse_args(line.split())
    assert rubric(exercise(options.exercise), tmp_path / "rubric.toml").total == 10
    named = {*re.findall(r"# attnbook: ([\w-]+)", text), *re.findall(r"attnbook_exercise = ([\w-]+):", text)}
    assert named == {"cs336-flash-torch"} <= EXERCISES.keys()
    assert "\naddopts = -p attnbook.pytest\n" in text


# --- grade --------------------------------------------------------------------------------------------------------

RIGHT_FILE = "import attnbook as ab\n\nsoftmax = ab.softmax\n"
WRONG_FILE = "softmax = lambda S: S\n"


def test_grade_from_a_shell(run, tmp_path):
    (tmp_path / "a.py").write_text(WRONG_FILE, encoding="utf-8")
    (tmp_path / "b.py").write_text(RIGHT_FILE, encoding="utf-8")
    asked = ("grade", "a.py", "b.py", "--exercise", "softmax")
    status, out, err = run(*asked, "--feedback", "pages", "--html", "all.html", "--junit", "all.xml")
    assert (status, err) == (1, "")
    assert "1 right, 1 wrong, 0 not graded" in out
    assert sorted(path.name for path in (tmp_path / "pages").iterdir()) == ["a.md", "b.md"]
    assert "1 of 2 right" in (tmp_path / "all.html").read_text(encoding="utf-8")
    assert ElementTree.parse(tmp_path / "all.xml").getroot().get("failures") == "1"
    assert run(*asked, "--csv")[1].count("\n") == 3
    assert [row["verdict"] for row in json.loads(run(*asked, "--json")[1])] == ["wrong", "right"]
    assert run("grade", "b.py", "--exercise", "softmax")[0] == 0


def test_names_of_pages():
    files = ["../../a/h.py", "a/h.py", "a-h.py", "A/h.py", "/etc/h.py", "./b.py", "x" * 300 + "/h.py", ".", "\udcff.py"]
    names = pages(files)
    assert names[:6] == ["a-h.md", "a-h-2.md", "a-h-3.md", "A-h-4.md", "etc-h.md", "b.md"]
    assert len(names[6]) < 255
    assert names[7:] == [".md", "-2.md"]


def test_who_reads_no_further_ends_it_quietly():
    """As ``| head`` does: no traceback, and the exit status is that of the report."""
    words = ["diagnose", "attnbook.diagnose.steps:softmax", "--limit", "5"]
    with subprocess.Popen(
        [sys.executable, "-m", "attnbook", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as command:
        command.stdout.close()
        assert "Pipe" not in command.stderr.read()
        assert command.wait(60) == 1


def test_grade_lists_its_exercises(run):
    status, out, _ = run("grade", "--list")
    assert status == 0
    assert "cs336-flash-torch\n  get_flashattention_autograd_function_pytorch()" in out


# --- the pytest plugin --------------------------------------------------------------------------------------------


@pytest.fixture
def graded(pytester):
    """pytest in this process, in a folder of these files: (status, what it prints)."""

    def graded(files, *arguments, ask=("-p", "attnbook.pytest")):
        for name, text in files.items():
            path = pytester.path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        done = pytester.runpytest_inprocess(*ask, "-p", "no:cacheprovider", "-rA", *arguments)
        return done.ret, done.stdout.str() + done.stderr.str()

    return graded


COURSE = {
    "pytest.ini": "[pytest]\nattnbook_exercise = softmax: mine.py\n",
    "mine.py": WRONG_FILE,
    "tests/test_more.py": "def test_more():\n    pass\n",
}
"""A course's repository, with a file to grade outside its tests."""


def ini(*lines):
    return {"pytest.ini": "[pytest]\nattnbook_exercise =\n" + "".join(f"    {line}\n" for line in lines)}


def test_a_line_in_the_ini_file_or_in_the_file_grades_it(graded):
    status, out = graded(
        COURSE | ini("softmax: src/wrong.py", "softmax: none.py", "softmax: mine.py", "softmax-vjp: mine.py") | {
            "src/wrong.py": WRONG_FILE,
            "tests/mine.py": "# attnbook: softmax\n" + RIGHT_FILE,
            "tests/typo.py": "# attnbook: sotfmax\n",
        }
    )  # fmt: skip
    assert status == 1
    assert {"PASSED tests/mine.py::softmax", "PASSED tests/test_more.py::test_more"} <= set(out.splitlines())
    files = "src/wrong.py::softmax", "none.py::softmax", "mine.py::softmax-vjp", "tests/typo.py::sotfmax"
    assert all(f"FAILED {file}" in out for file in files)
    assert "5 failed, 2 passed" in out
    for words in ("# softmax: 0 of 1 points", "there is no such file", "expected one of softmax"):
        assert words in out


@pytest.mark.parametrize(
    ("files", "arguments", "status", "words"),
    [
        (COURSE, ["tests"], 1, "1 failed, 1 passed"),  # the ini file counts for folders too
        (COURSE, ["tests", "mine.py"], 1, "1 failed, 1 passed"),
        (COURSE, ["mine.py"], 1, "1 failed in "),
        (
            COURSE,
            ["tests/test_more.py"],
            0,
            "\nattnbook: not graded: mine.py, which pytest was not given: name it too, ",
        ),
        (ini("softmax"), [], 4, "attnbook_exercise: expected NAME: FILE"),
    ],
)
def test_what_the_ini_file_names_is_graded_where_pytest_is_given_it(graded, files, arguments, status, words):
    came, out = graded(files, *arguments)
    assert came == status
    assert words in out
    assert out.count("FAILED mine.py::softmax") == (status == 1)
    assert ("not graded:" in out) == (status == 0)


@pytest.mark.parametrize(
    ("files", "asks"),
    [({"pytest.ini": COURSE["pytest.ini"] + "addopts = -p attnbook.pytest\n"}, True), ({"conftest.py": ""}, False)],
)
def test_only_who_asks_for_it_has_it(graded, files, asks):
    _, out = graded(COURSE | files, ask=())
    assert ("FAILED mine.py::softmax" in out) == asks
    assert ("Unknown config option: attnbook_exercise" in out) != asks


def test_the_entry_points_name_what_is_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"attnbook": "attnbook.__main__:main"}
    assert "entry-points" not in project  # pytest's would load the plugin into every run
