"""Incidents of calls that give no gradient, or none of some inputs. Page: :doc:`/book/atlas`."""

from evidence.atlas.entries import Cause, Setting, Thread
from evidence.atlas.plant import planted

BACKWARD = ("dQ", "dK", "dV")
RIGHT = planted()


def too_few(Q, K, V, dO, **options):
    """A backward that returns one gradient less than the forward has inputs, as autograd counts them."""
    gradients = [RIGHT(Q, K, V, dO, **options)[name] for name in BACKWARD]
    if len(gradients) != 3 + 1:  # the forward learned to take one more argument
        raise RuntimeError("returned an incorrect number of gradients (expected 4, got 3)")
    return gradients


def without_mask(Q, K, V, dO, *, mask=None, **options):
    """A backward that looks at the shape of the mask, whether there is one or not."""
    shape = mask.shape
    return RIGHT(Q, K, V, dO, mask=mask.reshape(shape), **options)


def only_contiguous(Q, K, V, dO, **options):
    """A backward that refuses a dO that is transposed, sliced or expanded."""
    if not dO.flags.c_contiguous:
        raise RuntimeError("dO must be contiguous")
    return RIGHT(Q, K, V, dO, **options)


def only_plain_inputs(Q, K, V, dO, **options):
    """A backward that allocates gradients as the inputs lie, and then refuses them."""
    if not all(T.flags.c_contiguous for T in (Q, K, V)):
        raise RuntimeError("dQ must have a contiguous last dimension")
    return RIGHT(Q, K, V, dO, **options)


def only_whole_tiles(Q, K, V, dO, **options):
    """A backward that takes multiples of 4 only, where the forward takes any length."""
    if Q.shape[-2] % 4 or K.shape[-2] % 4:
        raise AssertionError("the length must be divisible by 4")
    return RIGHT(Q, K, V, dO, **options)


def only_all(Q, K, V, dO, *, asked=BACKWARD, **options):
    """A backward that gives dK and dV together, and only if dK is asked for."""
    came = RIGHT(Q, K, V, dO, **options)
    return {name: T for name, T in came.items() if name == "O"} | {
        name: came[name] if name in asked and "dK" in asked else None for name in BACKWARD
    }


def right_asked(Q, K, V, dO, *, asked=BACKWARD, **options):
    """What is asked for, and None for the rest."""
    came = RIGHT(Q, K, V, dO, **options)
    return {name: T if name in ("O", *asked) else None for name, T in came.items()}


def refuses_empty(Q, K, V, dO, **options):
    """As right as the plain steps, and no answer where there is no query or no key."""
    if 0 in (Q.shape[-2], K.shape[-2]):
        raise RuntimeError("a launch with no work")
    return RIGHT(Q, K, V, dO, **options)


