"""Our layer in the layout of ``torch.nn.MultiheadAttention``, there and back: :doc:`/chapters/05_multi_head`."""

from collections.abc import Mapping
from functools import reduce
from operator import and_
from typing import Any

import torch
from torch import Tensor
from torch.nn import MultiheadAttention
from torch.nn.functional import pad

from attnbook.arguments import check_shape
from attnbook.arrays import expected, unbroadcast
from attnbook.multi_head import MultiHeadGrads, MultiHeadParams

IN_PROJ = ("q_proj_weight", "k_proj_weight", "v_proj_weight")


def from_state_dict(state: Mapping[str, Tensor]) -> MultiHeadParams[Tensor]:
    """Read weights, or their gradients, from the names and shapes of ``torch.nn.MultiheadAttention``.

    .. math::
       (W_Q,\\; W_K,\\; W_V) = \\texttt{in\\_proj\\_weight}^{\\mathsf T}

       W_O = \\texttt{out\\_proj.weight}^{\\mathsf T}

    Parameters
    ----------
    state : dict of tensors
        As ``module.state_dict()`` gives it. ``in_proj_weight`` (3E, E), or ``q_proj_weight`` (E, E),
        ``k_proj_weight`` (E, kdim) and ``v_proj_weight`` (E, vdim); ``out_proj.weight`` (E, E); ``in_proj_bias`` (3E,)
        and ``out_proj.bias`` (E,), or neither.

    Returns
    -------
    MultiHeadParams
        Views of the tensors, not copies.

    Raises
    ------
    ValueError
        Names that are missing, or have no place here: ``bias_k`` and ``bias_v`` are tokens of the memory, see
        :func:`from_multihead_attention`.

    Notes
    -----
    Chapter: :doc:`/chapters/05_multi_head`.
    """
    stacked, biased = "in_proj_weight" in state, "in_proj_bias" in state
    names = [*(["in_proj_weight"] if stacked else IN_PROJ), "out_proj.weight"]
    names += ["in_proj_bias", "out_proj.bias"] if biased else []
    if set(state) != set(names):
        raise ValueError(expected("state", f"the names {', '.join(names)}", ", ".join(state)))
    weights = state["in_proj_weight"].chunk(3) if stacked else [state[name] for name in IN_PROJ]
    biases = [*state["in_proj_bias"].chunk(3), state["out_proj.bias"]] if biased else []
    return MultiHeadParams(*(W.mT for W in (*weights, state["out_proj.weight"])), *biases)


def to_state_dict(p: MultiHeadParams[Tensor]) -> dict[str, Tensor]:
    """Write weights, or their gradients, under the names and in the shapes of ``torch.nn.MultiheadAttention``.

    The inverse of :func:`from_state_dict`. Of ``grads.dparams`` it makes what torch leaves in the ``grad`` of each
    parameter.

    Parameters
    ----------
    p : MultiHeadParams of tensors

    Returns
    -------
    dict of tensors
        ``in_proj_weight`` where W_Q, W_K and W_V have one shape, else three weights: as torch itself does it.

    Raises
    ------
    ValueError
        What torch's layer cannot hold: fewer key heads, W_Q or W_O that are not square, some biases but not all.

    Notes
    -----
    Chapter: :doc:`/chapters/05_multi_head`.
    """
    E = p.W_Q.shape[0]
    for name, W, rows in zip(p._fields, p[:4], (E, p.W_K.shape[0], p.W_V.shape[0], E), strict=False):
        if tuple(W.shape) != (rows, E):
            raise ValueError(expected(name, f"shape {(rows, E)}, which torch's layer can hold", tuple(W.shape)))
    biases = [b for b in p[4:] if b is not None]
    if len(biases) not in (0, 4):
        raise ValueError(expected("p", "all four biases or none, which torch's layer can hold", f"{len(biases)}"))
    weights = [W.mT for W in p[:3]]
    alike = len({W.shape for W in weights}) == 1
    state = {"in_proj_weight": torch.cat(weights)} if alike else dict(zip(IN_PROJ, weights, strict=True))
    if biases:
        state |= {"in_proj_bias": torch.cat(biases[:3]), "out_proj.bias": p.b_O}
    return state | {"out_proj.weight": p.W_O.mT}


