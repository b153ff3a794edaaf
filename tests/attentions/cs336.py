"""A solution of Stanford CS336's assignment on FlashAttention-2, in its signature.

``apply(Q, K, V, is_causal)`` with arrays (batch, n, d), as its tests call it; L is among the saved tensors. Tests plant
mistakes in its lines.
"""

RIGHT = '''
import torch


def scores(Q, K, is_causal):
    assert Q.shape[-2] % 16 == 0 and K.shape[-2] % 16 == 0
    S = Q @ K.mT * Q.shape[-1] ** -0.5
    return torch.where(torch.ones_like(S, dtype=torch.bool).tril(), S, -1e6) if is_causal else S


class FlashAttention2(torch.autograd.Function):
    """As the assignment asks: lengths that 16 divides, P again from L, and D from dO and O."""

    @staticmethod
    def forward(ctx, Q, K, V, is_causal=False):
        S = scores(Q, K, is_causal)
        L = S.logsumexp(-1)
        O = torch.exp(S - L[..., None]) @ V
        ctx.save_for_backward(L, Q, K, V, O)
        ctx.is_causal = is_causal
        return O

    @staticmethod
    def backward(ctx, dO):
        L, Q, K, V, O = ctx.saved_tensors
        S, scale = scores(Q, K, ctx.is_causal), Q.shape[-1] ** -0.5
        P = torch.exp(S - L[..., None])
        dS = P * (dO @ V.mT - (dO * O).sum(-1, keepdim=True))
        return dS @ K * scale, dS.mT @ Q * scale, P.mT @ dO, None
'''
