"""A small reader of the TeX that the book's displayed equations use: :mod:`tex_values` evaluates what it makes of them.

A display becomes equations, and each side of one a tree of tuples ``(kind, …)``. A letter is ``("name", "dS", marks)``,
where the marks are what stands below and above it, and a dotted S is "tS". What no rule here can read is refused with
:class:`UnreadError`: nothing is guessed.
"""

import re
from typing import NamedTuple

TOKEN = re.compile(
    r"\\\\(?:\[[^\]]*\])?|\\(?:text|operatorname|begin|end)\{[^}]*\}|\\math(?:sf|bf|rm) ?(?:\{\w+\}|\w)"
    r"|\\overset\{\w\}\{=\}|\\[A-Za-z]+|\\.|\d+|\S"
)
DROPPED = {rf"\{x}" for x in (*",;:! ", "big", "Big", "bigl", "bigr", "Bigl", "Bigr", "textstyle")}
QUADS = (r"\quad", r"\qquad")
OPEN = {"(": ")", "[": "]", "{": "}", r"\langle": r"\rangle", r"\lVert": r"\rVert", r"\lfloor": r"\rfloor"}
RELATIONS = {"=": "=", r"\le": "<=", r"\ge": ">=", "<": "<", ">": ">", r"\ne": "!=", r"\in": "in", r"\notin": "not in"}
RELATIONS |= {r"\mapsto": "to", r"\Rightarrow": "implies"}  # they part what stands beside them, and are not read
LOGIC = {r"\wedge": "and", r"\vee": "or"}
ENTRYWISE = {r"\circ": "hadamard", r"\oslash": "over"}
OPERATORS = ("+", "-", "/", r"\cdot", *ENTRYWISE, *LOGIC)
ACCENTS = {r"\hat": "hat ", r"\tilde": "tilde ", r"\bar": "bar ", r"\dot": "t", r"\ddot": "tt"}
MOVES = {"d": "d", r"\Delta": "Delta "}  # before a letter, a part of its name
GREEK = (
    "alpha beta gamma delta Delta ell lambda sigma Sigma tau theta rho Pi psi "
    "varphi varepsilon emptyset eta Omega Lambda"
)
GREEK = {rf"\{name}" for name in GREEK.split()}
APPLIED = {rf"\{name}" for name in ("exp", "log", "ln", "max", "min", "cos", "sin", "tanh")}


class UnreadError(ValueError):
    """TeX that no rule reads, or that does not fit the arrays it is evaluated on."""


class Equation(NamedTuple):
    """``sides[0] relations[0] sides[1] …``, under the conditions; ``of`` are the words before a colon."""

    sides: tuple
    relations: tuple
    conditions: tuple = ()
    of: str = ""


def read(latex, functions=(), without=()):
    """The equations of a display, but for those with one of the texts ``without``, which must be there.

    ``functions``: the letters that apply to what stands behind them in brackets.
    """
    tokens = [t for t in TOKEN.findall(re.sub(r"\\(?:begin|end)\{aligned\}", "", latex)) if t not in DROPPED]
    pieces = _pieces([r"\frac" if t in (r"\tfrac", r"\dfrac") else t for t in tokens])
    for text in without:
        kept = [(piece, in_row) for piece, in_row in pieces if text not in " ".join(piece)]
        if len(kept) == len(pieces):
            raise UnreadError(f"nothing with {text!r} to leave out")
        pieces = kept
    found = []
    for words, in_row in pieces:
        piece = words
        if piece[0] == r"\text{where }" and in_row:
            piece = piece[1:]
        elif piece[0].startswith(r"\text{") and in_row:
            found[-1] = found[-1]._replace(conditions=(*found[-1].conditions, ("word", _word(" ".join(piece)))))
            continue
        ends = (i for i, t in enumerate(piece) if _ends_words(t))
        colon = next((i for i in ends if piece[:i].count("{") == piece[:i].count("}")), None)
        of = "" if colon is None else _word(" ".join(piece[: colon + 1])).rstrip(": ")
        parser = _Parser(piece if colon is None else piece[colon + 1 :], functions)
        sides, relations = parser.chain()
        parser.expect(None)
        if {"to", "implies"} & set(relations):
            raise UnreadError(f"no equation: {' '.join(piece)}")
        if in_row and relations and ("=" not in relations or words[0] == r"\text{where }"):
            found[-1] = found[-1]._replace(conditions=(*found[-1].conditions, ("relation", sides, relations)))
        elif relations:
            found.append(Equation(sides, relations, (), of))
        else:
            raise UnreadError(f"no relation in {' '.join(piece)}")
    return found


