"""Add a bias to the scores: S ↦ S + B."""

from dataclasses import dataclass
from typing import Any

from attnbook.arguments import check_broadcasts, check_flags
from attnbook.arrays import accumulation_dtype, agree_on_place, array_namespace, expected, is_floating, unbroadcast
from attnbook.ops.op import Kernel, Op, Tile


@dataclass(frozen=True, eq=False)
class Bias(Op):
    """Add ``B``, which broadcasts to the scores. −∞ in B forbids a key, as a mask does,
    whatever op comes after.

    .. math:: S' = S + B \\qquad dS = dS' \\qquad dB = \\textstyle\\sum_{\\text{broadcast axes}} dS'

    Equations :eq:`eq-op-bias` and :eq:`eq-var-bias`. No scale in dB: the bias is added after scaling. It keeps nothing
    for the backward. Of a ``fixed`` bias nobody asks the gradient. Chapter: :doc:`/chapters/04_single_head`.
    """

    B: Any
    fixed: bool = False
    arrays, affine, strides = ("B",), True, True

    @property
    def learns(self) -> str | None:  # type: ignore[override]
        return None if self.fixed else "B"

    def forward(self, S: Any, tile: Tile) -> tuple[Any, Any]:
        return S + self.here(tile, self.B), None  # eq-op-bias

    def vjp(self, dS: Any, saved: Any, tile: Tile) -> tuple[Any, Any]:
        return dS, None if self.fixed else unbroadcast(dS, tile.cut(self.B).shape)  # eq-op-bias, eq-var-bias

    def jvp(self, tS: Any, saved: Any, tile: Tile, tparam: Any = None) -> Any:
        return tS if tparam is None else tS + self.here(tile, tparam)

    def check(self, name: str, like: Any, like_name: str, shape: tuple[int, ...]) -> None:
        check_flags(**{f"{name}, fixed": self.fixed})
        if not self.fixed:
            return super().check(name, like, like_name, shape)
        agree_on_place(name, self.B, like_name, like)
        xp = array_namespace(like)
        if not is_floating(self.B) or accumulation_dtype(xp, self.B.dtype) != accumulation_dtype(xp, like.dtype):
            wanted = f"{like.dtype} like {like_name}, or a dtype that is widened to the same"
            raise TypeError(expected(name, wanted, self.B.dtype))
        return check_broadcasts(name, tuple(self.B.shape), shape, "the scores")

    def without_gradient(self) -> Op:
        return Bias(self.B, fixed=True)

    def in_kernel(self, kernel: Kernel, table: Tile) -> Kernel | None:
        return kernel._replace(bias=self.B) if kernel.bias is kernel.slopes is None else None
