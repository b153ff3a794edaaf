"""In what form a function comes, whose arrays it wants, and which names its signature has.

Chapter: :doc:`/chapters/in_the_wild`. Only what can be read; :mod:`attnbook.diagnose.learn.learner` asks for the rest.
"""

import inspect
import re
import sys
from dataclasses import dataclass
from types import CodeType, ModuleType

from attnbook.arrays import expected
from attnbook.diagnose.learn.options import OPTIONS

ROOTS = {
    "torch": "torch", "jax": "jax", "jaxlib": "jax", "flax": "jax", "mlx": "mlx", "tensorflow": "tensorflow",
    "keras": "tensorflow", "cupy": "cupy", "numpy": "numpy", "flash_attn": "torch", "xformers": "torch",
    "transformers": "torch", "onnx": "onnx", "onnxruntime": "onnx",
}  # fmt: skip
"""The library by the package that something comes from."""


@dataclass(frozen=True)
class Signature:
    """The names that a function takes: ``needed`` are positional with no default, ``names`` all that may be named, or
    None where any may be tried; ``order`` are all, for what takes no keywords, and their defaults, else None; ``on``
    those that are True unless said."""

    needed: tuple = ()
    names: frozenset | None = None
    order: dict | None = None
    on: frozenset = frozenset()

    @property
    def packed(self):
        """Whether it takes sequences one after another, with where each begins."""
        return bool(self.names) and "cu_seqlens_q" in self.names


def takes_dL(fn, form, known):
    """Whether a loss that uses L may hand dL over: by name, or to a backward as its third argument."""
    if form != "pair":
        return form != "vjp" or known.names is None or "dL" in known.names
    try:
        shown = inspect.signature(fn[1])
    except (TypeError, ValueError):  # it does not show
        return True
    try:
        third = list(shown.bind("dO", "residuals", "dL").arguments)[2:]
    except TypeError:
        return False
    return not OPTIONS.intersection(third)


def by_place(fn, known):
    """fn, which takes no keywords, with its options as keywords."""

    def call(*inputs, **options):
        rest = list(known.order)[len(inputs) :]
        last = max((i for i, name in enumerate(rest) if name in options), default=-1)
        return fn(*inputs, *(options.get(name, known.order[name]) for name in rest[: last + 1]))

    return call


def signature(fn):
    """The :class:`Signature` of fn; of its forward, for a module of torch or what torch's autograd applies."""
    torch = sys.modules.get("torch")
    owner = getattr(fn, "__self__", None)
    applied = torch is not None and isinstance(owner, type) and issubclass(owner, torch.autograd.Function)
    if applied:
        known = list(inspect.signature(owner.forward).parameters.values())
        if owner.setup_context is torch.autograd.Function.setup_context:
            known = known[1:]  # ctx
        return Signature(_needed(known), _names(known), {p.name: None if p.default is p.empty else p.default
                                                         for p in known})  # fmt: skip
    is_module = torch is not None and isinstance(fn, torch.nn.Module)
    try:
        known = list(inspect.signature(fn.forward if is_module else fn).parameters.values())
    except (TypeError, ValueError):
        names = _documented(fn)
        return Signature(tuple(names[:3]), frozenset(names) or None)
    return Signature(_needed(known), _names(known), on=frozenset(p.name for p in known if p.default is True))


def _needed(parameters):
    return tuple(
        p.name for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    )  # fmt: skip


def _names(parameters):
    if any(p.kind == p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD))


def _documented(fn):
    """The names in the first line of the text of a function written in C, which shows no signature."""
    name = re.escape(getattr(fn, "__name__", "") or "")
    shown = re.search(rf"{name}\(([^()]*(?:\([^()]*\)[^()]*)*)\)", getattr(fn, "__doc__", None) or "") if name else None
    parts = re.split(r",(?![^\[(]*[\])])", shown[1]) if shown else []
    names = [re.match(r"\s*(\w+)", part) for part in parts]
    return [match[1] for match in names if match]


