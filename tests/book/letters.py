"""The values that a formula's letters have in a setting of ``book/formulas.yml``, with their true derivatives.

A setting draws inputs and runs a forward, line by line, up to ``loss``. From that alone come, for any letter T of it:
dT, the derivative of the loss by each entry of T (what comes after T is computed anew); tT, how T changes while the
inputs move; and ∂A/∂B. No formula of the book is used. Two ways: torch in float64, and balls.
"""

import ast
import contextlib
from importlib.util import find_spec

import array_api_compat
import numpy as np
import torch
from torch.autograd.functional import jacobian, jvp

import attnbook as ab
from attnbook.arrays import mT
from attnbook.checks.tolerances import EXACT
from attnbook.heads import merge_heads, split_heads

if find_spec("flint"):
    from flint import arb, ctx

    from attnbook.checks import balls
    from attnbook.checks.enclosed import run
else:
    balls = None

NAMES = ("sum", "exp", "log", "where", "sqrt", "tanh", "sin", "cos", "abs", "max", "min", "concat", "stack", "reshape")
OURS = {"np": np, "ab": ab, "mT": mT, "split_heads": split_heads, "merge_heads": merge_heads, "inf": np.inf,
        "softmax": ab.softmax, "logsumexp": ab.logsumexp,
        "delta": lambda i, j: int(i == j)}  # fmt: skip
ACCENTS = ("hat ", "tilde ", "bar ")


class Float64:
    """Numbers of torch, differentiated by its reverse mode. Outside of a run they are NumPy's."""

    limit = 300.0  # about the largest score: the square of its exponential is still a float64
    xp = array_api_compat.array_namespace(torch.zeros(1))
    number = np.float64
    array = torch.Tensor
    working = contextlib.nullcontext

    @staticmethod
    def inside(T):
        return torch.tensor(np.asarray(T))

    @staticmethod
    def outside(T):
        return T.detach().numpy()

    @staticmethod
    def derivative(f, at):
        """Of each entry of f, in a row, by each entry of its argument."""
        return jacobian(lambda T: f(T).reshape(-1), torch.tensor(at)).numpy()

    @staticmethod
    def along(f, at, directions):
        """How f changes where all its arguments move."""
        points, moves = ([torch.tensor(T[name]) for name in directions] for T in (at, directions))
        return jvp(lambda *given: f(dict(zip(directions, given, strict=True))), tuple(points), tuple(moves))[1].numpy()

    @staticmethod
    def apart(A, B, relation="="):
        """By how much, relative to the largest, two arrays do not stand in this relation; NaN where one is NaN."""
        A, B = np.broadcast_arrays(np.asarray(A, float), np.asarray(B, float))
        same = A == B  # infinities too
        off = np.where(same, 0.0, np.subtract(A, B, where=~same, out=np.zeros(A.shape)))
        off = {"=": abs(off), "<=": np.maximum(off, 0), ">=": np.maximum(-off, 0)}[relation]
        sizes = [abs(T[np.isfinite(T)]).max(initial=1.0) for T in (A, B)]
        return off.max(initial=0.0) / max(sizes) if not np.isnan(off).any() else np.nan

    allowed = EXACT


class InBalls:
    """Balls: each value and each derivative is enclosed, entry by entry, and must be known to 50 digits."""

    limit = 700.0
    array = balls.Balls if balls else None
    xp = balls
    allowed = 1e-50
    working = staticmethod(lambda: ctx.workdps(80))

    @staticmethod
    def inside(T):
        return balls.Balls(balls.asarray(T).x)

    outside = inside

    @staticmethod
    def number(n):
        return balls.asarray(float(n))

    @staticmethod
    def derivative(f, at):
        """Of each entry of f, in a row, by each entry of its argument."""
        slopes = []
        for i in np.ndindex(at.shape):
            unit = np.zeros(at.shape)
            unit[i] = 1.0
            (moved,) = run("f", f, [balls.Balls(at.x, balls.asarray(unit).x)])
            slopes.append(balls.tangent(moved).reshape(-1))
        return balls.Balls(np.stack(slopes, axis=-1))

    @staticmethod
    def along(f, at, directions):
        """How f changes where all its arguments move."""
        moving = {n: balls.Balls(at[n].x, balls.asarray(t).x) for n, t in directions.items()}
        (moved,) = run("f", f, [moving])
        return balls.Balls(balls.tangent(moved))

    @classmethod
    def apart(cls, A, B, relation="="):
        """At most by how much, relative to the largest, two arrays do not stand in this relation."""
        A, B = np.broadcast_arrays(*(balls.asarray(T, balls.float64).x for T in (A, B)))
        size = max([1, *(a.abs_lower() for a in (*A.flat, *B.flat) if a.is_finite())])
        found = [cls._beyond(a, b, relation) / size for a, b in zip(A.flat, B.flat, strict=True)]
        return max((float(off.abs_upper()) for off in found), default=0.0)

    @staticmethod
    def _beyond(a, b, relation):
        if a == b and not a.is_finite():
            return arb()
        off = {"=": a - b, "<=": a - b, ">=": b - a}[relation]
        return off if relation == "=" or off.upper() > 0 else arb()


