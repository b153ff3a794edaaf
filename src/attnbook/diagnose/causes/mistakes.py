"""The catalogue of mistakes: every wrong formula for attention's gradient, once, as the one step that it gets wrong.

Chapter: :doc:`/chapters/in_the_wild`, which has a section for each. The tests plant every one of them in the
package, and :func:`attnbook.diagnose.report.diagnose` recognizes them in anyone's function.
"""

from typing import NamedTuple

import numpy as np

from attnbook.diagnose.steps import Steps, exponentials, normalized, rowsum, softmax, with_mistakes


class Mistake(NamedTuple):
    """A wrong formula.

    ``slug`` names it in links: ``chapters/in_the_wild.html#mistake-SLUG``. ``wrong`` and ``right`` are LaTeX.
    ``equation`` is the label of the right formula in the book. ``spoils`` are the results that come out wrong, in the
    order O, dQ, dK, dV. ``sources`` say what it is related to: rows of the book's audit of its five texts ("S2-10",
    whose claim says whether the text makes it), its list of questions ("question 11"), or a thread; (), where only
    tests plant it. ``steps`` are the steps of :class:`attnbook.diagnose.steps.Steps` that it replaces, by name: of dQ,
    dK and dV ``dQ_unscaled``, ``dK_unscaled`` and ``dV_heads``, to which scale and shared heads come later. Begin
    with the step's own line there and change one thing: what it has for dropout (``dropped``) and memory (``dO_read``)
    stays, or the entry holds two mistakes.
    """

    slug: str
    title: str
    wrong: str
    right: str
    equation: str
    spoils: tuple
    sources: tuple
    steps: dict

    def run(self, Q, K, V, dO, **options):
        """(O, dQ, dK, dV) as someone gets them who makes this mistake. May raise where its shapes do not fit."""
        return with_mistakes(self)(Q, K, V, dO, **options).run()


# --- wrong steps that take more than a line -----------------------------------------------------------------------


def _halves(a, T):
    """T summed over each half of the keys, spread over that half: what one of two devices knows."""
    cut = a.n_k // 2
    parts = (slice(None, cut), slice(cut, None))
    return np.concatenate([np.broadcast_to(rowsum(T[..., part]), T[..., part].shape) for part in parts], axis=-1)


def _softmax_of_halves(a):
    cut = a.n_k // 2
    return np.concatenate([softmax(S) if S.size else S for S in (a.S[..., :cut], a.S[..., cut:])], axis=-1)


def _exp_of_scores_less_L(a):
    M = a.S.max(axis=-1, keepdims=True, initial=-np.inf)
    M = np.where(np.isneginf(M), np.inf, M)  # a dead row: L = +∞, so that its weights are 0
    return np.exp(a.scores - M) / np.where(np.isinf(M), 1.0, rowsum(np.exp(a.S - M)))


def _nan_in_dead_rows(a):
    E = np.exp(a.S - a.S.max(axis=-1, keepdims=True, initial=-np.inf))
    return E / rowsum(E)


_SOFTMAX = r"dS = P \circ \bigl(dP - \operatorname{rowsum}(P \circ dP)\bigr)"
_MASK = r"S_{ij} = -\infty \text{ where } j \text{ is forbidden to } i"
_QK, _ALL = ("dQ", "dK"), ("O", "dQ", "dK", "dV")

