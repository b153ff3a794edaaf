"""Rotary positions: each pair of columns turned by an angle that grows with the position. Chapter:
:doc:`/chapters/09_variants`.

Angles are float64 whatever the dtype of X: at position 1,000,000, a float32 angle is off by 0.03.

``attnbook.rotary`` is the function; classes that scale come by ``from attnbook.rotary import Linear, Llama3, YaRN``.
"""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from attnbook.arguments import check_flags, check_positive, choose
from attnbook.arrays import (
    agree,
    agree_on_place,
    array_namespace,
    broadcasts_to,
    clip,
    device,
    expected,
    is_array,
    is_numpy,
    kind,
    narrow,
    widen,
)
from attnbook.types import AnyArray, Array, Layout

Scaling: TypeAlias = Callable[[Any, float], tuple[Any, float]]
"""What makes of the angles θ and their base other angles and a temperature: Linear, Llama3, YaRN, or your own."""

LAYOUTS = {"interleaved": "interleaved", "half": "half"}


def rotary(
    X: Array,
    positions: AnyArray | None = None,
    *,
    dims: int | None = None,
    base: float = 10000.0,
    layout: Layout = "interleaved",
    scaling: Scaling | None = None,
) -> Array:
    """Turn pair l of the columns, at position t, by the angle t θ_l.

    .. math::
       x'_{2l} = x_{2l} \\cos t\\theta_l - x_{2l+1} \\sin t\\theta_l \\qquad
       x'_{2l+1} = x_{2l} \\sin t\\theta_l + x_{2l+1} \\cos t\\theta_l \\qquad
       \\theta_l = \\text{base}^{-2l/\\text{dims}}

    Equations :eq:`def-var-rope` and, for the other layout, :eq:`eq-var-rope-half`. It is linear, so its jvp is rotary
    itself, of the tangent.

    Parameters
    ----------
    X : array (..., n, d)
        Queries or keys, one row a token.
    positions : array (..., n), integers or floats, optional
        0 to n − 1 by default. Axes before n broadcast to those of X: positions for each sequence of a batch of heads,
        (batch, h, n, d), are (batch, 1, n).
    dims : int, optional
        The first so many columns turn, an even number; all d by default. The others stay as they are, and the scale
        of the scores stays 1/√d, of all columns.
    base : float
        θ_l falls from 1 to almost 1 / base.
    layout : "interleaved" or "half"
        Which columns are a pair: 2l and 2l + 1 (the paper, GPT-J, DeepSeek), or l and l + dims/2 (``rotate_half``:
        GPT-NeoX, and Llama and others as Hugging Face keeps them): :eq:`eq-var-rope-half`.
    scaling : Linear, YaRN, Llama3, or a callable, optional
        For texts longer than those of the training: ``scaling(θ, base)`` gives other angles a position and a
        temperature that multiplies what was turned.

    Returns
    -------
    Y : array like X

    Raises
    ------
    TypeError
        X is no array of floats, positions no array of integers or floats, dims no integer, or scaling no callable.
    ValueError
        X has fewer than two axes; positions do not fit it, or are NumPy's and not finite; dims is odd, or more than X
        has columns; base is not a finite number over 1, or layout no such word; or scaling returns
        other angles than it should, or a temperature that is not positive.

    Notes
    -----
    Source: Su et al., "RoFormer", section 3.2.

    Examples
    --------
    >>> import numpy as np
    >>> import attnbook as ab
    >>> ab.rotary(np.array([[1.0, 0.0, 7.0], [1.0, 0.0, 7.0]]), dims=2).round(3).tolist()
    [[1.0, 0.0, 7.0], [0.54, 0.841, 7.0]]
    """
    return _rotary("X", X, positions, +1, dims, base, layout, scaling)


def rotary_vjp(
    dY: Array,
    positions: AnyArray | None = None,
    *,
    dims: int | None = None,
    base: float = 10000.0,
    layout: Layout = "interleaved",
    scaling: Scaling | None = None,
) -> Array:
    """Turn the gradient back: the transpose of a rotation by θ is the rotation by −θ, and a factor stays a factor.

    .. math:: dX_t = R_{-t}\\; dY_t

    Equation :eq:`eq-var-rope-vjp`.

    Parameters
    ----------
    dY : array (..., n, d)
        The gradient that arrives at the output.
    positions, dims, base, layout, scaling
        As :func:`rotary` had them.

    Returns
    -------
    dX : array like dY

    Raises
    ------
    TypeError, ValueError
        As :func:`rotary`, with dY for X.
    """
    return _rotary("dY", dY, positions, -1, dims, base, layout, scaling)  # eq-var-rope-vjp


# --- angles -------------------------------------------------------------------------------------------------------