def from_multihead_attention(
    module: MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
) -> tuple[Tensor, MultiHeadParams[Tensor], dict[str, Any]]:
    """Turn a call of ``torch.nn.MultiheadAttention`` into a call of our layer, with nothing left out.

    .. math::
       \\texttt{memory} = \\begin{pmatrix} \\texttt{key} & \\texttt{value} & 0 \\\\ 0 & 0 & I \\end{pmatrix}

       W_K' = \\begin{pmatrix} W_K \\\\ 0 \\\\ \\texttt{bias\\_k} - b_K \\\\ -b_K \\end{pmatrix}

       W_V' = \\begin{pmatrix} 0 \\\\ W_V \\\\ \\texttt{bias\\_v} - b_V \\\\ -b_V \\end{pmatrix}

    Key and value stand side by side, and each weight skips the columns of the other. ``add_bias_kv`` and
    ``add_zero_attn`` are one more token each, with a column of its own: its row of W takes back the bias that every
    token gets.

    Parameters
    ----------
    module : torch.nn.MultiheadAttention
        In ``eval()``, or without dropout.
    query, key, value, key_padding_mask, attn_mask : tensors
        As ``module`` takes them, in its order of axes, with a batch or without. In a bool mask of this layer True =
        may **not** attend; a mask of floats becomes our bias.

    Returns
    -------
    X, p, options
        ``multi_head_attention(X, p, **options)`` is the output, (N, L, E) or (L, E): the batch always comes first.

    Raises
    ------
    TypeError, ValueError
        A module that is another one, or drops out; an input or mask that does not fit.

    Notes
    -----
    Chapter: :doc:`/chapters/05_multi_head`.
    """
    if not isinstance(module, torch.nn.MultiheadAttention):
        raise TypeError(expected("module", "a torch.nn.MultiheadAttention", type(module).__name__))
    if module.training and module.dropout:
        raise ValueError(expected("module", "no dropout, or eval()", f"dropout={module.dropout}"))
    inputs = {"query": query, "key": key, "value": value}
    for name, T in inputs.items():
        _check_tensor(name, T)
        if T.ndim not in (2, 3):
            raise ValueError(expected(name, "two axes (tokens, width), or a batch of these", f"shape {tuple(T.shape)}"))
    X, key, value = (_swap_batch(module, T.detach()) for T in inputs.values())
    (*lead, n_q, _), n_k = X.shape, key.shape[-2]
    sizes = (n_q, module.embed_dim), (n_k, module.kdim), (n_k, module.vdim)
    for name, T, size in zip(inputs, (X, key, value), sizes, strict=True):
        if tuple(T.shape) != (*lead, *size):
            raise ValueError(expected(name, f"shape {(*lead, *size)}, batch first", tuple(T.shape)))
    masks = _masks(module, lead, n_q, n_k, key_padding_mask, attn_mask).values()

    weights = {name: T.detach() for name, T in module.named_parameters()}
    tokens = [(weights.pop("bias_k"), weights.pop("bias_v"))] if module.bias_k is not None else []
    p = from_state_dict(weights)
    E = module.embed_dim
    tokens += [(p.W_O.new_zeros(E), p.W_O.new_zeros(E))] if module.add_zero_attn else []
    more = len(tokens)
    memory = pad(torch.cat([key, value], dim=-1), (0, more, 0, more))
    memory[..., n_k:, module.kdim + module.vdim :] = torch.eye(more)
    b_K, b_V = (0, 0) if p.b_K is None else (p.b_K, p.b_V)
    W_K = torch.cat([p.W_K, torch.zeros_like(p.W_V), *(k.reshape(1, E) - b_K for k, _ in tokens)])
    W_V = torch.cat([torch.zeros_like(p.W_K), p.W_V, *(v.reshape(1, E) - b_V for _, v in tokens)])

    options = {"num_heads": module.num_heads, "memory": memory}
    if allowed := [~T for T in masks if T.dtype == torch.bool]:
        options["mask"] = pad(reduce(and_, allowed), (0, more), value=True)
    if added := [T for T in masks if T.dtype != torch.bool]:
        options["bias"] = pad(sum(added), (0, more))
    return X, p._replace(W_K=W_K, W_V=W_V), options


