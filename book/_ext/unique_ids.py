"""An id stands once in a page: matplotlib gives all its pictures the same, and sphinx-exercise all its exercises."""

import re
from itertools import count

SVG = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
ID = re.compile(r' id="([^"]+)"')
EXERCISE = ' id="exercise-content"'


def name_apart(app, pagename, templatename, context, doctree):
    if "body" in context:
        numbers = count(1)
        body = context["body"].replace(EXERCISE, "")
        context["body"] = SVG.sub(lambda svg: _named(svg[0], next(numbers)) if "matplotlib" in svg[0] else svg[0], body)


def _named(svg, number):
    """A picture whose ids are its own: those that it uses, with its number."""
    for name in set(ID.findall(svg)):
        used = f"#{name}" in svg
        svg = svg.replace(f' id="{name}"', f' id="{name}-{number}"' if used else "")
        svg = re.sub(rf"#{re.escape(name)}(?=[\")])", f"#{name}-{number}", svg)
    return svg


def setup(app):
    app.connect("html-page-context", name_apart)
    return {"parallel_read_safe": True}
