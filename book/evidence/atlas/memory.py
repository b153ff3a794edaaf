"""Incidents about how arrays lie in memory, and about memory that nobody wrote. Page: :doc:`/book/atlas`."""

import numpy as np

from attnbook.diagnose.steps import Steps, mT, rowsum
from evidence.atlas.entries import Cause, Setting, Thread
from evidence.atlas.plant import again, alive, forbidden, planted

BACKWARD = ("dQ", "dK", "dV")


def as_if_contiguous(T):
    """The numbers of T in the order in which they lie in memory, from its first on: its strides are not looked at."""
    owner = T
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if T.flags.c_contiguous or not owner.flags.c_contiguous:
        return T
    start = (T.ctypes.data - owner.ctypes.data) // T.itemsize
    return np.take(owner.reshape(-1), (start + np.arange(T.size)) % owner.size).reshape(T.shape)


def as_if_alike(T, like):
    """The numbers of T, laid into memory in the order in which ``like`` has its axes, and read as contiguous."""
    order = sorted(range(T.ndim), key=lambda axis: -like.strides[axis])
    return np.ascontiguousarray(np.transpose(T, order)).reshape(T.shape)


def every_third(dV, V):
    """dV written a row in three where V is a slice of a packed array: what the kernel did not reach is NaN."""
    if V.flags.c_contiguous:
        return dV
    came = np.full(dV.shape, np.nan)
    came[..., ::3, :] = dV[..., : came[..., ::3, :].shape[-2], :]
    return came


