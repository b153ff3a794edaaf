"""The fused spine: the tiled lines as Triton kernels, one launch for the forward and three for the backward.

It takes torch tensors on a CUDA device; with ``TRITON_INTERPRET=1`` in the environment also on the CPU, where Triton's
interpreter runs the same kernels, slowly. It keeps what the tiled spine keeps, which has the tangent. Nothing here
imports torch or Triton before a call does.

``tile`` has what all kernels do with a tile, ``forward_kernel`` and ``backward_kernels`` have the parts that chapter 11
builds, in its order; ``limits`` says what they can do, and ``sizes`` how large their tiles are; ``launch`` starts them.
Chapter: :doc:`/chapters/11_gpu`.
"""

from attnbook.spines import tiled
from attnbook.spines.fused.limits import kernel_of, refusal
from attnbook.spines.fused.sizes import Tiles, room, tiles
from attnbook.spines.operands import in_order, operands_vjp, unfit_tiles


class Residuals(tiled.Residuals):
    """As those of the tiled spine. O is rounded to the dtype of Q; M and Z are float32."""

    __slots__ = ()


def prepare(plan, given):
    """The plan with what the kernels do, and their tiles; or an error that says why they cannot."""
    plan = plan._replace(kernel=kernel_of(plan))
    if not isinstance(plan.tiles, Tiles | None):
        raise unfit_tiles(plan, "Tiles of attnbook.spines.fused.sizes or None")
    if (error := refusal(plan, given)) is not None:
        raise error
    like = next(iter(given.values()))
    sizes = plan.tiles or tiles(like.itemsize, plan.widths, plan.kernel.bias is not None, room(like))
    return plan._replace(tiles=sizes)


def forward(Q, K, V, plan):
    """O and the residuals."""
    from attnbook.spines.fused import launch

    O, M, Z, unit = launch.forward(Q, K, V, plan)
    return O, Residuals(Q, K, V, O, M, Z, plan, unit)


def vjp(dO, dL, res):
    """The backward; each sum in one order, so the same call gives the same bits."""
    from attnbook.spines.fused import launch

    dQ, dK, dV, dbias = launch.vjp(dO, dL, res)
    place = next((i for i, op in enumerate(res.plan.ops) if op.parameter is not None), None)
    return *operands_vjp(dQ, dK, dV, res), in_order({} if place is None else {place: dbias}, res)


def jvp(tQ, tK, tV, tparams, res):
    """That of the tiled spine, from a forward of its own: M fits no product but those that it was found in."""
    plan = tiled.prepare(res.plan._replace(tiles=None), {"Q": res.Q})
    _, res = tiled.forward(res.Q, res.K, res.V, plan)
    return tiled.jvp(tQ, tK, tV, tparams, res)


__all__ = ["Residuals", "forward", "jvp", "prepare", "refusal", "vjp"]
