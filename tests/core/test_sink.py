"""The sink at its extremes. It also runs in the table of cases, and in a model that has one."""

import numpy as np
import pytest
from compare import draw, quietly
from routes import SMALL

import attnbook as ab
from attnbook import checks
from attnbook.ops import Sink
from attnbook.spines import Way

ENGINE = Way("numpy_tiled", SMALL)
METHODS = ("dense", "tiled", Way("tiled", SMALL), ENGINE, ENGINE._replace(tiles=SMALL._replace(bits=0.0)))
each_method = pytest.mark.parametrize("method", METHODS, ids=str)


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
