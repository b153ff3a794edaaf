"""Norms of rows: divided by their root mean square or by their length, and multiplied by a gain. Chapter:
:doc:`/chapters/09_variants`.

Both are one formula, with another m: the width for the mean square, 1 for the length. Where eps = 0, a row of zeros has
no direction; it stays 0, and so does its gradient. So does a row whose squares are
too small for a number, and one whose squares are too large.
"""

from typing import Any, Generic, NamedTuple, Self

from attnbook.arguments import check_broadcasts, check_eps, check_shape, choose
from attnbook.arrays import agree, array_namespace, expected, narrow, unbroadcast, widen
from attnbook.types import AnyArray, Array, described


@described
class NormGrads(NamedTuple, Generic[Array]):
    """The gradients of :func:`.rms_norm` or :func:`.l2_norm`."""

    dX: Array
    """(..., n), like X."""
    dgain: Array | None
    """The shape of the gain, summed over all rows; None where there was none."""


def rms_norm(X: Array, gain: AnyArray | None = None, eps: float = 1e-6) -> Array:
    """Divide each row by its root mean square, and multiply its columns by a gain.

    .. math:: Y = g \\circ \\hat X \\qquad \\hat x = x / r \\qquad r = \\sqrt{x \\cdot x / m + \\text{eps}}
       \\qquad m = d

    The normalization of :eq:`eq-var-rms`.

    Parameters
    ----------
    X : array (..., d)
    gain : array, optional
        One number a column, (d,); or what else broadcasts to X. In Gemma it is 1 + the weight.
    eps : float
        Added to the mean of the squares.

    Returns
    -------
    Y : array like X

    Raises
    ------
    TypeError
        X is no array of floats, or gain none like X.
    ValueError
        The last axis of X is empty or missing, gain does not broadcast to X, or eps is no finite number of at least 0.
    """
    return _norm(X, gain, eps, "rms")


def rms_norm_vjp(dY: Array, X: Array, gain: AnyArray | None = None, eps: float = 1e-6) -> NormGrads[Array]:
    """Pull a gradient back through :func:`.rms_norm`: a projection, almost, for x moves its own mean square.

    .. math::
       d\\hat x = g \\circ dy \\qquad dx = \\frac1r\\Bigl(d\\hat x - \\hat x\\,\\frac{\\hat x \\cdot d\\hat x}m\\Bigr)
       \\qquad dg = \\textstyle\\sum_{\\text{rows}} dy \\circ \\hat x

    Equation :eq:`eq-var-rms`.

    Parameters
    ----------
    dY : array like X
    X, gain, eps
        As :func:`rms_norm` had them.

    Returns
    -------
    NormGrads

    Raises
    ------
    TypeError
        dY is no array like X; or as for :func:`rms_norm`.
    ValueError
        dY has not the shape of X, or what :func:`rms_norm` refuses.
    """
    return _norm_vjp(dY, X, gain, eps, "rms")


def rms_norm_jvp(tX: Array, tgain: AnyArray | None, X: Array, gain: AnyArray | None = None, eps: float = 1e-6) -> Array:
    """Push changes of the rows and of the gain forward; the Jacobian of x̂ is symmetric, so it is the same map.

    .. math::
       \\dot{\\hat x} = \\frac1r\\Bigl(\\dot x - \\hat x\\,\\frac{\\hat x \\cdot \\dot x}m\\Bigr) \\qquad
       \\dot y = g \\circ \\dot{\\hat x} + \\dot g \\circ \\hat x

    See :eq:`eq-var-rms`.

    Parameters
    ----------
    tX, tgain : arrays of the shapes of X and gain
        The latter may be None.
    X, gain, eps
        As above.

    Returns
    -------
    tY : array like X

    Raises
    ------
    TypeError
        tX or tgain is no array like X, or as for :func:`rms_norm`.
    ValueError
        A tangent has not the shape of its variable, or tgain comes without a gain; and what :func:`rms_norm` refuses.
    """
    return _norm_jvp(tX, tgain, X, gain, eps, "rms")