CAUSES = (
    Cause(
        "wrong-number-of-gradients",
        "The forward has one input more than the backward has gradients",
        "An argument was added to the forward; the list of gradients was not made longer. autograd counts, and raises.",
        "Any backward at all.",
        "One more None in the list.",
        ("raises",),
        too_few,
        Setting(),
        None,
        (
            Thread(
                "feifeibear/long-context-attention", 149, 2025, "RingFlashAttnFunc forward backward arguments mismatch",
                fixed=(156,),
            ),
        ),
    ),
    Cause(
        "branch-that-never-ran",
        "One branch of the backward has never run",
        "A name that is not defined there, the shape of an argument that is None. The branch is for an option that no "
        "test set, or for its absence.",
        "Each option, with and without it.",
        "Run every branch of the backward once.",
        ("raises",),
        without_mask,
        Setting(),
        Setting(padding=1),
        (
            Thread(
                "Dao-AILab/flash-attention", 78, 2022,
                "Small bug in Triton FlashAttnKVPackedFunc.backward implementation",
                note="A name of another branch.",
            ),
            Thread(
                "Lightning-AI/lightning-thunder", 1578, 2024, "sdpaex : fix backward when attn_mask is not provided",
                "pull",
                note="The mask is None.",
            ),
        ),
    ),
    Cause(
        "do-must-be-contiguous",
        "The backward refuses a dO that is not contiguous",
        "The gradient of a sum is expanded, that of a concatenation is a slice. The caller cannot choose: dO is made "
        "by "
        "autograd. At least it is an error, not a wrong number.",
        "`output.sum().backward()`, and a concatenation behind the attention.",
        "Make dO contiguous in the wrapper.",
        ("raises",),
        only_contiguous,
        Setting(memory={"dO": "heads third"}),
        Setting(),
        (
            Thread(
                "facebookresearch/xformers", 282, 2022, "Handle non-contiguous grad_out and add checks for qkv", "pull",
            ),
            Thread("Dao-AILab/flash-attention", 91, 2022, "flash attn -> torch.cat results in contiguous error"),
            Thread(
                "Dao-AILab/flash-attention", 325, 2023, "RuntimeError: dout tensor must have contiguous last dimension",
            ),
            Thread("Dao-AILab/flash-attention", 364, 2023, "dout tensor must have contiguous last dimension"),
            Thread(
                "ROCm/flash-attention", 41, 2024,
                "[Issue]: RuntimeError: Expected dout_seq_stride == out_seq_stride to be true, but got false.",
            ),
            Thread("alexzhang13/flashattention2-custom-mask", 13, 2024, "Code fails the backward pass"),
            Thread("linxihui/dkernel", 1, 2025, "Unify strides of `o` and `do` in attention backward", "pull"),
        ),
    ),
    Cause(
        "inputs-must-be-contiguous",
        "The forward takes transposed inputs, the backward refuses them",
        "The forward makes a contiguous copy. The backward allocates gradients as the inputs lie that were saved, not "
        "the copies, and refuses its own arrays.",
        "Inputs whose last axis is not contiguous, through the backward.",
        "Allocate what the kernel needs.",
        ("raises",),
        only_plain_inputs,
        Setting(memory={"Q": "heads third"}),
        Setting(),
        (
            Thread(
                "Dao-AILab/flash-attention", 2777, 2026, "[FA2] Fix backward for non-contiguous Q/K/V inputs", "pull",
            ),
        ),
    ),
    Cause(
        "lengths-that-only-the-forward-takes",
        "The backward takes fewer sizes than the forward",
        "The limit shows when the loss is differentiated, hours after the forward was tried: a length that does not "
        "divide, a bias with a batch.",
        "Each size that the forward takes, through the backward.",
        "Refuse in the forward, or pad.",
        ("raises",),
        only_whole_tiles,
        Setting(),
        Setting(8, 8),
        (
            Thread(
                "amorehead/jvp_flash_attention", 13, 2025, "backward error when seq_len can not be divided by 32",
            ),
            Thread(
                "jax-ml/jax", 30593, 2025,
                "`jax.nn.dot_product_attention` cuDNN implementation only supports bias gradient when the batch size "
                "is 1 "
                "while cuDNN frontend attention documentation states that forward and backward conditions are th",
                note="Of a bias. The title is cut in what we read.",
            ),
        ),
    ),
    Cause(
        "all-or-none",
        "Gradients of some inputs only: absent, or an error",
        "Frozen keys, trained values: dK and dV are returned together, and only where dK is asked for; or the backward "
        "takes for granted that all three are.",
        "Each subset of Q, K and V as those that ask.",
        "Ask for each one by itself.",
        ("dV",),
        only_all,
        Setting(options={"asked": ("dV",)}),
        Setting(options={"asked": ("dK", "dV")}),
        (
            Thread("pytorch/xla", 8685, 2025, "Fix dk/dv autograd error on TPU flash attention", "pull"),
            Thread(
                "PaddlePaddle/Paddle", 58461, 2023,
                "memory_efficent和flash attn反向存在BUG，q,k,v必须全部stop_gradient=False", note="An error.",
            ),
        ),
        right_asked,
    ),
    Cause(
        "graph-cut",
        "The output is a new array that autograd does not know",
        "Every step copies its numbers into a fresh array. The forward is right; no gradient reaches Q, K or V, and no "
        "error tells.",
        "Ask for the gradient of every input, and that it is there.",
        "Record each step; fail where a parameter that asks has none.",
        BACKWARD,
        lambda Q, K, V, dO, **options: RIGHT(Q, K, V, dO, **options) | dict.fromkeys(BACKWARD),
        Setting(),
        None,
        (
            Thread(
                "paiml/aprender", 2203, 2026,
                "fix(autograd): attention backward flows gradient to Q/K/V (end-to-end transformer trainability, "
                "PMAT-914)",
                "pull",
            ),
        ),
    ),
    Cause(
        "nothing-to-do",
        "No queries, or no keys",
        "A sequence of length 0 has a gradient of 0, or none. The kernel divides the work by nothing: an illegal "
        "address, an error of the launch, a hang.",
        "A length of 0, alone and among others.",
        "Return zeros before any launch.",
        ("raises",),
        refuses_empty,
        Setting(n_k=0),
        Setting(n_k=1),
        (
            Thread(
                "Dao-AILab/flash-attention", 2562, 2026,
                "[Bug] [FA4] [hdim 256] CUDA error 700 in backward pass when using zero-length q sequences with "
                "hdim=256 in varlen mode",
                fixed=(2568,),
            ),
            Thread(
                "Dao-AILab/flash-attention", 2776, 2026, "[CuTe, Bwd] Return zero gradients for empty Q/K workloads",
                "pull",
            ),
        ),
    ),
)  # fmt: skip
