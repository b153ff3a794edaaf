"""Cases for the fused spine, and what must hold there. Nothing here is a test: two files of tests share it."""

from functools import partial

import kernels
import numpy as np
import test_extremes as extremes
import torch
from cases import CASES, Case, Slopes
from compare import draw
from kernels import DEVICE
from naive import low_precision, naive_scores

import attnbook as ab
from attnbook.ops import ALiBi, Bias, Softcap, Window
from attnbook.plan import resolve
from attnbook.spines.fused.capability import kernel_of

FLOAT32 = torch.float32


def fits(case):
    """Whether the kernels can do what it asks for, as its ops declare."""
    Q, K, V, *rest = case.draw()
    plan = resolve({"Q": Q, "K": K, "V": V}, case.scores, (Q.shape[-1], V.shape[-1]), **case.options(Q, *rest))
    return kernel_of(plan) is not None


LONG = partial(Case, q=(2, 37, 11), k=(2, 53, 11), v=(2, 53, 19))
SHORT = {"q": (2, 53, 11), "k": (2, 37, 11), "v": (2, 37, 19)}
BATCH = {"q": (2, 2, 21, 11), "k": (2, 2, 37, 11), "v": (2, 2, 37, 19)}
GROUPED = {"q": (2, 2, 21, 11), "k": (2, 1, 37, 11), "v": (2, 1, 37, 19)}
ON_TILES = (
    LONG("ragged"),
    Case("nothing ragged", q=(2, 32, 16), k=(2, 64, 16), v=(2, 64, 32)),
    LONG("causal", causal=True),
    LONG("causal, more queries", causal=True, **SHORT),
    LONG("bottom-right", causal="bottom-right"),
    LONG("bottom-right, more queries", causal="bottom-right", **SHORT),
    Case("causal, nothing ragged", q=(1, 64, 16), k=(1, 64, 16), v=(1, 64, 16), causal=True),
    LONG("window", ops=((partial(Window, 9, 3, "top-left"), None),)),
    LONG("window, bottom-right", ops=((partial(Window, 20, 0, "bottom-right"), None),)),
    LONG("window beyond the keys", ops=((partial(Window, 1, 2, "top-left"), None),), **SHORT),
    LONG("window from the left", ops=((partial(Window, 16, None, "top-left"), None),), **SHORT),
    LONG("grouped", **GROUPED),
    LONG("grouped, causal, grouped apart", causal=True, q=(4, 21, 11), k=(2, 37, 11), v=(1, 37, 19)),
    LONG("mask", mask=(1, 37, 53), dead=True),
    LONG("padding", mask=(2, 1, 1, 37), **BATCH),
    LONG("bias", bias=(2, 37, 53), causal=True),
    LONG("bias for all the heads", bias=(2, 1, 21, 37), **BATCH),
    LONG("bias for the batch", bias=(2, 21, 37), ops=((partial(Window, 9, 3, "top-left"), None),), **BATCH),
    LONG("bias for all", bias=(37, 53), forbid=0.3, dead=True),
    LONG("bias for the queries", bias=(2, 1, 53)),
    LONG("bias for some of the batch", q=(2, 3, 2, 5, 11), k=(2, 7, 11), v=(2, 7, 13), bias=(2, 1, 1, 5, 7)),
    Slopes("ALiBi", q=(8, 37, 11), k=(8, 53, 11), v=(8, 53, 19), causal=True,
           ops=((partial(ALiBi, corner="bottom-right"), (8,)),)),
    Slopes("ALiBi, both ways", q=(8, 37, 11), k=(8, 53, 11), v=(8, 53, 19),
           ops=((partial(ALiBi, corner="bottom-right"), (8, 1, 1)),)),
    Slopes("ALiBi, more queries", q=(8, 53, 11), k=(4, 37, 11), v=(4, 37, 19),
           ops=((partial(ALiBi, corner="top-left"), (8,)),)),
    Slopes("ALiBi for the batch", q=(8, 2, 21, 11), k=(8, 1, 37, 11), v=(8, 1, 37, 19), ops=(
        (partial(Softcap, 1.5), None), (partial(ALiBi, corner="top-left"), (8, 1)),
        (partial(Window, 9, 3, "top-left"), None))),
    LONG("softcap", ops=((partial(Softcap, 1.5), None),)),
    Case("all together", q=(4, 21, 11), k=(2, 37, 11), v=(2, 37, 19), mask=(21, 37), bias=(4, 21, 37), dead=True,
         scale=-0.7, causal="bottom-right", ops=((partial(Softcap, 1.5), None), (partial(Window, 20, None), None))),
)  # fmt: skip
OF = {case.name: case for case in (*CASES, *ON_TILES)}