def frequencies(
    dims: int, base: float = 10000.0, scaling: Scaling | None = None, like: Any = None
) -> tuple[Any, float]:
    """θ, the angle a position of each of the dims / 2 pairs, in float64, and the temperature."""
    xp, on = (np, None) if like is None else (array_namespace(like), device(like))
    l = xp.arange(dims // 2, dtype=xp.float64, device=on)
    theta = xp.exp(l * (-2 * math.log(base) / dims))
    return (theta, 1.0) if scaling is None else scaling(theta, float(base))


@dataclass(frozen=True)
class Linear:
    """Positions pressed together: θ′ = θ / factor (:eq:`def-var-rope`)."""

    factor: float

    def __post_init__(self) -> None:
        check_positive(**vars(self))

    def __call__(self, theta: Any, base: Any) -> tuple[Any, float]:
        return theta / self.factor, 1.0


@dataclass(frozen=True)
class Llama3:
    """Slow pairs pressed together, fast ones left, by the turns that a pair makes over the length of the training.

    .. math::
       \\theta' = \\theta\\,\\bigl(\\tfrac{1-w}{\\text{factor}} + w\\bigr) \\qquad
       w = \\operatorname{clip}\\Bigl(\\frac{\\text{length}\\,\\theta / 2\\pi - \\text{slow}}
       {\\text{fast} - \\text{slow}},\\,0,\\,1\\Bigr)

    Hugging Face's ``low_freq_factor`` and ``high_freq_factor`` are ``slow`` and ``fast``.
    """

    factor: float
    length: int
    slow: float = 1.0
    fast: float = 4.0

    def __post_init__(self) -> None:
        check_positive(**vars(self))
        check_positive(**{"fast − slow": self.fast - self.slow})

    def __call__(self, theta: Any, base: Any) -> tuple[Any, float]:
        turns = self.length / (2 * math.pi) * theta
        w = clip((turns - self.slow) / (self.fast - self.slow), 0.0, 1.0)
        return theta * ((1 - w) / self.factor + w), 1.0


@dataclass(frozen=True)
class YaRN:
    """As :class:`.Llama3`, but the weight falls evenly from pair to pair, between those of ``fast`` and ``slow`` turns.

    .. math::
       l(r) = \\frac{\\text{dims}}{2 \\ln \\text{base}}\\,\\ln\\frac{\\text{length}}{2\\pi r} \\qquad
       w_l = \\operatorname{clip}\\Bigl(\\frac{l(\\text{slow}) - l}{l(\\text{slow}) - l(\\text{fast})},\\,0,\\,1\\Bigr)

    The two bounds are rounded outwards to whole pairs; ``whole=False`` leaves them (GPT-OSS). The temperature is
    0.1 ln(factor) + 1 by default, on queries and on keys. Hugging Face names them ``beta_fast``, ``beta_slow``,
    ``attention_factor`` and ``truncate``. Source: Peng et al., "YaRN", sections 3.2 to 3.4.
    """

    factor: float
    length: int
    fast: float = 32.0
    slow: float = 1.0
    temperature: float | None = None
    whole: bool = True

    def __post_init__(self) -> None:
        numbers = {name: value for name, value in vars(self).items() if name not in ("temperature", "whole")}
        check_positive(**numbers)
        if self.temperature is None:
            object.__setattr__(self, "temperature", 0.1 * math.log(max(self.factor, 1.0)) + 1)
        check_positive(temperature=self.temperature, **{"fast − slow": self.fast - self.slow})
        check_flags(whole=self.whole)

    def __call__(self, theta: Any, base: Any) -> tuple[Any, float]:
        xp, n = array_namespace(theta), theta.shape[0]
        low, high = (n / math.log(base) * math.log(self.length / (2 * math.pi * r)) for r in (self.fast, self.slow))
        if self.whole:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * n - 1)
        l = xp.arange(n, dtype=theta.dtype, device=device(theta))
        w = 1 - clip((l - low) / max(high - low, 0.001), 0.0, 1.0)
        return theta * ((1 - w) / self.factor + w), self.temperature  # type: ignore[return-value]


# --- what the layer calls -----------------------------------------------------------------------------------------


class Rotary(NamedTuple):
    """How a layer turns its queries and keys: the arguments of :func:`.rotary`.

    ``positions`` (..., n_q) and ``k_positions`` (..., n_k) broadcast to the leading axes of X and n. Without
    ``k_positions``, keys made from X have the positions of the queries, keys made from a memory 0 to n_k − 1.
    """

    positions: AnyArray | None = None
    k_positions: AnyArray | None = None
    dims: int | None = None
    base: float = 10000.0
    layout: Layout = "interleaved"
    scaling: Scaling | None = None

    def for_heads(self, X: Any, memory: Any, d_k: int) -> "Rotary":
        """As :meth:`forward` needs it, with an axis for the heads; or an error where it does not fit such a layer."""
        M, k_positions = (X, self.positions) if memory is None else (memory, None)
        k_positions = k_positions if self.k_positions is None else self.k_positions
        for at, T, name in ((self.positions, X, "positions"), (k_positions, M, "k_positions")):
            check("a head", (*T.shape[:-1], d_k), X, at, *self[2:], of=f"rotary, {name}")
        both = (at if at is None or at.ndim < 2 else at[..., None, :] for at in (self.positions, k_positions))
        return Rotary(*both, *self[2:])  # type: ignore[call-arg, arg-type]

    def forward(self, Q: Any, K: Any) -> tuple[Any, ...]:
        """Queries and keys, and what :meth:`vjp` needs: nothing."""
        return self._turned(Q, K, +1), None

    def vjp(self, dQ: Any, dK: Any, saved: Any) -> tuple[Any, ...]:
        """The gradients before it."""
        return *self._turned(dQ, dK, -1), None

    def _turned(self, Q: Any, K: Any, sign: int) -> tuple[Any, ...]:
        return turn(Q, self.positions, sign, *self[2:]), turn(K, self.k_positions, sign, *self[2:])


