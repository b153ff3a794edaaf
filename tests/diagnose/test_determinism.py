"""What one call cannot show: each kind of misconduct is planted, seen, and named; and right functions show none."""

import itertools
import sys
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from attentions.of_symptoms import detached as by_torch
from attentions.right import OURS, Eager
from attentions.right import by_steps as right
from attentions.wrong import kernel
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import attnbook as ab
from attnbook.diagnose.cases.battery import battery
from attnbook.diagnose.cases.determinism import SAYS, check_determinism
from attnbook.diagnose.cases.run import Run
from attnbook.diagnose.learn.caller import Caller
from attnbook.diagnose.steps import Steps

NAMES = ("batch and heads", "plain", "one key", "mask", "bias", "causal, more keys", "63 queries, 65 keys", "dropout")


def shown(fn, library="numpy", names=NAMES):
    """({kind: what the finding is about and says}, notes) of how fn conducts itself in a few cases."""
    call = Caller(fn, library, 5)
    cases = [case for case in battery(convention=call.convention) if case.name in names]
    found, notes = check_determinism(call, [Run(case, call(case)) for case in cases])
    return {each.kind: each for each in found}, notes


def forward(Q, K, V, **options):
    return Steps(Q, K, V, np.zeros((*Q.shape[:-1], V.shape[-1])), **options).O, (Q, K, V, options)


def backward(dO, res):
    Q, K, V, options = res
    return Steps(Q, K, V, dO, **options).run()[1:]


# --- what is right ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "library"),
    [
        (right, "numpy"), (kernel, "numpy"), ((forward, backward), "numpy"), (OURS, "numpy"), (OURS, "torch"),
        (by_torch, "torch"), (Eager(), "torch"), (scaled_dot_product_attention, "torch"),
    ],
)  # fmt: skip
def test_right_functions_conduct_themselves(fn, library):
    assert shown(fn, library) == ({}, [])


def settings():
    kernels = [getattr(torch.backends.cuda, f"{kind}_sdp_enabled")() for kind in ("flash", "mem_efficient", "math")]
    return (
        kernels,
        torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory, sys.getswitchinterval(), list(warnings.filters),
        torch.get_default_dtype(), torch.is_grad_enabled(), np.geterr(),
    )  # fmt: skip


def test_nothing_of_the_process_stays_changed(capsys):
    """Two threads that set torch's kernels, each to bring back what it found, leave what the other one set."""

    def in_one_kernel(Q, K, V):
        with sdpa_kernel(SDPBackend.MATH):
            time.sleep(0.001)
            return scaled_dot_product_attention(Q, K, V)

    before = settings()
    ab.diagnose(by_torch)
    shown(right)
    shown(in_one_kernel, "torch")
    assert settings() == before
    assert capsys.readouterr() == ("", "")


# --- each kind, planted -------------------------------------------------------------------------------------------


def off_by(share, every):
    """dQ is, in one of so many calls."""
    count = itertools.count(1)

    def fn(Q, K, V, dO, **options):
        O, dQ, dK, dV = right(Q, K, V, dO, **options)
        return O, dQ * (1 + share * (next(count) % every == 0)), dK, dV

    return fn


class Unwritten(torch.autograd.Function):
    """Its dQ has rows that nobody wrote: here NaN where memory is filled, and else by no chance."""

    @staticmethod
    def forward(ctx, Q, K, V):
        ctx.save_for_backward(Q, K, V)
        return by_torch(Q, K, V)

    @staticmethod
    def backward(ctx, dO):
        dQ, dK, dV = gradients(ctx.saved_tensors, dO)
        filled = torch.are_deterministic_algorithms_enabled()  # else it would hold what earlier tests left
        return torch.where(torch.isnan(torch.empty_like(dQ)) & filled, torch.nan, dQ), dK, dV


def gradients(inputs, dO):
    inputs = [T.detach().requires_grad_() for T in inputs]
    with torch.enable_grad():
        return torch.autograd.grad(by_torch(*inputs), inputs, dO)


def writes_over(dO, res):
    Q, K, V, options = res
    grads = backward(dO, (Q.copy(), K.copy(), V.copy(), options))
    K *= 0.5
    return grads


def of_a_copy(Q, K, V, **options):
    return forward(Q, K, V, **options)[0], (Q, K.copy(), V, options)


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, Q, K, V):
        ctx.kept = [Q, K, V]
        return by_torch(Q, K, V)

    @staticmethod
    def backward(ctx, dO):
        grads = gradients(ctx.kept, dO)
        ctx.kept[0] = 0 * ctx.kept[0]
        return grads


BOX, HERE, PLACE = {}, threading.local(), {}


def leaving(Q, K, V, **options):
    """K and V of another step: kept outside of the residuals, where the next forward writes."""
    BOX["last"] = Q, K, V, options
    return forward(Q, K, V, **options)[0], None


def keeping(Q, K, V, **options):
    HERE.keys = K
    return forward(Q, K, V, **options)


def in_another_thread(dO, res):
    Q, K, V, options = res
    return backward(dO, (Q, getattr(HERE, "keys", 0 * K), V, options))


def shared(Q, K, V, dO, **options):
    PLACE["Q"] = Q
    time.sleep(0.005)
    return right(PLACE["Q"], K, V, dO, **options)


def two_ways(Q, K, V):
    return by_torch(Q, K, V) * (1.0 if torch.is_grad_enabled() else 0.5)


