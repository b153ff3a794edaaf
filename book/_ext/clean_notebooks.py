"""Each chapter as a plain notebook, for Colab, Binder and the download: ``notebooks/<chapter>.ipynb`` of the site.

Written from the document that Sphinx has read and resolved, so its numbers, links and listings are those of the page.
The Markdown is made anew. Code cells are the chapter's own; what the page folds is folded for JupyterLab and for Colab.
"""

import re
from html import escape
from pathlib import Path
from urllib.parse import urljoin

import nbformat
from docutils import nodes
from formulas import in_lines

CHAPTERS, FOLDER = "chapters/", "notebooks"
BRANCH = "notebooks"  # where publish.yml pushes the folder: Colab and Binder open files of a repository only
FOLDED = {"jupyter": {"source_hidden": True}, "cellView": "form"}  # for JupyterLab, for Colab
OF_THE_SITE = re.compile(r'"run-bar"|"headerlink"|<script')  # buttons
HREF = re.compile(r'(?<=<a href=")[^"]+')
MARKUP = re.compile(r"[\\`*$~]|(?<!\w)_|_(?!\w)|<(?=[\w/!])|(?<=\])\(")
LIST_OR_HEADING = re.compile(r"^(\d*)(?=[-+>#.)])")
PIPE = re.compile(r"(?<!\\)\$[^$]+\$|\|")
CAPTION = re.compile(r'(<figure id="([\w-]+)">.*<figcaption>)', re.DOTALL)
LIVE_HEAD = "*On the page stands [a head whose numbers you can change]({}).*"
ONE_ENVIRONMENT = re.compile(r"\\begin\{(\w+)\}((?!\\begin\{\1\}).)*\\end\{\1\}", re.DOTALL)
SPACE = re.compile(r"\s*\n\s*")


