"""The notebooks that Colab, Binder and the download give: plain Markdown, and the words and numbers of the site."""

import re
from urllib.parse import unquote, urldefrag

import nbformat
import pytest
import yaml
from bs4 import BeautifulSoup
from built_site import ROOT, SITE, anchors, soup, without_drawings
from clean_notebooks import FOLDER, LIVE_HEAD
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from nbclient import NotebookClient

CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
BASE = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["html"]["baseurl"]
PLAIN = MarkdownIt("commonmark").enable("table").use(dollarmath_plugin)  # what every notebook reads
SOLUTION = re.compile(r"^(?:# @title |<details><summary>)(Solution to .*?)(?:</summary>)?$")


def rendered(text):
    return BeautifulSoup(PLAIN.render(text), "html.parser")


def words(tree, *without):
    for tag in tree.select(", ".join(["script", "svg", ".math", *without])):
        tag.decompose()
    for code in tree.select("pre"):  # colored, it is in pieces
        code.string = code.get_text()
    return re.findall(r"\w+", tree.get_text(" "))


def hidden(cell):
    """Folded for JupyterLab and for Colab."""
    title = cell.source.startswith("# @title ")
    return title and cell.metadata.get("cellView") == "form" and cell.metadata.jupyter.get("source_hidden")


class Pair:
    """A chapter and its clean copy."""

    def __init__(self, path):
        self.chapter, self.page = nbformat.read(path, as_version=4), SITE / "chapters" / f"{path.stem}.html"
        self.clean = nbformat.read(SITE / FOLDER / path.name, as_version=4)
        self.text = [cell.source for cell in self.clean.cells if cell.cell_type == "markdown"]
        self.code = {cell.id: cell for cell in self.clean.cells if cell.cell_type == "code"}


@pytest.fixture(params=CHAPTERS, ids=lambda path: path.stem, scope="module")
def pair(request):
    soup(SITE / "index.html")  # fails with a plain line where no site is built
    return Pair(request.param)


class TestACleanNotebook:
    def test_it_is_a_notebook_and_says_what_the_page_says_in_the_same_order(self, pair):
        # Words of captions, listings, tables, exercises, the numbers by which all of them are cited, and no MyST.
        nbformat.validate(pair.clean)
        html = without_drawings(pair.page.read_text(encoding="utf-8"))  # a tree of its own: words takes it apart
        article = BeautifulSoup(html, "html.parser").select_one("article")
        there = words(article, ".cell", ".headerlink", ".run-bar", ".live-head")
        title, source, *rest = pair.clean.cells[0].source.split("\n\n")
        assert pair.page.name in source
        shown = [title, *rest]
        for cell in pair.clean.cells[1:]:
            first, _, text = cell.source.partition("\n")
            if solution := SOLUTION.match(first):  # on each of its cells, and once on the page
                first = "" if solution[1] in shown else solution[1]
            shown += [first] if solution else []
            shown += [text if solution else cell.source] if cell.cell_type == "markdown" else []
        text = "\n\n".join(shown).replace(LIVE_HEAD.format(f"{BASE}chapters/{pair.page.name}#live-head"), "")
        assert words(rendered(text)) == there

    def test_formulas_and_figures_have_the_numbers_of_the_page(self, pair):
        numbers = [re.match(r"\(([\w.]+)\)", tag.get_text())[1] for tag in soup(pair.page).select(".math > .eqno")]
        assert re.findall(r"\\tag\{(.+?)\}", "\n".join(pair.text)) == numbers
        numbers = [tag.get_text().strip() for tag in soup(pair.page).select("article figure .caption-number")]
        html = [o.get("data", {}).get("text/html", "") for c in pair.code.values() for o in c.get("outputs", ())]
        assert re.findall(r"<figcaption>(\w+\.? [\w.]+): ", "".join(html)) == numbers

    def test_its_code_is_the_chapter_s_and_folded_as_there(self, pair):
        cells = [cell for cell in pair.chapter.cells if cell.cell_type == "code"]
        assert [cell.id for cell in cells] == list(pair.code)
        titled = [c.source for c in pair.clean.cells if c.cell_type == "markdown" and SOLUTION.match(c.source)]
        assert all(re.fullmatch(r"<details>.*</details>", text, re.DOTALL) for text in titled)
        inside = False
        for cell in pair.chapter.cells:
            if cell.cell_type == "markdown":
                begun, ended = cell.source.rfind("{solution-start}"), cell.source.rfind("{solution-end}")
                inside = begun > ended if max(begun, ended) >= 0 else inside
                continue
            clean = pair.code[cell.id]
            fold = inside or {"hide-cell", "hide-input", "remove-cell"} & set(cell.metadata.get("tags", ()))
            assert bool(hidden(clean)) == bool(fold), cell.id
            assert cell.source == (clean.source.partition("\n")[2] if fold else clean.source)
            if inside:
                assert clean.source.startswith("# @title Solution to "), cell.id
                assert clean.metadata.jupyter.outputs_hidden, cell.id

    def test_every_link_leads_somewhere(self, pair):
        anchored = [tag for text in pair.text for tag in rendered(text).find_all("a")]
        here = {tag["id"] for tag in anchored if tag.get("id")}
        for link in (tag["href"] for tag in anchored if tag.get("href")):
            page, anchor = urldefrag(link)
            if link.startswith(BASE):
                assert unquote(anchor) in {"", *anchors(SITE / page.removeprefix(BASE))}, link
            else:
                assert anchor in here if not page else link.startswith("https://"), link

    @pytest.mark.thorough
    def test_it_runs(self, pair):
        place = {"metadata": {"path": str(ROOT / "chapters")}}
        NotebookClient(nbformat.from_dict(pair.clean), timeout=600, resources=place).execute()
