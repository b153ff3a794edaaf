"""One chunk of C tokens of a recurrence, whole: what it reads from the state before it, and the state after it.

.. math::
   H_t = e^{g_t} H_{t-1} + k_t^{\\mathsf T} u_t \\qquad o_t = q_t H_t \\qquad
   u_t = \\beta_t \\bigl(v_t - e^{g_t} k_t H_{t-1}\\bigr) \\text{, or } v_t \\text{ where there is no } \\beta

Equation :eq:`def-var-recurrent`, with e^g for γ. The state H (d_k, d_v) holds what was written: u under k. Over
a chunk, with Γ of :func:`decays`, sums over earlier tokens are products, and the u solve a triangular system, which is
called the WY form of the delta rule:

.. math::
   O = \\Gamma_0 \\circ Q H + (Q K^{\\mathsf T} \\circ \\Gamma)\\,U \\qquad
   H' = \\Gamma_{C0} H + K^{\\mathsf T} (\\Gamma_C^{\\mathsf T} \\circ U) \\qquad
   (I + N)\\,U = \\beta \\circ (V - \\Gamma_0 \\circ K H)

with N = β ∘ K Kᵀ ∘ Γ below the diagonal. A chunk of one token is the recurrence itself, one of all tokens the parallel
form. Sources: Yang et al. 2024, "Gated Delta Networks", eqs. 8–10; Dao and Gu 2024, "Transformers are SSMs", section 6.
"""

from typing import Any, NamedTuple, Self

from array_api_compat import is_torch_namespace

from attnbook.arrays import array_namespace, cumulative_sum, device, mT


class Tokens(NamedTuple):
    """What a chunk takes of its tokens, each (..., C, width): ``beta`` and ``g`` of width 1, the former None for none.

    Their gradients and their tangents are Tokens too.
    """

    q: Any
    k: Any
    v: Any
    beta: Any
    g: Any


def decays(g: Any) -> Any:
    """Γ (..., C, 1 + C): what is left at t of what was written at s, e to the sum of g over s < r ≤ t; 0 for s > t. The
    first column, Γ₀, is for the state before. No sum is a difference of sums: so g may be −∞, and forgets everything.
    """
    xp = array_namespace(g)
    return xp.tril(xp.exp(_sums(xp, g)), k=1)


def decays_vjp(dG: Any, G: Any) -> Any:
    """dg_r sums dΓ ∘ Γ over all that decayed at r: s < r ≤ t."""
    xp = array_namespace(G)
    of_later = xp.flip(cumulative_sum(xp.flip(dG * G, axis=-2), axis=-2), axis=-2)
    return xp.sum(xp.tril(of_later), axis=-1, keepdims=True)


def decays_jvp(tg: Any, G: Any) -> Any:
    return G * _sums(array_namespace(G), tg)


def _sums(xp: Any, g: Any) -> Any:
    return cumulative_sum(xp.tril(xp.broadcast_to(g, (*g.shape[:-1], g.shape[-2] + 1))), axis=-2)


class Parts(NamedTuple):
    """Γ cut up: ``since`` the start (..., C, 1), ``within`` (..., C, C), ``until`` the end (..., C, 1), and ``whole``,
    from start to end (..., 1, 1).
    """

    since: Any
    within: Any
    until: Any
    whole: Any

    @classmethod
    def of(cls, G: Any) -> Self:
        return cls(G[..., :1], G[..., 1:], mT(G[..., -1:, 1:]), G[..., -1:, :1])

    def joined(self) -> Any:
        """The gradient of Γ from those of its parts: what ends the chunk is also in its last row."""
        xp = array_namespace(self.since)
        G = xp.concat([self.since, self.within], axis=-1)
        last = xp.concat([self.whole, mT(self.until)], axis=-1)
        return xp.concat([G[..., :-1, :], G[..., -1:, :] + last], axis=-2)


def _written(x: Any, H: Any, G: Any) -> tuple[Any, ...]:
    """U; and for the delta rule I + N, the products K Kᵀ ∘ Γ below the diagonal, and V − Γ₀ ∘ K H."""
    if x.beta is None:
        return x.v, None, None, None
    xp = array_namespace(x.k)
    products = xp.tril(x.k @ mT(x.k) * G.within, k=-1)
    system = xp.eye(x.k.shape[-2], dtype=x.k.dtype, device=device(x.k)) + x.beta * products
    misses = x.v - G.since * (x.k @ H)
    return _solved(system, x.beta * misses), system, products, misses


