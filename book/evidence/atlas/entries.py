"""What a row of the atlas is: a thread, the cause that it tells of, and the calls that show and hide it.

Page: :doc:`/book/atlas`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

LIBRARIES = {
    "Dao-AILab/flash-attention": "flash-attention",
    "ROCm/flash-attention": "flash-attention",
    "pytorch/pytorch": "PyTorch",
    "pytorch/executorch": "PyTorch",
    "pytorch/xla": "PyTorch",
    "jax-ml/jax": "JAX",
    "ml-explore/mlx": "MLX",
    "triton-lang/triton": "Triton",
    "evintunador/triton_docs_tutorials": "Triton",
    "tile-ai/tilelang": "TileLang",
    "tile-ai/tilelang-ascend": "TileLang",
    "NVIDIA/TransformerEngine": "TransformerEngine",
    "NVIDIA/Megatron-LM": "Megatron-LM",
    "ISEEKYAN/Megatron-LM": "Megatron-LM",
    "bigcode-project/Megatron-LM": "Megatron-LM",
    "NVIDIA-NeMo/Megatron-Bridge": "Megatron-LM",
    "NVIDIA/cudnn-frontend": "cuDNN",
    "NVIDIA/apex": "Apex",
    "huggingface/diffusers": "diffusers",
    "huggingface/transformers": "transformers",
    "huggingface/candle": "candle",
    "PaddlePaddle/Paddle": "Paddle",
    "PaddlePaddle/PaddleFleet": "Paddle",
    "zhuzilin/ring-flash-attention": "ring-flash-attention",
    "feifeibear/long-context-attention": "long-context-attention",
    "facebookresearch/xformers": "xFormers",
    "AI-Hypercomputer/maxtext": "MaxText",
    "deepspeedai/DeepSpeed": "DeepSpeed",
    "SHI-Labs/NATTEN": "NATTEN",
}
"""The libraries that a filter offers by name; all others are "other"."""


class Thread(NamedTuple):
    """An issue or a pull request: ``repository`` as GitHub spells it, ``title`` as it stands there, quoted.

    ``kind`` is "issues" or "pull". ``note`` says what is particular to this thread, where anything is. ``fixed`` are
    numbers of pull requests of the same repository that propose a fix, merged or not. ``read`` says how far it was
    read; ``stated`` whether what was read states the cause, or the cause is our inference from the symptom.
    """

    repository: str
    number: int
    year: int
    title: str
    kind: str = "issues"
    note: str = ""
    fixed: tuple = ()
    read: str = "excerpt"
    stated: bool = True

    @property
    def address(self):
        """Where it is."""
        return f"https://github.com/{self.repository}/{self.kind}/{self.number}"

    @property
    def library(self):
        """The library, as the filter has it."""
        return LIBRARIES.get(self.repository, "other")


@dataclass(frozen=True)
class Setting:
    """One call: the sizes, the options, and how the arrays lie in memory.

    ``heads`` are those of the queries, ``key_heads`` those of keys and values where they are fewer. ``padding`` forbids
    so many of the last keys to all queries, and all keys to so many of the last queries. ``memory`` is {name: "heads
    third" | "sliced"}, for Q, K, V, dO; the others are contiguous. ``ones``: dO is 1 everywhere. ``options`` are handed
    over as they are; one that is callable is called with this setting and a generator of random numbers first.
    """

    n_q: int = 5
    n_k: int = 7
    d_k: int = 11
    d_v: int = 13
    batch: int = 2
    heads: int = 3
    key_heads: int | None = None
    padding: int = 0
    memory: dict = field(default_factory=dict)
    ones: bool = False
    options: dict = field(default_factory=dict)

    def draw(self):
        """(Q, K, V, dO) and the options: the same numbers each time."""
        rng = np.random.default_rng(18)
        of_keys = self.heads if self.key_heads is None else self.key_heads
        shapes = {
            "Q": (self.batch, self.heads, self.n_q, self.d_k),
            "K": (self.batch, of_keys, self.n_k, self.d_k),
            "V": (self.batch, of_keys, self.n_k, self.d_v),
            "dO": (self.batch, self.heads, self.n_q, self.d_v),
        }
        drawn = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
        if self.ones:
            drawn["dO"] = np.ones(shapes["dO"])
        options = {name: value(self, rng) if callable(value) else value for name, value in self.options.items()}
        if self.padding:
            options["mask"] = np.ones((self.n_q, self.n_k), dtype=bool)
            options["mask"][:, -self.padding :] = options["mask"][-self.padding :] = False
        return [lying(T, self.memory.get(name, "")) for name, T in drawn.items()], options


def lying(T, how):
    """The same numbers in memory that lies in another way."""
    if how == "heads third":
        return np.swapaxes(np.ascontiguousarray(np.swapaxes(T, -3, -2)), -3, -2)
    if how == "sliced":
        return np.concatenate([T, T + 1, T + 2], axis=-1)[..., : T.shape[-1]]
    return np.ascontiguousarray(T)


class Cause(NamedTuple):
    """One cause, with every thread that tells of it.

    ``run(Q, K, V, dO, **options)`` makes the mistake: a dict of results by name, of which O, dQ, dK, dV are always
    there; what is absent is None. ``right`` is the same without it. In the call ``shows`` exactly the results of
    ``spoils`` are wrong, or the call ends in an exception: ``spoils`` is then ("raises",). In the call ``hides``, where
    there is one, all are right: a test of that kind cannot see it. ``in_fact`` is the mistake at the size that it has
    in the threads, where ``run`` makes it small enough to run: what ``diagnose`` is asked about.
    """

    slug: str
    title: str
    cause: str
    needs: str
    fix: str
    spoils: tuple
    run: Callable
    shows: Setting
    hides: Setting | None
    threads: tuple
    right: Callable | None = None
    in_fact: Callable | None = None
