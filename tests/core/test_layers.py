"""Layers of particular models: each against its definition in torch, by differences, and by what must hold."""

from functools import partial

import numpy as np
import pytest
import torch
from compare import draw, same_everywhere
from naive import naive_norm, naive_rotary

import attnbook as ab
from attnbook import checks, layers
from attnbook.arrays import array_namespace
from attnbook.ops import Bias


def agrees(f, naive, at, cotangent, grads):
    """Values and gradients of f are those of another implementation, and of differences and autograd of f itself."""
    assert checks.close(f(*at)[0], naive(*map(torch.tensor, at)))
    tensors = [torch.tensor(T, requires_grad=True) for T in at]
    others = torch.autograd.grad(naive(*tensors), tensors, torch.tensor(cotangent))
    for ours, other in zip(grads, others, strict=True):
        assert checks.close(ours, other)
    checks.check_vjp(f, tuple(grads), at=at, cotangent=cotangent)


def table(n, causal, mask=None):
    """What a square table allows, in torch."""
    allowed = torch.ones(n, n, dtype=torch.bool) if mask is None else torch.tensor(mask)
    return allowed.tril() if causal else allowed


# --- latent attention ---------------------------------------------------------------------------------------------

H, N, D_MODEL, D_Q, D_C, D_N, D_R, D_V, D_OUT = 3, 5, 17, 11, 7, 6, 4, 13, 19
SHAPES = {
    "W_DQ": (D_MODEL, D_Q), "W_UQ": (D_Q, H * D_N), "W_QR": (D_Q, H * D_R), "W_DKV": (D_MODEL, D_C),
    "W_UK": (D_C, H * D_N), "W_UV": (D_C, H * D_V), "W_KR": (D_MODEL, D_R), "W_O": (H * D_V, D_OUT),
    "g_Q": (D_Q,), "g_KV": (D_C,),
}  # fmt: skip
LATENT = {
    "all": {},
    "no norm, half, scale": {"leave": ("g_Q", "g_KV"), "rotary": ab.Rotary(layout="half", base=100.0), "scale": 0.3},
    "queries from X, no batch, causal": {"leave": ("W_DQ", "g_Q"), "lead": (), "causal": True},
    "bias and op, tiled": {"extras": ((H, 1, N), (N, N)), "causal": True, "method": "tiled"},
}
each_form = pytest.mark.parametrize("absorbed", [False, True], ids=["plain", "absorbed"])


def latent_case(leave=(), lead=(2,), extras=(), rotary=None, absorbed=False, **options):
    """The call as a function of arrays, the same in torch, its backward, and the arrays."""
    shapes = {name: ((D_MODEL, s[1]) if "W_DQ" in leave and name in ("W_UQ", "W_QR") else s)
              for name, s in SHAPES.items() if name not in leave}  # fmt: skip
    at = [T / (1 if T.ndim < 2 else T.shape[-2] ** 0.5) for T in draw((*lead, N, D_MODEL), *shapes.values(), *extras)]

    def params(W):
        return layers.LatentParams(**({"W_DQ": None} | dict(zip(shapes, W, strict=False))))

    def f(X, *rest):
        bias, B = rest[len(shapes) :] or (None, None)
        with_ops = {"bias": bias, "ops": [] if B is None else [Bias(B)]}
        call = {"num_heads": H, "rotary": rotary, "absorbed": absorbed, "eps": 0.01, **with_ops, **options}
        return layers.latent_attention(X, params(rest), **call)

    def pull(dY, res):
        g = layers.latent_attention_vjp(dY, res)
        assert isinstance(g, layers.LatentGrads)
        return [T for T in (g.dX, *g.dparams, g.dbias, *g.dops) if T is not None]

    def naive(X, *rest):
        p, (bias, B) = params(rest), rest[len(shapes) :] or (0.0, 0.0)
        c_Q = X if p.W_DQ is None else X @ p.W_DQ
        c = X @ p.W_DKV
        c_Q, c = (T if g is None else naive_norm(T, g, "rms", 0.01) for T, g in ((c_Q, p.g_Q), (c, p.g_KV)))
        r = rotary or ab.Rotary()
        turn = partial(naive_rotary, positions=None, dims=None, base=r.base, layout=r.layout, scaling=None)
        K_R, O = turn(X @ p.W_KR), []
        for i in range(H):
            Q, Q_R, K, V = (W[:, i * d : (i + 1) * d] for W, d in
                            ((p.W_UQ, D_N), (p.W_QR, D_R), (p.W_UK, D_N), (p.W_UV, D_V)))  # fmt: skip
            S = (c_Q @ Q) @ (c @ K).mT + turn(c_Q @ Q_R) @ K_R.mT
            S = S * options.get("scale", (D_N + D_R) ** -0.5) + (bias if bias is rest or not extras else bias[i]) + B
            S = S.masked_fill(~table(N, options.get("causal")), -torch.inf)
            O.append(torch.softmax(S, -1) @ (c @ V))
        return torch.cat(O, -1) @ p.W_O

    return f, naive, pull, at


@each_form
@pytest.mark.parametrize("case", LATENT.values(), ids=LATENT)
def test_latent_attention(case, absorbed):
    f, naive, pull, at = latent_case(**case, absorbed=absorbed)
    Y, res = f(*at)
    (dY,) = draw(Y.shape, seed=1)
    agrees(f, naive, at, dY, pull(dY, res))


@each_form
def test_latent_attention_in_every_library(xp, absorbed):
    f, _, pull, at = latent_case(absorbed=absorbed)
    (dY,) = draw((2, N, D_OUT))
    same_everywhere(xp, lambda dY, *at: (f(*at)[0], pull(dY, f(*at)[1])), dY, *at)


# --- differential attention ---------------------------------------------------------------------------------------

