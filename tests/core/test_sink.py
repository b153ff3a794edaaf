"""The sink, beside the models that have one, and at its extremes. It also runs in the table of cases."""

import numpy as np
import pytest
import torch
from cases import CASE
from compare import draw, quietly
from naive import low_precision
from routes import SMALL
from test_attention import large

import attnbook as ab
from attnbook import checks
from attnbook.ops import Dropout, Sink, Window
from attnbook.spines import Way

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")
ENGINE = Way("numpy_tiled", SMALL)
METHODS = ("dense", "tiled", Way("tiled", SMALL), ENGINE, ENGINE._replace(tiles=SMALL._replace(bits=0.0)))
each_method = pytest.mark.parametrize("method", METHODS, ids=str)


def gpt_oss(Q, K, V, sinks, mask, kept=1.0):
    """As Hugging Face's eager GPT-OSS computes it, line by line."""
    groups = Q.shape[1] // K.shape[1]
    K, V = K.repeat_interleave(groups, dim=1), V.repeat_interleave(groups, dim=1)
    weights = Q @ K.transpose(2, 3) * Q.shape[-1] ** -0.5 + mask
    sinks = sinks.reshape(1, -1, 1, 1).expand(Q.shape[0], -1, Q.shape[-2], -1)
    combined = torch.cat([weights, sinks], dim=-1)
    combined = combined - combined.max(dim=-1, keepdim=True).values
    return torch.softmax(combined, dim=-1, dtype=combined.dtype)[..., :-1] * kept @ V


@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("sliding", [None, 2])
def test_gpt_oss(sliding, p):
    """Grouped heads, a causal mask, in every second layer a window too, and its dropout."""
    inputs = draw((2, 6, 5, 11), (2, 3, 5, 11), (2, 3, 5, 13), (6,))
    (dO,) = draw((2, 6, 5, 13), seed=1)
    tensors = [torch.tensor(T, requires_grad=True) for T in inputs]
    seen = np.tri(5, dtype=bool) & (np.ones((5, 5), bool) if sliding is None else ~np.tri(5, k=-sliding, dtype=bool))
    mask = torch.zeros(5, 5, dtype=torch.float64).masked_fill(~torch.tensor(seen), torch.finfo(torch.float64).min)
    drops = Dropout(p, 3)
    kept = drops.kept(tensors[0].detach(), ab.ops.Tile.whole(5, 5)).double() / (1 - p)
    O = gpt_oss(*tensors, mask, kept)
    wanted = [O, *torch.autograd.grad(O, tensors, torch.tensor(dO))]
    ops = [*([Window(sliding - 1, None)] if sliding else []), Sink(inputs[3]), *([drops] if p else [])]
    for method in METHODS:
        O, res = ab.attention(*inputs[:3], causal=True, ops=ops, method=method)
        g = ab.attention_vjp(dO, res)
        of_sink = next(dop for dop in g.dops if dop is not None)
        for T, right in zip((O, *g[:3], of_sink), wanted, strict=True):
            assert checks.close(T, right.detach())


@each_method
def test_at_the_ends(method):
    """A sink far above all scores takes all, one of −∞ nothing; L is right, and no number leaves its range."""
    Q, K, V, dO = (T.astype("float32") for T in draw((3, 5, 11), (3, 7, 11), (3, 7, 13), (3, 5, 13)))
    mask = np.ones((5, 7), bool)
    mask[1] = False
    options = {"mask": mask, "method": method}
    run = lambda sigma, **other: quietly(  # noqa: E731
        ab.attention, Q, K, V, ops=[Sink(np.float32(sigma))], **options, **other)  # fmt: skip
    for sigma in (60.0, 300.0, 1e30):
        O, res = run(sigma)
        g = quietly(ab.attention_vjp, dO, res, np.ones_like(res.L))
        assert np.allclose(res.L, sigma)
        assert np.abs(O).max() < 1e-20
        assert all(np.all(np.isfinite(T)) for T in (*g[:3], g.dops[0]))
        assert np.isclose(g.dops[0], 15.0)  # all of dL, of the dead rows too
    plain, of_plain = ab.attention(Q, K, V, **options)
    for sigma in (-np.inf, -1e30):
        O, res = run(sigma)
        g, wanted = quietly(ab.attention_vjp, dO, res), ab.attention_vjp(dO, of_plain)
        assert all(map(checks.close, (O, *g[:3]), (plain, *wanted[:3])))
        assert g.dops[0] == 0
        assert np.all(np.isneginf(res.L[:, 1]) == np.isneginf(sigma))
    large = 3000.0
    O, res = run(large, scale=1000.0)  # scores of both signs, above and below
    S = np.float64(1000.0) * (Q.astype(float) @ K.astype(float).mT)
    S = np.concatenate([np.where(mask, S, -np.inf), np.full((3, 5, 1), large)], -1)
    assert np.allclose(O, ab.softmax(S)[..., :-1] @ V, atol=2e-3)
    assert np.allclose(res.L, ab.logsumexp(S), rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("method", ["dense", "tiled"])
def test_low_precision(method, dtype):
    low_precision(large(CASE["sink"]), dtype, method=method)