class Cleaned:
    """``cells``: those of a chapter's notebook, from its resolved document."""

    def __init__(self, app, docname, document, cells):
        self.app, self.numbers = app, app.env.toc_fignumbers.get(docname, {})
        self.sections = app.env.toc_secnumbers.get(docname, {})
        self.page = urljoin(app.config.html_baseurl, app.builder.get_target_uri(docname))
        self.chapter = [(index, cell) for index, cell in enumerate(cells) if cell.cell_type == "code"]
        labels = {target.get("refid", "") for target in document.findall(nodes.target)}
        self.labels = {label for label in labels if label and not label.startswith("equation-")}
        self.cells, self.parts, self.anchors, self.level, self.solution = [], [], "", 0, None
        self.blocks(document)
        self.end_cell()
        self.code_cells(len(cells))

    def end_cell(self):
        text = "\n\n".join(self.parts)
        if text:
            text = folded(self.solution, text) if self.solution else text
            self.cells.append(nbformat.v4.new_markdown_cell(text, id=f"text-{len(self.cells)}"))
        self.parts = []

    def code_cells(self, index, node=None):
        """The chapter's cells up to this one; those before it have no place on the page."""
        while self.chapter and self.chapter[0][0] <= index:
            at, cell = self.chapter.pop(0)
            here = node is not None and at == index
            hidden = "all" if self.solution else node.get("hide_mode") if here else "input"
            cell.metadata = nbformat.from_dict(FOLDED if hidden else {})
            if hidden:
                title = self.solution or (node["prompt_show"].capitalize() if here else "Set up")
                cell.source = f"# @title {title}\n{cell.source}"
            if hidden == "all":
                cell.metadata.collapsed = cell.metadata.jupyter.outputs_hidden = True
            for output in cell.outputs:
                for kind in {"text/html"} & set(output.get("data", ())):
                    html = CAPTION.sub(lambda m: m[1] + self.number("figure", m[2]), output.data[kind])
                    output.data[kind] = self.absolute(html)
            self.cells.append(cell)

    def number(self, kind, name):
        """As the site shows it: "Figure 4.1: ", or nothing."""
        number = ".".join(map(str, self.numbers.get(kind, {}).get(name, ())))
        return number and self.app.config.numfig_format.get(kind, "%s") % number + ("" if kind == "exercise" else ": ")

    def address(self, node):
        """An anchor of this notebook, or a place on the published site."""
        refid = node.get("refid")
        if refid in self.labels:
            return f"#{refid}"
        address = urljoin(self.page, f"#{refid}" if refid else node.get("refuri", ""))
        return f"<{address}>" if re.search(r"[\s()]", address) else address

    def absolute(self, html):
        return HREF.sub(lambda m: urljoin(self.page, m[0]), html)

    # Blocks: each puts its text into self.parts.

    def put(self, text, inline=False):
        """One more block, and the anchors that stand before it."""
        if text.startswith("#"):
            text = f"{text} {self.anchors}".rstrip()
        elif self.anchors and not inline:
            self.parts.append(self.anchors)
        else:
            text = self.anchors + text
        self.anchors = ""
        self.parts.append(text)

    def blocks(self, children):
        for child in children:
            if isinstance(child, nodes.Element):
                getattr(self, f"block_{type(child).__name__}", self.other_block)(child)

    def other_block(self, node):
        if isinstance(node, nodes.Invisible):
            return
        if isinstance(node, nodes.TextElement):
            self.put(self.inline(node), inline=True)
        else:
            self.blocks(node)

    def inside(self, children):
        """Their blocks, apart from those before them."""
        kept, self.parts = self.parts, []
        self.blocks(children)
        inside, self.parts = self.parts, kept
        return inside

    def block_target(self, node):
        if node.get("refid") in self.labels:
            self.anchors += f'<a id="{node["refid"]}"></a>'

    def block_container(self, node):
        if node.get("nb_element") == "cell_code":
            self.end_cell()
            self.code_cells(node["cell_index"], node)
        else:
            self.blocks(node)

    def block_section(self, node):
        if isinstance(node[0], nodes.title):
            self.end_cell()
        self.level += 1
        self.blocks(node)
        self.level -= 1

    def block_title(self, node):
        ids, numbers = node.parent["ids"] or [""], self.sections
        number = "".join(f"{i}." for i in numbers.get(f"#{ids[0]}", numbers.get("", ())))
        self.put(f"{'#' * self.level} {number} {self.inline(node)}")
        if self.level == 1:
            config = self.app.config
            self.put(f"*From [{config.project}]({self.page}). {config.html_theme_options['extra_footer']}*")

    def block_exercise_enumerable_node(self, node):
        self.end_cell()
        self.put(f"{'#' * (self.level + 1)} {self.number('exercise', node['ids'][0])}{self.inline(node[0])}")
        self.blocks(node[1:])
        self.end_cell()

    def block_solution_node(self, node):
        self.end_cell()
        self.solution = plain(node[0])
        self.blocks(node[1:])
        self.end_cell()
        self.solution = None

    def block_dropdown_main(self, node):
        self.put(folded(plain(node[0]), "\n\n".join(self.inside(node[1:]))))

    def block_paragraph(self, node):
        self.put(LIST_OR_HEADING.sub(r"\1\\", self.inline(node)), inline=True)

    def block_math_block(self, node):
        number = self.number("displaymath", (node["ids"] or [""])[0]).removesuffix(": ")
        tag = f"\n\\tag{{{number}}}" if number else ""
        formula = node.astext().strip()
        formula = formula if ONE_ENVIRONMENT.fullmatch(formula) else in_lines(formula)
        self.put(formula if node["nowrap"] else f"$$\n{formula}{tag}\n$$")

    def block_literal_block(self, node):
        code, language = node.astext(), node.get("language", "")
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", code)), default=0))
        self.put(f"{fence}{language if language.isalpha() else ''}\n{code.rstrip()}\n{fence}")

    def block_bullet_list(self, node):
        items = [self.inside(item) for item in node]
        marks = [f"{node.get('start', 1) + i}. " if node.tagname[0] == "e" else "- " for i in range(len(items))]
        texts = [mark + indented("\n\n".join(item), " " * len(mark)) for mark, item in zip(marks, items, strict=True)]
        self.put(("\n" if max(map(len, items)) == 1 else "\n\n").join(texts))

    block_enumerated_list = block_bullet_list

    def block_block_quote(self, node):
        self.put("> " + indented("\n\n".join(self.inside(node)), "> "))

    def block_table(self, node):
        if isinstance(node[0], nodes.title):
            self.put(f"**{self.number('table', node['ids'][0])}{self.inline(node[0])}**")
        rows = [[" ".join(self.inside(cell)) for cell in row] for row in node.findall(nodes.row)]
        rows = [[PIPE.sub(no_pipe, SPACE.sub(" ", cell)) for cell in row] for row in rows]
        rows = rows if next(node.findall(nodes.thead), None) else [[""] * len(rows[0]), *rows]
        rows.insert(1, ["---"] * len(rows[0]))
        self.put("\n".join(f"| {' | '.join(row)} |" for row in rows))

    def block_live_head(self, node):
        self.put(LIVE_HEAD.format(f"{self.page}#{node['ids'][0]}"))

    def block_raw(self, node):
        if not OF_THE_SITE.search(node.astext()):
            self.put(self.inline_raw(node))

    def block_caption(self, node):
        self.put(f"**{self.number('figure', node.parent['ids'][0])}{self.inline(node)}**")

    # Inline: each returns its text.

    def inline(self, node):
        return "".join(getattr(self, f"inline_{type(child).__name__}", self.inline)(child) for child in node.children)

    def inline_Text(self, node):
        return MARKUP.sub(r"\\\g<0>", SPACE.sub(" ", node))

    def inline_math(self, node):
        return f"${SPACE.sub(' ', node.astext()).strip()}$"

    def inline_literal(self, node):
        mark = "``" if "`" in node.astext() else "`"
        return mark + node.astext() + mark

    def inline_emphasis(self, node):
        return f"*{self.inline(node)}*"

    def inline_strong(self, node):
        return f"**{self.inline(node)}**"

    def inline_reference(self, node):
        return f"[{self.inline(node)}]({self.address(node)})"

    inline_number_reference = inline_reference

    def inline_image(self, node):
        name = self.app.env.images[node["uri"]][1]
        return f"![{node.get('alt', '')}]({self.app.config.html_baseurl}_images/{name})"

    def inline_raw(self, node):
        return self.absolute(node.astext()) if node["format"] == "html" else ""


