"""Layers of particular models, each built on the package's attention, with its backward derived."""

from attnbook.layers.differential import (
    DifferentialGrads,
    differential_attention,
    differential_attention_jvp,
    differential_attention_vjp,
    differential_lambda,
    differential_lambda_vjp,
)
from attnbook.layers.latent import LatentGrads, LatentParams, latent_attention, latent_attention_vjp
from attnbook.layers.talking import TalkingGrads, talking_heads, talking_heads_jvp, talking_heads_vjp

__all__ = [
    "DifferentialGrads",
    "LatentGrads",
    "LatentParams",
    "TalkingGrads",
    "differential_attention",
    "differential_attention_jvp",
    "differential_attention_vjp",
    "differential_lambda",
    "differential_lambda_vjp",
    "latent_attention",
    "latent_attention_vjp",
    "talking_heads",
    "talking_heads_jvp",
    "talking_heads_vjp",
]
