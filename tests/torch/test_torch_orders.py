"""Derivatives of attnbook.torch of every order up to 4, in every order of modes, against torch's own plain lines.

A word tells the modes, innermost first: in RF, forward mode goes over reverse mode. The tests of torch's other doors
compare as these do.
"""

import itertools
from dataclasses import dataclass

import compare
import pytest
import torch
from cases import CASES
from planting import by_turns
from test_own_op import Temperature
from torch import func
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves

from attnbook.checks import close
from attnbook.ops import ALiBi, Bias, Dropout, LogitScale, Op, RelativeBias, Scale, Sink, Softcap, T5Buckets
from attnbook.torch import attention

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")

WORDS = ["".join(word) for n in (1, 2, 3, 4) for word in itertools.product("RF", repeat=n)]


def draw(*shapes, seed=0, device="cpu"):
    return [torch.tensor(T, device=device) for T in compare.draw(*shapes, seed=seed)]


def agree(came, wanted):
    """Two trees of tensors: shapes, dtypes and values."""
    for T, right in zip(tree_leaves(came), tree_leaves(wanted), strict=True):
        assert (T.shape, T.dtype) == (right.shape, right.dtype)
        if right.dtype == torch.float32:  # a float32 mask in float64: rounded once, at the end
            assert torch.allclose(T, right, rtol=1e-6, atol=1e-6)
        else:
            assert close(T.detach().cpu(), right.detach().cpu())


def reverse(f, inputs, tangents):
    """⟨Jᵀ c, tangents⟩ as a function of the inputs, with a cotangent c that does not depend on them. The pullback is
    called when the transform that made it has ended, as jacrev calls it."""

    def g(*inputs):
        y, pull = func.vjp(f, *inputs)
        cotangent = torch.cos(torch.arange(y.numel(), dtype=y.dtype)).reshape(y.shape)
        return sum((dT * t).sum() for dT, t in zip(pull(cotangent), tangents, strict=True))

    return g


def forward(f, inputs, tangents):
    return lambda *inputs: func.jvp(f, inputs, tangents)[1]


def nested(word, f, inputs):
    """The derivative of ``f`` that the word names, along other directions at each step."""
    for seed, mode in enumerate(word):
        tangents = tuple(draw(*(tuple(T.shape) for T in inputs), seed=100 + seed))
        f = {"R": reverse, "F": forward}[mode](f, inputs, tangents)
    return f


MASK = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 1]], dtype=torch.bool)  # the second row is dead


def plain(Q, K, V, B=0.0, t=None, mask=None, cap=None, sigma=None):
    """O and L, by the definition."""
    S = Q @ K.mT / Q.shape[-1] ** 0.5
    S = S if cap is None else cap * torch.tanh(S / cap)
    S = S if t is None else S * t[..., None, None]
    S = S + B
    S = S if mask is None else S.masked_fill(~mask, -torch.inf)
    if sigma is not None:
        S = torch.cat([S, sigma[:, None, None].expand(*S.shape[:-1], 1)], dim=-1)
        return torch.softmax(S, dim=-1)[..., :-1] @ V, torch.logsumexp(S, dim=-1)
    dead = torch.zeros(S.shape[:-1], dtype=torch.bool) if mask is None else ~mask.any(-1)
    S = S.masked_fill(dead[..., None], 0.0)
    P = torch.softmax(S, dim=-1).masked_fill(dead[..., None], 0.0)
    return P @ V, torch.logsumexp(S, dim=-1).masked_fill(dead, 0.0)


def ours(Q, K, V, B=None, t=None, mask=None, cap=None, sigma=None, **options):
    ops = [Softcap(cap)] if cap else []
    ops += [Temperature(t)] if t is not None else []
    ops += [Sink(sigma)] if sigma is not None else []
    O, L = attention(Q, K, V, bias=B, mask=mask, ops=ops, with_L=True, **options)
    return O, L.masked_fill(-torch.inf == L, 0.0)


QKV = (2, 3, 2), (2, 4, 2), (2, 4, 3)
FUNCTIONS = {
    "Q alone": (lambda f: lambda Q: f(Q, *draw(*QKV[1:], seed=5))[0], QKV[:1]),
    "without a batch": (lambda f: lambda *x: f(*x)[0], (*(shape[1:] for shape in QKV), (3, 4))),
    "O of Q, K, V, bias": (lambda f: lambda *x: f(*x)[0], (*QKV, (3, 4))),
    "O and L of all, an op's array among it, behind a mask": (
        lambda f: lambda *x: torch.cat([o.flatten() for o in f(*x, mask=MASK, cap=2.0)]), (*QKV, (2, 1, 4), (2,))),
    "O and L of all, a sink among it, behind a mask": (
        lambda f: lambda *x: torch.cat([o.flatten() for o in f(*x[:3], mask=MASK, sigma=x[3])]), (*QKV, (2,))),
}  # fmt: skip


