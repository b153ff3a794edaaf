"""The fused spine: the tiled lines as Triton kernels, one launch for the forward and three for the backward.

It takes torch tensors on a CUDA device; with ``TRITON_INTERPRET=1`` in the environment also on the CPU, where Triton's
interpreter runs the same kernels, slowly. It keeps what the tiled spine keeps, so either can do the other's backward.
Nothing here imports torch or Triton before a call does.

``tile`` has what all kernels do with a tile, ``forward_kernel`` and ``backward_kernels`` have the parts that chapter 11
builds, in its order, ``limits`` says what they can do, and ``launch`` starts them. Chapter: :doc:`/chapters/11_gpu`.
"""

from attnbook.arguments import check_shape
from attnbook.arrays import agree
from attnbook.spines import tiled
from attnbook.spines.fused.limits import refusal
from attnbook.spines.operands import operands_vjp


class Residuals(tiled.Residuals):
    """As those of the tiled spine. O is rounded to the dtype of Q; M and Z are float32."""

    __slots__ = ()


def forward(Q, K, V, steps, shape):
    """O and the residuals, or an error that says why the kernels cannot do this."""
    if (error := refusal(Q, K, V, steps, shape)) is not None:
        raise error
    from attnbook.spines.fused import launch

    O, M, Z, unit = launch.forward(Q, K, V, steps, shape)
    return O, Residuals(Q, K, V, O, M, Z, tuple(steps), tuple(shape), unit)


def vjp(dO, res):
    """The backward, from residuals of :func:`forward`; each sum in one order, so the same call gives the same bits."""
    agree(Q=res.Q, dO=dO)
    check_shape("dO", dO, (*res.shape[:-1], res.V.shape[-1]))
    from attnbook.spines.fused import launch

    dQ, dK, dV, dparams = launch.vjp(dO, res)
    return *operands_vjp(dQ, dK, dV, res), tuple(map(dparams.get, range(len(res.steps))))


jvp = tiled.jvp

__all__ = ["Residuals", "forward", "jvp", "refusal", "vjp"]
