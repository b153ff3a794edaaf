"""A picture with a caption is a figure of the page: Sphinx numbers it, and {numref} leads to it by its name."""

import re
from html import unescape

from docutils import nodes
from sphinx.transforms import SphinxTransform

CAPTIONED = re.compile(r'<figure id="([\w-]+)">(<figure .*</figure>)<figcaption>(.*)</figcaption></figure>', re.DOTALL)


class Captions(SphinxTransform):
    default_priority = 500  # before Sphinx notes the names of figures

    def apply(self):
        for raw in list(self.document.findall(nodes.raw)):
            if raw.get("format") == "html" and (found := CAPTIONED.fullmatch(raw.astext().strip())):
                name, picture, caption = found.groups()
                caption = unescape(caption)
                figure = nodes.figure(
                    "", nodes.raw("", picture, format="html"), nodes.caption(caption, caption), names=[name]
                )
                self.document.note_explicit_target(figure)
                raw.replace_self(figure)


def setup(app):
    app.add_transform(Captions)
    return {"parallel_read_safe": True}
