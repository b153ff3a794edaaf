"""Incidents of attention that runs on several ranks. Page: :doc:`/book/atlas`."""

import numpy as np

from attnbook.diagnose.steps import Steps, mT, rowsum, softmax
from evidence.atlas.entries import Cause, Setting, Thread
from evidence.atlas.plant import again, forbidden, planted

BACKWARD = ("dQ", "dK", "dV")


def first_chunk(a, T):
    """The rows of T that the first of two ranks holds, in the place of all others too."""
    held = max(1, -(-a.n_k // 2))
    return T[..., np.arange(a.n_k) % held, :]


def by_halves(a, T):
    """T summed over each half of the keys, spread over that half."""
    cut = -(-a.n_k // 2)
    parts = [T[..., :cut], T[..., cut:]]
    return np.concatenate([np.broadcast_to(rowsum(part), part.shape) for part in parts], axis=-1)


def own_softmax(a):
    """Softmax over each half of the keys alone."""
    cut = -(-a.n_k // 2)
    return np.concatenate([softmax(S) if S.size else S for S in (a.S[..., :cut], a.S[..., cut:])], axis=-1)


def evenly(a):
    """The mask, as two ranks see it that take half of the real length each, rounded down."""
    given = Steps.mask_allows.func(a)
    if a.mask is None:
        return given
    cut, real = a.n_k // 2, given.any(axis=-2, keepdims=True).sum(axis=-1, keepdims=True)
    place = np.arange(a.n_k)
    return given & (np.where(place < cut, place, place - cut) < real // 2)


def times(n, names):
    """These steps, each n times what is right."""

    def step(name):
        return lambda a: n * getattr(Steps, name).func(a)

    return {name: step(name) for name in names}


CAUSES = (
    Cause(
        "keys-of-the-first-step",
        "The backward of a ring uses the keys of its first step throughout",
        "The ring sends keys and values on through local variables. The backward of a step reads the ones that were "
        "saved, and only the first step saved any. Loss and output are right; training looks healthy.",
        "Gradients on two ranks, against one.",
        "Hand each step the keys and values that it has.",
        BACKWARD,
        planted(
            P_backward=lambda a: again(
                a, forbidden(a, a.allowed, a.scores + a.scale * (a.Q @ mT(first_chunk(a, a.k) - a.k)))
            ),
            dP=lambda a: a.dO @ mT(first_chunk(a, a.v)),
            dQ_unscaled=lambda a: a.dS @ first_chunk(a, a.k),
        ),
        Setting(),
        Setting(n_k=1),
        (
            Thread(
                "huggingface/diffusers", 14265, 2026,
                "Ring attention backward uses stale iteration-0 KV from ctx.saved_tensors — silent gradient corruption "
                "when training with context parallelism",
                fixed=(14274,),
            ),
        ),
    ),
    Cause(
        "l-and-d-of-one-rank",
        "The backward normalizes with what one rank knows",
        "Weights are made again with the L of a rank's own keys, and D is summed over these alone. Every rank's "
        "gradients "
        "are right for an attention that ends at its border.",
        "Two ranks against one.",
        "Merge L over the ranks first, and hand the backward the merged O and L.",
        BACKWARD,
        planted(P_backward=own_softmax, D=lambda a: by_halves(a, a.P_backward * a.dP)),
        Setting(),
        Setting(n_k=1),
        (
            Thread(
                "NVIDIA/TransformerEngine", 1557, 2025, "[BUG] Wrong attention gradient when Context Parallelism is on",
                note="Also told as Megatron-LM 1464 and 1465.", stated=False,
            ),
        ),
    ),
    Cause(
        "merged-without-the-gradient-of-l",
        "Two parts are merged by their L, and L gets no gradient",
        "The output is a mean of two partial outputs with weights made of L. The gradient goes back through the "
        "outputs "
        "alone: D is that of each part, not that of the merged row.",
        "Gradients of a merged output, each part with two keys at least.",
        "A backward of the part with the merged O and L, or a gradient through L.",
        ("dQ", "dK"),
        planted(D=lambda a: by_halves(a, a.P_backward * a.dP) / np.maximum(by_halves(a, a.P_backward), 1e-300)),
        Setting(),
        Setting(n_k=1),
        (
            Thread(
                "lightseekorg/TorchSpec", 79, 2026,
                "Fix Eagle3 FA cached backward semantics and keep FA2 fallback backend", "pull",
                note="It says that the part's backward did not fit the merged normalization.", stated=False,
            ),
        ),
    ),
    Cause(
        "lengths-divided-evenly",
        "Each rank takes the real length over the number of ranks for its own",
        "Sequences are padded so that they divide. The lengths without padding are divided as well, and rounded: near "
        "the "
        "end of each rank's part real keys are dropped and padding is let in.",
        "A real length that the ranks do not divide, padded at the end only.",
        "Count the real keys of each rank; pass the lengths with padding beside the real ones.",
        ("O", "dQ", "dK", "dV"),
        planted(mask_allows=evenly),
        Setting(8, 8, padding=3),
        Setting(8, 8),
        (
            Thread(
                "NVIDIA/TransformerEngine", 3331, 2026,
                "THD + CP (p2p): pad_between_seqs auto-detect is blind to tail padding → nondeterministic forward, "
                "silently wrong attention (dropped real keys, exact-zero real rows), nondeterministic gradients",
            ),
            Thread(
                "NVIDIA-NeMo/Megatron-Bridge", 5630, 2026,
                "fix(models): use physical boundaries for Qwen packed attention", "pull",
            ),
            Thread(
                "NVIDIA/TransformerEngine", 2186, 2025,
                "Fused attention with THD format + CP may cause a bug in backward pass, leading to NaN values during "
                "training LLM.",
                note="A part that is padding alone; dK and dV are far too large.", stated=False,
            ),
        ),
    ),
    Cause(
        "times-the-number-of-ranks",
        "Gradients are multiplied by the number of ranks",
        "They are summed twice, or summed where a mean was meant. A uniform factor hides behind an optimizer that "
        "divides by the size of the gradient; where only some parts are summed twice, the direction is wrong too.",
        "The gradients themselves on two ranks against one, not the loss.",
        "One place for the sum; assert the norm of the gradient at several numbers of ranks.",
        BACKWARD,
        planted(**times(2, BACKWARD)),
        Setting(),
        None,
        (
            Thread(
                "deepspeedai/DeepSpeed", 5248, 2024, "[BUG] Sequence Parallel(Ulysses) Training Gradient Scaling Issue",
            ),
            Thread(
                "inclusionAI/AReno", 496, 2026, "fix(bailing): correct MLA tensor-parallel gradient reduction", "pull",
            ),
        ),
    ),
    Cause(
        "compared-with-itself",
        "The suite compares a backend with itself",
        "A run on several ranks is held against one of the same backend on one rank. What is wrong on both sides "
        "cancels: "
        "an output of zeros passed.",
        "A reference of another origin, if only for one head.",
        "Compare both sides with plain attention.",
        ("O", *BACKWARD),
        planted(**times(0, ("O", *BACKWARD))),
        Setting(),
        None,
        (
            Thread(
                "NVIDIA/TransformerEngine", 3536, 2026,
                "test(attention): anchor the context-parallel suite to an independent reference", "pull",
            ),
        ),
    ),
)  # fmt: skip
