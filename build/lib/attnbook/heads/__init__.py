"""Heads: how they are split, merged and shared."""

from attnbook.heads.group import share_heads, share_heads_vjp
from attnbook.heads.split import merge_heads, split_heads

__all__ = ["merge_heads", "share_heads", "share_heads_vjp", "split_heads"]
