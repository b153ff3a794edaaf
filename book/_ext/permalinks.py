"""Addresses that last: what has a label is linked to by its label, never by the words of a heading or by a number."""

from docutils import nodes

QUESTIONS = "book/questions"


def label_first(app, doctree):
    """The link beside a heading takes the section's first id; Sphinx puts there the one that is made from its words."""
    for section in doctree.findall(nodes.section):
        section["ids"].reverse()


def name_questions(app, doctree):
    """A question on the page of questions is ``#q-7``, as is the place in a chapter to which it leads."""
    if app.env.docname == QUESTIONS:
        for term in doctree.findall(nodes.term):
            target = next(node["reftarget"] for node in term.findall(nodes.Element) if "reftarget" in node)
            term["ids"] = [target]
            term += permalink(target)


def permalink(target):
    """The sign that Sphinx shows beside a heading, for other things."""
    html = f'<a class="headerlink" href="#{target}" title="Link to this place">#</a>'
    return nodes.raw("", html, format="html")


def setup(app):
    app.connect("doctree-read", label_first, priority=400)  # before Sphinx collects the tables of contents
    app.connect("doctree-read", name_questions)
    return {"parallel_read_safe": True}
