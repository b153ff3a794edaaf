"""The values that a formula's letters have in a setting of ``book/formulas.yml``, with their true derivatives.

A setting draws inputs and runs a forward, line by line, up to ``loss``. From that alone come, for any letter T of it:
dT, the derivative of the loss by each entry of T (what comes after T is computed anew); tT, how T changes while the
inputs move; and ∂A/∂B. No formula of the book is used. Two ways: torch's autograd in float64, and balls.
"""

import ast
import functools

import array_api_compat
import numpy as np
import torch
from torch.autograd import forward_ad

import attnbook as ab
from attnbook.arrays import mT
from attnbook.checks.tolerances import EXACT
from attnbook.heads import merge_heads, split_heads

NAMES = ("sum", "exp", "log", "where", "sqrt", "tanh", "sin", "cos", "abs", "max", "min", "concat", "stack", "reshape")
OURS = {"np": np, "ab": ab, "mT": mT, "split_heads": split_heads, "merge_heads": merge_heads, "inf": np.inf,
        "softmax": ab.softmax, "logsumexp": ab.logsumexp,
        "delta": lambda i, j: int(i == j)}  # fmt: skip
ACCENTS = ("hat ", "tilde ", "bar ")


class Float64:
    """Numbers of torch, with the tangents of its forward mode. Outside of a run they are NumPy's."""

    limit = 300.0  # of a score: the square of its exponential is still a float64
    xp = array_api_compat.array_namespace(torch.zeros(1))
    number = np.float64
    working = staticmethod(forward_ad.dual_level)

    @staticmethod
    def inside(T, tangent=None):
        T = torch.tensor(np.asarray(T))
        return T if tangent is None else forward_ad.make_dual(T, torch.tensor(tangent))

    @staticmethod
    def outside(T):
        """Its numbers, and its tangent."""
        T = forward_ad.unpack_dual(T)
        return T.primal.numpy(), np.zeros(T.primal.shape) if T.tangent is None else T.tangent.numpy()

    @staticmethod
    def is_array(T):
        return isinstance(T, torch.Tensor)

    @staticmethod
    def derivative(f, at):
        """Of each entry of f by each entry of its argument, by torch's reverse mode."""
        T = torch.tensor(at, requires_grad=True)
        out = f(T).reshape(-1)
        known = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        slopes = [torch.autograd.grad(one, T, **known)[0] if one.requires_grad else 0 * T for one in out]
        return torch.stack(slopes).detach().numpy()

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


class Letters:
    """A mapping from names to values: of a setting, at one of its points."""

    def __init__(self, setting, way, point="plain", seed=0):
        self.setting, self.way = setting, way
        self.names = {"ell": "loss"} | setting.get("letters", {})
        self.lines = [(ast.unparse(line), _targets(line)) for line in ast.parse(setting["forward"]).body]
        rng = np.random.default_rng(seed)
        drawn = {name: rng.standard_normal(shape) for name, shape in self._shapes("inputs")}
        drawn |= {name: rng.random(shape) < 0.6 for name, shape in self._shapes("masks")}
        drawn |= dict(setting["sizes"])
        self.directions = {name: rng.standard_normal(shape) for name, shape in self._shapes("inputs")}
        for code in (setting.get("draw"), setting["points"][point]):
            exec(code or "", {"np": np, "rng": rng, "limit": way.limit}, drawn)
        self.drawn = drawn
        self.found = {}
        self.all = self.run({})

    def _shapes(self, kind):
        sizes = self.setting["sizes"]
        for name, shape in self.setting.get(kind, {}).items():
            yield name, tuple(sizes[n] if n in sizes else int(n) for n in str(shape or "").split())

    def forward(self, given):
        """Every name after the forward, where some letters are given."""
        way = self.way
        names = {name: getattr(way.xp, name) for name in NAMES} | OURS | {"inside": way.inside}
        names |= {name: way.inside(T) if hasattr(T, "shape") else T for name, T in self.drawn.items()} | given
        for code, targets in self.lines:
            exec(code, names)
            names |= {name: given[name] for name in targets if name in given}
        return names

    def run(self, moved):
        """The same, as numbers and their tangents, where some letters move."""
        with self.way.working():
            names = self.forward({name: self.way.inside(*pair) for name, pair in moved.items()})
            return {name: self.way.outside(T) if self.way.is_array(T) else (T, None) for name, T in names.items()}

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
            return (self.derivative, above, below) if {above, below} <= set(self.all) else None
        if self.python_name(name) in self.all:
            return (self.value, self.python_name(name))
        of = self.python_name(name[1:])
        known = name[:1] in ("d", "t") and of in self.all and self.all[of][1] is not None
        return ({"d": self.gradient, "t": self.tangent}[name[0]], of) if known else None

    def __contains__(self, name):
        return self.meaning(name) is not None

    def __getitem__(self, name):
        if name not in self.found:
            if (meaning := self.meaning(name)) is None:
                raise KeyError(name)
            self.found[name] = meaning[0](*meaning[1:])
        return self.found[name]

    def value(self, name):
        value = self.all[name][0]
        return self._applied(value) if callable(value) else value

    def _applied(self, f):
        """A function of the forward, on numbers from outside."""

        def of(*given):
            with self.way.working():
                result = f(*(self.way.inside(T) if hasattr(T, "shape") else T for T in given))
                return self.way.outside(result)[0] if self.way.is_array(result) else result

        return of

    def gradient(self, name):
        return self.derivative("loss", name)

    def tangent(self, name):
        return self._moved[name][1]

    @functools.cached_property
    def _moved(self):
        fixed = self.setting.get("fixed", [])
        return self.run({n: (self.drawn[n], t) for n, t in self.directions.items() if n not in fixed})

    def derivative(self, above, below):
        """Of each entry of a letter by each entry of another."""
        at, of = self.all[below][0], self.all[above][0]
        return self.way.derivative(lambda T: self.forward({below: T})[above], at).reshape((*of.shape, *at.shape))


def _targets(line):
    return [n.id for n in ast.walk(line) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
