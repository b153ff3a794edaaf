"""The values of a display's sides, as :mod:`tex` has read them, on arrays of any library with NumPy's operators."""

import contextlib
import functools
import itertools
import operator

import numpy as np
from tex import UnreadError, text_of, written


def _children(node):
    """The trees inside a tree, or in a tuple of trees."""
    return [part for part in (node[1:] if isinstance(node[0], str) else node) if isinstance(part, tuple) and part]


def _letter(item):
    """What stands below a max or a softmax: j, of j or of j ∈ J."""
    return text_of(item[1][0] if item[0] == "relation" else item)


def of_tree(method):
    """Asked once of each tree: which letters it has, and how far they run, is the same whatever their numbers are."""

    @functools.wraps(method)
    def asked(self, node):
        key = (method.__name__, node)
        if key not in self.known:
            self.known[key] = method(self, node)
        return self.known[key]

    return asked


class At:
    """Letters with values, where equations are evaluated.

    ``values``: arrays, numbers or functions, under the names that they have on the page: "dS", "S'", "W_Q", "X_mem".
    What else stands below a letter are indices, and one that nothing binds runs over its axis. ``rows``: arrays of one
    axis that are rows, not columns; ``columns``: those whose vectors are columns, not rows. ``batch``: those with one
    more axis in front, which only a sum over "batch" sees. ``indices``: words that are indices; ``over``: how far a
    letter runs, where no array says it. ``number`` makes an exact number of an integer.
    """

    def __init__(self, values, rows=(), columns=(), batch=(), indices=(), over=(), number=np.float64):
        self.values, self.rows, self.columns, self.batch = values, rows, columns, batch
        self.indices, self.over, self.number, self.known = indices, dict(over), number, {}

    def sides(self, equation):
        """The values of an equation's sides, for each value of the letters that nothing binds."""
        trees = (*equation.sides, *equation.conditions)
        for bound in self.bindings(sorted(set().union(*map(self.free, trees))), trees):
            if all(self.holds(condition, bound) for condition in equation.conditions):
                values = [self.value(side, bound) for side in equation.sides]
                yield bound, [np.stack(value) if isinstance(value, tuple) else value for value in values]

    def holds(self, condition, bound):
        if condition[0] == "word":  # said of the whole setting
            if not condition[1].startswith("for each") and not self.values[condition[1]]:
                raise UnreadError(f"{condition[1]!r} does not hold here")
            return True
        return bool(self.value(condition, bound))

    def bindings(self, letters, trees, bound=()):
        sizes = {}
        for letter, n in itertools.chain(*map(self.sizes, trees)):
            if letter in letters and sizes.setdefault(letter, n) != n and letter not in self.over:
                raise UnreadError(f"{letter} runs to {n} and to {sizes[letter]}")
        sizes |= self.over
        if missing := set(letters) - set(sizes):
            raise UnreadError(f"no array says how far {', '.join(missing)} runs")
        for at in itertools.product(*(range(sizes[letter]) for letter in letters)):
            yield dict(bound) | dict(zip(letters, at, strict=True))

    # --- names and indices

    def is_letter(self, text):
        return text is not None and (text in self.indices or (len(text) == 1 and text.islower() and text.isascii()))

    @of_tree
    def resolve(self, node):
        """The name of a letter's value, and what stands below it as indices."""
        _, stem, marks = node
        if (whole := written(stem, marks)) in self.values:
            return whole, ()
        parts, indices = [], [item[1] for _, item in marks if item[0] == "which"]
        for mark, item in marks:
            text = text_of(item)
            if item[0] != "which" and mark == "_" and (text is None or self.is_letter(text) or item[0] == "num"):
                indices.append(item)
            elif item[0] != "which":
                parts.append((mark, item))
        name = written(stem, parts)
        stack = f"{name}_[{text_of(indices[0])}]" if indices else name
        if stack in self.values or name in self.values:
            return (stack if stack in self.values else name), tuple(indices)
        raise UnreadError(f"no value for {whole}")

    def one_of(self, name, names):
        return name in names or name[1:] in names

    @of_tree
    def free(self, node):
        """The letters that nothing in a tree binds."""
        if node[0] == "name":
            if node[1] in CONSTANTS:
                return set()
            if not node[2] and self.is_letter(node[1]) and node[1] not in self.values:
                return {node[1]}
            name, indices = self.resolve(node)
            return set().union({"batch"} if self.one_of(name, self.batch) else (), *map(self.free, indices))
        bound = set(self.bound_by(node)) if node[0] == "sum" else set()
        if node[0] != "call":
            return set().union(*map(self.free, _children(node))) - bound
        below = {_letter(item) for _, item in node[1][2]} if written(*node[1][1:]) not in self.values else set()
        free = set().union(*map(self.free, node[2:]))
        return free - below if node[1][1] in ("max", "min") else free | set(filter(self.is_letter, below))

    def bound_by(self, node):
        """The letters that a sum binds: also one that it names in the plural, or which of a batch."""
        words = node[2][1] if node[2] and node[2][0] == "word" else ""
        return ("batch",) if words == "batch" else (words[:-1],) if words[:-1] in self.indices else node[1]

    @of_tree
    def sizes(self, node):
        """How far each letter of a tree runs, by the axes that it is an index of."""
        found, indexed = [], ()
        if node[0] == "name" and (node[2] or self.one_of(node[1], self.batch)):
            name, indexed = self.resolve(node)
            array = self.values[name]
            if self.one_of(name, self.batch):
                found.append(("batch", array.shape[0]))
                array = array[0]
            indexed = () if callable(array) else indexed
        elif node[0] == "index":
            with contextlib.suppress(UnreadError, KeyError):  # its value may need letters that are bound elsewhere
                array, indexed = self.value(node[1], {}), node[2:]
        run = zip(map(text_of, indexed), array.shape if indexed else (), strict=False)
        return [*found, *(pair for pair in run if pair[0]), *itertools.chain(*map(self.sizes, _children(node)))]

    # --- values

    def value(self, node, bound):
        """What a tree is, where its letters are bound."""
        if (rule := getattr(self, f"_{node[0]}", None)) is not None:
            return rule(node, bound)
        return _scalar(MEANINGS[node[0]](*(self.value(part, bound) for part in node[1:])))

    def _name(self, node, bound):
        if not node[2] and (node[1] in bound or node[1] in CONSTANTS):
            return bound.get(node[1], CONSTANTS.get(node[1]))
        name, indices = self.resolve(node)
        value, indices = self.values[name], tuple(self.value(item, bound) for item in indices)
        if self.one_of(name, self.batch):
            value = value[bound["batch"]]
        if indices and callable(value):
            value = value(*indices)
        elif indices:
            if not all(isinstance(i, int) and 0 <= i < n for i, n in zip(indices, value.shape, strict=False)):
                raise UnreadError(f"{name} has no entry {indices}")
            value = value[indices]
        if getattr(value, "ndim", 0) == 1:
            column = self.one_of(name, self.columns) or not (indices or self.one_of(name, self.rows))
            value = value[:, None] if column else value[None, :]
        return _scalar(value)

    def _index(self, node, bound):
        value = self.value(node[1], bound)[tuple(self.value(item, bound) for item in node[2:])]
        return _scalar(value[None, :] if value.ndim == 1 else value)

    def _num(self, node, bound):
        return node[1]

    def _ones(self, node, bound):
        return _Ones()

    def _bracket(self, node, bound):
        """A truth in brackets is 1 or 0; several arrays are side by side."""
        if len(node) == 2:
            return int(self.value(node[1], bound))
        parts = [self.value(part, bound) for part in node[1:]]
        ones = next(0 * part[:, :1] + 1 for part in parts if _ndim(part))
        return np.concatenate([ones if isinstance(part, _Ones) else part for part in parts], axis=1)

    def _infinity(self, node, bound):
        return np.inf

    def _power(self, node, bound):
        return self.value(node[1], bound) ** node[2]

    def _div(self, node, bound):
        over, under = (self.value(part, bound) for part in node[1:])
        return (self.number(over) if isinstance(over, int) else over) / under

    def _floor(self, node, bound):
        over, under = (self.value(part, bound) for part in node[1][1:])
        return over // under

    def _derivative(self, node, bound):
        (above, i), (below, j) = map(self.resolve, node[1:])
        i, j = (tuple(self.value(item, bound) for item in items) for items in (i, j))
        rest = (slice(None),) * (_ndim(self.values[above]) - len(i))
        value = self.values[f"∂{above}/∂{below}"][(*i, *rest, *j)]
        return _scalar(value[None, :] if value.ndim == 1 else value)

    def _gradient(self, node, bound):
        return self.values["d" + "".join(self.resolve(name)[0] for name in _children(node[1]))]

    def _relation(self, node, bound):
        _, sides, relations = node
        pairs = zip(relations, itertools.pairwise(self.value(side, bound) for side in sides), strict=True)
        return all(_related(relation, *pair) for relation, pair in pairs)

    def _cases(self, node, bound):
        for value, condition in node[1:]:
            if self.value(condition, bound):
                return self.value(value, bound)
        raise UnreadError("no case holds")

    def _pmatrix(self, node, bound):
        blocks = [[np.reshape(self.number(x), (1, 1)) if isinstance(x, int) else x if x.ndim else np.reshape(x, (1, 1))
                   for x in (self.value(item, bound) for item in row)] for row in node[1:]]  # fmt: skip
        return np.concatenate([np.concatenate(row, axis=1) for row in blocks], axis=0)

    def _call(self, node, bound):
        (_, name, marks), *given = node[1:]
        below = [_letter(item) for mark, item in marks if mark == "_"]
        if name in ("max", "min") and (below or len(given) > 1):
            among = [item for _, item in marks if item[0] == "relation"]
            inside = [at for at in self.bindings(below, given, bound) if all(self.value(item, at) for item in among)]
            found = [self.value(item, at) for at in inside for item in given]
            return functools.reduce(np.maximum if name == "max" else np.minimum, found)
        key = whole if (whole := written(name, marks)) in self.values or whole in BUILT_IN else name
        f = self.values[key] if key in self.values else BUILT_IN.get(key)
        if f is None:
            raise UnreadError(f"no function {key}")
        if below and all(map(self.is_letter, below)) and key == name:  # softmax_j: of all j together
            found = np.stack([self.value(given[0], inner) for inner in self.bindings(below, given, bound)])
            return f(found)[bound[below[0]]]
        values = [self.value(item, bound) for item in given]
        return _scalar(f(*(self.number(x) if isinstance(x, int) and name in BUILT_IN else x for x in values)))

    def _sum(self, node, bound):
        condition, body = node[2:]
        letters, words = self.bound_by(node), condition and condition[0] == "word"
        if words and not letters:
            return _scalar(self.values[condition[1]](self.value(body, bound)))  # over what, in words
        condition = condition if node[1] else None
        total = 0
        for at in self.bindings(letters, [body, *([condition] if condition else [])], bound):
            if not condition or (self.values[condition[1]](at) if words else self.value(condition, at)):
                total = total + self.value(body, at)
        return total