def exact(case, dtype=FLOAT32, **options):
    low_precision(case, dtype, on=DEVICE, method="fused", **options)


def attend(case, dtype=FLOAT32, seed=0):
    """O, the residuals, and a cotangent, of the fused spine; and the inputs."""
    inputs = [torch.tensor(T, dtype=dtype, device=DEVICE) for T in case.draw(seed)]
    O, res = ab.attention(*inputs[:3], method="fused", **case.options(inputs[0], *inputs[3:]))
    return O, res, torch.tensor(draw(tuple(O.shape))[0], dtype=dtype, device=DEVICE), inputs


def large_scores(case, dtype=FLOAT32):
    exact(case, dtype, size=1000.0)


def large_scores_in_any_order(case):
    """The backward finds M again, to the bit, although a product lying down is not what it is upright."""
    with kernels.upright_and_lying_products_differ():
        large_scores(case)


def L_is_the_logsumexp(case):
    O, res, _, inputs = attend(case)
    S = naive_scores(case, *(T.cpu().double() for T in inputs))
    wanted = torch.logsumexp(S, dim=-1) if S.shape[-1] else torch.full(S.shape[:-1], -torch.inf).double()
    assert torch.allclose(res.L.cpu().double(), wanted, rtol=1e-6, atol=1e-6)
    assert torch.all(O[-torch.inf == res.L] == 0)


def L_has_a_gradient(case):
    """Beside O; what arrives at L in a dead row, here NaN, is nothing."""
    _, res, dO, inputs = attend(case)
    wide = [T.double() for T in inputs]
    _, exact = ab.attention(*wide[:3], method="dense", **case.options(wide[0], *wide[3:]))
    dL = torch.tensor(draw(tuple(res.L.shape), seed=1)[0], device=DEVICE).masked_fill(-torch.inf == res.L, torch.nan)
    found, wanted = ab.attention_vjp(dO, res, dL.float()), ab.attention_vjp(dO.double(), exact, dL)
    for T, right in zip(found[:4], wanted[:4], strict=True):
        assert T is right or torch.allclose(T.double(), right, rtol=1e-4, atol=1e-5)


def bias_at_the_ends(name, dtype, of_bias=None):
    """A bias of the lowest or the highest number of its dtype: no NaN, and what a textbook's lines in float64 give."""
    of_bias = of_bias or dtype
    numpy = [getattr(np, str(T).removeprefix("torch.")) for T in (dtype, of_bias)]
    *given, B = *extremes.inputs(numpy[0]), extremes.bias_of(name, numpy[1])
    Q, K, V, dO, bias = (torch.tensor(T, device=DEVICE) for T in (*given, B))
    how = {"bias": bias} if of_bias == dtype else {"ops": [Bias(bias, fixed=True)]}
    with np.errstate(over="ignore"):  # of the interpreter: a score minus the highest may be −∞
        O, res = ab.attention(Q, K, V, method="fused", **how)
        *grads, dbias, _ = ab.attention_vjp(dO, res)
    wanted = extremes.reference(*given, B)
    found = [T.cpu() for T in (O, res.L, *grads)]
    extremes.agree([*found, wanted[-1] if dbias is None else dbias.cpu()], wanted, numpy[0])


def layout_changes_nothing(case):
    inputs = [torch.tensor(T, dtype=FLOAT32, device=DEVICE) for T in case.draw()]
    turned = [T.transpose(-3, -2).contiguous().transpose(-3, -2) for T in inputs]
    wide = [torch.stack([T, T], -1).flatten(-2)[..., ::2] for T in inputs]
    found = []
    for Q, K, V, *bias in (inputs, turned, wide):
        O, res = ab.attention(Q, K, V, method="fused", **case.options(Q, *bias))
        found.append((O, *case.pull(torch.ones_like(O[..., :1]).expand(O.shape), res)))
    assert all(map(torch.equal, found[0], found[1]))
    assert all(map(torch.equal, found[0], found[2]))