def folded(title, text):
    return f"<details><summary>{escape(title, quote=False)}</summary>\n\n{text}\n\n</details>"


def plain(title):
    texts = (text for text in title.findall(nodes.Text) if not isinstance(text.parent, nodes.raw))
    return "".join(f"${text}$" if isinstance(text.parent, nodes.math) else text for text in texts)


def indented(text, by):
    return text.replace("\n", f"\n{by}").replace(f"\n{by}\n", f"\n{by.rstrip()}\n")


def no_pipe(match):
    r"""A ``|`` would end the cell of a table; in a formula, ``\|`` is another sign."""
    return match[0].replace(r"\|", r"\Vert ").replace("|", r"\vert ") if match[0] != "|" else r"\|"


def write(app, document, docname):
    if app.builder.format == "html" and docname.startswith(CHAPTERS):
        notebook = nbformat.read(app.env.doc2path(docname), as_version=4)
        notebook.cells = Cleaned(app, docname, document, notebook.cells).cells
        nbformat.validate(notebook)
        path = Path(app.outdir, FOLDER, f"{docname.removeprefix(CHAPTERS)}.ipynb")
        path.parent.mkdir(exist_ok=True)
        nbformat.write(notebook, path)


def lead_there(app, pagename, templatename, context, doctree):
    """The buttons of a chapter: Colab, Binder and the download."""
    file = pagename.replace(CHAPTERS, f"{FOLDER}/") + ".ipynb"
    buttons = [button for group in context["header_buttons"] for button in group.get("buttons", ())]
    branch = re.compile(rf"/{app.config.html_theme_options['repository_branch']}(?=[/?])")
    for button in buttons if pagename.startswith(CHAPTERS) else ():
        if button["text"] == ".ipynb":
            button["url"] = context["pathto"](file, 1)
        elif button["text"] in ("Binder", "Colab"):
            button["url"] = branch.sub(f"/{BRANCH}", button["url"]).replace(f"{pagename}.ipynb", file)


def remove_old(app, error):
    for path in Path(app.outdir, FOLDER).glob("*.ipynb"):
        if CHAPTERS + path.stem not in app.env.found_docs:
            path.unlink()


def setup(app):
    app.connect("doctree-resolved", write, priority=100)  # before others change what only the page wants changed
    app.connect("html-page-context", lead_there, priority=510)  # after the theme has made the buttons
    app.connect("build-finished", remove_old)
    return {"parallel_read_safe": True}
