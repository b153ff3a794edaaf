"""The fused spine: the tiled lines as Triton kernels, one launch for the forward and three for the backward.

It takes torch tensors on a CUDA device; with ``TRITON_INTERPRET=1`` in the environment also on the CPU, where Triton's
interpreter runs the same kernels, slowly. It keeps what the tiled spine keeps, which has the tangent. Nothing here
imports torch or Triton before a call does.

``tile`` has what all kernels do with a tile, ``forward_kernel`` and ``backward_kernels`` have the parts that chapter 12
builds, in its order; ``capability`` says what they can do, and ``sizes`` how large their tiles are; ``launch`` starts
them. Chapter: :doc:`/chapters/12_gpu`.
"""

from attnbook.arrays import narrow
from attnbook.spines import columns, tiled
from attnbook.spines.fused.capability import kernel_of, refusal
from attnbook.spines.fused.sizes import Tiles, room, tiles
from attnbook.spines.operands import in_order, operands_vjp, row_sums, unfit_tiles


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
    sizes = plan.tiles or tiles(like.itemsize, plan.widths, plan.kernel.biased, room(like))
    return plan._replace(tiles=sizes)


def forward(Q, K, V, plan):
    """O and the residuals."""
    from attnbook.spines.fused import launch

    O, M, Z, unit = launch.forward(Q, K, V, plan)
    if plan.columns:
        O, M, Z = columns.add(plan, O, M, Z, unit)
    O = narrow(O, Q.dtype)
    return O, Residuals(Q, K, V, O, M, Z, plan, unit)


def vjp(dO, dL, res):
    """The backward; each sum in one order, so the same call gives the same bits."""
    from attnbook.spines.fused import launch

    dQ, dK, dV, dbias = launch.vjp(dO, dL, res)
    dparams = {place: dbias for place, op in res.plan.scores if op.parameter is not None}
    if res.plan.columns:
        dparams |= columns.vjp(row_sums(dO, dL, res), res)
    return *operands_vjp(dQ, dK, dV, res), in_order(dparams, res)


def jvp(tQ, tK, tV, tparams, res):
    """That of the tiled spine."""
    return tiled.jvp(tQ, tK, tV, tparams, _in_tiles(res))


def hvp(tQ, tK, tV, tparams, dO, dL, turns, res):
    """That of the tiled spine."""
    return tiled.hvp(tQ, tK, tV, tparams, dO, dL, turns, _in_tiles(res))


def _in_tiles(res):
    """The residuals of a forward of the tiled spine: M fits no product but those that it was found in."""
    plan = tiled.prepare(res.plan._replace(tiles=None), {"Q": res.Q})
    return tiled.forward(res.Q, res.K, res.V, plan)[1]


__all__ = ["Residuals", "forward", "hvp", "jvp", "prepare", "refusal", "vjp"]
