"""What a function gives back, by name, in each of its forms. Chapter: :doc:`/chapters/in_the_wild`."""

from typing import NamedTuple

NAMES = ("O", "dQ", "dK", "dV")
MORE = {"bias": "dbias", "sink": "dsink"}
"""The gradients of options, by the option."""


class Came(NamedTuple):
    """What one call gave: ``values``, NumPy arrays by name, or else why there are none.

    ``kind`` is "values", "raised", "returned" (not what was asked for), "too long" or "not run"; ``text`` says more.
    ``values`` are O, dQ, dK, dV, and those of a bias and a sink where they came; ``dtypes`` are those that came.
    ``inputs`` are Q, K, V, dO and ``options`` the options as they were handed over, rounded to the case's dtype, in
    float64 NumPy, heads first; ``changed`` are the names of the inputs that the function wrote into; ``absent`` those
    of the gradients for which there was None, in ``values`` 0 for Q, K and V. ``refused``: whether a statement of the
    function's own raised; ``reached`` how far it came before.
    """

    kind: str
    text: str = ""
    values: dict | None = None
    inputs: tuple = ()
    options: dict | None = None
    changed: tuple = ()
    dtypes: dict | None = None
    absent: tuple = ()
    refused: bool = False
    reached: tuple = ()


class ReturnedError(Exception):
    """What is wrong with a result, found while it was being made."""


def more_of(case):
    """The names of the gradients that come beside dQ, dK and dV."""
    return [name for option, name in MORE.items() if option in case.options]


def named(result, case, names=NAMES, who=""):
    """The parts of a result by name: a tuple in order, or a dict or a NamedTuple that has more by name."""
    fields = result if isinstance(result, dict) else getattr(result, "_asdict", dict)()
    if isinstance(result, dict):
        by_name = {key.lower(): T for key, T in result.items() if isinstance(key, str)}
        if not {name.lower() for name in names} <= by_name.keys():
            raise ReturnedError(f"{who}returned a dict of {', '.join(map(str, result))}, expected {_list(names)}")
        first = [by_name[name.lower()] for name in names]
    else:
        most = len(names) + (len(more_of(case)) if not fields else 99)
        if not isinstance(result, tuple | list) or len(result) < len(names):
            raise ReturnedError(_returned(result, names, who))
        first, rest = result[: len(names)], result[len(names) :]
        if len(result) > most and any(T is not None for T in rest[most - len(names) :]):
            raise ReturnedError(_returned(result, names, who))
        fields = fields or dict(zip(more_of(case), rest, strict=False))
    more = {name: fields[name] for name in more_of(case) if name in fields}
    return dict(zip(names, first, strict=True)) | more


def backward_of(pair, inputs, options, case):
    """O and the gradients of a pair: the forward gives (O, residuals), and the backward takes dO and them.

    A loss that uses L hands it dL as a third argument, where it takes one."""
    forward, backward = pair
    *inputs, dO = inputs
    options = dict(options)
    dL = [options.pop("dL")] if "dL" in options else []
    both = forward(*inputs, **options)
    if not isinstance(both, tuple | list) or len(both) != 2:
        raise ReturnedError(f"the forward returned {described(both)}, expected (O, residuals)")
    grads = backward(dO, both[1], *dL)
    if isinstance(grads, tuple | list) and not hasattr(grads, "_fields") and not more_of(case):
        grads = grads[:3]
    return {"O": both[0], **named(grads, case, NAMES[1:], "the backward ")}


def gradients_of(fn, arrays, laid, case):
    """O and the gradients that the library finds by itself, also of bias and sink; None where none arrives."""
    wanted = [option for option in MORE if option in case.options]

    def run(collected):
        given = [laid.ours[option] for option in collected]
        first = []

        def call(inputs, leaves):
            O = fn(*inputs, **laid.asked(dict(zip(collected, leaves, strict=True))))
            both = O if isinstance(O, tuple | list) else (O,)
            if not both or not arrays.owns(both[0]):
                raise ReturnedError(f"returned {described(O)}, expected the output O")
            if tuple(both[0].shape) != tuple(laid.dO.shape):
                shapes = tuple(both[0].shape), tuple(laid.dO.shape)
                raise ReturnedError(f"O has shape {shapes[0]}, expected {shapes[1]}")
            first[:] = both[1:2]
            if "dL" in case.options:
                return laid.with_L(both)
            return both[0]

        O, grads = arrays.autograd(call, laid.inputs, given, lambda O: laid.dO if "dL" not in case.options else
                                   laid.start)  # fmt: skip
        if "dL" in case.options:
            O = O[..., :-1]
        return {"O": O, **dict(zip([*NAMES[1:], *(MORE[name] for name in collected)], grads, strict=True))}

    try:
        return run(wanted)
    except RuntimeError:
        if not wanted:
            raise
        return run([])  # some kernels take a bias, as long as its gradient is not wanted


def described(result):
    """What kind of thing it is, and how many."""
    if isinstance(result, tuple | list):
        return f"{len(result)} things" if len(result) != 1 else "1 thing"
    return a_kind(result)


def a_kind(result):
    """What kind of thing it is."""
    name = type(result).__name__
    return "None" if result is None else f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"


def _returned(result, names, who):
    arrays = "4 arrays " if names == NAMES else ""
    return f"{who}returned {described(result)}, expected {arrays}{_list(names)}"


def _list(names):
    return f"({', '.join(names)})"
