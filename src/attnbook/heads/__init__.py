"""Heads: how they are split, merged and shared."""

from attnbook.heads.group import share_heads, share_heads_vjp

__all__ = ["share_heads", "share_heads_vjp"]
