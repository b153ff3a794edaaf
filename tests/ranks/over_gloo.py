"""Attentions over several ranks by torch.distributed, for ``diagnose(Ranks(…, backend="gloo"))``."""

import os

import torch
import torch.distributed as dist


def exchange(*tensors):
    """To the next rank, and from the one before."""
    r, R = dist.get_rank(), dist.get_world_size()
    if R == 1:
        return tensors
    came = [torch.empty_like(T) for T in tensors]
    work = [dist.isend(T.contiguous(), (r + 1) % R) for T in tensors]
    work += [dist.irecv(T, (r - 1) % R) for T in came]
    for each in work:
        each.wait()
    return came


def scores(Q, k, scale, hop, causal):
    """The scores of the block that comes at a hop; −∞ where a key is later than a query."""
    r, R = dist.get_rank(), dist.get_world_size()
    S = scale * (Q @ k.mT)
    if not causal:
        return S
    n_q, n_k = S.shape[-2:]
    rows, columns = r * n_q + torch.arange(n_q), (r - hop) % R * n_k + torch.arange(n_k)
    return S.masked_fill(rows[:, None] < columns, -torch.inf)


class Ring(torch.autograd.Function):
    """Ring attention whose backward goes around too."""

    stale, factor = False, 1

    @classmethod
    def forward(cls, ctx, Q, K, V, causal, scale):
        O, L, k, v = torch.zeros_like(Q @ K.mT @ V), torch.full_like(Q[..., :1], -torch.inf), K, V
        for hop in range(dist.get_world_size()):
            S = scores(Q, k, scale, hop, causal)
            new = S.logsumexp(-1, keepdim=True)
            both = torch.logaddexp(L, new)
            O = (L - both).exp() * O + (S - both).exp() @ v
            L = both
            k, v = exchange(k, v)
        ctx.save_for_backward(Q, K, V, O, L)
        ctx.options = causal, scale
        return O

    @classmethod
    def backward(cls, ctx, dO):
        Q, K, V, O, L = ctx.saved_tensors
        causal, scale = ctx.options
        D = (dO * O).sum(-1, keepdim=True)
        dQ, dk, dv, k, v = torch.zeros_like(Q), torch.zeros_like(K), torch.zeros_like(V), K, V
        for hop in range(dist.get_world_size()):
            P = (scores(Q, k, scale, hop, causal) - L).exp()
            dS = scale * P * (dO @ v.mT - D)
            dQ, dk, dv = dQ + dS @ k, dk + dS.mT @ Q, dv + P.mT @ dO
            k, v = (k, v) if cls.stale else exchange(k, v)
            dk, dv = exchange(dk, dv)
        return cls.factor * dQ, cls.factor * dk, cls.factor * dv, None, None


class Stale(Ring):
    """The backward never sends K and V on."""

    stale = True


class Twice(Ring):
    """As of someone who sums over ranks what each has already, on two ranks."""

    factor = 2


def ring(Q, K, V, causal=False, scale=None):
    return Ring.apply(Q, K, V, causal, Q.shape[-1] ** -0.5 if scale is None else scale)


def stale(Q, K, V, causal=False, scale=None):
    return Stale.apply(Q, K, V, causal, Q.shape[-1] ** -0.5 if scale is None else scale)


def times_ranks(Q, K, V, dO, causal=False, scale=None):
    """With a backward by hand, and all gradients times the number of ranks."""
    inputs = [T.clone().requires_grad_() for T in (Q, K, V)]
    O = ring(*inputs, causal, scale)
    return O.detach(), *(dist.get_world_size() * T for T in torch.autograd.grad(O, inputs, dO))


def raises_on_one(Q, K, V):
    if dist.get_rank() == 1:
        raise ValueError("not on this rank")
    return ring(Q, K, V)


def leaves(Q, K, V):
    """A rank whose process ends."""
    if dist.get_rank() == 1:
        os._exit(3)
    return ring(Q, K, V)


def takes_long(Q, K, V):
    """A rank that waits for what nobody sends."""
    if dist.get_rank() == 1:
        dist.recv(torch.empty_like(Q), 0)
    return ring(Q, K, V) if dist.get_world_size() == 1 else Q @ K.mT @ V
