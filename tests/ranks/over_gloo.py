"""Attentions over several ranks by torch.distributed: for ``Ranks(…, backend="gloo")`` and for the command."""

import builtins
import os
import time

import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

from attnbook.parallel import ring_attention

tell, calls = print, []


def ring(Q, K, V, causal=False, scale=None):
    return ring_attention(Q, K, V, causal=causal, scale=scale)


def times_ranks(Q, K, V, dO, causal=False, scale=None):
    """With a backward by hand, and all gradients times the number of ranks."""
    inputs = [T.clone().requires_grad_() for T in (Q, K, V)]
    O = ring(*inputs, causal, scale)
    return O.detach(), *(dist.get_world_size() * T for T in torch.autograd.grad(O, inputs, dO))


def kept(Q, K, V):
    """Each rank has gathered all keys, of which its own alone get a gradient, of its own queries."""

    def gathered(T):
        every = [torch.empty_like(T) for _ in range(dist.get_world_size())]
        dist.all_gather(every, T.detach().contiguous())
        every[dist.get_rank()] = T
        return torch.cat(every, -2)

    return scaled_dot_product_attention(Q, gathered(K), gathered(V))


def kept_and_told_late(Q, K, V):
    """Long enough for torchrun to end rank 0, where another has ended."""

    def late(*words, **how):
        time.sleep(3)
        tell(*words, **how)

    if dist.get_rank() == 0:
        builtins.print = late
    return kept(Q, K, V)


def raises_on_one(Q, K, V):
    """While another rank waits for it."""
    if dist.get_world_size() > 1:
        if dist.get_rank() == 1:
            raise KeyError("my own fault")
        dist.barrier()
    return Q @ K.mT @ V


def leaves_messages(Q, K, V):
    """The first call fails on both ranks, and each leaves a message that the second one takes for its own."""
    calls.append(Q)
    other = 1 - dist.get_rank()
    if len(calls) == 1:
        dist.isend(torch.zeros(1000), other)
        raise ArithmeticError("on each of us")
    dist.isend(K.detach().contiguous(), other)
    dist.recv(torch.empty_like(K), other)
    if len(calls) > 2 and dist.get_rank() == 1:
        raise TimeoutError("gave up")
    return kept(Q, K, V)


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