def l2_norm(X: Array, gain: AnyArray | None = None, eps: float = 1e-6) -> Array:
    """Divide each row by its length, and multiply its columns by a gain.

    .. math:: Y = g \\circ X / r \\qquad r = \\sqrt{x \\cdot x + \\text{eps}}

    That of :func:`rms_norm` with m = 1; see :eq:`eq-var-norm-vjp`.

    Parameters
    ----------
    X, gain, eps
        As for :func:`rms_norm`.

    Returns
    -------
    Y : array like X

    Raises
    ------
    TypeError, ValueError
        As :func:`rms_norm`, with the same words.
    """
    return _norm(X, gain, eps, "l2")


def l2_norm_vjp(dY: Array, X: Array, gain: AnyArray | None = None, eps: float = 1e-6) -> NormGrads[Array]:
    """Pull a gradient back through :func:`.l2_norm`.

    .. math:: dx = \\frac1r\\bigl(d\\hat x - \\hat x\\,(\\hat x \\cdot d\\hat x)\\bigr) \\qquad d\\hat x = g \\circ dy

    Equation :eq:`eq-var-norm-vjp`: what is left is perpendicular to x, where eps = 0.

    Parameters
    ----------
    dY, X, gain, eps
        As for :func:`rms_norm_vjp`.

    Returns
    -------
    NormGrads

    Raises
    ------
    TypeError, ValueError
        As :func:`rms_norm_vjp`.
    """
    return _norm_vjp(dY, X, gain, eps, "l2")


def l2_norm_jvp(tX: Array, tgain: AnyArray | None, X: Array, gain: AnyArray | None = None, eps: float = 1e-6) -> Array:
    """Push changes of the rows and of the gain forward through :func:`.l2_norm`.

    .. math:: \\dot{\\hat x} = \\frac1r\\bigl(\\dot x - \\hat x\\,(\\hat x \\cdot \\dot x)\\bigr)

    The same map as for the vjp, :eq:`eq-var-norm-vjp`.

    Parameters
    ----------
    tX, tgain, X, gain, eps
        As for :func:`rms_norm_jvp`.

    Returns
    -------
    tY : array like X

    Raises
    ------
    TypeError, ValueError
        As :func:`rms_norm_jvp`.
    """
    return _norm_jvp(tX, tgain, X, gain, eps, "l2")


# --- both of them -------------------------------------------------------------------------------------------------

KINDS = {"rms": "rms", "l2": "l2"}


def norm(x: Any, g: Any, eps: float, kind: str) -> Any:
    """Either of them on what has been checked and widened, as a layer calls it; likewise ``norm_vjp``."""
    unit, _, _ = _unit(x, eps, kind)
    return unit if g is None else g * unit


def norm_vjp(dy: Any, x: Any, g: Any, eps: float, kind: str) -> tuple[Any, ...]:
    """dx and the gradient of the gain (:eq:`eq-var-rms`)."""
    unit, r, m = _unit(x, eps, kind)
    dunit = dy if g is None else g * dy
    return _tangent(dunit, unit, r, m), None if g is None else unbroadcast(dy * unit, tuple(g.shape))  # eq-var-rms


def _unit(x: Any, eps: float, kind: str) -> tuple[Any, Any, Any]:
    """x̂, r and m."""
    xp, m = array_namespace(x), x.shape[-1] if kind == "rms" else 1
    r = xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True) / m + eps)
    r = xp.where(r == 0, xp.full_like(r, xp.inf), r)
    return x / r, r, m


def _tangent(t: Any, unit: Any, r: Any, m: Any) -> Any:
    """t less its part along the unit, over r (:eq:`eq-var-norm-vjp`)."""
    return (t - unit * (array_namespace(t).sum(unit * t, axis=-1, keepdims=True) / m)) / r  # eq-var-norm-vjp


def _norm(X: Array, gain: AnyArray | None, eps: float, kind: str) -> Array:
    check_norm("X", X, gain, eps, kind)
    return narrow(norm(widen(X), None if gain is None else widen(gain), eps, kind), X.dtype)


