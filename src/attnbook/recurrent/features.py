"""Feature maps φ: what stands for the exponential in linear attention. Each acts entry by entry: φ(X) and φ′(X).

A map that mixes entries needs no entry here: apply it before, with ``feature="identity"``, and its vjp to dQ and dK.
"""

from typing import Any

from attnbook.arrays import array_namespace


def identity(X: Any) -> tuple[Any, ...]:
    """φ(x) = x."""
    return X, array_namespace(X).ones_like(X)


def relu(X: Any) -> tuple[Any, ...]:
    """φ(x) = max(x, 0); at 0 the derivative is taken as 0."""
    xp = array_namespace(X)
    return xp.where(X > 0, X, xp.zeros_like(X)), xp.astype(X > 0, X.dtype)


def elu_plus_one(X: Any) -> tuple[Any, ...]:
    """φ(x) = x + 1 above 0 and eˣ below: smooth, and always positive (Katharopoulos et al. 2020, eq. 7)."""
    xp = array_namespace(X)
    E = xp.exp(xp.where(X > 0, xp.zeros_like(X), X))
    return xp.where(X > 0, X + 1, E), E


def exp(X: Any) -> tuple[Any, ...]:
    """φ(x) = eˣ, its own derivative; it may overflow, as no maximum is taken off."""
    E = array_namespace(X).exp(X)
    return E, E


FEATURES = {"elu+1": elu_plus_one, "relu": relu, "identity": identity, "exp": exp}
"""The maps by the names that ``linear_attention(feature=...)`` takes."""