def _solved(system: Any, T: Any, upper: bool = False) -> Any:
    """U of ``system`` U = T, which is triangular, with ones on its diagonal: it always has a solution."""
    xp = array_namespace(T)
    if is_torch_namespace(xp):  # whose other way waits for a GPU, to learn whether there is one
        return xp.linalg.solve_triangular(system, T, upper=upper, unitriangular=True)
    return xp.linalg.solve(system, T)


def forward(x: Any, H: Any) -> tuple[Any, ...]:
    """O and the state after."""
    G = Parts.of(decays(x.g))
    U, *_ = _written(x, H, G)
    O = G.since * (x.q @ H) + (x.q @ mT(x.k) * G.within) @ U  # def-var-recurrent
    return O, G.whole * H + mT(x.k) @ (G.until * U)


def vjp(dO: Any, dH: Any, x: Any, H: Any) -> tuple[Any, ...]:
    """The gradients of the tokens and of the state before, from those of O and of the state after."""
    xp = array_namespace(x.q)
    table = decays(x.g)
    G = Parts.of(table)
    U, system, products, misses = _written(x, H, G)
    QK, QH = x.q @ mT(x.k), x.q @ H
    dU = mT(QK * G.within) @ dO + G.until * (x.k @ dH)
    dA = dO @ mT(U)  # A = Q Kᵀ ∘ Γ
    dG = Parts(_rowsum(dO * QH), dA * QK, _rowsum(x.k @ dH * U), xp.sum(dH * H, axis=(-2, -1), keepdims=True))
    dQK = dA * G.within
    dq = dQK @ x.k + G.since * (dO @ mT(H))  # eq-var-recurrent, eq-var-linear-causal
    dk = mT(dQK) @ x.q + (G.until * U) @ mT(dH)
    dH = G.whole * dH + mT(x.q) @ (G.since * dO)
    dv, dbeta = dU, None
    if x.beta is not None:  # k writes above; here it reads, and meets the keys before it
        dW = _solved(mT(system), dU, upper=True)  # (I + N) U = W, so dN = −dW Uᵀ
        dN = -xp.tril(dW @ mT(U), k=-1)
        dv, dbeta = x.beta * dW, _rowsum(dW * misses) + _rowsum(dN * products)  # eq-var-recurrent
        dKK = x.beta * dN * G.within
        dk = dk + (dKK + mT(dKK)) @ x.k - (G.since * dv) @ mT(H)
        dH = dH - mT(x.k) @ (G.since * dv)
        dG = dG._replace(since=dG.since - _rowsum(dv * (x.k @ H)), within=dG.within + x.beta * dN * (x.k @ mT(x.k)))
    return Tokens(dq, dk, dv, dbeta, decays_vjp(dG.joined(), table)), dH


def jvp(tx: Any, tH: Any, x: Any, H: Any) -> tuple[Any, ...]:
    """The tangents of O and of the state after."""
    xp = array_namespace(x.q)
    table = decays(x.g)
    G, tG = Parts.of(table), Parts.of(decays_jvp(tx.g, table))
    U, system, products, misses = _written(x, H, G)
    tU = tx.v
    if x.beta is not None:
        tKK = tx.k @ mT(x.k)
        tproducts = xp.tril((tKK + mT(tKK)) * G.within + x.k @ mT(x.k) * tG.within, k=-1)
        tmisses = tx.v - tG.since * (x.k @ H) - G.since * (tx.k @ H + x.k @ tH)
        tN = tx.beta * products + x.beta * tproducts
        tU = _solved(system, tx.beta * misses + x.beta * tmisses - tN @ U)
    tA = (tx.q @ mT(x.k) + x.q @ mT(tx.k)) * G.within + x.q @ mT(x.k) * tG.within
    tO = tG.since * (x.q @ H) + G.since * (tx.q @ H + x.q @ tH) + tA @ U + (x.q @ mT(x.k) * G.within) @ tU
    tH = G.whole * tH + tG.whole * H + mT(tx.k) @ (G.until * U) + mT(x.k) @ (tG.until * U + G.until * tU)
    return tO, tH


def _rowsum(T: Any) -> Any:
    return array_namespace(T).sum(T, axis=-1, keepdims=True)
