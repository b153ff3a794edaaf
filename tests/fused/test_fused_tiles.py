"""The tiles of 16 bits as they run on a GPU, beside plain torch, at lengths that they do not divide.

By the interpreter only short ones, and no bfloat16: it takes them for float32.
"""

from functools import partial
from itertools import product

import kernels
import pytest
import torch
from cases import Case
from fused_cases import holds
from kernels import DEVICE

from attnbook.ops import Softcap, Window

kernels.triton_or_skip()

LENGTHS, WIDTHS, DTYPES = (127, 129, 1000), (64, 80, 128, 256), (torch.float16, torch.bfloat16)
WINDOW, CAP = (partial(Window, 37, 5, "top-left"), None), (partial(Softcap, 1.5), None)
HOW = {  # the numbers of heads, and options that may depend on the numbers of queries and keys
    "full": (2, 2, lambda n_q, n_k: {}),
    "causal": (2, 2, lambda n_q, n_k: {"causal": True}),
    "window, grouped": (4, 2, lambda n_q, n_k: {"ops": (WINDOW,)}),
    "bias": (2, 2, lambda n_q, n_k: {"bias": (2, n_q, n_k)}),
    "mask": (2, 2, lambda n_q, n_k: {"mask": (n_q, n_k), "dead": True}),
    "all together": (4, 2, lambda n_q, n_k: {"bias": (n_q, n_k), "mask": (4, 1, n_k), "causal": "bottom-right",
                                             "ops": (CAP, WINDOW)}),
}  # fmt: skip
BY_DEFAULT = {(torch.float16, 127, 64, "causal")}
EACH = [
    pytest.param(*of, marks=() if of in BY_DEFAULT or DEVICE != "cpu" else pytest.mark.thorough)
    for of in product(DTYPES, LENGTHS, WIDTHS, HOW)
]


@pytest.mark.parametrize(("dtype", "n", "d", "how"), EACH, ids=str)
def test_as_exact_as_plain_torch(dtype, n, d, how):
    if DEVICE == "cpu" and (dtype == torch.bfloat16 or n > 129):
        pytest.skip("torch CUDA: no GPU here")
    n_q, n_k, (h, h_kv, options) = n + 3, n, HOW[how]
    holds(Case("", q=(h, n_q, d), k=(h_kv, n_k, d), v=(h_kv, n_k, d - 3), **options(n_q, n_k)), dtype)


@pytest.mark.skipif(DEVICE == "cpu", reason="torch CUDA: no GPU here")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [64, 128])
def test_large_scores_in_float32(d, causal):
    """Tiles of unlike shapes make the same score, to the bit: the interpreter's products may not."""
    holds(Case("", q=(2, 131, d), k=(2, 129, d), v=(2, 129, d - 3), causal=causal), size=1000.0)