def _word(text):
    """What stands in \\text{…}, \\operatorname{…}, \\mathrm{…}."""
    return re.sub(r"\\(?:text|operatorname|mathrm)|[\\{}]", "", text).strip()


def _ends_words(token):
    return token == ":" or token.endswith(":}")


def _relation(token):
    return "=" if token.startswith(r"\overset") else RELATIONS.get(token)


def _joins(token):
    return token in OPERATORS or _relation(token)


def _pieces(tokens):
    """The tokens of each equation or condition, and whether another one stands before it in its row.

    Cut at rows, at wide spaces, commas and every second &, where no bracket is open; what begins or ends with an
    operator or a relation goes on with what stood before; so does what has no relation, and none below it.
    """
    cuts, current, open_, columns = [], [], [], 0
    for t in tokens:
        if open_ and (t == open_[-1] or t.startswith(r"\end")):
            open_.pop()
        columns += t == "&"
        if not open_ and (t.startswith("\\\\") or t in ("&", ",", *QUADS)):
            if t != "&" or columns % 2 == 0:
                cuts.append((current, t.startswith("\\\\")))
                current, columns = [], 0 if t.startswith("\\\\") else columns
            continue
        if not (t in QUADS or (t[0] in "&\\" and t.strip("\\") in ("", "&") and open_[-1] != "table")):
            current.append((t, len(open_)))
        if t in OPEN or t.startswith(r"\begin"):
            open_.append(OPEN.get(t, "table"))
    pieces, in_row = [], False
    cuts.append((current, True))
    for i, (part, ends_row) in enumerate(cuts):
        if part:
            after = next((below for below, _ in cuts[i + 1 :] if below), None)
            relation = any(_relation(t) for t, depth in part if not depth)
            relation = relation or (not in_row and after and _relation(after[0][0]))
            part = [t for t, _ in part]
            whole = relation or part[0].startswith(r"\text{") or _ends_words(part[-1])
            waits = pieces and (_joins(pieces[-1][0][-1]) or _ends_words(pieces[-1][0][-1]))
            in_words = in_row and pieces[-1][0][-1].startswith(r"\text{")
            if pieces and (waits or in_words or _joins(part[0]) or not whole):
                pieces[-1][0].extend(part)
            else:
                pieces.append((part, in_row))
        in_row = not ends_row and (in_row or bool(part))
    return pieces


def text_of(item):
    """What stands above or below a letter, as part of its name; None where it is an expression."""
    plain = item[0] in ("num", "which") or (item[0] == "name" and not item[2])
    return (f"({text_of(item[1])})" if item[0] == "which" else str(item[1])) if plain else None


def written(stem, marks):
    """A name with what stands above and below it: W_QK, dT^(1)."""
    name, last = stem, None
    for mark, item in marks:
        name += ("" if mark == last else mark) + str(text_of(item))
        last = mark
    return name