MISTAKES = (
    # --- the step through softmax
    Mistake(
        "ds-matrix-product", "dS is dP∘P − P dPᵀ P: other queries are mixed in",
        r"dS = dP \circ P - P\,dP^{\mathsf T} P", _SOFTMAX, "eq-dS", _QK, ("S2-5", "S2-6", "S2-22"),
        {"dS": lambda a: a.dP * a.P_backward - a.P_backward @ a.transpose(a.dP) @ a.P_backward},
    ),
    Mistake(
        "ds-mean", "the mean in place of the weighted sum",
        r"dS = P \circ dP - \operatorname{rowmean}(P \circ dP)", _SOFTMAX, "eq-dS", _QK, ("S2-29", "S2-30"),
        {"dS": lambda a: a.P_backward * a.dP - rowsum(a.P_backward * a.dP) / a.n_k},
    ),
    Mistake(
        "ds-diagonal", "only the diagonal of softmax's Jacobian, p(1 − p)",
        r"dS = P \circ (1 - P) \circ dP", _SOFTMAX, "eq-softmax-vjp", _QK, ("question 2",),
        {"dS": lambda a: a.P_backward * (1 - a.P_backward) * a.dP},
    ),
    Mistake(
        "ds-skipped", "the step through softmax is skipped: dS = dP",
        r"dS = dP", _SOFTMAX, "eq-dS", _QK, ("S4-7", "S4-8", "S4-10", "question 10"),
        {"dS": lambda a: a.dP},
    ),
    Mistake(
        "ds-no-row-sum", "D is missing: dS = P∘dP",
        r"dS = P \circ dP", _SOFTMAX, "eq-dS", _QK, ("S2-20",),
        {"dS": lambda a: a.P_backward * a.dP},
    ),
    Mistake(
        "ds-row-sum-not-weighted", "the row sum is subtracted without its weight P",
        r"dS = P \circ dP - \operatorname{rowsum}(P \circ dP)", _SOFTMAX, "eq-dS", _QK, (),
        {"dS": lambda a: a.P_backward * a.dP - a.D},
    ),
    Mistake(
        "ds-sign", "D is added, not subtracted",
        r"dS = P \circ \bigl(dP + \operatorname{rowsum}(P \circ dP)\bigr)", _SOFTMAX, "eq-dS", _QK, (),
        {"dS": lambda a: a.P_backward * (a.dP + a.D)},
    ),
    Mistake(
        "ds-column-sum", "summed over the queries, not over the keys",
        r"dS_{ij} = P_{ij}\bigl(dP_{ij} - \textstyle\sum_k P_{kj}\,dP_{kj}\bigr)", _SOFTMAX, "eq-dS", _QK,
        ("S2-58", "question 4"),
        {"D": lambda a: (a.P_backward * a.dP).sum(axis=-2, keepdims=True)},
    ),
    Mistake(
        "ds-one-scalar", "one number for all rows: the whole table taken for one softmax",
        r"dS = P \circ \bigl(dP - \textstyle\sum_{ik} P_{ik}\,dP_{ik}\bigr)", _SOFTMAX, "eq-dS", _QK,
        ("S2-58", "question 3", "question 6"),
        {"D": lambda a: (a.P_backward * a.dP).sum(axis=(-2, -1), keepdims=True)},
    ),
    Mistake(
        "ds-identity-minus-p", "the Jacobian as P*(I − P): −p_k² beside the diagonal",
        r"dS = P \circ \bigl(dP - P \circ \operatorname{rowsum}(dP)\bigr)", _SOFTMAX, "eq-softmax-jacobian", _QK,
        ("S2-4",),
        {"dS": lambda a: a.P_backward * (a.dP - a.P_backward * rowsum(a.dP))},
    ),
    Mistake(
        "ds-zero", "the Jacobian summed along an axis, which gives 0",
        r"dS_{ij} = dP_{ij} \textstyle\sum_k \partial P_{ij} / \partial S_{ik} = 0", _SOFTMAX, "eq-softmax-jacobian",
        _QK, ("S2-4", "question 5"),
        {"dS": lambda a: 0 * a.dP},
    ),
    Mistake(
        "d-local", "D from one device's keys only",
        r"D_i = \textstyle\sum_{j \in \text{local}} P_{ij}\,dP_{ij}", r"D_i = \textstyle\sum_j P_{ij}\,dP_{ij}", "eq-D",
        _QK, ("question 57",),
        {"D": lambda a: _halves(a, a.P_backward * a.dP)},
    ),
    Mistake(
        "l-local", "L and D from one device's keys only",
        r"P_{ij} = e^{S_{ij} - L_i^{\text{local}}}", r"P_{ij} = e^{S_{ij} - L_i}", "eq-softmax-from-logsumexp",
        ("dQ", "dK", "dV"), ("question 57",),
        {"P_backward": _softmax_of_halves, "D": lambda a: _halves(a, a.P_backward * a.dP)},
    ),
    # --- products and transposes
    Mistake(
        "dk-transposed", "dK is Qᵀ dS: transposed",
        r"dK = \text{scale} \cdot Q^{\mathsf T} dS", r"dK = \text{scale} \cdot dS^{\mathsf T} Q", "eq-dK", ("dK",),
        ("S2-10", "S2-12"),
        {"dK_unscaled": lambda a: a.transpose(a.Q) @ a.dS},
    ),
    Mistake(
        "dk-q-dst", "dK is Q dSᵀ: the factors in the wrong order",
        r"dK = \text{scale} \cdot Q\,dS^{\mathsf T}", r"dK = \text{scale} \cdot dS^{\mathsf T} Q", "eq-dK", ("dK",),
        ("question 11", "flash-attention#373"),
        {"dK_unscaled": lambda a: a.Q @ a.transpose(a.dS)},
    ),
    Mistake(
        "dk-ds-qt", "dK is dS Qᵀ: the wrong one is transposed",
        r"dK = \text{scale} \cdot dS\,Q^{\mathsf T}", r"dK = \text{scale} \cdot dS^{\mathsf T} Q", "eq-dK", ("dK",),
        ("S4-9",),
        {"dK_unscaled": lambda a: a.dS @ a.transpose(a.Q)},
    ),
    Mistake(
        "dk-not-transposed", "dK is dS Q: dS is not transposed",
        r"dK = \text{scale} \cdot dS\,Q", r"dK = \text{scale} \cdot dS^{\mathsf T} Q", "eq-dK", ("dK",),
        (),
        {"dK_unscaled": lambda a: a.dS @ a.Q},
    ),
    Mistake(
        "dq-transposed", "dQ is dSᵀ K: dS is transposed",
        r"dQ = \text{scale} \cdot dS^{\mathsf T} K", r"dQ = \text{scale} \cdot dS\,K", "eq-dQ", ("dQ",),
        (),
        {"dQ_unscaled": lambda a: a.transpose(a.dS) @ a.k},
    ),
    Mistake(
        "dv-not-transposed", "dV is P dO: P is not transposed",
        r"dV = P\,dO", r"dV = P^{\mathsf T} dO", "eq-dV", ("dV",), ("S2-28",),
        {"dV_heads": lambda a: a.P_backward @ a.dO},
    ),
    Mistake(
        "dp-not-transposed", "dP is dO V: V is not transposed",
        r"dP = dO\,V", r"dP = dO\,V^{\mathsf T}", "eq-dP", _QK, (),
        {"dP": lambda a: a.dO @ a.v},
    ),
    Mistake(
        "all-axes-transposed", ".T, which reverses the batch axes too",
        r"T^{\mathsf T}_{j i b} = T_{b i j}", r"T^{\mathsf T}_{b j i} = T_{b i j}", "def-attention", _ALL,
        ("X-3", "S2-34"),
        {"transpose": lambda a, T: T.T},
    ),
    Mistake(
        "dk-dv-swapped", "dK and dV are returned in each other's place",
        r"(dQ,\; dV,\; dK)", r"(dQ,\; dK,\; dV)", "eq-dK", ("dK", "dV"), (),
        {"dK": lambda a: Steps.dV.func(a), "dV": lambda a: Steps.dK.func(a)},
    ),
    Mistake(
        "dv-unnormalized", "dV from exponentials that were never divided by their sum",
        r"dV = \bigl(e^{S - \max}\bigr)^{\mathsf T} dO", r"dV = P^{\mathsf T} dO", "eq-dV", ("dV",), (),
        {"dV_heads": lambda a: a.transpose(exponentials(a.S)) @ a.dO},
    ),
    # --- the scale
    Mistake(
        "scale-missing-in-dq", "the scale is missing in dQ",
        r"dQ = dS\,K", r"dQ = \text{scale} \cdot dS\,K", "eq-dQ", ("dQ",), ("S3-2", "S4-7", "question 12"),
        {"dQ_scale": lambda a: 1},
    ),
    Mistake(
        "scale-missing-in-dk", "the scale is missing in dK",
        r"dK = dS^{\mathsf T} Q", r"dK = \text{scale} \cdot dS^{\mathsf T} Q", "eq-dK", ("dK",),
        ("S3-2", "S4-10", "question 12"),
        {"dK_scale": lambda a: 1},
    ),
    Mistake(
        "scale-missing-in-backward", "the scale is missing in dQ and in dK",
        r"dQ = dS\,K \quad dK = dS^{\mathsf T} Q",
        r"dQ = \text{scale} \cdot dS\,K \quad dK = \text{scale} \cdot dS^{\mathsf T} Q", "eq-op-scale", _QK,
        ("S3-2", "S4-6", "S4-7", "question 12"),
        {"dQ_scale": lambda a: 1, "dK_scale": lambda a: 1},
    ),
    Mistake(
        "scale-twice", "the scale is applied twice in the backward",
        r"dQ = \text{scale}^2 \cdot dS\,K", r"dQ = \text{scale} \cdot dS\,K", "eq-op-scale", _QK,
        ("S3-2", "question 12"),
        {"dQ_scale": lambda a: a.scale**2, "dK_scale": lambda a: a.scale**2},
    ),
    Mistake(
        "scale-in-dv", "the scale is in dV, where it has no place",
        r"dV = \text{scale} \cdot P^{\mathsf T} dO", r"dV = P^{\mathsf T} dO", "eq-dV", ("dV",), ("question 12",),
        {"dV": lambda a: a.scale * Steps.dV.func(a)},
    ),
    Mistake(
        "no-scale", "the scores are not scaled at all",
        r"S = Q K^{\mathsf T}", r"S = Q K^{\mathsf T} / \sqrt{d_k}", "def-attention", _ALL, ("S2-51", "S3-2", "S4-1"),
        {"width": lambda a: 1},
    ),
    Mistake(
        "scale-without-root", "divided by d_k, not by √d_k",
        r"S = Q K^{\mathsf T} / d_k", r"S = Q K^{\mathsf T} / \sqrt{d_k}", "def-attention", _ALL, (),
        {"width": lambda a: a.d_k**2},
    ),
    Mistake(
        "scale-of-values", "the scale is made of the width of the values",
        r"S = Q K^{\mathsf T} / \sqrt{d_v}", r"S = Q K^{\mathsf T} / \sqrt{d_k}", "def-attention", _ALL,
        (),
        {"width": lambda a: a.d_v},
    ),
    Mistake(
        "scale-of-model", "the scale is made of the width of all heads together",
        r"S = Q K^{\mathsf T} / \sqrt{h\,d_k}", r"S = Q K^{\mathsf T} / \sqrt{d_k}", "def-attention", _ALL,
        (),
        {"width": lambda a: a.h * a.d_k},
    ),
    Mistake(
        "scale-of-padding", "the scale is made of a width padded to a multiple of 8",
        r"S = Q K^{\mathsf T} / \sqrt{8 \lceil d_k / 8 \rceil}", r"S = Q K^{\mathsf T} / \sqrt{d_k}", "def-attention",
        _ALL, ("question 12",),
        {"width": lambda a: -(-a.d_k // 8) * 8},
    ),
    Mistake(
        "base-two-dq", "base-2 exponentials: ln 2 is missing in dQ",
        r"dQ = \text{scale} \cdot \log_2 e \cdot dS\,K", r"dQ = \text{scale} \cdot dS\,K", "eq-dQ", ("dQ",),
        ("question 52",),
        {"dQ_scale": lambda a: a.scale / np.log(2)},
    ),
    # --- softmax, forward
    Mistake(
        "softmax-over-queries", "softmax over the queries: columns, not rows",
        r"P_{ij} = e^{S_{ij}} / \textstyle\sum_k e^{S_{kj}}", r"P_{ij} = e^{S_{ij}} / \textstyle\sum_k e^{S_{ik}}",
        "def-softmax", _ALL, ("S0-2",),
        {"P": lambda a: softmax(a.S, axis=-2), "D": lambda a: (a.P * a.dP).sum(axis=-2, keepdims=True)},
    ),
    Mistake(
        "softmax-of-the-table", "softmax over the whole table, not row by row",
        r"P_{ij} = e^{S_{ij}} / \textstyle\sum_{lk} e^{S_{lk}}", r"P_{ij} = e^{S_{ij}} / \textstyle\sum_k e^{S_{ik}}",
        "def-softmax", _ALL, ("question 6",),
        {
            "P": lambda a: softmax(a.S.reshape(*a.S.shape[:-2], -1)).reshape(a.S.shape),
            "D": lambda a: (a.P * a.dP).sum(axis=(-2, -1), keepdims=True),
        },
    ),
    Mistake(
        "no-row-maximum", "the row's maximum is not subtracted: large scores overflow",
        r"P_{ij} = e^{S_{ij}} / \textstyle\sum_k e^{S_{ik}}",
        r"P_{ij} = e^{S_{ij} - m_i} / \textstyle\sum_k e^{S_{ik} - m_i}", "eq-softmax-stable", _ALL,
        ("S1-15", "S2-14"),
        {"P": lambda a: normalized(np.exp(a.S))},
    ),
    # --- masks
    Mistake(
        "mask-after-softmax", "the mask is put on the weights, and the rows are not renormalized",
        r"P = M \circ \operatorname{softmax}(S)", _MASK, "eq-op-mask", _ALL, ("S0-6", "question 24"),
        {
            "P": lambda a: a.allowed * softmax(a.scores),
            "D": lambda a: rowsum(a.P * a.dP),
            "dS": lambda a: a.P * a.dP - softmax(a.scores) * a.D,
        },
    ),
    Mistake(
        "mask-multiplies-scores", "forbidden scores are set to 0, which is e⁰ = 1 to softmax",
        r"S_{ij} = 0", _MASK, "eq-op-mask", _ALL, ("S0-6", "question 23"),
        {"S": lambda a: a.allowed * a.scores, "dS": lambda a: a.allowed * Steps.dS.func(a)},
    ),
    Mistake(
        "mask-lowest-number", "a finite number, such as the lowest, in place of −∞: a dead row is the mean of V",
        r"S_{ij} = \text{finfo.min}", _MASK, "eq-op-mask", ("O", "dV"), ("S0-7", "question 27", "question 28"),
        {
            "S": lambda a: np.where(a.allowed, a.scores, np.finfo(np.float64).min),
            "dS": lambda a: a.allowed * Steps.dS.func(a),
        },
    ),
    Mistake(
        "mask-minus-1e9", "a finite number, such as −1e9, is added in place of −∞: a dead row is not masked at all",
        r"S_{ij} = S_{ij} - 10^9", _MASK, "eq-op-mask", _ALL, ("S0-7", "question 27"),
        {"S": lambda a: a.scores + np.where(a.allowed, 0.0, -1e9)},
    ),
    Mistake(
        "mask-inverted", "True is taken to mean: forbidden",
        r"S_{ij} = -\infty \text{ where } M_{ij}", r"S_{ij} = -\infty \text{ where not } M_{ij}", "eq-op-mask", _ALL,
        ("question 29",),
        {"mask_allows": lambda a: Steps.mask_allows.func(a) ^ (a.mask is not None)},
    ),
    Mistake(
        "mask-added", "the mask is added to the scores as 0 and 1",
        r"S = S + M", _MASK, "eq-op-mask", _ALL, ("question 30",),
        {"S": lambda a: np.where(a.causal_allows, a.scores + (0 if a.mask is None else a.mask), -np.inf)},
    ),
    Mistake(
        "dead-row-nan", "a row with no allowed key gives 0/0",
        r"O_i = \text{NaN}", r"O_i = 0", "def-softmax-dead-row", _ALL,
        ("S0-7", "question 25", "question 26", "question 35"),
        {"P": _nan_in_dead_rows},
    ),
    Mistake(
        "mask-forgotten-in-backward", "the backward computes the weights again, without the mask",
        r"P = \operatorname{softmax}(S) \text{ with no mask}", r"P = \operatorname{softmax}(S)", "eq-op-mask",
        ("dQ", "dK", "dV"), ("question 34",),
        {"P_backward": lambda a: softmax(a.scores)},
    ),
    Mistake(
        "mask-forgotten-with-l", "the backward computes exp(S − L) with the mask's L, but without the mask",
        r"P = e^{S - L} \text{ at forbidden keys too}", r"P = e^{S - L},\; 0 \text{ at forbidden keys}",
        "eq-softmax-from-logsumexp", ("dQ", "dK", "dV"), ("question 34", "question 35"),
        {"P_backward": _exp_of_scores_less_L, "D": lambda a: rowsum(a.P * a.dP)},
    ),
    Mistake(
        "causal-bottom-right", "causal is lined up at the bottom right, not at the top left",
        r"j \le i + n_k - n_q", r"j \le i", "eq-op-causal", _ALL, ("question 31",),
        {"corner": lambda a: "bottom-right" if a.causal else None},
    ),
    Mistake(
        "causal-top-left", "causal is lined up at the top left, where the bottom right was asked for",
        r"j \le i", r"j \le i + n_k - n_q", "eq-op-causal", _ALL, ("question 31",),
        {"corner": lambda a: {"bottom-right": "top-left"}.get(corner := Steps.corner.func(a), corner)},
    ),
    # --- shared key heads
    Mistake(
        "group-mean", "the mean over the query heads that share a key head, not their sum",
        r"dK_g = \tfrac{1}{|g|} \textstyle\sum_{r \in g} dK_r", r"dK_g = \textstyle\sum_{r \in g} dK_r",
        "eq-broadcast-vjp", ("dK", "dV"), ("question 42",),
        {"gather": lambda a, dT: Steps.gather(a, dT) * a.h_kv / a.h},
    ),
    Mistake(
        "group-tiled", "repeat in place of repeat_interleave: heads share with strangers",
        r"\text{head } r \text{ reads key head } r \bmod h_{kv}",
        r"\text{head } r \text{ reads key head } \lfloor r\,h_{kv} / h \rfloor", "def-attention", _ALL,
        ("question 42",),
        {
            "share": lambda a, T: np.concatenate([T] * (a.h // a.h_kv), axis=-3) if a.h != a.h_kv else T,
            "gather": lambda a, dT: sum(np.split(dT, a.h // a.h_kv, axis=-3)) if a.h != a.h_kv else dT,
        },
    ),
)  # fmt: skip
"""Every mistake, in the order of the calculation, with those that spoil a gradient first."""

MISTAKE = {mistake.slug: mistake for mistake in MISTAKES}
"""The same by slug."""
