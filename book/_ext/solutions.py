"""A solution is closed until the reader opens it: a <details>, which needs no script and lets itself be searched."""

import re

from sphinx_exercise.nodes import solution_node

TITLE = re.compile(r'<p class="admonition-title">(.*?)</p>', re.DOTALL)
LINK = re.compile(r"</?a\b[^>]*>")  # to the exercise, which stands just above: a button holds no link
CONTENT_ID = re.compile(r' id="solution-content"')  # the same in each of them


def visit(self, node):
    node["classes"] = [name for name in node["classes"] if name != "dropdown"]
    self.body.append(self.starttag(node, "details", CLASS="solution admonition"))
    node["from"] = len(self.body)


def depart(self, node):
    inside = "".join(self.body[node["from"] :])
    inside = TITLE.sub(lambda m: f'<summary class="admonition-title">{LINK.sub("", m[1])}</summary>', inside, count=1)
    self.body[node["from"] :] = [CONTENT_ID.sub("", inside, count=1), "</details>\n"]


def setup(app):
    app.setup_extension("sphinx_exercise")
    app.add_node(solution_node, override=True, html=(visit, depart))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
