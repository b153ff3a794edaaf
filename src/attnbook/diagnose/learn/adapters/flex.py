"""FlexAttention's signature: scores are changed by a function of their place. Chapter: :doc:`/chapters/in_the_wild`.

torch's own has no backward on the CPU yet: it is asked where there is a GPU.
"""

from attnbook.diagnose.learn.signature import Signature

NAMES = frozenset({"mask", "bias", "causal", "scale", "window", "softcap", "slopes"})


def in_our_words(flex):
    """(a function that takes our options, its signature): they become one ``score_mod``."""
    import torch

    def attention(Q, K, V, *, scale=None, **options):
        said = {} if scale is None else {"scale": scale}
        if Q.ndim > 2 and Q.shape[-3] != K.shape[-3]:
            said["enable_gqa"] = True
        if options:
            said["score_mod"] = _score_mod(torch, Q, K, options)
        return flex(Q, K, V, **said)

    return attention, Signature(("query", "key", "value"), NAMES | {"enable_gqa"})


def _score_mod(torch, Q, K, options):
    n_q, n_k = Q.shape[-2], K.shape[-2]
    lead, shift = (Q.shape[0], Q.shape[1], n_q, n_k), n_k - n_q if options.get("causal") == "bottom-right" else 0
    mask, bias = (options[name].expand(lead) if name in options else None for name in ("mask", "bias"))

    def score_mod(score, b, h, i, j):
        later = j - i - shift
        if "softcap" in options:
            score = options["softcap"] * torch.tanh(score / options["softcap"])
        if bias is not None:
            score = score + bias[b, h, i, j]
        if "slopes" in options:
            score = score - options["slopes"][h] * later.abs()
        allowed = [mask[b, h, i, j]] if mask is not None else []
        allowed += [later <= 0] if options.get("causal") else []
        if "window" in options:
            allowed += [later >= -options["window"][0], later <= options["window"][1]]
        for each in allowed:
            score = torch.where(each, score, -torch.inf)
        return score

    return score_mod
