"""Faults that need two conditions at once, or scores in a range: each is planted, seen, and named where it can be."""

import numpy as np
import pytest
import torch
from attentions.right import by_steps

import attnbook as ab
from attnbook.diagnose.cases.crossed import CAUSAL, CORNER, LENGTHS, NO_PAIRS, SHARED
from attnbook.diagnose.causes.registry import KNOWN
from attnbook.diagnose.steps import Steps, with_mistakes

HAS = {
    SHARED: lambda a: a.h != a.h_kv,
    CAUSAL: lambda a: a.corner == "top-left",
    CORNER: lambda a: a.corner == "bottom-right",
    LENGTHS: lambda a: a.n_q != a.n_k,
    "a batch": lambda a: a.Q.ndim > 3 and len(a.Q) > 1,
    "several blocks": lambda a: a.n_k > 64,
} | {
    name: lambda a, name=name: getattr(a, name) is not None
    for name in ("mask", "bias", "slopes", "window", "softcap", "sink", "dL")
}  # fmt: skip


def where(fault, *conditions):
    """An attention that makes this mistake where all conditions meet, and is right elsewhere."""
    wrong = with_mistakes(KNOWN[fault])

    def fn(Q, K, V, dO, *, mask=None, bias=None, causal=False, window=None, softcap=None, sink=None, slopes=None,
           dL=None):  # fmt: skip
        options = {"mask": mask, "bias": bias, "causal": causal, "window": window, "softcap": softcap, "sink": sink,
                   "slopes": slopes, "dL": dL}  # fmt: skip
        a = Steps(Q, K, V, dO, **options)
        return (wrong(Q, K, V, dO, **options) if all(HAS[name](a) for name in conditions) else a).run()

    return fn


@pytest.mark.parametrize(
    ("fault", "conditions"),
    [
        ("causal-forgotten-in-backward", (SHARED, CAUSAL)),
        ("bias-by-key-head", (SHARED, "bias")),
        ("sink-by-key-head", (SHARED, "sink")),
        ("slopes-by-key-head", (SHARED, "slopes")),
        ("softcap-derivative-missing", (CAUSAL, "softcap")),
        ("window-forgotten-in-backward", ("window", "sink")),
        ("dL-ignored", (CAUSAL, "dL")),
        ("bias-forgotten-in-backward", (CORNER, "bias")),
        ("ds-mean", (SHARED, "softcap")),
        ("mask-forgotten-in-backward", ("mask", "a batch", "several blocks")),
    ],
    ids=str,
)
def test_what_needs_two_conditions_is_seen_and_named(fault, conditions):
    report = ab.diagnose(where(fault, *conditions))
    assert fault in (*report.mistakes, *(slug for each in report.alike for (slug, *_) in each)), str(report)
    least = [run for run in report.runs if run.case.row and any(run.name in f.cases for f in report.findings)]
    assert [run.name for run in least] == [", ".join(conditions)]
    assert "right without" in str(report)


def test_every_pair_meets_and_what_is_refused_is_said():
    def no_pairs(Q, K, V, dO, *, mask=None, bias=None, causal=False, softcap=None):
        if causal and (mask is not None or softcap is not None):
            raise ValueError("causal comes alone")
        return by_steps(Q, K, V, dO, mask=mask, bias=bias, causal=causal, softcap=softcap)

    report = ab.diagnose(no_pairs)
    assert report.ok, str(report)
    assert {frozenset(pair) for pair in report.apart} == {
        frozenset((one, other)) for one in (CAUSAL, CORNER) for other in ("mask", "dead rows", "softcap")
    }
    assert "but for causal with mask" in str(report).replace("\n", "").replace("    ", " ")
    assert {"window", "sink", "dropout"} <= set(report.unasked)
    assert not NO_PAIRS & {frozenset(pair) for pair in report.apart}


# --- scores far away ----------------------------------------------------------------------------------------------


def exp_of(S, M):
    with np.errstate(all="ignore"):
        E = np.exp(S - M)
        return E / E.sum(-1, keepdims=True)