def to_multihead_attention(
    grads: MultiHeadGrads[Tensor],
    module: MultiheadAttention,
    *,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
) -> dict[str, Tensor]:
    """Turn the gradients of our layer into those of ``torch.nn.MultiheadAttention``.

    .. math::
       d\\texttt{bias\\_k} = (dW_K')_{\\text{bias}}

       db_K = db_K' - (dW_K')_{\\text{bias}} - (dW_K')_{\\text{zero}}

    And so for V. The chain rule through :func:`from_multihead_attention`: a block of zeros is left out, and a
    difference gives its minus sign.

    Parameters
    ----------
    grads : MultiHeadGrads
        Of the call that :func:`from_multihead_attention` made.
    module, key_padding_mask, attn_mask
        As they were given there.

    Returns
    -------
    dict of tensors
        A gradient for each name in ``module.named_parameters()``, for ``"query"``, ``"key"`` and ``"value"``, in
        their order of axes, and for a mask of floats. Where one tensor is both key and value, its two gradients add.

    Raises
    ------
    TypeError, ValueError
        Gradients of a call without a memory; a mask that does not fit.

    Notes
    -----
    Chapter: :doc:`/chapters/05_multi_head`.
    """
    if not isinstance(grads, MultiHeadGrads) or grads.dmemory is None:
        raise TypeError(expected("grads", "the gradients of a call with a memory", type(grads).__name__))
    d, k, kv = grads.dparams, module.kdim, module.kdim + module.vdim
    of_K, of_V = d.W_K[kv:], d.W_V[kv:]
    plain = d._replace(W_K=d.W_K[:k], W_V=d.W_V[k:kv])
    if d.b_K is not None:
        plain = plain._replace(b_K=d.b_K - torch.sum(of_K, 0), b_V=d.b_V - torch.sum(of_V, 0))
    found = to_state_dict(plain)
    if module.bias_k is not None:
        found |= {"bias_k": of_K[0].reshape(1, 1, -1), "bias_v": of_V[0].reshape(1, 1, -1)}

    *lead, n_q, _ = grads.dX.shape
    n_k = grads.dmemory.shape[-2] - of_K.shape[0]
    tokens = grads.dmemory[..., :n_k, :]
    of_inputs = {"query": grads.dX, "key": tokens[..., :k], "value": tokens[..., k:kv]}
    found |= {name: _swap_batch(module, T) for name, T in of_inputs.items()}
    for name, T in _masks(module, lead, n_q, n_k, key_padding_mask, attn_mask).items():
        if T.dtype != torch.bool:
            asked: Any = attn_mask if name == "attn_mask" else key_padding_mask
            found[name] = unbroadcast(grads.dbias[..., :n_k], T.shape).reshape(asked.shape)  # type: ignore[index]
    return found


def _check_tensor(name: str, T: Any) -> None:
    if not isinstance(T, torch.Tensor):
        raise TypeError(expected(name, "a tensor", type(T).__name__))


def _swap_batch(module: Any, T: Any) -> Any:
    """From the module's order of axes to ours, or back: swap tokens and batch, unless the batch comes first."""
    return T if module.batch_first or T.ndim < 3 else T.transpose(0, 1)


def _masks(module: Any, lead: Any, n_q: Any, n_k: Any, key_padding_mask: Any, attn_mask: Any) -> Any:
    """The masks that are given, in the axes of our scores, (..., h, n_q, n_k)."""
    h, found = module.num_heads, {}
    for name, T in {"key_padding_mask": key_padding_mask, "attn_mask": attn_mask}.items():
        if T is not None:
            _check_tensor(name, T)
    if key_padding_mask is not None:
        check_shape("key_padding_mask", key_padding_mask, (*lead, n_k))
        found["key_padding_mask"] = key_padding_mask.detach()[..., None, None, :]
    if attn_mask is not None and attn_mask.ndim == 2:
        check_shape("attn_mask", attn_mask, (n_q, n_k))
        found["attn_mask"] = attn_mask.detach()
    elif attn_mask is not None:
        check_shape("attn_mask", attn_mask, (h * (lead[0] if lead else 1), n_q, n_k))
        found["attn_mask"] = attn_mask.detach().reshape(*lead, h, n_q, n_k)
    return found
