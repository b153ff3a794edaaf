"""Incidents about dropout, L, and rotations. Page: :doc:`/book/atlas`."""

import numpy as np

from attnbook.diagnose.steps import mT, rowsum
from evidence.atlas.entries import Cause, Setting, Thread
from evidence.atlas.plant import planted, weights

BACKWARD = ("dQ", "dK", "dV")
DROPOUT = {"dropout": 0.25}


def by_p(a):
    """dP, where p stands in the place of 1/(1 − p)."""
    dP = a.dO @ mT(a.v)
    return dP if a.kept is None else a.dropout * a.kept * dP


def before_dropout(a):
    """dS of the weights after dropout, and of dP before it."""
    dP = a.dO @ mT(a.v)
    return a.weights * (dP - rowsum(a.weights * dP))


def table(of, halves):
    """Cosines or sines of a rotation: the width in two halves of the same angles, or of angles of their own."""

    def drawn(at, rng):
        angles = np.random.default_rng(3).standard_normal((at.n_k, at.d_k // 2 * halves))
        return of(angles)

    return drawn


def both_halves(T, d):
    """A table as wide as d: where it is given for half of the width, both halves have the same."""
    return T if T.shape[-1] == d else np.tile(T, 2)


def turned(T):
    """(x₁, x₂) ↦ (−x₂, x₁), of the two halves of the width."""
    half = T.shape[-1] // 2
    return np.concatenate([-T[..., half:], T[..., :half]], axis=-1)


def rotary(back):
    """Attention of rotated queries and keys; ``back(dT, cos, sin)`` takes a gradient back over the rotation."""

    def run(Q, K, V, dO, cos=None, sin=None, **options):
        if cos is None:
            return planted()(Q, K, V, dO, **options)
        cos, sin = (both_halves(T, Q.shape[-1]) for T in (cos, sin))
        came = planted()(Q * cos + turned(Q) * sin, K * cos + turned(K) * sin, V, dO, **options)
        return came | {name: back(came[name], cos, sin) for name in ("dQ", "dK")}

    return run


RIGHT_ROTARY = rotary(lambda dT, cos, sin: dT * cos - turned(dT * sin))

CAUSES = (
    Cause(
        "dropout-in-d",
        "The softmax step uses weights after dropout, and dP before it",
        "Dropout acts between the weights and the output. On the way back its mask belongs to dP and to dV; the step "
        "through softmax takes the weights before dropout. Here it is the other way round.",
        "Dropout above 0, with the mask known, against plain attention.",
        "dP times the mask; dS from the weights before dropout.",
        ("dQ", "dK"),
        planted(dS=before_dropout),
        Setting(options=DROPOUT),
        Setting(),
        (Thread("aws-neuron/nki-samples", 81, 2025, "Fix attention backward dropout", "pull"),),
        planted(),
    ),
    Cause(
        "dropout-scaled-by-p",
        "The backward scales by p, not by 1/(1 − p)",
        "What survives dropout is divided by 1 − p. The forward does, the backward multiplies by p.",
        "Gradients with dropout above 0, with the mask known.",
        "One mask that holds 0 and 1/(1 − p), for both passes.",
        ("dQ", "dK"),
        planted(dP=by_p),
        Setting(options=DROPOUT),
        Setting(),
        (
            Thread("NVIDIA/apex", 816, 2020, "fix dropout scaling from p to 1/(1-p) in multihead attention", "pull"),
            Thread(
                "NVIDIA/apex", 860, 2020, "Fixes to Multihead Attention with LayerNorm and Dropout-Add", "pull",
                note="The probability in the backward of one of its models; and a sum that was wired wrong.",
            ),
        ),
        planted(),
    ),
    Cause(
        "dropout-drawn-again",
        "The backward draws another mask",
        "To save memory the mask is not kept but drawn again, and the state of the generator is not the one that the "
        "forward had.",
        "Two gradients of the same output, or one against plain attention with the forward's mask.",
        "Keep the state of the generator with what is saved.",
        BACKWARD,
        planted(kept_backward=lambda a: None if a.kept is None else np.roll(a.kept, 1)),
        Setting(options=DROPOUT),
        Setting(),
        (Thread("pytorch/pytorch", 190717, 2026, "[BUG] dropout gradient mask mismatch when memory budget is low"),),
        planted(),
    ),
    Cause(
        "l-without-gradient",
        "L is returned, and its gradient ignored",
        "A loss on L, such as a penalty for large ones, has a gradient: dL is subtracted from D. The backward takes "
        "the "
        "gradient of O and drops the other.",
        "A loss that uses L.",
        "D − dL in the place of D; or mark L as not differentiable.",
        ("dQ", "dK"),
        planted(D_less_dL=lambda a: a.D),
        Setting(options={"dL": lambda at, rng: rng.standard_normal((at.batch, at.heads, at.n_q))}),
        Setting(),
        (
            Thread("Dao-AILab/flash-attention", 141, 2023, "lse gradient?"),
            Thread("Dao-AILab/flash-attention", 404, 2023, "What's the exactly formula of `softmax_lse`?"),
            Thread("Dao-AILab/flash-attention", 889, 2024, "Backprop through LSE"),
            Thread("Dao-AILab/flash-attention", 1137, 2024, "How to obtain differentiable softmax_lse"),
        ),
        planted(),
    ),
    Cause(
        "l-of-the-weights",
        "L is taken of the weights, not of the scores",
        "The log-sum-exp that the backward will need is computed one line too late, after the softmax.",
        "Gradients; the output is right.",
        "L of the scores, before the softmax.",
        BACKWARD,
        planted(P_backward=lambda a: weights(a.S, np.log(rowsum(np.exp(a.P))))),
        Setting(),
        None,
        (
            Thread(
                "pytorch/pytorch", 124097, 2024, "Adds LSE output for templated-attention-hop if inputs require grad",
                "pull",
                note="Its author noticed before it was merged.",
            ),
        ),
    ),
    Cause(
        "rotation-taken-back-in-the-wrong-order",
        "The rotation is taken back with sine and turn in the wrong order",
        "Forward: turn, then times the sine. Backward: times the sine, then turn back. Where both halves of the sines "
        "are "
        "equal, as positions give them, the order makes no difference, and the test had only such tables.",
        "Sines whose halves differ.",
        "dT ∘ cos − turn(dT ∘ sin).",
        ("dQ", "dK"),
        rotary(lambda dT, cos, sin: dT * cos - turned(dT) * sin),
        Setting(7, 7, 12, options={"cos": table(np.cos, 2), "sin": table(np.sin, 2)}),
        Setting(7, 7, 12, options={"cos": table(np.cos, 1), "sin": table(np.sin, 1)}),
        (Thread("PaddlePaddle/Paddle", 74716, 2025, "fix_fused_rotary_position_embedding", "pull"),),
        RIGHT_ROTARY,
    ),
    Cause(
        "rotation-cuts-the-graph",
        "The fast rotation has no backward",
        "Two functions rotate: the fast one was made for inference and cuts the graph. Queries and keys get no "
        "gradient, "
        "the values do, and the loss still falls.",
        "Ask for the gradient of every input that has one.",
        "A backward for it, the rotation by the negative angle; or an error where a gradient is asked for.",
        ("dQ", "dK"),
        rotary(lambda dT, cos, sin: None),
        Setting(7, 7, 12, options={"cos": table(np.cos, 1), "sin": table(np.sin, 1)}),
        Setting(),
        (
            Thread(
                "huggingface/candle", 3568, 2026,
                "candle-nn: rotary_emb::rope is apply_op3_no_bwd; severs autograd (same pattern as #2168 / PR #3526)",
                fixed=(3612,),
            ),
        ),
        RIGHT_ROTARY,
    ),
)  # fmt: skip