def attention_by(weights):
    """A right backward of these weights; ``weights(S, allowed)``."""

    def fn(Q, K, V, dO, mask=None, causal=False, bias=None):
        a = Steps(Q, K, V, dO, mask=mask, causal=causal, bias=bias)
        if a.n_k == 0:
            return a.run()
        P = weights(a.scores, np.broadcast_to(a.allowed, a.scores.shape))
        dead = ~(a.allowed & np.isfinite(a.scores)).any(axis=-1, keepdims=True)
        P = np.where(np.isnan(P) & dead, 0.0, P)
        vars(a).update(P=P)
        return a.run()

    return fn


@pytest.mark.parametrize(
    ("weights", "case", "named"),
    [
        (lambda S, A: exp_of(np.where(A, S, -np.inf), np.maximum(np.where(A, S, -np.inf).max(-1, keepdims=True), 0)),
         "scores far below 0", "maximum-from-zero"),
        (lambda S, A: exp_of(np.where(A, S, -np.inf), S.max(-1, keepdims=True)),
         "a masked score far above", "maximum-of-masked"),
        (lambda S, A: exp_of(np.where(A, S, -1e4), np.where(A, S, -1e4).max(-1, keepdims=True)),
         "scores far below 0, and a mask", "mask-lowest-number"),
    ],
)  # fmt: skip
def test_scores_that_are_far_away(weights, case, named):
    report = ab.diagnose(attention_by(weights))
    assert case in report.findings[0].cases, str(report)
    assert named in str([(f.causes, f.parts) for f in report.findings])


def test_a_mask_on_the_exponentials_under_autograd():
    def eager(Q, K, V, mask=None):
        S = Q @ K.mT * Q.shape[-1] ** -0.5
        A = torch.ones_like(S, dtype=torch.bool) if mask is None else mask
        M = S.masked_fill(~A, -torch.inf).amax(-1, keepdim=True).nan_to_num(neginf=0.0).detach() if S.numel() else 0.0
        E = torch.where(A, torch.exp(S - M), 0)
        total = E.sum(-1, keepdim=True)
        return E / torch.where(total == 0, 1, total) @ V

    report = ab.diagnose(eager)
    assert report.mistakes == ("exp-before-mask",), str(report)


# --- what is no mistake -------------------------------------------------------------------------------------------


def linear(Q, K, V, dO):
    """Linear attention, without a mask, and its own gradients: O = Q (Kᵀ V)."""
    state, dstate = K.swapaxes(-1, -2) @ V, Q.swapaxes(-1, -2) @ dO
    return Q @ state, dO @ state.swapaxes(-1, -2), V @ dstate.swapaxes(-1, -2), K @ dstate


def test_another_layer_is_told_by_differences_of_its_own_O():
    for fn, words in ((linear, "no softmax attention"), (torch.nn.MultiheadAttention(16, 2), "in_proj_weight")):
        report = ab.diagnose(fn)
        assert not report.ok
        assert [f.kind for f in report.findings] == ["another layer"], str(report)
        assert words in str(report)
        assert not report.mistakes
    wrong = ab.diagnose(lambda Q, K, V, dO: (*linear(Q, K, V, dO)[:3], 2 * linear(Q, K, V, dO)[3]))
    assert any("dK, dQ are right and dV wrong" in note for note in wrong.notes), str(wrong)


def test_causal_by_default_and_always():
    def by_default(Q, K, V, dO, causal=True):
        return by_steps(Q, K, V, dO, causal=causal)

    def always(Q, K, V, dO):
        return by_steps(Q, K, V, dO, causal=True)

    assert ab.diagnose(by_default).ok
    report = ab.diagnose(always)
    assert report.ok, str(report)
    assert "always causal, from the corner at the top left" in str(report)
    assert CAUSAL in report.crossed
    assert ab.diagnose(lambda Q, K, V, dO, causal=False: always(Q, K, V, dO)).mistakes == ("causal-forced",)


def test_a_graph_that_is_cut_in_one_case_is_said_to_be_cut():
    def severed(Q, K, V, cos=None, sin=None):
        if cos is not None:
            (x, y), (u, v) = Q.detach().chunk(2, -1), K.detach().chunk(2, -1)
            Q = torch.cat([x * cos - y * sin, x * sin + y * cos], -1)
            K = torch.cat([u * cos - v * sin, u * sin + v * cos], -1)
        return torch.nn.functional.scaled_dot_product_attention(Q, K, V)

    said = str(ab.diagnose(severed))
    assert "the graph is cut before Q" in said
    assert "the graph is cut before K" in said
    assert "Jacobian" not in said
