"""The doors to attention over ranks of torch.distributed. Chapter: :doc:`/chapters/14_many_devices`."""

import sys
from collections.abc import Sequence
from typing import Any, Literal

from attnbook.arrays import expected
from attnbook.multi_head import MultiHeadParams
from attnbook.ops import Op
from attnbook.parallel.placement import Placement
from attnbook.types import Array, Corner


def ring_attention(
    Q: Array,
    K: Array,
    V: Array,
    *,
    mask: Any = None,
    causal: bool | Corner = False,
    scale: float | None = None,
    ops: Sequence[Op] = (),
    group: Any = None,
    placement: Placement = "contiguous",
    method: Literal["auto", "dense", "tiled"] = "auto",
    timeout: float | None = None,
    return_L: bool = False,
) -> Any:
    """Attend over all ranks' keys, each with its own queries, while keys and values go around a ring.

    .. math::
       O = P\\,V \\qquad P = \\operatorname{softmax}(S) \\qquad S = \\text{scale}\\cdot Q K^{\\mathsf T}

    Equation :eq:`def-attention`, a block of keys a hop, merged by :eq:`eq-merge`. In the backward dK and dV travel with
    their block. A block goes no further than to the last rank that sees it, under causal masks and windows.

    Parameters
    ----------
    Q : tensor (..., n_q of this rank, d_k)
        This rank's rows, as K and V are; :func:`~attnbook.parallel.placement.split` deals them out. Ranks may have
        different numbers of them, if the placement is "contiguous"; also none.
    K : tensor (..., n_k of this rank, d_k)
        Leading axes are those of Q, but for fewer heads, whose number divides Q's.
    V : tensor (..., n_k of this rank, d_v)
    mask, causal, scale, ops
        As :func:`attnbook.attention` takes them, of the whole table, and the same on every rank; with tensors.
    group : process group, optional
        Of torch.distributed; by default all processes.
    placement : "contiguous", "zigzag" or "striped"
        Which rows these are.
    method : "auto", "tiled" or "dense"
        What runs each block: tile by tile, as "auto" does, or at once. No method keeps P.
    timeout : float, optional
        Seconds to wait for a message; by default as long as the group does.
    return_L : bool
        Also return L, which has a gradient too.

    Returns
    -------
    O : tensor like Q, d_v wide; with ``return_L`` a pair, O and L

    Raises
    ------
    TypeError, ValueError
        An argument that does not fit, on every rank, whichever had it; and what differs from rank to rank.
    RuntimeError
        A rank that has ended or is late: which one, and at which hop. No torch.distributed, or not initialized. And
        ``create_graph=True``: there are no second derivatives.

    Notes
    -----
    Calls in another order on one rank are noticed where they differ in shapes or options, and in the backward; two
    forwards that are alike but for their numbers are not. A graph is gone through once: no ``retain_graph=True``.
    The gradient of an op's parameter is this rank's share, as those of weights are: their sum
    over the ranks is the whole. 16-bit K and V travel as they are; sums are, and travel, in float32.
    A rank holds its rows of inputs and results, as much again for blocks that come and go, and what work on one block
    needs: all of it falls as one over the ranks.
    Started as ``torchrun --nproc-per-node=4 file.py``. Source: Liu, Zaharia and Abbeel, "Ring Attention with Blockwise
    Transformers", 2023.
    """
    return _attend("ring", Q, K, V, mask, causal, scale, ops, group, placement, method, timeout, return_L)


def gather_attention(
    Q: Array,
    K: Array,
    V: Array,
    *,
    mask: Any = None,
    causal: bool | Corner = False,
    scale: float | None = None,
    ops: Sequence[Op] = (),
    group: Any = None,
    placement: Placement = "contiguous",
    method: Literal["auto", "dense", "tiled"] = "auto",
    timeout: float | None = None,
    return_L: bool = False,
) -> Any:
    """Attend over all ranks' keys, each with its own queries, after every rank has got all keys and values.

    In the backward they are gathered again, and dK and dV reduced to where they belong: reduce-scatter is the transpose
    of all-gather. Arguments, results and errors are those of :func:`ring_attention`.
    """
    return _attend("gather", Q, K, V, mask, causal, scale, ops, group, placement, method, timeout, return_L)