def agrees(word, function, wrap=lambda f: f):
    """Our derivative and torch's; ``wrap`` takes ours before it is called."""
    of, shapes = FUNCTIONS[function]
    inputs = draw(*shapes)
    came, wanted = wrap(nested(word, of(ours), inputs))(*inputs), nested(word, of(plain), inputs)(*inputs)
    agree(came, wanted)
    assert wanted.abs().max() > 1e-6


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_case(case):
    """Of O and of L together, on torch's graph, as on NumPy without one."""
    numpy = case.draw()
    O, res = compare.quietly(case.attend, *numpy)
    dO, dL = compare.draw(O.shape, res.L.shape, seed=1)
    inputs = [torch.tensor(T, requires_grad=True) for T in numpy]
    outputs = attention(*inputs[:3], **case.options(inputs[0], *inputs[3:]), with_L=True)
    came = torch.autograd.grad(outputs, inputs, [torch.tensor(dO), torch.tensor(dL)])
    wanted = compare.quietly(case.pull, dO, res, dL)
    for T, right in zip((*outputs, *came), (O, res.L, *wanted), strict=True):
        assert close(compare.finite(T.detach()), compare.finite(right))


FEW = [w for w in WORDS if len(w) < 4 or w in ("RRRR", "FFFF", "RFRF", "FRFR")]
MANY = [pytest.param(of, w, marks=pytest.mark.thorough) for w in WORDS if w not in FEW for of in FUNCTIONS]


@pytest.mark.parametrize(("function", "word"), by_turns(FUNCTIONS, FEW, ("R", "F")) + MANY)
def test_every_order(word, function):
    agrees(word, function)


def outermost_reverse(f, inputs):
    inputs = [T.clone().requires_grad_() for T in inputs]
    return torch.autograd.grad(f(*inputs).sin().sum(), inputs)


def outermost_forward(f, inputs):
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(T, T.cos()) for T in inputs]
        return [forward_ad.unpack_dual(f(*duals)).tangent]


@pytest.mark.parametrize(
    ("outermost", "word"),
    [(outermost_reverse, word) for word in ("", "R", "F", "RF", "FR", "FRF")]
    + [(outermost_forward, word) for word in ("", "R", "RR")],  # torch opens no level of forward mode inside of one
)
def test_torch_func_inside_of_torch_autograd(outermost, word):
    """A graph or a dual level outside, transforms inside."""
    of, shapes = FUNCTIONS["O of Q, K, V, bias"]
    inputs = draw(*shapes)
    agree(*(outermost(nested(word, of(f), inputs), inputs) for f in (ours, plain)))


def test_ops_that_learn_are_differentiated_twice():
    """In both modes, by differences: arrays of ops, dropout, and what takes the place of the spines where it must."""
    inputs = [T.requires_grad_() for T in draw(*QKV, (), (2, 1, 1), (2,), (2, 3), (4,), (2, 1, 4), (2,))]

    def f(Q, K, V, c, t, slopes, table, shared, B, temperature):
        ops = [Scale(c), LogitScale(t), ALiBi(slopes), RelativeBias(table), RelativeBias(shared, T5Buckets(4, 2))]
        ops += [Softcap(2.0), Temperature(temperature), Bias(B), Dropout(0.4, seed=3)]
        return attention(Q, K, V, ops=ops, with_L=True, causal=True)

    assert torch.autograd.gradcheck(f, inputs, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(f, inputs, check_fwd_over_rev=True, fast_mode=True)


@dataclass(frozen=True, eq=False)
class Tilt(Op):
    """S + a with an array of floats that is not said to learn."""

    a: object
    arrays = ("a",)

    def forward(self, S, tile):
        return S + tile.cut(self.a), None

    def vjp(self, dS, saved, tile):
        return dS, None

    def jvp(self, tS, saved, tile, tparam=None):
        return tS


def test_an_array_that_does_not_learn_gets_its_gradient_too():
    Q, K, V, a = (T.requires_grad_() for T in draw(*QKV, (3, 4)))
    both = lambda a: attention(Q, K, V, ops=[Tilt(a)]), lambda a: plain(Q, K, V, a)[0]
    agree(*(torch.autograd.grad(f(a).sin().sum(), (Q, a)) for f in both))
    agree(*(func.jvp(f, (a,), (a.detach().cos(),)) for f in both))


@pytest.mark.parametrize(
    "ops",
    [
        lambda x: [Temperature(x)],
        lambda x: [ALiBi(x, "top-left"), LogitScale(x[:1]), LogitScale(x[:, None, None]), Scale(x[0])],
        lambda x: [RelativeBias(torch.outer(x, x.new_tensor([1.0, 2.0, 3.0])), corner="top-left")],
    ],
)
def test_vmap_over_arrays_of_ops(ops):
    Q, K, V, x = draw((5, *QKV[0]), QKV[1], QKV[2], (5, 2))
    f = lambda Q, x: func.grad(lambda Q, x: attention(Q, K, V, ops=ops(x)).sin().sum(), (0, 1))(Q, x)  # noqa: E731
    came = func.vmap(f)(Q, x)
    for i in range(5):
        agree([T[i] for T in came], f(Q[i], x[i]))


def test_a_seed_that_is_a_number_drops_the_same_in_every_call_of_vmap():
    Q, K, V = draw((5, *QKV[0]), *QKV[1:])
    f = lambda Q: attention(Q, K, V, ops=[Dropout(0.4, seed=3)])  # noqa: E731
    agree(func.vmap(f)(Q), torch.stack([f(q) for q in Q]))