class _Ones:
    """A column of ones, as long as what it stands beside; or a row."""

    def __init__(self, row=False):
        self.row = row


def _scalar(value):
    """A table of one entry is a number."""
    return value[0, 0] if getattr(value, "shape", None) == (1, 1) else value


def _ndim(value):
    return getattr(value, "ndim", 0)


def _product(A, B):
    """A scalar times anything, a matrix product, or a function of what follows it."""
    if callable(A):
        return A(*B) if isinstance(B, tuple) else A(B)
    if isinstance(A, _Ones) or isinstance(B, _Ones):
        return _with_ones(A, B)
    if not _ndim(A) or not _ndim(B):
        return A * B
    if A.shape[-1] != B.shape[-2]:
        raise UnreadError(f"a matrix product of {A.shape} and {B.shape}")
    return A @ B


def _with_ones(A, B):
    if isinstance(B, _Ones) and _ndim(A):  # c 𝟏ᵀ is spread where it is used, A 𝟏 sums rows
        return A if B.row else np.sum(A, axis=-1, keepdims=True)
    if isinstance(A, _Ones) and _ndim(B):
        return np.sum(B, axis=-2, keepdims=True) if A.row else B
    raise UnreadError("𝟏 beside what has no length")


def _dot(A, B):
    """A scalar product of two vectors; else as side by side."""
    if _ndim(A) == 2 and _ndim(B) == 2 and A.shape == B.shape and 1 in A.shape:
        return np.sum(A * B)
    if _ndim(A) and _ndim(B):
        raise UnreadError(f"a scalar product of {A.shape} and {B.shape}")
    return A * B


