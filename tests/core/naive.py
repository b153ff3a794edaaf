"""Attention as it is defined, in torch: a second implementation, which autograd differentiates."""

import torch
from compare import draw

import attnbook as ab
from attnbook.checks.tolerances import LOW_PRECISION
from attnbook.ops import Dropout, Sink, Tile


def naive_heads(T, Q):
    """T with each of its heads repeated for the query heads that share it."""
    h = Q.shape[-3] if Q.ndim > 2 else 1
    return T.repeat_interleave(h // T.shape[-3], -3) if T.ndim > 2 and T.shape[-3] not in (1, h) and h > 1 else T


def naive_scores(case, Q, K, V, *parameters):
    """The scores of ``naive_attention``, −∞ where a key is forbidden; after the keys, the columns that sinks add."""
    rest = list(parameters)
    S = Q @ naive_heads(K, Q).mT * (Q.shape[-1] ** -0.5 if case.scale is None else case.scale)
    bias = 0.0 if case.bias is None else rest.pop(0)
    sinks = []
    for op in case.made(*rest):
        if isinstance(op, Sink):
            sigma = op.sigma if op.sigma.shape[-2:] == (1, 1) else op.sigma[..., None, None]
            sinks.append(sigma.expand(*case.scores[:-1], 1))
        elif op.on == "scores" and not op.forbids:  # what forbids is in case.allowed()
            S = op.at_corner(case.corner).forward(S, Tile.whole(*case.scores[-2:]))[0].to(Q.dtype)
    return torch.cat([(S + bias).masked_fill(~torch.tensor(case.allowed()), -torch.inf), *sinks], dim=-1)


def naive_attention(case, Q, K, V, *parameters):
    """The definition in torch, each step in the dtype of Q: a second implementation, with autograd to differentiate."""
    S = naive_scores(case, Q, K, V, *parameters)
    P = torch.softmax(S, dim=-1)[..., : case.scores[-1]].masked_fill(~torch.tensor(case.allowed()), 0.0)
    for op in case.made(*parameters[case.bias is not None :]):
        if isinstance(op, Dropout):
            P = P / (1 - op.p) * op.kept(P, Tile.whole(*case.scores[-2:]))
    return P @ naive_heads(V, Q)


def naive_multi_head(case, *inputs):
    """The definition in torch, in the dtype of X, one head cut out after the other."""
    X, memory, p, rest = case.sort(inputs)
    M = X if memory is None else memory

    def project(T, W, b, h):
        return torch.stack((T @ W if b is None else T @ W + b).chunk(h, dim=-1), dim=-3)

    options = case.options(X, *rest)
    Q, K = project(X, p.W_Q, p.b_Q, case.h), project(M, p.W_K, p.b_K, case.h_kv)
    if norm := options.get("qk_norm"):
        Q, K = (naive_norm(T, g, norm.kind, norm.eps) for T, g in ((Q, norm.g_Q), (K, norm.g_K)))
    if rotary := options.get("rotary"):
        of_keys = rotary.positions if rotary.k_positions is None and memory is None else rotary.k_positions
        Q, K = (naive_rotary(T, at, *rotary[2:]) for T, at in ((Q, rotary.positions), (K, of_keys)))
    O = naive_attention(case.heads, Q, K, project(M, p.W_V, p.b_V, case.h_kv), *rest)
    if gate := options.get("gate"):
        A = X @ gate.W if gate.b is None else X @ gate.W + gate.b
        O = O * torch.sigmoid(torch.stack(A.chunk(case.h, dim=-1), dim=-3))
    Y = torch.cat(O.unbind(dim=-3), dim=-1) @ p.W_O
    return Y if p.b_O is None else Y + p.b_O


def naive_norm(T, g, kind, eps):
    """RMS or L2 norm, by torch's own where there is one."""
    if kind == "rms":
        return torch.nn.functional.rms_norm(T, T.shape[-1:], g, eps)
    unit = T / (T.square().sum(-1, keepdim=True) + eps).sqrt()
    return unit if g is None else g * unit


def naive_rotary(T, positions, dims, base, layout, scaling):
    """Each pair of columns as a complex number, times exp(i t θ)."""
    dims = T.shape[-1] if dims is None else dims
    theta = torch.tensor([base ** (-2 * l / dims) for l in range(dims // 2)], dtype=torch.float64)
    theta, temperature = (theta, 1.0) if scaling is None else scaling(theta, base)
    t = torch.arange(T.shape[-2]) if positions is None else positions
    angle = (t[..., None] * theta) if t.ndim < 2 else (t[..., None] * theta)[..., None, :, :]
    a, b = (T[..., :dims:2], T[..., 1:dims:2]) if layout == "interleaved" else T[..., :dims].chunk(2, dim=-1)
    z = torch.view_as_real(torch.complex(a, b) * torch.polar(torch.full_like(angle, temperature), angle))
    turned = z.flatten(-2) if layout == "interleaved" else torch.cat(z.unbind(-1), dim=-1)
    return torch.cat((turned, T[..., dims:]), dim=-1)


LAYOUTS = {
    "": lambda T: T,
    "turned": lambda T: T.transpose(-3, -2).contiguous().transpose(-3, -2) if T.ndim > 2 else T.mT.contiguous().mT,
    "spread": lambda T: torch.stack([T, T], -1).flatten(-2)[..., ::2],
}


def as_exact_as_plain(case, dtype=torch.float32, layout="", dL=True, size=1.0, seed=0, put=lambda T: T, **method):
    """The law: O, L and every gradient, of dO and dL, are as exact as plain torch's in the same dtype, against float64;
    a row without a key gives and gets exactly 0; and none of it depends on how the tensors lie in memory.

    The plain one's error is the largest of three cotangents: of a gradient with few entries one alone may be right by
    luck. ``put`` brings each of torch's tensors to the device or library in question.
    """
    low = [torch.tensor(T).to(dtype) for T in case.draw(seed)]
    low[0] = size * low[0]
    given = [put(LAYOUTS[layout](T) if T.ndim > 1 else T) for T in low]
    O, res = ab.attention(*given[:3], **method, **case.options(given[0], *given[3:]))
    alive = torch.tensor(case.allowed().any(-1))
    of_L = alive | any(op is Sink for op, _ in case.ops)
    arrived = [[torch.tensor(T) for T in draw(O.shape, res.L.shape, seed=seed)] for seed in range(3)]
    arrived = [(of_O.to(dtype), of_L_ * dL) for of_O, of_L_ in arrived]
    dO, given_dL = arrived[0]
    given_dL = put(given_dL.float().masked_fill(~of_L, torch.nan)) if dL else None  # what arrives there is nothing
    ours = [torch.as_tensor(T).cpu() for T in (O, res.L, *case.pull(put(LAYOUTS[layout](dO)), res, given_dL))]
    assert torch.equal(ours[1] == -torch.inf, ~of_L)
    for T in (ours[0], ours[2])[: 1 + (case.q[:-1] == O.shape[:-1])]:  # dQ, where it is not summed over a batch
        assert not T[~alive].any()
    plain, exact = (
        [_plain(case, [T.to(of) for T in low], of_L, *each) for each in arrived] for of in (dtype, torch.double)
    )
    allowed = [max(map(apart, *pair)) for pair in zip(zip(*plain, strict=True), zip(*exact, strict=True), strict=True)]
    for i, (T, true, off_plain) in enumerate(zip(ours, exact[0], allowed, strict=True)):
        assert T.shape == true.shape
        largest = true.abs().masked_fill(~true.isfinite(), 0.0).max().item() if true.numel() else 0.0
        most = LOW_PRECISION["gradient" if i > 1 else "output"] * off_plain + torch.finfo(dtype).eps * largest
        assert apart(T, true) <= most, f"result {i}: off by {apart(T, true):.1e}, of {most:.1e}"


def apart(T, true):
    """The largest difference; NaN is none that is allowed."""
    off = torch.where(true == T, 0.0, T.double() - true)
    return off.abs().nan_to_num(nan=torch.inf).amax().item() if T.numel() else 0.0


def _plain(case, inputs, of_L, dO, dL):
    """O, L and the gradients of all inputs, by autograd, in the dtype of Q."""
    inputs = [T.clone().requires_grad_() for T in inputs]
    O = naive_attention(case, *inputs)
    S = naive_scores(case, *inputs).masked_fill(~of_L[..., None], 0.0)
    L = (S.logsumexp(-1) if S.shape[-1] else S.sum(-1)).masked_fill(~of_L, -torch.inf)
    loss = (O * dO.to(O.dtype)).sum() + (L * dL.to(O.dtype))[of_L].sum()
    return [O.detach(), L.detach(), *torch.autograd.grad(loss, inputs)]
