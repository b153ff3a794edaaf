"""Figures of the book: SVG, the same on every machine, readable in light and dark, with its message in words.

``matrices`` and ``flow`` need nothing but Python; ``plot`` imports matplotlib when it is called.
"""

from attnbook.figures.flow import flow
from attnbook.figures.matrices import matrices
from attnbook.figures.plots import plot
from attnbook.figures.svg import Figure

__all__ = ["Figure", "flow", "matrices", "plot"]