def overflowing(bits):
    """D, each row taken where an address of so many bits ends up, which turns negative when it does not fit."""

    def read(a):
        D = Steps.D.func(a)
        rows = D.size
        at = (np.arange(rows) * a.d_v + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
        return D.reshape(rows, 1)[at // a.d_v % rows].reshape(D.shape)

    return planted(D=read)


def keys_as_tokens(T):
    """T with heads and tokens swapped."""
    return np.swapaxes(T, -3, -2)


CAUSES = (
    Cause(
        "strides-of-do",
        "dO is read as if it were contiguous",
        "The backward takes the address of dO and goes through it in order. After a transpose, a slice, or the "
        "expanded "
        "gradient of a sum, the numbers lie in another order.",
        "A dO that is transposed, sliced or expanded. Random ones made by `randn_like` never are.",
        "Pass its strides, or make it contiguous first.",
        BACKWARD,
        planted(
            dV_heads=lambda a: mT(a.P_backward) @ as_if_contiguous(a.dO),
            dP=lambda a: as_if_contiguous(a.dO) @ mT(a.v),
        ),
        Setting(memory={"dO": "heads third"}),
        Setting(),
        (
            Thread("Dao-AILab/flash-attention", 355, 2023, "Incorrect backward pass for non-contiguous output grads"),
            Thread(
                "pytorch/pytorch", 133671, 2024,
                "Scaled_dot_product_attention CPU flash_attention backend backward result is not the same as math "
                "backend",
                note="The functions were right: the test filled two gradients in the order of memory, and so compared "
                "two different ones.",
            ),
        ),
    ),
    Cause(
        "strides-of-do-in-d",
        "Only the step that makes D takes dO for contiguous",
        "D is made by a kernel of its own, which was written for one layout. The large kernels pass strides.",
        "A dO that is transposed or sliced.",
        "Pass the strides of O, dO and D to that kernel too.",
        ("dQ", "dK"),
        planted(D=lambda a: rowsum(as_if_contiguous(a.dO) * a.O)),
        Setting(memory={"dO": "heads third"}),
        Setting(),
        (Thread("flagos-ai/FlagAttention", 1, 2023, "fix error in pointer computation _bwd_preprocess", "pull"),),
    ),
    Cause(
        "strides-of-o-for-do",
        "dK and dV read dO with the strides of O",
        "One phase of the kernel builds the pointers of dO from the strides of O. As long as both lie alike, all is "
        "well; "
        "ring attention hands over a contiguous O and a dO that is not.",
        "O and dO with different strides.",
        "Each array with its own strides.",
        ("dK", "dV"),
        planted(
            dV_heads=lambda a: mT(a.P_backward) @ as_if_contiguous(a.dO),
            dK_unscaled=lambda a: mT(a.P_backward * (as_if_contiguous(a.dO) @ mT(a.v) - a.D)) @ a.Q,
        ),
        Setting(memory={"dO": "heads third"}),
        Setting(),
        (
            Thread(
                "ROCm/aotriton", 236, 2026,
                "bwd_kernel_fuse builds its dK/dV-phase dO pointers from Out's strides, so it is only correct when "
                "Out and dO share a layout",
            ),
        ),
    ),
    Cause(
        "strides-of-dk",
        "dK is written in one layout and read in another",
        "The compiler plans dK with the strides of K; what the kernel returns lies differently, and is read by plan.",
        "Keys that are transposed, and the compiled backward.",
        "Plan and kernel must agree; assert the strides of what comes back.",
        ("dK",),
        planted(dK=lambda a: as_if_alike(Steps.dK.func(a), a.K)),
        Setting(memory={"K": "heads third"}),
        Setting(),
        (
            Thread(
                "pytorch/pytorch", 146377, 2025,
                "FlexAttention compiled backward gives garbage data in certain stride situations for K.grad",
                stated=False,
            ),
        ),
    ),
    Cause(
        "strides-of-dv-promised",
        "dV comes in another layout than was promised",
        "The kernel makes dV with the strides of K, or always contiguous; the rule that tells a compiler what to "
        "expect "
        "says the strides of V. Eager code is right, compiled code reads the wrong numbers.",
        "K and V with different strides, and the compiled backward.",
        "One rule for both, and a test that compares strides.",
        ("dV",),
        planted(dV=lambda a: as_if_alike(Steps.dV.func(a), a.V)),
        Setting(memory={"V": "heads third"}),
        Setting(),
        (
            Thread(
                "pytorch/pytorch", 119500, 2024,
                "make flash_attn_bw impl correct w.r.t. meta when k and v have different strides", "pull",
            ),
            Thread(
                "Dao-AILab/flash-attention", 818, 2024, "fix backward for when query and key have different contiguity",
                "pull",
            ),
            Thread("pytorch/pytorch", 178499, 2026, "[ROCm] Fix flash attention backward meta stride mismatch", "pull"),
            Thread(
                "pytorch/pytorch", 180445, 2026,
                "`_scaled_dot_product_efficient_attention_backward` meta kernel predicts wrong output strides at "
                "batch >= 65536",
                fixed=(180617,),
            ),
        ),
    ),
    Cause(
        "packed-projection",
        "Slices of one projection: only some rows of dV are written",
        "Q, K and V are slices of one array. The backward steps through dV with the stride of that array.",
        "Q, K and V cut from one projection, as most models have them.",
        "The layout of dV from dV, not from V.",
        ("dV",),
        planted(dV=lambda a: every_third(Steps.dV.func(a), a.V)),
        Setting(memory={"V": "sliced"}),
        Setting(),
        (
            Thread(
                "Dao-AILab/flash-attention", 2541, 2026,
                "[FA4] [head_dim=256] dV is incorrect when using non-contiguous q, k, v from a single qkv projection",
                fixed=(2545,),
            ),
        ),
    ),
    Cause(
        "transposed-twice",
        "Keys and values are transposed once more in the backward",
        "The forward saves them already transposed; the backward transposes again, but not the queries. With as many "
        "heads as tokens no shape tells.",
        "As many heads as tokens; else an error tells.",
        "Transpose where they are saved, or where they are used.",
        BACKWARD,
        planted(
            dP=lambda a: a.dO @ mT(keys_as_tokens(a.v)),
            dQ_unscaled=lambda a: a.dS @ keys_as_tokens(a.k),
            P_backward=lambda a: again(
                a, forbidden(a, a.allowed, a.scores + a.scale * (a.Q @ mT(keys_as_tokens(a.k) - a.k)))
            ),
        ),
        Setting(4, 4, heads=4),
        None,
        (
            Thread(
                "huggingface/diffusers", 14338, 2026,
                "cuDNN attention backward corrupts gradients: K/V transposed twice, Q once",
                fixed=(14341,),
            ),
        ),
    ),
    Cause(
        "rows-never-written",
        "Gradient rows of padding are never written",
        "The gradient's memory is allocated and not cleared. Rows beyond the last sequence belong to no tile, so they "
        "keep what was there, NaN at times, and the next layer sums over them.",
        "Padding behind the last sequence, and memory that was full of NaN before.",
        "Allocate zeros, or write zeros to what no tile covers.",
        ("dQ",),
        planted(dQ=lambda a: np.where(alive(a), Steps.dQ.func(a), np.nan)),
        Setting(padding=2),
        Setting(),
        (
            Thread(
                "Dao-AILab/flash-attention", 2324, 2026, "[varlen] add autograd function to zero out nan padding",
                "pull",
            ),
            Thread(
                "Dao-AILab/flash-attention", 2167, 2026, "[Cute,Bwd,Sm100] fix seqused in varlen bwd", "pull",
                note="It says that the unused region is not cleared; the tests clear it.",
            ),
            Thread(
                "Dao-AILab/flash-attention", 41, 2022,
                "Function 'FlashAttnQKVPackedFuncBackward' returned nan values in its 0th output",
                note="A later thread of another project gives this as its cause.", stated=False,
            ),
        ),
    ),
    Cause(
        "padding-of-l-never-written",
        "L and D of padded rows are never written, and 0 · NaN is NaN",
        "The forward leaves the padded places of L and D as they were. The backward reads whole tiles: the weight "
        "there "
        "is 0, but 0 · NaN reaches every row of dK.",
        "A length that does not fill its tile, and memory that was full of NaN before.",
        "Write 0 to the padding of L and D.",
        ("dK",),
        planted(
            D=lambda a: np.where(alive(a), Steps.D.func(a), np.nan),
            dQ_unscaled=lambda a: np.where(alive(a), a.dS, 0.0) @ a.k,
        ),
        Setting(padding=1),
        Setting(),
        (
            Thread(
                "tile-ai/tilelang", 2461, 2026,
                "[CI][BugFix] Flash bwd varlen: zero-init lse/Delta padding to avoid NaN in Dk", "pull",
            ),
        ),
    ),
    Cause(
        "address-overflows",
        "An address does not fit 32 bits",
        "Row times width is computed in 32 bits and turns negative for the last rows. The kernel reads another row, or "
        "stops with an illegal address. Here the same with 8 bits.",
        "Arrays of more than 2³¹ numbers; a large batch of short sequences does.",
        "64 bits before the product, not after.",
        ("dQ", "dK"),
        overflowing(8),
        Setting(),
        Setting(batch=1, heads=1),
        (
            Thread(
                "SHI-Labs/NATTEN", 347, 2026,
                "Int32 offset overflow in the compute-delta reduction silently corrupts dQ/dK for long sequences",
            ),
            Thread(
                "Dao-AILab/flash-attention", 2260, 2026, "[FA2] Fix int32 overflow", "pull",
                note="The product was taken before the cast.",
            ),
            Thread(
                "Dao-AILab/flash-attention", 1500, 2025,
                "fix: promote index to type longlong to avoid numerical overflow",
                "pull", note="In the sum of dQ: an illegal address.",
            ),
            Thread(
                "Knowledgator/FlashDeBERTa", 11, 2026, "fix int32 overflow in varlen positional offsets", "pull",
                note="An illegal address.",
            ),
        ),
        in_fact=overflowing(32),
    ),
)  # fmt: skip