def heads_attention(
    Q: Array,
    K: Array,
    V: Array,
    *,
    mask: Any = None,
    causal: bool | Corner = False,
    scale: float | None = None,
    ops: Sequence[Op] = (),
    group: Any = None,
    placement: Placement = "contiguous",
    method: Literal["auto", "dense", "tiled"] = "auto",
    timeout: float | None = None,
    return_L: bool = False,
) -> Any:
    """Attend over all ranks' keys, each rank for some of the heads: rows go there by all-to-all, and come back.

    The heads, axis −3, need not be divided evenly; heads of keys that several ranks need go to each. Arguments, results
    and errors are those of :func:`ring_attention`. Source: Jacobs et al., "DeepSpeed Ulysses", 2023.
    """
    return _attend("heads", Q, K, V, mask, causal, scale, ops, group, placement, method, timeout, return_L)


def tree_attention(
    Q: Array,
    K: Array,
    V: Array,
    *,
    mask: Any = None,
    causal: bool | Corner = False,
    scale: float | None = None,
    ops: Sequence[Op] = (),
    group: Any = None,
    placement: Placement = "contiguous",
    method: Literal["auto", "dense", "tiled"] = "auto",
    timeout: float | None = None,
    return_L: bool = False,
) -> Any:
    """Attend over all ranks' keys with queries that every rank has, as in decoding: O and L are merged up a tree.

    Q is the same on every rank, and so must be what arrives at O: one loss, computed everywhere. Then dQ is the same
    everywhere too. All else is as in :func:`ring_attention`. Source: Shyam et al., "Tree Attention", 2024.
    """
    return _attend("tree", Q, K, V, mask, causal, scale, ops, group, placement, method, timeout, return_L)


def layer_attention(
    X: Array,
    p: MultiHeadParams[Array],
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    memory: Any = None,
    mask: Any = None,
    causal: bool | Corner = False,
    scale: float | None = None,
    ops: Sequence[Op] = (),
    group: Any = None,
    method: Literal["auto", "dense", "tiled"] = "auto",
    timeout: float | None = None,
) -> Any:
    """Run a multi-head layer whose heads lie over the ranks: each projects, attends, and the outputs are summed.

    Parameters
    ----------
    X : tensor (..., n_q, d_model)
        The same on every rank, as memory is, and as what arrives at Y: one loss, computed everywhere.
    p : MultiHeadParams
        This rank's share, as :func:`~attnbook.parallel.layer.split_layer` gives it, and ``num_heads`` and
        ``num_kv_heads`` those of the share. Its gradients are whole.
    memory, mask, causal, scale, ops, method
        As for :func:`~attnbook.multi_head.multi_head_attention`; a mask or an op with a number a head has those of the
        share. Ops get no gradient here.
    group, timeout
        As in :func:`ring_attention`.

    Returns
    -------
    Y : tensor (..., n_q, d_out), the same on every rank
    """
    options = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "mask": mask, "causal": causal, "scale": scale}
    return _lines().attend_layer(X, p, memory=memory, group=group, timeout=timeout, ops=ops, method=method, **options)


def _attend(
    scheme: str, Q: Any, K: Any, V: Any, mask: Any, causal: Any, scale: Any, ops: Any, group: Any, *rest: Any
) -> Any:
    given = dict(zip(("placement", "method", "timeout", "return_L"), rest, strict=True))
    return _lines().attend(scheme, Q, K, V, mask=mask, causal=causal, scale=scale, ops=ops, group=group, **given)


def _lines() -> Any:
    """What does the work, or an error without torch.distributed."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        needs = "attention over ranks needs PyTorch: pip install 'attnbook[torch]'; simulate() works without"
        raise ModuleNotFoundError(needs, name="torch") from None
    import torch.distributed

    if not torch.distributed.is_available():
        raise RuntimeError(expected("torch", "a build with torch.distributed", "one without"))
    if "torch._dynamo" in sys.modules:  # then the call may stand in a model that is compiled
        from attnbook.parallel import _compiled

        return _compiled
    from attnbook.parallel import over_torch

    return over_torch
