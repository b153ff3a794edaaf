"""A statement of Coq as HTML: its names lead to what they mean, its hypotheses end in bold arrows, long lines wrap."""

import re
from html import escape

from proofs import defined_in

BINDER = re.compile(r"\b(?:(forall|exists)|(fun)|(let)|(?:Theorem|Lemma|Definition|Fixpoint) \w+)\s")
END = {"forall": ",", "exists": ",", "fun": "=>", "let": ":="}
SUMMED = re.compile(r"∑ (\w+) <|\((\w+) :=")  # or given by name
CASE = re.compile(r"(?:\bwith|(?<!\|)\|(?!\|))\s+\w+([\w' ]*)=>|\| \w+ \((\w+) :")
PIECE = re.compile(r"(?<!<)->|(?<![\w.%'])[^\W\d][\w']*+(?!\.\w)|[<>&]")


def binders(written):
    """Where names are bound: from a word that binds some, or the head of a theorem or definition, to the sign after."""
    for match in BINDER.finditer(written):
        end, depth = END.get(match[0].strip(), ":"), 0
        for place in range(match.end(), len(written)):
            depth += (written[place] in "([{") - (written[place] in ")]}")
            if not depth and written.startswith(end, place):
                break
        yield match.end(), place


def bound(written):
    """The names that a statement binds: in it they mean nothing that is defined elsewhere."""
    found = set(" ".join(map(" ".join, SUMMED.findall(written) + CASE.findall(written))).split())
    for start, end in binders(written):
        depth, typed = 0, None  # the depth of brackets at which a type began
        for token in re.findall(r"[^\W\d][\w']*|[:()\[\]{}]", written[start:end]):
            depth += (token in "([{") - (token in ")]}")
            if typed is not None and depth < typed:
                typed = None
            elif typed is None and token == ":":
                typed = depth
            elif typed is None and token not in "()[]{}":
                found.add(token)
    return found


def implications(written):
    """Where the arrows of a theorem stand that end a hypothesis: those of types stand where names are bound."""
    types = list(binders(written))
    arrows = (match.start() for match in re.finditer("(?<!<)->", written))
    return [place for place in arrows if not any(start <= place < end for start, end in types)]


def as_html(written, file, page, made=()):
    """A statement of a file of proofs, a line a span. A name leads to its definition, once; those made here are ids."""
    known, hidden, arrows = dict(defined_in(file)), bound(written), [] if made else implications(written)
    made = list(made)

    def piece(match):
        text = escape(match[0], quote=False)
        if text in made:
            made.remove(text)
            known.pop(text)
            return f'<b id="{file}.{text}">{text}</b>'
        if match.start() in arrows:
            return f"<b>{text}</b>"
        to = None if text in hidden else known.pop(text, None)
        return f'<a href="{page}#{to}.{text}">{text}</a>' if to else text

    lines = PIECE.sub(piece, written).splitlines(keepends=True)
    return "".join(f'<span style="--in: {len(line) - len(line.lstrip(" "))}ch">{line}</span>' for line in lines)
