"""Wrong steps, planted in attention and its gradients. Page: :doc:`/book/atlas`."""

import numpy as np

import attnbook as ab
from attnbook.diagnose.steps import Steps, rowsum, with_steps

NAMES = ("O", "dQ", "dK", "dV")


def right(Q, K, V, dO, **options):
    """What the package gives, by name: its own tests compare it with autograd and with differences."""
    O, res = ab.attention(Q, K, V, **options)
    grads = ab.attention_vjp(dO, res)
    came = dict(zip(NAMES, (O, *grads[:3]), strict=True))
    return came | ({"dbias": grads.dbias} if "bias" in options else {})


def planted(**steps):
    """A function that goes through :class:`attnbook.diagnose.steps.Steps`, with these steps in place of the right ones.

    With none it is right, with all of the options of those steps. It returns a dict: O, dQ, dK, dV, and ``dbias`` and
    ``dsink`` where there is a bias or a sink.
    """

    wrong = with_steps(Steps, tuple(steps.items()))

    def run(Q, K, V, dO, **options):
        with np.errstate(all="ignore"):
            return wrong(Q, K, V, dO, **options).results()

    return run


def logsumexp(S):
    """L, a number a row as a column; −∞ where every score is."""
    M = S.max(axis=-1, keepdims=True)
    M = np.where(np.isneginf(M), 0.0, M)
    with np.errstate(divide="ignore"):
        return M + np.log(rowsum(np.exp(S - M)))


def weights(S, L):
    """exp(S − L), as a backward makes the weights again; 0 in a row whose L is −∞."""
    return np.exp(S - np.where(np.isneginf(L), np.inf, L))


def again(a, S):
    """The weights that a backward makes of the scores S and the L of the forward."""
    return weights(S, logsumexp(a.S if a.sink is None else a.column))


def forbidden(a, allowed, scores=None):
    """The scores, −∞ where ``allowed`` does not let them be."""
    return np.where(allowed, a.scores if scores is None else scores, -np.inf)


def alive(a):
    """(..., n_q, 1): the queries that may see a key."""
    return a.allowed.any(axis=-1, keepdims=True)