def in_place(Q, K, V, dO):
    O, dQ, dK, dV = right(Q, K, V, dO)
    dO[...] = O
    return dO, dQ, dK, dV


def dropping(Q, K, V, dO, dropout=0.0):
    """Keeps what it should drop."""
    kept = np.random.default_rng().random((*Q.shape[:-1], K.shape[-2])) < dropout
    return Steps(Q, K, V, dO, dropout=dropout, kept=kept if dropout else None).run()


SHOWN = {
    # flash-attention PR#2481: D from a dO that is written half, now and then
    "a race": (off_by(0.1, every=3), "numpy", "unsteady", "(dQ, "),
    "rows never written": (Unwritten.apply, "torch", "memory", "(dQ)"),
    "residuals written over": ((of_a_copy, writes_over), "numpy", "twice", "the second backward differs"),
    "a graph walked once": (Once.apply, "torch", "twice", ""),
    "what the last call left": ((leaving, lambda dO, res: backward(dO, BOX["last"])), "numpy", "state",
                                "another call comes between"),
    "needs its thread": ((keeping, in_another_thread), "numpy", "thread", ""),
    "two in one place": (shared, "numpy", "at once", ""),
    "another O": (two_ways, "torch", "no_grad", ""),
    "the memory of dO": (in_place, "numpy", "view", "(O, dO)"),
    "dropout inverted": (dropping, "numpy", "dropout", "of the weights are kept"),
}  # fmt: skip
"""(function, library, the kind of misconduct, words)"""

ALSO = {"what the last call left": {"at once"}, "needs its thread": {"at once"},
        "the memory of dO": {"changed", "twice"}}  # fmt: skip
"""What else may show, by chance or as it follows."""


@pytest.mark.parametrize("name", SHOWN)
def test_each_kind_shows(name):
    fn, library, kind, words = SHOWN[name]
    found, _ = shown(fn, library)
    assert {kind} <= found.keys() <= {kind} | ALSO.get(name, set())
    assert words in found[kind].text
    assert found[kind].about == {"dropout": "O", "view": "O"}.get(kind, "the call")


class Refuses(Once):
    @staticmethod
    def backward(ctx, dO):
        if ctx.kept is None:
            raise RuntimeError("only once")
        grads = gradients(ctx.kept, dO)
        ctx.kept = None
        return grads


def needs_graph(Q, K, V):
    assert torch.is_grad_enabled(), "for training only"
    return by_torch(Q, K, V)


@pytest.mark.parametrize(
    ("fn", "library", "words"),
    [
        # flash-attention#2244: sums in another order
        (off_by(2.0**-51, every=2), "numpy", "dQ differ from call to call by roundings"),
        (Refuses.apply, "torch", "only once"),
        (needs_graph, "torch", "for training only"),
        ((keeping, lambda dO, res: backward(dO, (res[0], HERE.keys, *res[2:]))), "numpy",
         "in another thread the backward does not run"),
    ],
    ids=["bits", "once", "no_grad", "thread"],
)  # fmt: skip
def test_what_is_a_note_and_no_finding(fn, library, words):
    found, notes = shown(fn, library)
    assert not found.keys() - {"at once"}
    assert any(words in note for note in notes)


def test_rows_that_are_never_written(monkeypatch):
    """np.empty, where zeros are needed: what was freed there is often 0, and then all is right."""
    dirty = []
    module = sys.modules[check_determinism.__module__]
    leave = module._dirty
    monkeypatch.setattr(module, "_dirty", lambda sizes: dirty.append(leave(sizes)))

    def unwritten(Q, K, V, dO, causal=False):
        rows = np.empty_like(K) if dirty else np.zeros_like(K)  # by chance; it would hold what earlier tests left
        dirty.clear()
        O, dQ, dK, dV = right(Q, K, V, dO, causal=causal)
        last = Q.shape[-2] if causal else K.shape[-2]
        rows[..., :last, :] = dK[..., :last, :]
        return O, dQ, rows, dV

    found, _ = shown(unwritten)
    assert found.keys() == {"memory"}
    assert "(dK)" in found["memory"].text
    assert found["memory"].cases == ("causal, more keys",)


def test_a_gradient_that_is_absent_in_one_case():
    def severed(Q, K, V, *, bias=None):
        S = Q @ K.mT * Q.shape[-1] ** -0.5
        return (S if bias is None else S + bias.detach()).softmax(-1) @ V  # jax#27184

    found, _ = shown(severed, "torch")
    assert [(kind, each.about, each.cases) for kind, each in found.items()] == [("absent", "dbias", ("bias",))]


# --- in a report --------------------------------------------------------------------------------------------------


def test_a_report_says_it_in_plain_words():
    report = ab.diagnose((of_a_copy, writes_over))
    assert not report.ok
    assert report.mistakes == ()
    assert [(f.about, f.kind) for f in report.findings] == [("the call", "twice")]
    assert SAYS["twice"] in " ".join(str(report).split())
    assert set(SAYS) >= {f.kind for f in report.findings}


def test_what_takes_too_long_is_not_called_again():
    calls = []

    def slow(Q, K, V, dO):
        calls.append(time.sleep(0.5 if len(calls) > 30 else 0))
        return right(Q, K, V, dO)

    call = Caller(slow, "numpy", 0.2)
    runs = [Run(case, call(case)) for case in battery(convention=call.convention)[:3] * 20 if len(calls) < 33]
    before = len(calls)
    assert check_determinism(call, runs) == ([], [])
    assert len(calls) == before
