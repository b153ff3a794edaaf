"""The battery that ``diagnose`` runs, cases that keep causes apart. Chapter: :doc:`/chapters/in_the_wild`.

Where sizes differ, a wrong transpose has a wrong shape; where they are equal, it runs, and shows its values. A mistake
about a mask shows only where there is one; one about rows, only where there are several.
"""

from dataclasses import dataclass, field, replace

import numpy as np

LARGE = {"float64": 1500.0, "float32": 1500.0, "float16": 60.0, "bfloat16": 1500.0}
"""Scores whose exponentials overflow, while products of queries and keys do not."""


@dataclass(frozen=True, eq=False)
class Case:
    """One call: Q, K, V, dO in float64 NumPy, to be handed over in ``dtype``, with ``options``.

    ``optional`` marks what a right function may refuse: to share key heads, a second dtype, the other corner.
    """

    name: str
    inputs: tuple
    options: dict = field(default_factory=dict)
    dtype: str = "float64"
    optional: bool = False

    @property
    def grouped(self):
        """Whether several query heads share a key head."""
        Q, K = self.inputs[:2]
        return Q.ndim > 2 and Q.shape[-3] != K.shape[-3]

    def with_four_axes(self):
        """The same with axes of length 1 in front, for what takes four axes only; None where all have four."""

        def wide(T):
            return T.reshape((1,) * (4 - T.ndim) + T.shape) if isinstance(T, np.ndarray) else T

        arrays = [T for T in (*self.inputs, *self.options.values()) if isinstance(T, np.ndarray)]
        if all(T.ndim == 4 for T in arrays):
            return None
        options = {name: wide(value) for name, value in self.options.items()}
        return replace(self, inputs=tuple(map(wide, self.inputs)), options=options)


def battery(seed=0, dtype="float64"):
    """The cases, simple ones first. The seed draws the numbers and, but for 0, the sizes too."""
    rng = np.random.default_rng(seed)
    n_q, n_k, d_k, d_v = 5, 7, 11, 13
    if seed:
        n_q, n_k = np.sort(rng.choice([3, 5, 7, 11], size=2, replace=False)).tolist()
        d_k, d_v = rng.choice([2, 13, 17, 19], size=2, replace=False).tolist()
    b, h, n = 2, 3, 4

    def normal(*shape):
        return rng.standard_normal(shape)

    def case(name, lead=(b, h), *, of=None, lead_k=None, optional=False, dtype=dtype, **options):
        n_q_, n_k_, d_k_, d_v_ = of or (n_q, n_k, d_k, d_v)
        lead_k = lead if lead_k is None else lead_k
        Q, K, V = normal(*lead, n_q_, d_k_), normal(*lead_k, n_k_, d_k_), normal(*lead_k, n_k_, d_v_)
        return Case(name, (Q, K, V, normal(*lead, n_q_, d_v_)), options, dtype, optional)

    def mask(*shape, dead=False):
        M = rng.random(shape) < 0.5
        M[..., 0], M[..., 1] = True, False  # by chance no row is dead, also under causal, and none allows all
        if dead:
            M[..., 1, :] = False
        return M

    fewer = (n_k, n_q, d_k, d_v)
    cases = [
        case("plain", ()),
        case("batch and heads"),
        case("one query", (h,), of=(1, n_k, d_k, d_v)),
        case("one key", (h,), of=(n_q, 1, d_k, d_v)),
        case("square", (), of=(n, n, n, n)),
        case("square, with heads", of=(n, n, n, n)),
        case("all axes equal", (n, n), of=(n, n, n, n)),
        case("mask", mask=mask(b, 1, n_q, n_k)),
        case("mask of padding", mask=mask(b, 1, 1, n_k)),
        case("mask with a dead row", mask=mask(h, n_q, n_k, dead=True)),
        case("bias", bias=normal(b, h, n_q, n_k)),
        case("bias, broadcast", bias=normal(h, 1, n_k)),
        case("causal, more keys", causal=True),
        case("causal, fewer keys", of=fewer, causal=True),
        case("scale", scale=0.7),
        case("all options", mask=mask(n_q, n_k), bias=normal(n_q, n_k), causal=True, scale=0.7),
        case("bottom-right, more keys", optional=True, causal="bottom-right"),
        case("bottom-right, fewer keys", of=fewer, optional=True, causal="bottom-right"),
        case("grouped heads", (b, 2 * h), lead_k=(b, h), optional=True),
        case("one key head", lead_k=(b, 1), optional=True),
        _enlarged(case("large scores"), LARGE[dtype]),
    ]
    return cases + [
        case(other, dtype=other, optional=True) for other in ("float32", "float16") if other != dtype
    ]  # fmt: skip


def _enlarged(case, size):
    """The case with queries and keys so large that the largest score is ``size``."""
    Q, K, V, dO = case.inputs
    top = np.max(np.abs(Q @ np.swapaxes(K, -1, -2))) * Q.shape[-1] ** -0.5
    factor = (size / top) ** 0.5
    return Case(case.name, (factor * Q, factor * K, V, dO), case.options, case.dtype, case.optional)