class Letters:
    """A mapping from names to values: of a setting, at one of its points."""

    def __init__(self, setting, way, point="plain", seed=0):
        self.setting, self.way = setting, way
        self.names = {"ell": "loss"} | setting.get("letters", {})
        self.lines = [_Line(line) for line in ast.parse(setting["forward"]).body]
        rng = np.random.default_rng(seed)
        drawn = {name: rng.standard_normal(shape) for name, shape in self._shapes("inputs")}
        drawn |= {name: rng.random(shape) < 0.6 for name, shape in self._shapes("masks")}
        drawn |= dict(setting["sizes"])
        self.directions = {name: rng.standard_normal(shape) for name, shape in self._shapes("inputs")}
        for code in (setting.get("draw"), setting["points"][point]):
            exec(code or "", {"np": np, "rng": rng, "limit": way.limit}, drawn)
        self.drawn = {name: T for name, T in drawn.items() if name != "__builtins__"}
        self.found, self.meanings = {}, {}
        self.names_before = {name: getattr(way.xp, name) for name in NAMES} | OURS | {"inside": way.inside}
        self.names_before |= {name: way.inside(T) if hasattr(T, "shape") else T for name, T in self.drawn.items()}
        along = set(self.directions) - set(setting.get("fixed", ()))  # a forward may say tQ, where Q is not fixed
        self.names_before |= {f"t{name}": way.inside(self.directions[name]) for name in along}
        self.names_before = names = self.forward({})
        self.letters = {name for name, T in names.items() if isinstance(T, way.array)}
        self.all = {name: way.outside(T) if name in self.letters else T for name, T in names.items()}

    def _shapes(self, kind):
        sizes = self.setting["sizes"]
        for name, shape in self.setting.get(kind, {}).items():
            yield name, tuple(sizes[n] if n in sizes else int(n) for n in str(shape or "").split())

    def forward(self, given, wanted=None):
        """Every name after the forward; where some letters are given, the one that is wanted."""
        names = self.names_before | given
        changed, of_it = set(given), {wanted}
        if wanted is not None:
            for line in reversed(self.lines):
                of_it |= line.loads if line.makes & of_it else set()
        for line in self.lines:
            if wanted is None or (line.loads & changed and line.makes & of_it):
                exec(line.code, names)
                names |= {name: given[name] for name in line.makes & set(given)}
                changed |= line.makes
        return names if wanted is None else names[wanted]

    # --- what a name means

    def python_name(self, name):
        """S_new for S', x_hat for "hat x", or what the setting says."""
        if name in self.names:
            return self.names[name]
        for accent in ACCENTS:
            if name.startswith(accent):
                name = name.removeprefix(accent) + f"_{accent.strip()}"
        return name.replace("'", "_new")

    def meaning(self, name):
        """Of what a name is the value, the gradient, the tangent, or the derivative."""
        name = self.names.get(name, name)
        if name.startswith("∂"):
            above, below = (self.python_name(part[1:]) for part in name.split("/"))
            return (self.derivative, above, below) if {above, below} <= self.letters else None
        if self.python_name(name) in self.all:
            return (self.value, self.python_name(name))
        of = self.python_name(name[1:])
        known = name[:1] in ("d", "t") and of in self.letters
        return ({"d": self.gradient, "t": self.tangent}[name[0]], of) if known else None

    def __contains__(self, name):
        if name not in self.meanings:
            self.meanings[name] = self.meaning(name)
        return self.meanings[name] is not None

    def __getitem__(self, name):
        if name not in self.found:
            if name not in self:
                raise KeyError(name)
            find, *of = self.meanings[name]
            self.found[name] = find(*of)
        return self.found[name]

    def value(self, name):
        value = self.all[name]
        return self._applied(value) if callable(value) and name not in self.letters else value

    def _applied(self, f):
        """A function of the forward, on numbers from outside."""

        def of(*given):
            result = f(*(self.way.inside(T) if hasattr(T, "shape") else T for T in given))
            return self.way.outside(result) if isinstance(result, self.way.array) else result

        return of

    def gradient(self, name):
        return self.derivative("loss", name)

    def derivative(self, above, below):
        """Of each entry of a letter by each entry of another."""
        slopes = self.way.derivative(lambda T: self.forward({below: T}, above), self.all[below])
        return slopes.reshape((*self.all[above].shape, *self.all[below].shape))

    def tangent(self, name):
        fixed = self.setting.get("fixed", [])
        directions = {name: t for name, t in self.directions.items() if name not in fixed}
        return self.way.along(lambda given: self.forward(given, name), self.all, directions)


class _Line:
    """A line of a forward: its code, the names that it makes, and those that it needs."""

    def __init__(self, line):
        names = [node for node in ast.walk(line) if isinstance(node, ast.Name)]
        self.code = compile(ast.unparse(line), "forward", "exec")
        self.makes = {name.id for name in names if isinstance(name.ctx, ast.Store)}
        self.loads = {name.id for name in names} - self.makes
