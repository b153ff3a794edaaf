"""The mask of the best keys, against a sort of each row by Python, in every library; and attention with it."""

import numpy as np
import pytest
import torch
from cases import CASES, DOCUMENTS, in_the_library_of
from compare import draw, quietly, same_everywhere
from naive import naive_scores
from planting import by_turns
from routes import ROUTES, taking

import attnbook as ab
from attnbook import checks, top_k
from attnbook.ops import Sink, Softcap

TABLES = [case for case in CASES if case.k[:-2] == case.v[:-2]]


@pytest.mark.parametrize(("k", "case"), by_turns((2, 1, 3, 7, 9), TABLES, ("all at once", "mask with a dead row")))
def test_k_are_kept_and_they_are_the_best(case, k):
    """Of the scores as softmax gets them: behind masks, biases and ops, of heads that share keys; in parts."""
    inputs = case.draw()
    S = naive_scores(case, *map(torch.tensor, inputs)).numpy()[..., : case.scores[-1]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(top_k, "AT_ONCE", 50)
        M = quietly(ab.top_k_mask, *inputs[:2], k, **case.options(inputs[0], *inputs[3:]))
    assert (M.shape, M.dtype) == (case.scores, bool)
    allowed = -np.inf < S
    worst_kept = np.min(np.where(M, S, np.inf), axis=-1, keepdims=True, initial=np.inf)
    assert not np.any(M & ~allowed)
    assert np.all(M.sum(axis=-1) >= np.minimum(k, allowed.sum(axis=-1)))
    assert np.all((worst_kept + 1e-9 < S).sum(axis=-1) < k), "kept without a tie, and not among the best"
    assert not np.any(allowed & ~M & (worst_kept + 1e-9 < S)), "better than one that is kept"


def test_nan_does_not_vanish():
    """As without the mask, a query with NaN has NaN for an output; a key with NaN is kept."""
    Q, K, V = draw((3, 2), (5, 2), (5, 4))
    Q[1, 0] = np.nan
    O, _ = quietly(ab.attention, Q, K, V, mask=quietly(ab.top_k_mask, Q, K, 2))
    assert np.isnan(O).all(axis=-1).tolist() == [False, True, False]
    K[3, 1] = np.nan
    assert quietly(ab.top_k_mask, Q, K, 2)[:, 3].all()


def test_all_that_tie_for_the_last_place_stay():
    Q = np.ones((1, 1))
    assert ab.top_k_mask(Q, np.array([[1.0], [2.0], [1.0], [0.0]]), 2).tolist() == [[True, True, True, False]]
    assert ab.top_k_mask(0 * Q, np.ones((4, 1)), 1).all()


@pytest.mark.parametrize("route", ROUTES)
def test_the_gradient_flows_through_what_is_kept(route):
    """Chosen anew for every input, as differences see it; beside a causal mask, documents, a sink, and a cap."""
    Q, K, V, sigma, dO = draw((2, 4, 5, 3), (2, 2, 7, 3), (2, 2, 7, 4), (4,), (2, 4, 5, 4))
    ops = lambda sigma: (in_the_library_of(sigma, DOCUMENTS()), Softcap(2.0), Sink(sigma))  # noqa: E731

    def chosen(Q, K, V, sigma):
        options = {"ops": ops(sigma), "causal": "bottom-right"}
        return ab.attention(Q, K, V, mask=ab.top_k_mask(Q, K, 2, **options), **options)

    with taking(route):
        _, res = chosen(Q, K, V, sigma)
        g = ab.attention_vjp(dO, res)
        assert checks.check_vjp(lambda *x: chosen(*x)[0], (*g[:3], g.dops[2]), at=(Q, K, V, sigma), cotangent=dO)


def test_every_library_gives_the_same(xp):
    def run(Q, K):
        return xp_float(ab.top_k_mask(Q, K, 3, causal=True, ops=[Softcap(3.0)]), Q)

    xp_float = lambda M, like: ab.arrays.array_namespace(like).astype(M, like.dtype)  # noqa: E731
    same_everywhere(xp, run, *draw((2, 6, 5, 11), (2, 3, 7, 11)))