DIFFERENTIAL = {
    "a head": ((3,), {}),
    "one number": ((), {"causal": True}),
    "each batch": ((2, 1), {"scale": 0.7, "method": "tiled"}),
    "bias and op": ((3,), {"bias": (3, 5, 7), "ops": (5, 1)}),
}


def differential_case(of_lam, options):
    shapes = [(2, 3, 5, 22), (2, 3, 7, 22), (2, 3, 7, 13), of_lam]
    given = [name for name in ("bias", "ops") if name in options]
    at = [np.asarray(T) for T in draw(*shapes, *(options[name] for name in given))]

    def f(Q, K, V, lam, *rest):
        extras = {name: T if name == "bias" else [Bias(T)] for name, T in zip(given, rest, strict=True)}
        return layers.differential_attention(Q, K, V, lam, **(options | extras))

    def naive(Q, K, V, lam, *extras):
        halves = ((T[..., :11], T[..., 11:]) for T in (Q, K))
        allowed = torch.ones(5, 7, dtype=torch.bool).tril() if options.get("causal") else torch.ones(5, 7).bool()
        S = (q @ k.mT * options.get("scale", 11**-0.5) + sum(extras) for q, k in zip(*halves, strict=True))
        P, other = (torch.softmax(S.masked_fill(~allowed, -torch.inf), -1) for S in S)
        return (P - lam[..., None, None] * other) @ V

    return f, naive, at


@pytest.mark.parametrize(("of_lam", "options"), DIFFERENTIAL.values(), ids=DIFFERENTIAL)
def test_differential_attention(of_lam, options):
    f, naive, at = differential_case(of_lam, options)
    O, res = f(*at)
    (dO,) = draw(O.shape, seed=1)
    g = layers.differential_attention_vjp(dO, res)
    assert isinstance(g, layers.DifferentialGrads)
    grads = [T for T in (*g[:5], *g.dops) if T is not None]
    agrees(f, naive, at, dO, grads)
    tangents = [np.asarray(T) for T in draw(*(T.shape for T in at[:4]), seed=2)]
    tO = layers.differential_attention_jvp(*tangents, res)

    def still(*moved):
        return f(*moved, *map(array_namespace(moved[0]).asarray, at[4:]))

    checks.check_jvp(still, tO, at=at[:4], tangents=tangents)
    checks.check_adjoint(dO, tO, grads[:4], tangents)


def test_differential_attention_in_every_library(xp):
    f, _, at = differential_case((3,), {})
    (dO, *tangents) = draw((2, 3, 5, 13), *(T.shape for T in at))
    same_everywhere(xp, lambda dO, *at: (f(*at)[0], layers.differential_attention_vjp(dO, f(*at)[1])[:4]), dO, *at)
    same_everywhere(xp, lambda *all: layers.differential_attention_jvp(*all[4:], f(*all[:4])[1]), *at, *tangents)


def test_differential_lambda():
    at = [T / 3 for T in draw((3, 5), (3, 5), (3, 5), (3, 5))]
    (dlam,) = draw((3,), seed=1)
    f = partial(layers.differential_lambda, init=0.8)
    agrees(lambda *at: (f(*at),), lambda a, b, c, d: (a * b).sum(-1).exp() - (c * d).sum(-1).exp() + 0.8, at, dlam,
           layers.differential_lambda_vjp(dlam, *at))  # fmt: skip


# --- talking heads ------------------------------------------------------------------------------------------------

TALKING = {
    "plain": {},
    "causal": {"causal": "bottom-right"},
    "mask with a dead row": {"mask": np.random.default_rng(4).random((4, 5, 7)) < 0.6, "scale": 0.4},
}
TALKING["mask with a dead row"]["mask"][2, 1] = False


def talking_case(options):
    at = draw((2, 3, 5, 11), (2, 3, 7, 11), (2, 2, 7, 13), (3, 4), (4, 2))

    def f(Q, *rest):
        mask = options.get("mask")
        beside = {} if mask is None else {"mask": array_namespace(Q).asarray(mask)}
        return layers.talking_heads(Q, *rest, **(options | beside))

    def naive(Q, K, V, W_S, W_P):
        allowed = torch.tensor(options.get("mask", np.ones((4, 5, 7), bool)))
        allowed = allowed.tril(2) if options.get("causal") else allowed
        S = torch.einsum("zaqk,ab->zbqk", Q @ K.mT * options.get("scale", 11**-0.5), W_S)
        P = torch.softmax(S.masked_fill(~allowed, -torch.inf), -1).masked_fill(~allowed, 0.0)
        return torch.einsum("zbqk,bc->zcqk", P, W_P) @ V

    return f, naive, at


@pytest.mark.parametrize("options", TALKING.values(), ids=TALKING)
def test_talking_heads(options):
    f, naive, at = talking_case(options)
    O, res = f(*at)
    (dO,) = draw(O.shape, seed=1)
    grads = layers.talking_heads_vjp(dO, res)
    assert isinstance(grads, layers.TalkingGrads)
    agrees(f, naive, at, dO, grads)
    tangents = draw(*(T.shape for T in at), seed=2)
    tO = layers.talking_heads_jvp(*tangents, res)
    checks.check_jvp(f, tO, at=at, tangents=tangents)
    checks.check_adjoint(dO, tO, tuple(grads), tangents)


def test_talking_heads_in_every_library(xp):
    f, _, at = talking_case({})
    (dO, *tangents) = draw((2, 2, 5, 13), *(T.shape for T in at))
    same_everywhere(xp, lambda dO, *at: (f(*at)[0], layers.talking_heads_vjp(dO, f(*at)[1])), dO, *at)
    same_everywhere(xp, lambda *all: layers.talking_heads_jvp(*all[5:], f(*all[:5])[1]), *at, *tangents)
