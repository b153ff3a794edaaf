"""Incidents about sinks and biases, which are learned. Page: :doc:`/book/atlas`."""

import numpy as np

from attnbook.diagnose.steps import rowsum, softmax, unbroadcast
from evidence.atlas.entries import Cause, Setting, Thread
from evidence.atlas.plant import planted, weights

BACKWARD = ("dQ", "dK", "dV")


def sinks(at, rng):
    """A score for each head's sink."""
    return rng.standard_normal(at.heads)


def a_bias(*axes):
    """A bias that is drawn, of these sizes: names of a setting's, or numbers."""
    return lambda at, rng: rng.standard_normal([getattr(at, n) if isinstance(n, str) else n for n in axes])


def of_another_sequence(a):
    """The gradient of the sink, with the L of the sequence before."""
    of_sink = np.roll(softmax(a.column)[..., -1:], 1, axis=0)
    return unbroadcast(-of_sink * a.D_less_dL, (*a.sink.shape, 1, 1)).reshape(a.sink.shape)


def of_the_first(T, axes):
    """T without its axes in front: the first along each, where the sum should be."""
    while T.ndim > axes:
        T = T[0]
    return T


WITHOUT_L = planted(
    dbias=lambda a: unbroadcast(weights(a.S, 0.0) * (a.dP - rowsum(weights(a.S, 0.0) * a.dP)), a.bias.shape)
)


def without_l(Q, K, V, dO, asked=("dQ", "dK", "dV", "dbias"), **options):
    """dbias without L, where it alone is asked for."""
    return (WITHOUT_L if asked == ("dbias",) else planted())(Q, K, V, dO, **options)


def right_asked(Q, K, V, dO, asked=(), **options):
    """The same, right whatever is asked for."""
    return planted()(Q, K, V, dO, **options)


CAUSES = (
    Cause(
        "sink-not-in-l",
        "The backward makes the weights again without the sink",
        "The saved L is that of the keys alone. Weights made with it sum to 1, though the sink took its share in the "
        "forward; and the kernel for the sink's gradient is not launched.",
        "A sink with a weight that counts, so few keys; and its gradient.",
        "Put the sink into L before the backward.",
        (*BACKWARD, "dsink"),
        planted(P_backward=lambda a: softmax(a.S), dsink=lambda a: 0 * a.sink),
        Setting(options={"sink": sinks}),
        Setting(),
        (
            Thread(
                "NVIDIA/cudnn-frontend", 421, 2026, "DSA: fix SM100 sink normalization for 576/512 backward", "pull",
                note="In one width only: a flag about the layout guarded it.",
            ),
        ),
        planted(),
    ),
    Cause(
        "sink-gradient-dropped",
        "The gradient of the sink is made and not returned, or not made",
        "The wrapper hands on dQ, dK and dV. The sink's place in the list of gradients is None: it keeps the value it "
        "began with, without an error.",
        "Ask for the gradient of every input that has one.",
        "Return it; fail where a parameter that asks has none.",
        ("dsink",),
        planted(dsink=lambda a: None),
        Setting(options={"sink": sinks}),
        Setting(),
        (
            Thread("ISEEKYAN/Megatron-LM", 205, 2026, "fix(ds4): propagate sparse attention sink gradient", "pull"),
            Thread("Dao-AILab/flash-attention", 1973, 2025, "Learnable sink gradient support in flash_attn.cute"),
            Thread("Dao-AILab/flash-attention", 2102, 2025, "[cute, bwd] learnable sink"),
        ),
        planted(),
    ),
    Cause(
        "sink-reads-another-l",
        "The sink's gradient reads L as if all sequences were equally long",
        "In a packed batch L lies one sequence behind the other. The kernel for the sink takes it for a table with a "
        "row "
        "a sequence, and reads other rows, or past the end.",
        "Two sequences of different lengths, and the gradient of the sink.",
        "The offsets of the sequences in that kernel too.",
        ("dsink",),
        planted(dsink=of_another_sequence),
        Setting(options={"sink": sinks}),
        Setting(batch=1, options={"sink": sinks}),
        (
            Thread(
                "NVIDIA/TransformerEngine", 3249, 2026,
                "[Bug] FusedAttention THD + learnable softmax backward IMA (cuDNN err 700) on Hopper",
            ),
        ),
        planted(),
    ),
    Cause(
        "bias-without-gradient",
        "A bias is taken, and has no gradient",
        "The kernel adds the bias, and its backward stops at the scores. A learned bias, or slopes, keep what they "
        "began "
        "with.",
        "Ask for the gradient of the bias.",
        "Return dS, summed where the bias was stretched; or refuse a bias that asks for one.",
        ("dbias",),
        planted(dbias=lambda a: None),
        Setting(options={"bias": a_bias("heads", "n_q", "n_k")}),
        Setting(),
        (
            Thread("jax-ml/jax", 27184, 2025, "the gradient of bias in jax.nn.dot_product_attention"),
            Thread(
                "facebookresearch/xformers", 636, 2023, "Support gradients to attention bias",
                note="Documented; so is the next.",
            ),
            Thread(
                "facebookresearch/xformers", 783, 2023, "Is attn_bias not learnable?", note="Refused with an error.",
            ),
            Thread(
                "Dao-AILab/flash-attention", 2876, 2026, "Add trainable ALiBi slopes to FA2 CUDA backward", "pull",
                note="Of the slopes of a bias.",
            ),
        ),
        planted(),
    ),
    Cause(
        "bias-gradient-not-summed",
        "The gradient of a bias lacks a sum",
        "A bias that serves all batches was stretched. Its gradient has the shape of one of them, or that of something "
        "else in the list; the sum over the others is missing.",
        "A batch above 1, and a bias with fewer axes: with one batch several forms look alike.",
        "Sum over every axis that was stretched.",
        ("dbias",),
        planted(dbias=lambda a: of_the_first(a.dS, a.bias.ndim)),
        Setting(options={"bias": a_bias("heads", "n_q", "n_k")}),
        Setting(batch=1, options={"bias": a_bias("heads", "n_q", "n_k")}),
        (
            Thread(
                "HKUSTDial/flash-sparse-attention", 193, 2025, "Enhance bias gradient accumulation in backward pass",
                "pull", stated=False,
            ),
            Thread(
                "HKUSTDial/flash-sparse-attention", 199, 2025, "Fix attention bias calculation and dbias handling",
                "pull", stated=False,
            ),
            Thread(
                "NVIDIA/TransformerEngine", 3551, 2026,
                'Support learnable softmax (attention sink) with cp_comm_type="p2p"', "pull",
                note="As a review has it: the shape is that of the last array in a list, which is another one now.",
            ),
        ),
        planted(),
    ),
    Cause(
        "bias-alone-asks",
        "Only the bias asks for a gradient, and L was not saved",
        "Whether to save L is decided by whether Q, K or V ask for a gradient. Where the bias alone does, its backward "
        "finds none.",
        "The gradient of the bias alone, Q, K and V fixed.",
        "Decide by all inputs that can have a gradient.",
        ("dbias",),
        without_l,
        Setting(options={"bias": a_bias("heads", "n_q", "n_k"), "asked": ("dbias",)}),
        Setting(options={"bias": a_bias("heads", "n_q", "n_k")}),
        (
            Thread(
                "pytorch/pytorch", 148476, 2025,
                "Illegal memory access in scaled_dot_product_attention if only attn_mask requires grad",
                fixed=(188302,),
            ),
        ),
        right_asked,
    ),
)  # fmt: skip
