"""Hugging Face's eager attentions: a module first, O as (b, n, h, d). Chapter: :doc:`/chapters/in_the_wild`."""

import inspect
from dataclasses import replace
from types import SimpleNamespace

import torch


def without_module(fn, known):
    """(fn without its first argument, its signature), with O as (b, h, n, d), as its inputs are.

    What it reads from the module is there, and the module's ``sinks`` become an option where its code names them.
    """
    sinks = "sinks" in getattr(getattr(inspect.unwrap(fn), "__code__", None), "co_names", ())

    def attention(Q, K, V, *, dropout=0.0, sinks=None, **options):
        if Q.ndim != 4:
            raise ValueError("it takes 4 axes only")  # some turn the first ones of three, and give O of another shape
        if sinks is None:
            sinks = Q.new_full((Q.shape[-3],), torch.finfo(Q.dtype).min / 2)  # finite: some subtract it from −∞
        module = SimpleNamespace(
            num_key_value_groups=Q.shape[-3] // K.shape[-3], training=dropout > 0, head_dim=Q.shape[-1], sinks=sinks,
            is_causal=False, config=SimpleNamespace(_attn_implementation="eager"), layer_idx=0,
        )  # fmt: skip
        try:
            O = fn(module, Q, K, V, dropout=dropout, **options)
        except TypeError:  # as where a mask that is None is added
            if options.get("attention_mask") is not None:
                raise
            options["attention_mask"] = Q.new_zeros((1, 1, Q.shape[-2], K.shape[-2]))
            O = fn(module, Q, K, V, dropout=dropout, **options)
        return (O[0] if isinstance(O, tuple) else O).transpose(-2, -3)

    names = {name for name, p in inspect.signature(fn).parameters.items() if p.kind == p.POSITIONAL_OR_KEYWORD}
    names = names - {"module", "sinks"} | {"attention_mask", "scaling", *(["sinks"] if sinks else [])}
    return attention, replace(known, needed=known.needed[1:], names=frozenset(names))
