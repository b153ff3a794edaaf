"""Sigmoid attention and its derivatives: each weight on its own, no row sums to 1. Chapter:
:doc:`/chapters/09_variants`.

With no normalizer nothing joins the tiles of a row but a sum, so nothing is kept, and "dense" is one large tile.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from attnbook.arguments import check_res, check_shape, choose, scores_shape
from attnbook.arrays import agree, array_namespace, device, expected, mT, narrow, widen
from attnbook.attention import AttentionGrads, check_tangents, split_by_asker
from attnbook.ops import Op, Tile, chain
from attnbook.plan import name_of, resolve
from attnbook.spines import WAYS, pick
from attnbook.spines.operands import in_order, operands, operands_vjp, stretch
from attnbook.spines.tiled import pieces
from attnbook.types import AnyArray, Array, Corner

METHODS = {name: WAYS[name] for name in ("auto", "dense", "tiled")}


class Residuals(NamedTuple):
    """What the backward needs: nothing but the inputs."""

    Q: Any
    K: Any
    V: Any
    plan: Any


def sigmoid_attention(
    Q: Array,
    K: Array,
    V: Array,
    *,
    mask: AnyArray | None = None,
    bias: AnyArray | None = None,
    causal: bool | Corner = False,
    scale: float | None = None,
    ops: Sequence[Op] = (),
    method: Literal["auto", "dense", "tiled"] = "auto",
) -> tuple[Array, Residuals]:
    """Let every query add up the values whose keys it likes, each weighted for itself.

    .. math::
       O = P\\,V \\qquad P = \\sigma(S) = \\frac{1}{1 + e^{-S}} \\qquad
       S = \\text{scale}\\cdot Q K^{\\mathsf T} + \\text{bias}

    Equation :eq:`eq-var-sigmoid`, the rest as in :eq:`def-attention`. At first all n_k weights are near σ(0), a half; a
    bias of −log n_k makes them near 1/n_k, as those of a softmax are.

    Parameters
    ----------
    Q, K, V : arrays
        Queries, keys, values, and with them ``mask``, ``bias``, ``causal``, ``scale`` and ``ops``: all as for
        :func:`~attnbook.attention.attention`.
    method : "auto", "dense" or "tiled"
        The table at once, or a tile at a time. Both make P again in the backward.

    Returns
    -------
    O : array (..., n_q, d_v)
        A row with no allowed key is 0.
    res : Residuals
        Q, K and V, not copied.

    Raises
    ------
    TypeError
        An argument is of another type, dtype or library than :func:`~attnbook.attention.attention` takes.
    ValueError
        A shape or an option does not fit, as there; or an op adds a column to the table, such as a sink.

    Notes
    -----
    Source: Ramapuram et al. 2024, "Theory, Analysis, and Best Practices for Sigmoid Self-Attention".
    """
    given: dict[str, Any] = {"Q": Q, "K": K, "V": V}
    agree(**given)
    shape, widths = scores_shape(Q, K, V), (Q.shape[-1], V.shape[-1])
    way = choose("method", method, METHODS) or pick(Q, shape)
    options: dict[str, Any] = {"mask": mask, "bias": bias, "causal": causal, "scale": scale, "ops": ops}
    plan = resolve(given, shape, widths, **options, method=way)
    for _, op in plan.columns:
        wanted = "an op on the scores or the weights: no sum of weights is there to add to"
        raise ValueError(expected(name_of("ops", op), wanted, f"one on '{op.on}'"))
    q, k, v = operands(Q, K, V, plan.scale)
    O: dict[range, Any] = {}
    for tile in _tiles(plan):
        _, W, *_ = _weights(q, k, plan, tile)
        _add(O, tile.rows, W @ v[_at(tile.cols)])
    return narrow(_joined(O, plan, -2, v), Q.dtype), Residuals(Q, K, V, plan)


def sigmoid_attention_vjp(dO: Array, res: Residuals) -> AttentionGrads[Array]:
    """Pull a gradient back through :func:`.sigmoid_attention`. No row sum is taken off: the weights do not compete.

    .. math::
       dP = dO\\,V^{\\mathsf T} \\qquad dS = P \\circ (1 - P) \\circ dP

    Equation :eq:`eq-var-sigmoid`, and the rest as in :eq:`eq-dV`, :eq:`eq-dQ`, :eq:`eq-dK` and :eq:`eq-op-bias`.

    Parameters
    ----------
    dO : array like O
    res : Residuals
        Of the forward; not changed.

    Returns
    -------
    AttentionGrads
        As :func:`~attnbook.attention.attention_vjp` returns them.

    Raises
    ------
    TypeError
        res is from another function, or dO no array like Q.
    ValueError
        dO has not the shape of O.
    """
    plan = _plan_of(res)
    agree(Q=res.Q, dO=dO)
    check_shape("dO", dO, (*plan.shape[:-1], plan.widths[1]))
    q, k, v = operands(res.Q, res.K, res.V, plan.scale)
    dO, table, dparams = widen(dO), Tile.whole(*plan.shape[-2:]), {}
    for place, op in enumerate(plan.ops):
        if op.parameter is not None:
            dparams[place] = _zeros(q, *op.parameter.shape)
    dQ: dict[range, Any] = {}
    dK: dict[range, Any] = {}
    dV: dict[range, Any] = {}
    for tile in _tiles(plan):
        P, W, of_S, of_P = _weights(q, k, plan, tile)
        dO_i = dO[_at(tile.rows)]
        _add(dV, tile.cols, mT(W) @ dO_i)  # O = W V
        dP, of_weights = chain.vjp(plan.weights, of_P, dO_i @ mT(v[_at(tile.cols)]), tile)
        dS, of_scores = chain.vjp(plan.scores, of_S, P * (1 - P) * dP, tile)  # eq-var-sigmoid: P = σ(S)
        _add(dQ, tile.rows, plan.scale * (dS @ k[_at(tile.cols)]))  # S = scale Q Kᵀ
        _add(dK, tile.cols, mT(dS) @ q[_at(tile.rows)])
        chain.collect(dparams, of_weights | of_scores, plan.ops, tile, table)
    grads = operands_vjp(_joined(dQ, plan, -2, q), _joined(dK, plan, -1, k), _joined(dV, plan, -1, v), res)
    return AttentionGrads(*grads, *split_by_asker(in_order(dparams, res), plan))  # type: ignore[call-arg]


def sigmoid_attention_jvp(
    tQ: Array, tK: Array, tV: Array, res: Residuals, *, tbias: AnyArray | None = None, tops: Sequence[Any] | None = None
) -> Array:
    """Push changes of queries, keys, values and bias forward through :func:`.sigmoid_attention`.

    .. math:: \\dot P = P \\circ (1 - P) \\circ \\dot S \\qquad \\dot O = \\dot P\\,V + P\\,\\dot V

    Equation :eq:`eq-var-sigmoid`, with Ṡ of :eq:`eq-attention-jvp`.

    Parameters
    ----------
    tQ, tK, tV, tbias, tops
        As :func:`~attnbook.attention.attention_jvp` takes them.
    res : Residuals
        Of the forward.

    Returns
    -------
    tO : array (..., n_q, d_v)

    Raises
    ------
    TypeError
        res is from elsewhere, or a tangent is no array like Q.
    ValueError
        A tangent has not the shape of its variable, or there was no such variable.
    """
    plan = _plan_of(res)
    tparams = check_tangents(tQ, tK, tV, tbias, tops, res)
    q, k, v = operands(res.Q, res.K, res.V, plan.scale)
    tq, tk, tv = operands(tQ, tK, tV, plan.scale)
    tO: dict[range, Any] = {}
    for tile in _tiles(plan):
        P, W, of_S, of_P = _weights(q, k, plan, tile)
        tS = tq[_at(tile.rows)] @ mT(k[_at(tile.cols)]) + q[_at(tile.rows)] @ mT(tk[_at(tile.cols)])
        tS = chain.jvp(plan.scores, of_S, stretch(tS, P.shape), tile, tparams)
        tW = chain.jvp(plan.weights, of_P, P * (1 - P) * tS, tile, tparams)
        _add(tO, tile.rows, tW @ v[_at(tile.cols)] + W @ tv[_at(tile.cols)])
    return narrow(_joined(tO, plan, -2, v), res.Q.dtype)


def _tiles(plan: Any) -> Iterator[Tile]:
    """The tiles of the table that are not all forbidden."""
    for rows in _places(plan, -2):
        for cols in _places(plan, -1):
            tile = Tile(rows, cols, *plan.shape[-2:])
            if chain.live(plan.ops, tile):
                yield tile


def _places(plan: Any, side: int) -> Any:
    """The rows, or the columns, of the tiles: −2, or −1."""
    n = plan.shape[side]
    return pieces(range(n), plan.tiles[side] if plan.tiles else max(1, n))


def _add(sums: dict[range, Any], places: range, T: Any) -> None:
    """Add to what was found for these places. There are no zeros to add to: ``torch.vmap`` refuses that."""
    sums[places] = sums[places] + T if places in sums else T


def _joined(sums: dict[range, Any], plan: Any, side: int, like: Any) -> Any:
    """The sums for all places, as wide as ``like``; 0 where no tile had any."""
    lead, width = plan.shape[:-2], like.shape[-1]
    parts = [sums[at] if at in sums else _zeros(like, *lead, len(at), width) for at in _places(plan, side)]
    return array_namespace(like).concat(parts, axis=-2)


def _weights(q: Any, k: Any, plan: Any, tile: Tile) -> tuple[Any, ...]:
    """P on this tile, W after the ops on the weights, and what the ops saved."""
    S = stretch(q[_at(tile.rows)] @ mT(k[_at(tile.cols)]), (*plan.shape[:-2], len(tile.rows), len(tile.cols)))
    S, of_S = chain.forward(plan.scores, S, tile)
    xp = array_namespace(S)
    E = xp.exp(-xp.abs(S))  # never above 1
    P = xp.where(S > 0, xp.ones_like(E), E) / (1 + E)  # eq-var-sigmoid
    W, of_P = chain.forward(plan.weights, P, tile)
    return P, W, of_S, of_P


def _at(places: range) -> tuple[Any, ...]:
    return ..., slice(places.start, places.stop), slice(None)


def _zeros(like: Any, *shape: int) -> Any:
    return array_namespace(like).zeros(shape, dtype=like.dtype, device=device(like))


def _plan_of(res: Any) -> Any:
    check_res(res, "sigmoid_attention", Residuals)
    return res.plan
