"""The notebooks: executed, stored, clean, and all of them in the table of contents. nbval compares their outputs."""

import ast
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from equations import cannot_fail
from reading import exercises

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "chapters").glob("*.ipynb"))

# What would hold on one machine only: paths, addresses of objects, times of day, temporary kernel files.
LOCAL = re.compile(r"(/(tmp|root|home|Users|work|usr)/|ipykernel_\d+|\bat 0x[0-9a-f]{6,}|\d\d:\d\d:\d\d)")


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def code_cells(path):
    return [c for c in read(path)["cells"] if c["cell_type"] == "code" and "".join(c["source"]).strip()]


def test_the_toc_and_the_folder_agree():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    listed = [chapter["file"] for part in toc["parts"] for chapter in part["chapters"]]
    chapters = [file for file in listed if file.startswith("chapters/")]
    assert chapters == [f"chapters/{path.stem}" for path in NOTEBOOKS]
    pages = {file for file in [toc["root"], *listed] if file.startswith("book/")}
    assert pages == {f"book/{path.stem}" for path in (ROOT / "book").glob("*.md")}


def test_every_chapter_has_its_run_time():
    assert list(json.loads((ROOT / "book" / "run_times.json").read_text(encoding="utf-8"))) == [
        path.stem for path in NOTEBOOKS
    ], "run `make notebooks`"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestNotebook:
    def test_every_code_cell_was_executed_once_and_in_order_and_stores_what_nbval_compares(self, path):
        # nbval passes a cell without stored outputs unseen.
        cells = code_cells(path)
        assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
        for cell in cells:
            kinds = [output.get("name", output["output_type"]) for output in cell["outputs"]]
            assert not {"error", "stderr"} & set(kinds), cell["id"]
            # Where a stream is cut depends on timing; `make notebooks` stores it whole: a second run changes nothing.
            assert ("stdout", "stdout") not in pairwise(kinds), cell["id"]
            found = LOCAL.search(json.dumps(cell["outputs"], ensure_ascii=False))
            assert not found, f"{cell['id']}: {found.group() if found else ''}"
            data = {kind for output in cell["outputs"] for kind in output.get("data", {})}
            assert not {"image/png", "image/jpeg"} & data, f"{cell['id']}: pictures are text"
            assert "nbval-ignore-output" not in cell["metadata"].get("tags", ()), cell["id"]
            tree = ast.parse("".join(cell["source"]))
            assert not [n for n in ast.walk(tree) if isinstance(n, ast.Assert) and cannot_fail(n)], cell["id"]
        assert len(json.dumps([cell["outputs"] for cell in cells])) < 500_000

    def test_cells_have_names_and_no_machine_metadata(self, path):
        notebook = read(path)
        assert set(notebook["metadata"]) <= {"kernelspec", "language_info"}
        assert notebook["metadata"]["language_info"] == {"name": "python"}
        ids = [cell["id"] for cell in notebook["cells"]]
        assert len(ids) == len(set(ids))
        assert not [i for i in ids if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f-]+)?", i)], "an id made by a machine"
        assert not [i for i in ids if re.match("prov[ei]", i)], "a cell draws numbers: it checks"
        for cell in notebook["cells"]:
            assert set(cell["metadata"]) <= {"tags"}, cell["id"]

    def test_every_chapter_has_pictures_exercises_and_the_package_s_lines(self, path):
        cells = read(path)["cells"]
        text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
        solved = set(re.findall(r"\{solution(?:-start)?\} (ex-[\w-]+)", text))
        asked = [one.label for one in exercises(text) if one.answer]
        labels = [one.label for one in exercises(text)]
        assert len(labels) >= 4
        assert solved.isdisjoint(asked)
        assert solved.union(asked) == set(labels)
        asking = [cell for cell in cells if cell["id"].startswith("ask-")]
        assert len(asking) == len(asked)
        for cell in asking:  # it runs, and says that the answer is still to be found
            assert "right: False" in json.dumps(cell["outputs"]), cell["id"]
        assert json.dumps([cell["outputs"] for cell in code_cells(path)]).count("<figure id=") >= 2
        assert re.search(r"\{literalinclude\} \.\./(src/attnbook|book/evidence)/", text)
