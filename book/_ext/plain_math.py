"""LaTeX as a line of text, with HTML for indices: what a formula is called where no math is rendered."""

import re
from html import escape

from pylatexenc.latex2text import LatexNodes2Text, MacroTextSpec, get_default_latex_context_db

CONTINUES = re.compile(r"[=+\-−·≤≥≈∝⋅)]|\\(?:le|ge|cdot|approx|propto|bigr|Bigr)\b")
CASES = re.compile(r"\\begin\{cases\}(.*?)\\end\{cases\}", re.DOTALL)
TIDY = (
    (r" if\s+otherwise", " otherwise"),
    (r"\s+", " "),
    (r"(?<![_^])\{([^{}]*)\}", r"\1"),
    (r" ?= ?", " = "),
    (r" ([,;)])", r"\1"),
    (r"([({⟨]) ", r"\1"),
    (r" ?· ?", " · "),
    (r" ?([∘≤≥]) ?", r" \1 "),
)
RAISED = re.compile(r"([_^])(?:\{([^{}]*)\}|([^\s{}])(?![a-z]))")  # an index of d_k, not of nan_to_num


def _fraction(node, l2tobj):
    parts = [l2tobj.nodelist_to_text(getattr(part, "nodelist", None) or [part]).strip() for part in node.nodeargs]
    parts = [f"({part})" if re.search(r"[ +-]", part) else part for part in parts]
    return (" / " if any("(" in part for part in parts) else "/").join(parts)


_macros = get_default_latex_context_db()
_macros.add_context_category("attnbook", prepend=True, macros=[MacroTextSpec("frac", _fraction)])
_convert = LatexNodes2Text(math_mode="text", latex_context=_macros, keep_braced_groups=True).latex_to_text


def plain(latex):
    """The formula in one line, with ``_{}`` and ``^{}`` for indices and exponents; its lines parted by semicolons."""
    latex = re.sub(r"\\[td]frac(?![a-z])", r"\\frac", re.sub(r"\\mathsf T|\\top", "{ᵀ}", latex))
    latex = re.sub(r"(\\(?:log|exp|max|min|tanh))\s+(?=\w)", r"\1{} ", latex)
    latex = CASES.sub(lambda cases: cases[1].replace("&", r"\text{ if }").replace(r"\\", ","), latex)
    latex = re.sub(r"\\(?:begin|end)\{(?:aligned|cases|[pb]matrix)\}", " ", latex)
    latex = re.sub(r"(?<=\S) *&(?=[^&=\\]+&=)", "; ", latex).replace("&", " ")  # the next pair of columns
    latex = re.sub(r"(?<=[\w})])\s*\\q?quad\b(?=[^=]*=)", "; ", latex)
    latex = re.sub(r"\\q?quad\b|(?<!\\)\\[,;:! ]", " ", latex)
    lines = []
    for line in (line.strip() for line in latex.split(r"\\")):
        if lines and CONTINUES.match(line):
            lines[-1] += f" {line}"
        elif line:
            lines.append(line)
    text = _convert("; ".join(lines)).replace("^{ᵀ}", "ᵀ").replace("^ᵀ", "ᵀ")
    for pattern, by in TIDY:
        text = re.sub(pattern, by, text)
    return text.strip(" ;,").replace(":;", ":")


def html(text, longest=110):
    """The line as HTML, with lowered and raised indices, cut after so many letters."""
    if len(text) > longest:
        text = text[:longest].rpartition(" ")[0] + " …"
    text = escape(text, quote=False)
    while RAISED.search(text):
        text = RAISED.sub(lambda m: f"<{t}>{m[2] or m[3]}</{t}>" if (t := {"_": "sub", "^": "sup"}[m[1]]) else "", text)
    return text.replace("{", "").replace("}", "")
