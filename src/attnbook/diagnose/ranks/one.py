"""How one rank calls the function, and reads what it returns. Chapter: :doc:`/chapters/08_checking`."""

import inspect
from typing import NamedTuple

import numpy as np

from attnbook.diagnose.case import INPUTS
from attnbook.diagnose.learn.results import NAMES


class Answer(NamedTuple):
    """``values`` are O, dQ, dK, dV as NumPy arrays, or None and a sentence, ``text``; ``dtypes`` are theirs, and
    ``changed`` the names of the inputs that were written into.
    """

    values: tuple | None
    text: str = ""
    dtypes: tuple = ()
    changed: tuple = ()


class OneRank:
    """A function in one of its forms, as one rank calls it: with its piece, and with a comm where there is one."""

    def __init__(self, fn, library, with_comm):
        self.fn, self.library, self.with_comm, self.device = fn, library, with_comm, "cpu"
        self.pair = isinstance(fn, tuple | list)
        self.names = _parameters(fn[0] if self.pair else fn)
        needed = len(INPUTS) + with_comm
        self.autograd = library == "torch" and not self.pair and self._positional() < needed

    def __reduce__(self):
        return OneRank, (self.fn, self.library, self.with_comm)

    def _positional(self):
        if self.names is None:
            return 0
        return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in self.names)

    def takes(self, option, by_name=False):
        """Whether the function has this option; with ``by_name`` one that takes any does not count."""
        if self.names is None or any(p.kind == p.VAR_KEYWORD for p in self.names):
            return not by_name or any(p.name == option for p in self.names or ())
        return any(p.name == option for p in self.names)

    def __call__(self, pieces, dtype, options, comm=None):
        """The :class:`Answer` for these NumPy pieces; raises what the function raises."""
        handed = [self._array(np.ascontiguousarray(T), dtype) for T in pieces]  # as what arrived by a message is
        before = [_numpy(T) for T in handed]
        options = {name: self._array(x, dtype) if isinstance(x, np.ndarray) else x for name, x in options.items()}
        result = self._call(handed, options, () if comm is None else (comm,))
        changed = tuple(
            name for name, T, was in zip(INPUTS, handed, before, strict=True) if not np.array_equal(_numpy(T), was)
        )
        return self._read(result)._replace(changed=changed)

    def _call(self, handed, options, comm):
        if self.pair:
            forward, backward = self.fn
            both = forward(*handed[:3], *comm, **options)
            if not isinstance(both, tuple | list) or len(both) != 2:
                return both
            grads = backward(handed[3], both[1], *comm)
            return (both[0], *grads[:3]) if isinstance(grads, tuple | list) else grads
        if not self.autograd:
            return self.fn(*handed, *comm, **options)
        import torch

        inputs = [T.detach().requires_grad_() for T in handed[:3]]
        with torch.enable_grad():
            O = self.fn(*inputs, *comm, **options)
            O = O[0] if isinstance(O, tuple) else O
            if not isinstance(O, torch.Tensor):
                return Answer(None, f"returned {_described(O)}, expected O, a tensor")
            if O.shape != handed[3].shape:
                wanted = f"{tuple(handed[3].shape)}, that of its own rows"
                return Answer(None, f"O has shape {tuple(O.shape)}, expected {wanted}")
            grads = torch.autograd.grad(O, inputs, handed[3].to(O.dtype), allow_unused=True)
        return O.detach(), *(torch.zeros_like(T) if g is None else g for T, g in zip(inputs, grads, strict=True))

    def _array(self, T, dtype):
        if self.library == "torch":
            import torch

            return torch.tensor(T, dtype=None if T.dtype == bool else getattr(torch, dtype), device=self.device)
        return T.copy() if T.dtype == bool else T.astype(dtype)

    def _read(self, result):
        if isinstance(result, Answer):
            return result
        if not isinstance(result, tuple | list) or len(result) != len(NAMES):
            return Answer(None, f"returned {_described(result)}, expected 4 arrays (O, dQ, dK, dV)")
        for name, T in zip(NAMES, result, strict=True):
            if not hasattr(T, "detach") and not isinstance(T, np.ndarray | np.generic):
                return Answer(None, f"{name} is {_described(T)}, expected an array")
        values = tuple(map(_numpy, result))
        dtypes = tuple(str(T.dtype).removeprefix("torch.") for T in result)
        return Answer(tuple(T.astype(np.float64) for T in values), "", dtypes)


def _numpy(T):
    """A copy of T in NumPy; bfloat16, which that does not have, in float32."""
    if hasattr(T, "detach"):
        T = T.detach().cpu()
        return (T.float() if str(T.dtype) == "torch.bfloat16" else T).clone().numpy()
    return np.array(T)


def _described(x):
    if isinstance(x, tuple | list):
        return f"{len(x)} things" if len(x) != 1 else "1 thing"
    return "None" if x is None else f"a value of type {type(x).__name__}"


def _parameters(fn):
    try:
        return list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return None