def _norm_vjp(dY: Array, X: Array, gain: AnyArray | None, eps: float, kind: str) -> NormGrads[Array]:
    check_norm("X", X, gain, eps, kind)
    agree(X=X, dY=dY)
    check_shape("dY", dY, tuple(X.shape))
    dX, dgain = norm_vjp(widen(dY), widen(X), None if gain is None else widen(gain), eps, kind)
    return NormGrads(narrow(dX, X.dtype), None if gain is None else narrow(dgain, X.dtype))


def _norm_jvp(tX: Array, tgain: AnyArray | None, X: Array, gain: AnyArray | None, eps: float, kind: str) -> Array:
    check_norm("X", X, gain, eps, kind)
    agree({"tgain": tgain}, X=X, tX=tX)
    check_shape("tX", tX, tuple(X.shape))
    if tgain is not None:
        if gain is None:
            raise ValueError(expected("tgain", "None, because there is no gain", "an array"))
        check_shape("tgain", tgain, tuple(gain.shape))
    unit, r, m = _unit(widen(X), eps, kind)
    tY = _tangent(widen(tX), unit, r, m)
    tY = tY if gain is None else widen(gain) * tY
    return narrow(tY if tgain is None else tY + widen(tgain) * unit, X.dtype)


def check_norm(name: str, X: Any, gain: Any, eps: Any, kind: str, gain_name: str = "gain") -> None:
    """An error where a norm of X, or of what has its shape, could not be taken."""
    agree({gain_name: gain}, **{name: X})
    choose("kind", kind, KINDS)
    if X.ndim < 1 or X.shape[-1] == 0:
        raise ValueError(expected(name, "a last axis of at least 1", f"shape {tuple(X.shape)}"))
    check_eps(eps)
    if gain is not None:
        check_broadcasts(gain_name, tuple(gain.shape), tuple(X.shape), name)


# --- what the layer calls -----------------------------------------------------------------------------------------


class QKNorm(NamedTuple):
    """How a layer normalizes its queries and keys, each head for itself: ``kind`` "rms" or "l2".

    The gains g_Q and g_K, (d_k,), serve every head, and may be None. With their gradients in their places it is what
    :func:`~attnbook.multi_head.multi_head_attention_vjp` returns.
    """

    g_Q: AnyArray | None = None
    g_K: AnyArray | None = None
    kind: str = "rms"
    eps: float = 1e-6

    def for_heads(self, X: Any, memory: Any, d_k: int) -> Self:
        """Itself, or an error where it does not fit a layer with heads of that width."""
        agree({"qk_norm, g_Q": self.g_Q, "qk_norm, g_K": self.g_K}, X=X)
        choose("qk_norm, kind", self.kind, KINDS)
        check_eps(self.eps)
        for name, g in (("qk_norm, g_Q", self.g_Q), ("qk_norm, g_K", self.g_K)):
            if g is not None:
                check_shape(name, g, (d_k,))
        return self

    def forward(self, Q: Any, K: Any) -> tuple[Any, ...]:
        """Queries and keys, and what :meth:`vjp` needs."""
        g_Q, g_K = self._gains()
        return (norm(Q, g_Q, self.eps, self.kind), norm(K, g_K, self.eps, self.kind)), (Q, K)

    def vjp(self, dQ: Any, dK: Any, saved: Any) -> tuple[Any, ...]:
        """The gradients before it, and those of its gains."""
        (dQ, dg_Q), (dK, dg_K) = (
            norm_vjp(dT, T, g, self.eps, self.kind) for dT, T, g in zip((dQ, dK), saved, self._gains(), strict=True)
        )
        dgains = (dg if g is None else narrow(dg, g.dtype) for dg, g in zip((dg_Q, dg_K), self[:2], strict=True))
        return dQ, dK, QKNorm(*dgains, *self[2:])  # type: ignore[call-arg]

    def _gains(self) -> list[Any]:
        return [None if g is None else widen(g) for g in self[:2]]