def check(
    name: str,
    shape: tuple[int, ...],
    like: Any,
    positions: Any,
    dims: Any,
    base: Any,
    layout: Any,
    scaling: Any,
    of: str = "positions",
) -> None:
    """An error where :func:`rotary` could not turn an array of that shape."""
    n, d = shape[-2:]
    try:
        columns = operator.index(d if dims is None else dims)
    except TypeError:
        raise TypeError(expected("dims", "an integer", kind(dims))) from None
    if columns % 2 or not 0 < columns <= d:
        wanted = f"an even number of columns, of the {d} that {name} has"
        raise ValueError(expected("dims", wanted, f"{columns}, its width" if dims is None else columns))
    check_positive(base=base)
    if base <= 1:
        raise ValueError(expected("base", "a number over 1", base))
    choose("layout", layout, LAYOUTS)
    if scaling is not None and (isinstance(scaling, type) or not callable(scaling)):
        raise TypeError(expected("scaling", "Linear, YaRN, Llama3, or a callable (θ, base)", repr(scaling)))
    if scaling is not None:
        _check_scaled(columns, base, scaling, like)
    if positions is not None:
        agree_on_place(of, positions, "X" if name == "a head" else name, like)
        if not array_namespace(positions).isdtype(positions.dtype, ("integral", "real floating")):
            raise TypeError(expected(of, "integers or floats", positions.dtype))
        if positions.ndim < 1 or positions.shape[-1] != n or not broadcasts_to(positions.shape, shape[:-1]):
            wanted = f"a position for each of the {n} tokens, and axes that broadcast to {tuple(shape[:-1])}"
            raise ValueError(expected(of, wanted, f"shape {tuple(positions.shape)}"))
        if is_numpy(positions) and not (finite := np.isfinite(positions)).all():  # others may lie on a device
            raise ValueError(expected(of, "finite numbers", positions[~finite][0]))


def _check_scaled(columns: int, base: float, scaling: Scaling, like: Any) -> None:
    """An error where ``scaling`` does not return what it should."""
    came = frequencies(columns, base, scaling, like)
    wanted = f"a pair, the {columns // 2} angles and a temperature, to come of it"
    if not isinstance(came, tuple) or len(came) != 2:
        raise TypeError(expected("scaling", wanted, type(came).__name__))
    theta, temperature = came
    if not is_array(theta) or tuple(theta.shape) != (columns // 2,):
        raise ValueError(expected("scaling", wanted, f"θ of shape {theta.shape}" if is_array(theta) else kind(theta)))
    check_positive(**{"scaling, temperature": temperature})
    if is_numpy(theta) and not np.isfinite(theta).all():
        raise ValueError(expected("scaling", "finite angles to come of it", theta[~np.isfinite(theta)][0]))


def turn(x: Any, positions: Any, sign: int, dims: Any, base: Any, layout: Any, scaling: Any) -> Any:
    """``x``, checked and widened, turned by ``sign`` times its angles."""
    xp = array_namespace(x)
    dims = x.shape[-1] if dims is None else dims
    theta, temperature = frequencies(dims, base, scaling, like=x)
    at = xp.arange(x.shape[-2], dtype=xp.float64, device=device(x)) if positions is None else positions
    angle = xp.astype(at, xp.float64)[..., None] * (sign * theta)
    cos, sin = (narrow(temperature * T, x.dtype) for T in (xp.cos(angle), xp.sin(angle)))
    pairs = (slice(0, dims, 2), slice(1, dims, 2))
    if layout == "half":
        pairs = (slice(0, dims // 2), slice(dims // 2, dims))  # eq-var-rope-half
    a, b = (x[..., at] for at in pairs)
    turned = (a * cos - b * sin, a * sin + b * cos)  # def-var-rope
    if layout == "half":
        return xp.concat((*turned, x[..., dims:]), axis=-1)
    return xp.concat((xp.reshape(xp.stack(turned, axis=-1), (*x.shape[:-1], dims)), x[..., dims:]), axis=-1)


def _rotary(name: str, X: Any, positions: Any, sign: int, dims: Any, *options: Any) -> Any:
    agree(**{name: X})
    if X.ndim < 2:
        raise ValueError(expected(name, "at least two axes (..., tokens, width)", f"shape {tuple(X.shape)}"))
    check(name, X.shape, X, positions, dims, *options)
    return narrow(turn(widen(X), positions, sign, dims, *options), X.dtype)