class _Parser:
    """By recursive descent: chains of relations, "and" and "or", sums, products by ∘, by · and /, side by side."""

    def __init__(self, tokens, functions):
        self.tokens, self.functions, self.at, self.bars = tokens, functions, 0, False

    def peek(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def next(self):
        self.at += 1
        return self.tokens[self.at - 1]

    def takes(self, token):
        return self.peek() == token and bool(self.next())

    def expect(self, token):
        if self.peek() != token:
            raise UnreadError(f"{self.peek()!r} where {token!r} was expected, in {' '.join(self.tokens)}")
        self.at += 1

    def chain(self, side=None):
        side = side or self.logic
        sides, relations = [side()], []
        while self.peek() and _relation(self.peek()):
            relations.append(_relation(self.next()))
            sides.append(side())
        return tuple(sides), tuple(relations)

    def logic(self, operand=None):
        left = (operand or self.sum)()
        while self.peek() in LOGIC:
            left = (LOGIC[self.next()], left, (operand or self.sum)())
        return left

    def truth(self):
        """A chain of relations; where there is none, its one side."""
        sides, relations = self.chain(self.sum)
        return ("relation", sides, relations) if relations else sides[0]

    def sum(self):
        left = ("neg", self.hadamard()) if self.takes("-") else self.takes("+") * 0 or self.hadamard()
        while self.peek() in ("+", "-"):
            left = ("add" if self.next() == "+" else "sub", left, self.hadamard())
        return left

    def hadamard(self):
        left = self.product()
        while self.peek() in ENTRYWISE:
            left = (ENTRYWISE[self.next()], left, self.product())
        return left

    def product(self, left=None):
        left = left or self.juxtaposed()
        while self.peek() in (r"\cdot", "/"):
            dot = self.next() == r"\cdot"
            left = ("dot", left, self.juxtaposed()) if dot else self.juxtaposed(("div", left, self.factor()))
        return left

    def juxtaposed(self, left=None):
        left = left or self.factor()
        while self.peek() and self.starts_factor(self.peek()):
            left = ("mul", left, self.factor())
        return left

    def starts_factor(self, t):
        stops = (*OPERATORS, *OPEN.values(), *",:;&", *("|" * self.bars))
        return not (t in stops or _relation(t) or t.startswith(("\\\\", r"\end")))

    def items(self, close):
        """What stands between commas, up to the bracket that closes."""
        items = [self.logic(self.truth)]
        while self.takes(","):
            items.append(self.logic(self.truth))
        self.expect(close)
        return tuple(items)

    def one(self, close):
        (item,) = self.items(close)
        return item

    def factor(self):
        t = self.next() if self.peek() else self.expect("a factor")
        if t.isdigit():
            return self.marked(("num", int(t)))
        if t in ("(", "[", r"\lVert", r"\langle"):
            kind = {"(": "tuple", "[": "bracket", r"\lVert": "norm", r"\langle": "inner"}[t]
            items = self.items(OPEN[t])
            return self.marked(items[0] if t == "(" and len(items) == 1 else (kind, *items))
        if t in ("|", r"\lfloor"):
            self.bars = t == "|"
            node = ("abs" if t == "|" else "floor", self.one(OPEN.get(t, "|")))
            self.bars = False
            return node
        if t == "{":
            return self.factor() if self.takes("}") else self.marked(self.one("}"))
        if t == r"\frac":
            return self.fraction()
        if t == r"\sum":
            return self.big_sum()
        if t == r"\partial":
            return ("partial", self.factor())
        if t == r"\infty":
            return ("infinity",)
        if t.startswith(r"\mathbf"):
            return self.marked(("ones",))
        if t.startswith(r"\begin"):
            return self.table(_word(t).removeprefix("begin"))
        node = self.marked(("name", self.stem(t), ()))
        applied = node[0] == "name" and written(node[1], node[2]) in self.functions
        if applied or t in APPLIED or t.startswith(r"\operatorname"):
            return self.applied(node, t in APPLIED)
        return ("gradient", self.factor()) if node == ("name", "d", ()) and self.peek() == "(" else node

    def applied(self, node, bare):
        """A function and its arguments, in brackets; \\log and the like also without."""
        if self.peek() in ("(", "["):
            return self.marked(("call", node, *self.items(OPEN[self.next()])))
        return ("call", node, self.juxtaposed()) if bare else node

    def stem(self, t):
        """A letter's name, with its accent or its d."""
        if t in ACCENTS:
            braced = self.takes("{")
            name = ACCENTS[t] + self.stem(self.next())
            return name if not braced else self.expect("}") or name
        after = self.peek() or ""
        if t in MOVES and (after.isalpha() or after in GREEK or after in ACCENTS or after.startswith(r"\text{")):
            return MOVES[t] + self.stem(self.next())
        if t in GREEK or t in APPLIED or t.startswith((r"\text{", r"\operatorname{", r"\mathrm")):
            return _word(t)
        if t.isalpha():
            return t
        raise UnreadError(f"{t!r} in {' '.join(self.tokens)}")

    def marked(self, node):
        """With what stands behind it: primes, indices, exponents."""
        outside = []
        while self.peek() in ("'", "_", "^"):
            mark = self.next()
            if mark == "'":
                node = ("name", node[1] + "'", node[2]) if node[0] == "name" else self.expect("no prime")
                continue
            items = self.script() if self.takes("{") else (self.small(),)
            for item in items:
                if mark == "^" and node[0] == "num" and item[0] != "num":
                    node = ("raised", node, item)
                elif item == ("transpose",) or (mark == "^" and item[0] == "num"):
                    outside.append(item)
                elif (mark, node) == ("^", ("name", "e", ())):
                    node = ("call", ("name", "exp", ()), item)
                elif node[0] == "name" and not outside:
                    node = ("name", node[1], (*node[2], (mark, item)))
                elif mark == "_":
                    node = ("index", node, *items)
                    break
                else:
                    raise UnreadError(f"{item} on {node}")
        for item in outside:
            node = ("transpose", node) if item == ("transpose",) else ("power", node, item[1])
        return node

    def small(self, digit=False):
        """One token below or above a letter; of the number in \\frac12, one digit."""
        t = self.next()
        if digit and len(t) > 1 and t.isdigit():
            self.at -= 1
            self.tokens[self.at] = t[1:]
            return ("num", int(t[0]))
        if t.startswith(r"\mathsf"):
            return ("transpose",)
        if t == "*":  # of an adjoint, J^*
            return ("name", "*", ())
        return ("num", int(t)) if t.isdigit() else ("name", self.stem(t), ())

    def script(self):
        """The items of a braced script: letters side by side, words, or expressions between commas."""
        items = []
        while not self.takes("}"):
            start, run = self.at, []
            if self.peek() == ":" and self.tokens[self.at + 1] == "}":  # a whole row: Omega_{i,:}
                self.next()
                continue
            if self.takes("("):  # one of several, as in dK^{(a)}
                items.append(("which", self.small()))
                self.expect(")")
                continue
            while (t := self.peek()).isalpha() or t in GREEK or t.startswith((r"\math", r"\text")):
                run.append(self.small())
            if (t in APPLIED or t == "+") and self.tokens[self.at + 1] == "}":  # Delta_max, dP^+
                run.append(("name", _word(self.next()), ()))
            if not run and self.peek().isdigit() and self.peek().startswith("0"):  # P_{00}, P_{01}
                items += [("num", int(digit)) for digit in self.next()]
            elif run and self.peek() in (",", "}"):
                items += run
            else:
                self.at = start
                items.append(self.logic(self.truth))
            self.takes(",")
        return items

    def fraction(self):
        parts = [self.one("}") if self.takes("{") else self.small(digit=True) for _ in range(2)]
        return ("derivative", parts[0][1], parts[1][1]) if parts[0][0] == parts[1][0] == "partial" else ("div", *parts)

    def big_sum(self):
        """The letters that it binds, and the condition that they meet or the words that say over what."""
        self.expect("_")
        if not self.takes("{"):
            return ("sum", (self.next(),), None, self.hadamard())
        start, letters, condition = self.at, [], None
        while self.peek().isalpha() or self.peek() == ",":
            letters += self.next().strip(",")
        if (t := self.peek()).startswith(r"\text"):
            condition = ("word", _word(t))
            while self.peek() != "}":
                self.next()
        elif _relation(t) or t == ":":
            self.at = start if t != ":" else self.at + 1
            condition = self.logic(self.truth)
        self.expect("}")
        return ("sum", tuple(letters), condition, ("neg", self.hadamard()) if self.takes("-") else self.hadamard())

    def table(self, kind):
        rows = [[]]
        while not self.peek().startswith(r"\end"):
            if self.peek().startswith("\\\\"):
                rows.append([])
                self.next()
            elif not self.takes("&"):
                rows[-1].append(self.logic(self.truth))
        self.next()
        return self.marked((kind, *map(tuple, rows)))
