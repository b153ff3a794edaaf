"""Attentions over several ranks by torch.distributed: for ``Ranks(…, backend="gloo")`` and for the command."""

import os

import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

from attnbook.parallel import ring_attention


def ring(Q, K, V, causal=False, scale=None):
    return ring_attention(Q, K, V, causal=causal, scale=scale)


def kept(Q, K, V):
    """Each rank has gathered all keys, of which its own alone get a gradient, of its own queries."""

    def gathered(T):
        every = [torch.empty_like(T) for _ in range(dist.get_world_size())]
        dist.all_gather(every, T.detach().contiguous())
        every[dist.get_rank()] = T
        return torch.cat(every, -2)

    return scaled_dot_product_attention(Q, gathered(K), gathered(V))


def raises_on_one(Q, K, V):
    """While another rank waits for it."""
    if dist.get_world_size() > 1:
        if dist.get_rank() == 1:
            raise KeyError("my own fault")
        dist.barrier()
    return Q @ K.mT @ V


def waits(Q, K, V):
    """For what nobody sends."""
    dist.recv(torch.empty_like(K), 1 - dist.get_rank())


def one_waits(Q, K, V):
    if dist.get_rank() == 1:
        waits(Q, K, V)
    return Q @ K.mT @ V


def short_on_one(Q, K, V):
    O = ring(Q, K, V)
    return O[..., :-1, :] if dist.get_rank() == 1 else O


def ends(Q, K, V):
    """With another code torchrun ends rank 0, too, often before it has said a word."""
    if dist.get_rank() == 1:
        os._exit(0)
    if dist.get_world_size() > 1:
        dist.barrier()
    return Q @ K.mT @ V