def form(fn, library, known, takes_back):
    """ "vjp", "pair" or "autograd", as :class:`.Caller` has them. TypeError for what is none.

    ``takes_back`` are the forms that the library has.
    """
    if isinstance(fn, tuple | list):
        if len(fn) != 2 or not all(map(callable, fn)):
            raise TypeError(expected("fn", _WANTED, f"{fn!r}"))
        return "pair"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(fn, torch.nn.Module):
        return "autograd"
    if "autograd" not in takes_back:
        return "vjp"
    asked = [name for name in known.needed if name not in OPTIONS]
    return "vjp" if len(asked) > 3 and "vjp" in takes_back else "autograd"


_WANTED = "a function, a pair of functions, or a torch module"


def check(fn):
    """TypeError where fn is nothing that can be called, with a hint for a class; ValueError for dropout in training."""
    if isinstance(fn, tuple | list):
        return
    torch = sys.modules.get("torch")
    if isinstance(fn, type) and not (torch is not None and issubclass(fn, torch.autograd.Function)):
        raise TypeError(expected("fn", _WANTED, f"the class {fn.__name__}: give an instance, {fn.__name__}(…)"))
    if torch is not None and isinstance(fn, torch.nn.Module):
        active = {type(m).__name__: m.p for m in fn.modules() if m.training and "Dropout" in type(m).__name__}
        if any(active.values()):
            drops = ", ".join(f"{name}({p:g})" for name, p in active.items())
            raise ValueError(
                expected("fn", "a module that gives the same each time", f"{drops} in training: call eval()")
            )
    if not callable(fn) and _root(type(fn)) != "onnx":
        raise TypeError(expected("fn", _WANTED, type(fn).__name__))


def guesses(fn):
    """The libraries whose arrays fn may want, the likeliest first, and whether the first one is sure."""
    first = fn[0] if isinstance(fn, tuple | list) and fn else fn
    inner = inspect.unwrap(first) if callable(first) else first
    kinds = {_root(kind) for kind in type(first).__mro__} | {_root(getattr(first, "__self__", None))}
    kinds |= {_root(kind) for kind in first.__mro__} if isinstance(first, type) else set()
    found = (kinds | _annotated(inner) | {_root(inner)}) - {None}
    if len(found) == 1:
        return tuple(found), True
    loaded = [name for name in ("torch", "jax", "mlx", "tensorflow", "cupy") if name in sys.modules]
    used = [name for name in loaded if name in _used(inner)]
    first_of_all = used if used and "numpy" not in _used(inner) else []
    return tuple(dict.fromkeys((*first_of_all, "numpy", *used, *loaded))), False


def _root(thing):
    """The library that something comes from, by the module that it says it is of."""
    name = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None)
    return ROOTS.get(name.partition(".")[0]) if isinstance(name, str) else None


def _annotated(fn):
    notes = getattr(fn, "__annotations__", None) or {}
    words = {word for note in notes.values() for word in re.findall(r"\w+", note if isinstance(note, str) else "")}
    named = {"torch": "torch", "Tensor": "torch", "jax": "jax", "mx": "mlx", "tf": "tensorflow", "np": "numpy",
             "ndarray": "numpy", "cupy": "cupy", "cp": "cupy"}  # fmt: skip
    roots = {_root(note) for note in notes.values() if isinstance(note, type)} & set(ROOTS.values())
    return roots | {named[word] for word in words & named.keys()}


def _used(fn):
    """The libraries whose modules and functions the code of fn names."""
    code, home = getattr(fn, "__code__", None), getattr(fn, "__globals__", {})
    if code is None:
        return set()
    names, todo = set(), [code]
    while todo:
        code = todo.pop()
        names |= set(code.co_names)
        todo += [const for const in code.co_consts if isinstance(const, CodeType)]
    return {_root(home[name]) for name in names if name in home} - {None}