def _inner(A, B):
    if getattr(A, "shape", ()) != getattr(B, "shape", ()):
        raise UnreadError(f"an inner product of {A.shape} and {B.shape}")
    return np.sum(A * B)


def _related(relation, A, B):
    if B is CONSTANTS["emptyset"]:
        return bool(np.any(A)) == (relation == "!=")
    if "in" in relation:
        return bool(B[0, A]) == (relation == "in")
    return bool(np.all(COMPARED[relation](A, B)))


CONSTANTS = {"emptyset": frozenset(), "otherwise": True}
COMPARED = {"=": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt,
            "<=": operator.le, ">=": operator.ge}  # fmt: skip
MEANINGS = {
    "neg": operator.neg, "add": operator.add, "sub": operator.sub, "hadamard": operator.mul, "mul": _product,
    "dot": _dot, "inner": _inner, "abs": abs, "norm": lambda x: np.sqrt(np.sum(x * x)),
    "and": lambda a, b: bool(a) and bool(b), "or": lambda a, b: bool(a) or bool(b),
    "over": operator.truediv, "raised": lambda a, b: np.exp(np.log(b * 0 + a) * b), "tuple": lambda *items: items,
    "transpose": lambda x: _Ones(not x.row) if isinstance(x, _Ones) else x if not _ndim(x) else x.mT,
}  # fmt: skip
BUILT_IN = {
    "exp": np.exp, "log": np.log, "ln": np.log, "log_2": np.log2, "cos": np.cos, "sin": np.sin, "tanh": np.tanh,
    "max": np.max, "min": np.min,
    "rowsum": lambda x: np.sum(x, axis=-1, keepdims=True), "tr": lambda x: np.sum(np.eye(len(x), dtype=int) * x),
    "diag": lambda p: np.eye(len(p), dtype=int) * p if 1 in p.shape else np.diagonal(p)[:, None],
}  # fmt: skip
