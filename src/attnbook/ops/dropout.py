"""Drop weights at random, the same ones each time they are asked for: P ↦ keep ∘ P / (1 − p)."""

from dataclasses import dataclass
from numbers import Real
from typing import Any

from attnbook.arrays import agree_on_place, array_namespace, device, expected, is_array, scalar
from attnbook.ops.op import Op, Tile

_32_BITS = 0xFFFFFFFF


@dataclass(frozen=True, eq=False)
class Dropout(Op):
    """Drop each weight with probability ``p``, and divide the others by 1 − p, so that the mean stays.

    .. math:: P' = \\frac{\\text{kept} \\circ P}{1 - p} \\qquad dP = \\frac{\\text{kept} \\circ dP'}{1 - p}

    Equation :eq:`eq-op-dropout`. The rows of P′ no longer sum to 1, and the softmax's own derivative needs P, not
    P′. What is kept is never stored: it is read off a number made from ``seed`` and the weight's place (batch, head,
    query, key), so the backward draws the same again, a tile at a time, in any order, on any device. It acts on the
    weights, after the softmax. An integer array for ``seed`` is one seed for each place on the first of the leading
    axes, and what is kept there what it would be in a call apart. Chapter: :doc:`/chapters/09_variants`.
    """

    p: float
    seed: Any = 0
    on, strides = "weights", True

    def __post_init__(self) -> None:
        if not isinstance(self.p, Real) or isinstance(self.p, bool) or not 0 <= self.p < 1:
            raise ValueError(expected("p", "a probability in [0, 1)", repr(self.p)))
        whole = isinstance(self.seed, int) and not isinstance(self.seed, bool)
        if not whole and not (is_array(self.seed) and array_namespace(self.seed).isdtype(self.seed.dtype, "integral")):
            raise TypeError(expected("seed", "an integer", repr(self.seed)))

    @property
    def arrays(self) -> tuple[str, ...]:  # type: ignore[override]
        return () if isinstance(self.seed, int) else ("seed",)

    @property
    def stacks(self) -> bool:  # type: ignore[override]
        return bool(self.arrays)  # a seed for each call

    def stacked(self, name: str, T: Any, rank: int) -> Any:
        return T  # has no axes but those of the calls

    def check(self, name: str, like: Any, like_name: str, shape: tuple[int, ...]) -> None:
        if self.arrays:
            agree_on_place(name, self.seed, like_name, like)
            lead, came = tuple(shape[:-2]), tuple(self.seed.shape)
            if came != lead[: len(came)]:
                raise ValueError(expected(name, f"seeds for the first of the leading axes {lead}", f"shape {came}"))

    def forward(self, P: Any, tile: Tile) -> tuple[Any, Any]:
        return self._drop(P, tile), None

    def vjp(self, dW: Any, saved: Any, tile: Tile) -> tuple[Any, Any]:
        return self._drop(dW, tile), None

    def jvp(self, tP: Any, saved: Any, tile: Tile, tparam: Any = None) -> Any:
        return self._drop(tP, tile)

    def kept(self, T: Any, tile: Tile) -> Any:
        """R on this tile: bool, True = kept."""
        xp = array_namespace(T)
        lead = tile.lead or tuple(range(n) for n in T.shape[:-2])
        seed, added = self.seed, 0
        if self.arrays:
            added = seed.ndim
            seed = xp.astype(seed[tuple(slice(r.start, r.stop) for r in lead[:added])], xp.int64)
        number = _mix(seed & _32_BITS ^ _mix(seed >> 32 & _32_BITS))
        if not self.arrays:
            number = xp.full((), number, dtype=xp.int64, device=device(T))
        for places in (*lead[added:], tile.rows, tile.cols):  # one more axis of the tile at a time
            place = xp.arange(places.start, places.stop, places.step, dtype=xp.int64, device=device(T))
            number = _mix(number[..., None] ^ _mix(place + 1))
        return number >= int(float(self.p) * 2**32)

    def _drop(self, T: Any, tile: Tile) -> Any:
        kept, scaled = self.kept(T, tile), T * (1 / (1 - float(self.p)))
        return array_namespace(T).where(kept, scaled, scalar(0.0, like=T))  # eq-op-dropout


def _mix(x: Any) -> Any:
    """Stir 32 bits so that neighbors come out unrelated: a hash by shifts and products.

    The two factors are below 2³¹, so no product of theirs leaves 63 bits: int64 will do, which every library has.
    """
    x = x ^ (x >> 16)
    x = x * 0x21F0AAAD & _32_BITS
    x = x ^ (x >> 15)
    x = x * 0x735A2D97 & _32_BITS
    return x ^ (x >> 15)
