"""Functions around the function that is diagnosed, of its form: called twice, beside another, and watched.

Chapter: :doc:`/chapters/in_the_wild`. A form is that of :class:`attnbook.diagnose.learn.caller.Caller`.
"""

import threading
from contextlib import contextmanager

import numpy as np

from attnbook.diagnose.learn.safely import within

# --- a pair -------------------------------------------------------------------------------------------------------


def _pair_between(fn):
    forward, backward = fn

    def first(Q, K, V, **options):
        both = forward(Q, K, V, **options)
        forward(-Q, K, -V, **options)
        return both

    return first, backward


def _pair_twice(fn):
    forward, backward = fn

    def second(dO, *rest):
        backward(dO, *rest)
        return backward(dO, *rest)

    return forward, second


def _pair_elsewhere(fn):
    forward, backward = fn
    return forward, lambda *inputs: elsewhere(lambda: backward(*inputs))


def elsewhere(f):
    """f(), run in another thread; here, where there are none."""
    kind, result = within(threading.TIMEOUT_MAX, f)
    if kind == "raised":
        raise result
    return result


# --- under autograd -----------------------------------------------------------------------------------------------


def _of(outputs):
    """O, of what a function returned."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


def _autograd_between(fn):
    def first(Q, K, V, **options):
        outputs = fn(Q, K, V, **options)
        fn(-Q, K, -V, **options)
        return outputs

    return first


def _pulled(fn, how):
    """fn with its graph inside, whose gradients are ``how(pull, dO)``; ``pull`` asks the graph, which stays."""
    import torch

    class Pulled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, options, *inputs):
            leaves = [T.detach().requires_grad_() for T in inputs]
            with torch.enable_grad():
                O = _of(fn(*leaves, **options))
            ctx.pull = lambda dO: torch.autograd.grad(O, leaves, dO, retain_graph=True, allow_unused=True)
            return O.detach().clone()

        @staticmethod
        def backward(ctx, dO):
            return None, *how(ctx.pull, dO)

    return lambda Q, K, V, **options: Pulled.apply(options, Q, K, V)


def _autograd_twice(fn):
    def twice(pull, dO):
        pull(dO)
        return pull(dO)

    return _pulled(fn, twice)


def _autograd_elsewhere(fn):
    return _pulled(fn, lambda pull, dO: elsewhere(lambda: pull(dO)))


def _without_graph(fn):
    """O as it is under no_grad, with the gradient that it has otherwise."""
    import torch

    def quiet(Q, K, V, **options):
        with torch.no_grad():
            silent = _of(fn(Q.detach(), K.detach(), V.detach(), **options))
        O = _of(fn(Q, K, V, **options))
        return O + (silent - O).detach()

    return quiet


OF_FORM = {
    "vjp": {},
    "pair": {"state": _pair_between, "twice": _pair_twice, "thread": _pair_elsewhere},
    "autograd": {
        "state": _autograd_between,
        "twice": _autograd_twice,
        "thread": _autograd_elsewhere,
        "no_grad": _without_graph,
    },
}
"""For each form what shows each kind of finding."""


# --- any form -----------------------------------------------------------------------------------------------------


def after(call, prepare):
    """The function of ``call``, each part of which runs right after ``prepare()``."""

    def prepared(f):
        def run(*inputs, **options):
            prepare()
            return f(*inputs, **options)

        return run

    return tuple(map(prepared, call.fn)) if call.form == "pair" else prepared(call.fn)


@contextmanager
def beside(call):
    """The function of ``call``, beside which two other threads call it on other numbers until the block ends; they
    begin at different times, so that not all write in step.
    """
    over, others = threading.Event(), []
    forward = call.fn[0] if call.form == "pair" else call.fn

    def go_on(delay, Q, K, V, *dO, **options):
        over.wait(delay)
        while not over.is_set():
            try:
                with np.errstate(all="ignore"):
                    both = forward(-Q, K, -V, *dO, **options)
                    if call.form == "pair":
                        call.fn[1](-both[0], both[1])
            except BaseException:  # the same call alone did not raise; what counts is what comes of it here
                return

    def run(*inputs, **options):
        for delay in (0.0, 0.001):
            copies = [T.detach().clone() if hasattr(T, "detach") else T.copy() for T in inputs]
            thread = threading.Thread(target=go_on, args=(delay, *copies), kwargs=options, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # where there are no threads, as in a browser
                break
            others.append(thread)
        return forward(*inputs, **options)

    try:
        yield (run, call.fn[1]) if call.form == "pair" else run
    finally:
        over.set()
        for thread in others:
            thread.join(1)


def watching_views(call, views):
    """The function of ``call``, that writes into ``views`` which results lie in the memory of which inputs."""

    def look(results, names, inputs):
        for name, result in zip(names, results, strict=False):
            for given, T in inputs.items():
                if _overlap(result, T):
                    views[name, given] = True

    def forward(Q, K, V, *dO, **options):
        outputs = (call.fn[0] if call.form == "pair" else call.fn)(Q, K, V, *dO, **options)
        results = outputs if isinstance(outputs, tuple | list) else (outputs,)
        names = ("O", "dQ", "dK", "dV") if call.form == "vjp" else ("O",)
        look(results, names, dict(zip(("Q", "K", "V", "dO"), (Q, K, V, *dO), strict=False)))
        return outputs

    def backward(dO, *rest):
        grads = call.fn[1](dO, *rest)
        if isinstance(grads, tuple | list):
            look(grads, ("dQ", "dK", "dV"), {"dO": dO})
        return grads

    return (forward, backward) if call.form == "pair" else forward


def _overlap(A, B):
    """Whether two arrays lie in the same memory."""
    if isinstance(A, np.ndarray) and isinstance(B, np.ndarray):
        return np.may_share_memory(A, B)
    if hasattr(A, "untyped_storage") and hasattr(B, "untyped_storage"):
        return A.numel() > 0 and A.untyped_storage().data_ptr() == B.untyped_storage().data_ptr()
    return False
