"""The atlas of incidents: wrong gradients of attention that people met, each cause planted in our own code.

Page: :doc:`/book/atlas`. A row is a public thread; what it tells is in our words, and its address stands beside it.
:data:`KINDS` are the classes of causes; a test runs every cause where it shows and where it hides.
"""

from evidence.atlas import calls, heads, learned, masks, memory, options, parallel, scale, tiles

MODULES = (scale, masks, heads, memory, tiles, parallel, options, learned, calls)
"""The modules of the table."""

KINDS = {
    "The scale": scale.CAUSES,
    "Causal, windows and masks": masks.CAUSES,
    "Products, sums and shared heads": heads.CAUSES,
    "Strides, and memory that nobody wrote": memory.CAUSES,
    "The last tile, rounding and races": tiles.CAUSES,
    "Several ranks": parallel.CAUSES,
    "Dropout, L and rotation": options.CAUSES,
    "Sinks and biases, which are learned": learned.CAUSES,
    "No gradient at all": calls.CAUSES,
}
"""The causes by class: {heading: causes}."""

CAUSES = {cause.slug: cause for causes in KINDS.values() for cause in causes}
"""Every cause by its slug."""


def threads():
    """(cause, thread) of every row."""
    return [(cause, thread) for cause in CAUSES.values() for thread in cause.threads]


def incidents():
    """Every thread once, by its address: one may tell of two causes."""
    return {thread.address: thread for _, thread in threads()}
