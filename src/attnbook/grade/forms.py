"""How a submission is called, by the form that its exercise asks for. Chapter: :doc:`/chapters/08_checking`.

Each form takes the module and the names that the function may have, and returns ``call(*arrays, **options)`` on NumPy
arrays, and the names of the options that it takes (None: any). Where a backward raises, its error stands for each
gradient.
"""

import inspect

import numpy as np


def find(module, names):
    """What the exercise asks for: the first of the names that the module has, else the only function in it."""
    for name in names:
        if hasattr(module, name):
            return getattr(module, name)
    own = {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    if len(own) == 1:
        return next(iter(own.values()))
    more = f" ({', '.join(names[1:])} will do too)" if names[1:] else ""
    raise LookupError(f"expected a function named {names[0]}{more}; the file defines {', '.join(own) or 'none'}")


def of_arrays(module, names):
    """A function of NumPy arrays."""
    fn = find(module, names)
    if not callable(fn):
        raise LookupError(f"{names[0]} is {type(fn).__name__}, expected a function")
    return fn, options_of(fn)


def of_tensors(module, names):
    """A function or a module of torch tensors: with a backward of its own, or ``fn(Q, K, V) -> O`` under autograd."""
    import torch

    fn = find(module, names)
    if inspect.isclass(fn) and issubclass(fn, torch.autograd.Function):
        fn = fn.apply
    elif inspect.isclass(fn):
        fn = fn()
    by_hand = not isinstance(fn, torch.nn.Module) and "dO" in (options_of(fn) or ())

    def call(*arrays, **options):
        Q, K, V, dO, *_ = tensors = [torch.from_numpy(T) for T in arrays]
        options = {name: torch.from_numpy(T) if isinstance(T, np.ndarray) else T for name, T in options.items()}
        if by_hand:
            return _as_arrays(fn(*tensors, **options))
        leaves = [T.detach().requires_grad_() for T in (Q, K, V)]
        O = fn(*leaves, **options)
        O = O[0] if isinstance(O, tuple) else O
        return _as_arrays((O, *_gradients(O, leaves, dO)))

    return call, options_of(getattr(fn, "forward", fn))


def of_cs336(module, names):
    """``torch.autograd.Function`` with ``apply(Q, K, V, is_causal)``: the class, or a function that returns it."""
    import torch

    own = [
        value for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, torch.autograd.Function) and value.__module__ == module.__name__
    ]  # fmt: skip
    named = [getattr(module, name) for name in names if hasattr(module, name)]
    if not named and len(own) != 1:
        raise LookupError(f"expected {names[0]}(), or one torch.autograd.Function; the file has {len(own)} of them")
    found = (named or own)[0]
    cls = found if inspect.isclass(found) else found()
    if not (inspect.isclass(cls) and issubclass(cls, torch.autograd.Function)):
        raise LookupError(f"{names[0]}() returned {type(cls).__name__}, expected a torch.autograd.Function class")

    def call(Q, K, V, dO, causal=False):
        leaves = [torch.from_numpy(T).requires_grad_() for T in (Q, K, V)]
        O = cls.apply(*leaves, causal)
        if not isinstance(O, torch.Tensor):
            raise TypeError(f"apply returned {type(O).__name__}, expected the output O")
        saved = [T for T in getattr(O.grad_fn, "saved_tensors", ()) if T is not None and T.shape == O.shape[:-1]]
        L = saved[0] if len(saved) == 1 else f"{len(saved)} saved tensors of the shape {list(O.shape[:-1])}"
        return _as_arrays((O, *_gradients(O, leaves, torch.from_numpy(dO)), L))

    return call, ["causal"]


def _gradients(O, leaves, dO):
    try:
        O.backward(dO.to(O.dtype))
    except Exception as error:
        return [error] * len(leaves)
    return [leaf.grad for leaf in leaves]


def _as_arrays(results):
    import torch

    if not isinstance(results, tuple | list):
        return results
    return [T.detach().cpu().numpy() if isinstance(T, torch.Tensor) else T for T in results]


def options_of(fn):
    """The names that fn takes by keyword, or None where it takes any or does not say."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind == p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]


FORMS = {"arrays": of_arrays, "tensors": of_tensors, "cs336": of_cs336}
"""By name."""
